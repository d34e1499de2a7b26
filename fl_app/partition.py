"""Deals the training records out to clients, each record to exactly one.

The Dirichlet scheme splits every label by its own draw from Dirichlet(ω), as Yurochkin et al.
(2019), "Bayesian Nonparametric Federated Learning of Neural Networks" (arXiv:1905.12022), do.
Ours rounds to the nearest record instead of down, so no client is favoured, and draws again, a
bounded number of times, when a client would stay empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auditors.rng import stream
from fl_app.errors import ConfigError, out_of_range, unknown_name
from fl_app.names import PARTITIONS

Indices = NDArray[np.int64]

ATTEMPTS = 20
# Beyond this the shares are equal for any data set, and numpy's gamma draws begin to overflow.
MAX_CONCENTRATION = 1e6


def partition(
    labels: NDArray[np.int64], *, clients: int, scheme: str, concentration: float, seed: int
) -> tuple[Indices, ...]:
    """Return the sorted record indices of each client; every record belongs to exactly one.

    Args:
        labels: The class of each record, (n,).
        clients: How many clients share the records.
        scheme: "iid" for equal sizes (up to one) dealt uniformly, "dirichlet" for skewed labels.
        concentration: ω of the Dirichlet scheme: small is skewed, large is even. "iid" ignores it.
        seed: The run's seed; the same seed deals the same way.

    Raises:
        ConfigError: A setting is out of range, or a client would get no record.

    >>> [len(part) for part in partition(
    ...     np.zeros(7, int), clients=3, scheme="iid", concentration=1.0, seed=0)]
    [3, 2, 2]
    """
    if scheme not in PARTITIONS:
        raise unknown_name("partition", scheme, PARTITIONS)
    if labels.ndim != 1:
        raise out_of_range("labels", "one-dimensional", labels.shape)
    if not 1 <= clients <= len(labels):
        allowed = f"between 1 and the number of training records ({len(labels)})"
        raise out_of_range("clients", allowed, clients)
    if scheme == "iid":
        order = stream(seed, "partition", "iid").permutation(len(labels))
        return tuple(np.sort(part) for part in np.array_split(order, clients))
    if not 0 < concentration <= MAX_CONCENTRATION:
        raise out_of_range("dirichlet", f"in (0, {MAX_CONCENTRATION:g}]", concentration)
    return _by_label(labels, clients, concentration, seed)


def _by_label(
    labels: NDArray[np.int64], clients: int, concentration: float, seed: int
) -> tuple[Indices, ...]:
    """Return the first of a fixed list of Dirichlet splits that leaves no client empty."""
    fewest_empty = clients
    for attempt in range(ATTEMPTS):
        rng = stream(seed, "partition", "dirichlet", attempt)
        owner = _owners(labels, clients, concentration, rng)
        sizes = np.bincount(owner, minlength=clients)
        if sizes.all():
            # A stable sort by owner keeps each client's indices in ascending order.
            return tuple(np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1]))
        fewest_empty = min(fewest_empty, int((sizes == 0).sum()))
    raise ConfigError(
        f"partition: at least {fewest_empty} of {clients} clients would get no record in each of "
        f"{ATTEMPTS} Dirichlet({concentration:g}) splits of {len(labels)} records; use fewer "
        "clients, a larger dirichlet, more data, or the partition iid"
    )


def _owners(
    labels: NDArray[np.int64], clients: int, concentration: float, rng: np.random.Generator
) -> Indices:
    """Return the client of each record in one Dirichlet split."""
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, concentration))
        # Record i of m sits at (i + ½)/m of the label; its owner's cumulated share covers it.
        # Rounding may leave the last sum just below 1, so the last client takes whatever is left.
        place = (np.arange(len(members)) + 0.5) / len(members)
        owner[members] = np.searchsorted(np.cumsum(shares)[:-1], place)
    return owner


@dataclass(frozen=True)
class Sizes:
    """How many records the clients hold."""

    smallest: int
    median: float
    largest: int

    def __str__(self) -> str:
        return f"{self.smallest} to {self.largest} records a client, median {self.median:g}"


def sizes(parts: tuple[Indices, ...]) -> Sizes:
    """Return the smallest, median and largest client of a partition."""
    counts = [len(part) for part in parts]
    return Sizes(min(counts), float(np.median(counts)), max(counts))
