"""Clients of all kinds: failing, diverging, with a state, with names of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.guest import clients as kinds
from tests.guest.clients import Clients
from tests.guest.harness import (
    NODES,
    Cell,
    Quiet,
    assert_same,
    assert_unharmed,
    cells,
    explained,
    run_audited,
    run_plain,
    said,
    was_seen,
)
from tests.guest.model import MODELS
from tests.guest.strategies import (
    PLAIN,
    Controlled,
    Make,
    of,
    own,
)

FEDAVG = PLAIN["FedAvg"]
OWN = own(MODELS["floats"])
# Projects whose canaries can be seen.
AUDITED: dict[str, tuple[Callable[[], Clients], Make]] = {
    "failing": (kinds.Failing, FEDAVG),
    "failing FedAdam": (kinds.Failing, PLAIN["FedAdam"]),
    "stateful": (kinds.Stateful, FEDAVG),
    "stateful FedMedian": (kinds.Stateful, PLAIN["FedMedian"]),
    "other keys": (kinds.OtherKeys, FEDAVG),
    "other weight": (kinds.OtherWeight, of(type(FEDAVG()), weighted_by_key="records")),
    "no metrics": (kinds.NoMetrics, OWN),
    "no examples": (kinds.NoExamples, FEDAVG),
    "protecting": (kinds.Protecting, FEDAVG),
    "refusing": (kinds.Refusing, FEDAVG),
    "keeping": (kinds.Keeping, FEDAVG),
    "emptying": (kinds.Emptying, FEDAVG),
    "odd metrics": (kinds.OddMetrics, FEDAVG),
}
# Projects in which a part cannot be seen, which must be said.
ODD: dict[str, tuple[Callable[[], Clients], Make]] = {
    "failing first": (kinds.FailingFirst, FEDAVG),
    "renamed": (kinds.Renamed, FEDAVG),
    "part": (kinds.Part, FEDAVG),
    "twofold": (kinds.Twofold, of(Controlled)),
    "constant": (kinds.Constant, FEDAVG),
}


@pytest.mark.parametrize("name", cells([*AUDITED, *ODD], fast=("stateful", "renamed", "twofold")))
def test_an_auditor_that_looks_on_changes_nothing(name: str) -> None:
    clients, strategy = {**AUDITED, **ODD}[name]
    cell = Cell(strategy, clients)
    run, audited = run_audited(cell, [Quiet()])
    assert run_plain(cell).trace.released
    assert_same(cell, run)
    assert said(audited, "quiet")


FAST = ("failing", "other keys", "no metrics", "protecting", "emptying")


@pytest.mark.parametrize("name", cells(AUDITED, fast=FAST))
def test_canaries_are_counted_and_the_training_goes_on(name: str) -> None:
    clients, strategy = AUDITED[name]
    cell = Cell(strategy, clients)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


@pytest.mark.parametrize("name", ODD)
def test_canaries_are_counted_or_said_to_be_lost(name: str) -> None:
    clients, strategy = ODD[name]
    cell = Cell(strategy, clients)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert was_seen(run, audited) or explained(audited)


@pytest.mark.parametrize("clients", [kinds.Diverging, kinds.DivergingAlways])
def test_a_training_that_diverges_is_said_to(clients: Callable[[], Clients]) -> None:
    cell = Cell(FEDAVG, clients)
    run, audited = run_audited(cell, [Quiet()])
    assert_same(cell, run)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert "finite" in said(audited, "one-shot") + str(audited.warnings)


def test_replies_without_a_weight_fail_as_they_do_alone() -> None:
    cell = Cell(FEDAVG, kinds.NoMetrics)
    run, _ = run_audited(cell)
    assert str(run_plain(cell).error).startswith("InconsistentMessageReplies")
    assert_unharmed(cell, run)


def test_replies_that_never_come_are_missed_as_they_are_alone() -> None:
    lost = frozenset({(1, 2), (2, 1), (2, 3), (3, 4)})
    cell = Cell(FEDAVG, kinds.Stateful, lost=lost)
    run, audited = run_audited(cell, [Quiet()])
    assert_same(cell, run)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert was_seen(run, audited)


def test_a_round_that_nobody_answers_goes_by() -> None:
    lost = frozenset((2, node) for node in range(1, NODES + 1))
    cell = Cell(FEDAVG, kinds.Stateful, lost=lost)
    run, audited = run_audited(cell)
    assert run_plain(cell).trace.released == [1, 3]
    assert_unharmed(cell, run)
    assert was_seen(run, audited)
