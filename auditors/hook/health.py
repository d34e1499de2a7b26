"""Counts what damages a run, round by round, and turns it into typed warnings."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

import numpy as np

from leakmeter.auditors.auditor import RoundView
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import RunWarning, WarningKind
from leakmeter.auditors.values import Vector

Early = Literal["ended-early", "stopped-above"]
# Least share that causes a warning; 0 for any. Under differential privacy most updates may be
# clipped, and a few dropouts are usual.
_LEAST: Final[Mapping[WarningKind, float]] = {
    "stopped-above": 0.0,
    "ended-early": 0.0,
    "rejected-sums": 0.0,
    "non-finite-updates": 0.0,
    "blank-updates": 0.0,
    "clipped-coordinates": 0.0,
    "abandoned-rounds": 0.0,
    "dropouts": 0.05,
    "clipped-updates": 0.9,
}
_ENOUGH_CANARIES: Final = 8
# A clipped update has the clip norm up to the rounding of a float32 model.
_AT_THE_NORM: Final = 1 - 1e-4


class Health(Resumable):
    """What happened to the updates of a run, and out of how many."""

    _counts: Kept[dict[WarningKind, tuple[int, int]]]

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_LEAST, (0, 0))

    def note(
        self,
        view: RoundView,
        *,
        asked: int,
        silent: Mapping[int, bool],
        diverged: int,
        lost: int = 0,
        plain: Mapping[int, Vector],
    ) -> None:
        """Count one round.

        Args:
            view: What the round showed.
            asked: Clients that got a train message.
            silent: Node to whether its update was not finite, of those that say that they have sent
                none. Simulated clients say so; others are counted inside a secure sum, if at all.
            diverged: Replies with a value that is not finite.
            lost: Those of them that the strategy left out; they are not among the view's replies.
            plain: Updates that neither masks nor noise hide; empty where there are none.
        """
        facts = view.facts
        is_abandoned = facts.abandoned is not None
        arrived = len(view.replies) if is_abandoned else facts.num_clients
        blank, refused = len(silent), sum(silent.values())
        if facts.blank is not None:
            blank = facts.blank
        elif facts.coordinates is not None:  # under noise they are in a secure sum like others
            arrived -= blank
        asked = asked if facts.asked is None else facts.asked
        self._add("abandoned-rounds", int(is_abandoned), 1)
        self._add("rejected-sums", int(facts.rejected is True), 1)
        self._add("dropouts", max(asked - arrived - blank - lost, 0), asked)
        total = arrived + blank + lost
        self._add("blank-updates", max(blank - refused, 0), total)
        self._add("non-finite-updates", refused + diverged, total)
        if facts.saturated is not None and facts.coordinates is not None:
            self._add("clipped-coordinates", facts.saturated, facts.coordinates)
        if facts.clip_norm is not None:
            norms = [_norm(u) for client, u in plain.items() if client not in view.instructed]
            clipped = sum(norm >= _AT_THE_NORM * facts.clip_norm for norm in norms)
            self._add("clipped-updates", clipped, len(norms))

    def note_end(self, played: int, planned: int, kind: Early) -> None:
        """Count the rounds of a run that has ended before its last."""
        self._counts[kind] = (planned - played, planned)

    def warnings(self, canaries: Collection[tuple[int, int]]) -> tuple[RunWarning, ...]:
        """Return the warnings, the worst first.

        Args:
            canaries: Of each auditor that plays canaries: those that took part, those planned.
        """
        found = [
            # Facts of a foreign strategy need not fit together.
            RunWarning.of(kind, min(count, total), total)
            for kind, (count, total) in self._counts.items()
            if count and total and count >= _LEAST[kind] * total
        ]
        kinds = {one.kind for one in found}
        # More canaries would not help, or nobody wants to see more.
        if kinds & {"non-finite-updates", "blank-updates", "stopped-above"}:
            return tuple(found)
        # If rounds were lost, a plan with enough canaries does not need more of them.
        most = _ENOUGH_CANARIES if "abandoned-rounds" in kinds else math.inf
        found += [
            RunWarning.of("few-canaries", min(played, planned), planned)
            for played, planned in canaries
            if 0 < planned < most and played < _ENOUGH_CANARIES
        ]
        return tuple(found)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned, with every kind of count."""
        super().restore(state)
        self._counts = {kind: self._counts.get(kind, (0, 0)) for kind in _LEAST}

    def _add(self, kind: WarningKind, count: int, total: int) -> None:
        before, of = self._counts[kind]
        self._counts[kind] = (before + count, of + total)


def _norm(update: Vector) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(update))
