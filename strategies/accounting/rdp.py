"""What a secure sum of sampled, clipped and noised gradients guarantees to a single record.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551). Their (19), (34) and rows 1, 3 and 5 of Table 1 are true. Their (30),
(31) and (38) are not, and row 6 is not a theorem: there are cases with an infinite divergence where
it is finite. The bound for water filling here is our own. It uses two facts: raising eigenvalues to
a floor is the projection on {X ⪰ σ²I} in the Frobenius norm, so it moves two neighbours no further
apart, and both neighbours are above the floor. It also sharpens row 5.

With t = C²/(BD), worlds whose covariances are at least F and differ by Δ, ‖Δ‖_F ≤ √2 t, and means
that differ by at most 2C/D, the Rényi divergence of order α is at most

    (2αC²/D²)/m + α t²/(2m²),    m = F - (α - 1) l > 0, where Δ ⪰ -l I.

Here l = t if Δ comes from exchanging one gradient in GᵀG/(BD), and l = √2 t after flooring. The
first term is that of the means. The second bounds the error of ln det, interpolated linearly
between the worlds and continued to α, by its second derivative.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import numpy as np
from scipy.special import logsumexp

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, Conduct, Finding, ThreatModel
from leakmeter.auditors.values import Floats, require
from leakmeter.auditors.wording import Assumption, counted
from leakmeter.strategies.accounting.accountant import Release, amplified

Curve = Callable[[Floats], Floats]  # order to Rényi divergence, infinite where nothing is known

# How an order and its divergence become ε at δ: Canonne, Kamath, Steinke 2020 (arXiv:2004.00010),
# Proposition 12, or Mironov 2017 (arXiv:1702.07476), Proposition 3.
Conversion = Literal["tight", "plain"]

# What every guarantee for a record assumes.
_COMMON = (
    Assumption.PUBLIC_SETTINGS,
    Assumption.HONEST_CONTRIBUTORS,
    Assumption.HIDDEN_UPDATES,
    Assumption.ONE_STEP,
    Assumption.REAL_GAUSSIAN,
)


@dataclass(frozen=True)
class Kind:
    """One way to make a sum of gradients random.

    Attributes:
        slack: l/t of the formula above: how far the covariance of a neighbour may be below.
        assumptions: What its guarantee assumes beyond all others.
    """

    slack: float
    assumptions: tuple[Assumption, ...]


# Gaussian sampling alone, with isotropic noise, with noise that fills to a floor, or isotropic
# noise on the full gradient or on the mean gradient of a minibatch.
KINDS: dict[str, Kind] = {
    "sampling": Kind(1.0, (Assumption.GAUSSIAN_WEIGHTS, Assumption.LASTING_FLOOR)),
    "isotropic": Kind(1.0, (Assumption.GAUSSIAN_WEIGHTS, Assumption.ISOTROPIC_FLOOR)),
    "water-filling": Kind(math.sqrt(2), (Assumption.GAUSSIAN_WEIGHTS, Assumption.FILLED_FLOOR)),
    "full": Kind(0.0, (Assumption.FULL_GRADIENT,)),
    "minibatch": Kind(0.0, (Assumption.ISOTROPIC_FLOOR, Assumption.SECRET_BATCHES)),
}
# Sampling alone has no floor that a server could order.
NOISED = tuple(name for name in KINDS if name != "sampling")


@dataclass(frozen=True)
class Contribution:
    """What one honest client adds to a sum: w (gradient estimate), in the units of a gradient.

    Attributes:
        floor: σ², least variance of the estimate in any direction, whatever the data.
        clip: C, largest norm of an example's gradient.
        batch: B, the scale of Gaussian sampling weights 1/D + ξ/√(BD), or the size of a minibatch.
        examples: D, the number of examples; public.
        weight: w, the factor in the sum; only ratios between clients matter.
    """

    floor: float
    clip: float
    batch: int
    examples: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        require("(0, inf)", floor=self.floor, clip=self.clip, weight=self.weight)
        require("at least 1", batch=self.batch, examples=self.examples)

    @property
    def shift(self) -> float:
        """Most that replacing a record moves the mean of the sum: 2wC/D."""
        return 2 * self.weight * self.clip / self.examples

    @property
    def spread(self) -> float:
        """t = w²C²/(BD), the most that one gradient adds to a variance of the sum."""
        return self.weight**2 * self.clip**2 / (self.batch * self.examples)


@dataclass(frozen=True)
class RecordRelease:
    """One released sum.

    Attributes:
        members: Honest clients whose updates are in the sum; colluders and dropouts are not.
        mechanism: What makes it random.
        step: Step of the quantiser that each estimate was rounded with, in units of a gradient.
        saturated: Coordinates that did not fit the secure sum, over all clients.
    """

    members: tuple[Contribution, ...]
    mechanism: str = "water-filling"
    step: float = 0.0
    saturated: int = 0

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError("members must not be empty, got none")
        if self.mechanism not in KINDS:
            raise BadValueError(
                "mechanism",
                f"one of {', '.join(KINDS)}",
                self.mechanism,
                fix="Others have no guarantee",
            )
        require("[0, inf)", step=self.step)
        require("at least 0", saturated=self.saturated)

    def of_shares(self, shares: int) -> Self:
        """Return this round with so many contributors, from one with a single one."""
        return replace(self, members=self.members * shares)

    @property
    def floor(self) -> float:
        """Least variance of the sum in any direction."""
        return math.fsum(member.weight**2 * member.floor for member in self.members)

    @property
    def limit(self) -> float:
        """Supremum of the admissible orders α."""
        slack = KINDS[self.mechanism].slack * max(member.spread for member in self.members)
        return 1 + self.floor / slack if slack else math.inf

    @property
    def is_coarse(self) -> bool:
        """Whether rounding is too coarse for a proof: a client's noise is below two steps."""
        return any(math.sqrt(member.floor) < 2 * self.step for member in self.members)

    def shift(self, member: Contribution) -> float:
        """Return the most that replacing a record of this member moves the mean of the sum.

        For a minibatch that contains the record it is 2wC/B.
        """
        if self.mechanism == "minibatch":
            return member.shift * member.examples / member.batch
        return member.shift

    def rdp(self, alpha: Floats) -> Floats:
        """Return the bound on the Rényi divergence for the worst member; inf if not admissible.

        The members of a minibatch count as known here; `guarantee` adds what their secrecy gives.
        """
        floor, slack = self.floor, KINDS[self.mechanism].slack
        # One pair for each kind of member: equal members would only repeat the same bound.
        moves = {(self.shift(one), one.spread if slack else 0.0) for one in self.members}
        worst = np.zeros(np.shape(alpha))
        for shift, spread in moves:
            # The formula of the module: means differ by `shift`, covariances by √2·`spread`. Where
            # m is not positive, Σ_α may be indefinite and the divergence infinite.
            m = floor - slack * spread * (alpha - 1)
            positive = np.where(m > 0, m, math.nan)
            bound = alpha * shift**2 / (2 * positive) + alpha * spread**2 / (2 * positive**2)
            worst = np.maximum(worst, np.where(m > 0, bound, math.inf))
        return np.where(alpha > 1, worst, math.inf)


def composed(rounds: Sequence[RecordRelease]) -> Curve:
    """Return the Rényi divergence of all rounds together, the sum at each order."""
    if not rounds:
        raise ValueError("rounds must not be empty, got none")
    counts = Counter(rounds)

    def total(alpha: Floats) -> Floats:
        parts = [count * one.rdp(alpha) for one, count in counts.items()]
        return np.asarray(np.sum(parts, axis=0))

    return total


def epsilon_of(
    curve: Curve, delta: float, *, limit: float = math.inf, conversion: Conversion = "tight"
) -> float:
    """Return the least ε at δ over the admissible orders 1 < α < limit.

    Every admissible order gives a valid ε: missing the optimum makes it larger, not invalid.

    Args:
        curve: Rényi divergence by order.
        delta: δ.
        limit: Supremum of the admissible orders.
        conversion: Which one; "plain" is ε + ln(1/δ)/(α - 1).
    """
    from scipy.optimize import minimize_scalar  # a fifth of a second, and few ask

    require("(0, 1)", delta=delta)
    if conversion not in get_args(Conversion):
        raise BadValueError("conversion", f"one of {get_args(Conversion)}", conversion)
    if not limit > 1:
        raise ValueError(f"the range of orders 1 < α < {limit:g} must not be empty, got none")

    def objective(u: Floats) -> Floats:  # u = ln(α - 1), so that the grid resolves orders near 1
        excess = np.exp(u)
        alpha = 1 + excess
        value = curve(alpha) - math.log(delta) / excess
        if conversion == "tight":
            value = value + u - np.log(alpha) * (1 + 1 / excess)
        return np.asarray(value)

    # Near the limit the bound explodes and near 1 the conversion does, so the minimum is inside.
    # A grid brackets it, and a search refines it.
    top = math.log(min(limit - 1, 1e12))
    grid = np.linspace(top - 60, top, 1201)
    values = objective(grid)
    best = int(np.argmin(values))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(
        lambda u: float(objective(np.asarray(u))), bounds=ends, options={"xatol": 1e-10}
    )
    return max(min(float(found.fun), float(values[best])), 0.0)


def guarantee(
    rounds: Sequence[RecordRelease], delta: float, *, conversion: Conversion = "tight"
) -> Bound:
    """Return the guarantee of all rounds together for a record of any client in them.

    Args:
        rounds: The sums that were released.
        delta: δ.
        conversion: From Rényi DP to ε at δ.
    """
    curve = composed(rounds)
    limit = min(one.limit for one in rounds)
    value = epsilon_of(curve, delta, limit=limit, conversion=conversion)
    kinds = sorted({one.mechanism for one in rounds})
    rule = f"Rényi DP of {', '.join(kinds)}, {len(rounds)} rounds, 1 < α < {limit:.6g}"
    return _worded(rounds, delta, value, f"{rule}, {conversion} conversion")


def best_guarantee(rounds: Sequence[RecordRelease], delta: float) -> Bound:
    """Return the smallest ε that we can prove for these rounds, all of one mechanism.

    Args:
        rounds: The sums that were released; those of minibatches must have equal members.
        delta: δ.
    """
    kinds = {one.mechanism for one in rounds}
    if len(kinds) != 1:
        raise ValueError(f"rounds must have one mechanism, got {sorted(kinds)}")
    if kinds <= {"full", "minibatch"}:
        # The most standard deviations by which a record of any member moves each sum.
        moves = (max(map(one.shift, one.members)) / math.sqrt(one.floor) for one in rounds)
        separation = math.hypot(*moves)
        known = float(epsilon_gaussian(delta, separation))
        rule = f"Gaussian mechanism composed over {counted(len(rounds), 'round')}, exact"
        if kinds == {"full"}:
            return _worded(rounds, delta, known, rule)
        found = {f"{rule}, with known batches": known, **_secret_batches(rounds, delta, separation)}
        rule = min(found, key=lambda name: found[name])
        return _worded(rounds, delta, found[rule], rule)
    return guarantee(rounds, delta)


def _secret_batches(
    rounds: Sequence[RecordRelease], delta: float, separation: float
) -> dict[str, float]:
    """Return ε by rule, where batches are secret.

    For one round row 1 with the exact ε' at δD/B (Balle, Barthe, Gaboardi 2018, arXiv:1807.01647,
    Theorem 9); for any number the Rényi accountant of sampling without replacement.
    """
    found = {}
    if len(rounds) == 1:
        member = rounds[0].members[0]
        # A batch contains the record with probability B/D. So δ for the sampled mechanism leaves
        # δD/B for the batch itself, which must stay below 1.
        share = member.batch / member.examples
        room = min(delta / share, 1 - 2**-53)
        sampled = diluted(float(epsilon_gaussian(room, separation)), share)
        found["Gaussian mechanism on a secret batch, one round"] = sampled
    releases = [
        Release(
            noise_std=math.sqrt(one.floor),
            # `shift` is for replacing a record; `Release` takes that of removing one, half of it.
            sensitivity=one.shift(one.members[0]) / 2,
            sampling="fixed",
            cohort=one.members[0].batch,
            population=one.members[0].examples,
        )
        for one in rounds
    ]
    bound = amplified(releases, delta, adjacency="replace")
    found[f"{bound.rule}, records in batches"] = bound.value
    return found


def _worded(rounds: Sequence[RecordRelease], delta: float, value: float, rule: str) -> Bound:
    """Return ε with its assumptions; saturation voids it, coarse rounding weakens its kind."""
    kinds = sorted({one.mechanism for one in rounds})
    saturated = sum(one.saturated for one in rounds)
    if saturated:
        value, rule = math.inf, f"{saturated} coordinates saturated, which voids the guarantee"
    is_coarse = any(one.is_coarse for one in rounds)
    specific = [name for kind in kinds for name in KINDS[kind].assumptions]
    if is_coarse:
        specific.append(Assumption.COARSE_ROUNDING)
    return Bound(
        value=value,
        kind="approximation" if is_coarse else "guarantee",
        rule=rule,
        delta=delta,
        sample_sizes={"rounds": len(rounds), "users": min(len(one.members) for one in rounds)},
        assumptions=(*_COMMON, *dict.fromkeys(specific)),
    )


def diluted(epsilon: float, share: float) -> float:
    """Return ln(1 + share (e^ε - 1)), as a logsumexp that does not overflow for large ε."""
    return float(logsumexp([0.0, epsilon], b=[1 - share, share]))


def finding_of(
    bound: Bound,
    *,
    participations: int,
    colluders: int = 0,
    conduct: Conduct = "curious",
    **context: Any,
) -> Finding:
    """Return what a bound guarantees to a record against the server, and so against outsiders.

    Args:
        bound: ε with its δ, rule and assumptions.
        participations: Rounds of the busiest client.
        colluders: Clients whose noise was not counted, since they may reveal it.
        conduct: What the server may do.
        context: Further fields of the finding.
    """
    model = ThreatModel(
        observer="server",
        sees="round sum",
        knows_cohort=True,
        participations=participations,
        colluders=colluders,
        conduct=conduct,
    )
    about = {"auditor": "accountant", "quantity": "epsilon", "threat_model": model}
    # One record is replaced by another, their number stays. Whole updates may differ by far more.
    return Finding.of(bound, **about, adjacency="replace", unit="record", **context)
