"""What sampled and noised gradients under a secure sum guarantee to a single record.

The mathematics and its source are in `strategies.accounting.rdp`. This module adds the claim:
which observer, which unit, which neighbours, which assumptions. Rows are those of Table 1 in
arXiv:2405.04551.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import logsumexp

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import Adjacency, Bound, Finding, Observer, ThreatModel, Unit
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.wording import counted
from leakmeter.strategies.accounting.accountant import Release, amplified
from leakmeter.strategies.accounting.rdp import (
    KINDS,
    Conversion,
    Round,
    composed,
    epsilon_of,
)

_COMMON = (
    Assumption.PUBLIC_SETTINGS,
    Assumption.HONEST_CONTRIBUTORS,
    Assumption.HIDDEN_UPDATES,
    Assumption.ONE_STEP,
    Assumption.REAL_GAUSSIAN,
)


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


def _worded(rounds: Sequence[Round], delta: float, value: float, rule: str) -> RecordGuarantee:
    """Return ε with its assumptions; saturation voids it, coarse rounding weakens its kind."""
    kinds = sorted({one.mechanism for one in rounds})
    saturated = sum(one.saturated for one in rounds)
    if saturated:
        value, rule = math.inf, f"{saturated} coordinates saturated, which voids the guarantee"
    is_coarse = any(one.is_coarse for one in rounds)
    specific = [name for kind in kinds for name in KINDS[kind].assumptions]
    if is_coarse:
        specific.append(Assumption.COARSE_ROUNDING)
    bound = Bound(
        value=value,
        kind="approximation" if is_coarse else "guarantee",
        rule=rule,
        delta=delta,
        sample_sizes={"rounds": len(rounds), "users": min(len(one.members) for one in rounds)},
        assumptions=(*_COMMON, *dict.fromkeys(specific)),
    )
    return RecordGuarantee(bound, participations=len(rounds))


def diluted(epsilon: float, share: float) -> float:
    """Return ln(1 + share (e^ε - 1)), as a logsumexp that does not overflow for large ε."""
    return float(logsumexp([0.0, epsilon], b=[1 - share, share]))
