"""The price of noise: conventions of the accountants, closed forms, and what is refused."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting import rdp

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.finding import Adjacency
from leakmeter.strategies.accounting.accountant import (
    Release,
    amplified,
    multiplier_with_bit,
    unamplified,
)
from tests.helpers.refusals import refuses

DELTA = 1e-5
RELATION = {
    "add-remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero-out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "replace": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "zero-out", "replace")


def poisson(std: float, rate: float, sensitivity: float = 1.0) -> Release:
    return Release(std, sensitivity, sampling="poisson", rate=rate, population=100)


def rdp_epsilon(multiplier: float, rate: float, rounds: int, adjacency: Adjacency) -> float:
    """Return what the Rényi accountant says; its multiplier must know of the factor two."""
    if adjacency == "replace":
        multiplier /= 2
    event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(multiplier)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    accountant = rdp.RdpAccountant(neighboring_relation=RELATION[adjacency])
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(DELTA))


# z = 2, ten rounds, δ = 1e-5: replacing a client moves the sum twice as far.
GOLDEN = {"add-remove": 7.511275904, "zero-out": 7.511275904, "replace": 17.85658683}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_ten_rounds_cost_what_they_should_by_either_route(adjacency: Adjacency) -> None:
    bound = unamplified([Release(6.0, 3.0)] * 10, DELTA, participations=10, adjacency=adjacency)
    assert bound.value == pytest.approx(GOLDEN[adjacency], rel=1e-9)
    assert (bound.kind, bound.delta) == ("guarantee", DELTA)
    # A rate of one is no sampling: the grid of the loss distribution rounds up, and not far.
    by_pld = amplified([poisson(6.0, 1.0, 3.0)] * 10, DELTA, adjacency=adjacency).value
    assert GOLDEN[adjacency] <= by_pld <= GOLDEN[adjacency] * 1.001


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_sampled_loss_distributions_never_exceed_renyi(adjacency: Adjacency, rate: float) -> None:
    for multiplier in (1.0, 4.0):
        tight = amplified([poisson(multiplier, rate)] * 20, DELTA, adjacency=adjacency).value
        assert tight <= rdp_epsilon(multiplier, rate, 20, adjacency)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_sampling_amplifies_and_more_so_at_a_lower_rate(adjacency: Adjacency) -> None:
    prices = [
        amplified([poisson(2.0, rate)] * 10, DELTA, adjacency=adjacency).value
        for rate in (0.05, 0.5)
    ]
    assert 0 < prices[0] < prices[1] < GOLDEN[adjacency]


def test_one_sampled_release_agrees_with_the_hockey_stick_integral() -> None:
    # Add: q·N(1, σ²) + (1−q)·N(0, σ²) against N(0, σ²), both directions, by quadrature.
    import numpy as np
    from scipy.integrate import trapezoid
    from scipy.stats import norm

    rate, std = 0.2, 1.5
    epsilon = amplified([poisson(std, rate)], DELTA, adjacency="add-remove").value
    x = np.linspace(-15, 16, 400_001)
    without = norm.pdf(x, 0, std)
    mixed = rate * norm.pdf(x, 1, std) + (1 - rate) * without

    def delta(at: float) -> float:
        gaps = (mixed - math.exp(at) * without, without - math.exp(at) * mixed)
        return max(float(trapezoid(np.maximum(gap, 0), x)) for gap in gaps)

    assert delta(epsilon) <= DELTA <= delta(epsilon * 0.999)


def test_a_coarse_grid_for_little_noise_stays_above_the_truth_and_near_it() -> None:
    exact = unamplified([Release(0.2, 1.0)] * 3, DELTA, participations=3, adjacency="zero-out")
    gridded = amplified([poisson(0.2, 1.0)] * 3, DELTA, adjacency="zero-out")
    assert exact.value <= gridded.value <= 1.001 * exact.value


def test_sampling_of_a_fixed_size_is_priced_under_replace_only() -> None:
    releases = [Release(4.0, 1.0, sampling="fixed", cohort=10, population=1000)] * 5
    bound = amplified(releases, DELTA, adjacency="replace")
    plain = unamplified(releases, DELTA, participations=5, adjacency="replace")
    assert 0 < bound.value < plain.value
    for adjacency in ("add-remove", "zero-out"):
        with pytest.raises(ValueError, match=r"got \['fixed'\] under"):
            amplified(releases, DELTA, adjacency=adjacency)


def test_a_whole_fixed_size_cohort_costs_at_least_the_truth() -> None:
    releases = [Release(2.0, 1.0, sampling="fixed", cohort=9, population=9)] * 10
    assert amplified(releases, DELTA, adjacency="replace").value >= GOLDEN["replace"]


def test_unequal_releases_compose_and_the_worst_are_counted() -> None:
    releases = [Release(1.0, 1.0), Release(2.0, 1.0), Release(3.0, 6.0)]
    every = unamplified(releases, DELTA, participations=3, adjacency="zero-out")
    assert every.value == pytest.approx(epsilon_gaussian(DELTA, math.sqrt(1 + 0.25 + 4)))
    once = unamplified(releases, DELTA, participations=1, adjacency="zero-out")
    assert once.value == pytest.approx(epsilon_gaussian(DELTA, 2.0))
    mixed = [poisson(1.0, 0.1), poisson(3.0, 0.4)]
    both = amplified(mixed, DELTA, adjacency="zero-out").value
    assert both > max(amplified([r], DELTA, adjacency="zero-out").value for r in mixed)


def test_nobody_spends_nothing_and_no_noise_spends_everything() -> None:
    release = Release(1.0, 1.0)
    assert unamplified([release], DELTA, participations=0, adjacency="zero-out").value == 0.0
    bare = Release(0.0, 1.0, sampling="poisson", rate=0.5)
    assert amplified([bare], DELTA, adjacency="zero-out").value == math.inf
    assert unamplified([bare], DELTA, participations=1, adjacency="zero-out").value == math.inf


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("noise_std", {"noise_std": -1.0}),
        ("noise_std", {"noise_std": math.nan}),
        ("sensitivity", {"sensitivity": 0.0}),
        ("rate", {"rate": 0.0}),
        ("rate", {"rate": 1.1}),
        ("cohort", {"sampling": "fixed", "cohort": 3, "population": 2}),
        ("sampling", {"sampling": "sometimes"}),
        ("bit_std", {"bit_std": 0.0}),
    ],
)
def test_an_impossible_release_is_refused(name: str, values: dict[str, float]) -> None:
    with refuses(name):
        Release(**{"noise_std": 1.0, "sensitivity": 1.0, **values})


def test_questions_without_an_answer_are_refused() -> None:
    release = Release(1.0, 1.0)
    for delta in (0.0, 1.0, math.nan):
        with refuses("delta"):
            unamplified([release], delta, participations=1, adjacency="zero-out")
    with pytest.raises(ValueError, match="releases must not be empty"):
        unamplified([], DELTA, participations=0, adjacency="zero-out")
    with refuses("participations"):
        unamplified([release], DELTA, participations=2, adjacency="zero-out")
    with pytest.raises(ValueError, match="amplification must be"):
        amplified([poisson(1.0, 0.1), release], DELTA, adjacency="replace")
    with pytest.raises(ValueError, match="got honest-seat"):
        unamplified([release], DELTA, participations=1, adjacency="honest-seat")


# The clip bit of adaptive clipping.


def test_vector_and_bit_together_cost_what_was_asked_for() -> None:
    vector = multiplier_with_bit(1.3, 2.0)
    assert vector > 1.3
    release = Release(vector * 0.7, 0.7, bit_std=2.0)
    assert release.separation("add-remove") == pytest.approx(1 / 1.3, rel=1e-12)
    wanted = [poisson(1.3, 0.2)] * 5
    paired = [Release(vector, 1.0, sampling="poisson", rate=0.2, bit_std=2.0)] * 5
    prices = [amplified(r, DELTA, adjacency="add-remove").value for r in (wanted, paired)]
    assert prices[0] == pytest.approx(prices[1], rel=1e-5)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_a_bit_is_priced_under_add_remove_only(adjacency: Adjacency) -> None:
    release = Release(1.0, 1.0, bit_std=2.0, sampling="poisson", rate=0.5)
    with refuses("adjacency"):
        unamplified([release], DELTA, participations=1, adjacency=adjacency)
    with refuses("adjacency"):
        amplified([release], DELTA, adjacency=adjacency)


@pytest.mark.parametrize("bit_std", [0.5, 0.1])
def test_a_bit_that_costs_more_than_was_asked_for_is_refused(bit_std: float) -> None:
    with refuses("bit_std"):
        multiplier_with_bit(1.0, bit_std)
