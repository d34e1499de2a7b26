"""The batches of many clients side by side: ragged clients padded to one rectangle a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from leakmeter.auditors._types import Indices
from leakmeter.clients.update import LocalSteps

# Bytes of gathered inputs in a chunk. More falls out of the cache; with less, Python's time shows.
_CACHE = 2**22


@dataclass(frozen=True)
class Chunk:
    """Clients that train together, the largest first.

    Attributes:
        records: Which examples each client holds.
        rngs: From where each client's batches are drawn.
    """

    records: Sequence[Indices]
    rngs: Sequence[np.random.Generator]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.records)


class Engine(Protocol):
    """A way to train a chunk of clients."""

    def clients_at_once(self, size: int) -> int:
        """Return how many clients of `size` examples make the fastest chunk."""
        ...

    def bytes_each(self, models: int, size: int) -> int:
        """Return the memory that a client of a chunk takes, besides `x`, `y` and the result."""
        ...

    def train(self, start: Tensor, x: Tensor, y: Tensor, chunk: Chunk, out: Tensor) -> None:
        """Write trained minus start into `out`, (models, clients, dim); start is (models, dim)."""
        ...


@dataclass(frozen=True)
class Step:
    """One step of those clients that still have a batch in this pass: the first of the chunk.

    Attributes:
        index: Examples of the batches, then padding. # (active, width)
        counts: How many of each row are the client's batch, descending. # (active,)
    """

    index: Indices
    counts: Indices


def clients_in_cache(batch_bytes: int) -> int:
    """Return how many clients' batches fit into the cache together, at least one."""
    return max(1, _CACHE // max(1, batch_bytes))


def steps(rule: LocalSteps, chunk: Chunk) -> Iterator[Step]:
    """Yield all steps of a chunk, drawn as the plain rule draws them for each client."""
    sizes = [len(own) for own in chunk.records]
    lengths = np.array([rule.weight(size) for size in sizes])
    longest, most = int(lengths[0]), rule.width(sizes[0])
    is_even = sizes[-1] == sizes[0]  # the largest come first
    records = np.stack(chunk.records) if is_even else None  # (clients, size)
    index = np.empty((len(chunk), longest), dtype=np.int64)
    for _ in range(rule.passes):
        orders = [rule.order(size, rng) for size, rng in zip(sizes, chunk.rngs, strict=True)]
        if records is not None:  # all clients in one call
            index = np.take_along_axis(records, np.stack(orders), axis=1)
        else:
            for row, own, order in zip(index, chunk.records, orders, strict=True):
                row[: len(order)] = own[order]
                # One of the client's own, so that no other's NaN gets in.
                row[len(order) :] = row[0]
        for first in range(0, longest, most):
            active = int(np.searchsorted(-lengths, -first))  # those with lengths > first
            counts = np.minimum(lengths[:active] - first, most)
            yield Step(index[:active, first : first + most], counts)
