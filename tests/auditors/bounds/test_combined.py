"""The statistic that combines canaries: what makes it valid, and its level in the worst case."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit

from leakmeter.auditors.bounds.one_run import log_mean, mixture_test, shares
from leakmeter.auditors.rng import stream
from tests.helpers.numbers import few_or_many, most_allowed

NUMBERS = [1, 2, 7, 40, 1000]


def null_of(edges: np.ndarray) -> np.ndarray:
    """Return the chance of each bin if P(evidence ≥ a) = 1/(1 + e^a)."""
    return -np.diff(expit(-edges), prepend=1.0, append=0.0)


@pytest.mark.parametrize("num", NUMBERS)
def test_every_part_rises_with_the_evidence_and_has_the_mean_one(num: int) -> None:
    test = mixture_test(num)
    assert (np.diff(test.log_ratios, axis=0) >= 0).all()
    np.testing.assert_allclose(null_of(test.edges) @ np.exp(test.log_ratios), 1, rtol=1e-12)
    assert (np.diff(test.edges) > 0).all()


@pytest.mark.parametrize("num", NUMBERS)
def test_thresholds_fall_with_the_level_and_never_exceed_that_of_the_mean(num: int) -> None:
    levels = [1e-300, 1e-6, 1e-3, 0.01, 0.05, 0.2]
    needed = [mixture_test(num).threshold(level) for level in levels]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] == -math.log(1e-300)  # no draw is that far out
    for level, ln_t in zip(levels[1:], needed[1:], strict=True):
        assert ln_t < -math.log(level)


@pytest.mark.parametrize("runs", few_or_many(2000, 100_000))
@pytest.mark.parametrize("num", NUMBERS)
def test_in_the_worst_case_each_level_is_kept_and_nearly_used_up(num: int, runs: int) -> None:
    # The draws that set the threshold are fixed: their three standard errors are a tenth of the
    # level, and bins take as much again from one or two canaries.
    test, rng = mixture_test(num), stream(3, "worst case", num)
    edges, null = test.edges, null_of(test.edges)
    counts = rng.multinomial(num, null / null.sum(), runs)
    reached = num - counts.cumsum(axis=1)[:, : edges.size]
    found = test.log_statistic(reached, num)
    for level in (0.2, 0.05, 0.01):
        above = (found > test.threshold(level)).sum()
        assert above <= most_allowed(runs, level)
        assert above >= 0.7 * level * runs - 3 * math.sqrt(runs * level)


def test_the_statistic_is_the_mean_of_products() -> None:
    """A slow twin that multiplies canary by canary."""
    test, rng = mixture_test(7), stream(3, "twin")
    evidence = rng.logistic(size=7)
    ratios = np.exp(test.log_ratios)[np.searchsorted(test.edges, evidence, side="right")]
    reached = (evidence[:, None] >= test.edges).sum(axis=0)
    slow = math.log(ratios.prod(axis=0).mean())
    assert float(test.log_statistic(reached, 7)) == pytest.approx(slow, rel=1e-12)
    both = test.log_statistic(np.stack([reached, np.zeros_like(reached)]), 7)
    assert both[0] == pytest.approx(slow, rel=1e-12)
    assert both[1] < both[0]  # all out


def test_shares_end_where_no_visible_canary_would_be_expected() -> None:
    found = [shares(num).tolist() for num in (1, 7, 8, 200)]
    assert found == [[1.0], [1.0], [1.0, 0.25], [1.0, 0.25, 0.0625, 0.015625]]


def test_means_of_huge_numbers_do_not_overflow() -> None:
    logs = np.array([[1000.0, 1000.0], [-2000.0, -1000.0]])
    assert log_mean(logs) == pytest.approx([1000.0, -1000 - math.log(2)])
