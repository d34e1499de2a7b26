"""The transcript: cosines with real vectors, and nothing said where nothing changed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest

from leakmeter.auditors.auditor import DamagedError, DivergedError
from leakmeter.auditors.canaries import transcript as module
from leakmeter.auditors.canaries.transcript import Transcript, null_maxima
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
    np.testing.assert_allclose(found._seen.gram, rows.astype(float) @ rows.astype(float).T)
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


# The distribution of the largest cosines of canaries that stay out is exact.

# Statistical tests: fixed seeds, each fails by bad luck with a chance of 1e-4, and the wrong law
# beside it is rejected at 1e-6.
ACCEPT, REJECT = 1e-4, 1e-6


def related_changes(*, rounds: int, dim: int, rank: int | None = None) -> np.ndarray:
    """Return round deltas that go in related directions with very different lengths."""
    rng = stream(0, "transcript")
    drift = rng.standard_normal(dim)
    if rank is not None:
        basis = rng.standard_normal((rank, dim))
        return rng.standard_normal((rounds, rank)) @ basis
    lengths = 10.0 ** np.arange(rounds)[:, None]
    return lengths * (drift + rng.standard_normal((rounds, dim)))


def brute_maxima(deltas: np.ndarray, draws: int) -> np.ndarray:
    """Return largest cosines of real vectors with real deltas."""
    vectors = stream(5, "fresh").standard_normal((draws, deltas.shape[1]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths = np.linalg.norm(deltas, axis=1)
    cosines = vectors @ deltas.T / np.where(lengths > 0, lengths, 1.0)
    return cosines.max(axis=1)


TRANSCRIPTS = {
    "related rounds": related_changes(rounds=5, dim=30),
    "one round": related_changes(rounds=1, dim=30),
    "dependent rounds": related_changes(rounds=8, dim=30, rank=3),
    "more rounds than parameters": related_changes(rounds=12, dim=5, rank=5),
    "a round that changed nothing": np.vstack(
        [related_changes(rounds=2, dim=30), np.zeros((1, 30))]
    ),
}


@pytest.mark.parametrize(
    ("name", "block"), [*((name, 2**22) for name in TRANSCRIPTS), ("related rounds", 100)]
)
def test_null_maxima_have_the_law_of_real_vectors(name: str, block: int) -> None:
    deltas = TRANSCRIPTS[name]
    draws = null_maxima(deltas @ deltas.T, deltas.shape[1], 20_003, stream(1, "null"), block)
    assert draws.size == 20_003  # the last block may be smaller
    assert ks_2samp(draws, brute_maxima(deltas, 20_000)).pvalue > ACCEPT
    assert not null_maxima(np.zeros((3, 3)), 30, 7, stream(1, "null")).any()  # nothing changed


def test_wrong_nulls_are_rejected() -> None:
    deltas = TRANSCRIPTS["related rounds"]
    real, gram = brute_maxima(deltas, 20_000), deltas @ deltas.T
    unrelated = null_maxima(np.diag(np.diag(gram)), 30, 20_000, stream(1, "null"))
    wrong_size = null_maxima(gram, 40, 20_000, stream(1, "null"))
    # Without the part of a canary that no delta sees, cosines would be far too large.
    without_rest = null_maxima(gram, 5, 20_000, stream(1, "null"))
    for wrong in (unrelated, wrong_size, without_rest):
        assert ks_2samp(wrong, real).pvalue < REJECT


def all_at_once(gram: np.ndarray, dim: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw as `null_maxima` does, with every draw in memory."""
    lengths = np.sqrt(np.diag(gram))
    values, vectors = np.linalg.eigh(gram / np.outer(lengths, lengths))
    factor = vectors * np.sqrt(values)
    normal = rng.standard_normal((draws, len(gram)))
    rest = rng.chisquare(dim - len(gram), draws)
    return (normal @ factor.T).max(axis=1) / np.sqrt((normal**2).sum(axis=1) + rest)


def related(rounds: int) -> np.ndarray:
    """Return the Gram matrix of so many related changes."""
    deltas = 1 + stream(0, "changes").standard_normal((rounds, 60))
    return deltas @ deltas.T


def test_draws_do_not_depend_on_how_many_are_in_memory() -> None:
    gram = related(20)
    few = null_maxima(gram, 60, 50_000, stream(1, "null"))
    np.testing.assert_allclose(few, all_at_once(gram, 60, 50_000, stream(1, "null")), rtol=1e-12)


def test_memory_of_the_null_does_not_grow_with_the_rounds() -> None:
    def peak(rounds: int) -> int:
        gram = related(rounds)
        tracemalloc.start()
        try:
            null_maxima(gram, 60, 100_000, stream(1, "null"))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(40) < 1.2 * peak(5)
