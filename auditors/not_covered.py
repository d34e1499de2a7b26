"""Findings about whole clients beside a guarantee that is for single records only.

Zhang and Psounis 2024 (arXiv:2405.04551) and the bound of water filling speak of one record of one
client. Canaries and the likelihood-ratio audit exchange whole updates, which differ in all records
and in the client's own noise, and may exceed that guarantee honestly. Every such finding says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from leakmeter.auditors.auditor import Auditor, Canary, Project, RoundMessages, RoundView
from leakmeter.auditors.finding import Finding

WORDS = "unit client, not covered by the guarantee for a record"
_ASSUMED = (
    "whole updates are exchanged: this may be above the guarantee for a record and does not "
    "contradict it"
)
_FROZEN = (
    "an update holds its client's own sampling and noise, drawn once: told apart are updates, not "
    "data, and that noise hides nothing here; only the others' does"
)


class NotCovered(Auditor):
    """Does what another auditor does, and says of clients that the guarantee does not cover them.

    Args:
        auditor: The other.
        is_frozen: Whether updates that it tells apart carry the client's own noise.
    """

    def __init__(self, auditor: Auditor, *, is_frozen: bool = False) -> None:
        self._auditor = auditor
        self._assumed = (_ASSUMED, _FROZEN) if is_frozen else (_ASSUMED,)
        self.name, self.reads = auditor.name, auditor.reads
        self.wants_truth = auditor.wants_truth

    @property
    def canaries_played(self) -> tuple[int, int] | None:
        """The other's canaries."""
        return self._auditor.canaries_played

    def begin(self, dim: int, num_rounds: int) -> None:
        """Begin."""
        self._auditor.begin(dim, num_rounds)

    def limits(self, project: Project) -> Sequence[str]:
        """Return what the other cannot do."""
        return self._auditor.limits(project)

    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        """Return the other's canaries."""
        return self._auditor.instruct(server_round, chosen)

    def bind(self, messages: RoundMessages) -> None:
        """Show the other the messages of a round."""
        self._auditor.bind(messages)

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Return the other's findings of the round, with the words."""
        return [self._marked(finding) for finding in self._auditor.observe(view)]

    def report(self) -> Sequence[Finding]:
        """Return the other's findings of the run, with the words."""
        return [self._marked(finding) for finding in self._auditor.report()]

    def state(self) -> dict[str, Any]:
        """Return the other's state."""
        return self._auditor.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned."""
        self._auditor.restore(state)

    def _marked(self, finding: Finding) -> Finding:
        """Return a finding with the words, unless it is about a record."""
        if finding.unit != "client":
            return finding
        return replace(
            finding,
            threat_model=f"{finding.threat_model}; {WORDS}",
            assumptions=(*finding.assumptions, *self._assumed),
        )
