"""Strategies that send something else than Flower's: other types, other contents, or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from tests.guest.clients import Clients, Stateful, Twofold
from tests.guest.harness import (
    Cell,
    Quiet,
    assert_same,
    assert_unharmed,
    canaries,
    cells,
    explained,
    run_audited,
    run_plain,
    was_seen,
)
from tests.guest.strategies import Controlled, Make, of


class Named(FedAvg):
    """Calls another train function of the app."""

    def _construct_messages(
        self, record: RecordDict, node_ids: list[int], message_type: str
    ) -> Iterable[Message]:
        named = "train.mine" if message_type == "train" else message_type
        return super()._construct_messages(record, node_ids, named)


class MyTraining(Stateful):
    """Has its train function under another name."""

    action = "mine"


class Personal(FedAvg):
    """Sends every client a model of its own."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            shift = 0.01 * message.metadata.dst_node_id
            own = {n: Array((a.numpy() + shift).astype(a.dtype)) for n, a in arrays.items()}
            message.content = RecordDict({**message.content, "arrays": ArrayRecord(own)})
        return messages


class Controlling(Controlled):
    """Sends a second record of arrays beside the model, as control variates are."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        control = ArrayRecord({"c": Array(np.zeros(4))})
        for message in messages:
            message.content = RecordDict({**message.content, "control": control})
        return messages


class Resting(FedAvg):
    """Sends nothing in round 2."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        return [] if server_round == 2 else messages


class Lazy(FedAvg):
    """Makes its messages one by one."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        yield from super().configure_train(server_round, arrays, config, grid)


PROJECTS: dict[str, tuple[Make, Callable[[], Clients]]] = {
    "named": (of(Named), MyTraining),
    "personal": (of(Personal), Stateful),
    "controlling": (of(Controlling), Twofold),
    "resting": (of(Resting), Stateful),
    "lazy": (of(Lazy), Stateful),
}


@pytest.mark.parametrize("name", cells(PROJECTS, fast=list(PROJECTS)[::2]))
def test_messages_of_any_kind_arrive_as_they_were_sent(name: str) -> None:
    strategy, clients = PROJECTS[name]
    cell = Cell(strategy, clients, rounds=4)
    run, _ = run_audited(cell, [Quiet()])
    assert len(run_plain(cell).trace.released) >= 3
    assert_same(cell, run)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert was_seen(run, audited) or explained(audited)


def test_a_run_without_training_is_left_alone() -> None:
    cell = Cell(lambda: FedAvg(fraction_train=0.0, min_available_nodes=2), Stateful)
    run, audited = run_audited(cell)
    assert_same(cell, run)
    assert explained(audited)


def test_a_second_start_trains_as_it_does_alone() -> None:
    cell = Cell(of(FedAvg), Stateful)
    plain, (audited, hook) = run_plain.__wrapped__(cell), run_audited(cell, [Quiet()])
    arrays: list[Any] = []
    for run, started in ((plain, plain.strategy), (audited, hook)):
        random.seed(2)  # by which Flower orders the nodes
        result = started.start(run.grid, Clients().arrays(), num_rounds=2)
        arrays.append([a.data for a in result.arrays.values()])
    assert arrays[0] == arrays[1]
    assert plain.grid.states == audited.grid.states


def test_two_auditors_share_the_seats_of_a_round() -> None:
    other = canaries(seats=1, seed=2)
    other.name = "another"
    cell = Cell(of(FedAvg), Stateful)
    run, audited = run_audited(cell, [canaries(seats=1), other])
    assert_unharmed(cell, run)
    assert was_seen(run, audited)
    assert was_seen(run, audited, "another")


class Reusing(FedAvg):
    """Makes its messages once and fills them again in every round."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        if server_round == 1:
            made = super().configure_train(server_round, arrays, config, grid)
            self._mine = sorted(made, key=lambda message: message.metadata.dst_node_id)
        for message in self._mine:
            message.content["arrays"] = arrays
            message.content["config"] = ConfigRecord({**config, "server-round": server_round})
        return self._mine


def test_a_message_that_is_used_again_has_no_order_of_an_earlier_round() -> None:
    cell = Cell(of(Reusing))
    run, audited = run_audited(cell, [canaries(include="all")], sends="models")
    assert not audited.failures
    assert len(run.trace.seats) == 6
    assert sorted(run.trace.swapped) == sorted(run.trace.seats)
    assert not run.trace.harm
