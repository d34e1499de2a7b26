"""Guarantees for a record: reference values, words, and what voids them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from leakmeter.clients.protection.gradients import Gradients
from leakmeter.clients.protection.record_rule import WaterFilling
from leakmeter.papers.zhang2024.prices import (
    full_gradient_epsilon,
    gaussian_sampling_epsilon,
    minibatch_epsilon,
    theorem_two_epsilon,
    water_filling_epsilon,
)
from leakmeter.strategies.accounting.rdp import (
    Contribution,
    RecordRelease,
    best_guarantee,
    finding_of,
    guarantee,
)
from tests.helpers.numbers import few_or_many

# N = 50, C = 10, B = 32, D = 1200, δ = 1e-4: computed with 40 digits by another route.
WATER_FILLING = {1e-4: 12.65812195628309, 1e-3: 1.221943360424485, 1e-2: 0.175118}
ROW_FIVE = {1e-4: 9.952976178818064, 1e-3: 0.9891872582129224, 1e-2: 0.154290}
MEMBER = Contribution(1e-3, 10.0, 32, 1200)


@pytest.mark.parametrize("floor", [1e-4, 1e-3, 1e-2])
def test_the_sharp_bounds_have_their_reference_values(floor: float) -> None:
    water = water_filling_epsilon(
        users=50, floor=floor, clip=10.0, batch=32, examples=1200, delta=1e-4, conversion="plain"
    )
    row_five = gaussian_sampling_epsilon(
        users=50, floor=floor, clip=10.0, batch=32, examples=1200, delta=1e-4, conversion="plain"
    )
    assert water == pytest.approx(WATER_FILLING[floor], abs=1e-6)
    assert row_five == pytest.approx(ROW_FIVE[floor], abs=1e-6)


# users, clip, examples, floor, delta: row 3 and the exact ε of its Gaussians.
ROW_THREE = {
    (50, 10.0, 1200, 1e-4, 1e-4): (1.039395864034542, 0.723728595713431),
    (50, 10.0, 1200, 1e-3, 1e-4): (0.322680, 0.198105),
    (50, 1.0, 1200, 1e-4, 1e-5): (0.1133801181846963, 0.07024599373128123),
    (10, 1.0, 100, 0.05, 1e-5): (0.1361228084883022, 0.08581449349129901),
}


@pytest.mark.parametrize("case", ROW_THREE)
def test_the_full_gradient_has_its_reference_values(
    case: tuple[int, float, int, float, float],
) -> None:
    users, clip, examples, floor, delta = case
    plain, tight, exact = (
        full_gradient_epsilon(
            users=users, clip=clip, examples=examples, floor=floor, delta=delta, conversion=way
        )
        for way in ("plain", "tight", "exact")
    )
    assert (plain, exact) == pytest.approx(ROW_THREE[case], abs=1e-6)
    assert exact < tight < plain


# users, clip, batch, examples, floor, delta: row 1.
ROW_ONE = {
    (50, 10.0, 32, 1200, 1e-4, 1e-4): 73.37383730165229,
    (50, 1.0, 32, 1200, 1e-4, 1e-5): 1.311681963548535,
    (10, 1.0, 1, 100, 0.05, 1e-5): 12.96711297538656,
}


@pytest.mark.parametrize("case", ROW_ONE)
def test_the_minibatch_has_its_reference_values_and_a_tighter_one(
    case: tuple[int, float, int, int, float, float],
) -> None:
    users, clip, batch, examples, floor, delta = case
    plain, tight = (
        minibatch_epsilon(
            users=users, clip=clip, batch=batch, examples=examples, floor=floor, delta=delta,
            conversion=way,
        )
        for way in ("plain", "tight")
    )  # fmt: skip
    assert plain == pytest.approx(ROW_ONE[case], rel=1e-12)
    assert tight < plain


@pytest.mark.parametrize(
    ("mechanism", "epsilon"),
    [
        ("water-filling", 0.863769),
        ("full", 0.198105),  # the Gaussian's own; row 3 says 0.322680
        ("isotropic", gaussian_sampling_epsilon(
            users=50, floor=1e-3, clip=10.0, batch=32, examples=1200, delta=1e-4)),
        ("minibatch", minibatch_epsilon(
            users=50, floor=1e-3, clip=10.0, batch=32, examples=1200, delta=1e-4)),
    ],
)  # fmt: skip
def test_every_mechanism_has_its_best_price(mechanism: str, epsilon: float) -> None:
    found = best_guarantee([RecordRelease((MEMBER,) * 50, mechanism)], 1e-4)
    assert found.value == pytest.approx(epsilon, abs=1e-6)
    claim = finding_of(found, participations=1)
    assert (claim.unit, claim.adjacency, claim.observer) == ("record", "replace", "server")
    # The plain conversion of the table's rows is nowhere smaller.
    rows = {"water-filling": 1.221943, "full": 0.322680, "isotropic": 0.989187}
    assert found.value <= rows.get(mechanism, 12.278228)


def test_a_secret_batch_is_named_and_costs_no_more_than_a_known_one() -> None:
    member = Contribution(0.05, 1.0, 5, 100)
    rounds = [RecordRelease((member,) * users, "minibatch") for users in (10, 8)]
    secret = best_guarantee(rounds, 1e-5)
    assert Assumption.SECRET_BATCHES in secret.assumptions
    known = guarantee(rounds, 1e-5)
    assert 0 < secret.value < known.value
    # Fewer users add less noise.
    assert secret.value < best_guarantee([rounds[1]] * 2, 1e-5).value


def test_theorem_two_has_its_reference_values_and_an_empty_range_is_refused() -> None:
    first = theorem_two_epsilon(
        smallest=0.5, clip=1.0, batch=32, examples=1000, delta=1e-5, conversion="plain"
    )
    second = theorem_two_epsilon(
        smallest=50.0, clip=10.0, batch=32, examples=1200, delta=1e-4, conversion="plain"
    )
    assert first == pytest.approx(0.1033445265310676, rel=1e-12)
    assert second == pytest.approx(0.07535705402803896, rel=1e-12)
    with pytest.raises(ValueError, match=r"range of orders 1 < α < 0\.5 must not be empty"):
        theorem_two_epsilon(smallest=0.5e-3, clip=1.0, batch=32, examples=1000, delta=1e-5)
    with pytest.raises(ValueError, match=r"smallest must be in \(0, inf\), got 0"):
        theorem_two_epsilon(smallest=0.0, clip=1.0, batch=32, examples=1000, delta=1e-5)


def test_a_guarantee_names_whom_it_protects_and_on_what_terms() -> None:
    found = guarantee([RecordRelease((MEMBER,) * 50)] * 3, 1e-4)
    assert found.kind == "guarantee"
    assert found.sample_sizes == {"rounds": 3, "users": 50}
    assert set(found.assumptions) == {
        Assumption.PUBLIC_SETTINGS,
        Assumption.HONEST_CONTRIBUTORS,
        Assumption.HIDDEN_UPDATES,
        Assumption.ONE_STEP,
        Assumption.REAL_GAUSSIAN,
        Assumption.GAUSSIAN_WEIGHTS,
        Assumption.FILLED_FLOOR,
    }
    sampled = guarantee([RecordRelease((MEMBER,) * 50, "sampling")], 1e-4)
    assert Assumption.LASTING_FLOOR in sampled.assumptions  # a measured one is not enough
    void = guarantee(
        [RecordRelease((MEMBER,) * 50), RecordRelease((MEMBER,) * 50, saturated=1)], 1e-4
    )
    assert void.value == math.inf
    assert "1 coordinates saturated" in void.rule
    with pytest.raises(ValueError, match="one mechanism"):
        best_guarantee(
            [RecordRelease((MEMBER,), "full"), RecordRelease((MEMBER,), "minibatch")], 1e-4
        )
    finding = finding_of(found, participations=3, server_round=3)
    assert finding.observer == "server"
    assert (finding.unit, finding.adjacency, finding.server_round) == ("record", "replace", 3)
    assert finding.value == found.value
    assert finding.threat_model.participations == 3


def test_noise_below_two_rounding_steps_is_an_approximation() -> None:
    std = math.sqrt(MEMBER.floor)
    fine, rough = (
        guarantee([RecordRelease((MEMBER,) * 50, step=step)], 1e-4) for step in (std / 2, std / 1.9)
    )
    assert (fine.kind, rough.kind) == ("guarantee", "approximation")
    assert Assumption.COARSE_ROUNDING in rough.assumptions


def floored(g: np.ndarray, batch: int, floor: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(g.T @ g / (batch * len(g)))
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)


@pytest.mark.parametrize("draws", few_or_many(700, 1500))
@pytest.mark.parametrize(("shrunk", "holds"), [(1.0, True), (0.1, False)])
def test_the_best_test_between_two_worlds_stays_within_epsilon_unless_noise_is_missing(
    shrunk: float, holds: bool, draws: int
) -> None:
    # Two clients of three records; in the other world the first one's record points back.
    batch, delta = 500, 0.05
    mine, other = np.array([[1.0, 0.0], [0.0, 0.2], [0.1, 0.0]]), np.full((3, 2), 0.1)
    worlds = [mine, mine * np.array([[-1.0], [1.0], [1.0]])]
    epsilon = water_filling_epsilon(
        users=2, floor=0.05, clip=1.0, batch=batch, examples=3, delta=delta
    )
    floor = 0.05 * shrunk  # what is really added
    laws = [
        multivariate_normal(
            (g.mean(axis=0) + other.mean(axis=0)),
            floored(g, batch, floor) + floored(other, batch, floor),
        )
        for g in worlds
    ]
    filling, rng = WaterFilling(floor), stream(0, "worlds")
    sums = np.array(
        [
            sum(filling.draw(Gradients.of(g), batch, rng)[0] for g in (mine, other))
            for _ in range(draws)
        ]
    )
    loss = laws[0].logpdf(sums) - laws[1].logpdf(sums)
    excess = np.maximum(-np.expm1(epsilon - loss), 0.0)  # its mean is δ at ε
    error = 3 * excess.std() / math.sqrt(draws)
    if holds:
        assert 0.1 * delta < excess.mean() <= delta + error
    else:
        assert excess.mean() - error > delta


@pytest.mark.parametrize("name", ["users", "rounds"])
def test_nobody_and_no_round_are_refused(name: str) -> None:
    setting = {"users": 5, "floor": 1.0, "clip": 1.0, "batch": 1, "examples": 9, "delta": 1e-5}
    for price in (water_filling_epsilon, gaussian_sampling_epsilon, minibatch_epsilon):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            price(**(setting | {name: 0}))  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"batch must be in \[1, 9\], got 10"):
        minibatch_epsilon(**(setting | {"batch": 10}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rounds must be 1 with the plain conversion, got 2"):
        minibatch_epsilon(**setting, rounds=2, conversion="plain")  # type: ignore[arg-type]
