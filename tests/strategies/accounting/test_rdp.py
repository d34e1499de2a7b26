"""Rényi bounds against exact divergences of Gaussians, and why some printed ones are not used."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakmeter.auditors.rng import stream
from leakmeter.papers.zhang2024.prices import (
    calibrated_floor,
    gaussian_sampling_epsilon,
    theorem_two,
    water_filling_epsilon,
)
from leakmeter.strategies.accounting.rdp import Contribution, RecordRelease, composed, epsilon_of
from tests.helpers.numbers import num_examples
from tests.helpers.refusals import refuses

SETTING = {"users": 50, "clip": 10.0, "batch": 32, "examples": 1200, "delta": 1e-4}


def floored(sigma: np.ndarray, floor: np.ndarray | float) -> np.ndarray:
    """Return the matrices with eigenvalues raised to the floor."""
    values, vectors = np.linalg.eigh(sigma)
    raised = np.maximum(values, np.asarray(floor)[..., None])
    return np.einsum("...ij,...j,...kj->...ik", vectors, raised, vectors)


def divergence(
    alpha: np.ndarray, shift: np.ndarray, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Return D_α(N(0, first) ‖ N(shift, second)) (Gil, Alajaji, Linder 2013, Table 2)."""
    mixed = (1 - alpha)[:, None, None] * first + alpha[:, None, None] * second
    values, vectors = np.linalg.eigh(mixed)
    is_finite = values[:, 0] > 0
    safe = np.where(is_finite[:, None], values, 1.0)
    along = np.einsum("nij,ni->nj", vectors, shift)
    dets = [np.linalg.slogdet(matrix)[1] for matrix in (first, second)]
    log_ratio = np.log(safe).sum(axis=1) - (1 - alpha) * dets[0] - alpha * dets[1]
    value = alpha / 2 * (along**2 / safe).sum(axis=1) - log_ratio / (2 * (alpha - 1))
    return np.where(is_finite, value, math.inf)


def clipped(rng: np.random.Generator, shape: tuple[int, ...], norm: float) -> np.ndarray:
    """Return gradients of which many have the full norm and some point the same way."""
    g = rng.standard_normal(shape) * rng.choice([0.05, 1.0, 30.0], size=shape[-1])
    lengths = np.linalg.norm(g, axis=-1, keepdims=True)
    return g * np.minimum(norm, lengths * rng.choice([0.3, 1e3])) / lengths


def instances(
    mechanism: str, seed: int, count: int = 500
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return exact divergences in both directions and bounds of random neighbours."""
    rng = stream(seed, "instances", mechanism)
    dim, batch, users = (int(rng.integers(1, high)) for high in (5, 4, 6))
    examples = int(rng.choice([1, 2, 5, 60]))  # of many the covariance tells more than the mean
    clip = float(rng.choice([0.3, 1.0, 5.0]))
    t = clip**2 / (batch * examples)
    floor = t * float(10 ** rng.uniform(-1.5, 2)) / users
    one = clipped(rng, (count, examples, dim), clip)
    one[:, 1:] *= rng.choice([0.02, 1.0])  # with small ones the floor is all there is
    other = one.copy()
    other[:, 0] = clipped(rng, (count, dim), clip)
    opposite = rng.random(count) < 0.2  # the mean moves most, the covariance stays
    other[opposite, 0] = -one[opposite, 0]
    rest = clipped(rng, (count, users - 1, examples, dim), clip) * rng.choice([0.02, 1.0])

    def covariance(g: np.ndarray) -> np.ndarray:
        sigma = np.einsum("...ji,...jk->...ik", g, g) / (batch * examples)
        return (
            floored(sigma, floor) if mechanism == "water-filling" else sigma + floor * np.eye(dim)
        )

    base = covariance(rest).sum(axis=1)
    if mechanism == "full":
        first = second = np.broadcast_to(users * floor * np.eye(dim), base.shape)
    else:
        first, second = base + covariance(one), base + covariance(other)
    shift = (other - one).mean(axis=1)
    member = Contribution(floor, clip, batch, examples)
    each = RecordRelease((member,) * users, mechanism)
    top = min(each.limit - 1, 1e3)
    alpha = 1 + top * np.where(rng.random(count) < 0.5, rng.random(count), rng.random(count) ** 4)
    alpha = np.maximum(alpha, 1 + 1e-3 * top)
    exact = np.maximum(
        divergence(alpha, shift, first, second), divergence(alpha, shift, second, first)
    )
    return exact, each.rdp(alpha), alpha


@pytest.mark.parametrize("mechanism", ["water-filling", "isotropic", "full"])
def test_no_exact_divergence_of_thousands_exceeds_the_bound(mechanism: str) -> None:
    worst = 0.0
    for seed in range(12):
        exact, bound, alpha = instances(mechanism, seed)
        rounding = 1e-11 / (alpha - 1)
        assert (exact <= bound * (1 + 1e-9) + rounding).all()
        worst = max(worst, float((exact / bound).max()))
    assert 0.5 < worst < 1.001  # neither violated nor far away


def test_the_printed_theorem_two_holds_and_ours_is_mostly_smaller() -> None:
    rng = stream(0, "theorem two")
    smaller = []
    for seed in range(300):
        dim, batch, users = 2, int(rng.integers(1, 5)), int(rng.integers(1, 4))
        g = clipped(stream(seed, "g"), (users, 12, dim), 1.0)
        other = g.copy()
        other[0, 0] = clipped(stream(seed, "other"), (dim,), 1.0)
        sums = [np.einsum("uji,ujk->uik", h, h) / 12 for h in (g, other)]
        smallest = min(np.linalg.eigvalsh(s)[:, 0].sum() for s in sums)  # holds in both worlds
        if smallest * 12 <= 1.05:
            continue
        alpha = np.array([1 + (12 * smallest - 1) * rng.uniform(0.05, 0.95)])
        shift = (other - g)[0].mean(axis=0)[None]
        first, second = (s.sum(axis=0)[None] / batch for s in sums)
        exact = divergence(alpha, shift, first, second)
        printed = theorem_two(alpha, smallest=smallest, clip=1.0, batch=batch, examples=12)
        floor = smallest / batch / users
        member = Contribution(floor, 1.0, batch, 12)
        ours = RecordRelease((member,) * users, "sampling").rdp(alpha)
        assert exact <= min(printed, ours) + 1e-12
        smaller.append(bool(ours < printed))
    assert len(smaller) > 100
    assert np.mean(smaller) > 0.9


def test_replacing_a_record_may_lower_and_raise_the_floored_covariance() -> None:
    # (38) claims -g₂g₂ᵀ/(BD) ⪯ Δ ⪯ g₁g₁ᵀ/(BD) for the change Δ of what flooring adds.
    sigma, g2 = np.diag([0.0, 4.0]), np.array([1.0, 1.0])  # g₁ = 0, BD = 1, σ² = 3
    added = [floored(s, 3.0) - s for s in (sigma, sigma + np.outer(g2, g2))]
    change = added[1] - added[0]
    assert np.linalg.eigvalsh(change) == pytest.approx([-1.0890727924, 0.3251407699], abs=1e-9)
    assert np.linalg.eigvalsh(change)[-1] > 0.3  # the right side says at most 0
    assert np.linalg.eigvalsh(change + np.outer(g2, g2))[0] < -0.08  # the left one at least 0


def row_six(alpha: float, *, users: int, floor: float, clip: float, batch: int, d: int) -> float:
    """Return row 6 of Table 1, which is not a theorem."""
    t = clip**2 / (batch * d)
    return (2 * alpha * clip**2 / d**2 + alpha * t / (alpha - 1)) / (users * floor - alpha * t)


def test_row_six_is_finite_where_the_divergence_is_not() -> None:
    users, d, clip, alpha = 10_000, 101, math.sqrt(101), 9000.0
    angle = math.acos(1 / math.sqrt(3)) / 2
    g1 = np.array([math.cos(angle), math.sin(angle)])
    g2 = np.array([-math.sin(angle), math.cos(angle)])
    rest = np.diag([100.0, 0.0])  # a hundred gradients of full length along the first axis
    first, second = (
        (users - 1) * np.eye(2) + floored(rest + np.outer(g, g), 1.0) for g in (g1, g2)
    )
    mixed = [(1 - alpha) * a + alpha * b for a, b in ((first, second), (second, first))]
    assert min(np.linalg.eigvalsh(m)[0] for m in mixed) == pytest.approx(-290.8, abs=0.1)
    printed = row_six(alpha, users=users, floor=1.0, clip=clip, batch=1, d=d)
    assert 0 < printed < math.inf
    ours = RecordRelease((Contribution(1.0, clip, 1, d),) * users)
    assert ours.limit < alpha
    assert np.isinf(ours.rdp(np.array([alpha]))).all()
    # Nor does row 5's denominator do for water filling: flooring may lower Σ by more than t.
    slack_of_one = RecordRelease(ours.members, "isotropic")
    assert np.isfinite(slack_of_one.rdp(np.array([alpha]))).all()


def test_orders_outside_the_admissible_range_give_nothing() -> None:
    each = RecordRelease((Contribution(1e-3, 10.0, 32, 1200),) * 50)
    t = 100 / (32 * 1200)
    assert each.limit == pytest.approx(1 + 50e-3 / (math.sqrt(2) * t))
    orders = np.array([0.5, 1.0, each.limit * (1 + 1e-12), 2 * each.limit])
    assert np.isinf(each.rdp(orders)).all()
    assert np.isfinite(each.rdp(np.array([1 + 1e-9, each.limit * (1 - 1e-12)]))).all()
    with pytest.raises(ValueError, match=r"range of orders 1 < α < 0\.5 must not be empty"):
        epsilon_of(each.rdp, 1e-4, limit=0.5)


@settings(deadline=None, max_examples=num_examples(30))
@given(
    floor=st.floats(1e-6, 1e2), clip=st.floats(0.1, 10), users=st.integers(1, 100),
    examples=st.integers(1, 2000), rounds=st.integers(1, 50),
)  # fmt: skip
def test_epsilon_moves_the_way_it_must(
    floor: float, clip: float, users: int, examples: int, rounds: int
) -> None:
    setting = {"users": users, "clip": clip, "batch": 8, "examples": examples, "rounds": rounds}

    def price(floor: float = floor, **changed: float) -> float:
        return water_filling_epsilon(floor=floor, delta=1e-5, **(setting | changed))  # type: ignore[arg-type]

    value = price() * (1 - 1e-9)
    assert value <= price(rounds=rounds + 1)
    assert value <= price(clip=2 * clip)
    assert price(floor=2 * floor) <= price()
    assert price(users=users + 1) <= price()
    row = {k: v for k, v in setting.items() if k != "rounds"}
    for other in (1, rounds):
        sharper = gaussian_sampling_epsilon(floor=floor, delta=1e-5, rounds=other, **row)  # type: ignore[arg-type]
        assert sharper * (1 - 1e-9) <= price(rounds=other)
        plain = water_filling_epsilon(
            floor=floor, delta=1e-5, rounds=other, conversion="plain", **row  # type: ignore[arg-type]
        )  # fmt: skip
        assert price(rounds=other) <= plain * (1 + 1e-9)


def test_equal_weights_of_any_size_change_nothing_and_the_worst_member_counts() -> None:
    alpha = np.array([1.5, 3.0, 10.0])
    plain = RecordRelease((Contribution(1e-2, 1.0, 8, 100),) * 5)
    scaled = RecordRelease((Contribution(1e-2, 1.0, 8, 100, weight=1 / 5),) * 5)
    assert scaled.rdp(alpha) == pytest.approx(plain.rdp(alpha))
    assert scaled.limit == pytest.approx(plain.limit)
    heavy = Contribution(1e-2, 1.0, 8, 100, weight=3.0)
    mixed = RecordRelease((heavy, *plain.members[1:]))
    floor, t = (9 + 4) * 1e-2, 9 * 1 / 800
    m = floor - math.sqrt(2) * (alpha - 1) * t
    expected = np.where(m > 0, alpha * (6 / 100) ** 2 / (2 * m) + alpha * t**2 / (2 * m**2), np.inf)
    assert mixed.rdp(alpha) == pytest.approx(expected)
    few = Contribution(1e-2, 1.0, 8, 10)  # fewer examples: each matters more
    assert (RecordRelease((few, *plain.members[1:])).rdp(alpha) > plain.rdp(alpha)).all()


def test_the_optimum_over_orders_is_found() -> None:
    # ρα + ln(1/δ)/(α - 1) has its minimum ρ + 2 √(ρ ln 1/δ), over ranges far apart.
    for rho in (1e-12, 1e-4, 1.0, 1e6):
        found = epsilon_of(lambda a, r=rho: r * a, 1e-5, conversion="plain")  # type: ignore[misc]
        assert found == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)), rel=1e-9)


def test_bad_contributions_rounds_and_conversions_are_named() -> None:
    good: dict[str, Any] = {"floor": 1.0, "clip": 1.0, "batch": 1, "examples": 1}
    member = Contribution(**good)
    wrong = {"floor": 0.0, "clip": math.inf, "examples": 0, "batch": 0, "weight": -1.0}
    refused: list[tuple[str, Callable[[], object]]] = [
        *((name, partial(Contribution, **{**good, name: value})) for name, value in wrong.items()),
        ("mechanism", lambda: RecordRelease((member,), "batches")),
        ("step", lambda: RecordRelease((member,), step=-1.0)),
        ("saturated", lambda: RecordRelease((member,), saturated=-1)),
        ("delta", lambda: epsilon_of(RecordRelease((member,)).rdp, 0.0)),
        ("conversion", lambda: epsilon_of(RecordRelease((member,)).rdp, 0.1, conversion="loose")),  # type: ignore[arg-type]
    ]
    for name, make in refused:
        with refuses(name):
            make()
    with pytest.raises(ValueError, match="members must not be empty"):
        RecordRelease(())
    with pytest.raises(ValueError, match="rounds must not be empty"):
        composed([])


def test_a_floor_is_looked_for_above_one_too_and_not_for_ever() -> None:
    assert calibrated_floor(lambda floor: 50 / floor, 2.0) == pytest.approx(25)
    with pytest.raises(ValueError, match="target must be reachable with some floor, got 2"):
        calibrated_floor(lambda floor: 3.0, 2.0)  # noqa: ARG005
    with pytest.raises(ValueError, match=r"target must be in \(0, inf\), got 0"):
        calibrated_floor(lambda floor: 50 / floor, 0.0)
