"""The attackers of a run, worst first, and the one sentence that says how bad it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from leakmeter.auditors.finding import Finding, RunWarning
from leakmeter.auditors.judge import terse
from leakmeter.auditors.judge.adversary import is_promise
from leakmeter.auditors.judge.meaning import draws_of
from leakmeter.auditors.judge.verdict import Verdict, is_distorted
from leakmeter.auditors.wording import (
    CERTAIN,
    capital,
    claim,
    condition,
    counted,
    is_certain,
    is_epsilon,
    remark,
    sureness,
    terms,
)

# What a proven bound implies: practically certain (ε above 20), at least 90 % sure, at least 60 %,
# less. Then what is suspected, what could not be shown, and what says nothing about an attacker.
Severity = Literal[
    "certain",
    "severe",
    "clear",
    "slight",
    "suspected",
    "unbounded",
    "model",
    "unable",
    "none",
    "bounded",
    "observed",
    "protocol",
]
SEVERITIES: Final[dict[Severity, str]] = {
    "certain": "practically certain",
    "severe": "severe leak",
    "clear": "clear leak",
    "slight": "slight leak",
    "suspected": "leak suspected",
    "unbounded": "no useful guarantee",
    "model": "model only",
    "unable": "cannot be shown here",
    "none": "no leak shown",
    "bounded": "bounded from above",
    "observed": "observed only",
    "protocol": "protocol",
}
_SEVERE, _CLEAR = math.log(9), math.log(1.5)  # the attacker is 90 % and 60 % sure
_NOT_EVIDENCE: Final = "This is not evidence of privacy"


@dataclass(frozen=True)
class Standing:
    """One attacker in a line.

    Attributes:
        verdict: All that is known about it.
        severity: What the strongest number implies.
        who: The attacker.
        tells: What it can tell.
        shown: At least this much; "nothing" where the audit proves nothing, "not audited" where
            there was none.
        at_most: What is guaranteed; "no bound" where nothing is.
        evidence: How strong the evidence is.
    """

    verdict: Verdict
    severity: Severity
    who: str
    tells: str
    shown: str
    at_most: str
    evidence: str

    @property
    def lead(self) -> Finding:
        """The finding behind the line."""
        return self.verdict.lead

    @property
    def upper(self) -> Finding | None:
        """The guarantee that the line may be set against."""
        if is_promise(self.lead):
            return self.lead
        return self.verdict.group.above(self.lead) or _smallest(self.verdict.group.guarantees)

    @property
    def is_statement(self) -> bool:
        """Whether it is about the protocol, and about no attacker's success."""
        return self.severity in ("protocol", "observed")


def standings(made: Sequence[Verdict]) -> list[Standing]:
    """Return a line for each verdict, the worst first."""
    lines = [_standing(verdict) for verdict in made]
    return sorted(lines, key=lambda one: (_rank(one.severity), -_size(one.lead)))


def headline(lines: Sequence[Standing], warnings: Iterable[RunWarning] = ()) -> str:
    """Return the verdict on a run in one sentence, never stronger than its evidence."""
    said = _worst(lines)
    if is_distorted(warnings):
        return f"The run is distorted, so its numbers say little about a sound one. {said}"
    return said


def upper_bound(findings: Sequence[Finding], *, adds_noise: bool | None = None) -> str:
    """Return what is guaranteed for the run, or that nothing is.

    Args:
        findings: Of the run.
        adds_noise: Whether the run adds noise; None where nobody knows.
    """
    best = smallest_promise(findings)
    if best is not None:
        more = f" ({words})" if (words := remark(best)) else ""
        who = terse.who(best.threat_model)
        return (
            f"Upper bound: {terse.amount(best)}{terms(best)} for a {best.unit}{more}, guaranteed "
            f"against: {who}."
        )
    if promises := [f for f in findings if is_promise(f) and f.server_round is None]:
        return f"No upper bound: {_unpunctuated(promises[0].rule)}."
    if adds_noise is False:
        return "No upper bound: this run adds no noise."
    return "No upper bound: no noise is accounted for."


def smallest_promise(findings: Iterable[Finding]) -> Finding | None:
    """Return the smallest ε that is guaranteed for the run, whatever the attacker; None without."""
    promises = (f for f in findings if is_promise(f) and f.server_round is None)
    return _smallest([f for f in promises if math.isfinite(f.value)])


def _standing(verdict: Verdict) -> Standing:
    lead, severity = verdict.lead, _severity(verdict)
    shown, evidence = _shown(verdict)
    line = Standing(
        verdict, severity, terse.who(lead.threat_model), terse.tells(lead), shown, "", evidence
    )
    upper = line.upper
    at_most = "no bound" if upper is None else terse.amount(upper)
    if severity in ("protocol", "observed"):
        at_most = "–"
    return Standing(verdict, severity, line.who, line.tells, shown, at_most, evidence)


def _severity(verdict: Verdict) -> Severity:
    match verdict.level:
        case "leak":
            return _implied(verdict.lead)
        case "seen":
            return "certain"
        case "conditional" | "hint":
            return "suspected"
        case "unable" | "none" | "model" | "bounded":
            return verdict.level
        case "open":
            return "unbounded"
        case "count":
            return "protocol"
        case "silent":
            return "observed"


def _implied(bound: Finding) -> Severity:
    """Return what a proven lower bound implies."""
    if not is_epsilon(bound):
        return "clear"
    if bound.value > CERTAIN:
        return "certain"
    return "severe" if bound.value >= _SEVERE else "clear" if bound.value >= _CLEAR else "slight"


def _shown(verdict: Verdict) -> tuple[str, str]:
    """Return what was shown, and how strong the evidence is."""
    lead = verdict.lead
    match verdict.level:
        case "leak":
            return terse.amount(lead), f"proven {terse.trust(lead)}"
        case "seen":
            return "every draw", "observed"
        case "conditional":
            return "see details", "conditional"  # no such number without its condition
        case "hint":
            return terse.amount(lead), "estimate"
        case "model":
            return terse.amount(lead), "model only"
        case "unable":
            return "nothing", "cannot show"
        case "none":
            return "nothing", "not shown"
        case "count":
            return f"at least {terse.amount(lead)}", "protocol"
        case "silent":
            return "–", "observed"
        case _:
            return "not audited", "theorem" if math.isfinite(lead.value) else "–"


def _rank(severity: Severity) -> int:
    return list(SEVERITIES).index(severity)


def _size(lead: Finding) -> float:
    """Return what sorts lines of one severity: an ε first, the larger the worse."""
    return lead.value if is_epsilon(lead) and math.isfinite(lead.value) else -1.0


def _smallest(promises: Sequence[Finding]) -> Finding | None:
    return min(promises, key=lambda f: f.value, default=None)


def _worst(lines: Sequence[Standing]) -> str:
    """Return the sentence about the worst attacker."""
    measured = [one for one in lines if not one.is_statement]
    if not measured:
        return f"The audit has no result. {_NOT_EVIDENCE}."
    worst = measured[0]
    lead, attacker = worst.lead, terse.subject(worst.lead.threat_model)
    about = terse.question(lead)
    match worst.severity:
        case "certain" if worst.verdict.level == "seen":
            return f"{attacker} could tell {about} in {draws_of(lead)}."
        case "certain":
            return f"{attacker} can be practically certain {about} ({terse.amount(lead)})."
        case "severe" | "clear" | "slight" if is_epsilon(lead):
            sure = sureness(lead.value)
            return f"{attacker} can be at least {sure} sure {about} ({_both(worst)})."
        case "severe" | "clear" | "slight":
            return f"{attacker} learns at least {terse.amount(lead)}: {lead.quantity}."
        case "suspected" if lead.is_conditional:
            return (
                f"A leak is shown under a condition only: {condition(lead)}, "
                f"{_lowered(attacker)} can tell {about} ({terse.amount(lead)})."
            )
        case "suspected":
            return (
                f"A leak is suspected, not proven: {_lowered(attacker)} may tell "
                f"{_suspected(lead)} ({terse.amount(lead)})."
            )
        case "none" | "unable":
            return _nothing_shown(measured)
        case "model":
            return (
                f"No leak is proven. According to a model, {_lowered(attacker)} learns "
                f"{terse.amount(lead)} of a client's update."
            )
        case "bounded":
            return (
                f"{capital(claim(lead))}{terms(lead)} is guaranteed for a {lead.unit} against "
                f"{_lowered(attacker)}; no audit measured it."
            )
        case _:
            return _nothing_guaranteed(worst, measured)


def _suspected(lead: Finding) -> str:
    return terse.question(lead) if lead.adjacency else "something about a client's update"


def _both(worst: Standing) -> str:
    """Return what is shown and, if there is one, what is guaranteed."""
    upper = worst.upper
    if upper is None or math.isinf(upper.value):
        return f"{terse.amount(worst.lead)}, no upper bound"
    doubt = ", which promises practically nothing" if is_certain(upper) else ""
    return f"{terse.amount(worst.lead)} shown, {terse.amount(upper)} guaranteed{doubt}"


def _nothing_guaranteed(worst: Standing, measured: Sequence[Standing]) -> str:
    """Return whom no useful guarantee is against, and whom one is against."""
    who = _lowered(terse.subject(worst.lead.threat_model))
    large = f" ({terse.amount(worst.lead)})" if math.isfinite(worst.lead.value) else ""
    uppers = [one.upper for one in measured if one.upper is not None]
    best = _smallest([f for f in uppers if math.isfinite(f.value) and not is_certain(f)])
    said = f"Nothing useful is guaranteed against {who}{large}"
    if best is None:
        return f"{said}."
    return f"{said}; {terse.amount(best)} is guaranteed against: {terse.who(best.threat_model)}."


def _nothing_shown(measured: Sequence[Standing]) -> str:
    """Return that no audit showed a leak, which proves nothing, and what is guaranteed."""
    tried = counted(sum(one.severity in ("none", "unable") for one in measured), "attacker")
    uppers = [one.upper for one in measured if one.upper is not None]
    finite = [f for f in uppers if math.isfinite(f.value)]
    if not finite:
        return f"No leak shown ({tried}). {_NOT_EVIDENCE}: nothing is guaranteed."
    best = min(finite, key=lambda f: f.value)
    return (
        f"No leak shown ({tried}); {terse.amount(best)}{terms(best)} is guaranteed against: "
        f"{terse.who(best.threat_model)}."
    )


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _unpunctuated(text: str) -> str:
    return text.rstrip(".")


def sure_words(finding: Finding) -> str:
    """Return how sure a proven ε makes the attacker, for a label; "" for other findings."""
    is_shown = finding.kind == "lower_bound" and finding.value > 0
    if not is_epsilon(finding) or not is_shown or finding.is_conditional:
        return ""
    if finding.value > CERTAIN:
        return "practically certain"
    return f"at least {sureness(finding.value)} sure"
