"""A round: its messages with orders, its replies, and the view that auditors get of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.auditor import Canary, RoundFacts, RoundMessages, RoundView, UnableError
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import (
    Answer,
    Order,
    ReplyKind,
    Sends,
    Size,
    guest_warnings,
    in_blocks,
    replay_warnings,
    reply_kind,
    with_own_key,
)
from leakmeter.auditors.hook.layout import Blocks, Layout, LazyModel, is_finite, is_float, values
from leakmeter.auditors.hook.panel import Health, Panel, plays_canaries, wants_truth
from leakmeter.auditors.hook.wrapper import client_of, known_facts, unused_nodes, weight_key
from leakmeter.auditors.values import Vector

_log = logging.getLogger("flwr")
NO_TRUTH: Final = (
    "no client kept its plain update, so the sum that was really released gets no verdict: in a "
    "simulation list tap_mod in the client app, after the mods that mask or noise"
)
NO_SIGN: Final = (
    "clients send differences under masks, and it is not known whether the server adds or "
    "subtracts them: if it subtracts them, the audit does not see their canaries"
)

SEVERAL_RECORDS: Final = (
    "clients are sent several ArrayRecords, or none, so it is not known what their updates are "
    "added to: no round is audited"
)
OWN_MODELS: Final = (
    "clients of one round are sent different models, such as slices or those of clusters, so their "
    "updates have no common base: no round is audited"
)


class Updates(Mapping[int, Vector]):
    """Client index to the update in its reply, flattened when asked for.

    Args:
        layout: Of the model.
        model: What clients got.
        contents: Client to the content of its reply.
        weight_key: The metric that weights clients.

    Attributes:
        sends: What the replies contain; set once that is decided.
        weights: Client to its weight.
    """

    def __init__(
        self,
        layout: Layout,
        model: LazyModel,
        contents: Mapping[int, RecordDict],
        weight_key: str = wire.WEIGHT,
    ) -> None:
        self._layout, self._model = layout, model
        # Shallow copies: strategies may replace arrays inside the records they are given.
        self._records: dict[int, dict[str, Array]] = {
            c: dict(wire.arrays(contents[c])) for c in sorted(contents)
        }
        self.weights = {c: wire.weight(contents[c], weight_key) for c in self._records}
        self.lost = 0  # replies that diverged and were left out
        self.sends: Sends = "models"

    def __getitem__(self, client: int) -> Vector:
        record = self._records[client]
        if not self._layout.fits(record):
            # Masked replies are ring elements, not a model: show them as they are.
            return np.concatenate([a.numpy().ravel() for a in record.values()], dtype=np.float64)
        update = self._layout.flatten(record)
        if self.sends == "models":
            update -= self._model.vector
        return update

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, client: object) -> bool:
        # The inherited method would build the whole update to see whether it is there.
        return client in self._records

    def replies(self, without: Collection[int] = ()) -> Iterator[Vector]:
        """Yield the replies of other clients as they are, those that no mask hides."""
        records = (record for c, record in self._records.items() if c not in without)
        fitting = (record for record in records if self._layout.fits(record))
        return map(self._layout.flatten, fitting)

    def mean(self, without: Collection[int] = ()) -> Vector | None:
        """Return the weighted mean update; None if the replies contain no plain updates.

        Args:
            without: Clients whose updates are left out.
        """
        blocks = self._mean(without, self._model if self.sends == "models" else None)
        if blocks is None:
            return None
        mean = np.empty(self._layout.dim)
        for part, block in blocks:
            mean[part] = block
        return mean

    def mean_reply(self, without: Collection[int]) -> Blocks | None:
        """Return the weighted mean of replies as they are, by blocks; None if any is hidden.

        Args:
            without: Clients whose replies are left out.
        """
        return self._mean(without, None)

    def _mean(self, without: Collection[int], base: LazyModel | None) -> Blocks | None:
        """Return the weighted mean of replies by blocks, without a base that all of them have."""
        weights = {c: weight for c, weight in self.weights.items() if c not in without}
        total = sum(weights.values())
        if total <= 0 or not self.are_plain:
            return None
        shares = [(self._records[c], weight / total) for c, weight in weights.items()]
        return self._layout.weighted_sum(shares, base)

    def add(self, earlier: Updates) -> None:
        """Add those that have come before."""
        self._records = {**self._records, **earlier._records}
        self._records = {client: self._records[client] for client in sorted(self._records)}
        self.weights = {**self.weights, **earlier.weights}

    def leave_out(self, clients: Iterable[int]) -> None:
        """Forget updates that the strategy could not use: they are in no mean."""
        for client in clients:
            if (record := self._records.pop(client, None)) is not None:
                del self.weights[client]
                self.lost += _is_diverged(record)

    def diverged(self) -> int:
        """Return how many replies hold a value that is not finite, those left out among them."""
        return self.lost + sum(map(_is_diverged, self._records.values()))

    @property
    def are_plain(self) -> bool:
        """Whether no mask hides any of them."""
        return all(map(self._layout.fits, self._records.values()))


Told = TypeVar("Told")


@dataclass(frozen=True)
class Replies:
    """What has come back of a round.

    Attributes:
        number: Of the round, as the strategy counts it.
        updates: Those in the replies; None if the round is not audited.
        answers: Node to what its `canary_mod` said.
        silent: Node to whether its update was not finite, of those without one.
        num_replies: How many have content; of an audited round, how many can be read.
        took: Node to whether it says that it took its records.
    """

    number: object
    updates: Updates | None
    answers: Mapping[int, Answer]
    silent: Mapping[int, bool]
    num_replies: int
    took: Mapping[int, bool]

    def after(self, earlier: Replies) -> Replies:
        """Return both, of a round whose replies come one after the other."""
        if self.updates is not None and earlier.updates is not None:
            self.updates.add(earlier.updates)
        count = self.num_replies + earlier.num_replies
        return replace(
            self,
            answers={**self.answers, **earlier.answers},
            silent={**self.silent, **earlier.silent},
            num_replies=count if self.updates is None else len(self.updates),
            took={**self.took, **earlier.took},
        )


@dataclass(frozen=True)
class OpenRound:
    """What is known of a round when its messages go out.

    Attributes:
        server_round: Counted over the whole run.
        arrays: The model as the strategy has it.
        model: What clients are sent.
        clients: Node id to client index.
        orders: Client to the canary that it plays.
        asked: Clients that were asked for an answer, seats included.
        grid: Where the messages go.
        layout: Of the model.
        weight_key: The metric that weights clients.
        hides_updates: Whether replies will be masked or noised, by our own mods.
        is_noised: Whether they will be noised.
        planted: Clients that were asked to train on records besides their own.
    """

    server_round: int
    arrays: ArrayRecord
    model: LazyModel
    clients: Mapping[int, int]
    orders: Mapping[int, Canary]
    asked: Collection[int]
    grid: Grid
    layout: Layout
    weight_key: str
    hides_updates: bool
    is_noised: bool
    planted: Collection[int] = ()

    @property
    def sent(self) -> Vector:
        """The model that clients are sent, as a vector."""
        return self.model.vector

    def updates(self, replies: Iterable[Message]) -> Updates:
        """Return the replies that contain an update; those that cannot be read are left out."""
        contents = {}
        for reply in wire.distinct(replies):
            client = self.clients.get(reply.metadata.src_node_id)
            if client is None or not reply.has_content() or wire.blank_reason(reply) is not None:
                continue
            try:
                _check_readable(reply.content, self.layout, self.weight_key)
            except Exception as error:  # a client may send anything
                reason = wire.one_line(str(error))
                _log.warning("client %d is not audited: its reply's %s", client, reason)
                continue
            contents[client] = reply.content
        return Updates(self.layout, self.model, contents, self.weight_key)

    def by_client(self, told: Mapping[int, Told]) -> dict[int, Told]:
        """Return what this round's nodes have told, by client."""
        return {self.clients[node]: one for node, one in told.items() if node in self.clients}


def _is_diverged(record: Mapping[str, Array]) -> bool:
    return not all(map(is_finite, record.values()))


def _check_readable(content: RecordDict, layout: Layout, weight_key: str) -> None:
    """Raise unless an auditor can read the arrays of a reply, masked or not, and its weight."""
    wire.weight(content, weight_key)
    record = wire.arrays(content)
    if not record:
        raise ValueError("ArrayRecord must contain arrays, got none")
    is_plain = layout.fits(record)
    for name, array in record.items():
        if is_plain and not is_float(array):
            continue  # nobody looks at it
        numbers = values(array)
        if numbers.dtype.kind not in "fiub" or numbers.size != math.prod(array.shape):
            raise ValueError(f"array {name!r} must contain numbers of shape {tuple(array.shape)}")


def population(strategy: Strategy | None, grid: Grid) -> int | None:
    """Return how many clients there are; None if neither strategy nor grid can say."""
    if known := client_of(strategy):  # a list of a million nodes takes 40 MB
        return len(known)
    try:
        return len(list(grid.get_node_ids()))
    except Exception:  # a grid of the project's own
        return None


def common_base(messages: Iterable[Message], arrays: ArrayRecord) -> ArrayRecord:
    """Return the model that all clients of a round are sent: what their updates are added to.

    Args:
        messages: What is about to be sent.
        arrays: The strategy's model, for a round without messages.

    Raises:
        UnableError: They are not all sent the same, or more than a model. Slices, models of
            clusters and further arrays would be measured against the wrong base.
    """
    base, seen = arrays, set[int]()
    for message in messages:
        records = [r for r in message.content.values() if isinstance(r, ArrayRecord)]
        if len(records) != 1:
            raise UnableError(SEVERAL_RECORDS)
        if not seen:
            base = records[0]
        # Flower's strategies send one record to all.
        if id(records[0]) not in seen and not are_equal(records[0], base):
            raise UnableError(OWN_MODELS)
        seen.add(id(records[0]))
    return base


def are_equal(one: ArrayRecord, other: ArrayRecord) -> bool:
    """Whether two records have the same arrays in the same order."""
    return list(one) == list(other) and all(
        (a.dtype, tuple(a.shape), a.data) == (b.dtype, tuple(b.shape), b.data)
        for a, b in zip(one.values(), other.values(), strict=True)
    )


def are_clipped(messages: Collection[Message]) -> bool:
    """Whether our own mods will clip updates or check how they were filled."""
    return any(key in m.content for m in messages for key in (wire.NOISE, wire.FILLED))


def give_orders(
    messages: Mapping[int, Message],
    orders: Mapping[int, Canary],
    asked: Collection[int],
    layout: Layout,
    sends: Sends | None,
    size: Size,
) -> None:
    """Tell seats which canary to play, and ask other clients only for an answer."""
    for client in asked:
        canary = with_own_key(orders[client]) if client in orders else None
        order = Order(canary, layout.left_out_places, sends, size)
        wire.add_record(messages[client], wire.CANARY, order.to_record())
    _name_seats(messages, orders)


def _name_seats(messages: Mapping[int, Message], orders: Collection[int]) -> None:
    """Tell all clients of a secure sum which of them play a canary: those hide nobody."""
    numbers = [wire.mask_number(messages[client].content) for client in orders]
    masked = [number for number in numbers if number is not None]
    if masked:
        record = wire.seats_record(masked)
        for message in messages.values():
            wire.add_record(message, wire.SEATS, record)


def collect_truth(
    opened: OpenRound, wanted: Collection[int], *, sends: Sends, timeout: float
) -> tuple[dict[int, Vector], dict[int, float]]:
    """Collect plain updates that tapped clients kept, and the weights of all that kept one.

    Separate messages do that; nothing travels with the round's replies. A client whose copy cannot
    be read is left out, and the others are collected. Clients whose update is not needed hand out
    nothing and delete their copy.
    """
    clients = opened.clients
    messages = [
        Message(
            RecordDict(
                {
                    wire.TAP: wire.collect_record(
                        opened.server_round, opened.weight_key, arrays=client in wanted
                    )
                }
            ),
            dst_node_id=node,
            message_type="train",
        )
        for node, client in clients.items()
    ]
    kept = {
        clients[m.metadata.src_node_id]: m.content
        for m in wire.distinct(opened.grid.send_and_receive(messages, timeout=timeout))
        if m.has_content() and m.metadata.src_node_id in clients
    }
    updates: dict[int, Vector] = {}
    weights: dict[int, float] = {}
    for client, content in sorted(kept.items()):
        try:
            note = wire.config(content, wire.TAP)
            weight = 1.0 if note is None else wire.get_float(note, "weight")
            if client in wanted:
                update = opened.layout.flatten(wire.arrays(content))
                updates[client] = update - opened.sent if sends == "models" else update
            weights[client] = weight
        except Exception as error:  # a client may send anything
            reason = wire.one_line(str(error))
            _log.warning("the plain update of client %d cannot be read: %s", client, reason)
    return updates, weights


class RoundObserver(Resumable):
    """Opens rounds with the orders of the auditors, and shows them the finished ones.

    Args:
        strategy: The chain of strategies, which knows facts about a round.
        panel: The auditors.
        reply_kind: What clients reply with, as far as it is decided.

    Attributes:
        health: What has damaged the run.
        has_tap: Whether clients keep plain updates; True until no client answers for a tap.
        timeout: Seconds to wait for what they kept.
        size: How long canaries are.
    """

    health: Kept[Health]

    def __init__(self, strategy: Strategy | None, panel: Panel, reply_kind: ReplyKind) -> None:
        self._strategy, self._panel, self._reply_kind = strategy, panel, reply_kind
        self.health = Health()
        self.has_tap = True
        self.timeout = 0.0
        self.size = Size()
        self._seen: dict[int, int] = {}  # node id to client, of those that no strategy numbers
        self._is_abandonment_noted = False
        self._has_answer = False

    def open(
        self,
        server_round: int,
        arrays: ArrayRecord,
        messages: Sequence[Message],
        grid: Grid,
        layout: Layout,
        model: LazyModel,
        is_first: bool,
    ) -> OpenRound:
        """Give the messages of a round their orders and keep what is needed to look at it.

        Args:
            server_round: Its number in the whole run.
            arrays: The model as the strategy has it.
            messages: What is about to be sent.
            grid: Delivers what auditors ask for besides.
            layout: Of the model.
            model: What clients are sent.
            is_first: Whether no round was closed yet.
        """
        panel = self._panel
        clients = self._numbered([m.metadata.dst_node_id for m in messages], grid)
        by_client = {clients[m.metadata.dst_node_id]: m for m in messages}
        if self._reply_kind.sends is None and are_clipped(messages):
            self._reply_kind.sends = "models"  # our noise mods take replies for nothing else
        key, sends = weight_key(self._strategy), self._reply_kind.sends
        # Nobody takes part in a round that was given up before it began.
        chosen = sorted(by_client)
        everybody = population(self._strategy, grid)
        orders = panel.instruct(server_round, chosen, everybody) if clients else {}
        panel.consider_round(messages, len(orders))
        panel.bind(server_round, RoundMessages(grid, by_client, layout, model, key))
        records = panel.plant(server_round, chosen)
        # The first round shows which clients list canary_mod; replays need to know it every time.
        asks_all = (
            is_first
            or sends is None
            or panel.concerns_any(
                lambda auditor: auditor.wants_answers or auditor.replays(server_round)
            )
        )
        asked = by_client.keys() if asks_all else orders.keys()
        hidden = any(wire.is_hidden(m.content) for m in messages)
        # Messages are changed last: whatever fails before leaves them as they were.
        if hidden and panel.concerns_any(wants_truth) and self.has_tap:
            for message in messages:
                wire.add_record(message, wire.TAP, wire.keep_record(server_round))
        # Under our masks an answer must not depend on a reply, and replies are models.
        sends = sends or ("models" if hidden else None)
        give_orders(by_client, orders, asked, layout, sends, self.size)
        for client, order in records.items():
            wire.add_record(by_client[client], wire.PLANTED, order)
        return OpenRound(
            server_round=server_round,
            arrays=arrays,
            model=model,
            clients=clients,
            orders=orders,
            asked=tuple(asked),
            grid=grid,
            layout=layout,
            weight_key=key,
            hides_updates=hidden,
            is_noised=any(wire.share_std(m.content) > 0 for m in messages),
            planted=frozenset(records),
        )

    def _numbered(self, nodes: Sequence[int], grid: Grid) -> dict[int, int]:
        """Return node id to client, from the strategy that knows it or in order of appearance."""
        known = client_of(self._strategy)
        if known is None:
            for node in sorted({*grid.get_node_ids(), *nodes}):
                self._seen.setdefault(node, len(self._seen))
            known = self._seen
        return {node: known[node] for node in nodes}

    def observe(
        self, opened: OpenRound, replies: Replies, updates: Updates, arrays: ArrayRecord | None
    ) -> list[Finding]:
        """Show a round to the auditors and return what they find.

        Args:
            opened: What went out.
            replies: What has come back.
            updates: Those of the replies.
            arrays: The model after it; None if there is none.

        Raises:
            LayoutError: The released model has other arrays than the one that was sent.
        """
        left_out = unused_nodes(self._strategy)
        updates.leave_out(c for node, c in opened.clients.items() if node in left_out)
        view = self._view(opened, replies, updates, arrays)
        # Updates that can be checked: the truth where there is any, else those sent in plain.
        is_hidden = opened.is_noised or not updates.are_plain
        # First, and guarded separately: a failing auditor must not suppress the warnings.
        with self._panel.keep_training_on_error(f"warnings may lack round {opened.server_round}"):
            self.health.note(
                view,
                asked=len(opened.clients),
                silent=replies.silent,
                diverged=updates.diverged(),
                lost=updates.lost,
                plain=view.truth if view.truth or is_hidden else updates,
            )
        return self._panel.observe(view)

    def _view(
        self, opened: OpenRound, replies: Replies, updates: Updates, arrays: ArrayRecord | None
    ) -> RoundView:
        """Return the view of the round, and note instruments that did not answer."""
        released = opened.model if arrays is None else LazyModel(opened.layout, arrays)
        answers, took = opened.by_client(replies.answers), opened.by_client(replies.took)
        self._decide_kind(opened, updates, answers, None if arrays is None else released)
        facts = self._facts(opened, updates, released, has_model=arrays is not None)
        # One client that answers shows that the app lists the mod; another may keep silent.
        self._has_answer |= bool(answers)
        asked = [] if self._has_answer else [c for c in opened.asked if c in updates]
        for words in guest_warnings(answers, asked):
            self._panel.note(words, plays_canaries)
        for words in replay_warnings(answers):
            self._panel.note(words, lambda auditor: auditor.replays(opened.server_round))
        if facts.abandoned is not None and not self._is_abandonment_noted:
            self._is_abandonment_noted = True  # the first; the log has all
            self._panel.note(f"rounds without an aggregate are not audited: {facts.abandoned}")
        played = {c for c, answer in answers.items() if answer.outcome == "played"}
        obeyed = {c: order for c, order in opened.orders.items() if c in updates and c in played}
        truth, weights = self._truth(opened, updates, obeyed)
        return RoundView(
            server_round=opened.server_round,
            sent=cast(Vector, opened.model),  # vectors when somebody reads them
            replies=updates,
            released=cast(Vector, released),
            facts=facts,
            truth=truth,
            truth_weights=weights,
            instructed=obeyed,
            sends=updates.sends,
            sign=self._reply_kind.sign,
            answers=answers,
            took={c: took.get(c, False) for c in sorted(opened.planted) if c in updates},
        )

    def _decide_kind(
        self,
        opened: OpenRound,
        updates: Updates,
        answers: Mapping[int, Answer],
        released: LazyModel | None,
    ) -> None:
        """Decide what clients send, as far as the round shows it."""
        kind = self._reply_kind
        if kind.sends is None and released is not None and not opened.is_noised:
            # The mean as if replies were models, as a secure sum assumes.
            others = (c for c, a in answers.items() if a.outcome != "played")
            seats = set(opened.orders).difference(others)
            mean, hidden = updates.mean_reply(seats), list[Vector]()
            if mean is None and (change := known_facts(self._strategy).aggregate) is not None:
                hidden = [change + opened.sent]
                mean = in_blocks(hidden[0])
            replies = updates.replies(seats) if updates.are_plain else hidden
            kind.sends = reply_kind(opened.model, replies, mean, released)
        told = [a.sends for a in answers.values() if a.sends is not None]
        for words in kind.note_answers(told):
            self._panel.note(words, plays_canaries)
        updates.sends = kind.sends or "models"

    def _facts(
        self, opened: OpenRound, updates: Updates, released: LazyModel, *, has_model: bool
    ) -> RoundFacts:
        """Return what the wrappers know about the round, completed by what the replies show."""
        kind, facts = self._reply_kind, known_facts(self._strategy)
        # An abandoned round has no sum, hence nobody in it, whoever has answered.
        if facts.abandoned is None:
            if updates.sends == "differences":  # our wrappers take every reply for a model
                mean, noised = facts.aggregate, facts.noised
                facts = replace(
                    facts,
                    aggregate=None if mean is None else mean + opened.sent,
                    noised=None if noised is None else noised + opened.sent,
                )
            wants_mean = self._panel.concerns_any(lambda auditor: auditor.wants_mean)
            wants_mean |= kind.needs_sign and not opened.orders
            seen = RoundFacts(
                aggregate=updates.mean() if wants_mean and facts.aggregate is None else None,
                num_clients=len(updates),
                total_weight=sum(updates.weights.values()),
                abandoned=None if has_model else "the strategy released no model",
            )
            facts = facts.over(seen)
        if kind.needs_sign:
            # Canaries' coins must not influence it. A secure sum cannot leave their seats out.
            honest = facts.aggregate if not opened.orders else updates.mean(without=opened.orders)
            kind.note_step(opened.sent, released.vector, honest)
            if kind.needs_sign and opened.orders and not updates.are_plain:
                self._panel.note(NO_SIGN, plays_canaries)
        return facts

    def _truth(
        self, opened: OpenRound, updates: Updates, obeyed: Collection[int]
    ) -> tuple[Mapping[int, Vector], Mapping[int, float]]:
        """Return the plain updates and weights, if an auditor needs them and clients kept them."""
        if not self._panel.concerns_any(wants_truth) or (opened.hides_updates and not self.has_tap):
            return {}, {}
        if not opened.hides_updates:
            return updates, updates.weights
        honest = sorted(set(updates) - set(obeyed))
        wanted = self._panel.truth_of(opened.server_round, honest)
        if wanted:  # what seats have sent is subtracted from the sum
            wanted |= set(obeyed)
        found = None
        with self._panel.keep_training_on_error(
            f"round {opened.server_round} has no plain updates"
        ):
            found = collect_truth(opened, wanted, sends=updates.sends, timeout=self.timeout)
        if found is None:
            return {}, {}
        truth, weights = found
        # A client may have kept an update that it did not send in the end.
        truth = {client: truth[client] for client in truth if client in updates}
        if updates and not weights:
            self.has_tap = False  # a client app without one is not asked again
            self._panel.note(NO_TRUTH, wants_truth)
        return truth, weights
