"""The transcript: cosines with real vectors, and nothing said where nothing changed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest

from leakmeter.auditors.auditor import DamagedError, DivergedError
from leakmeter.auditors.canaries import transcript as module
from leakmeter.auditors.canaries.transcript import Transcript
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.rng import stream

DIM, CANARIES = 150, 30
START = stream(0, "start").standard_normal(DIM)


def changes(rounds: int) -> np.ndarray:
    drift = stream(0, "drift").standard_normal(DIM)
    return stream(0, "changes").standard_normal((rounds, DIM)) + drift


def transcript(rounds: int, canaries: int = CANARIES) -> Transcript:
    found = Transcript(5, range(canaries), DIM)
    for change in changes(rounds):
        found.add(START, START + change)
    return found


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_p_values_of_canaries_left_out_are_uniform_or_above() -> None:
    found = transcript(4, canaries=2000)
    _, log_p = found.final()
    assert kstest(np.exp(log_p), "uniform").pvalue > 1e-3
    largest = found.largest(50_000, 0.01, stream(0))
    limits, pool = largest.log_p, largest.null
    assert pool is not None
    assert pool.size == 50_000
    for level in (0.5, 0.1, 0.01):
        share = float(np.mean(limits <= np.log(level)))
        assert share <= level + 3 * np.sqrt(level / 2000)
        assert share >= 0.7 * level - 3 * np.sqrt(level / 2000)


def test_nothing_changed_is_no_evidence() -> None:
    found = Transcript(5, range(CANARIES), DIM)
    assert not found.add(START, START, [3, 4]).any()
    largest = found.largest(100, 0.01, stream(0))
    for cosines, log_p in (found.final(), (largest.cosines, largest.log_p)):
        assert not cosines.any()
        assert not log_p.any()  # a p-value of 1


def test_a_round_without_change_does_not_count() -> None:
    found = transcript(3)
    before = found.largest(500, 0.01, stream(0))
    found.add(START, START)
    after = found.largest(500, 0.01, stream(0))
    for old, new in ((before.cosines, after.cosines), (before.log_p, after.log_p)):
        assert np.array_equal(old, new)


@pytest.mark.parametrize("has_folder", [True, False])
def test_it_goes_on_from_its_state(has_folder: bool, tmp_path: Path) -> None:
    path = tmp_path / "rows" if has_folder else None
    first, second = (Transcript(5, range(CANARIES), DIM, path) for _ in range(2))
    for server_round, change in enumerate(changes(3)):
        kept = first.state() if server_round == 2 else {}
        first.add(START, START + change)
    whole = first.final()
    second.restore(kept)
    second.add(START, START + changes(3)[2])
    for old, new in zip(whole, second.final(), strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_numbers_that_are_none_or_too_large_are_refused(bad: float) -> None:
    with pytest.raises(DivergedError):
        transcript(1).add(START, np.full(DIM, bad))


def twin(rows: np.ndarray, canaries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines with the rows and with their sum, from whole vectors."""
    exact = np.vstack([rows, rows.sum(axis=0, dtype=np.float64)]).astype(np.float64)
    unit = np.stack([canary_vector(5, i, rows.shape[1]) for i in range(canaries)])
    found = (exact / np.linalg.norm(exact, axis=1)[:, None]) @ unit.T  # (rows + 1, canaries)
    return found[:-1], found[-1]


SMALL = {"_CHANGES": 500, "_CANARIES": 300, "_PRODUCTS": 60, "_COLUMNS": 64}


@pytest.mark.parametrize("has_folder", [True, False])
def test_blocks_of_any_size_give_what_whole_vectors_give(
    has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SMALL.items():  # several groups of canaries, blocks and parts of both
        monkeypatch.setattr(module, name, value)
    dim, canaries, rounds = 1_003, 47, 5
    rows = stream(1, "rows").standard_normal((rounds, dim)).astype(np.float32)
    rows *= 10.0 ** np.arange(rounds, dtype=np.float32)[:, None]
    told: list[float] = []
    found = Transcript(
        5,
        range(canaries),
        dim,
        tmp_path / "rows" if has_folder else None,
        lambda _, share: told.append(share),
    )
    said = [found.add(np.zeros(dim), row.astype(np.float64), range(canaries)) for row in rows]
    each, final = twin(rows, canaries)
    largest = found.largest(100, 0.01, stream(0)).cosines
    for one, other in ((said, each), (found.final()[0], final), (largest, each.max(axis=0))):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found._look().gram, rows.astype(float) @ rows.astype(float).T)
    assert told == sorted(told)
    assert len(set(told)) == len(told) > 20
    assert told[-1] == 1.0


def test_the_change_since_the_start_keeps_its_digits_where_rounds_cancel() -> None:
    dim = 5_000
    there = stream(2, "there").standard_normal(dim).astype(np.float32).astype(np.float64)
    step = np.zeros(dim)
    step[:7] = np.float32(1e-4)
    found = Transcript(5, range(10), dim)
    for change in (there, -there, step):
        found.add(np.zeros(dim), change)
    expected = [cosine(canary_vector(5, i, dim), step) for i in range(10)]
    np.testing.assert_allclose(found.final()[0], expected, rtol=1e-9)


def test_memory_does_not_grow_with_rounds_or_canaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_CHANGES": 2**15, "_CANARIES": 2**14, "_PRODUCTS": 2**12}.items():
        monkeypatch.setattr(module, name, value)
    dim, rounds, canaries = 100_000, 20, 60  # 8 MB of changes, 24 MB of canaries
    model, after = np.zeros(dim), np.ones(dim)
    found = Transcript(5, range(canaries), dim, tmp_path / "rows")
    tracemalloc.start()
    try:
        for _ in range(rounds):
            found.add(model, after, [0, 1])
        found.final()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2e6


def test_changes_that_were_altered_give_no_report(tmp_path: Path) -> None:
    found = Transcript(5, range(CANARIES), DIM, tmp_path / "rows")
    for change in changes(3):
        found.add(START, START + change)
    (tmp_path / "rows").write_bytes(bytes(3 * DIM * 4))
    with pytest.raises(DamagedError, match="number 1 in it has been altered"):
        found.final()


def test_what_was_seen_stays_when_the_file_goes(tmp_path: Path) -> None:
    found = Transcript(5, range(CANARIES), DIM, tmp_path / "rows")
    found.add(START, START + changes(1)[0])
    before = found.final()
    found.close()
    assert not (tmp_path / "rows").exists()
    assert np.array_equal(found.final()[0], before[0])
