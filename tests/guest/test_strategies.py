"""Flower's strategies train under the audit as they do without it, and are audited."""

from __future__ import annotations

import pytest

from tests.guest.clients import Clients, Trees
from tests.guest.harness import (
    Cell,
    Quiet,
    assert_same,
    assert_unharmed,
    cells,
    run_audited,
    said,
    was_seen,
)
from tests.guest.mods import clipping_mods
from tests.guest.strategies import CHOOSING, CLIENT_SIDE, FLOWERS, PLAIN, SERVER_SIDE, TREES


def project(name: str) -> Cell:
    """Return a project with this strategy, and the mods that it needs."""
    clients = Trees if name in TREES else Clients
    return Cell(FLOWERS[name], clients, clipping_mods(name))


LOOKED_ON = ("FedAdam", "QFedAvg", *list(SERVER_SIDE)[1:])


@pytest.mark.parametrize("name", cells(FLOWERS, fast=LOOKED_ON))
def test_an_auditor_that_looks_on_changes_nothing(name: str) -> None:
    cell = project(name)
    run, audited = run_audited(cell, [Quiet()])
    assert_same(cell, run)
    assert said(audited, "quiet")


SEEN = [*PLAIN, *SERVER_SIDE, *CLIENT_SIDE]
ALIKE = ("FedProx", "FedAdagrad", "FedYogi")  # as FedAvg, and twice as FedAdam
FAST = {*SEEN[::2], "FedAvg"}.difference(ALIKE)


@pytest.mark.parametrize("name", cells(SEEN, fast=FAST))
def test_canaries_are_counted_and_the_training_goes_on(name: str) -> None:
    cell = project(name)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


@pytest.mark.parametrize("name", cells(CHOOSING, fast=list(CHOOSING)[:1]))
def test_a_strategy_that_drops_updates_is_said_to_drop_canaries(name: str) -> None:
    cell = project(name)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert name in said(audited, "one-shot")


@pytest.mark.parametrize("name", TREES)
def test_trees_are_trained_and_said_not_to_be_audited(name: str) -> None:
    cell = project(name)
    run, audited = run_audited(cell)
    assert_same(cell, run)
    assert "float" in said(audited, "one-shot")
