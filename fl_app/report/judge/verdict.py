"""A verdict for each adversary in plain words, never stronger than its findings allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.wording import (
    capital,
    claim,
    counted,
    is_epsilon,
    number,
    percent,
    terms,
)
from leakmeter.fl_app.report.judge.adversary import (
    Adversary,
    by_adversary,
    covers,
    leading,
    unsaid_bounds,
)
from leakmeter.fl_app.report.read.run import Run

# leak: proven with confidence; hint: beyond its null band; model: what a model says; none: looked
# and shown nothing; bounded: an upper bound; open: no guarantee; silent: no number.
Level = Literal["leak", "hint", "model", "none", "bounded", "open", "silent"]

# What asks for something to be done comes first.
BADGES: dict[Level, str] = {
    "leak": "leak shown",
    "hint": "leak suggested",
    "none": "no leak shown",
    "open": "no guarantee",
    "model": "by a model only",
    "bounded": "bounded from above",
    "silent": "nothing to say",
}
_STAKES = {
    ("client", "zero-out"): "whether a client sent its update or nothing",
    ("client", "add-remove"): "whether a client took part",
    ("client", "honest-seat"): "whether a canary stood in a client's place",
    ("client", "replace"): "which of two updates a client sent",
    ("record", "zero-out"): "whether a record was used",
    ("record", "add-remove"): "whether a record was used",
    ("record", "replace"): "which of two records a client held",
}
_NOT_PRIVATE = (
    "This is not a proof of privacy: another adversary, or more samples, may show a leak."
)


@dataclass(frozen=True)
class Verdict:
    """What the run says of one adversary.

    Attributes:
        findings: All that speak of this adversary, first come first.
        lead: The one that the headline is about.
        level: How strong the statement is.
        headline: The statement.
        found: What was found, in words.
        sure: How sure that is.
    """

    findings: tuple[Finding, ...]
    lead: Finding
    level: Level
    headline: str
    found: tuple[str, ...]
    sure: tuple[str, ...]

    @property
    def who(self) -> str:
        """The adversary."""
        words = self.findings[0].threat_model.split(" (game ")[0]
        if words.startswith(("learns ", "sees ")):  # some say only what it does
            words = f"{self.findings[0].observer} who {words}"
        return capital(words)

    @property
    def game(self) -> str | None:
        """What is played anew in each trial, where the threat model says so."""
        _, found, rest = self.findings[0].threat_model.partition(" (game ")
        return rest.removesuffix(")") if found else None

    @property
    def key(self) -> Adversary:
        """What tells this adversary from others."""
        first = self.findings[0]
        return first.threat_model, first.adjacency, first.unit


def stake(finding: Finding) -> str | None:
    """Return what the two worlds of a finding differ in, as a question half."""
    return _STAKES.get((finding.unit, finding.adjacency or ""))


def verdicts(run: Run) -> list[Verdict]:
    """Return one verdict an adversary; of an unfinished run, what its last audited round shows."""
    found = run.of_the_run
    if not run.is_finished and run.findings:
        last = max(f.server_round or 0 for f in run.findings)
        found = tuple(f for f in run.findings if f.server_round == last)
    found = tuple(f for f in found if f not in run.limitations)
    made = [_verdict(tuple(group)) for group in by_adversary(found).values()]
    return sorted(made, key=lambda v: list(BADGES).index(v.level))


def leads(findings: Sequence[Finding]) -> list[Finding]:
    """Return the numbers to show first, lower bounds before the rest."""
    return leading(sorted(findings, key=lambda f: f.kind != "lower_bound"))


def contradictions(run: Run) -> list[str]:
    """Return what cannot be: lower bounds above a guarantee for the same adversary."""
    found = []
    for bound in run.of_the_run:
        for upper in run.of_the_run:
            too_much = bound.kind == "lower_bound" and bound.value > upper.value
            if too_much and covers(upper, bound) and (upper.delta or 0) <= (bound.delta or 0):
                found.append(
                    f"{capital(bound.auditor)} shows {claim(bound)}{terms(bound)}, above the "
                    f"guarantee {claim(upper)}{terms(upper)}. Unless it is one of the "
                    f"{number(100 - 100 * (bound.confidence or 0))} % of bounds that miss, an "
                    "assumption of one of them does not hold."
                )
    return found


def _verdict(findings: tuple[Finding, ...]) -> Verdict:
    level, lead = _level(leads(findings))
    if lead is None:
        rules = tuple(dict.fromkeys(capital(f.rule) + "." for f in findings))
        words = "No number could be given"
        return Verdict(findings, findings[0], "silent", words, rules, ())
    return Verdict(findings, lead, level, _headline(level, lead), _found(findings), _sure(findings))


def _level(found: Sequence[Finding]) -> tuple[Level, Finding | None]:
    """Return the strongest level and the finding behind it."""
    bounds = [f for f in found if f.kind == "lower_bound"]
    if shown := [f for f in bounds if f.value > 0]:
        return "leak", shown[0]
    measured = [f for f in found if f.kind == "estimate"]
    if beyond := [f for f in measured if _is_beyond(f)]:
        return "hint", beyond[0]
    if bounds or measured:
        return "none", (bounds or measured)[0]
    if modelled := [f for f in found if f.kind == "approximation"]:
        return "model", modelled[0]
    if proven := [f for f in found if f.kind == "guarantee"]:
        return ("bounded" if math.isfinite(proven[0].value) else "open"), proven[0]
    return "silent", None


def _is_beyond(finding: Finding) -> bool:
    """Whether an estimate is more than the same method says without a leak."""
    return finding.null_band is not None and finding.value > finding.null_band[1]


def _headline(level: Level, lead: Finding) -> str:
    what = stake(lead) or "something about a client's update"
    match level:
        case "leak":
            return f"Gives away {what}: {claim(lead)}"
        case "hint":
            return f"Seems to give away {what}: {claim(lead)}"
        case "none":
            return f"No leak shown: {claim(lead)}"
        case "model" if lead.quantity == "mutual information in bits":
            return f"By a Gaussian model, about {number(lead.value, 3)} bits of a client's update"
        case "model":
            return f"A model says {claim(lead)}"
        case "bounded":
            return capital(claim(lead)) + ("" if not is_epsilon(lead) else ", guaranteed")
        case _:
            return capital(claim(lead))


def _found(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return each leading number with what it means."""
    found = leads(findings)
    alike = [f.kind for f in found if is_epsilon(f)]
    sentences = []
    for f in found:
        how = f" ({f.rule})" if alike.count(f.kind) > 1 else ""  # else two would look the same
        sentences.append(f"{capital(claim(f))}{terms(f)}{how}. {_meaning(f)}".strip())
    if extra := unsaid_bounds(findings):
        sentences.append(
            f"{counted(extra, 'more lower bound')} by other methods: see the table. The largest of "
            "several has less confidence than each by itself."
        )
    return tuple(sentences)


def _meaning(finding: Finding) -> str:
    """Return what a number says, at most as strongly as its kind allows."""
    match finding.kind:
        case "lower_bound" if not is_epsilon(finding):
            return ""
        case "lower_bound" if finding.value > 0:
            return (
                f"Some outcome is at least {_times(finding)} times as likely in one world as in "
                "the other."
            )
        case "lower_bound":
            apart = "The trials tell the two worlds apart no better than chance allows."
            return f"{apart} {_reach(finding)}"
        case "estimate" if finding.null_band is not None:
            low, high = (number(x, 3) for x in finding.null_band)
            where = "beyond" if _is_beyond(finding) else "within"
            return f"Without any leak the same method says {low} to {high}: this is {where} it."
        case "estimate":
            return "No null band was computed: what the method says without a leak is not known."
        case "approximation":
            return "A model of the sum says so; it is neither an upper nor a lower bound."
        case "guarantee" if not is_epsilon(finding):
            return f"{capital(finding.rule)}. It does not bound what the sum itself gives away."
        case "guarantee" if math.isinf(finding.value):
            return f"{capital(finding.rule)}."
        case _:
            return (
                f"No outcome is more than {_times(finding)} times as likely in one world as in "
                "the other, but for a chance of δ, if the assumptions hold."
            )


def _times(finding: Finding) -> str:
    """Return e^ε in words."""
    if finding.value <= math.log(1e6):
        return number(math.exp(finding.value), 3, finding.kind)
    if finding.kind == "lower_bound":
        return "a million"
    return f"e^{number(finding.value, 3, finding.kind)}"


def _reach(finding: Finding) -> str:
    """Return how far a lower bound could have gone."""
    if finding.cap is None:
        return ""
    if finding.saturated:
        return (
            f"It is saturated: with these samples no more than {number(finding.cap, 3)} could have "
            "been shown, so the truth may be far above."
        )
    return f"With these samples {number(finding.cap, 3)} could have been shown at most."


def _sure(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return how far the leading numbers can be trusted."""
    found = leads(findings)
    sentences: list[str] = []
    for f in found:
        if f.kind == "lower_bound" and f.confidence is not None:
            miss = percent(1 - f.confidence)
            reach = _reach(f) if f.value > 0 else ""
            sentences.append(
                f"The lower bound is too large in at most {miss} of such audits, assuming that "
                f"{_leaning(f)}. {reach}".strip()
            )
    if any(f.kind == "estimate" for f in found):
        sentences.append("Estimates carry no confidence; what they lean on is in the table.")
    if any(f.kind == "approximation" for f in found):
        sentences.append("An approximation may be off on either side.")
    for f in found:
        if f.kind == "guarantee" and math.isfinite(f.value):
            leaning = f"assumes that {_leaning(f)}" if f.assumptions else "holds as it stands"
            sentences.append(f"The guarantee is proven and {leaning}.")
    if all(not _shows(f) for f in found if f.kind in ("lower_bound", "estimate")) and any(
        f.kind in ("lower_bound", "estimate") for f in found
    ):
        sentences.append(_NOT_PRIVATE)
    return tuple(dict.fromkeys(sentences))


def _shows(finding: Finding) -> bool:
    return _is_beyond(finding) if finding.kind == "estimate" else finding.value > 0


def _leaning(finding: Finding) -> str:
    """Return the first assumption, and how many more there are."""
    if not finding.assumptions:
        return "nothing beyond the game itself"
    more = len(finding.assumptions) - 1
    return finding.assumptions[0] + (f" ({more} more in the table)" if more else "")
