"""What all auditors share that draw fresh updates in the rounds that they audit."""

from __future__ import annotations

from typing import Literal

from leakmeter.auditors.auditor import Auditor, RoundMessages, RoundView
from leakmeter.auditors.due import Due
from leakmeter.auditors.sampler import UpdateSampler
from leakmeter.auditors.sampling.round_sum import check_sampler


class ResamplingAuditor(Auditor):
    """Audits the sum of some rounds with updates that a sampler draws.

    Args:
        sampler: Draws fresh updates, and names the game.
        every: Rounds between two audits; see `Due`.
        observer: "server" sees the sum before server noise, "outsider" after it.
    """

    def __init__(
        self, sampler: UpdateSampler, *, every: int, observer: Literal["server", "outsider"]
    ) -> None:
        check_sampler(sampler)
        if observer not in ("server", "outsider"):
            raise ValueError(f"observer must be 'server' or 'outsider', got {observer!r}")
        self.sampler, self.every, self.observer = sampler, every, observer
        self._due = Due(every, 1)

    @property
    def due(self) -> Due:
        """Which rounds it looks at."""
        return self._due

    def begin(self, dim: int, num_rounds: int) -> None:
        """Note the rounds that will be audited."""
        self._due = Due(self.every, num_rounds)

    def bind(self, messages: RoundMessages) -> None:
        """Show the sampler the round, whose messages it may send again."""
        self.sampler.bind(messages)

    def sampled(self, honest: int, dim: int) -> int:
        """Return about how many updates an audited round draws, with so many honest clients."""
        return 0

    def seconds(self, view: RoundView) -> float | None:
        """Return how long the sampler takes for these updates; None if it cannot tell."""
        honest = sorted(set(view.replies) - set(view.instructed))
        if len(honest) < 2 or not (updates := self.sampled(len(honest), view.sent.size)):
            return None
        each = self.sampler.for_round(view).seconds(view.sent, honest[0])
        return None if each is None else each * updates

    def replays(self, server_round: int) -> bool:
        """Whether the sampler sends messages of this round again."""
        return self.sampler.asks_clients and server_round in self._due
