"""The same seed names the same clients, whatever the nodes are called and who answers first."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.wrapper import Wrapper
from leakmeter.strategies import Chosen
from leakmeter.strategies.chosen import FixedSize
from leakmeter.strategies.flower import GridWrapper, PatientGrid
from tests.helpers.refusals import refuses
from tests.helpers.strategies import Replies


class Renamed(GridWrapper):
    """Gives the nodes other ids and shuffles ids and replies."""

    def __init__(self, grid: Grid, seed: int) -> None:
        super().__init__(grid)
        self._rng = random.Random(seed)
        self._real = {self._rng.getrandbits(64): node for node in grid.get_node_ids()}

    def get_node_ids(self) -> Iterable[int]:
        return self._rng.sample(list(self._real), len(self._real))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            meta = message.metadata
            real = Message(message.content, self._real[meta.dst_node_id], meta.message_type)
            (reply,) = self.grid.send_and_receive([real], timeout=timeout)
            answer = reply.content if reply.has_content() else reply.error
            replies.append(Message(answer, reply_to=message))
        return self._rng.sample(replies, len(replies))


def chosen(strategy: Any = None, *, size: int = 3, num_clients: int = 6, **more: Any) -> Chosen:
    strategy = strategy or FedAvg(fraction_evaluate=0.0)
    return Chosen(strategy, FixedSize(size), num_clients=num_clients, seed=5, **more)


def trainers(federation: Any) -> list[tuple[int, int]]:
    return sorted((r, c) for kind, r, c in federation.seen if kind == "train")


def test_cohorts_and_model_do_not_depend_on_node_ids_or_reply_order(federation: Any) -> None:
    plain, renamed = federation(), federation()
    expected = chosen().start(plain.grid, plain.arrays(), 4)
    result = chosen().start(Renamed(renamed.grid, seed=1), renamed.arrays(), 4)
    assert trainers(plain) == trainers(renamed)
    assert len({c for _, c in trainers(plain)}) > 3  # not one and the same cohort
    for name in expected.arrays:  # to the last bit: the order of a float sum is fixed, too
        assert np.array_equal(expected.arrays[name].numpy(), result.arrays[name].numpy())


def test_nodes_are_asked_who_they_are_only_where_the_grid_does_not_know(federation: Any) -> None:
    for make, asked in ((PatientGrid, 0), (GridWrapper, 6)):
        fed = federation()
        kinds: list[str] = []

        def noted(
            message: Message, context: Any, app: Any = fed.grid._app, kinds: Any = kinds
        ) -> Any:
            kinds.append(message.metadata.message_type)
            return app(message, context)

        fed.grid._app = noted
        strategy = chosen()
        strategy.start(make(fed.grid), fed.arrays(), 1)
        assert (kinds.count(wire.IDENTITY_QUERY), kinds.count("train")) == (asked, 3)
        assert strategy.client_of == {node: node - 1 for node in range(1, 7)}


def test_choosing_among_a_billion_clients_takes_no_room(federation: Any) -> None:
    fed = federation(10**9)
    strategy, sent = chosen(size=100, num_clients=10**9), (fed.arrays(), ConfigRecord())
    list(strategy.configure_train(1, *sent, fed.grid))  # loads what is loaded late
    tracemalloc.start()
    try:
        messages = list(strategy.configure_train(2, *sent, fed.grid))
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()
    clients = [strategy.client_of[m.metadata.dst_node_id] for m in messages]
    assert clients == strategy.cohort(2)
    assert len(clients) == 100


def test_an_app_without_identity_is_numbered_by_node_id_with_a_warning(
    federation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(identity=False)
    strategy = chosen()
    strategy.start(GridWrapper(fed.grid), fed.arrays(), 1)  # a grid that does not know either
    assert strategy.client_of == {node: i for i, node in enumerate(sorted(fed.grid.get_node_ids()))}
    assert "clients are numbered by node id" in caplog.text


class Growing(GridWrapper):
    """Shows one node more each time it is asked."""

    asked = 0

    def get_node_ids(self) -> Iterable[int]:
        self.asked += 1
        return list(self.grid.get_node_ids())[: self.asked]


def test_it_waits_until_all_nodes_are_there_and_those_beyond_them_stay_idle(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakmeter.strategies.chosen.time.sleep", lambda _: None)
    fed = federation(9)
    chosen(size=6).start(Growing(fed.grid), fed.arrays(), 1)
    assert [c for _, c in trainers(fed)] == list(range(6))


@pytest.mark.parametrize(
    ("num", "kept", "words"),
    [
        (4, 4, "6 nodes are needed, 4 came within 0 s"),
        (6, -1, "5 of 6 nodes have said which client they are"),  # and get no other number
    ],
)
def test_nodes_that_never_come_or_answer_are_a_timeout_that_says_how_many_are_missing(
    num: int, kept: int, words: str, federation: Any
) -> None:
    fed = federation(num)
    slow = Replies(fed.grid, lambda replies: replies[:kept])
    with pytest.raises(TimeoutError, match=words):
        chosen(patience=0.1).start(slow, fed.arrays(), 1)
    assert not trainers(fed)


def test_partition_ids_that_leave_a_gap_are_refused(federation: Any) -> None:
    class WithoutFirst(GridWrapper):
        def get_node_ids(self) -> Iterable[int]:
            return list(self.grid.get_node_ids())[1:]

    fed = federation(7)
    with pytest.raises(ValueError, match=r"partition-id must cover 0 to 5, missing \[0\]"):
        chosen().start(WithoutFirst(fed.grid), fed.arrays(), 1)


def test_a_fraction_inside_is_refused_also_behind_a_wrapper() -> None:
    half = FedAvg(fraction_train=0.5)
    for strategy in (half, Wrapper(half)):
        with refuses("fraction_train"):
            chosen(strategy)
    with refuses("size"):
        chosen(size=7)


@pytest.mark.parametrize("name", ["min_train_nodes", "min_available_nodes"])
def test_a_minimum_above_the_cohort_is_an_error_not_an_endless_wait(
    federation: Any, name: str
) -> None:
    fed = federation()
    nodes = {"min_train_nodes": 1, "min_available_nodes": 1, name: 2}
    strategy = chosen(FedAvg(fraction_evaluate=0.0, **nodes), size=1)
    with refuses(name):
        strategy.start(fed.grid, fed.arrays(), 1)


@pytest.mark.parametrize("step", ["train", "evaluate"])
def test_replies_are_summed_in_the_order_of_clients_and_foreign_ones_last(
    federation: Any, step: str
) -> None:
    fed, given = federation(), []
    strategy = chosen(size=6)
    setattr(strategy, f"_inner_aggregate_{step}", lambda _, replies: given.extend(replies))
    messages = list(strategy.configure_train(1, fed.arrays(), ConfigRecord(), fed.grid))
    metrics = MetricRecord({"num-examples": 1})
    replies = [Message(RecordDict({**m.content, "m": metrics}), reply_to=m) for m in messages]
    replies[0].metadata.__dict__["_src_node_id"] = 10**15  # as of an error from the SuperLink
    getattr(strategy, f"aggregate_{step}")(1, random.Random(0).sample(replies, 6))
    assert given == [*replies[1:], replies[0]]


@pytest.mark.parametrize("claim", [5, 99, -1, None], ids=str)
def test_in_a_deployment_one_client_cannot_end_the_run_by_its_number(
    claim: int | None, federation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def lying(replies: list[Message]) -> list[Message]:
        """Let one claim a number that is another's or nobody's, or give no answer."""
        if not replies or wire.IDENTITY not in replies[0].content:
            return replies
        if claim is None:
            return replies[1:]
        replies[0].content[wire.IDENTITY] = ConfigRecord({"partition-id": claim})
        return replies

    fed = federation(6)
    strategy = chosen(size=6, needs_answers=False)
    strategy.start(Replies(fed.grid, lying), fed.arrays(), 1)
    assert len(trainers(fed)) == 6
    assert "clients are numbered by node id" in caplog.text


def test_a_reply_that_is_delivered_twice_counts_once(federation: Any) -> None:
    results = []
    for extra in (0, 2):
        fed = federation(6)
        grid = Replies(fed.grid, lambda replies, extra=extra: [*replies, *replies[:extra]])
        results.append(chosen(size=6).start(grid, fed.arrays(), 1).arrays)
    for name in results[0]:
        assert (results[0][name].numpy() == results[1][name].numpy()).all()


class InPlace(FedAvg):
    """Adds to what it has received, as some strategies do."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        answers = list(replies)
        for array in (a for m in answers for a in wire.arrays(m.content).values()):
            numbers = array.numpy()
            numbers += 1
            assert not np.array_equal(numbers, array.numpy())
        return super().aggregate_train(server_round, answers)


def test_a_strategy_may_change_the_numbers_that_it_has_read(federation: Any) -> None:
    plain, changed = federation(), federation()
    expected = chosen().start(plain.grid, plain.arrays(), 2).arrays
    found = chosen(InPlace(fraction_evaluate=0.0)).start(changed.grid, changed.arrays(), 2).arrays
    assert {k: a.data for k, a in found.items()} == {k: a.data for k, a in expected.items()}
