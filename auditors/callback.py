"""What `Audited` tells others during a run; subclass `Callback` to send it anywhere.

A callback only listens: it changes neither the training nor the audit. One that fails is logged and
left out, and the run continues without it. `StopAbove` alone does more: it ends the run.
"""

from __future__ import annotations

import json
import logging
import math
import time
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leakmeter.auditors.codec import plain
from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.run_log import RoundLine, write_atomically
from leakmeter.auditors.verdict.claim import Claim

_log = logging.getLogger("flwr")
PROGRESS = "progress.json"


@dataclass(frozen=True)
class RunStart:
    """What is known before round 1.

    Attributes:
        num_rounds: Length of the whole run.
        rounds_done: Rounds of an interrupted run that are already there.
        name: What the report calls the run.
        config: How the run was made, as far as `Audited` was told.
        folder: Where the run log is written; None if nothing is.
        claims: Privacy claims that are known.
    """

    num_rounds: int
    rounds_done: int = 0
    name: str = "run"
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    claims: Sequence[Claim] = ()


@dataclass(frozen=True)
class RunEnd:
    """What is known after the last round.

    Attributes:
        findings: About the run as a whole; those of its rounds came with the rounds.
        failures: Which auditors were left out, when and why.
        limitations: What auditors cannot see or show in this project.
        warnings: Reasons to doubt the run itself.
        folder: Where `report.json` is; None if nothing was written.
        claims: Privacy claims about the run.
    """

    findings: Sequence[Finding]
    failures: Sequence[str] = ()
    limitations: Sequence[Limitation] = ()
    warnings: Sequence[RunWarning] = ()
    folder: Path | None = None
    claims: Sequence[Claim] = ()


class Callback(ABC):
    """Called at the start, after every round and at the end; override what you need.

    Example:
        class Alarm(Callback):
            def on_round(self, line, warnings):
                for finding in line.findings:
                    if finding.kind == "lower_bound" and finding.value > 1:
                        print(f"round {line.server_round}: epsilon above {finding.value:.2f}")

        strategy = Audited(FedAvg(), auditors=[...], callbacks=[Alarm()])
    """

    def on_start(self, start: RunStart) -> None:
        """Called before round 1, with what is about to run."""

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Called after a round, with its metrics and findings, and the run's warnings so far."""

    def on_end(self, end: RunEnd) -> None:
        """Called after the last round, when the report is on disk."""


@dataclass(frozen=True)
class StopAbove(Callback):
    """Ends a run in order, before its next round, once an ε above a limit is proven.

    It needs an auditor with `confidence=Anytime(…)`: looking at other bounds after every round, and
    stopping at the first large one, would break their confidence. `start` returns the model and the
    metrics so far; `Audited.ended`, log and report say why.

    Attributes:
        epsilon: The limit.

    Example:
        auditors = [OneShotCanaries(seats=2, confidence=Anytime(0.95))]
        strategy = Audited(FedAvg(), auditors, callbacks=[StopAbove(5.0)])
    """

    epsilon: float

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"StopAbove must be given an ε in [0, inf), got {self.epsilon}")


@dataclass(frozen=True)
class RunProgress:
    """What `progress.json` says of a run that has no report yet.

    Attributes:
        num_rounds: Length of the whole run.
        rounds_done: Rounds that have ended.
        rounds_before: Of these, how many an earlier process has run.
        started: When this process began, in seconds since 1970.
        updated: When its last round ended.
        warnings: Reasons to doubt the run itself, so far.
    """

    num_rounds: int
    rounds_done: int
    rounds_before: int
    started: float
    updated: float
    warnings: tuple[RunWarning, ...] = ()

    def seconds_left(self, now: float) -> float | None:
        """Return about how long the run will take; None before its first round has ended."""
        if (each := self._seconds_each()) is None:
            return None
        planned = each * (self.num_rounds - self.rounds_done)
        return max(planned - max(now - self.updated, 0.0), 0.0)

    def is_overdue(self, now: float) -> bool:
        """Whether the next round has taken so long that the process has probably ended."""
        if (usual := self._seconds_each()) is None or self.rounds_done >= self.num_rounds:
            return False  # nothing is known of the first round, nor of the report
        return now - self.updated > 60 + 5 * usual

    def _seconds_each(self) -> float | None:
        played = self.rounds_done - self.rounds_before
        return (self.updated - self.started) / played if played > 0 else None


class ProgressFile(Callback):
    """Keeps `progress.json` in the run folder during the run, for whoever watches it.

    It has what `rounds.jsonl` lacks: see `RunProgress`. The report takes its place.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._now: RunProgress | None = None

    def on_start(self, start: RunStart) -> None:
        """Begin the file; without a run folder there is none."""
        self._path = None if start.folder is None else start.folder / PROGRESS
        now, done = time.time(), start.rounds_done
        self._write(RunProgress(start.num_rounds, done, done, now, now))

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Note a finished round."""
        assert self._now is not None
        self._write(
            replace(
                self._now,
                rounds_done=line.server_round,
                updated=time.time(),
                warnings=tuple(warnings),
            )
        )

    def on_end(self, end: RunEnd) -> None:
        """Remove the file: the report says all of it."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self, now: RunProgress) -> None:
        self._now = now
        if self._path is not None:
            write_atomically(self._path, json.dumps(plain(now)) + "\n")


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
                    "%s failed and is left out from here on: %s: %s",
                    *(type(callback).__name__, type(error).__name__, error),
                )
