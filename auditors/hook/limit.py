"""Ends a run in order once an ε above a limit is proven."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from leakmeter.auditors.auditor import Auditor
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook.wrapper import EndedError
from leakmeter.auditors.run_log import Callback, StopAbove
from leakmeter.auditors.wording import Assumption, is_epsilon, number

_log = logging.getLogger("flwr")

# Fields of Flower's result.
Metrics = Literal[
    "train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"
]


class Limit(Resumable):
    """The largest proven ε at which a run continues.

    Only bounds that hold at all rounds together count: looking at others after every round, and
    stopping at the first large one, would break their confidence.

    Args:
        callbacks: Those of the run; without a `StopAbove` it is never stopped.
        auditors: Those of the run.

    Attributes:
        proven: The largest such bound so far.
        result: What Flower's loop would have returned, as far as it came.
        reason: Why the run was stopped; None if it was not.
    """

    proven: Kept[float]

    def __init__(self, callbacks: Sequence[Callback], auditors: Sequence[Auditor]) -> None:
        limits = [one.epsilon for one in callbacks if isinstance(one, StopAbove)]
        if limits and not any(auditor.is_anytime for auditor in auditors):
            names = [auditor.name for auditor in auditors]
            raise ValueError(
                "StopAbove needs an auditor whose bounds hold at all rounds together, got "
                f"{names}: try OneShotCanaries(seats=2, confidence=Anytime(0.95))"
            )
        self.above = min(limits, default=None)
        self.begin()

    def begin(self) -> None:
        """Forget an earlier run."""
        self.proven, self.result = 0.0, Result()
        self.reason: str | None = None

    def note(self, findings: Iterable[Finding]) -> None:
        """Note what a round has proven; a bound under a condition proves nothing."""
        together = (f for f in findings if f.is_anytime and not f.is_conditional)
        shown = (f.value for f in together if is_epsilon(f))
        self.proven = max(self.proven, *shown, 0.0)

    def keep(self, name: Metrics, server_round: int, metrics: MetricRecord | None) -> None:
        """Keep metrics of a round for the result of a run that may stop."""
        if self.above is not None and metrics is not None:
            getattr(self.result, name)[server_round] = metrics

    def check(self, arrays: ArrayRecord) -> None:
        """Stop before a round if more than the limit is proven.

        Args:
            arrays: The model that the round would start from.

        Raises:
            EndedError: The run stops here.
        """
        if self.above is None or self.proven <= self.above:
            return
        shown = number(self.proven, kind="lower_bound")
        self.reason = f"ε ≥ {shown} is proven, above the limit of {self.above:g}"
        self.result.arrays = arrays
        _log.warning("the run stops before its last round, as asked: %s", self.reason)
        raise EndedError(self.reason, self.result)

    def qualified(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings of the run; after a stop, other bounds than those are conditional.

        What stopped the run depends on the same scores as they do.
        """
        if self.reason is None:
            return list(findings)
        return [
            replace(f, assumptions=(*f.assumptions, Assumption.FIXED_END))
            if f.kind == "lower_bound" and not f.is_anytime
            else f
            for f in findings
        ]
