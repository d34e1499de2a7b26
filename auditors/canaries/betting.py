"""Bets on each canary after its last round, for a bound that holds at all rounds together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.bounds.anytime import AnytimeBound
from leakmeter.auditors.canaries.proofs import cosine_logsf, paid, surprise
from leakmeter.auditors.canaries.transcript import Transcript
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Bound


class Betting(Resumable):
    """Bets on every coin once: when its canary has played for the last time.

    A canary is scored by its cosine with the sum of the normalised changes of the rounds that the
    plan gives it. Given these changes, the null of that cosine is exact. The plan does not know the
    coins, so a seat that failed to deliver weakens the bound and never breaks it.

    Args:
        plan: The canaries of each round, rounds counted from 1.
        included: What the coin of each canary says, (canaries,).
        dim: Length of the model.
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
        dim: int,
        *,
        delta: float,
        confidence: float,
    ) -> None:
        self._included, self._dim = included, dim
        self._rounds_of: list[list[int]] = [[] for _ in included]
        for planned in sorted(plan):
            for canary in plan[planned]:
                self._rounds_of[canary].append(planned)
        self._last = np.array([max(rounds, default=0) for rounds in self._rounds_of])
        self._bound = AnytimeBound(delta=delta, confidence=confidence, planned=included.size)
        self._rows, self._done = [], 0

    def after(self, planned: int, transcript: Transcript) -> None:
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
        log_p[is_in] = -surprise(cosine_logsf(self._cosines(due[is_in], transcript), self._dim))
        self._bound.add_canaries(log_p, is_in)

    def bounds(self) -> list[Bound]:
        """Return the bound so far; none before the first bet, since it would not have searched."""
        found = self._bound.bound()
        return [replace(found, rule=found.rule + paid())] if found.sample_sizes else []

    def _cosines(self, canaries: NDArray[np.intp], transcript: Transcript) -> NDArray[np.float64]:
        """Return the cosine of each canary with what changed in its rounds."""
        row_of = {planned: row for row, planned in enumerate(self._rows)}
        rows = [[row_of[r] for r in self._rounds_of[c] if r in row_of] for c in canaries]
        return transcript.together(canaries.tolist(), rows)
