"""What a run says as lines of text, for a terminal and a log: in short, and in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten, wrap

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
_MIN_WIDTH = 6  # of a column
_MAX_ROWS, _MAX_BITS, _MAX_NOTES, _MAX_NOTE_LINES = 5, 2, 3, 4


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
        return in_ascii(text) if self.is_ascii else plain_spaces(text)


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
    width = ending.width
    said = [
        *_paragraph(_VERDICT + sentences.headline(verdict), width, hanging=" " * len(_VERDICT)),
        *_paragraph(sentences.protection(verdict), width),
        "",
        *_table(verdict, ending),
        *_paragraph(sentences.upper_end(verdict, adds_noise=ending.adds_noise), width),
        *_paragraph(f"{sentences.together(verdict)} {sentences.utility(verdict)}".strip(), width),
        *_notes(failures, verdict, width),
        *_bits(verdict, ending),
        "",
        *_next(ending.steps, width, is_sound=not verdict.warnings and not failures),
        *ending.places,
    ]
    return [ending.spelled(line) for line in said]


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


def _table(verdict: Verdict, ending: Ending) -> list[str]:
    """Return the attackers, worst first, in columns."""
    shown = verdict.rows[:_MAX_ROWS]
    marks = ["*" if labels.is_taken_over(row) else "" for row in shown]
    cells = [labels.cells(row) for row in shown]
    rows = [(*row[:-1], row[-1] + mark) for row, mark in zip(cells, marks, strict=True)]
    rows += [labels.tested(test) for test in verdict.tests]
    lines = _columns(_HEADS, rows, ending)
    if any(marks):
        lines.append("* shown by a weaker attacker, so by this one too")
    if left := len(verdict.rows) - len(shown):
        lines.append(f"… and {counted(left, 'more attacker')}: see the details")
    return lines


def _bits(verdict: Verdict, ending: Ending) -> list[str]:
    """Return the first figures in bits in a table of their own; the page has all of them."""
    lines = _columns(_IN_BITS, labels.in_bits(verdict)[:_MAX_BITS], ending)
    return ["", *lines] if lines else []


def _columns(heads: Sequence[str], found: Sequence[Sequence[str]], ending: Ending) -> list[str]:
    """Return cells as lines of a table; none for an empty one."""
    if not found:
        return []
    rows, width = [[ending.spelled(cell) for cell in row] for row in (heads, *found)], ending.width
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    # Two spaces between columns; where that is too wide, one from the right on.
    spaces = len(widths) - 1
    narrow = min(max(sum(widths) + 2 * spaces - width, 0), spaces)
    gaps = [*["  "] * (spaces - narrow), *[" "] * narrow, ""]
    # Words of another project may be long: the column of what can be told gives way.
    room = width - len("".join(gaps)) - sum(widths) + widths[1]
    widths[1] = max(min(widths[1], room), _MIN_WIDTH)
    cut = [(row[0], shorten(row[1], widths[1], placeholder="…"), *row[2:]) for row in rows]
    return [
        "".join(c.ljust(w) + gap for c, w, gap in zip(row, widths, gaps, strict=True)).rstrip()
        for row in cut
    ]


def _notes(failures: Sequence[str], verdict: Verdict, width: int) -> list[str]:
    """Return what went wrong, as far as a few lines can say it."""
    notes = [f"Warning: {warning.text}" for warning in verdict.warnings]
    notes += [words for row in verdict.rows if (words := too_high(row))]
    notes += [f"Not audited as planned: {failure}" for failure in failures]
    lines = [line for note in notes[:_MAX_NOTES] for line in _paragraph(note, width, hanging="  ")]
    if len(lines) > _MAX_NOTE_LINES or len(notes) > _MAX_NOTES:
        lines = lines[: _MAX_NOTE_LINES - 1]
        lines.append(f"  … {counted(len(notes), 'warning')} in all: see the details")
    return lines


def _next(todo: Sequence[Step], width: int, *, is_sound: bool) -> list[str]:
    """Return the next steps, each with its command in a line of its own to copy."""
    lines = []
    for i, step in enumerate(todo[:MAX_STEPS], start=1):
        head = _NEXT if i == 1 else " " * len(_NEXT)
        lines += _paragraph(f"{head}{i}. {step.text}", width, hanging=f"{' ' * len(_NEXT)}   ")
        if step.command:
            lines.append(f"{' ' * len(_NEXT)}   {step.command}")
    if not lines:
        words = "Nothing to do." if is_sound else "Fix what the warnings name, then run again."
        return [f"{_NEXT}{words}"]
    return lines


def _details(
    verdict: Verdict, failures: Sequence[str], limitations: Sequence[Limitation]
) -> Iterator[str]:
    for warning in verdict.warnings:
        yield from _paragraph(f"Warning: {warning.text}")
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
    if told_of:
        yield ""
        yield "All findings, with their assumptions, are in report.json."
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
        text, width, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False
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
