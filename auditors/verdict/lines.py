"""What a run says as lines for a terminal and a log, and what to do next in any project."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from leakmeter.auditors.bounds.gaussian import brent_root, epsilon_gaussian
from leakmeter.auditors.finding import Finding, Limitation, RunWarning, WarningKind
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.claim import USER, Claim, ClaimResult
from leakmeter.auditors.verdict.labels import LEAKS, delivered_cell, upper
from leakmeter.auditors.verdict.sentences import (
    certainties,
    ends,
    numbers_of,
    observations,
    parts,
    rounds_so_far,
    surprises,
    too_high,
    unsaid_bounds,
)
from leakmeter.auditors.verdict.verdict import Block, Row, Verdict
from leakmeter.auditors.wording import (
    CERTAIN,
    Spelling,
    aside,
    claim,
    counted,
    evidence,
    in_ascii,
    null_band,
    number,
    observation,
    observed_number,
    plain_spaces,
    size,
    terms,
)

MAX_STEPS = 3
TARGET = 8.0  # a guarantee that is often asked for
_CLEARLY = 0.5  # a difference of two ε that is worth an advice
_MANY_CANARIES = 20  # planned; with fair coins half of them take part, and ten give a steady result
_LOCAL, _SAME = "LocalDpMod", 0.99  # below this share of the clip norm a sensitivity differs
_SEEN = ("rounds", "canaries", "trials")
# Warnings that a smaller step of the clients cures.
STEPPED: frozenset[WarningKind] = frozenset(
    {"clipped-coordinates", "non-finite-updates", "blank-updates"}
)
SLOWER = "Lower the clients' learning rate"
_FAILED: Mapping[WarningKind, str] = {
    "rejected-sums": "Find the client that lies: the log says why each secure sum was rejected.",
    "abandoned-rounds": "Find out why rounds were abandoned: the log has the reason of each.",
    "dropouts": "Find the clients that did not answer: the log has their errors.",
    "blank-updates": "Find the clients whose training failed: their own logs say why.",
}


# With a page of the documentation, where a step has no command.
_MASKED = "Masked (docs/secure-aggregation.md)"
_NOISED = "Noised (docs/noise-and-accounting.md)"


@dataclass(frozen=True)
class NextStep:
    """One thing to do.

    Attributes:
        text: What, in one line.
        command: What to copy, into a terminal or a script; empty where there is none.
        out: Folder of the run that the command makes; empty if it names none.
    """

    text: str
    command: str = ""
    out: str = ""


def steps(
    verdict: Verdict,
    cohorts: Sequence[int] = (),
    spelling: Spelling = "python",
    *,
    parameters: int | None = None,
) -> list[NextStep]:
    """Return at most three steps, the most useful first.

    Args:
        verdict: On the run.
        cohorts: How many clients answered in each round, if that is known.
        spelling: How the reader sets something.
        parameters: Of the model, if that is known.
    """
    found = _steps(verdict, cohorts, spelling, parameters)
    return list(dict.fromkeys(found))[:MAX_STEPS]


def _steps(
    verdict: Verdict, cohorts: Sequence[int], spelling: Spelling, parameters: int | None
) -> Iterator[NextStep]:
    kinds = {warning.kind: warning for warning in verdict.warnings}
    yield from failed_clients(kinds)
    if kinds.keys() & STEPPED:
        yield NextStep(f"{SLOWER}.")
    if verdict.is_distorted:
        return  # what else it shows is not that of a sound run
    yield from map(claim_step, verdict.false_claims[:1])
    # A run that goes on may still be audited.
    is_tried = verdict.progress is not None or any(row.is_tried for row in verdict.rows)
    if not is_tried:
        way = "--auditors one-shot" if spelling == "audit" else "OneShotCanaries(seats=4)"
        yield NextStep("Audit an ε; now no test can show a leak:", way)
    few = kinds.get("few-canaries")
    if few is not None:
        yield _more_canaries(few, cohorts, spelling)
    ways = ("rounds", "canary-seats", "lrt-trials")
    more = [f"{what}{aside(name, spelling)}" for what, name in zip(_SEEN, ways, strict=True)]
    is_unshaken = bool(verdict.claims) and not verdict.false_claims
    if is_unshaken:
        yield NextStep(f"Test the claim harder: more clients, {more[0]} or {more[1]}.")
    leaks = [row for row in verdict.rows if row.severity in LEAKS]
    for row in leaks:
        yield _against(row, _price(row, verdict.delta, cohorts, parameters))
    yield from fewer_releases(verdict.rows)
    if is_tried and not (leaks or few or is_unshaken):
        yield NextStep(f"Give the audit more to see: more {more[0]}, {more[1]} or {more[2]}.")
    is_hidden = all(row.attacker.sees == "updates" for row in leaks)  # noise is no step yet
    if is_hidden and all(math.isinf(row.high) for row in verdict.rows):
        yield NextStep(f"Bound every such attacker: add noise and account for it, {_NOISED}.")


def claim_step(result: ClaimResult) -> NextStep:
    """Return what to do about a claim that is refuted."""
    claim = result.claim
    limit = f"{upper(claim.epsilon)} per {claim.per}"
    if claim.source == USER:
        return NextStep(
            f"Find why {limit} does not hold: check clip, noise, weights and accounting."
        )
    if claim.delivered is None or claim.delivered <= claim.epsilon:
        return NextStep(f"Do not state {limit} for {claim.source}: it does not hold in this app.")
    typed, why = _sensitivity(claim), f"it delivers {delivered_cell(claim)}, not {limit}"
    if typed is not None and claim.clip_norm is not None and typed < _SAME * claim.clip_norm:
        return NextStep(
            f"Set sensitivity ({number(typed)}) of {claim.source} to clipping_norm "
            f"({claim.clip_norm:g}): {why}."
        )
    return NextStep(f"Give {claim.source} more noise: {why}.")


def _sensitivity(claim: Claim) -> float | None:
    """Return the sensitivity that Flower's `LocalDpMod` was given, from what its claim says.

    Its noise has a standard deviation of σ = s·√(2·ln(1.25/δ)) / ε, and delivers what noise of σ
    against an update of the clip norm does.
    """
    if claim.source != _LOCAL or claim.clip_norm is None or claim.delivered is None:
        return None
    if math.isinf(claim.delivered) or not 0 < claim.delta < 1:
        return 0.0 if math.isinf(claim.delivered) else None
    wanted = claim.delivered
    most = 100 + math.sqrt(2 * wanted)  # ε of a separation μ grows like μ² / 2
    separation = brent_root(lambda mu: epsilon_gaussian(claim.delta, mu) - wanted, 1e-6, most, 1e-9)
    return (
        claim.clip_norm
        / separation
        * claim.epsilon
        / math.sqrt(2 * (math.log(1.25) - math.log(claim.delta)))
    )


def failed_clients(kinds: Collection[WarningKind]) -> Iterator[NextStep]:
    """Yield what to do where clients failed: nothing else is worth a run before that."""
    yield from (NextStep(text) for kind, text in _FAILED.items() if kind in kinds)


def _more_canaries(few: RunWarning, cohorts: Sequence[int], spelling: Spelling) -> NextStep:
    """Return the advice with what to write, if the number of seats can be told."""
    if not cohorts:
        return NextStep("Play more canaries, in more seats.")
    now = math.ceil(few.total / len(cohorts))
    most = max((max(cohorts) - 1) // 2, now)  # the majority stays honest
    seats = min(now * max(2, math.ceil(_MANY_CANARIES / few.total)), most)
    rounds = math.ceil(_MANY_CANARIES / seats)
    longer = f" over num_rounds={rounds}" if rounds > len(cohorts) else ""
    if spelling == "audit":
        # With a number of seats the plan is made before anybody knows how busy clients are.
        text = (
            f"More canaries{longer} make the bound more reliable. Each then plays in one round, so "
            "ε may come out smaller; that is not more privacy. Add to the command:"
        )
        return NextStep(text, f"--seats {seats}")
    return NextStep(f"Play more canaries{longer}:", f"OneShotCanaries(seats={seats})")


def _against(row: Row, price: str) -> NextStep:
    """Return what helps against one attacker, with what it costs."""
    if row.attacker.sees == "updates":
        return NextStep(f"Hide single updates from the server: wrap the strategy in {_MASKED}.")
    if row.attacker.observer == "outsider":
        return NextStep(f"Clip updates and add noise before a release: {_NOISED}{price}.")
    return NextStep(f"Let clients clip and add noise before the sum: noise_mod, {_NOISED}{price}.")


def _price(row: Row, delta: float | None, cohorts: Sequence[int], parameters: int | None) -> str:
    """Return how large noise for a usual target would be in this run; empty if that is open."""
    played = [clients for clients in cohorts if clients]
    if not (delta and played and parameters):
        return ""
    clients, rounds = sorted(played)[len(played) // 2], len(played)
    is_replaced = row.question.adjacency == "replace"
    ratio = noise_ratio(
        (2 if is_replaced else 1) * math.sqrt(rounds), delta, clients=clients, parameters=parameters
    )
    # Nothing is promised for less.
    suffers = "; above 1 the model is likely to suffer" if ratio > 1 else ""
    return (
        f"; for ε ≤ {TARGET:g} the noise is at least {number(ratio, 2)} times the mean update of "
        f"{counted(clients, 'client')} ({counted(rounds, 'round')}, {parameters:,} parameters)"
        f"{suffers}"
    )


def noise_ratio(sensitivity: float, delta: float, *, clients: int, parameters: int) -> float:
    """Return how many times the mean update its noise is at least, at ε ≤ 8.

    The mean is at most as long as the clip norm. Gaussian noise of z clip norms on the sum has the
    norm z·√d / n of them on the mean, and z is the sensitivity over the separation that ε allows.

    Args:
        sensitivity: Of all rounds together, in clip norms: √T if an update is left out of T rounds,
            twice as much if it is replaced.
        delta: Of the target.
        clients: In a round.
        parameters: Of the model.
    """
    separation = brent_root(lambda mu: epsilon_gaussian(delta, mu) - TARGET, 1e-6, 1e3, 2e-12)
    return sensitivity / separation * math.sqrt(parameters) / clients


def fewer_releases(rows: Sequence[Row]) -> Iterator[NextStep]:
    """Yield the advice to release the final model alone, if this audit shows clearly less in it."""
    for every in (row for row in rows if row.attacker.sees == "all models"):
        for final in (row for row in rows if row.attacker.sees == "final model"):
            is_same = every.question == final.question and every.shown is not None
            # Beyond certainty a smaller number means nothing; close ones may differ by chance.
            is_less = final.low <= CERTAIN and every.low - final.low > _CLEARLY
            if is_same and is_less and _is_busy(final.shown):
                yield NextStep(
                    "Release only the final model; less is shown in it (no proof of less)."
                )


def _is_busy(bound: Finding | None) -> bool:
    """Whether canaries took part as often as clients do: otherwise the final model has more."""
    rounds = None if bound is None else bound.facts.get("client_rounds")
    if bound is None or not isinstance(rounds, int):
        return False
    return (bound.threat_model.participations or 1) >= rounds


_WIDTH = 80  # of an ordinary terminal
_VERDICT, _NEXT = "VERDICT  ", "NEXT  "
_HEADS = ("ATTACKER", "CAN TELL", "SHOWN", "AT MOST", "EVIDENCE")
_IN_BITS = ("IN BITS", "ABOUT", "FOUND", "AT MOST", "EVIDENCE")  # never ordered against ε
# No line ends between a number and its sign or unit, in any letters.
_WHOLE = re.compile(r" (?=%)|(?<=[≥≤≈~]) |(?<=[<>]=) |(?<=ε) (?=[≥≤≈])|(?<=eps) (?=[<>~])")
_MAX_ROWS, _MAX_BITS, _MAX_NOTES, _MAX_NOTE_LINES, _MAX_CLAIMS = 5, 2, 3, 4, 4


@dataclass(frozen=True)
class Ending:
    """What the last lines of a run say in addition to its findings.

    Attributes:
        steps: What to do next.
        adds_noise: Whether the run adds noise; None where nobody knows.
        places: Further lines, such as where the page is.
        width: Columns of the terminal.
        is_ascii: Whether the terminal has no Greek letters and signs.
    """

    steps: Sequence[NextStep] = ()
    adds_noise: bool | None = None
    places: Sequence[str] = ()
    width: int = _WIDTH
    is_ascii: bool = False

    def spelled(self, text: str) -> str:
        """Return text in the letters of the terminal."""
        return in_ascii(text) if self.is_ascii else text

    def wrapped(self, text: str, hanging: str = "") -> list[str]:
        """Return text as lines of the terminal: spelled first, since letters become words."""
        return _paragraph(self.spelled(text), self.width, hanging=hanging)


def summary(
    verdict: Verdict, failures: Sequence[str] = (), ending: Ending | None = None
) -> list[str]:
    """Return the end of a run: verdict, attackers, upper bound, bits, next steps.

    In a terminal of 80 columns the default job takes at most 25 lines, and a run with many
    attackers, bits, warnings and failures at most 34.

    Args:
        verdict: On the run.
        failures: Which auditors were left out, and why.
        ending: What else to say; None takes the steps that any project can do.
    """
    ending = ending or Ending(steps(verdict))
    below = (
        sentences.upper_end(verdict, adds_noise=ending.adds_noise),
        sentences.together(verdict),
        sentences.utility(verdict),
    )
    said = [
        *ending.wrapped(_VERDICT + sentences.headline(verdict), " " * len(_VERDICT)),
        *ending.wrapped(sentences.protection(verdict)),
        "",
        *_claims(verdict, ending),
        *_table(verdict, ending),
        *[line for one in rounds_so_far(verdict) for line in ending.wrapped(one)],
        *ending.wrapped(" ".join(filter(None, below))),
        *_notes(failures, verdict, ending),
        *_bits(verdict, ending),
        "",
        *_next(verdict, ending, is_sound=not verdict.warnings and not failures),
        *map(ending.spelled, ending.places),
    ]
    return [plain_spaces(line) for line in said]


def details(
    verdict: Verdict, failures: Sequence[str] = (), limitations: Sequence[Limitation] = ()
) -> list[str]:
    """Return all that a run says, a block of lines for each attacker.

    Args:
        verdict: On the run.
        failures: Which auditors were left out, and why.
        limitations: What auditors cannot see or show here.
    """
    return [plain_spaces(line) for line in _details(verdict, failures, limitations)]


def _claims(verdict: Verdict, ending: Ending) -> list[str]:
    """Return the claims in columns, refuted ones first, and how far the audit could have seen."""
    shown = verdict.claims[:_MAX_CLAIMS]
    heads = [head.upper() for head in labels.CLAIM_HEADS]
    cells = [labels.cells_of_claim(one) for one in shown]
    lines = columns(heads, cells, ending)
    pairs = zip(shown, cells, strict=True)
    said = (f"{row[0]}: {sentences.claim_worth(one)}" for one, row in pairs if not one.is_refuted)
    lines += [line for words in dict.fromkeys(said) for line in ending.wrapped(words, "  ")]
    if left := len(verdict.claims) - len(shown):
        lines += ending.wrapped(f"… and {counted(left, 'more claim')}: see the details")
    return [*lines, ""] if lines else []


def _table(verdict: Verdict, ending: Ending) -> list[str]:
    """Return the attackers, worst first, in columns."""
    shown = verdict.rows[:_MAX_ROWS]
    marks = ["*" if labels.is_taken_over(row) else "" for row in shown]
    cells = [labels.cells(row) for row in shown]
    rows = [(*row[:-1], row[-1] + mark) for row, mark in zip(cells, marks, strict=True)]
    rows += [labels.cells_of_test(test) for test in verdict.tests]
    lines = columns(_HEADS, rows, ending)
    if any(marks):
        lines.append("* shown by an attacker who learns no more than this one")
    if left := len(verdict.rows) - len(shown):
        lines += ending.wrapped(f"… and {counted(left, 'more attacker')}: see the details")
    return lines


def _bits(verdict: Verdict, ending: Ending) -> list[str]:
    """Return the first figures in bits in a table of their own; the page has all of them."""
    lines = columns(_IN_BITS, labels.in_bits(verdict)[:_MAX_BITS], ending)
    return ["", *lines] if lines else []


def columns(heads: Sequence[str], found: Sequence[Sequence[str]], ending: Ending) -> list[str]:
    """Return cells as lines of a table; none for an empty one.

    Where the terminal is too narrow for columns, a row is one sentence. A cell is never cut: the
    end of "which of two updates" is what it is about.
    """
    if not found:
        return []
    rows = [[plain_spaces(ending.spelled(cell)) for cell in row] for row in (heads, *found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # Two spaces between columns; where that is too wide, one from the right on.
    spaces = len(widths) - 1
    narrow = max(sum(widths) + 2 * spaces - ending.width, 0)
    if narrow > spaces:
        told = [" / ".join(heads[:2])]
        for row in rows[1:]:
            ends = (f"{head.lower()}: {cell}" for head, cell in zip(heads, row, strict=True))
            told.append("; ".join([" / ".join(row[:2]), *[*ends][2:]]))
        return [line for text in told for line in ending.wrapped(text, "  ")]
    gaps = [*["  "] * (spaces - narrow), *[" "] * narrow, ""]
    return [
        "".join(c.ljust(w) + gap for c, w, gap in zip(row, widths, gaps, strict=True)).rstrip()
        for row in rows
    ]


def _notes(failures: Sequence[str], verdict: Verdict, ending: Ending) -> list[str]:
    """Return what went wrong, as far as a few lines can say it."""
    notes = [f"Warning: {warning.text}" for warning in verdict.warnings]
    notes += [words for row in verdict.rows if (words := too_high(row))]
    notes += [f"Not audited as planned: {failure}" for failure in failures]
    lines = [line for note in notes[:_MAX_NOTES] for line in ending.wrapped(note, "  ")]
    if len(lines) > _MAX_NOTE_LINES or len(notes) > _MAX_NOTES:
        lines = lines[: _MAX_NOTE_LINES - 1]
        lines.append(
            ending.spelled(f"  … {counted(len(notes), 'warning')} in all: see the details")
        )
    return lines


def _next(verdict: Verdict, ending: Ending, *, is_sound: bool) -> list[str]:
    """Return the next steps, each with its command in a line of its own to copy."""
    lines = []
    for i, step in enumerate(ending.steps[:MAX_STEPS], start=1):
        head = _NEXT if i == 1 else " " * len(_NEXT)
        lines += ending.wrapped(f"{head}{i}. {step.text}", f"{' ' * len(_NEXT)}   ")
        if step.command:
            lines.append(ending.spelled(f"{' ' * len(_NEXT)}   {step.command}"))
    if not lines:
        rows = verdict.rows  # beyond certainty a guarantee promises practically nothing
        is_done = bool(rows) and all(row.high <= CERTAIN for row in rows)
        words = "Nothing to do." if is_done else "No further step is known."
        words = words if is_sound else "Fix what the warnings name, then run again."
        return [f"{_NEXT}{words}"]
    return lines


def _details(
    verdict: Verdict, failures: Sequence[str], limitations: Sequence[Limitation]
) -> Iterator[str]:
    for warning in verdict.warnings:
        yield from _paragraph(f"Warning: {warning.text}")
    if verdict.claims:
        yield ""
        yield "What is claimed"
    for one in verdict.claims:
        yield from _paragraph(sentences.claim_sentence(one.claim), indent="  ", hanging="      ")
        yield from _paragraph(sentences.refutation(one), indent="      ", hanging="      ")
    told_of = parts(verdict)
    if told_of:
        yield ""
        yield "What the run leaks, by attacker"
        yield "(≈ estimate or approximation, ≥ lower bound with confidence, ≤ guarantee)"
    for part in told_of:
        yield ""
        yield from _paragraph(f"{part.attacker.sentence()}{_world(part)}")
        for line in _block(part):
            yield from _paragraph(line, indent="  ", hanging="      ")
    if limitations:
        yield ""
        yield "Limits of this audit"
    for limitation in limitations:
        words = f"{limitation.auditor}: {limitation.text}"
        yield from _paragraph(words, indent="  ", hanging="      ")
    for failure in failures:
        yield f"not audited as planned: {failure}"


def _world(part: Row | Block) -> str:
    """Return what the two worlds of a row differ in."""
    if isinstance(part, Block):
        return ""
    return f" [{part.question.adjacency}, {part.question.unit}]"


def brief(finding: Finding) -> str:
    """Return a finding in a few words that say how strong it is."""
    if finding.kind == "diagnostic":
        return observed_number(finding)
    return claim(finding) + terms(finding)


def _paragraph(text: str, width: int = _WIDTH, *, indent: str = "", hanging: str = "") -> list[str]:
    """Return text as lines that are broken where a terminal ends."""
    return wrap(
        _WHOLE.sub("\N{NO-BREAK SPACE}", text),
        width,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_on_hyphens=False,
    )


def _block(part: Row | Block) -> list[str]:
    """Return the lines about one attacker."""
    head = [ends(part)] if isinstance(part, Row) else []
    lines = [_line(f) for f in numbers_of(part)]
    lines += surprises(part)
    lines += [f"{f.auditor}: {f.rule}" for f in certainties(part)]
    lines += [f"{f.auditor}: {observation(f)}" for f in observations(part)]
    if more := unsaid_bounds(part):
        lines.append(f"and {more}: see report.json")
    # Where there is no number, say why.
    why = dict.fromkeys(f"{f.auditor}: {observation(f)}" for f in part.findings)
    return [*head, *(lines or why)]


def _line(finding: Finding) -> str:
    """Return a finding with its size, its method and what the method says without a leak."""
    kind = "approximation: " if finding.kind == "approximation" else ""
    more = (size(finding), evidence(finding), null_band(finding))
    words = [f"{finding.auditor}: {kind}{finding.rule}", *(w for w in more if w)]
    return f"{brief(finding)} ({'; '.join(words)})"
