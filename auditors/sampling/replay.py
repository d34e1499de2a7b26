"""Fresh updates of any Flower app: the round's own train message is sent to its clients again.

This is all a server can do with a client app it knows nothing about. It plays the game "rerun":
the clients keep their data, and what they draw themselves (batches, dropout, noise) is new.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors.auditor import Project, RoundMessages, RoundView, UnableError
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Game
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Sends, noise_around
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.rng import derive
from leakmeter.auditors.sampling.moments import Reruns
from leakmeter.auditors.sampling.sampler import Along, Clients, Moments, Stream, UpdateSampler
from leakmeter.auditors.values import Vector, require

# Orders of a round that a replay leaves out: canaries are no honest training, the tap's copy is
# the round's own, and a mask belongs to one upload.
_LEFT_OUT: Final = (wire.CANARY, wire.SEATS, wire.TAP, wire.MASK, wire.SUM_ORDER)
_MAX_BYTES = 2**26
_MAX_REPLIES = 2**28  # bytes of the replies that are waited for together
_SAID_EVERY = 30.0  # seconds between lines about a long replay
_NOISE = (
    "replays keep a client's own noise in its candidate updates, where it hides nothing: sample "
    "with leakmeter.clients.CohortSampler where clients add noise"
)
_OUTSIDE = (
    "canary_mod restores what clients keep in context.state and the global generators of random, "
    "numpy and torch; what their app keeps elsewhere, in files or global variables, changes with "
    "each replay"
)
_log = logging.getLogger("flwr")


class ReplayError(UnableError):
    """A client cannot be replayed. The text says which, why, and what to do."""


class ReplaySampler(UpdateSampler):
    """Draws updates of an app whose clients we cannot simulate ourselves.

    Before each audited round it is bound to that round's messages. Every draw costs one training
    of every client that is asked for. A client app that seeds itself by the round gives the same
    update again, and the audit says so. To avoid that, it mixes `replay_number(content)`, which
    differs from draw to draw, into its seeds. Apart from that a draw of a foreign app is fresh
    whatever the stream says.

    Clients must list `canary_mod`: after a replay it restores the state in their context, and the
    global generators of `random`, numpy and torch, which have other seeds in each replay. What an
    app keeps elsewhere, in files or global variables, changes with each replay.

    Args:
        seed: Names the replays for apps that know of audits.
        timeout: Seconds to wait for the replies of one draw. Clients of a large model are asked one
            after the other, as many at once as 256 MB of replies allow, and each has this long.
        simulated: Whether all nodes are simulated, so that a round with secure aggregation may be
            replayed without it. Clients whose masking is required still refuse.
        chunk: Most updates in memory at once; None: as many as fit in 64 MB.
    """

    game: Final[Game] = "rerun"
    asks_clients: Final = True

    def __init__(
        self,
        *,
        seed: int = 0,
        timeout: float = 3600.0,
        simulated: bool = False,
        chunk: int | None = None,
    ) -> None:
        require("(0, inf]", timeout=timeout)
        require("at least 1", is_optional=True, chunk=chunk)
        self._seed, self._timeout, self._simulated = seed, timeout, simulated
        self._chunk = chunk
        self._sends: Sends = "models"
        self._round: RoundMessages | None = None
        self._last: dict[int, tuple[int, bytes]] = {}  # client -> replay number, digest of update
        self._trained, self._said = 0, 0.0

    def bind(self, messages: RoundMessages) -> None:
        """Take the train messages of a round; the last round is forgotten.

        Raises:
            ReplayError: The round is masked, and the nodes are not known to be simulated; or the
                clients add noise.
        """
        masked = [c for c, m in messages.by_client.items() if wire.MASK in m.content]
        if masked:
            self._refuse_masks(f"clients {masked[:5]}")
        if any(wire.share_std(message.content) > 0 for message in messages.by_client.values()):
            raise ReplayError(_NOISE)
        orders = {client: _order(message) for client, message in messages.by_client.items()}
        self._round = replace(messages, by_client=orders)
        self._last = {}
        self._trained, self._said = 0, time.monotonic()

    def limits(self, project: Project) -> Sequence[str]:
        """Say before anybody trains that a project's rounds cannot be replayed.

        Raises:
            ReplayError: For the reasons that `bind` has.
        """
        if project.is_masked:
            self._refuse_masks("the clients")
        if project.has_client_noise:
            raise ReplayError(_NOISE)
        return ()

    def for_round(self, view: RoundView) -> ReplaySampler:
        """Check what clients have answered before any of them trains again.

        Raises:
            ReplayError: A client does not list `canary_mod`, or a mod adds noise.
        """
        honest = set(view.replies) - set(view.instructed)
        if missing := sorted(honest - set(view.answers)):
            raise ReplayError(
                f"client {missing[0]} does not list canary_mod, which restores a client's state "
                "after a replay: list it in the client app, ClientApp(mods=[canary_mod])"
            )
        if (name := noise_around(view.answers)) is not None:
            raise ReplayError(
                f"{name} adds noise to each replayed update, where it hides nothing: audit with "
                "canaries alone, or sample with leakmeter.clients.CohortSampler"
            )
        self._sends = view.sends
        _log.info("round %d is replayed: %s", view.server_round, _OUTSIDE)
        return self

    def sample(
        self, model: Vector, clients: Clients, draws: int, stream: Stream, *, project: Along = None
    ) -> Iterator[NDArray[np.float64]]:
        """Yield chunks (draws, clients, dim or k): each client's update times its weight.

        Raises:
            ReplayError: A client failed, or has given the same update twice.
        """
        step = max(1, (self._chunk or _MAX_BYTES // (8 * model.size)) // max(len(clients), 1))
        for at in range(0, draws, step):
            rows = []
            for draw in range(at, min(at + step, draws)):
                updates = self._draw(model, clients, (*stream, draw))
                rows.append(np.stack([u if project is None else u @ project for u in updates]))
            yield np.stack(rows)

    def updates(
        self, model: Vector, clients: Clients, draws: int, stream: Stream
    ) -> Iterator[NDArray[np.float64]]:
        """Yield the same updates one by one; no more than a few replies are held at once."""
        for draw in range(draws):
            yield from self._draw(model, clients, (*stream, draw))

    def moments(self, model: Vector, clients: Clients, draws: int, stream: Stream) -> Moments:
        """Return the moments of the sum from `draws` replays of each client."""
        total = Reruns(model.size, draws)
        for rows in self.sample(model, clients, draws, stream):
            total.add(rows)
        return total.moments()

    def _refuse_masks(self, who: str) -> None:
        if not self._simulated:
            raise ReplayError(
                f"replays need plain updates, but {who} are told to mask theirs: a deployed client "
                "must never hand one out; in a simulation pass simulated=True, or sample with "
                "leakmeter.clients.CohortSampler"
            )

    def _draw(self, model: Vector, clients: Clients, path: Stream) -> Iterator[NDArray[np.float64]]:
        """Let all clients train once more and yield their weighted updates."""
        bound = self._round
        if bound is None:
            raise ReplayError("replays need a round: call bind(...) before sampling")
        if missing := [client for client in clients if client not in bound.by_client]:
            raise BadValueError("clients", f"of the round {sorted(bound.by_client)}", missing)
        number = derive(self._seed, "replay", *path) >> 65  # a record holds 63 bits
        at_once, repeated = max(1, _MAX_REPLIES // _reply_bytes(bound.layout)), 0
        for first in range(0, len(clients), at_once):
            asked = clients[first : first + at_once]
            contents = self._replies(bound, asked, model, number)
            for client in asked:
                content = contents.pop(client)
                update = _trained(client, content, bound.layout)
                if self._sends == "models":
                    update -= model
                repeated += self._is_repeated(client, update, number)
                update *= wire.weight(content, bound.weight_key)
                yield update
        # One constant client among others, with a single record perhaps, hides nobody but harms
        # nothing.
        if repeated and repeated == len(clients):
            raise ReplayError(
                f"client {clients[0]} gave the same update twice, and so did all that were asked: "
                "they have no randomness of their own (full batches, a single record), or seed it "
                "by the round, so replays cannot show the distribution of their updates; in the "
                "second case let the client app mix leakmeter.replay_number(message.content) into "
                "its seed"
            )

    def _replies(
        self, bound: RoundMessages, clients: Clients, model: Vector, number: int
    ) -> dict[int, RecordDict]:
        """Return what some clients answer to a replay."""
        asked = {bound.by_client[client].metadata.dst_node_id: client for client in clients}
        messages = [_message(bound, bound.by_client[client], model, number) for client in clients]
        contents: dict[int, RecordDict] = {}
        reasons: dict[int, str] = {}
        for reply in bound.grid.send_and_receive(messages, timeout=self._timeout):
            client = asked.get(reply.metadata.src_node_id)
            if client is not None and reply.has_content():
                contents[client] = reply.content
            elif client is not None:
                reasons[client] = reply.error.reason or f"error code {reply.error.code}"
        if missing := [client for client in clients if client not in contents]:
            why = reasons.get(missing[0], "no reply came in time")
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ReplayError(f"client {missing[0]}{more} gave no update to a replay: {why}")
        self._say_progress(len(clients))
        return contents

    def _say_progress(self, trained: int) -> None:
        """Say now and then that the run is alive: an audit may train more than the run itself."""
        self._trained += trained
        if (now := time.monotonic()) - self._said > _SAID_EVERY:
            self._said = now
            _log.info("replaying: %d trainings of this round so far", self._trained)

    def _is_repeated(self, client: int, update: Vector, number: int) -> bool:
        """Whether another replay of a client has given the same update."""
        digest = hashlib.sha256(update.data).digest()
        last = self._last.get(client)
        self._last[client] = (number, digest)
        return last is not None and last[0] != number and last[1] == digest


def _order(message: Message) -> Message:
    """Keep what a train message says, in records of our own: strategies reuse theirs."""
    kept = {
        key: ArrayRecord(dict(record)) if isinstance(record, ArrayRecord) else record
        for key, record in message.content.items()
        if key not in _LEFT_OUT
    }
    return _again(message, RecordDict(kept))


def _again(message: Message, content: RecordDict) -> Message:
    """Return a new message to the same node."""
    about = message.metadata
    return Message(content, about.dst_node_id, about.message_type, group_id=about.group_id)


def _message(bound: RoundMessages, order: Message, model: Vector, number: int) -> Message:
    """Return a new message that asks for one more training, from `model`."""
    content = RecordDict(dict(order.content))
    if not np.array_equal(model, bound.sent):
        key = wire.arrays_key(content)
        content[key] = bound.layout.restore(model, wire.arrays(content))
    content[wire.REPLAY] = wire.replay_record(number)
    return _again(order, content)


def _reply_bytes(layout: Layout) -> int:
    """Return how large the arrays of a reply are, without those that nobody audits."""
    widths = (np.dtype(kind).itemsize for kind in layout.dtypes)
    return sum(size * width for size, width in zip(layout.sizes, widths, strict=True))


def _trained(client: int, content: RecordDict, layout: Layout) -> Vector:
    """Return the model in a reply; a masked or broken one is an error."""
    try:
        return layout.flatten(wire.arrays(content))
    except ValueError as error:
        raise ReplayError(f"client {client} answered a replay without a model: {error}") from None
