"""Grids before Flower's: what got lost on the way is asked for once more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from leakmeter.strategies.flower import (
    UNUSABLE,
    InterruptibleGrid,
    NumberedGrid,
    PartialGrid,
    PatientGrid,
    Places,
    UnusableNodeError,
    current_delivery,
    known_nodes,
)

pytestmark = pytest.mark.usefixtures("flower_task")

SUPERLINK = 1  # the source of replies that Flower makes up for lost messages
Fate = Callable[[int, int], int | None]  # node and attempt to an error code, None for success


class Scripted(Grid):
    """Answers each message by a script; as in Flower, ids are given when messages are pushed."""

    def __init__(self, fate: Fate, *, from_superlink: bool = False, reason: str = "") -> None:
        self.fate, self.from_superlink, self.reason = fate, from_superlink, reason
        self.sent: list[Message] = []
        self.attempts: dict[int, int] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return "the run"

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [11, 12, 13]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.waiting = list(self.send_and_receive(messages))
        return [m.metadata.reply_to_message_id for m in self.waiting]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """One at a time, as replies come in."""
        come, self.waiting = self.waiting[:1], self.waiting[1:]
        assert {m.metadata.reply_to_message_id for m in come} <= set(message_ids)
        return come

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            self.sent.append(message)
            message.metadata.__dict__["_message_id"] = f"message-{len(self.sent)}"
            node = message.metadata.dst_node_id
            self.attempts[node] = self.attempts.get(node, 0) + 1
            code = self.fate(node, self.attempts[node])
            if code is None:
                replies.append(Message(message.content, reply_to=message))
                continue
            replies.append(Message(Error(code, self.reason or f"code {code}"), reply_to=message))
            if self.from_superlink:
                replies[-1].metadata.__dict__["_src_node_id"] = SUPERLINK
        return replies


def messages() -> list[Message]:
    return [
        Message(
            RecordDict({"config": ConfigRecord({"node": node})}),
            dst_node_id=node,
            message_type="train",
            group_id="3",
            ttl=77.0,
        )
        for node in (11, 12, 13)
    ]


@pytest.mark.parametrize("from_superlink", [False, True])
@pytest.mark.parametrize("code", [0, 1, 3, 4])
def test_a_message_lost_on_the_way_is_sent_once_more(code: int, from_superlink: bool) -> None:
    grid = Scripted(
        lambda node, attempt: code if (node, attempt) == (12, 1) else None,
        from_superlink=from_superlink,
    )
    replies = list(PatientGrid(grid).send_and_receive(messages()))
    assert grid.attempts == {11: 1, 12: 2, 13: 1}
    assert sorted(r.metadata.src_node_id for r in replies) == [11, 12, 13]
    assert all(r.content["config"]["node"] == r.metadata.src_node_id for r in replies)
    first, again = grid.sent[1], grid.sent[3]
    assert again.content == first.content
    for name in ("dst_node_id", "message_type", "group_id", "ttl"):
        assert getattr(again.metadata, name) == getattr(first.metadata, name)


def test_a_client_app_that_raised_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    grid = Scripted(lambda node, _: 2 if node == 12 else None)
    replies = list(PatientGrid(grid).send_and_receive(messages()))
    assert grid.attempts == {11: 1, 12: 1, 13: 1}
    assert [r.has_error() for r in replies] == [False, True, False]
    assert "1 client app failed, the first with code 2" in caplog.text


@pytest.mark.parametrize("from_superlink", [False, True])
def test_a_message_that_fails_twice_is_given_up(from_superlink: bool) -> None:
    grid = Scripted(lambda node, _: 3 if node == 12 else None, from_superlink=from_superlink)
    replies = list(PatientGrid(grid).send_and_receive(messages()))
    assert grid.attempts[12] == 2
    assert sum(r.has_error() for r in replies) == 1
    assert len(replies) == 3


def test_replies_are_kept_also_where_the_grid_gives_no_ids() -> None:
    class Nameless(Scripted):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            replies = list(super().send_and_receive(messages))
            for reply in replies:
                reply.metadata.__dict__["_reply_to_message_id"] = ""
            return replies

    grid = Nameless(lambda node, attempt: 3 if (node, attempt) == (12, 1) else None)
    replies = list(PatientGrid(grid).send_and_receive(messages()))
    assert sorted(r.metadata.src_node_id for r in replies) == [11, 12, 13]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, "<class 'ray.exceptions.RaySystemError'>:<'No module named 'fl_app''>"),
        (1, "ModuleNotFoundError: torch"),
        (2, f"{UNUSABLE}: node seven, data-dir: mnist: looked for files"),
    ],
)
def test_a_machine_that_can_never_run_the_app_fails_the_run(code: int, reason: str) -> None:
    grid = Scripted(lambda node, _: code if node == 12 else None, reason=reason)
    with pytest.raises(UnusableNodeError) as raised:
        PatientGrid(grid).send_and_receive(messages())
    assert reason in str(raised.value)


def test_an_import_that_fails_inside_the_app_is_the_clients_own_affair() -> None:
    grid = Scripted(lambda node, _: 2 if node == 12 else None, reason="No module named 'mine'")
    replies = list(PatientGrid(grid).send_and_receive(messages()))
    assert sum(r.has_error() for r in replies) == 1


def test_an_interruptible_grid_waits_for_all_until_time_is_up_or_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", lambda _: stop.is_set())
    grid = InterruptibleGrid(Scripted(lambda *_: None), stop)
    replies = list(grid.send_and_receive(messages()))
    assert [r.metadata.src_node_id for r in replies] == [11, 12, 13]
    assert len(list(grid.send_and_receive(messages(), timeout=0.0))) == 1
    stop.set()
    with pytest.raises(SystemExit):  # which no strategy can handle
        grid.send_and_receive(messages())


def test_a_partial_grid_shows_its_nodes_and_hands_the_rest_on() -> None:
    grid = Scripted(lambda *_: None)
    part = PartialGrid(grid, (node for node in (13, 11)))
    assert list(part.get_node_ids()) == list(part.get_node_ids()) == [13, 11]
    assert part.run == "the run"
    assert len(list(part.send_and_receive(messages()))) == 3


def test_places_in_a_range_are_those_of_a_table() -> None:
    places = Places(range(3, 7))
    assert places == {3: 0, 4: 1, 5: 2, 6: 3}
    for missing in (2, 7):
        assert missing not in places
        with pytest.raises(KeyError):
            places[missing]
    assert places.get(7, -1) == -1
    assert Places(range(1, 10**15))[10**14] == 10**14 - 1


def test_only_wrappers_that_change_no_node_say_which_client_it_is() -> None:
    class Numbered(Scripted, NumberedGrid):
        nodes = range(1, 4)

    grid = Numbered(lambda *_: None)
    assert known_nodes(PatientGrid(PatientGrid(grid))) == range(1, 4)
    assert known_nodes(PartialGrid(grid, [2])) is None
    assert known_nodes(PatientGrid(Scripted(lambda *_: None))) is None
    assert current_delivery() is None  # only the in-process engine says what it delivers


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, "No module named 'fl_app'"),
        (1, "ModuleNotFoundError: torch"),
        (2, f"{UNUSABLE}: node seven\nVerdict: nothing leaks"),
    ],
)
def test_the_words_of_one_client_end_no_deployment(
    code: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Scripted(lambda node, _: code if node == 12 else None, reason=reason)
    replies = PatientGrid(grid, is_simulated=False).send_and_receive(messages())
    assert sorted(r.metadata.src_node_id for r in replies if r.has_content()) == [11, 13]
    assert "node 12 drops out: a machine cannot run the client app" in caplog.text
    assert all("\n" not in record.getMessage() for record in caplog.records)
    # Flower's strategies log what errors say as it is.
    assert all("\n" not in str(r.error.reason) for r in replies if r.has_error())
