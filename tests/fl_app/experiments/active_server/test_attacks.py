"""Every attack of the suite reads what it should where nothing is checked, and nothing after."""

from __future__ import annotations

from functools import cache

import pytest

from leakmeter.fl_app.experiments.active_server.attacks import (
    ATTACKS,
    Attack,
    LiedDropouts,
    SmallCohort,
)
from leakmeter.fl_app.experiments.active_server.federation import Mode, Shape
from leakmeter.fl_app.experiments.active_server.measure import Count, attacked

SHAPE = Shape()


@cache
def counted(kind: type[Attack], mode: Mode) -> Count:
    return Count(**attacked(kind, SHAPE, mode, 2))


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.name)
def test_without_checks_the_attack_reads_the_target(kind: type[Attack]) -> None:
    count = counted(kind, "unbound")
    assert count.read == count.trials == 2
    assert count.members == (2 if kind in (LiedDropouts, SmallCohort) else 1)
    assert count.error is not None
    assert count.error < 1e-5  # the grid of the secure sum
    assert not count.refused
