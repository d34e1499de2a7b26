"""The stages of a secure sum as Flower messages; whoever answers badly or not at all has dropped.

A stage is an ordinary `train` message that carries an order, so it reaches every client that
lists `mask_mod`, in any of Flower's engines.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from leakmeter.auditors.hook import wire
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.masking import RingVector
from leakmeter.clients.secure_sum.quantise import Quantiser
from leakmeter.clients.secure_sum.signing import (
    PublicKeys,
    SignedKeys,
    TrustedKeys,
    is_signed,
    survivors_text,
)
from leakmeter.clients.secure_sum.signing import roster as fingerprint_of
from leakmeter.clients.secure_sum.wire import (
    get_boxes,
    get_drawn,
    get_keys,
    get_settings,
    get_shares,
    get_signature,
    get_signed_keys,
    get_upload,
    put_by_number,
    put_roster,
    put_signatures,
)
from leakmeter.strategies.secure_sum.unmasking import MaskedCohort

_log = logging.getLogger("flwr")

Answer = TypeVar("Answer")


def convinced(cohort: MaskedCohort, signatures: Collection[int]) -> list[int]:
    """Return those who have signed the survivors and of whose holders enough have."""
    needed = cohort.threshold - 1
    return [n for n in sorted(signatures) if len(cohort.holders(n, signatures)) >= needed]


class Exchange:
    """Asks the clients of one round stage by stage.

    Args:
        grid: Delivers the messages.
        messages: Number to the train message of the client with that number.
        number: What the clients know the round by.
        timeout: Seconds to wait for the replies of a stage.
        trusted: Keys of all clients, where they sign; None where they do not.

    Attributes:
        messages: As given; `order` completes them.
        settings: Fingerprint of the run's configuration as the clients have it, once they have
            announced keys.
        complaint: What the last client that failed a stage has said.
        dropped: Stage to the clients that were asked in it and gave no usable answer.
    """

    def __init__(
        self,
        grid: Grid,
        messages: Mapping[int, Message],
        number: int,
        timeout: float,
        trusted: TrustedKeys | None = None,
    ) -> None:
        self.messages = messages
        self.settings = b""
        self.complaint = ""
        self.dropped: dict[str, int] = {}
        self._grid, self._number, self._timeout = grid, number, timeout
        self._nodes = {n: m.metadata.dst_node_id for n, m in messages.items()}
        self._run = 0
        self._trusted = trusted
        self._signed: dict[int, SignedKeys] = {}

    @property
    def session(self) -> Session:
        """Run and round as the clients see them, once a stage has been sent."""
        return Session(self._run, self._number)

    def keys(self) -> dict[int, PublicKeys]:
        """Ask everybody for fresh keys; peers would refuse a key that two have announced."""
        orders = {n: {"number": n} for n in self._nodes}
        announced = self.ask("keys", orders, self._announced)
        self._drop_others(announced)
        times = Counter(name for keys, _ in announced.values() for name in self._names(keys))
        for number, (keys, _) in list(announced.items()):
            if any(times[name] > 1 for name in self._names(keys)):
                self._complain("keys", number, "another client has announced the same key")
                del announced[number]
        given = {n: keys for n, (keys, _) in announced.items()}
        self._signed = {n: keys for n, keys in given.items() if isinstance(keys, SignedKeys)}
        return {n: k.keys if isinstance(k, SignedKeys) else k for n, k in given.items()}

    def _announced(
        self, number: int, record: ConfigRecord
    ) -> tuple[PublicKeys | SignedKeys, bytes]:
        """Return what a client has announced, and how it was told the run's configuration."""
        settings = get_settings(record)
        if self._trusted is None:
            return get_keys(record), settings
        signed = get_signed_keys(record)
        signed.check(self.session, number, self._trusted)
        return signed, settings

    def _names(self, keys: PublicKeys | SignedKeys) -> list[bytes]:
        """Return what nobody else may have announced."""
        if isinstance(keys, SignedKeys):
            return [keys.public, keys.keys.share, keys.keys.mask]
        return [keys.share, keys.mask]

    def _drop_others(self, announced: dict[int, tuple[PublicKeys | SignedKeys, bytes]]) -> None:
        """Keep those who have the same configuration; with others no mask would cancel."""
        usual = Counter(settings for _, settings in announced.values()).most_common(1)
        self.settings = usual[0][0] if usual else b""
        for number in [n for n, (_, settings) in announced.items() if settings != self.settings]:
            self._complain("keys", number, "its run has another configuration than most have")
            del announced[number]

    @property
    def roster(self) -> bytes:
        """Fingerprint of those among whom neighbours are drawn."""
        return fingerprint_of({n: signed.public for n, signed in self._signed.items()})

    @property
    def announcements(self) -> bytes:
        """Fingerprint of who has announced which keys, where they are signed."""
        shown = {n: signed.signer.announced for n, signed in self._signed.items()}
        return fingerprint_of(shown) if shown else b""

    def draws(self, draws: int, threshold: int) -> dict[int, list[int]]:
        """Let everybody draw neighbours among all who have announced keys."""
        roster = put_roster({n: signed.public for n, signed in self._signed.items()})
        about = {"draws": draws, "threshold": threshold, **roster}
        orders = {n: {"number": n, **about} for n in self._signed}
        return self.ask("draw", orders, lambda n, r: get_drawn(r, n, self._signed, draws))

    def boxes(self, cohort: MaskedCohort) -> dict[int, dict[int, bytes]]:
        """Tell everybody the keys of its peers and return the boxes it has for them."""
        shown = {n: k.to_bytes() for n, k in (self._signed or cohort.keys).items()}
        orders = {
            n: {
                "number": n,
                "threshold": cohort.threshold,
                **put_by_number("keys", {peer: shown[peer] for peer in cohort.graph[n]}),
            }
            for n in (cohort.keys if cohort.drawn is None else cohort.drawn)
        }
        return self.ask("shares", orders, lambda n, record: get_boxes(record, cohort.graph[n]))

    def order(self, number: int, boxes: Mapping[int, bytes], shared: ConfigRecord) -> Message:
        """Return the train message of one client with all it needs to mask."""
        message = self.messages[number]
        order = self._record("train", {"number": number, **put_by_number("boxes", boxes)})
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
        found = {n: vector for n, vector in uploads.items() if n in expected}
        self.dropped["train"] = len(expected) - len(found)
        return found

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
        return self.ask(
            "unmask",
            orders,
            lambda n, record: get_shares(record, orders[n]["survivors"] + orders[n]["dropped"]),
        )

    def signatures(
        self, cohort: MaskedCohort, uploads: Collection[int], digest: bytes
    ) -> dict[int, bytes]:
        """Ask the survivors to sign who of their peers has survived; return valid signatures."""
        lists = {n: [n, *cohort.neighbourhood(n, uploads)] for n in sorted(uploads)}

        def read(number: int, record: ConfigRecord) -> bytes:
            signature, signer = get_signature(record), self._signed[number].signer
            about = (signer.announced, digest, lists[number])
            text = survivors_text(self.session, number, *about)
            if not is_signed(signer.public, signature, text):
                raise ValueError("the signature is not one of these survivors")
            return signature

        orders = {n: {"survivors": sorted(listed)} for n, listed in lists.items()}
        return self.ask("survivors", orders, read)

    def signed_shares(
        self,
        cohort: MaskedCohort,
        uploads: Collection[int],
        sharers: Collection[int],
        signatures: Mapping[int, bytes],
    ) -> dict[int, dict[int, bytes]]:
        """Ask those who have signed for one share of each of their peers.

        They get the signatures that convince them, and in a sparse graph the lists that were
        signed, since every neighbourhood has another.
        """
        orders = {}
        for number in convinced(cohort, signatures):
            witnesses = sorted(cohort.holders(number, signatures))[: cohort.threshold - 1]
            lists = {}
            if cohort.drawn is not None:
                lists = {w: [w, *cohort.neighbourhood(w, uploads)] for w in witnesses}
            orders[number] = put_signatures({w: signatures[w] for w in witnesses}, lists)
        return self.ask(
            "unmask",
            orders,
            lambda n, record: get_shares(record, [n, *cohort.neighbourhood(n, sharers)]),
        )

    def ask(
        self,
        stage: str,
        orders: Mapping[int, Mapping[str, Any]],
        parse: Callable[[int, ConfigRecord], Answer],
    ) -> dict[int, Answer]:
        """Run one stage and return the answers by number.

        `parse` gets a number and the record that it has answered with, and raises if the record is
        not what was asked for: then its sender has dropped.
        """
        if not orders:
            return {}
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
                raise ValueError(f"reply must contain {wire.MASK!r}, got {list(content)}")
            return parse(number, record)

        answers = self._parsed(stage, replies, read)
        self.dropped[stage] = len(orders) - len(answers)
        return answers

    def _parsed(
        self, stage: str, replies: Iterable[Message], parse: Callable[[int, RecordDict], Answer]
    ) -> dict[int, Answer]:
        """Return what could be read, by number and in order; the rest is logged."""
        numbers = {node: number for number, node in self._nodes.items()}
        answers: dict[int, Answer] = {}
        for reply in wire.distinct(replies):
            number = numbers.get(reply.metadata.src_node_id)
            if (reason := wire.blank_reason(reply)) is not None:
                self.complaint = f"{stage!r}: {reason}"
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
