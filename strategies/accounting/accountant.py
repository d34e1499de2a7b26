"""What noise guarantees: describe the releases of a run as data, then price them.

Conventions (a mistake halves epsilon): `noise_std` is the standard deviation on the *sum*,
`sensitivity` the most that one client's presence moves it, both in the units of an update. A bare
noise multiplier is never stored. Adding, removing or zeroing a client moves the sum by the
sensitivity; replacing it moves the sum by twice that. dp-accounting's PLD includes the factor two
under its REPLACE_ONE; its RDP accountant does not.

Gaussian noise composes exactly. Other noise is priced by the Rényi divergences of its distribution
(`auditors.noise`), as soon as one of the releases has it. They hold for every pair of updates
within both norms, and for mixtures over the rounding, since they are quasi-convex in the pair.

All this is about whole clients. `strategies.accounting.rdp` prices what sampled gradients
guarantee to a single record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Self, get_args

import numpy as np

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Adjacency, Bound
from leakmeter.auditors.noise import RoundingGrid, Shift, distribution_named
from leakmeter.auditors.values import Vector, require
from leakmeter.auditors.wording import Assumption, counted

Sampling = Literal["none", "poisson", "fixed"]

# Orders of Rényi divergences: fractions, where the Skellam's has no proof, and integers, all of
# them at first and then fewer and fewer, for small ε.
_INTEGERS = np.geomspace(2, 2**20, 2000).round()
ORDERS: Vector = np.unique(
    [*(1 + np.geomspace(1e-3, 0.99, 60)), *np.arange(21, 200) / 10, *_INTEGERS]
)
ORDERS.setflags(write=False)


@dataclass(frozen=True)
class Release:
    """One noised sum that somebody has seen.

    Attributes:
        noise_std: Standard deviation of the noise on the sum, per coordinate.
        sensitivity: Most that adding or zeroing one client moves the sum, in L2 norm.
        sampling: How the round's clients were drawn.
        rate: Probability that a client is drawn, with Poisson sampling.
        cohort: Clients drawn, with sampling of a fixed size.
        population: Clients they were drawn from.
        bit_std: Noise on the sum of clip bits, each counted as ±1/2, that was released with it.
        distribution: Name of the noise's distribution.
        grid: What noise needs beside these if it is not Gaussian.
    """

    noise_std: float
    sensitivity: float
    sampling: Sampling = "none"
    rate: float = 1.0
    cohort: int = 0
    population: int = 0
    bit_std: float | None = None
    distribution: str = "gaussian"
    grid: RoundingGrid | None = None

    def __post_init__(self) -> None:
        require("[0, inf)", noise_std=self.noise_std)
        require("(0, inf)", sensitivity=self.sensitivity)
        require("(0, 1]", rate=self.rate)
        if self.sampling == "fixed":
            require(f"[1, {self.population}]", cohort=self.cohort)
        if self.sampling not in get_args(Sampling):
            raise BadValueError("sampling", f"one of {get_args(Sampling)}", self.sampling)
        require("(0, inf)", is_optional=True, bit_std=self.bit_std)
        if distribution_named(self.distribution).is_gaussian != (self.grid is None):
            raise ValueError(
                f"grid must be None with Gaussian noise alone, got {self.grid} with noise of the "
                f"distribution {self.distribution}"
            )
        if self.grid is not None and self.bit_std is not None:
            raise ValueError("bit_std must be None unless noise is Gaussian: no proof covers both")

    def of_shares(self, shares: int) -> Self:
        """Return this release with the noise of so many contributors, from that of one."""
        grid = None if self.grid is None else replace(self.grid, shares=shares)
        return replace(self, noise_std=self.noise_std * math.sqrt(shares), grid=grid)

    def separation(self, adjacency: Adjacency) -> float:
        """Return how many standard deviations apart the two worlds are.

        With other noise it is that of a Gaussian with the same Rényi divergence of order 2, which
        compares costs but prices nothing.
        """
        if self.noise_std == 0:
            return math.inf
        if self.grid is not None:
            return math.sqrt(float(self.divergence(adjacency, np.array([2.0]))[0]))
        moved = self.sensitivity * (2 if adjacency == "replace" else 1)
        if self.bit_std is None:
            return moved / self.noise_std
        if adjacency != "add-remove":  # only there does an absent client send no bit at all
            raise BadValueError("adjacency", "add-remove with a clip bit", adjacency)
        # Vector and bit are released together: two independent Gaussians compose as √(μ₁² + μ₂²).
        return math.hypot(moved / self.noise_std, 0.5 / self.bit_std)

    def divergence(self, adjacency: Adjacency, orders: Vector = ORDERS) -> Vector:
        """Return the Rényi divergences between the two worlds."""
        if self.grid is None:
            return orders * (self.separation(adjacency) ** 2 / 2)
        if self.noise_std == 0 or self.grid.shares == 0:
            return np.full(len(orders), math.inf)
        factor, step = 2.0 if adjacency == "replace" else 1.0, self.grid.step
        shift = Shift(
            l2=factor * self.sensitivity / step,
            l1=factor * self.grid.l1,
            variance=(self.noise_std / step) ** 2,
            dim=self.grid.dim,
            shares=self.grid.shares,
        )
        return distribution_named(self.distribution).divergence(shift, orders)

    @property
    def distance(self) -> float:
        """Total variation between the noise as it is sampled and its distribution, over all draws.

        That of Gaussian noise is not counted: its guarantees are about real numbers.
        """
        grid = self.grid
        if grid is None or self.noise_std == 0 or grid.shares == 0:
            return 0.0
        share = (self.noise_std / grid.step) ** 2 / grid.shares
        return grid.dim * grid.shares * distribution_named(self.distribution).total_variation(share)


def unamplified(
    releases: Sequence[Release], delta: float, *, participations: int, adjacency: Adjacency
) -> Bound:
    """Return ε for a client that took part in `participations` of the releases.

    Holds against everyone, even those who know who took part when: given the cohorts, a client
    faces that many Gaussian mechanisms, and these compose exactly to one Gaussian. If the releases
    differ, the most costly ones are taken.
    """
    _check(releases, delta, adjacency)
    require(f"[0, {len(releases)}]", participations=participations)
    is_mixed = any(r.grid is not None for r in releases)
    names = sorted({r.distribution for r in releases})
    rule = f"Rényi DP of {' and '.join(names)} noise," if is_mixed else "Gaussian mechanism"
    rounds = counted(participations, "participation")
    return Bound(
        value=epsilon_together([(releases, participations)], delta, adjacency),
        kind="guarantee",
        delta=delta,
        rule=f"{rule} composed over {rounds}, no amplification",
        sample_sizes={"releases": len(releases), "participations": participations},
        assumptions=(Assumption.UNIFORM_BITS,) if is_mixed else (),
    )


def epsilon_together(
    runs: Sequence[tuple[Sequence[Release], int]], delta: float, adjacency: Adjacency
) -> float:
    """Return ε of runs together, each with its releases and how many of them a client was in."""
    if any(r.grid is not None for releases, _ in runs for r in releases):
        costs = [composed(releases, times, adjacency) for releases, times in runs]
        total = np.sum([divergences for divergences, _ in costs], axis=0)
        return epsilon_of(total, delta, math.fsum(far for _, far in costs))
    separation = math.hypot(*(separation_of(*run, adjacency) for run in runs))
    return math.inf if math.isinf(separation) else float(epsilon_gaussian(delta, separation))


def separation_of(releases: Sequence[Release], participations: int, adjacency: Adjacency) -> float:
    """Return μ of the one Gaussian mechanism that the most costly of the releases compose to.

    With other noise it compares costs only; see `Release.separation`.
    """
    each = sorted((r.separation(adjacency) for r in releases), reverse=True)
    return math.hypot(*each[:participations])


def composed(
    releases: Sequence[Release], participations: int, adjacency: Adjacency
) -> tuple[Vector, float]:
    """Return the most that this many of the releases cost together.

    That is their Rényi divergences at `ORDERS`, each with its own costliest releases, and the total
    variation between their noise and its distribution.
    """
    counts = Counter(releases)
    if not counts or participations == 0:
        return np.zeros(len(ORDERS)), 0.0
    rows = np.array([r.divergence(adjacency) for r in counts])  # (kinds, orders)
    number = np.array(list(counts.values()))[np.argsort(-rows, axis=0)]
    before = np.cumsum(number, axis=0) - number
    taken = np.clip(participations - before, 0, number)
    dear = -np.sort(-rows, axis=0)
    total = np.where(taken > 0, taken * np.where(taken > 0, dear, 0.0), 0.0).sum(axis=0)
    return total, participations * max(r.distance for r in counts)


def epsilon_of(divergences: Vector, delta: float, distance: float = 0.0) -> float:
    """Return ε at δ from Rényi divergences at `ORDERS`.

    Canonne, Kamath, Steinke (2020), Proposition 12. Noise that is off by `distance` in total
    variation costs another (1 + e^ε)·distance of δ.
    """
    found = _converted(divergences, delta)
    while math.isfinite(found):
        # The larger ε, the more δ the distance costs: from below, until nothing changes.
        left = delta - (1 + math.exp(min(found, 700.0))) * distance
        if left <= 0:
            return math.inf
        if (more := _converted(divergences, left)) <= found * (1 + 1e-12):
            return max(more, found)
        found = more
    return found


def _converted(divergences: Vector, delta: float) -> float:
    costs = divergences + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(float(costs.min()), 0.0)


def amplified(
    releases: Sequence[Release] | Mapping[Release, int], delta: float, *, adjacency: Adjacency
) -> Bound:
    """Return ε with amplification by sampling, for observers who do not learn the cohorts.

    Poisson sampling is priced by privacy loss distributions for add/remove, zero-out and replace;
    sampling of a fixed size by Rényi DP for replace only, since no accountant covers the rest.
    Other combinations are refused: use `unamplified`. Many equal releases may come as a count.
    """
    counts = Counter(releases)
    _check(list(counts), delta, adjacency)
    kinds = {r.sampling for r in releases}
    if any(r.grid is not None for r in releases):
        raise ValueError("amplification must be of Gaussian noise, got another distribution")
    if any(r.noise_std == 0 for r in releases):
        return Bound(math.inf, "guarantee", "no noise", delta)
    if kinds == {"poisson"}:
        rule, value = "privacy loss distribution, Poisson sampling", _poisson_epsilon
    elif kinds == {"fixed"} and adjacency == "replace":
        rule, value = "Rényi DP, sampling without replacement", _fixed_size_epsilon
    else:
        raise ValueError(
            "amplification must be Poisson sampling, or sampling of a fixed size under replace, "
            f"got {sorted(kinds)} under {adjacency}"
        )
    return Bound(
        value=value(tuple(counts.items()), delta, adjacency),
        kind="guarantee",
        delta=delta,
        rule=f"{rule}, {counts.total()} releases",
        sample_sizes={"releases": counts.total()},
    )


def multiplier_with_bit(noise_multiplier: float, bit_std: float) -> float:
    """Return the multiplier for the vector when a noised clip bit is released with it.

    Andrew et al. (2021), Theorem 1: both together cost what one release with `noise_multiplier`
    costs. `bit_std` is the noise on the sum of bits, each counted as ±1/2.
    """
    if not 2 * bit_std > noise_multiplier > 0:
        raise BadValueError(
            "bit_std", f"above noise_multiplier / 2 = {noise_multiplier / 2:g}", bit_std
        )
    return float((noise_multiplier**-2 - (2 * bit_std) ** -2) ** -0.5)


_Counted = tuple[tuple[Release, int], ...]


def _poisson_epsilon(releases: _Counted, delta: float, adjacency: Adjacency) -> float:
    import dp_accounting
    from dp_accounting import pld

    relation = {
        "add-remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "zero-out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        "replace": dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[adjacency]
    grouped = _grouped(releases, "zero-out" if adjacency == "replace" else adjacency)
    # The grid scales with the losses, which are of size 1/z or, if larger, 1/z²: the default grid
    # takes a minute with little noise. Any grid rounds losses up, so ε stays valid.
    scale = 1 / min(multiplier for _, multiplier in grouped)
    grid = 1e-3 * max(scale, scale**2)
    accountant = pld.PLDAccountant(relation, value_discretization_interval=grid)
    for (release, multiplier), count in grouped.items():
        # PLD: multiplier = std / sensitivity under every relation.
        gaussian = dp_accounting.GaussianDpEvent(multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(release.rate, gaussian), count)
    return _number(accountant.get_epsilon(delta))


@lru_cache(maxsize=64)  # seconds each
def _fixed_size_epsilon(releases: _Counted, delta: float, adjacency: Adjacency) -> float:
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    for (release, multiplier), count in _grouped(releases, adjacency).items():
        # RDP: the event's multiplier must already include the factor two of replacing.
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            release.population, release.cohort, dp_accounting.GaussianDpEvent(multiplier)
        )
        accountant.compose(event, count)
    return _number(accountant.get_epsilon(delta))


def _grouped(releases: _Counted, adjacency: Adjacency) -> Counter[tuple[Release, float]]:
    """Count the releases by way of sampling and multiplier, 1 / separation.

    The multiplier is rounded down to six digits, which is on the safe side, so that rounds with
    nearly the same clip norm are priced together.
    """
    found: Counter[tuple[Release, float]] = Counter()
    for release, times in releases:
        way = replace(release, noise_std=1.0, sensitivity=1.0, bit_std=None)
        exact = 1 / release.separation(adjacency)
        unit = 10.0 ** (math.floor(math.log10(exact)) - 5)
        found[way, math.floor(exact / unit * (1 + 1e-12)) * unit] += times
    return found


def _number(epsilon: float) -> float:
    """Return an accountant's epsilon; infinity if it could not compute one."""
    return math.inf if math.isnan(epsilon) else max(float(epsilon), 0.0)


def _check(releases: Sequence[Release], delta: float, adjacency: Adjacency) -> None:
    if not releases:
        raise ValueError("releases must not be empty, got none")
    require("(0, 1)", delta=delta)
    if adjacency == "honest-seat":
        raise ValueError("adjacency must be add-remove, zero-out or replace, got honest-seat")
