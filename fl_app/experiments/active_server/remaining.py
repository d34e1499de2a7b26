"""What a malicious server can still do when all clients are told the same and check it.

None of these departs from what a client can check, so no mode stops them: the server picks who
takes part, which model all get, whom it calls dropped as long as it tells all the same, and when
it gives up. Only noise in the updates limits what it learns.
"""

from __future__ import annotations

from leakmeter.fl_app.experiments.active_server.attacks import (
    Attack,
    CanaryOrders,
    Ending,
    Opened,
    Played,
    of_members,
    of_target,
)
from leakmeter.fl_app.experiments.active_server.server import Server, Wire
from leakmeter.fl_app.experiments.active_server.transcript import TARGET, Transcript


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


class SmallestSum(Ending):
    """As many clients called dropped as the threshold allows, and all clients told so."""

    name = "smallest sum"
    what = "calls as many clients dropped as the threshold allows, and tells all clients the same"

    @property
    def _members(self) -> list[int]:
        return self.shape.honest[: self.shape.threshold]

    def end(self, to: Wire) -> None:
        """Ask the first clients for shares."""
        to.ask_for_shares(dict.fromkeys(self._members, self._members))

    def opened(self, seen: Transcript) -> Opened | None:
        """Open the sum over the first clients."""
        return of_members(seen, self._members)


class CanarySeats(CanaryOrders):
    """Canaries for all but the target and one more, which clients accept who list `canary_mod`."""

    name = "canary seats"
    what = "makes everyone but the target and one other client a canary seat"

    @property
    def seats(self) -> list[int]:
        """Return all but the first two."""
        return self.shape.honest[2:]

    def opened(self, seen: Transcript) -> Opened | None:
        """Open the sum: all but two have added nothing to it."""
        vector = seen.sum_of(seen.uploads)
        return None if vector is None else Opened(frozenset(self.shape.honest[:2]), vector)


class GivenUp(Ending):
    """The server takes the uploads and asks for no shares."""

    name = "rounds given up"
    what = "gives up every round once it has the uploads"

    def end(self, to: Wire) -> None:
        """Ask for no shares."""

    def opened(self, seen: Transcript) -> Opened | None:
        """Decode the target's upload as it came."""
        return of_target(seen.decoded(seen.uploads[TARGET]) if TARGET in seen.uploads else None)


REMAINING: tuple[type[Attack], ...] = (
    ChosenCohorts,
    CanarySeats,
    SmallestSum,
    GivenUp,
)
