"""Fits and diagnostics of canaries: known values, and states that go on."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.canaries.canary_auditor import CanaryScores, band, histogram, one_fit
from leakmeter.auditors.canaries.one_shot import Interference
from leakmeter.auditors.rng import stream


def test_without_a_leak_the_estimates_have_the_known_floor() -> None:
    # k = 1000, delta 1e-6, no leak: mean 0.41 and 95 % quantile 0.93 fitted, 0.10 and 0.24 known.
    z = stream(0, "no leak").standard_normal((600, 1000))
    for std, mean, quantile in (("fitted", 0.41, 0.93), ("known", 0.10, 0.24)):
        values = one_fit(z, std, 1e-6)  # type: ignore[arg-type]
        assert values.mean() == pytest.approx(mean, abs=0.04)
        assert band(values)[1] == pytest.approx(quantile, abs=0.08)


def test_interference_goes_on_from_its_state() -> None:
    rng = stream(0, "rounds")
    whole, first = Interference(), Interference()
    means = rng.standard_normal((4, 300)) + 0.3
    for i, mean in enumerate(means):
        whole.add(mean, 1.0)
        if i < 2:
            first.add(mean, 1.0)
    rest = Interference()
    rest.restore(first.state())
    for mean in means[2:]:
        rest.add(mean, 1.0)
    assert rest.rounds == whole.rounds
    assert rest.of_the_run() == whole.of_the_run()
    total = means.sum(axis=0)
    assert whole.of_the_run() == pytest.approx(total @ total / (300 * 4) - 1)


def test_a_histogram_counts_everyone() -> None:
    found = histogram(CanaryScores(np.array([0.5, 0.9]), np.array([-0.2, 0.0, 0.1])), 100)
    assert (sum(found.included), sum(found.excluded)) == (2, 3)
    assert (found.edges[0], found.edges[-1]) == (-3.0, 9.0)


def test_a_histogram_says_what_the_null_is() -> None:
    scores = np.array([0.5, 0.9]), np.array([-0.2, 0.0, 0.2])
    exact = histogram(CanaryScores(*scores), 100)
    assert exact.is_exact
    assert sum(exact.null) == pytest.approx(1, abs=0.002)  # a little is beyond three deviations
    drawn = histogram(CanaryScores(*scores, np.array([0.0, 0.05, 0.5, 0.6])), 100)
    assert not drawn.is_exact
    assert (len(drawn.null), sum(drawn.null)) == (30, 1.0)
    assert sum(histogram(CanaryScores(np.array([]), scores[1]), 100).included) == 0
