"""Reproducible choice of clients: the same seed names the same clients in any engine.

Who takes part in which round is a pure function of seed and round.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.wrapper import Wrapper, foreigners, weight_key
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Indices, require
from leakmeter.clients.node import identity_of
from leakmeter.strategies.flower import (
    PartialGrid,
    Places,
    ReadArray,
    known_nodes,
    left_out,
    shapes,
    usable_evaluate_replies,
    usable_train_replies,
)

_log = logging.getLogger("flwr")

# Nodes register before their workers start, which may take minutes on a busy machine.
_ANSWER = 10
# From this many clients on a Poisson round draws its size first. Below, every client has a coin of
# its own, as in all earlier releases.
_MANY = 2**16


class Participation(Protocol):
    """Chooses the clients of a round."""

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        """Return the client indices of the round in increasing order."""
        ...

    def check(self, num_clients: int) -> None:
        """Raise if this number of clients does not fit the pattern."""
        ...

    def sampling(self, num_clients: int) -> dict[str, Any]:
        """Return how clients are drawn, as fields of the accountant's `Release`."""
        ...


@dataclass(frozen=True)
class _Sized(Participation):
    """A pattern whose rounds all have as many clients."""

    size: int

    def __post_init__(self) -> None:
        require("at least 1", size=self.size)

    def check(self, num_clients: int) -> None:
        require(f"[1, {num_clients}]", size=self.size)


@dataclass(frozen=True)
class FixedSize(_Sized):
    """The same number of clients each round, uniformly without replacement."""

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        self.check(num_clients)
        return _some(num_clients, self.size, stream(seed, "cohort", server_round))

    def sampling(self, num_clients: int) -> dict[str, Any]:
        return {"sampling": "fixed", "cohort": self.size, "population": num_clients}


@dataclass(frozen=True)
class Poisson(Participation):
    """Each client independently, with the same probability; a round may be empty."""

    rate: float

    def __post_init__(self) -> None:
        require("(0, 1]", rate=self.rate)

    def check(self, num_clients: int) -> None:
        """Any number of clients will do."""

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        rng = stream(seed, "cohort", server_round)
        if num_clients >= _MANY:  # given their number, the clients are a uniform choice
            return _some(num_clients, int(rng.binomial(num_clients, self.rate)), rng)
        return list(map(int, np.flatnonzero(rng.random(num_clients) < self.rate)))

    def sampling(self, num_clients: int) -> dict[str, Any]:
        return {"sampling": "poisson", "rate": self.rate, "population": num_clients}


@dataclass(frozen=True)
class ShuffledEpochs(_Sized):
    """All clients in a random order, `size` per round, then all again in another order.

    The last round of an epoch is left out if it would be short, so every client takes part at
    most once per epoch and every round has the same size.

    Attributes:
        size: Clients per round.
        epochs: Passes over the clients; None for as many as the rounds take.
    """

    epochs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require("at least 1", is_optional=True, epochs=self.epochs)

    def max_rounds(self, num_clients: int) -> int | None:
        """Return how many rounds there can be; None if there is no end."""
        return None if self.epochs is None else self.epochs * (num_clients // self.size)

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        self.check(num_clients)
        most = self.max_rounds(num_clients)
        require(f"[1, {most or math.inf}]", rounds=server_round)
        epoch, turn = divmod(server_round - 1, num_clients // self.size)
        order = _order(seed, epoch, num_clients)
        return sorted(order[turn * self.size : (turn + 1) * self.size].tolist())

    def sampling(self, num_clients: int) -> dict[str, Any]:
        """Return nothing: no amplification is claimed for this pattern."""
        return {}


def EachOnce(size: int) -> ShuffledEpochs:  # noqa: N802 - reads like the other patterns
    """Return the pattern in which every client takes part at most once in the whole run."""
    return ShuffledEpochs(size, epochs=1)


def _some(num_clients: int, size: int, rng: np.random.Generator) -> list[int]:
    """Return a uniform choice without replacement, in increasing order, in time O(size)."""
    # numpy lists all clients only if it takes a fiftieth of them.
    return sorted(rng.choice(num_clients, size, replace=False).tolist())


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, num_clients: int) -> Indices:
    """Return the order of all clients in an epoch, drawn once for all of its rounds."""
    return stream(seed, "cohort", "epoch", epoch).permutation(num_clients)


class Chosen(Wrapper):
    """Picks the cohort of each round and keeps messages and replies in the order of clients.

    Flower gives nodes random ids, starts before all of them have registered and samples with a
    global generator. `Chosen` waits for all nodes, asks each once which client it is, unless the
    grid knows, and shows the inner strategy only the nodes of the round.

    Args:
        strategy: Uses all nodes it is shown; its own fraction must be 1.
        participation: Who takes part when.
        num_clients: How many nodes to wait for.
        seed: Seed of the cohorts, together with the round.
        patience: Seconds to wait for nodes.
        needs_answers: Whether a node that does not say which client it is, or gives an impossible
            answer, ends the run. In a simulation such a node is slow or set up wrongly, and another
            numbering would change the run. In a deployment it is one bad client among others: with
            False the nodes are then numbered by their ids.

    Attributes:
        num_chosen: How many clients the last round asked.
    """

    def __init__(
        self,
        strategy: Strategy,
        participation: Participation,
        *,
        num_clients: int,
        seed: int,
        patience: float = 120.0,
        needs_answers: bool = True,
    ) -> None:
        super().__init__(strategy)
        for held in foreigners(strategy):
            if held.fraction_train != 1.0:
                raise BadValueError("fraction_train", "1.0 inside Chosen", held.fraction_train)
        participation.check(num_clients)
        self._participation = participation
        self._num_clients = num_clients
        self._seed = seed
        self._patience = patience
        self._needs_answers = needs_answers
        self._client_of: Mapping[int, int] = {}
        self._node_of: Mapping[int, int] | range = {}
        self.num_chosen = 0
        self._shapes: dict[str, tuple[int, ...]] = {}

    @property
    def client_of(self) -> Mapping[int, int]:
        """Node id to client index."""
        return self._client_of

    @property
    def pattern(self) -> Mapping[str, Any]:
        """How clients are drawn, as fields of the accountant's `Release`."""
        return self._participation.sampling(self._num_clients)

    def cohort(self, server_round: int) -> list[int]:
        """Return the clients of a round."""
        return self._participation.cohort(self._seed, server_round, self._num_clients)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's messages for the cohort, ordered by client."""
        if not self._node_of:
            self._identify(grid)
        cohort = self.cohort(server_round)
        self.num_chosen, self._shapes = len(cohort), shapes(arrays)
        self.unused = frozenset()
        self._check_enough(max(len(cohort), 1))
        # A Poisson round may be empty. Flower would wait for nodes, and its momentum strategies
        # need to see the model: they configure a round of one client, which is not sent.
        shown = PartialGrid(grid, (self._node_of[c] for c in cohort or [0]))
        messages = list(self._inner_configure_train(server_round, arrays, config, shown))
        if not cohort:
            return []
        return sorted(messages, key=lambda m: self._client_of[m.metadata.dst_node_id])

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate in the order of clients: float sums depend on it.

        A client with other arrays than it was sent, or other metrics than most, has dropped out.
        """
        come, key = self._in_order(replies), weight_key(self.strategy)
        usable = usable_train_replies(come, key, lambda record: shapes(record) == self._shapes)
        self.unused = left_out(come, usable)
        for message in (one for one in usable if one.has_content()):
            record = wire.arrays(message.content)
            for name, array in list(record.items()):
                record[name] = ReadArray.of(array)
        return self._inner_aggregate_train(server_round, usable)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate in the order of clients, as in training."""
        usable = usable_evaluate_replies(self._in_order(replies), weight_key(self.strategy))
        return self._inner_aggregate_evaluate(server_round, usable)

    def _in_order(self, replies: Iterable[Message]) -> list[Message]:
        """Return the replies in the order of clients; one that was delivered twice counts once."""
        last = len(self._client_of)  # errors that come from the SuperLink
        once = wire.distinct(replies)
        return sorted(once, key=lambda m: self._client_of.get(m.metadata.src_node_id, last))

    def _check_enough(self, size: int) -> None:
        """Raise if Flower would wait forever for more nodes than it is shown."""
        for held in foreigners(self.strategy):
            for name, needed in held.least_nodes.items():
                if needed > size:
                    raise BadValueError(name, f"at most {size}, the clients of a round", needed)

    def _identify(self, grid: Grid) -> None:
        """Learn which client each node is: from the grid, or wait for all nodes and ask them."""
        nodes = known_nodes(grid)
        if nodes is not None and len(nodes) >= self._num_clients:
            self._client_of, self._node_of = Places(nodes), nodes
        else:
            self._client_of = self._ask_identities(grid)
            self._node_of = {client: node for node, client in self._client_of.items()}

    def _ask_identities(self, grid: Grid) -> dict[int, int]:
        """Wait for all nodes and return which client each of them says it is."""
        deadline = time.monotonic() + self._patience
        while len(nodes := list(grid.get_node_ids())) < self._num_clients:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"num_clients: {self._num_clients} nodes are needed, {len(nodes)} came within "
                    f"{self._patience:.0f} s; start the federation with that many nodes"
                )
            time.sleep(0.05)
        ask = [
            Message(RecordDict(), dst_node_id=node, message_type=wire.IDENTITY_QUERY)
            for node in sorted(nodes)
        ]
        replies = wire.distinct(grid.send_and_receive(ask, timeout=_ANSWER * self._patience))
        if len(replies) < len(nodes) and self._needs_answers:
            raise TimeoutError(
                f"patience: {len(replies)} of {len(nodes)} nodes have said which client they are "
                f"within {_ANSWER * self._patience:.0f} s; give them more time"
            )
        told = {r.metadata.src_node_id: c for r in replies if (c := identity_of(r)) is not None}
        missing = sorted(set(range(self._num_clients)) - set(told.values()))
        is_one_to_one = len(set(told.values())) == len(set(told)) == len(nodes)
        if missing and is_one_to_one and self._needs_answers:
            raise ValueError(
                f"partition-id must cover 0 to {self._num_clients - 1}, missing {missing[:5]}"
            )
        if missing or not is_one_to_one:
            _log.warning(
                "not every node has its own partition-id from 0 to %d: clients are numbered "
                "by node id, so another run with this seed may choose others",
                self._num_clients - 1,
            )
            told = {node: i for i, node in enumerate(sorted(nodes))}
        return told
