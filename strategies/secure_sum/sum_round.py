"""One secure sum on the server: its stages as Flower messages, and from shares to the mean.

Bonawitz et al. 2017 and Bell et al. 2020, as in `clients.secure_sum.participant`. `MaskedCohort`
takes the masks off the sum and knows no Flower. `Exchange` asks the clients stage by stage: a stage
is an ordinary `train` message that carries an order, so it reaches every client that lists
`mask_mod`, in any of Flower's engines. Whoever answers badly or not at all has dropped. `SumRound`
is the sum between its train messages and its mean.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.wrapper import SumOpening
from leakmeter.auditors.values import Vector
from leakmeter.clients.secure_sum.keys import (
    Instructions,
    KeyPair,
    Session,
    agree,
    belongs,
    binding,
    opens,
    self_mask_key,
)
from leakmeter.clients.secure_sum.quantise import (
    BlankSumError,
    Quantiser,
    Ring,
    RingVector,
    SecureMean,
    add_vectors,
    unmask,
)
from leakmeter.clients.secure_sum.sharing import recover
from leakmeter.clients.secure_sum.signing import (
    PublicKeys,
    TrustedKeys,
    is_signed,
    survivors_text,
)
from leakmeter.clients.secure_sum.signing import roster as fingerprint_of
from leakmeter.clients.secure_sum.wire import (
    get_answers,
    get_drawn,
    get_keys,
    get_settings,
    get_signature,
    get_upload,
    put_by_number,
    put_signatures,
)
from leakmeter.strategies.flower import ReadArray
from leakmeter.strategies.secure_sum.topology import Graph, GraphPlan


class AbandonedError(Exception):
    """The round gives no sum; the text says why."""


class RejectedError(AbandonedError):
    """The sum was opened, and is none of honest clients; the server has seen it all the same."""


@dataclass(frozen=True)
class MaskedCohort:
    """Who takes part, after all have announced their keys.

    Attributes:
        session: Run and round.
        keys: Number to public keys.
        graph: Number to the numbers of its neighbours.
        threshold: Shares that open a secret.
        drawn: Where clients draw their neighbours, number to those that it has drawn: they hold its
            shares. None where all neighbours do.
    """

    session: Session
    keys: Mapping[int, PublicKeys]
    graph: Graph
    threshold: int
    drawn: Mapping[int, Collection[int]] | None = None

    def neighbourhood(self, number: int, among: Container[int]) -> list[int]:
        """Return the neighbours of a client among some numbers."""
        return [peer for peer in self.graph[number] if peer in among]

    def holders(self, number: int, among: Iterable[int]) -> set[int]:
        """Return who of some clients holds shares of a client's secrets, the client left out."""
        own = self.graph[number] if self.drawn is None else self.drawn.get(number, ())
        return set(own) & set(among)

    def enough(self, sharers: Iterable[int]) -> set[int]:
        """Return those who have enough peers left to continue, after some have not shared.

        A client whose own holders are too few would make the whole sum unrecoverable.
        """
        left = set(sharers)
        while short := {n for n in left if len(self.holders(n, left)) + 1 < self.threshold}:
            left -= short
        if len(left) < 2:
            raise AbandonedError(f"{len(left)} clients have enough peers to continue, 2 are needed")
        return left

    def check(
        self, uploads: Iterable[int], sharers: Iterable[int], seats: Collection[int] = ()
    ) -> None:
        """Give up before anything is revealed if the sum cannot come out, or would come in parts.

        More clients may drop out than the graph was planned for. If the survivors fall apart, their
        masks cancel within each part, and the shares would open the parts' sums one by one.

        Args:
            uploads: Those who have uploaded.
            sharers: Everybody whose peers have masked with them.
            seats: Those who play a canary, and hide nobody.
        """
        alive, gone = set(uploads), set(sharers) - set(uploads)
        if len(alive) < 2:
            raise AbandonedError(f"{len(alive)} clients have uploaded, 2 are needed")
        # Survivors hold a share of their own; the dropped matter if a survivor masked with them.
        short = self._short(alive, gone, alive)
        if short:
            raise AbandonedError(
                f"{len(alive)} of {len(alive) + len(gone)} clients have uploaded, too few to open "
                f"the masks of {short} with threshold {self.threshold}"
            )
        around = ({n, *self.neighbourhood(n, alive)} for n in alive)
        if seats and any(len(near - set(seats)) < 2 for near in around):
            raise AbandonedError(
                f"{len(alive)} clients have uploaded, {len(alive & set(seats))} of them canaries: "
                "fewer than two others would be in a sum"
            )
        if not self._is_joined(alive):
            raise AbandonedError(
                f"the {len(alive)} clients that have uploaded fall apart into groups"
            )

    def check_signed(
        self, asked: Collection[int], uploads: Iterable[int], sharers: Iterable[int]
    ) -> None:
        """Give up if too few survivors have signed, and so will reveal shares.

        Args:
            asked: Survivors that have signed, and whose holders have.
            uploads: All survivors.
            sharers: Everybody whose peers have masked with them.
        """
        alive = set(uploads)
        if short := self._short(alive, set(sharers) - alive, set(asked)):
            raise AbandonedError(
                f"{len(asked)} of {len(alive)} survivors have signed the list of them, too few to "
                f"open the masks of {short} with threshold {self.threshold}"
            )

    def _short(self, alive: set[int], gone: set[int], speaking: set[int]) -> int:
        """Return how many secrets cannot be had from those who speak."""
        counts = {n: len(self.holders(n, speaking)) + (n in speaking) for n in alive | gone}
        needed = [n for n in alive | gone if n in alive or self.neighbourhood(n, alive)]
        return sum(counts[n] < self.threshold for n in needed)

    def total(
        self,
        uploads: Mapping[int, RingVector],
        sharers: Iterable[int],
        revealed: Mapping[int, Mapping[int, bytes]],
        ring: Ring,
        digest: bytes,
    ) -> RingVector:
        """Return the sum of the plain vectors of all who uploaded.

        Args:
            uploads: Number to masked vector; these are the survivors.
            sharers: Everybody whose peers have masked with them.
            revealed: Number to the shares it has revealed, by owner.
            ring: The ring.
            digest: What the clients were told.
        """
        gone = {n for n in sharers if n not in uploads and self.neighbourhood(n, uploads)}
        held: dict[int, dict[int, bytes]] = {n: {} for n in [*uploads, *gone]}
        holders = {n: {n, *self.holders(n, self.keys)} for n in held}
        for holder, shares in revealed.items():
            for owner, share in shares.items():
                # Nobody but these was given a share of this owner's.
                if holder in holders.get(owner, ()):
                    held[owner][holder] = share
        secrets = recover(held, self.threshold, lambda n, s: self._is_right(n, s, n in gone))
        if missing := sorted(set(held) - set(secrets)):
            raise AbandonedError(
                f"the secrets of clients {missing} cannot be recovered from the shares of "
                f"{len(revealed)} clients with threshold {self.threshold}"
            )
        try:
            orphans = {n: self._orphan_keys(n, secrets[n], uploads, digest) for n in gone}
        except ValueError as error:  # a key that somebody has announced, and that fits no other
            raise AbandonedError(f"masks of clients that are gone cannot be had: {error}") from None
        own = [self_mask_key(self.session, n, secrets[n]) for n in uploads]
        return unmask(add_vectors(uploads.values(), ring), own, orphans, ring)

    def _is_joined(self, numbers: Iterable[int]) -> bool:
        """Whether one can walk from any of these clients to any other along the graph."""
        left = set(numbers)
        reached = [left.pop()]
        while reached:
            near = left.intersection(self.graph[reached.pop()])
            left -= near
            reached += near
        return not left

    def _is_right(self, owner: int, secret: bytes, is_gone: bool) -> bool:
        """Whether a recovered secret is the one that its owner announced."""
        keys = self.keys[owner]
        if is_gone:
            return belongs(secret, keys.mask)
        return opens(self.session, owner, secret, keys.commitment)

    def _orphan_keys(
        self, number: int, secret: bytes, survivors: Container[int], digest: bytes
    ) -> dict[int, bytes]:
        """Return the keys of the masks that survivors have in common with one who is gone."""
        peers = {p: self.keys[p].mask for p in self.neighbourhood(number, survivors)}
        pair = KeyPair(secret, self.keys[number].mask)  # which belong together, as was checked
        return agree(self.session, "mask", number, pair, peers, digest)


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
        self._keys: dict[int, PublicKeys] = {}

    @property
    def session(self) -> Session:
        """Run and round as the clients see them, once a stage has been sent."""
        return Session(self._run, self._number)

    def keys(self) -> dict[int, PublicKeys]:
        """Ask everybody for fresh keys; peers would refuse a key that two have announced."""
        orders = {n: {"number": n} for n in self._nodes}
        announced = self.ask("keys", orders, self._announced)
        self._drop_others(announced)
        own = {n: [k.share, k.mask, *filter(None, [k.signer])] for n, (k, _) in announced.items()}
        times = Counter(key for keys in own.values() for key in keys)
        for number, keys in own.items():
            if any(times[key] > 1 for key in keys):
                self._complain("keys", number, "another client has announced the same key")
                del announced[number]
        self._keys = {n: keys for n, (keys, _) in announced.items()}
        return self._keys

    def _announced(self, number: int, record: ConfigRecord) -> tuple[PublicKeys, bytes]:
        """Return what a client has announced, and how it was told the run's configuration."""
        settings = get_settings(record)
        keys = get_keys(record, is_signed=self._trusted is not None)
        if self._trusted is not None:
            keys.check(self.session, number, self._trusted)
        return keys, settings

    def _drop_others(self, announced: dict[int, tuple[PublicKeys, bytes]]) -> None:
        """Keep those who have the same configuration; with others no mask would cancel."""
        usual = Counter(settings for _, settings in announced.values()).most_common(1)
        self.settings = usual[0][0] if usual else b""
        for number in [n for n, (_, settings) in announced.items() if settings != self.settings]:
            self._complain("keys", number, "its run has another configuration than most have")
            del announced[number]

    @property
    def roster(self) -> bytes:
        """Fingerprint of those among whom neighbours are drawn."""
        return fingerprint_of({n: keys.signer for n, keys in self._keys.items()})

    @property
    def announcements(self) -> bytes:
        """Fingerprint of who has announced which keys, where they are signed."""
        if self._trusted is None:
            return b""
        return fingerprint_of({n: keys.announced for n, keys in self._keys.items()})

    def draws(self, draws: int, threshold: int) -> dict[int, list[int]]:
        """Let everybody draw neighbours among all who have announced keys."""
        roster = put_by_number("identities", {n: keys.signer for n, keys in self._keys.items()})
        about = {"draws": draws, "threshold": threshold, **roster}
        orders = {n: {"number": n, **about} for n in self._keys}
        return self.ask("draw", orders, lambda n, r: get_drawn(r, n, self._keys, draws))

    def boxes(self, cohort: MaskedCohort) -> dict[int, dict[int, bytes]]:
        """Tell everybody the keys of its peers and return the boxes it has for them."""
        shown = {n: keys.to_bytes() for n, keys in cohort.keys.items()}
        orders = {
            n: {
                "number": n,
                "threshold": cohort.threshold,
                **put_by_number("keys", {peer: shown[peer] for peer in cohort.graph[n]}),
            }
            for n in (cohort.keys if cohort.drawn is None else cohort.drawn)
        }
        return self.ask("shares", orders, lambda n, r: get_answers(r, "boxes", cohort.graph[n]))

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
            lambda n, r: get_answers(r, "shares", orders[n]["survivors"] + orders[n]["dropped"]),
        )

    def signatures(
        self, cohort: MaskedCohort, uploads: Collection[int], digest: bytes
    ) -> dict[int, bytes]:
        """Ask the survivors to sign who of their peers has survived; return valid signatures."""
        lists = {n: [n, *cohort.neighbourhood(n, uploads)] for n in sorted(uploads)}

        def read(number: int, record: ConfigRecord) -> bytes:
            signature, keys = get_signature(record), self._keys[number]
            text = survivors_text(self.session, number, keys.announced, digest, lists[number])
            if not is_signed(keys.signer, signature, text):
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
            lambda n, r: get_answers(r, "shares", [n, *cohort.neighbourhood(n, sharers)]),
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


@dataclass(frozen=True)
class SumRound:
    """What the server keeps between `configure_train` and `aggregate_train`.

    Attributes:
        exchange: Asks the clients.
        plan: Graph and threshold.
        cohort: Who takes part, with their keys.
        sharers: Those who were asked to train.
        quantiser: How updates are encoded.
        sent: The model that clients got.
        start: The same as a vector.
    """

    exchange: Exchange
    plan: GraphPlan
    cohort: MaskedCohort
    sharers: set[int]
    quantiser: Quantiser
    sent: ArrayRecord
    start: Vector

    def uploads(self, replies: Iterable[Message]) -> dict[int, RingVector]:
        """Return the masked vectors of those whose sum can be opened.

        Raises:
            AbandonedError: They are too few.
        """
        found = self.exchange.uploads(replies, self.sharers, self.quantiser, len(self.start))
        self.cohort.check(found, self.sharers, self.seats)
        return found

    @property
    def seats(self) -> set[int]:
        """Numbers of those who were told to play a canary, as all were told."""
        # The audit, which is outermost, has put its orders into our messages by now.
        return set(wire.seat_numbers(self.exchange.messages[min(self.sharers)].content))

    def num_seats(self, survivors: Collection[int]) -> int:
        """Return how many of the survivors play a canary."""
        return len(self.seats & set(survivors))

    def total(self, uploads: Mapping[int, RingVector], charge: Callable[[], None]) -> SecureMean:
        """Take the masks off the sum.

        Args:
            uploads: The survivors' masked vectors.
            charge: Called before the server asks for the first share: from then on it may be able
                to open the sum, whatever happens next.

        Raises:
            AbandonedError: Too few clients help, or none of them has an update.
            RejectedError: The sum is none of honest clients.
        """
        digest = self._digest()
        if self.plan.server == "active":
            revealed = self._signed_shares(uploads, digest, charge)
        else:
            charge()
            revealed = self.exchange.shares(self.cohort, uploads, self.sharers)
        ring = self.quantiser.ring
        total = self.cohort.total(uploads, self.sharers, revealed, ring, digest)
        if (reason := self.quantiser.implausible(total, len(uploads))) is not None:
            raise RejectedError(f"some client has sent what no honest one can: {reason}")
        try:
            return self.quantiser.decode(total)
        except BlankSumError:
            raise AbandonedError(
                f"none of {len(uploads)} clients had an update to send; their own logs say why. "
                "Often training has diverged, or max_weight of Masked is below their weights"
            ) from None

    def _signed_shares(
        self, uploads: Mapping[int, RingVector], digest: bytes, charge: Callable[[], None]
    ) -> dict[int, dict[int, bytes]]:
        """Let the survivors sign who they are, then ask those who have for shares."""
        signatures = self.exchange.signatures(self.cohort, uploads, digest)
        asked = convinced(self.cohort, signatures)
        self.cohort.check_signed(asked, uploads, self.sharers)
        charge()
        about = (self.cohort, uploads, self.sharers, signatures)
        return self.exchange.signed_shares(*about)

    def _digest(self) -> bytes:
        """Return what all clients were told, from the messages as they were sent."""
        messages = [self.exchange.messages[n] for n in sorted(self.sharers)]
        instruction = Instructions().same(messages)
        if instruction is None:
            raise AbandonedError(
                "train messages were changed after Masked had made them, and not all in the same "
                "way, so the masks do not cancel: put Masked around what changes them"
            )
        return self.bound(instruction)

    def bound(self, instruction: bytes) -> bytes:
        """Return what enters the masks of a client with this fingerprint of its train message."""
        cohort, exchange = self.cohort, self.exchange
        roster = exchange.roster if self.plan.is_drawn else exchange.announcements
        return binding(cohort.session, cohort.threshold, exchange.settings, roster, instruction)

    def opening(self, uploads: Sequence[int], fixed_weight: float | None) -> SumOpening:
        """Return what the strategies inside charge for.

        Args:
            uploads: The survivors.
            fixed_weight: What every client weighs; None if that is open.
        """
        weight = len(uploads) * (fixed_weight or self.quantiser.max_weight)
        outcome = self._outcome(uploads, self.quantiser.quantum(len(uploads), weight), saturated=0)
        nodes = {n: m.metadata.dst_node_id for n, m in self.exchange.messages.items()}
        return SumOpening(
            asked=tuple(nodes[n] for n in sorted(self.sharers)),
            uploaded=tuple(nodes[n] for n in uploads),
            outcome=outcome,
        )

    def _outcome(self, survivors: Collection[int], step: float, saturated: int) -> wire.SumOutcome:
        """Return what strategies inside have to know of a sum with these clients."""
        colluders = self.plan.bearable(len(survivors) - self.num_seats(survivors))
        return wire.SumOutcome(step, saturated, colluders, self.plan.fewest(len(survivors)) or 0)

    def replies(
        self,
        survivors: Collection[int],
        mean: SecureMean,
        layout: Layout,
        weight_key: str,
        *,
        is_exact: bool,
    ) -> list[Message]:
        """Return one reply per survivor, each with the mean: their mean is the mean."""
        dtypes = ["float64"] * len(layout.names) if is_exact else None
        mean_arrays = layout.restore(self.start + mean.mean, self.sent, dtypes)
        arrays = ArrayRecord()
        for name, array in mean_arrays.items():  # the constructor would make plain arrays of them
            arrays[name] = ReadArray.of(array)
        metrics: dict[str, Any] = {
            weight_key: mean.total_weight / len(survivors),
            **mean.metrics,
        }
        # At equal weights the mean errs by at most the grid that each client rounds its update to.
        about = self._outcome(survivors, mean.quantum, mean.saturated).to_record()
        return [
            Message(
                RecordDict(
                    {"arrays": arrays, "metrics": MetricRecord(metrics), wire.SUM_OUTCOME: about}
                ),
                reply_to=self.exchange.messages[number],
            )
            for number in survivors
        ]


def check_even(messages: Sequence[Message]) -> None:
    """Refuse messages that tell clients different things: their masks would not cancel.

    Raises:
        ValueError: Some do.
    """
    instructions = Instructions()
    if not messages or instructions.same(messages) is not None:
        return
    first = messages[0]
    other = next(m for m in messages if instructions.of(m) != instructions.of(first))
    names = ", ".join(map(repr, instructions.differing(first, other)))
    raise ValueError(
        "strategy must send all clients of a round the same train message inside Masked, got "
        f"messages that differ in {names}: clients mask with what they were told, so that a server "
        "cannot single one out; send the same to all, and let clients look up what is their own"
    )
