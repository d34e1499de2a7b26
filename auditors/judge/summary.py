"""The verdict on a run as lines of text, for a terminal and for a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.judge.adversary import Group, unsaid_bounds
from leakmeter.auditors.judge.meaning import certainties, observations, surprises
from leakmeter.auditors.judge.verdict import judged, overall
from leakmeter.auditors.wording import (
    both_ends,
    claim,
    evidence,
    null_band,
    observation,
    observed,
    plain_spaces,
    size,
    terms,
)

_WIDTH = 80  # of an ordinary terminal


def summary(
    findings: Sequence[Finding],
    failures: Sequence[str] = (),
    limitations: Sequence[Limitation] = (),
    warnings: Sequence[RunWarning] = (),
) -> list[str]:
    """Return the verdict on the run, then a block of lines for each attacker.

    Args:
        findings: Of the run and its rounds; only those of the run are printed.
        failures: Which auditors were left out, and why.
        limitations: What auditors cannot see or show here.
        warnings: Reasons to doubt the run itself.
    """
    lines = _lines(findings, failures, limitations, warnings)
    return [plain_spaces(line) for line in lines]


def _lines(
    findings: Sequence[Finding],
    failures: Sequence[str],
    limitations: Sequence[Limitation],
    warnings: Sequence[RunWarning],
) -> Iterator[str]:
    made = judged([f for f in findings if f.server_round is None])
    yield from _paragraph(overall(made, warnings))
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
