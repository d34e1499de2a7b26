"""Reports of schema 1: shown as they are, never compared, because their claims are prose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from leakmeter.auditors.finding import (
    Adjacency,
    Bound,
    Finding,
    Limitation,
    Observer,
    ThreatModel,
    Unit,
)
from leakmeter.fl_app.report.read.report import Round

_LIMIT = "limit"  # the quantity of what is a limitation today


@dataclass(frozen=True, kw_only=True)
class Prose(ThreatModel):
    """A threat model in words; what the attacker sees is not a field, so nothing is within it.

    Attributes:
        text: As the report has it.
    """

    text: str

    def sentence(self) -> str:
        """Return the words of the report."""
        return self.text


@dataclass(frozen=True, kw_only=True)
class _Finding(Bound):
    """A finding as schema 1 has it."""

    auditor: str
    quantity: str
    threat_model: str
    observer: Observer
    adjacency: Adjacency | None
    unit: Unit
    server_round: int | None
    null_band: tuple[float, float] | None
    seed: int | None
    details: Mapping[str, Any]

    def today(self) -> Finding:
        """Return it as a finding of today. Of the details, single numbers and words are kept."""
        same = {f.name: getattr(self, f.name) for f in fields(self)}
        observer, details = same.pop("observer"), same.pop("details")
        single = bool | int | float | str | None
        return Finding(
            **same
            | {
                "threat_model": Prose(observer=observer, sees=None, text=self.threat_model),
                "facts": {k: v for k, v in details.items() if isinstance(v, single)},
            }
        )


@dataclass(frozen=True)
class FirstLine(Round):
    """One line of rounds.jsonl in schema 1."""

    findings: tuple[_Finding, ...]


@dataclass(frozen=True)
class FirstReport:
    """A report of schema 1; its `versions` may be missing."""

    config: Mapping[str, Any]
    rounds: tuple[Round, ...]
    findings: tuple[_Finding, ...]
    failures: tuple[str, ...]


def today(found: tuple[_Finding, ...]) -> tuple[tuple[Finding, ...], tuple[Limitation, ...]]:
    """Return findings and limitations of today."""
    limits = dict.fromkeys(Limitation(f.auditor, f.rule) for f in found if f.quantity == _LIMIT)
    return tuple(f.today() for f in found if f.quantity != _LIMIT), tuple(limits)
