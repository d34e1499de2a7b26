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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Indices
from leakmeter.fl_app.config.field import ConfigError, out_of_range, unknown_name
from leakmeter.fl_app.config.settings import PARTITIONS

ATTEMPTS = 20
# Beyond this the shares are equal for any data set, and numpy's gamma draws begin to overflow.
MAX_CONCENTRATION = 1e6
# Schemes that can partition any pool of records again.
_SHARED = ("iid", "dirichlet", "dirichlet-labels")


@dataclass(frozen=True)
class Scheme:
    """A way to partition records among clients.

    Attributes:
        labels: The class of each record, (n,).
        name: "iid" for a uniform partition into equal sizes (up to one), "dirichlet" for equal
            sizes with label shares that each client draws, "dirichlet-labels" for labels that are
            split by shares of the clients, "natural" for one user per client.
        concentration: ω of the two Dirichlet schemes: small is skewed, large is even. The other
            schemes ignore it.
    """

    labels: NDArray[np.int64]
    name: str
    concentration: float

    def partition(
        self, clients: int, seed: int, users: NDArray[np.int64] | None = None
    ) -> tuple[Indices, ...]:
        """Return the sorted record indices of each client.

        With "natural" each client is one user and has all records of that user. If there are fewer
        clients than users, the seed draws whose records are used; the records of all other users
        stay unused. With the other schemes every record belongs to exactly one client.

        Args:
            clients: How many clients share the records.
            seed: The run's seed; the same seed gives the same partition.
            users: The user behind each record, (n,); only "natural" needs it.

        Raises:
            ConfigError: A setting is out of range, or a client would get no record.

        >>> [len(part) for part in Scheme(np.zeros(7, int), "iid", 1.0).partition(3, seed=0)]
        [3, 2, 2]
        """
        labels = self.labels
        if self.name not in PARTITIONS:
            raise unknown_name("--partition", self.name, PARTITIONS)
        if labels.ndim != 1:
            raise out_of_range("labels", "one-dimensional", labels.shape)
        if not 1 <= clients <= len(labels):
            allowed = f"between 1 and the number of training records ({len(labels)})"
            fix = f"Try --clients {len(labels)}, or --dataset synthetic --synthetic-per-client 100"
            raise out_of_range("--clients", allowed, clients, fix=fix)
        if self.name == "natural":
            return _by_user(labels, users, clients, seed)
        pool = np.arange(len(labels))
        if self.name == "dirichlet-labels":
            self._check_pool(len(pool), clients)
            # Every attempt has a stream of its own, so an attempt can be repeated alone.
            rngs = (stream(seed, "partition", "dirichlet", attempt) for attempt in range(ATTEMPTS))
            parts = self._by_label(pool, clients, rngs)
        else:
            stream_name = "iid" if self.name == "iid" else "dirichlet-clients"
            parts = self.deal(pool, clients, stream(seed, "partition", stream_name))
        return tuple(np.sort(part) for part in parts)

    def deal(self, pool: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
        """Return the records of each client after a new partition of those in `pool`.

        The distribution is that of `partition`, for simulations that partition thousands of times:
        all randomness comes from `rng`, and a client's records are in no order. The prior of
        "dirichlet" is that of all labels, also outside the pool.

        Raises:
            ConfigError: A setting is out of range, or a client would get no record.
        """
        self._check_pool(len(pool), clients)
        if self.name == "iid":
            return _split(pool[rng.permutation(len(pool))], _equal(len(pool), clients))
        if self.name == "dirichlet":
            return self._by_client(pool, _equal(len(pool), clients), rng)
        return self._by_label(pool, clients, repeat(rng, ATTEMPTS))

    def draw(self, pool: Indices, clients: int, rng: np.random.Generator) -> Indices:
        """Return the records of one client alone, distributed as in a partition.

        "iid" takes a uniform subset of len(pool) / clients records. "dirichlet" takes as many, with
        the distribution of the client that draws first in a partition: no class has run out yet.
        "dirichlet-labels" takes of each label a share that is Beta(ω, (clients - 1) ω), the
        distribution of one entry of Dirichlet(ω), rounded as for the first client of a partition; a
        client that would stay empty draws again. Arguments and errors are those of `deal`.
        """
        self._check_pool(len(pool), clients)
        if self.name == "iid":
            return rng.choice(pool, round(len(pool) / clients), replace=False, shuffle=False)
        inside = self.labels[pool]

        def some(label: int, size: int) -> Indices:
            return rng.choice(pool[inside == label], size, replace=False, shuffle=False)

        if self.name == "dirichlet":
            left = np.bincount(inside, minlength=int(self.labels.max()) + 1)
            counts = label_counts(round(len(pool) / clients), left, self._weights(), rng)
            given = np.flatnonzero(counts).tolist()
            return np.concatenate([some(label, counts[label]) for label in given])
        if clients == 1:  # Beta(ω, 0) is the point 1
            return pool
        for _ in range(ATTEMPTS):
            taken = []
            for label, held in zip(*np.unique(inside, return_counts=True), strict=True):
                share = rng.beta(self.concentration, (clients - 1) * self.concentration)
                taken.append(some(label, min(int(held * share + 0.5), held)))
            if sum(map(len, taken)):
                return np.concatenate(taken)
        raise self._empty(1, clients, len(pool))

    def _check_pool(self, records: int, clients: int) -> None:
        if self.name not in _SHARED:
            raise unknown_name("--partition", self.name, _SHARED)
        if not 1 <= clients <= records:
            allowed = f"between 1 and the records to share ({records})"
            raise out_of_range("--clients", allowed, clients)
        if self.name != "iid" and not 0 < self.concentration <= MAX_CONCENTRATION:
            raise out_of_range("--dirichlet", f"in (0, {MAX_CONCENTRATION:g}]", self.concentration)

    def _weights(self) -> NDArray[np.float64]:
        """Return the parameters of a client's shares: ω times each label's share of all records."""
        return self.concentration * np.asarray(np.bincount(self.labels) / len(self.labels))

    def _by_client(self, pool: Indices, held: list[int], rng: np.random.Generator) -> list[Indices]:
        """Return the records of clients of these sizes, which draw one after the other."""
        weights = self._weights()
        mixed = pool[rng.permutation(len(pool))]
        stacks = mixed[np.argsort(self.labels[mixed], kind="stable")]  # one label after the other
        left = np.bincount(self.labels[pool], minlength=len(weights))
        starts = np.cumsum(left) - left
        parts: list[Indices] = [stacks[:0]] * len(held)
        for client in rng.permutation(len(held)):
            counts = label_counts(held[client], left, weights, rng)
            taken = [stacks[starts[k] : starts[k] + counts[k]] for k in np.flatnonzero(counts)]
            parts[client] = np.concatenate(taken)
            starts, left = starts + counts, left - counts
        return parts

    def _by_label(
        self, pool: Indices, clients: int, rngs: Iterable[np.random.Generator]
    ) -> list[Indices]:
        """Return the first Dirichlet split that leaves no client empty, one try a generator."""
        fewest_empty = clients
        for rng in rngs:
            owner = self._owners(self.labels[pool], clients, rng)
            held = np.bincount(owner, minlength=clients)
            if held.all():
                return _split(pool[np.argsort(owner, kind="stable")], held.tolist())
            fewest_empty = min(fewest_empty, int((held == 0).sum()))
        raise self._empty(fewest_empty, clients, len(pool))

    def _owners(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> Indices:
        """Return the client of each record in one Dirichlet split."""
        owner = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(clients, self.concentration))
            # Record i of m sits at (i + ½)/m of the label; its owner's cumulated share covers it.
            # Rounding may leave the last sum below 1, so the last client takes whatever is left.
            place = (np.arange(len(members)) + 0.5) / len(members)
            owner[members] = np.searchsorted(np.cumsum(shares)[:-1], place)
        return owner

    def _empty(self, fewest: int, clients: int, records: int) -> ConfigError:
        return ConfigError(
            f"--partition: at least {fewest} of {clients} clients would get no record in each of "
            f"{ATTEMPTS} Dirichlet({self.concentration:g}) splits of {records} records; use fewer "
            "clients, a larger --dirichlet, more data, or --partition iid or dirichlet"
        )


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


def label_counts(
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


@dataclass(frozen=True)
class Sizes:
    """How many records the clients have."""

    smallest: int
    median: float
    largest: int

    def __str__(self) -> str:
        return f"{self.smallest} to {self.largest} records each, median {self.median:g}"


def sizes(parts: Sequence[Indices]) -> Sizes:
    """Return the smallest, median and largest client of a partition."""
    from leakmeter.clients.sampler import typical  # imports torch

    counts = [len(part) for part in typical(parts)]
    return Sizes(min(counts), float(np.median(counts)), max(counts))
