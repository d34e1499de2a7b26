"""Strategies as foreign projects have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from leakmeter.auditors.hook.grid import GridWrapper
from leakmeter.auditors.hook.wrapper import Wrapper


class Through(Wrapper):
    """Hands everything on."""


class Sorted(FedAvg):
    """Asks all nodes in their order: Flower's own order is random, and so are float32 sums."""

    def configure_train(self, *asked: Any) -> Any:
        """Return the messages by node."""
        return sorted(super().configure_train(*asked), key=lambda m: m.metadata.dst_node_id)


class OwnLoop(FedAvg):
    """A strategy with a loop and attributes of its own, as in Flower's advanced example."""

    favourite = "blue"

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **more: Any
    ) -> Result:
        """Train, and remember which further options were given."""
        self.options = sorted(more)
        arrays, result = initial_arrays, Result()
        for server_round in range(1, num_rounds + 1):
            messages = self.configure_train(server_round, arrays, ConfigRecord(), grid)
            arrays, metrics = self.aggregate_train(server_round, grid.send_and_receive(messages))
            result.train_metrics_clientapp[server_round] = metrics
        result.arrays = arrays
        return result


class Piecemeal(FedAvg):
    """A loop that aggregates every reply by itself, as asynchronous ones do."""

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **_: Any
    ) -> Result:
        """Train, one aggregate for each reply."""
        result = Result(arrays=initial_arrays)
        for server_round in range(1, num_rounds + 1):
            messages = self.configure_train(server_round, result.arrays, ConfigRecord(), grid)
            for reply in grid.send_and_receive(messages):
                result.arrays, _metrics = self.aggregate_train(server_round, [reply])
        return result


class TwoPhases(OwnLoop):
    """A loop that counts its rounds from 1 twice."""

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **more: Any
    ) -> Result:
        """Train, and train once more."""
        first = super().start(grid, initial_arrays, num_rounds, **more)
        return super().start(grid, first.arrays, num_rounds, **more)


class Counting(FedAvg):
    """A loop that counts its rounds in its own way."""

    numbers: Any = ()

    def configure_train(
        self, server_round: Any, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        """Tell clients a number that Flower can send."""
        return super().configure_train(int(server_round), arrays, config, grid)

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **_: Any) -> Any:
        """Train a round for each of the numbers."""
        result = Result(arrays=initial_arrays)
        for number in self.numbers[:num_rounds]:
            messages = self.configure_train(number, result.arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages)
            result.arrays, _metrics = self.aggregate_train(number, replies)
        return result


class Replies(GridWrapper):
    """Delivers messages, and hands on what a function makes of their replies."""

    def __init__(self, grid: Grid, change: Callable[[list[Message]], Iterable[Message]]) -> None:
        super().__init__(grid)
        self._change = change

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the changed replies."""
        return self._change(list(self.grid.send_and_receive(messages, timeout=timeout)))
