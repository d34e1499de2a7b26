"""The verdict and its rows in sentences, at most as strong as the fields allow.

First what the numbers of one row mean, then the verdict: one sentence for everybody, one in the
words of data protection, and its ends. A lower bound is "at least", an adjective needs both ends,
and what holds under a condition is said with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.verdict.claim import (
    USER,
    Claim,
    ClaimResult,
    attacker,
    copies_of,
    is_same,
    times_of,
    unsized,
)
from leakmeter.auditors.verdict.labels import (
    NOT_YET,
    amount,
    at_most_cell,
    delivered_cell,
    exactly,
    proven_question,
    question,
    subject,
    sureness_cell,
    upper,
    who,
)
from leakmeter.auditors.verdict.verdict import Block, Row, Verdict, is_rebuilt, is_shown
from leakmeter.auditors.wording import (
    CERTAIN,
    INFORMATION,
    OBSERVED,
    OBSERVERS,
    at_most_sure,
    capital,
    claim,
    condition,
    conditions,
    counted,
    evidence,
    how_many,
    is_certain,
    is_epsilon,
    null_band,
    number,
    number_with_remark,
    observation,
    percent,
    sentence,
    sentence_of,
    share,
    signed_number,
    size,
    sureness,
    terms,
    value,
)

# What leads: a bound before what is merely estimated, and that before what is promised.
_ORDER = ("lower_bound", "estimate", "approximation", "guarantee", "diagnostic")
_MAX_ALONE = 3  # rounds of an unfinished run in one sentence
_NOT_PRIVATE = "This is not a proof of privacy: another attacker, or more samples, may show a leak."


def ends(row: Row) -> str:
    """Return what is shown and what is guaranteed against one attacker."""
    shown = "nothing" if row.low <= 0 or row.shown is None else number_with_remark(row.shown)
    if row.alone and row.is_pending:
        return f"{NOT_YET}; {so_far(row)}"
    if row.at_most is None or math.isinf(row.high):
        return f"{shown} shown, nothing guaranteed"
    wrong = ": an assumption of one of them does not hold" if row.low > row.high else ""
    return f"{shown} shown … {number_with_remark(row.at_most)} guaranteed{wrong}"


def leading_findings(findings: Iterable[Finding]) -> list[Finding]:
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
    """Return how many lower bounds `numbers_of` leaves to the table, in words; empty if none."""
    said = numbers_of(part)
    left = [f for f in part.findings if f.kind == "lower_bound" and f not in said]
    conditional = sum(f.is_conditional for f in left)
    counts = ((len(left) - conditional, "by other methods"), (conditional, "under conditions"))
    words = [f"{counted(count, 'more lower bound')} {how}" for count, how in counts if count]
    return " and ".join(words)


def numbers_of(part: Row | Block) -> list[Finding]:
    """Return the numbers that are told about a row, its two ends among them."""
    own = leading_findings(part.findings)
    taken = [part.shown, part.at_most] if isinstance(part, Row) else []
    return own + [f for f in taken if f is not None and f not in own and _says(f)]


def _says(finding: Finding) -> bool:
    """Whether a number from another row says anything here."""
    return finding.value > 0 if finding.kind == "lower_bound" else math.isfinite(finding.value)


def parts(verdict: Verdict) -> list[Row | Block]:
    """Return all that is told of, without blocks of mere remarks on the attacker of a row."""

    def is_aside(block: Block) -> bool:
        says = numbers_of(block) or observations(block) or certainties(block)
        return not says and any(is_same(row.attacker, block.attacker) for row in verdict.rows)

    return [*verdict.rows, *(block for block in verdict.others if not is_aside(block))]


def findings_in_words(part: Row | Block) -> tuple[str, ...]:
    """Return each leading number and each guarantee with what it means."""
    shown = numbers_of(part)
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
        bound = next(
            (b for b in leading_findings(own) if b.value > f.value and value(b) != value(f)), None
        )
        if bound is not None and f.delta == bound.delta:
            taken = [a for a in f.assumptions if a not in bound.assumptions]
            why = f" The estimate alone assumes that {sentence_of(taken[0])}." if taken else ""
            yield (
                f"The lower bound {signed_number(bound)} is above the estimate {signed_number(f)}: "
                f"the two methods differ.{why}"
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
        f"The estimate {signed_number(largest)}{many} is above the guarantee "
        f"{amount(row.at_most)}, which is proven: it is too high."
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


def reliability(part: Row | Block) -> tuple[str, ...]:
    """Return how far the leading numbers can be trusted."""
    shown = numbers_of(part)
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


NOT_EVIDENCE: Final = "This is not evidence of privacy"
_UNPROVEN: Final = "No leak is proven, and nothing is guaranteed."
# With what the evidence was gathered, by what the attacker of a test holds.
_EVIDENCE: Final = {
    "canary": "with test updates, not real ones",
    "two updates": "in trials that simulate a round",
    "two data sets": "in trials that simulate the run",
    "record": "with records that were used and records that were not",
    None: "by the audit",
}
_RISKS: Final = {  # by unit: what a leak makes possible, in the words of data protection
    "client": "singling out a client",
    "record": "inferring whether a record was used",
    "group": "inferring whether a record that a client holds several times was used",
}

_OBSERVED_RISKS: Final = {
    "reconstruction PSNR in dB": "reconstruction of records",
    "share outside the span": "singling out a client",
}


def headline(verdict: Verdict) -> str:
    """Return the verdict on a run for everybody."""
    said = unfinished(verdict) + _headline(verdict)
    if verdict.is_distorted:
        return f"The run is distorted, so its numbers say little about a sound one. {said}"
    if verdict.is_costly:
        return f"{said} The price is accuracy: {_accuracy(verdict)}."
    return said


def unfinished(verdict: Verdict) -> str:
    """Return how far an unfinished run is, before another sentence; empty if it is finished."""
    if verdict.progress is None:
        return ""
    done, planned = verdict.progress
    of = counted(done, "round") if planned is None else f"{done} of {counted(planned, 'round')}"
    return f"Unfinished: {of}. "


def so_far(row: Row) -> str:
    """Return the bounds of the last single rounds of an unfinished run, the newest last."""
    *first, last = row.alone or (None,)
    if last is None:
        return ""
    shown = [*first[1 - _MAX_ALONE :], last]
    told = [f"{amount(f)} (round {f.server_round})" for f in shown if f is not None]
    before = len(first) + 1 - len(shown)
    earlier = f", after {counted(before, 'earlier round')}" if before else ""
    return f"so far, each on its own: {', '.join(told)}{earlier}"


def rounds_so_far(verdict: Verdict) -> list[str]:
    """Return what single rounds of an unfinished run have shown, a sentence for each attacker."""
    return [
        f"{capital(who(row.attacker))}, {so_far(row)}. At the end the bounds of all rounds share "
        "one confidence."
        for row in verdict.rows
        if row.alone and row.is_pending
    ]


def protection(verdict: Verdict) -> str:
    """Return what the verdict means in the words of data protection, with its evidence."""
    return f"In data-protection terms: {_protection(verdict)}."


def _protection(verdict: Verdict) -> str:
    case, row = verdict.headline
    if verdict.is_pending:
        return "not known before the end of the run"
    if case == "claim":
        bound = verdict.false_claims[0].bound
        assert bound is not None
        return f"a stated limit does not hold: {_possible(bound, verdict)}"
    if case == "rebuilt":
        how = "shown against records that were not used"
        return f"reconstruction of clients' records is possible; {how} ({_trusted(verdict)})"
    if case == "seen":
        return "singling out a client is possible; seen in every draw"
    if case == "told":
        risk = _RISKS[verdict.told[0].unit]
        return f"{risk} beats guessing ({_trusted(verdict)})"
    if case == "observed":
        risk = _OBSERVED_RISKS[verdict.observations[0].quantity]
        return f"{risk} is suspected; observed in this run, not proven"
    if row is None:
        return (
            "nothing follows about singling out, membership or reconstruction, in either direction"
        )
    risk = _RISKS[row.question.unit]
    if row.shown is not None and row.low > 0:
        return _possible(row.shown, verdict)
    if case == "suspected":
        return f"{risk} is suspected; not proven"
    some = ", but not for every attacker" if any(math.isinf(r.high) for r in verdict.rows) else ""
    tried = any(one.is_tried for one in verdict.rows)
    looked = "no audit showed that it is possible" if tried else "no audit tried it"
    return f"{risk} is limited by a guarantee{some}; {looked}"


def _possible(bound: Finding, verdict: Verdict) -> str:
    """Return what a proven ε makes possible, and with which evidence."""
    # A lower bound has no adjective: near 0 the guess is hardly better than a coin.
    is_sure = bound.value > CERTAIN
    sure = "practically certain" if is_sure else f"at least {sureness(bound.value)} sure"
    how = _EVIDENCE[bound.threat_model.holds]
    return (
        f"{_RISKS[bound.unit]} is possible: an attacker can be {sure}; "
        f"shown {how} ({_trusted(verdict)})"
    )


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


def upper_end(verdict: Verdict, *, adds_noise: bool | None = None) -> str:
    """Return against whom something is guaranteed, or that nothing is.

    Args:
        verdict: Of the run.
        adds_noise: Whether the run adds noise; None where nobody knows.
    """
    bounded = [row for row in verdict.rows if math.isfinite(row.high)]
    if not bounded and verdict.progress is not None and adds_noise is not False:
        return "Upper bounds are known at the end of the run."
    if not bounded:
        return (
            "No upper bound: this run adds no noise."
            if adds_noise is False
            else "No upper bound: nothing is guaranteed against these attackers."
        )
    return limits(verdict, is_said=verdict.headline[0] == "interval")


def limits(verdict: Verdict, *, is_said: bool = False) -> str:
    """Return the largest guarantee, of which there must be one, with its numbers unless said."""
    bounded = [row for row in verdict.rows if math.isfinite(row.high)]
    worst = max(bounded, key=lambda one: (one.high, one.low, one.at_most in one.findings))
    rows, given = guaranteed_rows(worst, verdict), worst.at_most
    assert given is not None
    terms = "" if given.delta is None else f" at δ = {number(given.delta)}"
    if is_said:
        kinds = _listed(_kind(one) for one in rows)
        return f"Guaranteed{terms} for a {given.unit} ({kinds})."
    ends = _listed(f"{at_most_cell(one)} ({_kind(one)})" for one in rows)
    most = "Guaranteed" if {one.high for one in bounded} <= {one.high for one in rows} else ""
    return (
        f"{most or 'The largest guarantee'}: {ends}{terms} for a {given.unit} against: "
        f"{who(given.threat_model)}{given_that(given)}."
    )


def promised_sureness(verdict: Verdict) -> str:
    """Return what each ε of the largest guarantee, of which there must be one, means."""
    bounded = [row for row in verdict.rows if math.isfinite(row.high)]
    worst = max(bounded, key=lambda one: (one.high, one.low, one.at_most in one.findings))
    rare = worst.at_most is not None and worst.at_most.delta
    means = _listed(
        f"{at_most_sure(one.high)} {question(one)} ({_kind(one)})"
        for one in guaranteed_rows(worst, verdict)
    )
    but = ", but for rare outcomes, which δ limits" if rare else ""
    return f"An attacker who starts at 50:50 may become {means}{but}."


def guaranteed_rows(row: Row, verdict: Verdict) -> list[Row]:
    """Return all rows of a bounded attacker with guarantees of their own, the given one last.

    Whether an update was sent costs less than which of two it was, and fewer rounds cost less
    than more: all numbers are named.
    """
    assert row.at_most is not None
    own = row.at_most.unit, row.at_most.assumptions
    less = [
        one
        for one in verdict.rows
        if is_same(one.attacker, row.attacker)
        and one.high < row.high
        and one.at_most is not None
        and (one.at_most.unit, one.at_most.assumptions) == own
    ]
    return [*sorted(less, key=lambda one: one.high), row]


def together(verdict: Verdict) -> str:
    """Return with which confidence everything that is shown holds."""
    shown = any(row.low > 0 for row in verdict.rows) or any(is_shown(f) for f in verdict.tests)
    shown |= bool(verdict.false_claims)
    if verdict.confidence is None or not shown:
        return ""
    if verdict.confidence <= 0:
        return "Each bound holds at its own confidence; together they have none."
    # A test has no δ, and a claim may have another one.
    at = "" if verdict.delta is None else f" (δ = {number(verdict.delta)})"
    at *= any(row.low > 0 for row in verdict.rows)
    return f"All that is shown holds together with {percent(verdict.confidence)} confidence{at}."


def utility(verdict: Verdict) -> str:
    """Return how good the model is, which a protection may have cost."""
    if verdict.accuracy is None:
        return ""
    return f"Model accuracy: {_accuracy(verdict)}."


def _accuracy(verdict: Verdict) -> str:
    """Return the accuracy, against that without noise where it is known."""
    free = verdict.without_noise
    against = "" if free is None else f", against {share(free)} without noise and canaries"
    return f"{share(verdict.accuracy or 0.0)}{against}"


def _headline(verdict: Verdict) -> str:
    case, row = verdict.headline
    if verdict.is_pending:
        return "What it leaks is not known yet: most bounds are made at the end of the run."
    if case == "claim":
        return _false_claim(verdict)
    if case == "rebuilt":
        return _rebuilt(next(f for f in verdict.tests if is_rebuilt(f)), verdict)
    if case == "seen":
        seen = certain_sentence(verdict.certainties[0])
        return f"{seen} Nothing is guaranteed against this attacker."
    if case == "told":
        return _told(verdict.told[0], verdict)
    if case == "observed":
        return _observed(verdict.observations[0])
    if row is None:
        return _nothing(verdict)
    match case:
        case "refuted":
            return _refuted(row, verdict)
        case "leak":
            return _leak(row, verdict)
        case "interval":
            return _interval(row, verdict)
        case _:
            return _suspected(row)


def _refuted(row: Row, verdict: Verdict) -> str:
    assert row.shown is not None
    assert row.at_most is not None
    return (
        f"A guarantee is refuted: {amount(row.at_most)} is claimed against "
        f"{_lowered(subject(row.attacker))}, and the audit shows {amount(row.shown)} "
        f"({_trusted(verdict)}). An assumption of the guarantee does not hold."
    )


def claim_sentence(claim: Claim) -> str:
    """Return who claims what, with what the claim's own parameters deliver."""
    who = "The user claims" if claim.source == USER else f"{claim.source} claims"
    hidden = "" if claim.knows_cohort else " who do not know who takes part"
    said = (
        f"{who} {upper(claim.epsilon)} at δ = {number(claim.delta)} per {claim.per} against "
        f"{OBSERVERS[claim.against].against}{hidden} ({claim.adjacency}, {claim.unit})"
    )
    why = f" ({claim.rule})" if claim.rule else ""
    if claim.delivered is not None:
        return f"{said}; by the exact formula its parameters deliver {delivered_cell(claim)}{why}."
    return f"{said}; what it delivers is not known{why}." if claim.rule else f"{said}."


def refutation(result: ClaimResult) -> str:
    """Return whether the audit refutes a claim, or how far it could have seen."""
    if result.bound is None:
        return f"NOT TESTED: no bound of this run is about it. {reach(result)}"
    found = amount(result.bound) if result.low > 0 else "nothing"
    if not result.is_refuted:
        return f"NOT REFUTED, which does not confirm it: {found} is shown. {reach(result)}"
    trust = f"{percent(result.confidence or 0.0)} confidence"
    if (copies := copies_of(result.bound)) > 1:
        return (
            f"REFUTED: for {copies} copies of a record it allows {upper(result.allowed)} (group "
            f"privacy), and the audit shows {found} ({trust})."
        )
    if result.claim.per == "run" or result.rounds == 1:
        return f"REFUTED: the audit shows {found} ({trust})."
    return (
        f"REFUTED: {result.rounds} rounds of it allow {upper(result.allowed)} (basic composition), "
        f"and the audit shows {found} ({trust})."
    )


def claim_worth(result: ClaimResult) -> str:
    """Return what a claim that is not refuted is worth, below the table of claims."""
    tested = "Not refuted is not confirmed. " if result.is_testable else ""
    return f"{tested}{reach(result)}"


def reach(result: ClaimResult) -> str:
    """Return how far the audits could have seen, where they do not refute a claim."""
    audit, seen = result.audit, result.detectable
    if result.smaller_delta is not None:
        return (
            f"The audits of this attacker are at δ = {number(result.smaller_delta)}; only one at "
            f"the claim's δ = {number(result.claim.delta)} or above can refute it."
        )
    if audit is None and result.bound is not None:
        return "Only weaker attackers were audited; what they show bounds this one too."
    if audit is None:
        return "No audit here asks this question about this attacker."
    most = f"ε = {number(audit.cap or 0.0, kind='lower_bound')}"
    if not result.is_testable:
        return f"The audit could not have refuted it: it can show at most {most}."
    if seen is None:
        return f"The audit can show at most {most}."
    return f"A Gaussian mechanism must deliver {exactly(seen)} to be refuted in 80 % of such runs."


def _false_claim(verdict: Verdict) -> str:
    """Return the first claim that is refuted, and how many more are."""
    first, *more = verdict.false_claims
    assert first.bound is not None
    claim, verb = first.claim, "is" if len(more) == 1 else "are"
    also = f" {counted(len(more), 'more claim')} {verb} refuted as well." if more else ""
    by = "" if claim.source == USER else f" of {claim.source}"
    limit = f"{upper(claim.epsilon)} per {claim.per}"
    if claim.per == "round" and first.rounds > 1:
        limit = f"{upper(first.allowed)} in {first.rounds} rounds"
    if (copies := copies_of(first.bound)) > 1:
        limit = f"{upper(first.allowed)} for {copies} copies of a record"
    size = f"; {words}" if (words := longer(first.bound)) else ""
    truth = ""
    if claim.delivered is not None and claim.delivered > claim.epsilon:
        truth = f" Its own parameters deliver {delivered_cell(claim)}."
    return (
        f"A claim{by} is refuted: {limit} is claimed against {OBSERVERS[claim.against].against}, "
        f"and the audit shows {amount(first.bound)} ({_trusted(verdict)}{size})."
        f"{truth}{also}"
    )


def _rebuilt(best: Finding, verdict: Verdict) -> str:
    if best.quantity == "tokens recovered":
        return (
            f"{subject(best.threat_model)} can read which words clients trained on: their texts "
            f"contain {value(best)} more of the named tokens than each of several equal batches of "
            f"texts that were not used ({_trusted(verdict)})."
        )
    total = best.facts.get("originals")
    of = f" of {total}" if isinstance(total, int) else ""
    return (
        f"{subject(best.threat_model)} can rebuild training records: {value(best)}{of} fit what "
        f"was rebuilt better than any record that was not used ({_trusted(verdict)})."
    )


def _told(test: Finding, verdict: Verdict) -> str:
    if test.quantity == "membership advantage":
        points = number(100 * test.value, kind="lower_bound")
        said = (
            f"{subject(test.threat_model)} can tell records that were used from others: at some "
            f"threshold, hits exceed false alarms by at least {points} percentage points"
        )
    else:
        said = (
            f"The sum of a round hides client {test.facts.get('client')} less than any other: more "
            "of its update is outside the span of the others'"
        )
    return f"{said} ({_trusted(verdict)}). Nothing is guaranteed against this attacker."


def certain_sentence(certain: Finding) -> str:
    """Return who distinguished two updates in how many draws."""
    who = subject(certain.threat_model)
    return f"{who} distinguished two updates of a client in {draws_of(certain)}."


def _observed(finding: Finding) -> str:
    return (
        f"{_UNPROVEN} One is suspected: {_lowered(subject(finding.threat_model))} got "
        f"{signed_number(finding)} ({null_band(finding)})."
    )


def _leak(row: Row, verdict: Verdict) -> str:
    limit = " The audit is at its limit: the true ε may be far larger." * row.is_saturated
    is_limited = verdict.is_limited(row.attacker)
    if _is_borrowed(row):
        about = f"about {question(row)}, " * is_limited
        against = _lowered(subject(row.attacker))
        looked = "" if row.is_tried else ", and this attacker was not audited"
        return f"Nothing is guaranteed {about}against {against}{looked}. {_borrowed(row)}{limit}"
    about = "about this " * is_limited
    return f"{proven_sentence(row)} Nothing is guaranteed {about}against this attacker.{limit}"


def _is_borrowed(row: Row) -> bool:
    """Whether what is shown of an attacker is a bound about another one."""
    return row.shown is not None and not is_same(attacker(row.shown), row.attacker)


def _borrowed(row: Row, trust: str = "") -> str:
    """Return what is shown of a weaker attacker, with whom it is about."""
    assert row.shown is not None
    return (
        f"It learns no less than {_lowered(subject(attacker(row.shown)))}, who can be "
        f"{sureness_cell(row)} {proven_question(row.shown)} ({amount(row.shown)}"
        f"{_share(row.shown)}{trust})."
    )


def proven_sentence(row: Row, confidence: float | None = None) -> str:
    """Return what the attacker of a row can tell, which must be proven."""
    assert row.shown is not None
    trust = "" if confidence is None else f", {percent(confidence)} confidence"
    if _is_borrowed(row):
        looked = "" if row.is_tried else f"Not audited: {who(row.attacker)}. "
        return f"{looked}{_borrowed(row, trust)}"
    return (
        f"{subject(row.attacker)} can be {sureness_cell(row)} {question(row)} ({amount(row.shown)}"
        f"{_share(row.shown)}{trust})."
    )


def _share(bound: Finding) -> str:
    """Return how many canaries a bound rests on, and how often each played."""
    share, rounds = bound.facts.get("share_at_threshold"), bound.threat_model.participations
    size = f"; {words}" if (words := longer(bound)) else ""
    if not isinstance(share, float):
        return size
    each = f", each sent in {counted(rounds, 'round')}" if rounds is not None else ""
    own = bound.facts.get("client_rounds")
    if rounds is not None and isinstance(own, int) and own != rounds:
        each += f"; clients send in about {own}"
    what = "planted record" if bound.threat_model.holds == "record" else "test update"
    many = how_many(share, bound.sample_sizes.get("in"), what)
    if bound.threat_model.holds != "record":
        return f", for {many}{each}{size}"
    copies = copies_of(bound)
    often = f", each {copies} times in a client's data" if copies > 1 else ""
    return f", for {many}{often}"


def longer(bound: Finding) -> str:
    """Return how much longer than updates the test updates behind a bound are; empty if not."""
    times = times_of(bound)
    return f"test updates {number(times)} times as long as clients' own" if times > 1 else ""


def _interval(row: Row, verdict: Verdict) -> str:
    assert row.at_most is not None
    limits = _listed(_limit(one) for one in guaranteed_rows(row, verdict))
    said = (
        f"A guarantee limits what {_lowered(subject(row.attacker))} can tell: ε is {limits}"
        f"{given_that(row.at_most)}."
    )
    return " ".join([said, *open_attackers(verdict, _named)])


def open_attackers(
    verdict: Verdict,
    named: Callable[[Iterable[ThreatModel]], str],
    words: str = "Nothing is guaranteed{about} against: {named}.",
) -> list[str]:
    """Return against whom nothing is guaranteed, and about what if another question is limited."""
    left: dict[str, list[ThreatModel]] = {}
    for row in verdict.rows:
        if math.isinf(row.high):
            about = f" about {question(row)}," * verdict.is_limited(row.attacker)
            left.setdefault(about, []).append(row.attacker)
    return [words.format(about=about, named=named(all_)) for about, all_ in left.items()]


def _limit(row: Row) -> str:
    """Return both ends of a row with its question, such as "at most 8 for whether …"."""
    assert row.at_most is not None
    shown = f"at least {number(row.low, kind='lower_bound')} (shown) and " if row.low > 0 else ""
    worth = ", which promises practically nothing," if is_certain(row.at_most) else ""
    return f"{shown}at most {value(row.at_most)}{worth} for {question(row)}"


def _suspected(row: Row) -> str:
    attacker = _lowered(subject(row.attacker))
    if row.conditional is not None:
        return (
            f"{_UNPROVEN} There is one under a condition: {condition(row.conditional)}, {attacker} "
            f"can tell {question(row)} ({amount(row.conditional)})."
        )
    assert row.estimate is not None
    return (
        f"{_UNPROVEN} One is suspected: {attacker} may tell {question(row)} "
        f"({amount(row.estimate)})."
    )


def _nothing(verdict: Verdict) -> str:
    looked = {unsized(row.attacker) for row in verdict.rows if row.is_tried}
    looked |= {unsized(attacker(test)) for test in verdict.tests}
    if not looked:
        tried = "No test for an ε was run" if verdict.others else "No attacker was audited"
        return f"{tried}, and nothing is guaranteed. {NOT_EVIDENCE}."
    tried = counted(len(looked), "attacker")
    return f"No leak was shown ({tried} tried), and nothing is guaranteed. {NOT_EVIDENCE}."


def given_that(promise: Finding) -> str:
    """Return the condition under which a guarantee holds."""
    if unchecked := conditions(promise.assumptions):
        return f", if {' and if '.join(sentence_of(a).rstrip('.') for a in unchecked)}"
    count = len(promise.assumptions)
    return f", under {counted(count, 'stated assumption')}" if count else ""


def _trusted(verdict: Verdict) -> str:
    return f"{percent(verdict.confidence or 0.0)} confidence"


def _named(models: Iterable[ThreatModel]) -> str:
    return "; ".join(dict.fromkeys(who(model) for model in models))


def _kind(row: Row) -> str:
    """Return how the two worlds of a row differ, and in how many rounds where prices differ."""
    rounds = counted(row.attacker.participations or 1, "round")
    return f"{row.question.adjacency}, {rounds}" if row.is_priced else row.question.adjacency


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
