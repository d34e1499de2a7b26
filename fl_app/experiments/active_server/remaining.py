"""What a malicious server can still do when all clients are told the same and check it.

None of these departs from what a client can check, so no mode stops them: the server picks who
takes part, which model all get, whom it calls dropped as long as it tells all the same, and when
it gives up. Only noise in the updates limits what it learns.
"""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Message

from leakmeter.fl_app.experiments.active_server.attacks import (
    Attack,
    Opened,
    Played,
    of_target,
)
from leakmeter.fl_app.experiments.active_server.federation import TARGET
from leakmeter.fl_app.experiments.active_server.server import Server, Wire
from leakmeter.fl_app.experiments.active_server.transcript import Transcript


class ChosenCohorts(Attack):
    """Two rounds with the same model, with and without the target: the sums differ by its update.

    Exact where training is deterministic. The two rounds have other batches where it is not.
    """

    name = "chosen cohorts"
    what = "plays the same model twice, with and without the target, and subtracts the sums"

    def play(self, server: Server) -> Played:
        """Play both rounds."""
        sums = []
        for cohort in (self.shape.honest, self.shape.honest[1:]):
            seen = server.round(cohort=cohort)
            if seen.mean is None:
                return Played(seen, None)
            sums.append(seen.mean * len(cohort))
        return Played(seen, of_target(sums[0] - sums[1]))

    def opened(self, seen: Transcript) -> Opened | None:
        """Return nothing: it takes two rounds."""
        return None


class SmallestSum(Attack):
    """As many uploads withheld as the threshold allows, and all clients told so."""

    name = "smallest sum"
    what = "calls as many clients dropped as the threshold allows, and tells all clients the same"

    def relay(self, stage: str, messages: Sequence[Message], to: Wire) -> list[Message]:
        """Keep back the uploads of the last clients."""
        replies = super().relay(stage, messages, to)
        return replies[: self.shape.threshold] if stage == "train" else replies

    def opened(self, seen: Transcript) -> Opened | None:
        """Return the sum over the first."""
        if seen.mean is None:
            return None
        members = frozenset(range(1, self.shape.threshold + 1))
        return Opened(members, seen.mean * len(members))


class GivenUp(Attack):
    """The server takes the uploads and asks for no shares."""

    name = "rounds given up"
    what = "gives up every round once it has the uploads"

    def relay(self, stage: str, messages: Sequence[Message], to: Wire) -> list[Message]:
        """Ask for no shares."""
        return [] if stage == "unmask" else super().relay(stage, messages, to)

    def opened(self, seen: Transcript) -> Opened | None:
        """Decode the target's upload as it came."""
        return of_target(seen.decoded(seen.uploads[TARGET]) if TARGET in seen.uploads else None)


REMAINING: tuple[type[Attack], ...] = (ChosenCohorts, SmallestSum, GivenUp)
