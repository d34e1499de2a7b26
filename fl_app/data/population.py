"""Clients that are generated when they are needed, each from the seed and its own number.

However many there are, none takes room before it trains, and the next one may take its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Indices
from leakmeter.clients.source import EqualParts
from leakmeter.fl_app.data.partition import label_counts

_MAX_RECORD = 2**62  # records have numbers below it, so that they fit in 64 bits


@dataclass(frozen=True)
class Population:
    """Clients with equally many records, each class a unit Gaussian around its centre.

    The records of client c have the numbers c·size to (c + 1)·size - 1. Clients beyond those of the
    run have numbers as well: audits draw them where they need other data of the same distribution.

    Attributes:
        seed: The run's seed.
        clients: Clients of the run.
        size: Records of each.
        centres: Of the classes, (classes, features).
        concentration: ω of the Dirichlet distribution of each client's label shares, whose mean is
            uniform; None draws every label uniformly by itself.
    """

    seed: int
    clients: int
    size: int
    centres: NDArray[np.float32]
    concentration: float | None = None

    @property
    def parts(self) -> EqualParts:
        """The records of each client of the run."""
        return EqualParts(self.clients, self.size)

    def client(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return a client's inputs, (size, features), and their labels."""
        rng, classes = stream(self.seed, "synthetic", "client", number), len(self.centres)
        if self.concentration is None:
            labels = rng.integers(classes, size=self.size)
        else:
            weights = np.full(classes, self.concentration / classes)
            counts = label_counts(self.size, np.full(classes, self.size), weights, rng)
            labels = np.repeat(np.arange(classes), counts)
        spread = rng.standard_normal((self.size, self.centres.shape[1]), dtype=np.float32)
        return self.centres[labels] + spread, labels

    def rows(self, records: Indices) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return inputs and labels of records; generates the clients that these belong to."""
        owners, rows = np.divmod(records, self.size)
        known, place = np.unique(owners, return_inverse=True)
        made = [self.client(number) for number in known.tolist()]
        x, y = (np.stack(each) for each in zip(*made, strict=True))  # (clients, size, …)
        return x[place, rows], y[place, rows]

    def another(self, rng: np.random.Generator) -> Indices:
        """Return the records of a client that is none of the run's, of the same distribution."""
        number = int(rng.integers(self.clients, _MAX_RECORD // self.size))
        return np.arange(number * self.size, (number + 1) * self.size)
