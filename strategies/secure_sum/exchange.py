"""The stages of a secure sum as Flower messages; whoever answers badly or not at all has dropped.

A stage is an ordinary `train` message with an order beside it, so it reaches every client that
lists `mask_mod`, in any of Flower's engines.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from leakmeter.auditors.hook import wire
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.masking import RingVector
from leakmeter.clients.secure_sum.participant import PublicKeys
from leakmeter.clients.secure_sum.quantise import Quantiser
from leakmeter.clients.secure_sum.wire import (
    get_boxes,
    get_keys,
    get_shares,
    get_upload,
    put_by_number,
)
from leakmeter.strategies.secure_sum.unmasking import MaskedCohort

_log = logging.getLogger("flwr")

Answer = TypeVar("Answer")


class Exchange:
    """Asks the clients of one round stage by stage.

    Args:
        grid: Delivers the messages.
        messages: Number to the train message of the client with that number.
        number: What the clients know the round by.
        timeout: Seconds to wait for the replies of a stage.

    Attributes:
        messages: As given; `orders` completes them.
        complaint: What the last client that failed a stage has said.
    """

    def __init__(
        self, grid: Grid, messages: Mapping[int, Message], number: int, timeout: float
    ) -> None:
        self.messages = messages
        self.complaint = ""
        self._grid, self._number, self._timeout = grid, number, timeout
        self._nodes = {n: m.metadata.dst_node_id for n, m in messages.items()}
        self._run = 0

    @property
    def session(self) -> Session:
        """Run and round as the clients see them, once a stage has been sent."""
        return Session(self._run, self._number)

    def keys(self) -> dict[int, PublicKeys]:
        """Ask everybody for fresh keys; peers would refuse a key that two have announced."""
        orders = {n: {"number": n} for n in self._nodes}
        announced = self._ask("keys", orders, lambda _, record: get_keys(record))
        times = Counter(key for keys in announced.values() for key in (keys.share, keys.mask))
        for number in [n for n, k in announced.items() if times[k.share] + times[k.mask] > 2]:
            self._complain("keys", number, "another client has announced the same key")
            del announced[number]
        return announced

    def boxes(self, cohort: MaskedCohort) -> dict[int, dict[int, bytes]]:
        """Tell everybody the keys of its peers and return the boxes it has for them."""
        orders = {
            n: {
                "number": n,
                "threshold": cohort.threshold,
                **put_by_number("keys", {p: k.to_bytes() for p, k in cohort.peers(n).items()}),
            }
            for n in cohort.keys
        }
        return self._ask("shares", orders, lambda n, record: get_boxes(record, cohort.graph[n]))

    def order(self, number: int, boxes: Mapping[int, bytes], shared: ConfigRecord) -> Message:
        """Return the train message of one client with all it needs to mask."""
        message = self.messages[number]
        order = self._record("train", put_by_number("boxes", boxes))
        # A content of its own: Flower's strategies share one among all messages of a round.
        message.content = RecordDict({**message.content, wire.MASK: order, wire.SUM_ORDER: shared})
        return message

    def uploads(
        self, replies: Iterable[Message], sharers: Iterable[int], quantiser: Quantiser, dim: int
    ) -> dict[int, RingVector]:
        """Return the masked vectors by number."""
        length, expected = quantiser.num_slots(dim), set(sharers)
        uploads = self._parsed(
            "train", replies, lambda _, content: get_upload(content, quantiser.ring, length)
        )
        return {n: vector for n, vector in uploads.items() if n in expected}

    def shares(
        self, cohort: MaskedCohort, uploads: Iterable[int], sharers: Iterable[int]
    ) -> dict[int, dict[int, bytes]]:
        """Ask the survivors for one share of each of their peers."""
        alive, gone = set(uploads), set(sharers) - set(uploads)
        orders = {
            n: {
                "survivors": sorted([n, *cohort.neighbourhood(n, alive)]),
                "dropped": cohort.neighbourhood(n, gone),
            }
            for n in sorted(alive)
        }
        return self._ask(
            "unmask",
            orders,
            lambda n, record: get_shares(record, orders[n]["survivors"] + orders[n]["dropped"]),
        )

    def _ask(
        self,
        stage: str,
        orders: Mapping[int, Mapping[str, Any]],
        parse: Callable[[int, ConfigRecord], Answer],
    ) -> dict[int, Answer]:
        """Run one stage and return the answers by number.

        `parse` gets a number and the record that it has answered with, and raises if the record is
        not what was asked for: then its sender has dropped.
        """
        messages = [
            Message(
                RecordDict({wire.MASK: self._record(stage, order)}),
                dst_node_id=self._nodes[number],
                message_type="train",
            )
            for number, order in orders.items()
        ]
        replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        # Some releases of Flower give a message its run only when it is sent.
        self._run = messages[0].metadata.run_id

        def read(number: int, content: RecordDict) -> Answer:
            record = wire.config(content, wire.MASK)
            if record is None:
                raise ValueError(f"reply must hold {wire.MASK!r}, got {list(content)}")
            return parse(number, record)

        return self._parsed(stage, replies, read)

    def _parsed(
        self, stage: str, replies: Iterable[Message], parse: Callable[[int, RecordDict], Answer]
    ) -> dict[int, Answer]:
        """Return what could be read, by number and in order; the rest is logged."""
        numbers = {node: number for number, node in self._nodes.items()}
        answers: dict[int, Answer] = {}
        for reply in wire.distinct(replies):
            number = numbers.get(reply.metadata.src_node_id)
            if reply.has_error():
                self._complain(stage, number, reply.error.reason or "no reason given")
            elif number is not None:
                try:
                    answers[number] = parse(number, reply.content)
                except Exception as error:  # bytes from a stranger can fail in any way
                    self._complain(stage, number, f"{type(error).__name__}: {error}")
        return {n: answers[n] for n in sorted(answers)}

    def _complain(self, stage: str, number: int | None, reason: str) -> None:
        self.complaint = f"{stage!r}: {wire.one_line(reason)}"
        _log.info("secure sum: client %s drops out in stage %s", number, self.complaint)

    def _record(self, stage: str, values: Mapping[str, Any]) -> ConfigRecord:
        return ConfigRecord({"stage": stage, "round": self._number, **values})
