"""The in-process grid: what Flower would do with messages, states and exceptions."""

from __future__ import annotations

import copy
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.engines import inline
from leakmeter.fl_app.engines.inline import InlineGrid, run_inline
from leakmeter.strategies.flower import Places
from tests.helpers.runs import cut_off, report_of, resumed


def counting_app(*, keeps: bool = True) -> ClientApp:
    """Return an app that counts its calls in its state and fails when it is told to.

    If it does not keep its state, it has none after a call that did not fail.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        kept = context.state.get("count")
        count = int(str(kept["calls"])) + 1 if isinstance(kept, MetricRecord) else 1
        context.state["count"] = MetricRecord({"calls": count})
        context.state["arrays"] = ArrayRecord({"x": Array(np.full(2, float(count)))})
        if "fail" in message.content:
            raise ArithmeticError("told to fail")
        if not keeps:
            context.state.clear()
        told = MetricRecord({"calls": count, "client": int(context.node_config["partition-id"])})
        return Message(RecordDict({"told": told}), reply_to=message)

    return app


@pytest.fixture
def grid() -> Iterator[InlineGrid]:
    with inline._identified(inline._task_identity()):
        yield InlineGrid(counting_app(), 3)


def order(node: int, *, fail: bool = False) -> Message:
    content = RecordDict({"fail": ConfigRecord()} if fail else {})
    return Message(content, dst_node_id=node, message_type="train")


def told(reply: Message) -> tuple[int, int]:
    """Return client and number of calls in a reply."""
    record = reply.content["told"]
    assert isinstance(record, MetricRecord)
    return int(str(record["client"])), int(str(record["calls"]))


def test_replies_come_in_the_order_of_the_messages_from_clients_counted_from_0(
    grid: InlineGrid,
) -> None:
    assert list(grid.get_node_ids()) == [1, 2, 3]
    sent = [order(n) for n in (3, 1, 2)]
    replies = list(grid.send_and_receive(sent))
    assert [r.metadata.src_node_id for r in replies] == [3, 1, 2]
    assert [told(r)[0] for r in replies] == [2, 0, 1]
    assert Places(grid.nodes) == {r.metadata.src_node_id: told(r)[0] for r in replies}
    answered = [r.metadata.reply_to_message_id for r in replies]
    assert answered == [m.metadata.message_id for m in sent]
    assert len({m.metadata.message_id for m in (*sent, *replies)}) == 6
    made = grid.create_message(RecordDict(), "train", 2, group_id="7", ttl=60.0).metadata
    assert (made.dst_node_id, made.group_id, made.ttl) == (2, "7", 60.0)


def test_every_node_keeps_a_state_of_its_own_and_none_of_a_call_that_failed(
    grid: InlineGrid,
) -> None:
    sent = [order(1), order(1), order(2), order(1, fail=True), order(1)]
    replies = list(grid.send_and_receive(sent))
    assert [r.has_error() for r in replies] == [False, False, False, True, False]
    assert [told(r) for r in replies if r.has_content()] == [(0, 1), (0, 2), (1, 1), (0, 3)]
    failed = replies[3]
    assert (failed.error.code, failed.error.reason) == (2, "ArithmeticError: told to fail")
    assert failed.metadata.src_node_id == 1
    assert failed.metadata.reply_to_message_id == sent[3].metadata.message_id
    unknown = Message(RecordDict(), dst_node_id=1, message_type="evaluate")
    [reply] = grid.send_and_receive([unknown])
    assert reply.error.code == 2


def test_a_node_takes_room_only_while_it_keeps_a_state(grid: InlineGrid) -> None:
    many = InlineGrid(counting_app(keeps=False), 10**9)
    tracemalloc.start()
    try:
        for first in range(1, 10**9, 10**8):
            orders = [order(first), order(first + 1, fail=True)]
            assert [r.has_error() for r in many.send_and_receive(orders)] == [False, True]
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert not many._contexts
    list(grid.send_and_receive([order(2)]))
    assert list(grid._contexts) == [2]


@pytest.mark.usefixtures("grid")  # for Flower's identity
def test_what_a_client_does_to_its_own_settings_is_kept_as_its_state_is() -> None:
    seen: list[object] = []

    def app(message: Message, context: Context) -> Message:
        seen.append(context.node_config.get("mine"))
        context.node_config = {**context.node_config, "mine": 7}
        return Message(RecordDict(), reply_to=message)

    list(InlineGrid(app, 2).send_and_receive([order(2), order(2)]))
    assert seen == [None, 7]


def test_a_node_beyond_the_last_one_does_not_exist(grid: InlineGrid) -> None:
    for node in (0, 4):
        with pytest.raises(KeyError):
            grid.send_and_receive([order(node)])


def test_a_copied_state_shares_nothing_that_can_be_changed() -> None:
    records = {"config": ConfigRecord({"listed": [1, 2]}), "numbers": MetricRecord({"one": 1})}
    kept = RecordDict({**records, "arrays": ArrayRecord({"x": Array(np.ones(2))})})
    copied = inline._copied(kept)
    assert copied == kept
    listed = copied["config"]["listed"]
    assert isinstance(listed, list)
    listed.append(3)
    for record, value in (("config", "new"), ("numbers", 2), ("arrays", Array(np.zeros(1)))):
        copied[record]["more"] = value  # type: ignore[index]
    assert kept["config"] == {"listed": [1, 2]}
    assert [len(record) for record in kept.values()] == [1, 1, 1]


def spoiling_app() -> ClientApp:
    """Return an app that says what it was sent, and then empties and changes all of it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        arrays, config = message.content["arrays"], message.content["config"]
        assert isinstance(arrays, ArrayRecord)
        assert isinstance(config, ConfigRecord)
        got = ConfigRecord({**copy.deepcopy(dict(config)), "x": str(arrays["x"].numpy())})
        reply = Message(RecordDict({"got": got}), reply_to=message)
        arrays["x"].data, arrays["x"].shape = b"", ()
        arrays.clear()
        config["listed"].append(4)  # type: ignore[union-attr]
        config["round"] = 7
        message.metadata.ttl = 0.5
        message.content.clear()
        return reply

    return app


@pytest.mark.usefixtures("grid")  # for Flower's identity
def test_a_client_that_spoils_its_message_spoils_nobody_elses() -> None:
    arrays = ArrayRecord({"x": Array(np.ones(2))})
    shared = RecordDict({"arrays": arrays, "config": ConfigRecord({"round": 1, "listed": [3]})})
    sent = [Message(shared, dst_node_id=node, message_type="train", ttl=60) for node in (1, 2)]
    grid = InlineGrid(spoiling_app(), 2)
    for _ in range(2):  # the server may send the same messages again
        got = [reply.content["got"] for reply in grid.send_and_receive(sent)]
        assert got == [{"round": 1, "listed": [3], "x": "[1. 1.]"}] * 2
    assert [message.metadata.ttl for message in sent] == [60, 60]


def test_replies_wait_until_they_are_pulled_once(grid: InlineGrid) -> None:
    ids = list(grid.push_messages([order(1), order(2)]))
    [second] = grid.pull_messages(ids[1:])
    assert told(second)[0] == 1
    assert [told(r)[0] for r in grid.pull_messages(ids)] == [0]
    assert list(grid.pull_messages(ids)) == []


def test_both_apps_run_and_flowers_identity_is_put_back() -> None:
    identity = inline._task_identity()
    before = {name: getattr(identity, name) for name in inline._IDENTITY} if identity else {}
    server = ServerApp()
    seen: list[tuple[int, int]] = []

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        seen.extend(told(r) for r in grid.send_and_receive([order(2)]))
        raise LookupError("the end")

    with pytest.raises(LookupError, match="the end"):
        run_inline(server, counting_app(), 2)
    assert seen == [(1, 1)]
    assert {name: getattr(identity, name) for name in before} == before


@pytest.mark.parametrize(
    ("place", "name", "value", "words"),
    [
        (inline, "_IDENTITY", {"_moved_away": 1}, r"flwr 1\.26\.1 and 1\.41\.0; .*_moved_away"),
        (InlineGrid, "__abstractmethods__", frozenset({"new_method"}), "use --engine ray, or one"),
    ],
)
@pytest.mark.skipif(inline._task_identity() is None, reason="this release needs no identity")
def test_a_release_that_differs_is_named(
    place: Any, name: str, value: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, value)
    with pytest.raises(RuntimeError, match=words):
        run_inline(ServerApp(), counting_app(), 1)


# The same seed gives the same findings wherever the clients live.


@pytest.mark.slow
@pytest.mark.parametrize("server", ["fedavg", "fedavgm"])
def test_both_engines_give_the_same_report(
    server: str, tmp_path: Path, panel: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*panel, "--server", server]
    for engine in ("inline", "ray"):
        out = str(tmp_path / engine)
        assert main([*arguments, "--engine", engine, "--out", out]) == 0
    assert "DEPRECATED" not in capsys.readouterr().err
    one, other = (report_of(tmp_path / engine) for engine in ("inline", "ray"))
    assert (one["config"].pop("engine"), other["config"].pop("engine")) == ("inline", "ray")
    assert one == other
    assert len(one["findings"]) >= 4


@pytest.mark.slow
def test_a_run_cut_off_in_one_engine_goes_on_in_the_other(
    tmp_path: Path, panel: list[str], panel_config: Config
) -> None:
    cut_off(tmp_path / "run", panel_config, 1)
    config = tmp_path / "run/config.toml"
    config.write_text(config.read_text().replace('"inline"', '"ray"'))
    resumed(tmp_path / "run")
    assert main([*panel, "--out", str(tmp_path / "whole")]) == 0
    assert report_of(tmp_path / "run")["findings"] == report_of(tmp_path / "whole")["findings"]


@pytest.mark.slow
def test_a_mistake_found_by_the_server_reaches_the_command_line_through_ray(
    tmp_path: Path,
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from leakmeter.fl_app.config.field import ConfigError

    def broken(*_: Any, **__: Any) -> None:
        raise ConfigError("made up")

    monkeypatch.setattr("leakmeter.fl_app.run.launch.run_on", broken)
    assert main([*tiny, "--engine", "ray", "--out", str(tmp_path / "run")]) == 2
    assert "error: made up" in capsys.readouterr().err
