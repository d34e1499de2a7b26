"""Bounds with the best threshold on the same trials: how often they are above the truth."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import Fixed, epsilon_lower_bound
from leakmeter.auditors.rng import stream
from leakmeter.papers.coverage import trials
from leakmeter.papers.coverage.case import most_allowed
from tests.papers.small import RESULTS, Reproduced, read_cells


@pytest.mark.slow
def test_best_thresholds_break_their_confidence_and_show_more_than_the_band(
    reproduced: Reproduced,
) -> None:
    runs, cells = reproduced.scale("coverage").runs, reproduced("coverage").cells
    found = {key: cell["bounds"] for key, cell in cells.items() if "-200-trials-" in key}
    assert len(found) == len(trials.NOISES)
    for bounds in found.values():
        assert bounds[trials.BEST]["quantiles"][1] >= bounds["band"]["quantiles"][1]
    for noise in ("no-leak", "Laplace-1-apart"):
        name = f"{noise}-200-trials-delta1e-05-{runs}"
        assert found[name][trials.EXACT]["above"] > 0.3  # at 5 %, by chance 1 in 1,000 of 10 runs


def test_the_kept_audits_show_it_for_both_published_rules() -> None:
    cells = read_cells(RESULTS / "coverage")
    found = [cell["bounds"] for key, cell in cells.items() if "-trials-" in key]
    found = [bounds for bounds in found if trials.BEST in bounds]
    assert len(found) == 2 * len(trials.NOISES)
    for rule in (trials.BEST, trials.EXACT):
        assert max(bounds[rule]["above"] for bounds in found) > most_allowed(2000)


def test_where_errors_are_rare_the_two_rules_regain_most_of_what_the_band_pays() -> None:
    cells = read_cells(RESULTS / "coverage")
    found = cells["Gaussian-8-apart-5000-trials-delta1e-05-2000"]["bounds"]
    shown = [found[rule]["quantiles"][1] for rule in ("band", "band and fixed", "fixed")]
    assert shown == pytest.approx([6.45, 7.15, 7.21], abs=0.01)


def test_a_transcript_of_correlated_rounds_is_as_far_apart_as_its_covariance_says() -> None:
    case = next(c for c in trials.cases((200,)) if c.name == "10 correlated rounds, 1 apart each")
    covariance = np.full((10, 10), 0.5) + 0.5 * np.eye(10)
    gap = np.ones(10)
    apart = float(np.sqrt(gap @ np.linalg.solve(covariance, gap)))
    assert case.epsilon == pytest.approx(epsilon_gaussian(0.1, apart))
    [bound] = case.audit(stream(3, "transcript")).values()
    assert 0 < bound.value < case.epsilon


def test_the_best_threshold_is_the_largest_of_all_fixed_ones() -> None:
    rng = stream(1, "scores")
    inside, outside = rng.normal(1.0, 1.0, 60), rng.normal(0.0, 1.0, 60)
    each = [
        epsilon_lower_bound(inside, outside, delta=1e-3, rule=Fixed(t)).value
        for t in np.concatenate([inside, outside])
    ]
    got = trials.best_threshold(inside, outside, 1e-3)
    assert got == pytest.approx(max(each), rel=1e-12)


@pytest.mark.parametrize("noise", trials.NOISES, ids=lambda noise: f"{noise.name}-{noise.delta:g}")
def test_the_known_null_is_that_of_the_scores(noise: trials.Noise) -> None:
    drawn = noise.draw(stream(2, noise.name), 20_000)
    for t in (-1.5, 0.0, 0.7, 2.0):
        share = float(np.mean(drawn >= t))
        truth = float(np.exp(noise.logsf(np.array([t])))[0])
        assert abs(share - truth) < 4 * (truth * (1 - truth) / drawn.size) ** 0.5


@pytest.mark.parametrize(
    "noise",
    [noise for noise in trials.NOISES if noise.name.startswith("Laplace")],
    ids=lambda noise: noise.name,
)
def test_the_true_epsilon_of_laplace_scores_is_that_of_their_densities(
    noise: trials.Noise,
) -> None:
    # δ(ε) = ∫ max(0, p - e^ε q) on a fine grid.
    x = np.linspace(-40, 40, 800_001)
    p, q = 0.5 * np.exp(-np.abs(x - noise.shift)), 0.5 * np.exp(-np.abs(x))
    step = x[1] - x[0]
    delta = float(np.maximum(p - np.exp(noise.epsilon) * q, 0).sum() * step)
    assert delta == pytest.approx(noise.delta, rel=1e-2)
