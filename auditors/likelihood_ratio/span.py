"""The span condition: a change that the others' updates cannot make is visible by support alone.

Source: Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition:
When is it Possible? (arXiv:2405.04551), Theorem 1: a sum hides a change only if the change is
in the span of what the others may add. Ours differs:

1. By default the span is of the samples' differences. A sum of updates is in a fixed point plus
   the span of their differences, and two candidates are separated by support exactly if their
   difference leaves that span; the linear span also holds the fixed point and hides such pairs.
   The paper's own case, gradients with free random weights, is `affine=False`.
2. Finitely many samples show only part of the span. A component outside counts as separation if
   the samples had stopped adding directions, or if it is in a column that none ever touched.
3. On real rounds (`SpanCondition`) it is a diagnostic. A round shows one update of each client,
   which is only part of what it may send, so it proves neither that an update is exposed nor that
   one is safe. Whether a client stands out is a test: the first client of the first audited round
   has the largest share of n with a probability of at most 1/n, if all send alike updates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakmeter.auditors.audited_round import AuditedRound, Claims, ScheduledAuditor
from leakmeter.auditors.auditor import DivergedError, Project, few_clients
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Bound, Finding, PerClient, ThreatModel
from leakmeter.auditors.values import Floats, within
from leakmeter.auditors.wording import Assumption

Array = NDArray[np.floating]

# Rounding relative to the longest sample. Updates are differences of models, so a float32 update
# is less precise than its own last digit.
_TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-7}
_WEAK = 10.0  # times the tolerance: directions that barely stand out of rounding are as inexact
_CHUNK = 128  # samples at a time
_BLOCK = 512  # directions in one array
_SERVER = ThreatModel(observer="server", sees="round sum", knows_cohort=True)


@dataclass(frozen=True)
class Span:
    """Share of a vector outside the span of the other clients' updates.

    Attributes:
        dim: Length of the vector.
        samples: How many samples the span was built of.
        rank: Its dimension, as far as it was seen.
        complete: Whether the last tenth of the samples added no direction.
        norm: Length of the vector.
        residual_norm: Length of its part outside of the span.
        idle_columns: Columns in which every sample is zero.
        idle_norm: Length of the vector's part in these columns.
        noise: Lengths up to this may be rounding.
    """

    dim: int
    samples: int
    rank: int
    complete: bool
    norm: float
    residual_norm: float
    idle_columns: int
    idle_norm: float
    noise: float

    @property
    def share(self) -> float:
        """The part outside relative to the vector, 0 for the zero vector."""
        return self.residual_norm / self.norm if self.norm > 0 else 0.0

    @property
    def outside(self) -> bool:
        """Whether more than rounding is outside the span of these samples."""
        return self.residual_norm > self.noise

    @property
    def separated(self) -> bool:
        """Whether the pair seems separated by support; samples cannot prove that it is."""
        return (self.outside and self.complete) or self.idle_norm > self.noise

    @property
    def words(self) -> str:
        """One sentence for a report."""
        seen = f"{self.samples} samples span {self.rank} of {self.dim} dimensions"
        if not self.outside and not self.separated:
            return f"{seen}; the difference is inside"
        found = f"{seen}; {self.share:.2g} of the difference is outside"
        if self.idle_norm > self.noise:
            part = self.idle_norm / self.norm
            found += f", {part:.2g} in {self.idle_columns} columns that no sample touches"
        if self.separated:
            return f"{found}: separated by support"
        return f"{found}, but more samples would still add directions: not decided"


class SpanTracker:
    """Collects the span of samples that arrive in chunks, and the columns they touch.

    Args:
        dim: Length of a sample.
        affine: Span of the differences (the first sample is subtracted) or of the samples.
        limit: Directions to keep at most: limit · dim numbers of memory. Beyond, the span is
            incomplete.
    """

    def __init__(self, dim: int, *, affine: bool = True, limit: int = 2048) -> None:
        within("dim", dim, lowest=1)
        within("limit", limit, lowest=1)
        self.dim, self.rank, self.samples = dim, 0, 0
        self._affine, self._limit = affine, limit
        self._tol: float | None = None  # of the first samples' precision
        self._basis: list[Array] = []  # orthonormal rows
        self._origin: Array | None = None
        self._touched = np.zeros(dim, dtype=bool)
        self._longest = 0.0
        self._grew_at = 0  # samples when the last direction came
        self._full = False

    def add(self, rows: ArrayLike) -> None:
        """Take samples, (rows, dim) or one of them."""
        array = np.atleast_2d(np.asarray(rows))
        if array.dtype != np.float32:
            array = array.astype(np.float64, copy=False)
        if array.ndim != 2 or array.shape[1] != self.dim:
            raise ValueError(f"rows must have shape (rows, {self.dim}), got {np.shape(rows)}")
        if self._tol is None:
            self._tol = _TOLERANCE[array.dtype]
        # Small steps tell when the samples stopped adding directions.
        step = min(_CHUNK, max(1, len(array) // 20))
        for start in range(0, len(array), step):
            self._add_chunk(array[start : start + step])

    def outside(self, vector: ArrayLike) -> Span:
        """Return the part of a vector, the difference of two candidates, that is outside."""
        v = np.asarray(vector, dtype=np.float64)
        if v.shape != (self.dim,):
            raise ValueError(f"vector must have shape ({self.dim},), got {v.shape}")
        if not np.isfinite(v).all():
            raise ValueError("vector must be finite, got a value that is not")
        norm = float(np.linalg.norm(v))
        idle = ~self._touched
        return Span(
            dim=self.dim,
            samples=self.samples,
            rank=self.rank,
            complete=self._is_complete,
            norm=norm,
            residual_norm=float(np.linalg.norm(self._residual(v))),
            idle_columns=int(idle.sum()),
            idle_norm=float(np.linalg.norm(v[idle])),
            noise=_WEAK * (self._tol or 0.0) * max(norm, self._longest),
        )

    def beyond(self, vector: ArrayLike) -> Floats:
        """Return the part of a vector, (dim,), that separates it from the samples by support.

        This is the part outside the span if the span is complete, and else the part in columns that
        no sample touches.
        """
        v = np.asarray(vector, dtype=np.float64)
        return self._residual(v) if self._is_complete else np.where(self._touched, 0.0, v)

    @property
    def _is_complete(self) -> bool:
        """Whether the last tenth of the samples added no direction."""
        spare = self.samples - self._grew_at
        return not self._full and spare >= max(1, self.samples // 10)

    def _residual(self, vector: Floats) -> Floats:
        """Return a vector minus its part in the span."""
        residual: Array = vector
        for _ in range(2):  # the second time takes away what rounding left
            residual = self._without_span(residual[None])[0]
        return residual.astype(np.float64, copy=False)

    def _add_chunk(self, rows: Array) -> None:
        """Add the directions of a few rows that are not there yet."""
        if not np.isfinite(rows).all():
            raise ValueError("rows must be finite, got a value that is not")
        self._touched |= (rows != 0).any(axis=0)
        self.samples += len(rows)
        self._longest = max(self._longest, float(np.linalg.norm(rows, axis=1).max()))
        if self._affine:
            if self._origin is None:
                self._origin = rows[0].copy()
            rows = rows - self._origin
        # Twice: a float32 product over many columns leaves more than a rounding error.
        fresh = self._without_span(self._without_span(rows)).astype(np.float64, copy=False)
        new = self._directions(fresh)
        if len(new):
            room = self._limit - self.rank
            self._full |= len(new) > room
            self._grew_at = self.samples
            self._keep(new[:room].astype(rows.dtype))

    def _keep(self, new: Array) -> None:
        """Add rows to the basis, in blocks large enough for fast products."""
        self.rank += len(new)
        if self._basis and len(self._basis[-1]) < _BLOCK:
            new = np.concatenate([self._basis.pop(), new])
        self._basis.append(new)

    def _directions(self, fresh: Floats) -> Floats:
        """Return orthonormal rows for what is longer than rounding, the strongest first."""
        assert self._tol is not None
        # Rounding of the origin is the same in all rows and adds up over them.
        floor = self._tol * self._longest * np.sqrt(len(fresh))
        squares, vectors = np.linalg.eigh(fresh @ fresh.T)
        keep = np.flatnonzero(squares > floor * floor)[::-1]
        if not keep.size:
            return fresh[:0]
        new = (vectors[:, keep] / np.sqrt(squares[keep])).T @ fresh
        # Weak directions hold remains of the span, and of strong ones beside them.
        new = self._without_span(new)
        squares, vectors = np.linalg.eigh(new @ new.T)
        return np.asarray((vectors / np.sqrt(squares)).T @ new)

    def _without_span(self, rows: Array) -> Array:
        """Return rows minus their part in the span."""
        for basis in self._basis:
            rows = rows - (rows.astype(basis.dtype, copy=False) @ basis.T) @ basis
        return rows


def outside_span(vector: ArrayLike, samples: ArrayLike, *, affine: bool = True) -> Span:
    """Return the share of a vector that is outside the span of samples.

    Args:
        vector: Difference of two candidate updates, (dim,).
        samples: Updates of the others, (samples, dim): all alike, or centred for each client.
        affine: See `SpanTracker`.

    >>> found = outside_span([3.0, 4.0], [[0.0, 1.0], [0.0, 2.0], [0.0, 5.0]])
    >>> found.share, found.separated
    (0.6, True)
    """
    array = np.atleast_2d(np.asarray(samples))
    tracker = SpanTracker(array.shape[1], affine=affine)
    tracker.add(array)
    return tracker.outside(vector)


class SpanCondition(ScheduledAuditor):
    """Find the client with the largest share of its update outside the span of the others'.

    It needs the plain updates of a simulation. Costs one QR decomposition of the round's updates
    for each client.

    Args:
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last.
        confidence: Of the test whether a client stands out; one test a run.

    Example:
        strategy = Audited(FedAvg(), auditors=[SpanCondition(every=10)])
    """

    name = "span"
    num_bounds = 1
    reads = frozenset({"truth"})
    wants_truth = True
    wants_mean = False

    _audited: Kept[int]  # rounds so far
    _largest: Kept[tuple[int, int, Span] | None]  # round, client and its share
    _tested: Kept[tuple[int, int, int, int] | None]  # round, client, its rank and of how many

    def __init__(self, *, every: int = 1, confidence: float = 0.95) -> None:
        super().__init__(every=every)
        within("confidence", confidence, above=0.0, below=1.0)
        self.confidence = confidence
        self._audited, self._largest, self._tested = 0, None, None

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._audited, self._largest, self._tested = 0, None, None

    def limits(self, project: Project) -> Sequence[str]:
        """Say where there are no other clients to compare with."""
        return few_clients(project, 2, "no other update can hide its own; not audited")

    def truth_of(self, server_round: int, honest: Sequence[int]) -> Collection[int]:
        """Return all honest clients of the rounds that are audited."""
        return honest if server_round in self._due else ()

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Return the largest share of an update outside the span of the others'."""
        view = audited.view
        honest = {c: u for c, u in view.truth.items() if c not in view.instructed}
        if len(honest) < 2:
            return ()
        if not all(np.isfinite(update).all() for update in honest.values()):
            raise DivergedError
        found = spans(honest)
        # The largest of n shares is a selection: it describes this round, and nothing is claimed of
        # others.
        client = max(found, key=lambda c: found[c].share)
        seen = (view.server_round, client, found[client])
        self._audited += 1
        if self._tested is None:  # one test a run, of a client that is fixed beforehand
            first = min(found)
            own = found[first]
            # Of updates that the others span, only rounding is left, and its order means nothing.
            rank = sum(one.share >= own.share or not own.outside for one in found.values())
            self._tested = (view.server_round, first, rank, len(found))
        if self._largest is None or found[client].share > self._largest[2].share:
            self._largest = seen
        shares = tuple(s.share for s in found.values())
        details = (PerClient(tuple(found), shares, (1,) * len(found)),)
        return [_finding(seen, view.server_round, details=details)]

    def report(self) -> Sequence[Finding]:
        """Return whether a client stands out, and the largest share of all audited rounds."""
        if self._largest is None or self._tested is None:
            return ()
        largest = _finding(self._largest, None, f" and {self._audited} audited rounds")
        return [self._stands_out(*self._tested), largest]

    def _stands_out(self, seen_in: int, client: int, rank: int, clients: int) -> Finding:
        """Return the test; of few clients one is too likely to be the first by chance."""
        can_show = 1 / clients <= 1 - self.confidence
        bound = Bound(
            float(can_show and rank == 1),
            "lower_bound",
            f"client {client}, fixed beforehand, has rank {rank} of {clients} by the share of its "
            f"update of round {seen_in} outside the span of the others'; among clients that send "
            f"alike updates it would be first with a chance of 1 in {clients}",
            confidence=1 - 1 / clients if can_show else self.confidence,
            sample_sizes={"clients": clients},
            cap=float(can_show),
            saturated=can_show and rank == 1,
            assumptions=(Assumption.THIS_ROUND_ONLY, Assumption.ANY_WEIGHTS),
        )
        facts = {"client": client, "round": seen_in, "rank": rank, "of clients": clients}
        claims = Claims("span", _SERVER, adjacency=None)
        return claims.finding(bound, facts, quantity="clients that stand out")


def _finding(
    largest: tuple[int, int, Span],
    server_round: int | None,
    rounds: str = "",
    details: tuple[PerClient, ...] = (),
) -> Finding:
    """Return the largest share as a finding about a round, or the largest of some rounds."""
    seen_in, client, span = largest
    claims = Claims("span", _SERVER, adjacency=None, server_round=server_round)
    bound = Bound(
        span.share,
        "diagnostic",
        f"share of client {client}'s update of round {seen_in} outside "
        f"the span of the other updates, the largest of {span.samples + 1} clients{rounds}. "
        "Each client was seen once per round, so this does not show what the others never send",
        sample_sizes={"others": span.samples, "rank": span.rank, "dim": span.dim},
        assumptions=(Assumption.THIS_ROUND_ONLY, Assumption.ANY_WEIGHTS),
    )
    facts = {"client": client, "round": seen_in, "draws": 1, "idle columns": span.idle_columns}
    return claims.finding(bound, facts, details, "share outside the span")


def spans(updates: Mapping[int, NDArray[np.floating]]) -> dict[int, Span]:
    """Return for every client which part of its update is outside the span of the others'.

    Theorem 1 asks for the linear span, since weights of clients may differ, so no mean is
    subtracted.

    Args:
        updates: Client to its plain update, of at least two clients.
    """
    if len(updates) < 2:
        raise ValueError(f"updates must be of at least 2 clients, got {len(updates)}")
    found = {}
    for client in sorted(updates):
        others = np.stack([updates[other] for other in sorted(updates) if other != client])
        found[client] = outside_span(updates[client], others, affine=False)
    return found
