"""Scores of records from all released models: whose loss falls when its client takes part?

Chang et al. 2024, Efficient Privacy Auditing in Federated Learning (USENIX Security), follow losses
over rounds. Zarifzadeh, Liu and Shokri 2024, Low-Cost High-Power Membership Inference Attacks
(arXiv:2312.03262), RMIA, compare the likelihood ratio of a record between the model and reference
models with that of other records. Ours takes the model before a round for the reference, so that no
model has to be trained: ln p(x; after) - ln p(x; before) is the drop of the loss, and the records
that it is compared with are held out. The final model alone forgets most of what a round shows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.values import Floats


class Trajectory(Resumable):
    """Sums the drops of losses over rounds with, and without, the client of a record.

    The score of a record is the sum of its drops over the rounds that its client took part in, less
    what as many of the other rounds brought, over the spread of such a difference. In each round
    drops are measured in standard deviations of the held-out records' drops, from their mean.
    """

    rounds: Kept[int]
    _last: Kept[Floats]  # losses after the last round, (records,)
    _inside: Kept[Floats]  # sum of drops in rounds with the client, (records,)
    _outside: Kept[Floats]  # the same in the others
    _count: Kept[Floats]  # rounds with the client

    def __init__(self) -> None:
        self.rounds = 0
        self._last = self._inside = self._outside = self._count = np.zeros(0)

    def start(self, losses: Floats) -> None:
        """Take the losses at the model that the first round has sent, unless there are some."""
        if not self._last.size:
            self._last, nothing = losses, np.zeros(len(losses))
            self._inside, self._outside, self._count = nothing, nothing.copy(), nothing.copy()

    def add(self, losses: Floats, took_part: NDArray[np.bool_], members: int) -> None:
        """Add the losses after a round.

        Args:
            losses: Of all records, members first; infinite ones count as no change.
            took_part: Whose client has taken part, (records,).
            members: How many of them are members.
        """
        with np.errstate(invalid="ignore"):  # both infinite
            drops = self._last - losses
        drops = np.where(np.isfinite(drops), drops, 0.0)
        self._last = losses
        spread = float(drops[members:].std())
        if spread == 0:  # an abandoned round, or too few records to compare with
            return
        drops = (drops - drops[members:].mean()) / spread
        self._inside += np.where(took_part, drops, 0.0)
        self._outside += np.where(took_part, 0.0, drops)
        self._count += took_part
        self.rounds += 1

    @property
    def is_seen(self) -> NDArray[np.bool_]:
        """Which records have had a round with their client."""
        return self._count > 0

    def scores(self) -> Floats:
        """Return the score of each record; larger means more likely a member.

        They are in standard deviations of a record that no client has: otherwise records of busy
        clients would have larger scores, members or not.
        """
        share = self._count / np.maximum(self.rounds - self._count, 1)
        spread = np.sqrt(np.maximum(self._count * (1 + share), 1))
        return (self._inside - self._outside * share) / spread
