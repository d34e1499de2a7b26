"""What noise guarantees: describe the releases of a run as data, then price them.

Conventions (a mistake halves epsilon): `noise_std` is the standard deviation on the *sum*,
`sensitivity` the most that one client's presence moves it, both in the units of an update. A bare
noise multiplier is never stored. Adding, removing or zeroing a client moves the sum by the
sensitivity; replacing it moves the sum by twice that. dp-accounting's PLD includes the factor two
under its REPLACE_ONE; its RDP accountant does not.

All this is about whole clients. `strategies.water_filling.guarantee` prices what sampled gradients
guarantee to a single record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

from leakmeter.auditors.finding import Adjacency, Bound
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.wording import counted

Sampling = Literal["none", "poisson", "fixed"]


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
    """

    noise_std: float
    sensitivity: float
    sampling: Sampling = "none"
    rate: float = 1.0
    cohort: int = 0
    population: int = 0
    bit_std: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.noise_std < math.inf:
            raise ValueError(f"noise_std must be in [0, inf), got {self.noise_std}")
        if not 0 < self.sensitivity < math.inf:
            raise ValueError(f"sensitivity must be in (0, inf), got {self.sensitivity}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be in (0, 1], got {self.rate}")
        if self.sampling == "fixed" and not 0 < self.cohort <= self.population:
            raise ValueError(f"cohort must be in [1, {self.population}], got {self.cohort}")
        if self.sampling not in get_args(Sampling):
            raise ValueError(f"sampling must be one of {get_args(Sampling)}, got {self.sampling!r}")
        if self.bit_std is not None and not 0 < self.bit_std < math.inf:
            raise ValueError(f"bit_std must be in (0, inf), got {self.bit_std}")

    def separation(self, adjacency: Adjacency) -> float:
        """Return how many standard deviations apart the two worlds are."""
        if self.noise_std == 0:
            return math.inf
        moved = self.sensitivity * (2 if adjacency == "replace" else 1)
        if self.bit_std is None:
            return moved / self.noise_std
        if adjacency != "add-remove":  # only there does an absent client send no bit at all
            raise ValueError(f"adjacency must be add-remove with a clip bit, got {adjacency}")
        # Vector and bit are released together: two independent Gaussians compose as √(μ₁² + μ₂²).
        return math.hypot(moved / self.noise_std, 0.5 / self.bit_std)


def unamplified(
    releases: Sequence[Release], delta: float, *, participations: int, adjacency: Adjacency
) -> Bound:
    """Return ε for a client that took part in `participations` of the releases.

    Holds against everyone, even those who know who took part when: given the cohorts, a client
    faces that many Gaussian mechanisms, and these compose exactly to one Gaussian. If the releases
    differ, the most costly ones are taken.
    """
    _check(releases, delta, adjacency)
    if not 0 <= participations <= len(releases):
        raise ValueError(f"participations must be in [0, {len(releases)}], got {participations}")
    worst = sorted((r.separation(adjacency) for r in releases), reverse=True)[:participations]
    total = math.hypot(*worst)
    return Bound(
        value=math.inf if math.isinf(total) else float(epsilon_gaussian(delta, total)),
        kind="guarantee",
        delta=delta,
        rule=f"Gaussian mechanism composed over {counted(participations, 'participation')}, no "
        "amplification",
        sample_sizes={"releases": len(releases), "participations": participations},
    )


def amplified(releases: Sequence[Release], delta: float, *, adjacency: Adjacency) -> Bound:
    """Return ε with amplification by sampling, for observers who do not learn the cohorts.

    Poisson sampling is priced by privacy loss distributions for add/remove, zero-out and replace;
    sampling of a fixed size by Rényi DP for replace only, since no accountant covers the rest.
    Other combinations are refused: use `unamplified`.
    """
    _check(releases, delta, adjacency)
    kinds = {r.sampling for r in releases}
    if any(r.noise_std == 0 for r in releases):
        return Bound(math.inf, "guarantee", "no noise", delta)
    if kinds == {"poisson"}:
        return Bound(
            value=_poisson_epsilon(releases, delta, adjacency),
            kind="guarantee",
            delta=delta,
            rule=f"privacy loss distribution, Poisson sampling, {len(releases)} releases",
            sample_sizes={"releases": len(releases)},
        )
    if kinds == {"fixed"} and adjacency == "replace":
        return Bound(
            value=_fixed_size_epsilon(tuple(releases), delta),
            kind="guarantee",
            delta=delta,
            rule=f"Rényi DP, sampling without replacement, {len(releases)} releases",
            sample_sizes={"releases": len(releases)},
        )
    raise ValueError(
        "amplification must be Poisson sampling, or sampling of a fixed size under replace, "
        f"got {sorted(kinds)} under {adjacency}"
    )


def multiplier_with_bit(noise_multiplier: float, bit_std: float) -> float:
    """Return the multiplier for the vector when a noised clip bit is released with it.

    Andrew et al. (2021), Theorem 1: both together cost what one release with `noise_multiplier`
    costs. `bit_std` is the noise on the sum of bits, each counted as ±1/2.
    """
    if not 2 * bit_std > noise_multiplier > 0:
        raise ValueError(
            f"bit_std must be above noise_multiplier / 2 = {noise_multiplier / 2:g}, got {bit_std}"
        )
    return float((noise_multiplier**-2 - (2 * bit_std) ** -2) ** -0.5)


def _poisson_epsilon(releases: Sequence[Release], delta: float, adjacency: Adjacency) -> float:
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
def _fixed_size_epsilon(releases: tuple[Release, ...], delta: float) -> float:
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    for (release, multiplier), count in _grouped(releases, "replace").items():
        # RDP: the event's multiplier must already include the factor two of replacing.
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            release.population, release.cohort, dp_accounting.GaussianDpEvent(multiplier)
        )
        accountant.compose(event, count)
    return _number(accountant.get_epsilon(delta))


def _grouped(releases: Sequence[Release], adjacency: Adjacency) -> Counter[tuple[Release, float]]:
    """Count the releases by way of sampling and multiplier, 1 / separation.

    The multiplier is rounded down to six digits, which is on the safe side, so that rounds with
    nearly the same clip norm are priced together.
    """
    found: Counter[tuple[Release, float]] = Counter()
    for release in releases:
        way = replace(release, noise_std=1.0, sensitivity=1.0, bit_std=None)
        exact = 1 / release.separation(adjacency)
        unit = 10.0 ** (math.floor(math.log10(exact)) - 5)
        found[way, math.floor(exact / unit * (1 + 1e-12)) * unit] += 1
    return found


def _number(epsilon: float) -> float:
    """Return an accountant's epsilon; infinity if it could not compute one."""
    return math.inf if math.isnan(epsilon) else max(float(epsilon), 0.0)


def _check(releases: Sequence[Release], delta: float, adjacency: Adjacency) -> None:
    if not releases:
        raise ValueError("releases must not be empty, got none")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    if adjacency == "honest-seat":
        raise ValueError("adjacency must be add-remove, zero-out or replace, got honest-seat")
