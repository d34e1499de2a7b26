"""Limits that a verdict must keep, for pipelines: passed, exceeded, or not able to tell.

An audit that shows nothing passes only if it could have shown something: where its cap is below
the limit, or the run is distorted, the answer is that it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from leakmeter.auditors.finding import ThreatModel
from leakmeter.auditors.verdict.labels import amount, shown, tells, who
from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.verdict import Row, Verdict, is_rebuilt
from leakmeter.auditors.wording import number, percent, plain_spaces, share

Outcome = Literal["passed", "exceeded", "unable"]
# What a process ends with; 1 is a failure of the program, 2 a wrong call.
EXIT_CODES: Final[dict[Outcome, int]] = {"passed": 0, "exceeded": 3, "unable": 4}


@dataclass(frozen=True)
class Limits:
    """What a run must keep; None and False ask for nothing.

    Attributes:
        max_epsilon: No ε above this may be proven.
        require_guarantee: An ε of at most this must be guaranteed.
        against: Which attackers these two are about, as `attacker_name` names them, or an observer
            for all of its attackers; None for all.
        no_reconstruction: Whether a reconstruction test must have been played and found nothing.
        min_accuracy: The last model must be at least this accurate.
    """

    max_epsilon: float | None = None
    require_guarantee: float | None = None
    against: str | None = None
    no_reconstruction: bool = False
    min_accuracy: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_epsilon", "require_guarantee"):
            limit = getattr(self, name)
            if limit is not None and not 0 <= limit < math.inf:
                raise ValueError(f"{name} must be an ε in [0, inf), got {limit}")
        if self.min_accuracy is not None and not 0 <= self.min_accuracy <= 1:
            raise ValueError(f"min_accuracy must be in [0, 1], got {self.min_accuracy}")

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        asked = [getattr(self, f.name) for f in fields(self) if f.name != "against"]
        return all(value is None or value is False for value in asked)


@dataclass(frozen=True)
class Check:
    """One limit and what came of it.

    Attributes:
        name: The limit, such as "max-epsilon".
        outcome: Whether it was kept.
        text: Why, in a sentence with the numbers.
    """

    name: str
    outcome: Outcome
    text: str


def check(verdict: Verdict, limits: Limits) -> list[Check]:
    """Return what came of each limit.

    Raises:
        ValueError: `against` names no attacker of this run, or nothing is asked for.
    """
    if limits.is_empty:
        raise ValueError(
            "a gate needs a limit: max_epsilon, require_guarantee, no_reconstruction or "
            "min_accuracy; for example --max-epsilon 8"
        )
    rows = _selected(verdict, limits.against)
    return [*_distortion(verdict), *_checks(verdict, rows, limits)]


def outcome(checks: Sequence[Check]) -> Outcome:
    """Return what came of all limits together: one exceeded limit is enough."""
    found = {one.outcome for one in checks}
    return next(one for one in ("exceeded", "unable", "passed") if one in found)


def assert_private(result: AuditResult | Verdict, **limits: Any) -> None:
    """Raise unless a run keeps its limits, for a test of your own.

    Args:
        result: What `leakmeter.run` returned, or `Audited.verdict`.
        limits: As in `Limits`, such as `max_epsilon=2.0`.

    Raises:
        AssertionError: A limit is exceeded, or the audit cannot tell. The text says which and why.

    Example:
        assert_private(leakmeter.run(rounds=10), max_epsilon=2.0, against="outsider")
    """
    verdict = result if isinstance(result, Verdict) else result.verdict
    failed = [one for one in check(verdict, Limits(**limits)) if one.outcome != "passed"]
    if failed:
        raise AssertionError("\n".join(f"{one.name}: {one.outcome}. {one.text}" for one in failed))


def attacker_name(model: ThreatModel) -> str:
    """Return the name of an attacker for `against`, such as "server/round-sum"."""
    return f"{model.observer}/{(model.sees or 'unknown').replace(' ', '-')}"


def _selected(verdict: Verdict, against: str | None) -> list[Row]:
    if against is None:
        return list(verdict.rows)
    found = [
        row
        for row in verdict.rows
        if against in (row.attacker.observer, attacker_name(row.attacker))
    ]
    if not found:
        known = sorted({attacker_name(row.attacker) for row in verdict.rows})
        raise ValueError(
            f"against must be an observer or one of {', '.join(known) or 'no attacker'}, got "
            f"{against!r}"
        )
    return found


def _distortion(verdict: Verdict) -> Iterator[Check]:
    if verdict.is_distorted:
        yield Check("distortion", "unable", "The run is distorted: see its warnings.")


def _checks(verdict: Verdict, rows: Sequence[Row], limits: Limits) -> Iterator[Check]:
    if limits.max_epsilon is not None:
        yield _shown(rows, limits.max_epsilon)
    if limits.require_guarantee is not None:
        yield _guaranteed(rows, limits.require_guarantee)
    if limits.no_reconstruction:
        yield _reconstruction(verdict)
    if limits.min_accuracy is not None:
        yield _accuracy(verdict, limits.min_accuracy)


def _shown(rows: Sequence[Row], limit: float) -> Check:
    name, most = "max-epsilon", number(limit)
    worst = max(rows, key=lambda row: row.low, default=None)
    if worst is not None and worst.low > limit:
        said = f"{_of(worst)}: {shown(worst)} is proven, above {most}."
        return Check(name, "exceeded", plain_spaces(said))
    cap = max((row.cap or 0.0 for row in rows), default=0.0)
    if cap <= limit:
        said = f"No audit could have shown more than ε = {number(cap)}, so {most} was not tested."
        return Check(name, "unable", said)
    blind = sorted({who(row.attacker) for row in rows if not row.is_audited})
    also = f" Not audited: {'; '.join(blind)}." if blind else ""
    proven = shown(worst) if worst is not None and worst.low > 0 else "nothing"
    return Check(name, "passed", plain_spaces(f"{proven} is proven, not above {most}.{also}"))


def _guaranteed(rows: Sequence[Row], limit: float) -> Check:
    name, most = "require-guarantee", number(limit)
    worst = max(rows, key=lambda row: row.high, default=None)
    if worst is None:
        return Check(name, "unable", "The run has no attacker to guarantee anything against.")
    if worst.high > limit or worst.at_most is None:
        given = (
            "nothing" if math.isinf(worst.high) or worst.at_most is None else amount(worst.at_most)
        )
        return Check(name, "exceeded", f"{_of(worst)}: {given} is guaranteed, {most} is asked for.")
    return Check(name, "passed", f"{amount(worst.at_most)} is guaranteed, {most} is asked for.")


def _reconstruction(verdict: Verdict) -> Check:
    name = "no-reconstruction"
    if not verdict.rebuilt:
        return Check(
            name, "unable", "No reconstruction test was played: add the auditor inversion."
        )
    if found := [f for f in verdict.rebuilt if is_rebuilt(f)]:
        trust = percent(found[0].confidence or 0.0)
        return Check(
            name,
            "exceeded",
            f"{found[0].value:g} originals were recovered beyond chance ({trust} confidence).",
        )
    return Check(name, "passed", "No original was recovered beyond chance.")


def _accuracy(verdict: Verdict, limit: float) -> Check:
    name = "min-accuracy"
    if verdict.accuracy is None:
        return Check(name, "unable", "Nobody measured the accuracy of the model.")
    is_kept = verdict.accuracy >= limit
    said = (
        f"The model's accuracy is {share(verdict.accuracy)}; at least {share(limit)} is asked for."
    )
    return Check(name, "passed" if is_kept else "exceeded", said)


def _of(row: Row) -> str:
    return f"{who(row.attacker)} ({tells(row)})"
