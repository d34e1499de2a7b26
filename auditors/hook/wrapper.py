"""What every strategy that holds a strategy has in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook.chain import replaced


class Wrapper(Strategy):
    """Hands every call on to `strategy`; subclasses change the calls they are about.

    `start` runs the inner strategy's own loop with this wrapper's methods put in its place, so a
    strategy that overrides `start` keeps working, however deep it is wrapped. Therefore inner
    calls go through `_inner_...`, taken before anything is replaced, never through `strategy`.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self._inner_configure_train = strategy.configure_train
        self._inner_aggregate_train = strategy.aggregate_train
        self._inner_configure_evaluate = strategy.configure_evaluate
        self._inner_aggregate_evaluate = strategy.aggregate_evaluate

    @property
    def facts(self) -> Mapping[str, Any]:
        """What this wrapper knows of the round that just ended: fields of `RoundFacts`."""
        return {}

    def findings(self) -> Sequence[Finding]:
        """What this wrapper can say of the whole run, such as a guarantee."""
        return ()

    def state(self) -> dict[str, Any]:
        """Return this wrapper's own state, without the inner strategy's."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned."""

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the inner strategy's own loop around this wrapper's methods."""
        with replaced(
            self.strategy,
            configure_train=self.configure_train,
            aggregate_train=self.aggregate_train,
            configure_evaluate=self.configure_evaluate,
            aggregate_evaluate=self.aggregate_evaluate,
        ):
            return self.strategy.start(*args, **kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a training round."""
        return self._inner_configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the model and the metrics after a training round."""
        return self._inner_aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of an evaluation round."""
        return self._inner_configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the metrics of an evaluation round."""
        return self._inner_aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log what the inner strategy says of itself."""
        self.strategy.summary()
