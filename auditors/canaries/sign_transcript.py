"""The cosines of canaries of random signs with the changes of a model, taken round by round.

Ours differs from `transcript`, where canaries are on the sphere:
1. No change is stored. A canary that is in is looked for in the changes of the rounds that the
   plan gives it, and at the end in the change since the start. At 10⁷ parameters, 100 rounds and
   1,000 canaries, of which half are in, that takes 4 s of one core; the products of all canaries
   with all changes would take 45 s and 4 GB of disk. No bound needs those that are out.
2. The largest cosine is over the rounds of a canary, R of them, and the union bound pays ln R. The
   joint null of several rounds, which the sphere has in closed form, is not known for signs.
3. The change since the start is summed in single precision. That is a function of the transcript,
   so it costs no validity, whatever is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import DivergedError
from leakmeter.auditors.canaries.scores import Largest, Scores
from leakmeter.auditors.canary_draws import BLOCK, KINDS, DrawnCanaries, SignStream, canary_key
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.values import Sliceable, Vector, Watch

_NULL = KINDS["signs"]
_GONE = 1e-6  # a total change this small, relative to the sum of all changes, is rounding
_LARGEST = 1e76  # squared norm of a block whose entries single precision can have


class SignTranscript(Resumable):
    """What canaries of random signs show of a run.

    Args:
        seed: The seed that all canaries share.
        dim: Length of the model.
        watch: Called with the progress of the products.
    """

    num_rounds: Kept[int]
    _total: Kept[NDArray[np.float32]]  # the change since the start; empty before the first round
    _travelled: Kept[float]  # summed norms of all changes
    _cosines: Kept[Scores]  # the largest of each canary in its rounds, (canaries,)
    _looks: Kept[NDArray[np.int64]]  # rounds of each canary in which the model changed

    def __init__(self, seed: int, dim: int, watch: Watch | None = None) -> None:
        self._seed, self._dim, self._watch = seed, dim, watch
        self.num_rounds, self._travelled = 0, 0.0
        self._total = np.empty(0, dtype=np.float32)
        self.look_for(np.zeros(0, dtype=bool))

    def look_for(self, included: NDArray[np.bool_]) -> None:
        """Look for the canaries that are in, and forget what was seen of others."""
        self._included = included
        self._cosines = np.full(included.size, -1.0)
        self._looks = np.zeros(included.size, dtype=np.int64)

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
            remembered: Not used: signs are drawn faster than they are read from memory.
            planned: Canaries that the plan gives this round.
        """
        ids = sorted({*canaries, *(i for i in planned if self._included[i])})
        signs, square = _Products(self._seed, ids), 0.0
        if not self._total.size:
            self._total = np.zeros(self._dim, dtype=np.float32)
        for start in range(0, self._dim, BLOCK):
            part = slice(start, start + BLOCK)
            with np.errstate(over="ignore", invalid="ignore"):
                change = after[part] - before[part]
                own = float(change @ change)
            if not own < _LARGEST:  # otherwise a diverged model would seem to hide everyone
                self._total[:start] -= after[:start] - before[:start]
                self._travelled += math.sqrt(square)  # rounding is left of it
                raise DivergedError
            square += own
            signs.add(change)
            with np.errstate(over="ignore"):  # of changes that are finite each
                self._total[part] += change
        self.num_rounds += 1
        length = math.sqrt(square)
        self._travelled += length
        cosines = signs.sums / (math.sqrt(self._dim) * (length or 1.0))
        if length:
            self._cosines[ids] = np.maximum(self._cosines[ids], cosines)
            self._looks[ids] += 1
        return cosines[np.searchsorted(ids, canaries)] if len(ids) else np.zeros(0)

    def final(self) -> tuple[Scores, Scores]:
        """Return the cosines with the change since the start, and limits on ln of their p-values.

        Both are 0 for canaries that are out. Each block of the change is multiplied with all others
        while it is in the cache.
        """
        inside = np.flatnonzero(self._included)
        cosines, log_p = np.zeros(self._included.size), np.zeros(self._included.size)
        signs, square = _Products(self._seed, inside.tolist()), 0.0
        for start in range(0, self._total.size, BLOCK):
            block = self._total[start : start + BLOCK].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                square += float(block @ block)
                signs.add(block)
            if self._watch is not None:
                self._watch("canaries", min((start + BLOCK) / self._dim, 1.0))
        length = math.sqrt(square)
        if _GONE * self._travelled < length < math.inf:
            # Without a change there is no direction: ln p = 0 is no evidence for any canary.
            cosines[inside] = signs.sums / (math.sqrt(self._dim) * length)
            log_p[inside] = _NULL.logsf(cosines[inside], self._dim)
        return cosines, log_p

    def largest(self, draws: int, level: float, rng: np.random.Generator) -> Largest:
        """Return the largest cosines over the rounds of each canary; nothing is simulated.

        They are 0 for canaries that are out.
        """
        cosines = np.where(self._looks > 0, self._cosines, 0.0)
        return Largest(cosines, self._log_p(), directions=int(self._looks.max(initial=1)))

    def log_p(self, canaries: Sequence[int], rows: Sequence[Sequence[int]]) -> Scores:
        """Return limits on ln p of some canaries, from the rounds that have been added."""
        return self._log_p()[list(canaries)]

    def close(self) -> None:
        """Forget nothing: there is no file."""

    def _log_p(self) -> Scores:
        """Return ln of the union bound over the rounds of each canary, 0 before the first."""
        tails = _NULL.logsf(self._cosines, self._dim) + np.log(np.maximum(self._looks, 1))
        return np.where(self._looks > 0, np.minimum(tails, 0.0), 0.0)


class _Products:
    """Inner products of a vector with the signs of some canaries, part by part.

    A product of one vector is faster without a matrix: signs are used while they are in the cache.

    Attributes:
        sums: The products of the parts so far, (canaries,).
    """

    def __init__(self, seed: int, canaries: Iterable[int]) -> None:
        self._streams = [SignStream(canary_key(seed, canary)) for canary in canaries]
        self._signs = np.empty(BLOCK)
        self.sums = np.zeros(len(self._streams))

    def add(self, part: Vector) -> None:
        """Add the products with the next coordinates, at most `BLOCK` of them."""
        signs = self._signs[: part.size]
        for place, stream in enumerate(self._streams):
            stream.fill(signs)
            self.sums[place] += part @ signs
