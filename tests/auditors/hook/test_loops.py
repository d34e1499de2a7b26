"""Whoever writes the loop gets the same audit, and nothing of a strategy is touched."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, Result

from leakmeter.auditors import Anytime, Audited, AuditedGrid, OneShotCanaries
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.audited import UNPLANNED
from leakmeter.auditors.hook.grid import IN_PARTS
from leakmeter.auditors.hook.open_round import OWN_MODELS, SEVERAL_RECORDS
from leakmeter.auditors.hook.run_audit import UNRELEASED
from leakmeter.auditors.hook.wrapper import Wrapper
from leakmeter.auditors.run_log import StopAbove
from tests.guest.strategies import Controlling, Personal
from tests.helpers.strategies import Sorted

pytestmark = pytest.mark.usefixtures("flower_task")

ROUNDS = 4
ALL: dict[str, Any] = {"min_train_nodes": 6, "min_available_nodes": 6, "fraction_evaluate": 0.0}


class SavesItself(Sorted):
    """Pickles, copies and lists itself in every round, for checkpoints of its own."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.saved = pickle.dumps({**vars(self), "saved": b""})
        self.listed = sorted(vars(self))
        copy.deepcopy(self)
        return super().aggregate_train(server_round, replies)


class OwnArguments(SavesItself):
    """Has a loop with arguments of its own."""

    def start(self, model: ArrayRecord, over: Any, *, epochs: int) -> ArrayRecord:  # type: ignore[override]
        for number in range(1, epochs + 1):
            messages = self.configure_train(number, model, ConfigRecord(), over)
            model, _ = self.aggregate_train(number, over.send_and_receive(messages))
        return Result(arrays=model)  # type: ignore[return-value]


class Slotted:
    """Is no strategy of Flower's, and has no room for anything."""

    __slots__ = ("inner",)

    def __init__(self) -> None:
        self.inner = Sorted(**ALL)

    def start(self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3) -> Result:
        arrays = initial_arrays
        for number in range(1, num_rounds + 1):
            messages = self.configure_train(number, arrays, ConfigRecord(), grid)
            arrays, _ = self.aggregate_train(number, grid.send_and_receive(messages))
        return Result(arrays=arrays)

    def configure_train(self, *asked: Any) -> Any:
        return self.inner.configure_train(*asked)

    def aggregate_train(self, *come: Any) -> Any:
        return self.inner.aggregate_train(*come)

    def configure_evaluate(self, *_: Any) -> Any:
        return []

    def aggregate_evaluate(self, *_: Any) -> Any:
        return None


def canaries() -> OneShotCanaries:
    return OneShotCanaries(seats=2, seed=4)


def audited(strategy: Any, num_rounds: int | None = None) -> Audited:
    run = Audited(strategy, [canaries()], sends="models")
    run.num_rounds = num_rounds
    return run


def by_start(fed: Any) -> Any:
    run = audited(Sorted(**ALL))
    run.start(fed.grid, fed.arrays(), ROUNDS)
    return run


def by_saving(fed: Any) -> Any:
    strategy = SavesItself(**ALL)
    run = audited(strategy)
    run.start(fed.grid, fed.arrays(), ROUNDS)
    assert not {"configure_train", "aggregate_train"} & set(strategy.listed)
    return run


def by_own_arguments(fed: Any) -> Any:
    run = audited(OwnArguments(**ALL), num_rounds=ROUNDS)
    run.start(fed.arrays(), fed.grid, epochs=ROUNDS)
    return run


def by_slots(fed: Any) -> Any:
    run = audited(Slotted())
    run.start(fed.grid, fed.arrays(), ROUNDS)
    return run


def by_methods(fed: Any) -> Any:
    run, model = audited(Sorted(**ALL), num_rounds=ROUNDS), fed.arrays()
    for number in range(1, ROUNDS + 1):
        messages = run.configure_train(number, model, ConfigRecord(), fed.grid)
        model, _ = run.aggregate_train(number, fed.grid.send_and_receive(messages))
    run.finish()
    return run


def messages_of(grid: Any, number: int, model: ArrayRecord) -> list[Message]:
    """Return what a loop without a strategy sends."""
    content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": number})})
    return [
        Message(content, dst_node_id=node, message_type="train") for node in grid.get_node_ids()
    ]


def mean_of(replies: Any) -> ArrayRecord:
    """Return the weighted mean as FedAvg has it."""
    return Sorted(**ALL).aggregate_train(1, list(replies))[0]  # type: ignore[return-value]


def by_grid(fed: Any) -> Any:
    model = fed.arrays()
    with AuditedGrid(fed.grid, [canaries()], num_rounds=ROUNDS, sends="models") as grid:
        for number in range(1, ROUNDS + 1):
            model = mean_of(grid.send_and_receive(messages_of(grid, number, model)))
        grid.finish(model)
    return grid


def by_push_and_pull(fed: Any) -> Any:
    model = fed.arrays()
    with AuditedGrid(fed.grid, [canaries()], num_rounds=ROUNDS, sends="models") as grid:
        for number in range(1, ROUNDS + 1):
            ids = list(grid.push_messages(messages_of(grid, number, model)))
            # In two goes, as replies come.
            come = [*grid.pull_messages(ids[:2]), *grid.pull_messages(ids[2:])]
            model = mean_of(come)
        grid.finish(model)
    return grid


LOOPS = [by_saving, by_own_arguments, by_slots, by_methods, by_grid, by_push_and_pull]


def numbers(findings: list[Finding]) -> list[tuple[Any, ...]]:
    return [(f.auditor, f.quantity, f.kind, f.server_round, f.value) for f in findings]


@pytest.fixture(scope="module")
def known() -> list[Any]:
    """The audit of Flower's own loop, once it has been needed."""
    return []


@pytest.fixture
def expected(federation: Any, known: list[Any]) -> Any:
    """Return the audit of Flower's own loop."""
    if not known:
        known.append(by_start(federation()))
    return known[0]


@pytest.mark.parametrize("loop", LOOPS)
def test_every_loop_gets_the_same_findings_to_the_last_bit(
    federation: Any, expected: Any, loop: Callable[[Any], Any]
) -> None:
    run = loop(federation())
    assert run.failures == []
    found = numbers(run.findings())
    assert len(found) > 3
    assert found == numbers(expected.findings())
    assert [one.text for one in run.limitations] == [one.text for one in expected.limitations]


class HandsOn(Sorted):
    """Has a loop that hands all arguments on to Flower's."""

    def start(self, *args: Any, **more: Any) -> Result:
        return super().start(*args, **more)


class ByPlace(Sorted):
    """Takes the grid and the model by their place alone."""

    def start(  # type: ignore[override]
        self, grid: Any, initial_arrays: ArrayRecord, /, num_rounds: int = 3
    ) -> Result:
        return super().start(grid, initial_arrays, num_rounds)


@pytest.mark.parametrize(
    "strategy",
    [HandsOn(**ALL), ByPlace(**ALL), Wrapper(HandsOn(**ALL)), Wrapper(ByPlace(**ALL))],
    ids=["all", "by place", "all, wrapped", "by place, wrapped"],
)
def test_a_loop_gets_its_arguments_as_they_were_given(
    federation: Any, expected: Any, strategy: Any
) -> None:
    fed, run = federation(), audited(strategy)
    run.start(fed.grid, fed.arrays(), ROUNDS)
    assert run.failures == []
    assert numbers(run.findings()) == numbers(expected.findings())


def test_a_wrapped_loop_gets_no_argument_that_it_does_not_have(
    federation: Any, expected: Any
) -> None:
    fed = federation()
    run = audited(Wrapper(OwnArguments(**ALL)), num_rounds=ROUNDS)
    run.start(fed.arrays(), fed.grid, epochs=ROUNDS)
    assert numbers(run.findings()) == numbers(expected.findings())


def test_a_loop_that_pushes_twice_before_it_pulls_sees_none_of_our_records(
    federation: Any,
) -> None:
    fed = federation()
    with AuditedGrid(fed.grid, [canaries()], num_rounds=1, sends="models") as grid:
        messages = messages_of(grid, 1, fed.arrays())
        ids = [name for message in messages for name in grid.push_messages([message])]
        replies = list(grid.pull_messages(ids))
    assert len(replies) == len(messages)
    assert not [key for reply in replies for key in reply.content if wire.is_ours(key)]


def test_a_limit_ends_the_block_of_a_loop_without_an_error(federation: Any) -> None:
    fed, played = federation(), 0
    model = fed.arrays()
    auditor = OneShotCanaries(seats=2, seed=4, confidence=Anytime(0.95))
    audit = AuditedGrid(
        fed.grid, [auditor], num_rounds=40, sends="models", callbacks=[StopAbove(0.01)]
    )
    with audit as grid:
        for number in range(1, 41):
            model = mean_of(grid.send_and_receive(messages_of(grid, number, model)))
            played = number
    assert 0 < played < 40
    assert [one for one in audit.warnings if one.kind == "stopped-above"]


def test_without_the_last_model_the_last_round_is_said_to_be_left_out(federation: Any) -> None:
    fed = federation()
    model = fed.arrays()
    with AuditedGrid(fed.grid, [canaries()], num_rounds=2, sends="models") as grid:
        for number in (1, 2):
            model = mean_of(grid.send_and_receive(messages_of(grid, number, model)))
    assert UNRELEASED in [one.text for one in grid.limitations]


def test_what_was_measured_survives_an_exception_of_the_loop(
    federation: Any, tmp_path: Any
) -> None:
    fed = federation()
    model = fed.arrays()

    def loop(grid: AuditedGrid) -> None:
        nonlocal model
        for number in (1, 2, 3):
            model = mean_of(grid.send_and_receive(messages_of(grid, number, model)))
        raise ArithmeticError("not today")

    audit = AuditedGrid(fed.grid, [canaries()], num_rounds=9, sends="models", out=tmp_path / "run")
    with pytest.raises(ArithmeticError, match="not today"), audit as grid:
        loop(grid)
    assert (tmp_path / "run/report.json").exists()


def test_a_loop_that_calls_methods_says_how_long_it_is(federation: Any) -> None:
    fed = federation()
    with pytest.raises(RuntimeError, match="num_rounds"):
        audited(Sorted(**ALL)).configure_train(1, fed.arrays(), ConfigRecord(), fed.grid)


def test_a_start_without_a_length_is_said_to_be_unplanned(federation: Any) -> None:
    fed = federation()
    run = audited(OwnArguments(**ALL))
    run.start(fed.arrays(), fed.grid, epochs=2)
    assert UNPLANNED in [one.text for one in run.limitations]


def test_a_round_that_is_sent_in_parts_is_said_to_be(federation: Any) -> None:
    fed = federation()
    model = fed.arrays()
    with AuditedGrid(fed.grid, [canaries()], num_rounds=4, sends="models") as grid:
        for number in (1, 2):
            messages = messages_of(grid, number, model)
            come = [*grid.send_and_receive(messages[:3]), *grid.send_and_receive(messages[3:])]
            model = mean_of(come)
        grid.finish(model)
    assert IN_PARTS in [one.text for one in grid.limitations]


# The base of an update.


class Slices(Sorted):
    """Sends half of the model to every second client, as HeteroFL does."""

    def configure_train(self, *asked: Any) -> Any:
        for place, message in enumerate(super().configure_train(*asked)):
            arrays = dict(message.content["arrays"])
            if place % 2:
                arrays["b"] = Array(arrays["b"].numpy()[:6])
            message.content = RecordDict({**message.content, "arrays": ArrayRecord(arrays)})
            yield message

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        whole = [r for r in replies if r.has_content() and r.content["arrays"]["b"].shape == (12,)]
        return super().aggregate_train(server_round, whole)


class Broadcast(Sorted):
    """Sends all clients the same model, which is not quite its own."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, *more: Any) -> Any:
        moved = {n: Array(np.asarray(a.numpy() * 2, a.numpy().dtype)) for n, a in arrays.items()}
        return super().configure_train(server_round, ArrayRecord(moved), *more)


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Slices, OWN_MODELS),
        (Personal, OWN_MODELS),
        (Controlling, SEVERAL_RECORDS),
    ],
)
def test_updates_without_a_common_base_are_named_and_nothing_is_measured(
    federation: Any, strategy: type[FedAvg], reason: str
) -> None:
    fed = federation()
    run = audited(strategy(**ALL))
    run.start(fed.grid, fed.arrays(), 3)
    assert [one for one in run.failures if reason in one and "round 1" in one]
    assert not [f for f in run.findings() if f.auditor == "one-shot" and f.kind == "lower_bound"]


def test_the_base_is_what_clients_were_sent(federation: Any) -> None:
    class Bases(OneShotCanaries):
        def observe(self, view: Any) -> Any:
            seen.append(view.sent)
            return super().observe(view)

    fed, seen = federation(), []
    Audited(Broadcast(**ALL), [Bases(seats=2)], sends="models").start(fed.grid, fed.arrays(), 1)
    flat = np.concatenate([fed.arrays()[n].numpy().ravel() for n in ("w", "b")])
    np.testing.assert_allclose(seen[0], 2 * flat)
