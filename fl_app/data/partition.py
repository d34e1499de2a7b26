"""Partitions the training records among clients, each record to at most one of them.

"dirichlet" is the scheme of Hsu, Qi, Brown (2019), "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification" (arXiv:1909.06335): each client draws its label
shares from Dirichlet(ω · prior), and all clients have the same size. Ours differs in three points:
1. Shares are drawn in logarithms, so that ω → 0 gives one class per client and never 0/0.
2. A client gets its shares of its size, rounded at random without bias, instead of labels drawn one
   by one: ω → ∞ gives every client the prior itself.
3. Records are drawn without replacement until none is left. Clients draw in random order. Where a
   class has run out, the client's shares of the other classes are scaled up.

"dirichlet-labels" splits every label by its own draw from Dirichlet(ω), as Yurochkin et al.
(2019), "Bayesian Nonparametric Federated Learning of Neural Networks" (arXiv:1905.12022), do, so
sizes differ. Ours rounds to the nearest record instead of down, so no client is favoured, and draws
again, a bounded number of times, when a client would stay empty. The natural scheme gives each
client the records of one person; persons for whom there is no client are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, repeat

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Indices
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.errors import ConfigError, out_of_range, unknown_name
from leakmeter.fl_app.config.tables import PARTITIONS

ATTEMPTS = 20
# Beyond this the shares are equal for any data set, and numpy's gamma draws begin to overflow.
MAX_CONCENTRATION = 1e6
# Schemes that can partition any pool of records again.
_SHARED = ("iid", "dirichlet", "dirichlet-labels")


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

    With "natural" each client is one user and has all records of that user. If there are fewer
    clients than users, the seed draws whose records are used; the records of all other users stay
    unused. With the other schemes every record belongs to exactly one client.

    Args:
        labels: The class of each record, (n,).
        clients: How many clients share the records.
        scheme: "iid" for a uniform partition into equal sizes (up to one), "dirichlet" for equal
            sizes with label shares that each client draws, "dirichlet-labels" for labels that are
            split by shares of the clients, "natural" for one user per client.
        concentration: ω of the two Dirichlet schemes: small is skewed, large is even. The other
            schemes ignore it.
        seed: The run's seed; the same seed gives the same partition.
        users: The user behind each record, (n,); only "natural" needs it.

    Raises:
        ConfigError: A setting is out of range, or a client would get no record.

    >>> [len(part) for part in partition(
    ...     np.zeros(7, int), clients=3, scheme="iid", concentration=1.0, seed=0)]
    [3, 2, 2]
    """
    if scheme not in PARTITIONS:
        raise unknown_name("--partition", scheme, PARTITIONS)
    if labels.ndim != 1:
        raise out_of_range("labels", "one-dimensional", labels.shape)
    if not 1 <= clients <= len(labels):
        allowed = f"between 1 and the number of training records ({len(labels)})"
        raise out_of_range("--clients", allowed, clients)
    if scheme == "natural":
        return _by_user(labels, users, clients, seed)
    pool = np.arange(len(labels))
    if scheme == "dirichlet-labels":
        _check_pool(len(pool), clients, scheme, concentration)
        # Every attempt has a stream of its own, so an attempt can be repeated alone.
        rngs = (stream(seed, "partition", "dirichlet", attempt) for attempt in range(ATTEMPTS))
        parts = _by_label(labels, pool, clients, concentration, rngs)
    else:
        name = "iid" if scheme == "iid" else "dirichlet-clients"
        parts = deal(labels, scheme, concentration, pool, clients, stream(seed, "partition", name))
    return tuple(np.sort(part) for part in parts)


def deal(
    labels: NDArray[np.int64],
    scheme: str,
    concentration: float,
    pool: Indices,
    clients: int,
    rng: np.random.Generator,
) -> list[Indices]:
    """Return the records of each client after a new partition of those in `pool`.

    The distribution is that of `partition`, for simulations that partition thousands of times: all
    randomness comes from `rng`, and a client's records are in no order.

    Args:
        labels: The class of each record there is, also outside the pool.
        scheme: "iid", "dirichlet" or "dirichlet-labels".
        concentration: ω of the Dirichlet schemes.
        pool: Indices of the records to partition. The prior of "dirichlet" is that of all labels.
        clients: How many clients share them.
        rng: Source of all randomness.

    Raises:
        ConfigError: A setting is out of range, or a client would get no record.
    """
    _check_pool(len(pool), clients, scheme, concentration)
    if scheme == "iid":
        return _split(pool[rng.permutation(len(pool))], _equal(len(pool), clients))
    if scheme == "dirichlet":
        return _by_client(labels, pool, _equal(len(pool), clients), concentration, rng)
    return _by_label(labels, pool, clients, concentration, repeat(rng, ATTEMPTS))


def draw(
    labels: NDArray[np.int64],
    scheme: str,
    concentration: float,
    pool: Indices,
    clients: int,
    rng: np.random.Generator,
) -> Indices:
    """Return the records of one client alone, distributed as in a partition.

    "iid" takes a uniform subset of len(pool) / clients records. "dirichlet" takes as many, with
    the distribution of the client that draws first in a partition: no class has run out yet.
    "dirichlet-labels" takes of each label a share that is Beta(ω, (clients - 1) ω), the
    distribution of one entry of Dirichlet(ω), rounded as for the first client of a partition; a
    client that would stay empty draws again. Arguments and errors are those of `deal`.
    """
    _check_pool(len(pool), clients, scheme, concentration)
    if scheme == "iid":
        return rng.choice(pool, round(len(pool) / clients), replace=False, shuffle=False)
    inside = labels[pool]
    if scheme == "dirichlet":
        prior, left = _prior(labels), np.bincount(inside, minlength=int(labels.max()) + 1)
        counts = _hand(round(len(pool) / clients), left, concentration * prior, rng)
        return np.concatenate(
            [
                rng.choice(pool[inside == label], counts[label], replace=False, shuffle=False)
                for label in np.flatnonzero(counts)
            ]
        )
    if clients == 1:  # Beta(ω, 0) is the point 1
        return pool
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
    if scheme not in _SHARED:
        raise unknown_name("--partition", scheme, _SHARED)
    if not 1 <= clients <= records:
        raise out_of_range("--clients", f"between 1 and the records to share ({records})", clients)
    if scheme != "iid" and not 0 < concentration <= MAX_CONCENTRATION:
        raise out_of_range("--dirichlet", f"in (0, {MAX_CONCENTRATION:g}]", concentration)


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
        raise ConfigError("--partition natural needs the user behind each record, got none")
    if users.shape != labels.shape:
        raise out_of_range("users", f"one a record, {labels.shape}", users.shape)
    known, owner, counts = np.unique(users, return_inverse=True, return_counts=True)
    if clients > len(known):
        allowed = f"at most the number of users ({len(known)}) with --partition natural"
        raise out_of_range("--clients", allowed, clients)
    parts = np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])
    drawn = stream(seed, "partition", "natural").choice(len(known), clients, replace=False)
    return tuple(parts[user] for user in np.sort(drawn))


def _by_client(
    labels: NDArray[np.int64],
    pool: Indices,
    held: list[int],
    concentration: float,
    rng: np.random.Generator,
) -> list[Indices]:
    """Return the records of clients of these sizes, which draw one after the other."""
    prior = _prior(labels)
    mixed = pool[rng.permutation(len(pool))]
    stacks = mixed[np.argsort(labels[mixed], kind="stable")]  # one label after the other
    left = np.bincount(labels[pool], minlength=len(prior))
    ends = np.cumsum(left)
    starts = ends - left
    parts: list[Indices] = [stacks[:0]] * len(held)
    for client in rng.permutation(len(held)):
        counts = _hand(held[client], left, concentration * prior, rng)
        taken = [stacks[starts[k] : starts[k] + counts[k]] for k in np.flatnonzero(counts)]
        parts[client] = np.concatenate(taken)
        starts, left = starts + counts, left - counts
    return parts


def _prior(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of each label among all records, (labels,)."""
    return np.asarray(np.bincount(labels) / len(labels))


def _hand(
    size: int, left: Indices, weights: NDArray[np.float64], rng: np.random.Generator
) -> Indices:
    """Return how many records of each label a client takes, (labels,), `size` in all.

    Args:
        size: Records of the client, at most as many as are left.
        left: Records of each label that are left.
        weights: Parameters of the Dirichlet distribution of the client's shares.
        rng: Draws the shares and rounds them.
    """
    # A gamma variable with parameter a is one with a + 1 times U^(1/a): in logarithms the smallest
    # parameters do not underflow. Labels without any record have a share of 0.
    known = weights > 0
    safe = np.maximum(weights, 1e-300)
    logs = np.log(rng.standard_gamma(safe + 1)) - rng.standard_exponential(safe.size) / safe
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        # Each pass completes the client or exhausts a label, whose share goes to the other labels.
        is_open = known & (left > taken)
        shares = np.exp(np.where(is_open, logs - logs[is_open].max(), -np.inf))
        wanted = _rounded(missing, shares / shares.sum(), rng)
        taken = taken + np.minimum(wanted, left - taken)
    return taken


def _rounded(size: int, shares: NDArray[np.float64], rng: np.random.Generator) -> Indices:
    """Return integers with the sum `size` and means size · shares, each within 1 of its mean."""
    # Systematic sampling: one uniform number for all. Sums that are whole stay whole.
    edges = np.minimum(np.floor(np.round(np.cumsum(size * shares), 9) + rng.random()), size)
    edges[-1] = size
    return np.asarray(np.diff(edges, prepend=0), dtype=np.int64)


def _by_label(
    labels: NDArray[np.int64],
    pool: Indices,
    clients: int,
    concentration: float,
    rngs: Iterable[np.random.Generator],
) -> list[Indices]:
    """Return the first Dirichlet split that leaves no client empty, one try a generator."""
    fewest_empty = clients
    for rng in rngs:
        owner = _owners(labels[pool], clients, concentration, rng)
        held = np.bincount(owner, minlength=clients)
        if held.all():
            return _split(pool[np.argsort(owner, kind="stable")], held.tolist())
        fewest_empty = min(fewest_empty, int((held == 0).sum()))
    raise _empty(fewest_empty, clients, concentration, len(pool))


def _empty(fewest: int, clients: int, concentration: float, records: int) -> ConfigError:
    return ConfigError(
        f"--partition: at least {fewest} of {clients} clients would get no record in each of "
        f"{ATTEMPTS} Dirichlet({concentration:g}) splits of {records} records; use fewer "
        "clients, a larger --dirichlet, more data, or --partition iid or dirichlet"
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
    """How many records the clients have."""

    smallest: int
    median: float
    largest: int

    def __str__(self) -> str:
        return f"{self.smallest} to {self.largest} records each, median {self.median:g}"


def sizes(parts: tuple[Indices, ...]) -> Sizes:
    """Return the smallest, median and largest client of a partition."""
    counts = [len(part) for part in parts]
    return Sizes(min(counts), float(np.median(counts)), max(counts))
