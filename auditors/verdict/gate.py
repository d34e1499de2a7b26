"""Limits that a verdict must keep: passed, exceeded, or not able to tell.

An audit that shows nothing passes only if it could have shown something. Where its cap is not above
the limit, where the run is distorted or incomplete, the answer is that it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from textwrap import wrap
from typing import Final, Literal, get_args

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Finding, Observer, Sees, ThreatModel
from leakmeter.auditors.verdict.claim import is_weaker
from leakmeter.auditors.verdict.labels import amount, tells, who
from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.sentences import claim_sentence, given_that, refutation
from leakmeter.auditors.verdict.verdict import REBUILT, Row, Verdict, is_rebuilt
from leakmeter.auditors.wording import counted, digits_of, number, percent, plain_spaces, share

Outcome = Literal["passed", "exceeded", "unable"]
# What a process ends with; 1 is a failure of the program, 2 a wrong call.
EXIT_CODES: Final[dict[Outcome, int]] = {"passed": 0, "exceeded": 3, "unable": 4}
_WORST_FIRST: Final[tuple[Outcome, ...]] = ("exceeded", "unable", "passed")
_EXAMPLES: Final = {
    "max_epsilon": "max_epsilon=2.0",
    "require_guarantee": "require_guarantee=8.0",
    "min_accuracy": "min_accuracy=0.8",
}
_MAX_DIGITS = 17  # of a double
_MAX_NAMED = 3  # rows in one sentence
SAID: Final[Mapping[Outcome, str]] = {
    "passed": "passed: the run keeps its limits",
    "exceeded": "failed: a limit is exceeded",
    "unable": "failed: the audit cannot tell",
}
_HEAD, _WIDTH = "GATE  ", 80  # columns of an ordinary terminal


def _name(observer: str, sees: str | None) -> str:
    return f"{observer}/{(sees or 'unknown').replace(' ', '-')}"


# What `against` may name: an observer with all that it may see, or with one thing that it sees.
ATTACKERS: Final = (
    *get_args(Observer),
    *(_name(observer, sees) for observer in get_args(Observer) for sees in get_args(Sees)),
)
# The same in words: a list of all would be five lines long.
ALLOWED: Final = (
    f"one of {', '.join(get_args(Observer))}, or one of them with a slash and what it sees, one of "
    f"{', '.join(sees.replace(' ', '-') for sees in get_args(Sees))}"
)


@dataclass(frozen=True)
class GateLimits:
    """What a run must keep; None and False ask for nothing.

    Attributes:
        max_epsilon: No ε above this may be proven, and the audit must have been able to prove one.
        require_guarantee: An ε of at most this must be guaranteed.
        against: The attackers that these two and `claims` are about, one of `ATTACKERS`; None for
            all of the run.
        no_reconstruction: Whether a reconstruction test must have been played and found nothing.
        min_accuracy: The last model must be at least this accurate.
        claims: Whether something must be claimed, and each claim tested and not refuted. A claim
            that is refuted exceeds every gate, asked or not.
    """

    max_epsilon: float | None = None
    require_guarantee: float | None = None
    against: str | None = None
    no_reconstruction: bool = False
    min_accuracy: float | None = None
    claims: bool = False

    def __post_init__(self) -> None:
        for name in ("max_epsilon", "require_guarantee"):
            _require_number(name, getattr(self, name), math.inf, "a finite number of at least 0")
        _require_number("min_accuracy", self.min_accuracy, 1.0, "a share from 0 to 1")
        if self.against is not None and self.against not in ATTACKERS:
            hint = '; for example against="outsider"'
            raise BadValueError("against", ALLOWED, self.against, hint=hint)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        asked = [getattr(self, spec.name) for spec in fields(self) if spec.name != "against"]
        return all(value is None or value is False for value in asked)


@dataclass(frozen=True)
class Check:
    """One limit and what came of it.

    Attributes:
        name: The limit, such as "max-epsilon", or what every limit needs, such as "complete".
        outcome: Whether it was kept.
        text: Why, in a sentence with the numbers.
    """

    name: str
    outcome: Outcome
    text: str


def check(result: AuditResult | Verdict, limits: GateLimits) -> list[Check]:
    """Return what came of each limit.

    Args:
        result: A run with its failures, or only its verdict.
        limits: What it must keep.

    Raises:
        ValueError: Nothing is asked for.
    """
    if limits.is_empty:
        raise ValueError(
            "a gate needs a limit, one of max_epsilon, require_guarantee, no_reconstruction, "
            "min_accuracy and claims, got none; for example max_epsilon=8.0"
        )
    if isinstance(result, Verdict):
        result = AuditResult(result)
    if not result.is_finished:  # numbers of single rounds are not those of the run
        return [Check("complete", "unable", "The run has no report: let it end, or resume it.")]
    return [
        Check(name, came, plain_spaces(text))
        for name, came, text in (*_doubts(result), *_checks(result.verdict, limits))
    ]


def outcome(checks: Sequence[Check]) -> Outcome:
    """Return what came of all limits together: one that is exceeded is enough."""
    found = {one.outcome for one in checks}
    return next((one for one in _WORST_FIRST if one in found), "unable")


def assert_private(
    result: AuditResult | Verdict,
    *,
    max_epsilon: float | None = None,
    require_guarantee: float | None = None,
    against: str | None = None,
    no_reconstruction: bool = False,
    min_accuracy: float | None = None,
    claims: bool = False,
) -> None:
    """Raise unless a run keeps its limits, for a test of your own.

    Args:
        result: What `leakmeter.run` or `leakmeter.read_result` returned, or `Audited.verdict`. A
            verdict alone does not say which auditors failed.
        max_epsilon: No ε above this may be proven, and the audit must have been able to prove one.
        require_guarantee: An ε of at most this must be guaranteed.
        against: The attackers that these two are about: an observer such as "outsider", or one with
            what it sees, such as "server/round-sum"; None for all attackers of the run.
        no_reconstruction: Whether a reconstruction test must have been played and found nothing.
        min_accuracy: The last model must be at least this accurate.
        claims: Whether something must be claimed, and each claim tested and not refuted.

    Raises:
        AssertionError: A limit is exceeded, or the audit cannot tell. The text says which and why.
        ValueError: A limit is no such number or name, or there is none.

    Example:
        assert_private(leakmeter.run(rounds=10), max_epsilon=2.0, against="outsider")
    """
    limits = GateLimits(
        max_epsilon, require_guarantee, against, no_reconstruction, min_accuracy, claims
    )
    verdict = result if isinstance(result, Verdict) else result.verdict
    if failed := [one for one in check(result, limits) if one.outcome != "passed"]:
        said = [f"{one.name}: {one.outcome}. {one.text}" for one in failed]
        raise AssertionError("\n".join([*said, f"Every ε is at {delta(verdict)}."]))


def delta(verdict: Verdict) -> str:
    """Return the δ of every ε in a verdict."""
    return f"δ = {number(verdict.delta or 0.0)}"


def attacker_name(model: ThreatModel) -> str:
    """Return the name of an attacker for `against`, such as "server/round-sum"."""
    return _name(model.observer, model.sees)


_Found = tuple[str, Outcome, str]


def _doubts(result: AuditResult) -> Iterator[_Found]:
    """Yield why a run passes nothing, whatever its numbers are."""
    verdict = result.verdict
    if result.failures:  # what a missing auditor would have shown is not in any row
        yield "complete", "unable", f"Not audited as planned: {'; '.join(result.failures)}"
    for warning in verdict.warnings:
        if warning.kind == "ended-early":
            yield "complete", "unable", warning.text
    if verdict.is_distorted:
        said = " ".join(warning.text for warning in verdict.warnings)
        yield "distortion", "unable", f"The run is distorted. {said}"


def _checks(verdict: Verdict, limits: GateLimits) -> Iterator[_Found]:
    if limits.claims or verdict.false_claims:
        yield "claims", *_claims(verdict, limits.against)
    if limits.max_epsilon is not None:
        yield "max-epsilon", *_shown(verdict, limits.max_epsilon, limits.against)
    if limits.require_guarantee is not None:
        yield "require-guarantee", *_guaranteed(verdict, limits.require_guarantee, limits.against)
    if limits.no_reconstruction:
        yield "no-reconstruction", *_reconstruction(verdict)
    if limits.min_accuracy is not None:
        yield "min-accuracy", *_accuracy(verdict, limits.min_accuracy)


def _claims(verdict: Verdict, against: str | None) -> tuple[Outcome, str]:
    """Return whether a claim is refuted, or could have been; guarantees are claims of our own."""
    if false := verdict.false_claims:
        return "exceeded", f"{claim_sentence(false[0].claim)} {refutation(false[0])}"
    rows = [row for row in _selected(verdict, against) if row.at_most is not None]
    if broken := [row for row in rows if row.low > row.high]:
        return "exceeded", f"{_of(broken[0])}: the audit refutes the guarantee."
    made = [one for one in verdict.claims if _is_against(one.claim.attacker(), against)]
    if not made and not any(math.isfinite(row.high) for row in rows):
        return "unable", 'Nothing is claimed: audit the run with a claim, "10@1e-5 server round".'
    if untested := [one for one in made if not one.is_testable]:
        return "unable", f"{claim_sentence(untested[0].claim)} {refutation(untested[0])}"
    if not made:
        return "passed", f"No guarantee is refuted ({_attackers(rows)})."
    return "passed", "No claim is refuted, and each could have been; this confirms none."


def _is_against(model: ThreatModel, against: str | None) -> bool:
    return against in (None, model.observer, attacker_name(model))


def _shown(verdict: Verdict, limit: float, against: str | None) -> tuple[Outcome, str]:
    """Return whether some ε above the limit is proven, or could have been.

    A row counts as settled if its audit could have shown more than the limit, or if a theorem rules
    more out. One of them must have been tested: a guarantee alone is another limit's question.
    """
    rows = _selected(verdict, against)
    shown = [(row.low, row, row.shown) for row in rows if row.shown is not None and row.low > 0]
    low, worst, bound = max(shown, key=lambda one: one[0], default=(0.0, None, None))
    if worst is not None and bound is not None and low > limit:
        said = f"{_of(worst)}: ε ≥ {_above(limit, bound)} is proven{_trust(verdict)}"
        return "exceeded", f"{said}, above {limit:g}."
    if (reason := _untested(verdict, rows, limit, against)) is not None:
        return "unable", reason
    proven = "" if bound is None else f"; {amount(bound)} is"
    return "passed", f"No ε above {limit:g} is proven{proven} ({_attackers(rows)})."


def _untested(
    verdict: Verdict, rows: Sequence[Row], limit: float, against: str | None
) -> str | None:
    """Return why the audit could not have shown more than the limit; None if it could."""
    if not rows:
        return _absent(verdict, against)
    tested = [row for row in rows if _most(row, verdict) > limit]
    if not tested:
        most = number(max(_most(row, verdict) for row in rows), kind="lower_bound")
        return (
            f"No audit {_attackers(rows)} could have shown more than ε = {most}, so {limit:g} was "
            "not tested. Audit with more trials or canaries, or set a smaller limit."
        )
    lost = _refuted(verdict)  # rules nothing out
    left = [row for row in rows if row not in tested and (row.high > limit or row.at_most in lost)]
    if not left:
        return None
    return (
        f"{_named(left)}: no audit could have shown more than {limit:g}, and nothing smaller is "
        "guaranteed. Give the audit more trials, or name the attacker that you mean, such as "
        f"{attacker_name(tested[0].attacker)}."
    )


def _most(row: Row, verdict: Verdict) -> float:
    """Return the largest ε that audits of this attacker, or of a stronger one, could have shown.

    Not `row.cap`: an audit of a weaker attacker that shows nothing says nothing about this one.
    An audit that does not state its cap is not known to be able to show anything.
    """
    return max(
        (
            finding.cap
            for other in verdict.rows
            if is_weaker(row.attacker, other.attacker)
            and row.question.is_implied_by(other.question)
            for finding in other.findings
            if finding.kind == "lower_bound"
            and not finding.is_conditional
            and finding.cap is not None
            and (finding.delta or 0.0) >= (verdict.delta or 0.0)
        ),
        default=0.0,
    )


def _guaranteed(verdict: Verdict, limit: float, against: str | None) -> tuple[Outcome, str]:
    rows, lost = _selected(verdict, against), _refuted(verdict)
    if not rows:
        return "unable", _absent(verdict, against)
    if broken := [row for row in rows if row.at_most in lost]:
        said = f"{_of(broken[0])}: the audit refutes the guarantee, so none is left"
        return "exceeded", f"{said}; {limit:g} is asked for."
    worst = max(rows, key=lambda row: row.high)
    if worst.at_most is None or math.isinf(worst.high):
        none = [row for row in rows if math.isinf(row.high)]
        return "exceeded", f"{_named(none)}: nothing is guaranteed, {limit:g} is asked for."
    if worst.high > limit:
        given = f"ε ≤ {_above(limit, worst.at_most)}"
        return "exceeded", f"{_of(worst)}: only {given} is guaranteed, {limit:g} is asked for."
    given = f"{amount(worst.at_most)} is guaranteed{given_that(worst.at_most)}"
    return "passed", f"{given}; {limit:g} is asked for ({_attackers(rows)})."


def _reconstruction(verdict: Verdict) -> tuple[Outcome, str]:
    played = [f for f in verdict.tests if f.quantity in REBUILT]
    if found := [f for f in played if is_rebuilt(f)]:
        most = max(found, key=lambda f: f.value)
        data = counted(int(most.value), REBUILT[most.quantity])
        recovered = f"At least {data} recovered beyond chance"
        return "exceeded", f"{recovered}{_trust(verdict)} by: {who(most.threat_model)}."
    # A test that cannot find anything, or holds under a condition only, shows nothing.
    if not any(not f.is_conditional and f.cap != 0 for f in played):
        return "unable", "No reconstruction test was played that could tell: add inversion."
    return "passed", "No data were recovered beyond chance."


def _accuracy(verdict: Verdict, limit: float) -> tuple[Outcome, str]:
    if verdict.accuracy is None:
        return "unable", "Nobody measured the model's accuracy: evaluate it in the last round."
    found, is_kept = verdict.accuracy, verdict.accuracy >= limit
    words = share(found) if share(found) != share(limit) or found == limit else repr(found)
    said = f"The model's accuracy is {words}; at least {limit:g} is asked for."
    return "passed" if is_kept else "exceeded", said


def _selected(verdict: Verdict, against: str | None) -> list[Row]:
    return [row for row in verdict.rows if _is_against(row.attacker, against)]


def _absent(verdict: Verdict, against: str | None) -> str:
    """Return that the run says nothing about an attacker, and about whom it does."""
    if against is None or not verdict.rows:
        return "The run says nothing about any attacker: no audit has a result."
    known = ", ".join(sorted({attacker_name(row.attacker) for row in verdict.rows}))
    return f"The run says nothing about {against}. It has {known}."


def _refuted(verdict: Verdict) -> list[Finding]:
    """Return the guarantees that a lower bound contradicts; they are worth nothing to any row."""
    return [row.at_most for row in verdict.rows if row.at_most is not None and row.low > row.high]


def _trust(verdict: Verdict) -> str:
    return f" ({percent(verdict.confidence)} confidence)" if verdict.confidence else ""


def _of(row: Row) -> str:
    return f"{who(row.attacker)} ({tells(row)})"


def _named(rows: Sequence[Row]) -> str:
    """Return rows in words, the first few."""
    names = list(dict.fromkeys(_of(row) for row in rows))
    more = f"; {counted(len(names) - _MAX_NAMED, 'more row')}" if len(names) > _MAX_NAMED else ""
    return "; ".join(names[:_MAX_NAMED]) + more


def _attackers(rows: Sequence[Row]) -> str:
    """Return against whom, such as "against outsider/all-models, server/round-sum"."""
    return f"against {', '.join(sorted({attacker_name(row.attacker) for row in rows}))}"


def _above(limit: float, finding: Finding) -> str:
    """Return a value as it is printed elsewhere, or with digits that show it above the limit."""
    for digits in range(digits_of(finding.value), _MAX_DIGITS):
        text = number(finding.value, digits, finding.kind)
        if text != number(limit, digits):
            return text
    return repr(finding.value)


def _require_number(name: str, value: object, most: float, allowed: str) -> None:
    """Raise unless a limit is None or a number in its range; True and False are no numbers."""
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most or math.isinf(value):  # type: ignore[operator,arg-type]
        raise BadValueError(name, allowed, value, hint=f"; for example {_EXAMPLES[name]}")


@dataclass(frozen=True)
class Gate:
    """A run, its limits, and what came of each.

    Attributes:
        name: What the run is called.
        folder: Where it is; None if it is not kept.
        verdict: On the run.
        limits: What it must keep.
        checks: What came of each limit.
    """

    name: str
    folder: Path | None
    verdict: Verdict
    limits: GateLimits
    checks: tuple[Check, ...]

    @classmethod
    def of(cls, result: AuditResult, limits: GateLimits) -> Gate:
        """Return what came of the limits of a run.

        Raises:
            ValueError: Nothing is asked for.
        """
        name = "run" if result.folder is None else result.folder.name
        checks = tuple(check(result, limits))
        return cls(name, result.folder, result.verdict, limits, checks)

    @property
    def outcome(self) -> Outcome:
        """What came of all limits together."""
        return outcome(self.checks)

    @property
    def code(self) -> int:
        """What a process ends with."""
        return EXIT_CODES[self.outcome]


def lines(gate: Gate) -> list[str]:
    """Return what came of a gate for a terminal: first the answer, then each limit."""
    said = [(_HEAD, f"{SAID[gate.outcome]} (exit code {gate.code}; {terms(gate)})")]
    said += [("  ", f"{one.outcome:<9} {one.name}: {one.text}") for one in gate.checks]
    return [
        line
        for head, text in said
        for line in wrap(
            text,
            _WIDTH,
            initial_indent=head,
            subsequent_indent=" " * 12 if head.isspace() else " " * len(head),
            break_on_hyphens=False,
        )
    ]


def terms(gate: Gate) -> str:
    """Return what every ε of a gate depends on, in words."""
    against = "" if gate.limits.against is None else f", against {gate.limits.against}"
    # A reconstruction has no δ, and a run of such tests alone no ε.
    at = f"ε at {delta(gate.verdict)}" if gate.verdict.rows else "no attacker has an ε"
    return at + against
