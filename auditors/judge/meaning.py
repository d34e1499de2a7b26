"""What the numbers about one attacker mean in words, at most as strongly as their kinds allow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from leakmeter.auditors.assumptions import conditions, sentence_of
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.judge.adversary import Group, unsaid_bounds
from leakmeter.auditors.wording import (
    INFORMATION,
    OBSERVED,
    capital,
    claim,
    evidence,
    is_certain,
    is_epsilon,
    null_band,
    number,
    observation,
    percent,
    sentence,
    signed,
    size,
    sureness,
    terms,
    value,
)

_STAKES = {
    ("client", "zero-out"): "whether a client sent its update or nothing",
    ("client", "add-remove"): "whether a client took part",
    ("client", "honest-seat"): "whether a canary took a client's place",
    ("client", "replace"): "which of two updates a client sent",
    ("record", "zero-out"): "whether a record was used",
    ("record", "add-remove"): "whether a record was used",
    ("record", "replace"): "which of two records a client held",
}
_NOT_PRIVATE = "This is not a proof of privacy: another attacker, or more samples, may show a leak."


def stake(finding: Finding) -> str | None:
    """Return what the two worlds of a finding differ in, as a question half."""
    return _STAKES.get((finding.unit, finding.adjacency or ""))


def found(group: Group) -> tuple[str, ...]:
    """Return each leading number and each guarantee with what it means."""
    shown = [*group.leads, *group.guarantees]
    alike = [(f.quantity, f.kind) for f in shown]
    sentences = []
    for f in shown:
        # Two of one kind would look the same without their rule.
        how = f" ({f.rule})" if alike.count((f.quantity, f.kind)) > 1 else ""
        about = f", {words}" if (words := size(f)) else ""
        rests = f" {sentence(words)}" if (words := evidence(f)) else ""
        meant = f"{_meaning(f)}{rests}".strip()
        sentences.append(f"{capital(claim(f))}{terms(f)}{about}{how}. {meant}".strip())
    sentences = [*(sentence(f.rule) for f in certainties(group)), *sentences, *surprises(group)]
    sentences += [sentence(observation(f)) for f in observations(group)]
    if extra := unsaid_bounds(group.findings):
        sentences.append(
            f"{extra}: see the table. The largest of several has less confidence than each "
            "one alone."
        )
    return tuple(sentences)


def certainties(group: Group) -> list[Finding]:
    """Return what separated the two worlds in every draw; no bound on ε, but no mere remark."""
    return [f for f in group.findings if f.quantity == "certain separation" and f.value > 0]


def observations(group: Group) -> list[Finding]:
    """Return diagnostics whose number is worth printing next to bounds and estimates."""
    return [f for f in group.findings if f.kind == "diagnostic" and f.quantity in OBSERVED]


def draws_of(finding: Finding) -> str:
    """Return how many draws agreed without an exception, and what follows."""
    names = ("draws", "confidence", "largest chance")
    draws, confidence, chance = (finding.facts.get(name) for name in names)
    if not (isinstance(draws, int) and isinstance(confidence, float) and isinstance(chance, float)):
        return "every draw"
    return (
        f"all {draws} draws: with {percent(confidence)} confidence, the chance of an exception is "
        f"at most {number(100 * chance, kind='guarantee')} %"
    )


def surprises(group: Group) -> Iterator[str]:
    """Yield why a lower bound is above the estimate of the same auditor, where it is printed so."""
    if group.adversary.model.sees is None:  # claims in prose are not compared
        return
    for bound in (f for f in group.leads if f.kind == "lower_bound"):
        for f in group.leads:
            same = (f.auditor, f.quantity, f.delta) == (bound.auditor, bound.quantity, bound.delta)
            is_above = bound.value > f.value and value(bound) != value(f)
            if f.kind == "estimate" and same and is_above:
                own = [a for a in f.assumptions if a not in bound.assumptions]
                why = f" The estimate alone assumes that {sentence_of(own[0])}." if own else ""
                yield (
                    f"The lower bound {signed(bound)} is above the estimate {signed(f)}: the two "
                    f"methods differ.{why}"
                )


def is_beyond(finding: Finding) -> bool:
    """Whether an estimate is more than the same method says without a leak."""
    return finding.null_band is not None and finding.value > finding.null_band[1]


def _meaning(finding: Finding) -> str:
    """Return what a number says, at most as strongly as its kind allows."""
    match finding.kind:
        case "lower_bound" if not is_epsilon(finding):
            return ""
        case "lower_bound" if finding.value > 0:
            return _posterior(finding)
        case "lower_bound":
            return f"This audit does not prove more than chance. {_reach(finding)}"
        case "estimate" if finding.null_band is not None:
            low, high = finding.null_band
            where = "above" if finding.value > high else "below" if finding.value < low else "in"
            return f"{capital(null_band(finding))}; this is {where} that range."
        case "estimate":
            return "No null band was computed: what the method says without a leak is not known."
        case "approximation":
            return "A model says so; it is neither an upper nor a lower bound."
        case "guarantee" if finding.quantity in INFORMATION:
            return "The information is at most that, if the assumptions hold."
        case "guarantee" if not is_epsilon(finding):
            return f"{sentence(finding.rule)} It does not bound what the sum itself reveals."
        case "guarantee" if math.isinf(finding.value):
            return sentence(finding.rule)
        case "guarantee" if is_certain(finding):
            return ""
        case _:
            times, slack = number(math.exp(finding.value), 3, finding.kind), finding.delta or 0
            more = f" + {number(slack, 3, 'guarantee')}" if slack else ""
            return (
                f"Whatever has chance q in one world has a chance of at most {times}·q{more} in "
                "the other, if the assumptions hold."
            )


def _posterior(bound: Finding) -> str:
    """Return how sure the attacker gets; with δ, only that such outcomes are not rarer than δ."""
    how = "practically certain" if is_certain(bound) else f"at least {sureness(bound.value)} sure"
    then = "Then, starting from 50:50," if bound.is_conditional else "Starting from 50:50,"
    rare = " In one of the two worlds their chance is above δ." if bound.delta else ""
    return f"{then} some outcomes make the attacker {how}.{rare}"


def _reach(finding: Finding) -> str:
    """Return how far a lower bound could have gone."""
    if finding.cap is None:
        return ""
    if finding.cap == 0:
        return "With this δ and these samples it cannot show anything, whatever leaks."
    if finding.saturated:
        return (
            f"It is saturated: these samples cannot show more than {number(finding.cap)}, so the "
            "truth may be far above."
        )
    return f"With these samples the audit can show at most {number(finding.cap)}."


def sure(group: Group) -> tuple[str, ...]:
    """Return how far the leading numbers can be trusted."""
    shown = [*group.leads, *group.guarantees]
    sentences: list[str] = []
    for f in shown:
        if f.kind == "lower_bound" and f.confidence is not None:
            miss = percent(1 - f.confidence)
            reach = _reach(f) if f.value > 0 else ""
            sentences.append(
                f"The lower bound is too large in at most {miss} of such audits, assuming that "
                f"{_leaning(f)}. {reach}".strip()
            )
    if any(f.kind == "estimate" for f in shown):
        sentences.append("Estimates carry no confidence; the table lists what they assume.")
    if any(f.kind == "approximation" for f in shown):
        sentences.append("An approximation may be off on either side.")
    for f in shown:
        if f.kind == "guarantee" and math.isfinite(f.value):
            leaning = f"assumes that {_leaning(f)}" if f.assumptions else "needs no assumptions"
            sentences.append(f"The guarantee is proven and {leaning}.")
    measured = [f for f in shown if f.kind in ("lower_bound", "estimate")]
    if measured and not any(_shows(f) for f in measured):
        sentences.append(_NOT_PRIVATE)
    return tuple(dict.fromkeys(sentences))


def _shows(finding: Finding) -> bool:
    return is_beyond(finding) if finding.kind == "estimate" else finding.value > 0


def _leaning(finding: Finding) -> str:
    """Return the assumption that matters most, and how many more there are."""
    if not finding.assumptions:
        return "the game was played as described"
    names: Sequence[str] = conditions(finding.assumptions) or finding.assumptions
    more = len(finding.assumptions) - 1
    return sentence_of(names[0]).rstrip(".") + (f" ({more} more in the table)" if more else "")
