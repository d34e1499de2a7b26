"""Deals the training records out to clients, each record to one of them at most.

The Dirichlet scheme splits every label by its own draw from Dirichlet(ω), as Yurochkin et al.
(2019), "Bayesian Nonparametric Federated Learning of Neural Networks" (arXiv:1905.12022), do.
Ours rounds to the nearest record instead of down, so no client is favoured, and draws again, a
bounded number of times, when a client would stay empty. The natural scheme gives each client the
records of one person; persons for whom there is no client are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Indices
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.errors import ConfigError, out_of_range, unknown_name
from leakmeter.fl_app.config.names import PARTITIONS

ATTEMPTS = 20
# Beyond this the shares are equal for any data set, and numpy's gamma draws begin to overflow.
MAX_CONCENTRATION = 1e6


def partition(
    labels: NDArray[np.int64],
    *,
    clients: int,
    scheme: str,
    concentration: float,
    seed: int,
    users: NDArray[np.int64] | None = None,
) -> tuple[Indices, ...]:
    """Return the sorted record indices of each client.

    With "iid" and "dirichlet" every record belongs to exactly one client. With "natural" each
    client is one user and has all records of that user. If there are fewer clients than users,
    the seed draws whose records are used; the records of all other users stay unused.

    Args:
        labels: The class of each record, (n,).
        clients: How many clients share the records.
        scheme: "iid" for equal sizes (up to one) dealt uniformly, "dirichlet" for skewed labels,
            "natural" for one user a client.
        concentration: ω of the Dirichlet scheme: small is skewed, large is even. The other schemes
            ignore it.
        seed: The run's seed; the same seed deals the same way.
        users: The user behind each record, (n,); only "natural" needs it.

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
    if scheme == "natural":
        return _by_user(labels, users, clients, seed)
    _check_concentration(concentration)
    return _by_label(labels, clients, concentration, seed)


def deal(
    labels: NDArray[np.int64],
    pool: Indices,
    clients: int,
    scheme: str,
    concentration: float,
    rng: np.random.Generator,
) -> list[Indices]:
    """Return the records of each client when those in `pool` are dealt anew.

    The same laws as `partition`, for simulations that deal thousands of times: all randomness
    comes from `rng`, and a client's records are in no order.

    Args:
        labels: The class of each record there is, also outside the pool.
        pool: Indices of the records to deal.
        clients: How many clients share them.
        scheme: "iid" or "dirichlet".
        concentration: ω of the Dirichlet scheme.
        rng: Where the cards are shuffled.

    Raises:
        ConfigError: A setting is out of range, or a client would get no record.
    """
    _check_pool(len(pool), clients, scheme, concentration)
    if scheme == "iid":
        return _split(pool[rng.permutation(len(pool))], _equal(len(pool), clients))
    inside = labels[pool]
    for _ in range(ATTEMPTS):
        owner = _owners(inside, clients, concentration, rng)
        held = np.bincount(owner, minlength=clients)
        if held.all():
            return _split(pool[np.argsort(owner, kind="stable")], held.tolist())
    raise _empty(int((held == 0).sum()), clients, concentration, len(pool))


def draw(
    labels: NDArray[np.int64],
    pool: Indices,
    clients: int,
    scheme: str,
    concentration: float,
    rng: np.random.Generator,
) -> Indices:
    """Return the records of one client that draws by itself, with the law it has in a deal.

    "iid" takes a uniform subset of len(pool) / clients records. "dirichlet" takes of each label a
    share that is Beta(ω, (clients - 1) ω), the law of one entry of Dirichlet(ω), rounded as for
    the first client of a deal; a client that would stay empty draws again.

    Args:
        labels: The class of each record there is, also outside the pool.
        pool: Indices of the records to draw from.
        clients: One of how many shares to take.
        scheme: "iid" or "dirichlet".
        concentration: ω of the Dirichlet scheme.
        rng: Source of all randomness.

    Raises:
        ConfigError: A setting is out of range, or the client would get no record.
    """
    _check_pool(len(pool), clients, scheme, concentration)
    if scheme == "iid":
        return rng.choice(pool, round(len(pool) / clients), replace=False, shuffle=False)
    if clients == 1:  # Beta(ω, 0) is the point 1
        return pool
    inside = labels[pool]
    for _ in range(ATTEMPTS):
        taken = []
        for label in np.unique(inside):
            members = pool[inside == label]
            share = rng.beta(concentration, (clients - 1) * concentration)
            size = min(int(len(members) * share + 0.5), len(members))
            taken.append(rng.choice(members, size, replace=False, shuffle=False))
        if sum(map(len, taken)):
            return np.concatenate(taken)
    raise _empty(1, clients, concentration, len(pool))


def _check_pool(records: int, clients: int, scheme: str, concentration: float) -> None:
    if scheme not in ("iid", "dirichlet"):
        raise unknown_name("partition", scheme, ("iid", "dirichlet"))
    if not 1 <= clients <= records:
        raise out_of_range("clients", f"between 1 and the records to share ({records})", clients)
    if scheme == "dirichlet":
        _check_concentration(concentration)


def _check_concentration(concentration: float) -> None:
    if not 0 < concentration <= MAX_CONCENTRATION:
        raise out_of_range("dirichlet", f"in (0, {MAX_CONCENTRATION:g}]", concentration)


def _equal(records: int, clients: int) -> list[int]:
    """Return sizes that differ by one at most, the larger ones first."""
    least, more = divmod(records, clients)
    return [least + 1] * more + [least] * (clients - more)


def _split(order: Indices, held: list[int]) -> list[Indices]:
    """Return consecutive parts of the given sizes; numpy's own takes ten times as long."""
    ends = list(accumulate(held))
    return [order[end - size : end] for end, size in zip(ends, held, strict=True)]


def _by_user(
    labels: NDArray[np.int64], users: NDArray[np.int64] | None, clients: int, seed: int
) -> tuple[Indices, ...]:
    """Return the records of as many users as there are clients, in the order of their numbers."""
    if users is None:
        raise ConfigError("partition natural needs the user behind each record, got none")
    if users.shape != labels.shape:
        raise out_of_range("users", f"one a record, {labels.shape}", users.shape)
    known, owner, counts = np.unique(users, return_inverse=True, return_counts=True)
    if clients > len(known):
        allowed = f"at most the number of users ({len(known)}) with the partition natural"
        raise out_of_range("clients", allowed, clients)
    parts = np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])
    drawn = stream(seed, "partition", "natural").choice(len(known), clients, replace=False)
    return tuple(parts[user] for user in np.sort(drawn))


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
    raise _empty(fewest_empty, clients, concentration, len(labels))


def _empty(fewest: int, clients: int, concentration: float, records: int) -> ConfigError:
    return ConfigError(
        f"partition: at least {fewest} of {clients} clients would get no record in each of "
        f"{ATTEMPTS} Dirichlet({concentration:g}) splits of {records} records; use fewer "
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
