"""What sampled and noised gradients under a secure sum guarantee to a single record.

The mathematics and its source are in `strategies.accounting.rdp`. This module adds the claim:
which observer, which unit, which neighbours, which assumptions. Rows are those of Table 1 in
arXiv:2405.04551.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import logsumexp

from leakmeter.auditors._types import Floats
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import Adjacency, Bound, Finding, Observer, ThreatModel, Unit
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.wording import counted
from leakmeter.strategies.accounting.accountant import Release, amplified
from leakmeter.strategies.accounting.rdp import (
    Contribution,
    Conversion,
    Mechanism,
    Round,
    composed,
    epsilon_of,
    theorem_two,
)

_COMMON = (
    Assumption.PUBLIC_SETTINGS,
    Assumption.HONEST_CONTRIBUTORS,
    Assumption.HIDDEN_UPDATES,
    Assumption.ONE_STEP,
    Assumption.REAL_GAUSSIAN,
)
_ASSUMED: dict[Mechanism, tuple[Assumption, ...]] = {
    "sampling": (Assumption.GAUSSIAN_WEIGHTS, Assumption.LASTING_FLOOR),
    "isotropic": (Assumption.GAUSSIAN_WEIGHTS, Assumption.ISOTROPIC_FLOOR),
    "water-filling": (Assumption.GAUSSIAN_WEIGHTS, Assumption.FILLED_FLOOR),
    "full": (Assumption.FULL_GRADIENT,),
    "minibatch": (Assumption.ISOTROPIC_FLOOR, Assumption.SECRET_BATCHES),
}


@dataclass(frozen=True)
class RecordGuarantee:
    """A bound with the observer and the unit that it is for.

    Attributes:
        bound: ε with its δ, rule and assumptions.
        observer: The attacker. A guarantee against the server also holds against outsiders.
        unit: Whose data: one record of one client. Whole updates may differ by far more.
        adjacency: One record is replaced by another; their number stays.
        participations: Rounds of the busiest client.
        colluders: Clients whose noise was not counted, since they may reveal it.
    """

    bound: Bound
    observer: Observer = "server"
    unit: Unit = "record"
    adjacency: Adjacency = "replace"
    participations: int = 1
    colluders: int = 0

    def finding(self, auditor: str, **context: Any) -> Finding:
        """Return it as a finding."""
        own = {
            "auditor": auditor,
            "quantity": "epsilon",
            "threat_model": ThreatModel(
                observer=self.observer,
                sees="round sum",
                knows_cohort=True,
                participations=self.participations,
                colluders=self.colluders,
            ),
            "adjacency": self.adjacency,
            "unit": self.unit,
        }
        return Finding.of(self.bound, **(own | context))


def guarantee(
    rounds: Sequence[Round],
    delta: float,
    *,
    conversion: Conversion = "tight",
) -> RecordGuarantee:
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


def best_guarantee(rounds: Sequence[Round], delta: float) -> RecordGuarantee:
    """Return the smallest ε that we can prove for these rounds, all of one mechanism.

    Args:
        rounds: The sums that were released; those of minibatches must have equal members.
        delta: δ.
    """
    kinds = {one.mechanism for one in rounds}
    if len(kinds) != 1:
        raise ValueError(f"rounds must have one mechanism, got {sorted(kinds)}")
    if kinds <= {"full", "minibatch"}:
        separation = math.hypot(*(_separation(one) for one in rounds))
        known = float(epsilon_gaussian(delta, separation))
        rule = f"Gaussian mechanism composed over {counted(len(rounds), 'round')}, exact"
        if kinds == {"full"}:
            return _worded(rounds, delta, known, rule)
        found = {f"{rule}, with known batches": known, **_secret_batches(rounds, delta, separation)}
        rule = min(found, key=lambda name: found[name])
        return _worded(rounds, delta, found[rule], rule)
    return guarantee(rounds, delta)


def _separation(one: Round) -> float:
    """Return the most standard deviations by which a record of any member moves a sum."""
    return max(one.shift(member) for member in one.members) / math.sqrt(one.floor)


def _secret_batches(rounds: Sequence[Round], delta: float, separation: float) -> dict[str, float]:
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
        diluted = _diluted(float(epsilon_gaussian(room, separation)), share)
        found["Gaussian mechanism on a secret batch, one round"] = diluted
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


def _worded(rounds: Sequence[Round], delta: float, value: float, rule: str) -> RecordGuarantee:
    """Return ε with its assumptions; saturation voids it, coarse rounding weakens its kind."""
    kinds = sorted({one.mechanism for one in rounds})
    saturated = sum(one.saturated for one in rounds)
    if saturated:
        value, rule = math.inf, f"{saturated} coordinates saturated, which voids the guarantee"
    is_rough = any(one.is_rough for one in rounds)
    specific = [name for kind in kinds for name in _ASSUMED[kind]]
    if is_rough:
        specific.append(Assumption.COARSE_ROUNDING)
    bound = Bound(
        value=value,
        kind="approximation" if is_rough else "guarantee",
        rule=rule,
        delta=delta,
        sample_sizes={"rounds": len(rounds), "users": min(len(one.members) for one in rounds)},
        assumptions=(*_COMMON, *dict.fromkeys(specific)),
    )
    return RecordGuarantee(bound, participations=len(rounds))


def water_filling_epsilon(
    *,
    users: int,
    floor: float,
    clip: float,
    batch: int,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion = "tight",
) -> float:
    """Return ε of Gaussian sampling filled to the floor σ² by each of `users` equal clients.

    >>> setting = dict(users=50, clip=10.0, batch=32, examples=1200, delta=1e-4)
    >>> round(water_filling_epsilon(floor=1e-3, **setting, conversion="plain"), 6)
    1.221943
    >>> round(water_filling_epsilon(floor=1e-3, **setting), 6)
    0.863769
    """
    one = Contribution(floor, clip, batch, examples)
    return _equal(one, users, "water-filling", rounds, delta, conversion)


def gaussian_sampling_epsilon(
    *,
    users: int,
    floor: float,
    clip: float,
    batch: int,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion = "tight",
) -> float:
    """Return ε of Gaussian sampling with isotropic noise of variance `floor`.

    This is row 5 of Table 1, sharpened.
    """
    one = Contribution(floor, clip, batch, examples)
    return _equal(one, users, "isotropic", rounds, delta, conversion)


def full_gradient_epsilon(
    *,
    users: int,
    floor: float,
    clip: float,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion | Literal["exact"] = "exact",
) -> float:
    """Return ε of the full gradient with isotropic noise (row 3).

    The conversion "exact" gives the ε of the Gaussian mechanism itself.
    """
    one = Contribution(floor, clip, 1, examples)
    if conversion != "exact":
        return _equal(one, users, "full", rounds, delta, conversion)
    _check(users, rounds)
    return float(epsilon_gaussian(delta, one.shift * math.sqrt(rounds / (users * floor))))


def minibatch_epsilon(
    *,
    users: int,
    floor: float,
    clip: float,
    batch: int,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion = "tight",
) -> float:
    """Return ε of a minibatch without replacement and isotropic noise on its mean gradient.

    "plain" is row 1, a statement about one round: ln(1 + B/D (e^ε' - 1)) with ε' for a batch whose
    members are known. "tight" is the least of three that hold: the Rényi accountant of sampling
    without replacement; known batches, whose Gaussians compose exactly; and for one round
    row 1 with the exact ε' at δD/B (Balle, Barthe, Gaboardi 2018, arXiv:1807.01647, Theorem 9).
    """
    _check(users, rounds)
    if not 1 <= batch <= examples:
        raise ValueError(f"batch must be in [1, {examples}], got {batch}")
    if conversion == "plain":
        if rounds != 1:
            raise ValueError(f"rounds must be 1 with the plain conversion, got {rounds}")
        # If the members of the batch are known, only the batch counts: D is B.
        drawn = Contribution(floor, clip, 1, batch)
        return _diluted(_equal(drawn, users, "full", 1, delta, "plain"), batch / examples)
    one = Round((Contribution(floor, clip, batch, examples),) * users, "minibatch")
    return best_guarantee([one] * rounds, delta).bound.value


def _diluted(epsilon: float, share: float) -> float:
    """Return ln(1 + share (e^ε - 1)), as a logsumexp that does not overflow for large ε."""
    return float(logsumexp([0.0, epsilon], b=[1 - share, share]))


def theorem_two_epsilon(
    *,
    smallest: float,
    clip: float,
    batch: int,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion = "tight",
) -> float:
    """Return ε by (19), or (34) in a subspace, of Gaussian sampling without any noise.

    `smallest` is S, the sum over clients of the smallest eigenvalue of (1/D) Σ gᵀg. It must be
    valid for all neighbouring data sets, which no measurement can show.
    """
    if not 0 < smallest < math.inf:
        raise ValueError(f"smallest must be in (0, inf), got {smallest}")
    Contribution(smallest, clip, batch, examples)  # checks the others
    _check(1, rounds)

    def curve(alpha: Floats) -> Floats:
        one = theorem_two(alpha, smallest=smallest, clip=clip, batch=batch, examples=examples)
        return np.asarray(rounds * one)

    limit = examples * smallest / clip**2
    return epsilon_of(curve, delta, limit=limit, conversion=conversion)


def _equal(
    one: Contribution,
    users: int,
    mechanism: Mechanism,
    rounds: int,
    delta: float,
    conversion: Conversion,
) -> float:
    _check(users, rounds)
    each = Round((one,) * users, mechanism)
    return guarantee([each] * rounds, delta, conversion=conversion).bound.value


def _check(users: int, rounds: int) -> None:
    if users < 1:
        raise ValueError(f"users must be at least 1, got {users}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
