"""What the numbers of one row mean in words, at most as strongly as their kinds allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from leakmeter.auditors.assumptions import conditions, sentence_of
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.verdict.labels import amount, who
from leakmeter.auditors.verdict.order import is_same
from leakmeter.auditors.verdict.verdict import Block, Row, Verdict
from leakmeter.auditors.wording import (
    INFORMATION,
    OBSERVED,
    capital,
    claim,
    counted,
    evidence,
    is_certain,
    is_epsilon,
    null_band,
    number,
    observation,
    percent,
    remarked,
    sentence,
    signed,
    size,
    sureness,
    terms,
    value,
)

# What leads: a bound before what is merely estimated, and that before what is promised.
_ORDER = ("lower_bound", "estimate", "approximation", "guarantee", "diagnostic")
_NOT_PRIVATE = "This is not a proof of privacy: another attacker, or more samples, may show a leak."


def ends(row: Row) -> str:
    """Return what is shown and what is guaranteed against one attacker."""
    shown = "nothing" if row.low <= 0 or row.shown is None else remarked(row.shown)
    if row.at_most is None or math.isinf(row.high):
        return f"{shown} shown, nothing guaranteed"
    wrong = ": an assumption of one of them does not hold" if row.low > row.high else ""
    return f"{shown} shown … {remarked(row.at_most)} guaranteed{wrong}"


def leading(findings: Iterable[Finding]) -> list[Finding]:
    """Return the numbers to show first: one bound per auditor, then all but diagnostics.

    Of an auditor's lower bounds the first that needs no condition, in the order in which it lists
    them.
    """
    ordered = sorted(findings, key=lambda f: (_ORDER.index(f.kind), f.is_conditional))
    bounded: set[str] = set()
    kept = []
    for f in ordered:
        if f.kind == "diagnostic" or (f.kind == "lower_bound" and f.auditor in bounded):
            continue
        if f.kind == "lower_bound":
            bounded.add(f.auditor)
        kept.append(f)
    return kept


def unsaid_bounds(part: Row | Block) -> str:
    """Return how many lower bounds `told` leaves to the table, in words; empty if none."""
    said = told(part)
    left = [f for f in part.findings if f.kind == "lower_bound" and f not in said]
    conditional = sum(f.is_conditional for f in left)
    counts = ((len(left) - conditional, "by other methods"), (conditional, "under conditions"))
    words = [f"{counted(count, 'more lower bound')} {how}" for count, how in counts if count]
    return " and ".join(words)


def told(part: Row | Block) -> list[Finding]:
    """Return the numbers that are told about a row, its two ends among them."""
    own = leading(part.findings)
    taken = [part.shown, part.at_most] if isinstance(part, Row) else []
    return own + [f for f in taken if f is not None and f not in own and _says(f)]


def _says(finding: Finding) -> bool:
    """Whether a number from another row says anything here."""
    return finding.value > 0 if finding.kind == "lower_bound" else math.isfinite(finding.value)


def parts(verdict: Verdict) -> list[Row | Block]:
    """Return all that is told of, without blocks of mere remarks on the attacker of a row."""

    def is_aside(block: Block) -> bool:
        says = told(block) or observations(block) or certainties(block)
        return not says and any(is_same(row.attacker, block.attacker) for row in verdict.rows)

    return [*verdict.rows, *(block for block in verdict.others if not is_aside(block))]


def found(part: Row | Block) -> tuple[str, ...]:
    """Return each leading number and each guarantee with what it means."""
    shown = told(part)
    alike = [(f.quantity, f.kind) for f in shown]
    sentences = []
    for f in shown:
        # Two of one kind would look the same without their rule.
        how = f" ({f.rule})" if alike.count((f.quantity, f.kind)) > 1 else ""
        how = how if f in part.findings else f" (shown for: {who(f.threat_model)})"
        about = f", {words}" if (words := size(f)) else ""
        rests = f" {sentence(words)}" if (words := evidence(f)) else ""
        meant = f"{_meaning(f)}{rests}".strip()
        sentences.append(f"{capital(claim(f))}{terms(f)}{about}{how}. {meant}".strip())
    sentences = [*(sentence(f.rule) for f in certainties(part)), *sentences, *surprises(part)]
    sentences += [sentence(observation(f)) for f in observations(part)]
    if extra := unsaid_bounds(part):
        sentences.append(f"{extra}: see the table.")
    # Where there is no number, say why.
    why = dict.fromkeys(sentence(observation(f)) for f in part.findings)
    return tuple(sentences or why)


def certainties(part: Row | Block) -> list[Finding]:
    """Return what separated the two worlds in every draw; no bound on ε, but no mere remark."""
    return [f for f in part.findings if f.quantity == "certain separation" and f.value > 0]


def observations(part: Row | Block) -> list[Finding]:
    """Return diagnostics whose number is worth printing next to bounds and estimates."""
    return [f for f in part.findings if f.kind == "diagnostic" and f.quantity in OBSERVED]


def surprises(part: Row | Block) -> Iterator[str]:
    """Yield numbers that do not fit: an estimate below a proven bound, or above a guarantee."""
    for f in part.findings:
        if f.kind != "estimate" or not isinstance(part, Row):
            continue
        own = [b for b in part.findings if b.kind == "lower_bound" and b.auditor == f.auditor]
        bound = next((b for b in leading(own) if b.value > f.value and value(b) != value(f)), None)
        if bound is not None and f.delta == bound.delta:
            taken = [a for a in f.assumptions if a not in bound.assumptions]
            why = f" The estimate alone assumes that {sentence_of(taken[0])}." if taken else ""
            yield (
                f"The lower bound {signed(bound)} is above the estimate {signed(f)}: the two "
                f"methods differ.{why}"
            )
    if isinstance(part, Row) and (words := too_high(part)):
        yield words


def too_high(row: Row) -> str:
    """Return how many estimates are above what is guaranteed; empty if none is."""
    above = [f for f in row.findings if f.kind == "estimate" and f.value > row.high]
    if row.at_most is None or not above:
        return ""
    largest = max(above, key=lambda f: f.value)
    many = "" if len(above) == 1 else f", the largest of {len(above)},"
    return (
        f"The estimate {signed(largest)}{many} is above the guarantee {amount(row.at_most)}, which "
        "is proven: it is too high."
    )


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


def sure(part: Row | Block) -> tuple[str, ...]:
    """Return how far the leading numbers can be trusted."""
    shown = told(part)
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
    if measured and not any(f.value > 0 for f in measured if f.kind == "lower_bound"):
        sentences.append(_NOT_PRIVATE)
    return tuple(dict.fromkeys(sentences))


def _leaning(finding: Finding) -> str:
    """Return the assumption that matters most, and how many more there are."""
    if not finding.assumptions:
        return "the game was played as described"
    names: Sequence[str] = conditions(finding.assumptions) or finding.assumptions
    more = len(finding.assumptions) - 1
    return sentence_of(names[0]).rstrip(".") + (f" ({more} more in the table)" if more else "")
