"""What a run says as lines of text, for a terminal and a log: in short, and in full."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from leakmeter.auditors.finding import Finding, Limitation
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.meaning import (
    certainties,
    ends,
    observations,
    parts,
    surprises,
    told,
    too_high,
    unsaid_bounds,
)
from leakmeter.auditors.verdict.steps import MAX_STEPS, Step, steps
from leakmeter.auditors.verdict.verdict import Block, Row, Verdict
from leakmeter.auditors.wording import (
    claim,
    counted,
    evidence,
    in_ascii,
    null_band,
    observation,
    observed,
    plain_spaces,
    size,
    terms,
)

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

    steps: Sequence[Step] = ()
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
    said = [
        *ending.wrapped(_VERDICT + sentences.headline(verdict), " " * len(_VERDICT)),
        *ending.wrapped(sentences.protection(verdict)),
        "",
        *_claims(verdict, ending),
        *_table(verdict, ending),
        *ending.wrapped(sentences.upper_end(verdict, adds_noise=ending.adds_noise)),
        *ending.wrapped(f"{sentences.together(verdict)} {sentences.utility(verdict)}".strip()),
        *_notes(failures, verdict, ending),
        *_bits(verdict, ending),
        "",
        *_next(ending, is_sound=not verdict.warnings and not failures),
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
    cells = [labels.claimed(one) for one in shown]
    lines = columns(heads, cells, ending)
    pairs = zip(shown, cells, strict=True)
    said = (f"{row[0]}: {sentences.unconfirmed(one)}" for one, row in pairs if not one.is_refuted)
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
    rows += [labels.tested(test) for test in verdict.tests]
    lines = columns(_HEADS, rows, ending)
    if any(marks):
        lines.append("* shown by a weaker attacker, so by this one too")
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


def _next(ending: Ending, *, is_sound: bool) -> list[str]:
    """Return the next steps, each with its command in a line of its own to copy."""
    lines = []
    for i, step in enumerate(ending.steps[:MAX_STEPS], start=1):
        head = _NEXT if i == 1 else " " * len(_NEXT)
        lines += ending.wrapped(f"{head}{i}. {step.text}", f"{' ' * len(_NEXT)}   ")
        if step.command:
            lines.append(ending.spelled(f"{' ' * len(_NEXT)}   {step.command}"))
    if not lines:
        words = "Nothing to do." if is_sound else "Fix what the warnings name, then run again."
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
        yield from _paragraph(sentences.claimed(one.claim), indent="  ", hanging="      ")
        yield from _paragraph(sentences.refuted(one), indent="      ", hanging="      ")
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
        return observed(finding)
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
    lines = [_line(f) for f in told(part)]
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
