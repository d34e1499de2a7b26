"""What an audit of a run gives back to Python: its verdict, findings and folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from leakmeter.auditors.codec import plain
from leakmeter.auditors.finding import Finding, Limitation
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.claim import ClaimResult
from leakmeter.auditors.verdict.verdict import Row, Verdict
from leakmeter.auditors.wording import counted, plain_spaces, share

_MAX_ROWS = 3
_HEADS = ("Attacker", "Can tell", "Shown", "At most", "Evidence")
_COLOURS: Final[Mapping[labels.Tone, str]] = {
    "alarm": "#b3261e",
    "warn": "#a15c00",
    "mild": "#a15c00",
    "grey": "#5f6368",
    "calm": "#1b6e3c",
}


@dataclass(frozen=True)
class AuditResult:
    """An audited run.

    Attributes:
        verdict: What the run says.
        findings: About the run as a whole.
        failures: Which auditors were left out, and why.
        limitations: What auditors cannot see or show here.
        folder: Where report and page are; None if nothing was kept.
        is_finished: Whether the run has its report; the verdict on an unfinished one has only what
            holds so far.
    """

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    failures: tuple[str, ...] = ()
    limitations: tuple[Limitation, ...] = ()
    folder: Path | None = None
    is_finished: bool = True

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last model, where anybody measured it."""
        return self.verdict.accuracy

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "verdict": self.verdict.to_json(),
            "findings": [f.to_json() for f in self.findings],
            "failures": list(self.failures),
            "limitations": plain(self.limitations),
            "folder": None if self.folder is None else str(self.folder),
            "finished": self.is_finished,
        }

    def __repr__(self) -> str:
        claims = [_claim(one) for one in self.verdict.claims[:_MAX_ROWS]]
        most = self.verdict.rows[: _MAX_ROWS - len(claims)]
        rows = [*claims, *map(_line, most)]
        left = len(self.verdict.rows) - len(most)
        more = f"{counted(left, 'more attacker')}; " if left else ""
        lines = [sentences.headline(self.verdict), *(f"  {row}" for row in rows)]
        return plain_spaces("\n".join([*lines, f"  {more}{_end(self)}"]))

    def _repr_html_(self) -> str:
        """Return a card for a notebook."""
        colour = _COLOURS[labels.SEVERITIES[self.verdict.severity][1]]
        claims = [labels.cells_of_claim(one) for one in self.verdict.claims]
        rows = [labels.cells(row) for row in self.verdict.rows[: 2 * _MAX_ROWS]]
        return (
            f'<div style="border-left:4px solid {colour};padding:.5em 1em">'
            f"<p><strong>{escape(sentences.headline(self.verdict))}</strong></p>"
            f"<p>{escape(sentences.protection(self.verdict))}</p>"
            f"{_table(labels.CLAIM_HEADS, claims) if claims else ''}{_table(_HEADS, rows)}"
            f"<p>{escape(_end(self))}</p></div>"
        )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of a card."""
    head = "".join(f"<th>{one}</th>" for one in heads)
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _claim(result: ClaimResult) -> str:
    what, delivered, shown, verdict, by = labels.cells_of_claim(result)
    return f"claim {what} ({by}): delivered {delivered}, shown {shown}: {verdict}"


def _line(row: Row) -> str:
    attacker, tells, shown, most, _ = labels.cells(row)
    return f"{attacker} ({tells}): shown {shown}, at most {most}"


def _end(result: AuditResult) -> str:
    """Return accuracy, what is missing, and the folder, those that there are."""
    parts = [f"accuracy {'not measured' if result.accuracy is None else share(result.accuracy)}"]
    if not result.is_finished:
        parts.append("the run is unfinished")
    if result.failures:
        parts.append(f"{counted(len(result.failures), 'failure')} of auditors")
    if result.folder is not None:
        parts.append(f"report in {result.folder}")
    return "; ".join(parts)
