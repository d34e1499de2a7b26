"""The cosines of each canary with every change of the model, their nulls, and bets on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import DivergedError
from leakmeter.auditors.bounds.anytime import AnytimeBound
from leakmeter.auditors.bounds.one_run import paid, surprise
from leakmeter.auditors.canaries.changes import Changes
from leakmeter.auditors.canaries.scores import Largest, largest_cosine_log_p
from leakmeter.auditors.canaries.sign_transcript import SignTranscript
from leakmeter.auditors.canary_draws import BLOCK, CanaryBlocks, DrawnCanaries, cosine_logsf
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.values import Sliceable, Watch

Scores = NDArray[np.float64]

_GONE = 1e-9  # a total change this small, relative to the sum of all changes, is rounding

# Numbers in memory at a time, whatever the size of the run: 64 MB of changes in double precision
# and 32 MB as they are read, 32 MB of canaries and 64 MB of products. The Gram matrix takes 8 MB
# more for 1,000 rounds.
_CHANGES: Final = 2**23
_CANARIES: Final = 2**22
_PRODUCTS: Final = 2**23
_NORMALS: Final = 2**18  # of the null, 2 MB; drawing all at once took 2.4 MB per round
_TILE: Final = 768  # a multiple of the tiles that BLAS libraries use, such as 4, 12 and 16
_COLUMNS: Final = 2**16  # most columns of a block: a matrix product prefers more rows


@dataclass(frozen=True, eq=False)
class Seen:
    """What all changes of a run show about canaries.

    Attributes:
        gram: Inner products of the changes, (rounds, rounds).
        length: Norm of the change since the start.
        final: Products of unit canaries with that change, (canaries,).
        largest: Largest cosines over the rounds in which the model changed, (canaries,).
    """

    gram: NDArray[np.float64]
    length: float
    final: Scores
    largest: Scores


class Transcript(Resumable):
    """The changes of a model, round by round, and the products of canaries on the sphere with them.

    Each round is appended to a file. Products with all canaries are computed at the end, by blocks
    of coordinates, so that memory does not depend on the model size or the number of rounds.

    Args:
        seed: The seed that all canaries share.
        canaries: Their numbers.
        dim: Length of the model.
        path: File of the changes; None takes a temporary one.
        watch: Called with the progress of the products.

    Attributes:
        canaries: Their numbers; those of the end are searched for.
    """

    _changes: Kept[Changes]

    def __init__(
        self,
        seed: int,
        canaries: Sequence[int],
        dim: int,
        path: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._seed, self.canaries, self._dim = seed, canaries, dim
        self._watch = watch
        self._changes = Changes(dim, path)
        self._seen: Seen | None = None

    @property
    def num_rounds(self) -> int:
        """Rounds added so far."""
        return len(self._changes.lengths)

    def add(
        self,
        before: Sliceable,
        after: Sliceable,
        canaries: Sequence[int] = (),
        remembered: DrawnCanaries | None = None,
        planned: Sequence[int] = (),
    ) -> Scores:
        """Add a round and return the cosines of some canaries with it, 0 if nothing changed.

        Args:
            before: The model that the round began with.
            after: The model that it released.
            canaries: Canaries whose cosines are returned.
            remembered: Remembers them for another auditor of the round; None if there is none.
            planned: Not used: all canaries are looked for in all rounds.
        """
        self._seen = None
        drawn = CanaryBlocks(self._seed, canaries, remembered, self._dim)
        products, square = np.zeros((1, len(drawn))), 0.0
        for start in range(0, self._dim, BLOCK):
            part = slice(start, start + BLOCK)
            with np.errstate(over="ignore", invalid="ignore"):
                kept = (after[part] - before[part]).astype(np.float32)
            if not np.isfinite(
                kept
            ).all():  # otherwise a diverged model would seem to hide everyone
                raise DivergedError
            # Use the rounded change that is stored: the null is then exact to the last digit.
            exact = kept.astype(np.float64)
            square += float(exact @ exact)
            drawn.add_products(exact[None], products)
            self._changes.write(start, kept)
        self._changes.note(math.sqrt(square))
        return np.asarray(products[0] / drawn.norms() / (math.sqrt(square) or 1.0))

    def final(self) -> tuple[Scores, Scores]:
        """Return the cosines with the change since the start, and ln of their p-values."""
        seen = self._look()
        if seen.length <= _GONE * np.sqrt(np.diag(seen.gram)).sum():
            # Without a change there is no direction: ln p = 0 is no evidence for any canary.
            return np.zeros(len(self.canaries)), np.zeros(len(self.canaries))
        cosines = seen.final / seen.length
        return cosines, cosine_logsf(cosines, self._dim)

    def largest(self, draws: int, level: float, rng: np.random.Generator) -> Largest:
        """Return the largest cosines over rounds, upper limits on ln p, and draws of their null.

        Args:
            draws: Number of draws of the null.
            level: Probability that any of the limits fails.
            rng: Source of the draws.
        """
        seen = self._look()
        moved = np.diag(seen.gram) > 0
        if not moved.any():
            nothing = np.zeros(len(self.canaries))
            return Largest(nothing, nothing, self.num_rounds, np.zeros(1), level)
        pool = null_maxima(seen.gram[np.ix_(moved, moved)], self._dim, draws, rng)
        log_p = largest_cosine_log_p(seen.largest, pool, self._dim, int(moved.sum()), level)
        return Largest(seen.largest, log_p, self.num_rounds, pool, level)

    def log_p(self, canaries: Sequence[int], rows: Sequence[Sequence[int]]) -> Scores:
        """Return ln of the p-values of `together`."""
        return cosine_logsf(self.together(canaries, rows), self._dim)

    def together(self, canaries: Sequence[int], rows: Sequence[Sequence[int]]) -> Scores:
        """Return the cosine of each canary with the sum of some normalised changes.

        Args:
            canaries: Their numbers.
            rows: For each of them, which changes, from 0; those without length are left out.

        Returns:
            Cosines, 0 where nothing changed, (canaries,).
        """
        used = sorted({row for some in rows for row in some if self._changes.lengths[row] > 0})
        if not used:
            return np.zeros(len(canaries))
        drawn, products = CanaryBlocks(self._seed, canaries), np.zeros((len(used), len(canaries)))
        gram = np.zeros((len(used), len(used)))
        for block in self._changes.blocks(max(min(_CHANGES // len(used), _COLUMNS), 1), used):
            exact = block.astype(np.float64)
            gram += exact @ exact.T
            drawn.add_products(exact, products, max(_CANARIES // exact.shape[1], 1))
        weights = np.array([[row in some for some in rows] for row in used], dtype=np.float64)
        weights /= np.sqrt(np.diag(gram))[:, None]  # (used, canaries)
        length = np.sqrt(np.maximum((weights * (gram @ weights)).sum(axis=0), 0.0))
        along = (weights * products).sum(axis=0) / drawn.norms()
        # Changes that cancel leave no direction, and a cosine with rounding would be no evidence.
        is_left = length > _GONE * len(used)
        return np.where(is_left, along / np.where(is_left, length, 1.0), 0.0)

    def close(self) -> None:
        """Delete the file of the changes; results that were computed from it stay."""
        self._changes.close()

    def _look(self) -> Seen:
        """Return the products of all changes, computed once."""
        if self._seen is None:
            self._seen = self._computed()
        return self._seen

    def _computed(self) -> Seen:
        """Return the products of canaries and changes, in one pass per group of canaries.

        Each block has the sum of the changes as one more row. Adding up the products of single
        rounds instead would lose digits where the changes cancel.
        """
        rows = len(self._changes.lengths) + 1
        size = max(_PRODUCTS // rows, 1)
        groups = [self.canaries[i : i + size] for i in range(0, len(self.canaries), size)]
        gram = np.zeros((rows, rows))  # the last row and column belong to the sum of all changes
        final, largest = [], []
        for i, group in enumerate(groups):
            drawn, products = CanaryBlocks(self._seed, group), np.zeros((rows, len(group)))
            for block, share in self._blocks():
                if i == 0:
                    gram += block @ block.T
                drawn.add_products(block, products, max(_CANARIES // block.shape[1], 1))
                if self._watch is not None:
                    self._watch("canaries", (i + share) / len(groups))
            lengths = np.sqrt(np.diag(gram)[:-1])
            self._changes.check(lengths)
            moved = lengths > 0
            norms = drawn.norms() if moved.any() else np.ones(len(group))
            final.append(products[-1] / norms)
            cosines = products[:-1][moved] / lengths[moved, None] / norms  # (moved rounds, group)
            largest.append(cosines.max(axis=0, initial=-1.0))
        length = math.sqrt(gram[-1, -1])
        return Seen(gram[:-1, :-1], length, np.concatenate(final), np.concatenate(largest))

    def _blocks(self) -> Iterator[tuple[Scores, float]]:
        """Yield blocks of all changes and their sum, (rounds + 1, columns), and the progress."""
        rows = len(self._changes.lengths) + 1
        columns = max(min(_CHANGES // rows, _COLUMNS, self._dim), 1)
        exact = np.empty((rows, columns))
        done = 0
        for block in self._changes.blocks(columns):
            part = exact[:, : block.shape[1]]
            part[:-1] = block
            part[:-1].sum(axis=0, out=part[-1])
            done += block.shape[1]
            yield part, done / self._dim


def null_maxima(
    gram: NDArray[np.float64],
    dim: int,
    draws: int,
    rng: np.random.Generator,
    block: int = 2**22,
) -> NDArray[np.float64]:
    """Return largest cosines over rounds of canaries that never took part, drawn exactly.

    Given the transcript, the cosines of a fresh canary with all T round deltas are
    R g / √(‖g‖² + χ²), where R is a factor of the Gram matrix of the *normalised* deltas (rank r),
    g ~ N(0, I_r) is the canary within their span, and χ², with dim − r degrees of freedom, is the
    squared norm of the rest. This costs O(draws·T·r), not O(draws·T·dim).

    Args:
        gram: Inner products of the round deltas (T, T).
        dim: Length of the deltas.
        draws: Number of fresh canaries.
        rng: Source of randomness.
        block: Normal numbers that are drawn before the other random numbers that belong to them.
    """
    lengths = np.sqrt(np.diag(gram))
    moved = lengths > 0
    if not moved.any():
        return np.zeros(draws)
    values, vectors = np.linalg.eigh(
        gram[np.ix_(moved, moved)] / np.outer(lengths, lengths)[np.ix_(moved, moved)]
    )
    # Eigenvalues at rounding level would add directions that no delta has.
    kept = values > values[-1] * values.size * np.finfo(np.float64).eps
    factor = vectors[:, kept] * np.sqrt(values[kept])  # (T, r)
    rank = factor.shape[1]
    maxima, squares = np.empty(draws), np.empty(draws)
    step = max(block // len(gram), 1)
    for start in range(0, draws, step):
        part = slice(start, min(start + step, draws))
        _fill_maxima(factor, rng, maxima[part], squares[part])
        if dim > rank:
            squares[part] += rng.chisquare(dim - rank, part.stop - start)
    maxima /= np.sqrt(squares)
    # A round that changed nothing has a cosine of zero.
    return maxima if moved.all() else np.maximum(maxima, 0.0)


def _fill_maxima(
    factor: NDArray[np.float64], rng: np.random.Generator, maxima: Scores, squares: Scores
) -> None:
    """Draw canaries g within the span, a few at a time: put max R g and ‖g‖² where they belong."""
    # Whole tiles of a matrix product: its last bits are then those of all draws at once.
    rows = max(_NORMALS // len(factor) // _TILE, 1) * _TILE
    for start in range(0, maxima.size, rows):
        some = slice(start, start + rows)
        normal = rng.standard_normal((maxima[some].size, factor.shape[1]))  # one row per draw
        maxima[some] = (normal @ factor.T).max(axis=1)
        squares[some] = (normal**2).sum(axis=1)


class Betting(Resumable):
    """Bets on every coin once: when its canary has played for the last time.

    A canary on the sphere is scored by its cosine with the sum of the normalised changes of the
    rounds that the plan gives it. Given these changes, the null of that cosine is exact. One of
    signs is scored by the largest cosine with one of them. The plan does not know the coins, so a
    seat that failed to deliver weakens the bound and never breaks it.

    Args:
        plan: The canaries of each round, rounds counted from 1.
        included: What the coin of each canary says, (canaries,).
        delta: The delta of the bound.
        confidence: Of the bounds of all rounds together.
    """

    _bound: Kept[AnytimeBound]
    _rows: Kept[list[int]]  # the planned round of each change in the transcript
    _done: Kept[int]  # planned rounds whose canaries have been bet on

    def __init__(
        self,
        plan: Mapping[int, Sequence[int]],
        included: NDArray[np.bool_],
        *,
        delta: float,
        confidence: float,
    ) -> None:
        self._included = included
        self._rounds_of: list[list[int]] = [[] for _ in included]
        for planned in sorted(plan):
            for canary in plan[planned]:
                self._rounds_of[canary].append(planned)
        self._last = np.array([max(rounds, default=0) for rounds in self._rounds_of])
        self._bound = AnytimeBound(delta=delta, confidence=confidence, planned=included.size)
        self._rows, self._done = [], 0

    def after(self, planned: int, transcript: Transcript | SignTranscript) -> None:
        """Bet on the canaries that have played for the last time.

        Args:
            planned: The round of the plan that was added to the transcript, 0 for one before it.
            transcript: All changes so far.
        """
        self._rows.append(planned)
        due = np.flatnonzero((self._last > self._done) & (self._last <= planned))
        self._done = max(planned, self._done)
        is_in = self._included[due]
        log_p = np.zeros(due.size)
        log_p[is_in] = -surprise(self._log_p(due[is_in], transcript))
        self._bound.add_canaries(log_p, is_in)

    def bounds(self) -> list[Bound]:
        """Return the bound so far; none before the first bet, since it would not have searched."""
        found = self._bound.bound()
        return [replace(found, rule=found.rule + paid())] if found.sample_sizes else []

    def _log_p(
        self, canaries: NDArray[np.intp], transcript: Transcript | SignTranscript
    ) -> NDArray[np.float64]:
        """Return ln p of each canary, from what changed in its rounds."""
        row_of = {planned: row for row, planned in enumerate(self._rows)}
        rows = [[row_of[r] for r in self._rounds_of[c] if r in row_of] for c in canaries]
        return transcript.log_p(canaries.tolist(), rows)
