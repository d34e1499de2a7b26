"""Keeps the line of a round open until its evaluation is over, then writes it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flwr.app import ArrayRecord, MetricRecord

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook import wire
from leakmeter.auditors.run_log import RoundLine, RunLog

OnRound = Callable[[RoundLine, ArrayRecord], None]


class RoundLog:
    """Collects what is known about each round and writes it when the round is over.

    Args:
        run_log: Where lines are written, if anywhere.
        on_round: Called with the line of each finished round and the model after it.
    """

    def __init__(self, run_log: RunLog | None, on_round: OnRound) -> None:
        self._run_log, self._on_round = run_log, on_round
        self._open: tuple[RoundLine, ArrayRecord] | None = None
        self.findings: list[Finding] = []
        self.cohorts: list[int] = []  # clients that answered, round by round
        self.accuracy: float | None = None  # after the last round in which anybody measured it
        self.failure: OSError | None = None

    @property
    def line(self) -> RoundLine | None:
        """The line that is open."""
        return None if self._open is None else self._open[0]

    def forget(self) -> None:
        """Delete a line that an interrupted start has left."""
        self._open = None

    def put(self, line: RoundLine, arrays: ArrayRecord) -> None:
        """Open the line of a round that was aggregated."""
        self._open = (line, arrays)

    def note(self, metrics: object) -> None:
        """Add evaluation metrics to the line that is open."""
        if self._open is not None:
            line, arrays = self._open
            self._open = (replace(line, metrics={**line.metrics, **scalars(metrics)}), arrays)

    def amend(self, server_round: object, metrics: object, arrays: ArrayRecord | None) -> None:
        """Note a further aggregate of a round whose line is open; its findings stay."""
        if self._open is None or self._open[0].server_round != server_round:
            return
        self.note(metrics)
        if arrays is not None:
            self._open = (self._open[0], arrays)

    def flush(self) -> OSError | None:
        """Write the open line, once, and tell whoever listens.

        Returns:
            Why it could not be written; then no further line is tried.
        """
        if self._open is None:
            return None
        line, arrays = self._open
        self._open = None
        self.findings += line.findings
        self.cohorts.append(line.num_clients)
        self.accuracy = self.accuracy if line.accuracy is None else line.accuracy
        failed = None
        # Before the callback: a keeper of the run's state must know that the line is missing.
        if self._run_log is not None:
            try:
                self._run_log.add(line)
            except OSError as error:
                self._run_log = None
                self.failure = failed = error
        self._on_round(line, arrays)
        return failed


def scalars(metrics: object) -> dict[str, float]:
    """Return the metrics that are single numbers; a custom loop may return anything."""
    if not isinstance(metrics, Mapping):
        return {}
    return {str(k): wire.as_float(v) for k, v in metrics.items() if isinstance(v, int | float)}


def with_findings(metrics: MetricRecord | None, findings: Sequence[Finding]) -> MetricRecord | None:
    """Return the metrics with what auditors found, for Flower's log and result.

    If an auditor reports several numbers for one quantity, each name includes its kind: a weaker
    kind must not pass for a stronger one.
    """
    if not findings:
        return metrics
    names = Counter((f.auditor, f.quantity) for f in findings)
    said: dict[str, float] = {}
    for f in findings:
        several = names[f.auditor, f.quantity] > 1
        said.setdefault(f"{f.auditor}.{f.quantity}" + f".{f.kind}" * several, float(f.value))
    return MetricRecord({**(metrics or {}), **said})
