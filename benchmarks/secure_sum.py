"""Secure rounds to be measured: their shape, and a grid that calls client mods in this process.

The scripts that ask the questions are beside it; this one and its two sides only play.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from flwr.app import Array, Context, Error, Message
from flwr.client.mod import make_ffn
from flwr.clientapp import ClientApp

from benchmarks.measure import Timer
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.papers import base
from leakmeter.strategies.secure_sum.sum_round import AbandonedError

Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]
T = TypeVar("T")

UPDATE = 0.25  # what every client adds to every coordinate
WEIGHT = 50
DROPOUT = 0.1
THRESHOLD = 0.6


class Dropout(Exception):  # noqa: N818  (it is none of the program's)
    """A client that does not upload."""


@dataclass(frozen=True)
class Case:
    """One shape of a round; targets are by the side of ours that they are for."""

    clients: int
    dim: int
    neighbours: int | Literal["auto"] | None
    repetitions: int
    targets: Mapping[str, float] = field(default_factory=dict)

    @property
    def dropped(self) -> set[int]:
        """Nodes that have shared and do not upload."""
        return set(range(1, round(DROPOUT * self.clients) + 1))

    def __str__(self) -> str:
        graph = "complete" if self.neighbours is None else f"{self.neighbours} neighbours"
        return f"{self.clients} clients, d = {self.dim:,}, {graph}"


class Direct(InlineGrid):
    """Calls a client mod without an engine around it, and may count the bytes that pass.

    An exception keeps what it did to the client's state, which is fine here: the client is gone.
    """

    def __init__(self, mod: Mod, train: Call, num_nodes: int, count_bytes: bool) -> None:
        super().__init__(ClientApp(), num_nodes)
        self.down = self.up = 0
        # As Flower chains them: a mod that masks reads the list that it is in.
        self._call, self._counts = make_ffn(train, [mod]), count_bytes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Call the mod for each message in turn."""
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
            self.down += _size(message) if self._counts else 0
            node = message.metadata.dst_node_id
            self._contexts[node] = context = self._contexts[node]
            try:
                reply = self._call(message, context)
            except Dropout as error:
                reply = Message(Error(code=2, reason=str(error)), reply_to=message)
            self.up += _size(reply) if self._counts else 0
            replies.append(reply)
        return replies


def _size(message: Message) -> int:
    """Return the bytes of a message's records; numbers take eight, lists are added up."""
    if message.has_error():
        return 0
    return sum(_bytes(dict(record)) for record in message.content.values())


def _bytes(value: Any) -> int:
    match value:
        case dict():
            return sum(len(name) + _bytes(entry) for name, entry in value.items())
        case list():
            return sum(map(_bytes, value))
        case Array():
            return len(value.data)
        case bytes() | str():
            return len(value)
    return 8


def settle() -> None:
    """Leave what is there out of garbage collection: a pass over it takes a tenth of our round."""
    gc.collect()
    gc.freeze()


def within_a_run(work: Callable[[], T]) -> T:
    """Do the work where Flower lets messages be made, and return what comes of it."""
    try:
        return base.within_a_run(work)
    finally:
        gc.unfreeze()


def until_one_ends(play: Timer) -> tuple[float, int]:
    """Return the CPU seconds of rounds until one ends, and how many were abandoned before it.

    With 14 neighbours a round may have too few shares for its dropouts.
    """
    spent, abandoned = 0.0, 0
    while True:
        begin = time.process_time()
        try:
            return spent + play(), abandoned
        except AbandonedError:
            spent, abandoned = spent + time.process_time() - begin, abandoned + 1
