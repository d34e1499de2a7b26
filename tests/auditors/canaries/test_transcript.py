"""The transcript: cosines with real vectors, and nothing said where nothing changed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from leakmeter.auditors.auditor import DivergedError
from leakmeter.auditors.canaries.transcript import Transcript
from leakmeter.auditors.canary import canary_vector
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


def test_cosines_are_those_of_the_vectors() -> None:
    found = Transcript(5, range(CANARIES), DIM)
    said = [found.add(START, START + change, range(CANARIES)) for change in changes(3)]
    final, _ = found.final()
    largest, _, _ = found.largest(100, 0.01, stream(0))
    for i in range(CANARIES):
        vector = canary_vector(5, i, DIM)
        each = [cosine(vector, change) for change in changes(3)]
        assert [row[i] for row in said] == pytest.approx(each, abs=1e-7)
        assert final[i] == pytest.approx(cosine(vector, changes(3).sum(axis=0)), abs=1e-7)
        assert largest[i] == pytest.approx(max(each), abs=1e-7)


def test_p_values_of_canaries_left_out_are_uniform_or_above() -> None:
    found = transcript(4, canaries=2000)
    _, log_p = found.final()
    assert kstest(np.exp(log_p), "uniform").pvalue > 1e-3
    _, limits, pool = found.largest(50_000, 0.01, stream(0))
    assert pool.size == 50_000
    for level in (0.5, 0.1, 0.01):
        share = float(np.mean(limits <= np.log(level)))
        assert share <= level + 3 * np.sqrt(level / 2000)
        assert share >= 0.7 * level - 3 * np.sqrt(level / 2000)


def test_nothing_changed_is_no_evidence() -> None:
    found = Transcript(5, range(CANARIES), DIM)
    assert not found.add(START, START, [3, 4]).any()
    for cosines, log_p, *_ in (found.final(), found.largest(100, 0.01, stream(0))):
        assert not cosines.any()
        assert not log_p.any()  # a p-value of 1


def test_a_round_without_change_does_not_count() -> None:
    found = transcript(3)
    before = found.largest(500, 0.01, stream(0))
    found.add(START, START)
    for old, new in zip(before, found.largest(500, 0.01, stream(0)), strict=True):
        assert np.array_equal(old, new)


def test_a_model_that_comes_back_up_to_rounding_has_not_changed() -> None:
    found = transcript(3)
    found.add(np.zeros(DIM), -changes(3).sum(axis=0))  # in single precision this leaves a trace
    cosines, log_p = found.final()
    assert np.array_equal(cosines, np.zeros(CANARIES)) or np.abs(cosines).max() < 0.6
    assert (log_p <= 0).all()


def test_it_goes_on_from_its_state() -> None:
    first, rest = transcript(2), Transcript(5, range(CANARIES), DIM)
    rest.restore(first.state())
    rest.add(START, START + changes(3)[2])
    for old, new in zip(transcript(3).final(), rest.final(), strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_numbers_that_are_none_or_too_large_are_refused(bad: float) -> None:
    with pytest.raises(DivergedError):
        transcript(1).add(START, np.full(DIM, bad))
