"""The auditors of a run together: one that fails is left out, and the training goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from auditors.base import Auditor, Canary, Finding, RoundView

_log = logging.getLogger("flwr")


class Panel:
    """Calls each auditor in turn and keeps the reason where one has failed.

    A wrong setting that shows in `begin`, before anything is sent, is an error; everything later
    is a failure that the report names.
    """

    def __init__(self, auditors: Sequence[Auditor]) -> None:
        names = [a.name for a in auditors]
        if len(set(names)) < len(names):
            raise ValueError(f"auditors must have different names, got {names}")
        self.auditors = list(auditors)
        self.failures: list[str] = []
        self._restored: Mapping[str, Any] = {}

    @property
    def wants_truth(self) -> bool:
        """Whether anyone needs the plain updates."""
        return any(a.wants_truth for a in self.auditors)

    def begin(self, dim: int, num_rounds: int) -> None:
        """Wake the auditors, each with its state of an interrupted run if there is one."""
        for auditor in self.auditors:
            auditor.begin(dim, num_rounds)
            if auditor.name in self._restored:
                auditor.restore(self._restored[auditor.name])

    def instruct(self, server_round: int, chosen: Sequence[int]) -> dict[int, Canary]:
        """Ask each auditor for its canaries among the clients that are still free."""
        orders: dict[int, Canary] = {}
        for auditor in list(self.auditors):
            free = [c for c in chosen if c not in orders]
            try:
                wanted = auditor.instruct(server_round, free)
                if not set(wanted) <= set(free):
                    raise ValueError(f"may instruct only clients in {free}, got {sorted(wanted)}")
                orders |= wanted
            except Exception as error:
                self._drop(auditor, f"round {server_round}", error)
        return orders

    def bind(self, server_round: int, *messages: Any) -> None:
        """Show the round's messages to the samplers that send them again."""
        for auditor in list(self.auditors):
            bind = getattr(getattr(auditor, "sampler", None), "bind", None)
            if bind is None:
                continue
            try:
                bind(*messages)
            except Exception as error:
                self._drop(auditor, f"round {server_round}", error)

    def observe(self, view: RoundView) -> list[Finding]:
        """Show a round to each auditor and return what they find in it."""
        findings: list[Finding] = []
        for auditor in list(self.auditors):
            try:
                findings += auditor.observe(view)
            except Exception as error:
                self._drop(auditor, f"round {view.server_round}", error)
        return findings

    def report(self) -> list[Finding]:
        """Return what each auditor finds in the run."""
        findings: list[Finding] = []
        for auditor in list(self.auditors):
            try:
                findings += auditor.report()
            except Exception as error:
                self._drop(auditor, "report", error)
        return findings

    def state(self) -> dict[str, Any]:
        """Return the auditors' states by name, and who has failed."""
        states = {a.name: a.state() for a in self.auditors}
        return {"auditors": states, "failures": list(self.failures)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned; it reaches the auditors in `begin`."""
        self._restored = state["auditors"]
        # An auditor without a state had failed, and stays out.
        self.auditors = [a for a in self.auditors if a.name in self._restored]
        self.failures = list(state["failures"])

    def _drop(self, auditor: Auditor, when: str, error: Exception) -> None:
        _log.exception("auditor %s failed in %s and is left out", auditor.name, when)
        self.failures.append(f"{auditor.name}, {when}: {type(error).__name__}: {error}")
        self.auditors.remove(auditor)
