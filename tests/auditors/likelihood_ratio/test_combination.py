"""The test over all rounds: Gaussian scores know the answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakmeter.auditors.audited_round import Trials
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.likelihood_ratio.transcript_runs import Transcripts
from leakmeter.auditors.rng import stream
from tests.helpers.numbers import few_or_many, most_allowed
from tests.helpers.refusals import refuses

GAPS = np.array([0.5, 1.0, 1.5, 0.0])


def transcripts(
    draws: int, name: int, gaps: np.ndarray = GAPS, root: np.ndarray | None = None
) -> Transcripts:
    """Return Gaussian scores whose means differ by `gaps`, with the covariance root rootᵀ."""
    rng = stream(11, "transcripts", name)
    own = np.eye(len(gaps)) if root is None else root
    first, second = rng.standard_normal((2, draws, len(gaps))) @ own.T
    return Transcripts(first + gaps, second)


def test_independent_rounds_are_as_far_apart_as_the_root_of_the_sum_of_squares() -> None:
    found = transcripts(4000, 0).judged(2000).separation
    # The standard error of a separation of 1.87 from 2,000 transcripts is 0.04.
    assert found == pytest.approx(math.sqrt(np.square(GAPS).sum()), abs=0.16)


def test_dependent_rounds_are_combined_with_their_covariance() -> None:
    root = np.tril(np.full((4, 4), 0.8)) + 0.2 * np.eye(4)
    drawn = transcripts(8000, 1, root=root)
    truth = math.sqrt(GAPS @ np.linalg.solve(root @ root.T, GAPS))
    assert drawn.judged(4000).separation == pytest.approx(truth, rel=0.08)
    equal = Trials(drawn.first[4000:].sum(axis=1), drawn.second[4000:].sum(axis=1)).separation
    assert equal < 0.6 * truth  # adding up scores would lose this


def test_scores_that_never_vary_separate_the_worlds() -> None:
    ones, zeros = np.ones((20, 2)), np.zeros((20, 2))
    assert Transcripts(ones, zeros).judged(10).separation > 1e9
    assert Transcripts(zeros, zeros).judged(10).separation == 0.0


def test_few_pilot_transcripts_for_many_rounds_still_give_a_sensible_test() -> None:
    found = transcripts(2030, 2, np.full(40, 0.3)).judged(30).separation
    assert 0.6 * math.sqrt(40) * 0.3 < found < math.sqrt(40) * 0.3 + 0.16


@pytest.mark.parametrize("audits", few_or_many(60, 10_000))
@pytest.mark.parametrize("gaps", [np.zeros(3), np.array([0.4, 0.8, 0.6])])
def test_the_bound_keeps_its_confidence(gaps: np.ndarray, audits: int) -> None:
    """A bound of 80 % exceeds the truth in at most 20 % of audits, by 3 standard errors."""
    truth = epsilon_gaussian(0.01, float(np.linalg.norm(gaps)))
    values = []
    for audit in range(audits):
        trials = transcripts(80, 10 + audit, gaps).judged(40)
        values.append(trials.bound(0.01, 0.8).value)
    assert sum(np.array(values) > truth + 1e-12) <= most_allowed(audits, 0.2)
    if truth:
        assert np.median(values) > 0.1 * truth


def test_worlds_of_different_size_are_refused() -> None:
    with pytest.raises(ValueError, match="both worlds must have scores"):
        Transcripts(np.zeros((3, 1)), np.zeros((4, 1)))
    with refuses("pilot"):
        Transcripts(np.zeros((9, 1)), np.zeros((9, 1))).judged(3)
