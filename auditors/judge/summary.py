"""What a run says as lines of text, for a terminal and a log: in short, and in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten, wrap

from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.judge.adversary import Group, unsaid_bounds
from leakmeter.auditors.judge.meaning import certainties, observations, surprises
from leakmeter.auditors.judge.standing import Standing, headline, standings, upper_bound
from leakmeter.auditors.judge.steps import MOST_STEPS, Step, steps
from leakmeter.auditors.judge.verdict import judged
from leakmeter.auditors.wording import (
    both_ends,
    claim,
    counted,
    evidence,
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
_LEAST_WIDTH = 12  # of a column
_MOST_ROWS, _MOST_NOTES, _MOST_NOTE_LINES = 5, 3, 4


@dataclass(frozen=True)
class Ending:
    """What the last lines of a run say in addition to its findings.

    Attributes:
        steps: What to do next.
        adds_noise: Whether the run adds noise; None where nobody knows.
        places: Further lines, such as where the page is.
    """

    steps: Sequence[Step] = ()
    adds_noise: bool | None = None
    places: Sequence[str] = ()


def summary(
    findings: Sequence[Finding],
    failures: Sequence[str] = (),
    warnings: Sequence[RunWarning] = (),
    ending: Ending | None = None,
) -> list[str]:
    """Return the end of a run in at most 25 lines: verdict, attackers, upper bound, next steps.

    Args:
        findings: Of the run and its rounds; only those of the run count.
        failures: Which auditors were left out, and why.
        warnings: Reasons to doubt the run itself.
        ending: What else to say; None takes the steps that any project can do.
    """
    of_run = [f for f in findings if f.server_round is None]
    lines = standings(judged(of_run))
    ending = ending or Ending(steps(lines))
    said = [
        *_paragraph(_VERDICT + headline(lines, warnings), hanging=" " * len(_VERDICT)),
        "",
        *_table(lines),
        *_paragraph(upper_bound(of_run, adds_noise=ending.adds_noise)),
        *_notes(failures, warnings),
        "",
        *_next(ending.steps, is_sound=not warnings and not failures),
        *ending.places,
    ]
    return [plain_spaces(line) for line in said]


def details(
    findings: Sequence[Finding],
    failures: Sequence[str] = (),
    limitations: Sequence[Limitation] = (),
    warnings: Sequence[RunWarning] = (),
) -> list[str]:
    """Return all that a run says, a block of lines for each attacker.

    Args:
        findings: Of the run and its rounds; only those of the run are printed.
        failures: Which auditors were left out, and why.
        limitations: What auditors cannot see or show here.
        warnings: Reasons to doubt the run itself.
    """
    lines = _details(findings, failures, limitations, warnings)
    return [plain_spaces(line) for line in lines]


def _table(lines: Sequence[Standing]) -> list[str]:
    """Return the attackers, worst first, in columns; statements about the protocol are left out."""
    attackers = [one for one in lines if not one.is_statement]
    if not attackers:
        return []
    shown = attackers[:_MOST_ROWS]
    rows = [
        _HEADS,
        *((one.who, one.tells, one.shown, one.at_most, one.evidence) for one in shown),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADS))]
    # Two spaces between columns; where that is too wide, one from the right on.
    spaces = len(widths) - 1
    narrow = min(max(sum(widths) + 2 * spaces - _WIDTH, 0), spaces)
    gaps = [*["  "] * (spaces - narrow), *[" "] * narrow, ""]
    # Words of another project may be long: the column of what can be told gives way.
    room = _WIDTH - len("".join(gaps)) - sum(widths) + widths[1]
    widths[1] = max(min(widths[1], room), _LEAST_WIDTH)
    rows = [(row[0], shorten(row[1], widths[1], placeholder="…"), *row[2:]) for row in rows]
    table = [
        "".join(c.ljust(w) + gap for c, w, gap in zip(row, widths, gaps, strict=True)).rstrip()
        for row in rows
    ]
    if left := len(attackers) - len(shown):
        table.append(f"… and {counted(left, 'more attacker')}: see the details")
    return table


def _notes(failures: Sequence[str], warnings: Sequence[RunWarning]) -> list[str]:
    """Return what went wrong, as far as a few lines can say it."""
    notes = [f"Warning: {warning.text}" for warning in warnings]
    notes += [f"Not audited as planned: {failure}" for failure in failures]
    lines = [line for note in notes[:_MOST_NOTES] for line in _paragraph(note, hanging="  ")]
    if len(lines) > _MOST_NOTE_LINES or len(notes) > _MOST_NOTES:
        lines = lines[: _MOST_NOTE_LINES - 1]
        lines.append(f"  … {counted(len(notes), 'warning')} in all: see the details")
    return lines


def _next(todo: Sequence[Step], *, is_sound: bool) -> list[str]:
    """Return the next steps, each in a line, with a command in a line of its own to copy."""
    lines = []
    for i, step in enumerate(todo[:MOST_STEPS], start=1):
        head = _NEXT if i == 1 else " " * len(_NEXT)
        lines.append(f"{head}{i}. {step.text}")
        if step.command:
            lines.append(f"{' ' * len(_NEXT)}   {step.command}")
    if not lines:
        words = "Nothing to do." if is_sound else "Fix what the warnings name, then run again."
        return [f"{_NEXT}{words}"]
    return lines


def _details(
    findings: Sequence[Finding],
    failures: Sequence[str],
    limitations: Sequence[Limitation],
    warnings: Sequence[RunWarning],
) -> Iterator[str]:
    made = judged([f for f in findings if f.server_round is None])
    for warning in warnings:
        yield from _paragraph(f"Warning: {warning.text}")
    if made:
        yield ""
        yield "What the run leaks, by attacker"
        yield "(≈ estimate or approximation, ≥ lower bound with confidence, ≤ guarantee)"
    for verdict in made:
        first = verdict.group.findings[0]
        world = f" [{first.adjacency}, {first.unit}]" if first.adjacency else ""
        yield ""
        yield from _paragraph(verdict.group.adversary.sentence() + world)
        for line in _block(verdict.group):
            yield from _paragraph(line, indent="  ", hanging="      ")
    if limitations:
        yield ""
        yield "Limits of this audit"
    for limitation in limitations:
        words = f"{limitation.auditor}: {limitation.text}"
        yield from _paragraph(words, indent="  ", hanging="      ")
    if made:
        yield ""
        yield "All findings, with their assumptions, are in report.json."
    for failure in failures:
        yield f"not audited as planned: {failure}"


def brief(finding: Finding) -> str:
    """Return a finding in a few words that say how strong it is."""
    if finding.kind == "diagnostic":
        return observed(finding)
    return claim(finding) + terms(finding)


def _paragraph(text: str, *, indent: str = "", hanging: str = "") -> list[str]:
    """Return text as lines that are broken where an ordinary terminal ends."""
    return wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False
    )


def _block(group: Group) -> list[str]:
    """Return the lines about one attacker."""
    lines = []
    for f, upper in group.rows:
        if upper is not None:
            lines.append(both_ends(f, upper))
        lines += [_line(one) for one in (f, upper) if one is not None]
    lines += surprises(group)
    lines += [f"{f.auditor}: {f.rule}" for f in certainties(group)] if lines else []
    lines += [f"{f.auditor}: {observation(f)}" for f in observations(group)] if lines else []
    if more := unsaid_bounds(group.findings):
        lines.append(f"and {more}: see report.json")
    # Where there is no number, say why.
    return lines or list(dict.fromkeys(f"{f.auditor}: {observation(f)}" for f in group.findings))


def _line(finding: Finding) -> str:
    """Return a finding with its size, its method and what the method says without a leak."""
    kind = "approximation: " if finding.kind == "approximation" else ""
    more = (size(finding), evidence(finding), null_band(finding))
    words = [f"{finding.auditor}: {kind}{finding.rule}", *(w for w in more if w)]
    return f"{brief(finding)} ({'; '.join(words)})"
