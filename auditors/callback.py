"""What `Audited` tells others while a run goes on; subclass `Callback` to send it anywhere.

A callback only listens: it changes neither the training nor the audit. One that fails is logged and
left out, and the run goes on without it.
"""

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.run_log import RoundLine

_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class RunStart:
    """What is known before round 1.

    Attributes:
        num_rounds: Length of the whole run.
        rounds_done: Rounds of an interrupted run that are already there.
        name: What the report calls the run.
        config: How the run was made, as far as `Audited` was told.
        folder: Where the run log is written; None if nothing is.
    """

    num_rounds: int
    rounds_done: int = 0
    name: str = "run"
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True)
class RunEnd:
    """What is known after the last round.

    Attributes:
        findings: About the run as a whole; those of its rounds came with the rounds.
        failures: Which auditors were left out, when and why.
        limitations: What auditors cannot see or show in this project.
        warnings: Reasons to doubt the run itself.
        folder: Where `report.json` is; None if nothing was written.
    """

    findings: Sequence[Finding]
    failures: Sequence[str] = ()
    limitations: Sequence[Limitation] = ()
    warnings: Sequence[RunWarning] = ()
    folder: Path | None = None


class Callback(ABC):
    """Hears of the start, of every finished round and of the end; override what you need.

    Example:
        class Alarm(Callback):
            def on_round(self, line, warnings):
                for finding in line.findings:
                    if finding.kind == "lower_bound" and finding.value > 1:
                        print(f"round {line.server_round}: epsilon above {finding.value:.2f}")

        strategy = Audited(FedAvg(), auditors=[...], callbacks=[Alarm()])
    """

    def on_start(self, start: RunStart) -> None:
        """Hear what is about to run."""

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Hear of a finished round: its metrics and findings, and the run's warnings so far."""

    def on_end(self, end: RunEnd) -> None:
        """Hear what the auditors say of the whole run; the report is on disk by now."""


class Listeners:
    """The callbacks of a run.

    Args:
        callbacks: Whom to tell, in this order.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        if wrong := [one for one in callbacks if not isinstance(one, Callback)]:
            raise ValueError(
                f"callbacks must be a list of Callback objects, got {wrong[0]!r}; "
                "for example callbacks=[TensorBoard()]"
            )
        self._callbacks = list(callbacks)

    def tell(self, say: Callable[[Callback], None]) -> None:
        """Call each of them; what one raises never reaches the training."""
        for callback in list(self._callbacks):
            try:
                say(callback)
            except Exception as error:
                self._callbacks.remove(callback)
                _log.warning(
                    "%s is told nothing further, since it failed: %s: %s",
                    *(type(callback).__name__, type(error).__name__, error),
                )
