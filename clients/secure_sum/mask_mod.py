"""Client mods between training and the wire.

The server proposes, the client's own policy limits: a mod obeys an order in the message only
within what its owner has allowed when listing it.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from leakmeter.auditors._types import Vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.mods import Call
from leakmeter.auditors.hook.seat import Order, passed_on
from leakmeter.auditors.hook.values import values
from leakmeter.auditors.rng import stream
from leakmeter.clients.secure_sum.binding import Instructions, Terms, fingerprint
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.masking import RingVector
from leakmeter.clients.secure_sum.participant import Participant
from leakmeter.clients.secure_sum.policy import Policy, RefusedError
from leakmeter.clients.secure_sum.quantise import HeavyError, NotFiniteError, Quantiser
from leakmeter.clients.secure_sum.signing import Identity, TrustedKeys
from leakmeter.clients.secure_sum.signing_client import SigningClient
from leakmeter.clients.secure_sum.steps import take_once
from leakmeter.clients.secure_sum.wire import (
    get_by_number,
    get_keys_of_peers,
    get_layout,
    get_numbers,
    get_participant,
    get_quantiser,
    get_session,
    put_by_number,
    put_participant,
    put_upload,
)

# What a client makes of an order: its new state, and what it answers.
Answer: TypeAlias = Callable[[ConfigRecord, Participant], tuple[Participant, ConfigRecord]]

_log = logging.getLogger("flwr")
_HEAVY = "the weight is above max_weight: raise max_weight of Masked to the most that a client has"


@dataclass(frozen=True)
class MaskMod:
    """Takes part in secure sums and never lets a plain update out.

    Place it first in the list of mods, so that nothing behind it adds to a masked reply.

    With `identity` and `trusted` the server may do anything: the client takes keys only from
    clients on the list, signs the survivors before it reveals a share, and answers no evaluation,
    whose metrics would travel in plain text. Without them the server is trusted to relay keys and
    to name dropouts honestly. In both cases the masks are bound to all that the client was told.

    Attributes:
        required: Whether a train message without an order to mask gets an error. Only an app
            that switches masking off by its own configuration sets this to False.
        min_peers: Fewest peers that the client masks with.
        min_threshold: Fewest shares that may open a secret, and fewest clients in a sum,
            `colluders` among them.
        colluders: Peers that the client assumes may collude with the server.
        allow_tap: Whether auditors may collect kept updates and replay the training without
            masks; for simulations only.
        seed: Names the rounding in a simulation; None takes the operating system's source. Keys
            and shares always come from there.
        identity: The client's own signing key: a file or folder that `leakmeter keys new` has made,
            or a private Ed25519 key. With a file, steps are noted next to it, so that a node that
            handles several messages at once takes each step once.
        trusted: Public lines of all clients, its own among them: a file, lines, or name to line.
            They must not come from the server.
        max_clip_range: Largest clip range that the client takes part with; None for any. All
            clients of a sum have the same, so it limits how coarse their rounding may be.
        max_weight: Largest weight that a sum may allow for; None for any.
    """

    required: bool = True
    min_peers: int = 2
    min_threshold: int = 2
    colluders: int = 0
    allow_tap: bool = False
    seed: int | None = None
    identity: Identity | Ed25519PrivateKey | str | Path | None = None
    trusted: TrustedKeys | str | Path | Mapping[str, str] | Iterable[str | bytes] | None = None
    max_clip_range: float | None = None
    max_weight: float | None = None

    def __post_init__(self) -> None:
        _ = self.policy  # refuses what cannot be
        if (self.identity is None) != (self.trusted is None):
            given, missing = ("trusted", "identity") if self.trusted else ("identity", "trusted")
            raise ValueError(f"{given} must come with {missing}: a client that signs needs both")
        if self.identity is not None and self.trusted is not None:
            signer = SigningClient(Identity.of(self.identity), TrustedKeys.of(self.trusted))
            object.__setattr__(self, "identity", signer.identity)
            object.__setattr__(self, "trusted", signer.trusted)

    @property
    def policy(self) -> Policy:
        """What the client insists on."""
        return Policy(
            self.min_peers,
            self.min_threshold,
            self.colluders,
            math.inf if self.max_clip_range is None else self.max_clip_range,
            math.inf if self.max_weight is None else self.max_weight,
        )

    @property
    def signing(self) -> SigningClient | None:
        """The stages of a client that signs; None if it does not."""
        if not isinstance(self.identity, Identity) or not isinstance(self.trusted, TrustedKeys):
            return None
        return SigningClient(self.identity, self.trusted)

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Answer a stage of the protocol, or train and mask."""
        kind = message.metadata.message_type.split(".")[0]
        if kind == "evaluate" and self.signing is not None:
            raise RefusedError("this client evaluates nothing: its metrics would be in plain text")
        if kind != "train":
            return call_next(message, context)
        order = wire.config(message.content, wire.MASK)
        if order is None:
            if not self.required or (self.allow_tap and wire.is_instrument(message.content)):
                return call_next(message, context)
            raise RefusedError(f"a train message must carry {wire.MASK!r}: this client masks")
        session = Session(message.metadata.run_id, wire.get_int(order, "round"))
        stage = wire.get_text(order, "stage")
        if stage == "keys":
            return _reply(message, self._keys(order, session, context))
        before = _resume(context, session)
        if stage == "train":
            return self._train(order, before, message, context, call_next)
        answer = self._answers().get(stage)
        if answer is None:
            known = (
                "keys, draw, shares, train, survivors" if self.signing else "keys, shares, train"
            )
            raise RefusedError(f"stage must be {known} or unmask, got {stage!r}")
        after, record = answer(order, before)
        self._take(session, stage)
        context.state[wire.MASK] = put_participant(after)
        return _reply(message, record)

    def _answers(self) -> Mapping[str, Answer]:
        """Return what the client answers to the stages between keys and unmasking."""
        policy, signing = self.policy, self.signing
        if signing is None:
            return {"shares": partial(_shares, policy), "unmask": _unmask}
        return {
            "draw": partial(signing.draw, policy),
            "shares": partial(signing.shares, policy),
            "survivors": signing.survivors,
            "unmask": signing.unmask,
        }

    def _keys(self, order: ConfigRecord, session: Session, context: Context) -> ConfigRecord:
        """Draw fresh secrets and announce the public half."""
        kept = wire.config(context.state, wire.MASK)
        if kept is not None:
            last = get_session(kept)
            if last.run == session.run and session.server_round <= last.server_round:
                raise RefusedError(
                    f"round must be above {last.server_round}, got {session.server_round}"
                )
        participant = Participant.announce(session, wire.get_int(order, "number"))
        self._take(session, "keys")
        context.state[wire.MASK] = put_participant(participant)
        signing = self.signing
        keys = participant.public if signing is None else participant.signed(signing.identity)
        return ConfigRecord({"keys": keys.to_bytes(), "settings": fingerprint(context.run_config)})

    def _train(
        self,
        order: ConfigRecord,
        before: Participant,
        message: Message,
        context: Context,
        call_next: Call,
    ) -> Message:
        """Train, encode and mask; whatever is wrong with the order is refused before training."""
        shared = wire.config(message.content, wire.SUM_ORDER)
        if shared is None:
            raise RefusedError(f"a train message must carry {wire.SUM_ORDER!r} with {wire.MASK!r}")
        boxes, quantiser = get_by_number(order, "boxes"), get_quantiser(shared)
        if quantiser.max_clients <= len(boxes):
            raise RefusedError(f"max-clients must be at least {len(boxes) + 1}")
        self.policy.check_sum(quantiser)
        if quantiser.noise_std > wire.share_std(message.content):
            # Room for noise widens the grid as a clip range does, past the owner's limit.
            raise RefusedError("noise-std must be at most the noise that clients are told to add")
        seats = self._seats(message.content, before.number)
        sent = wire.arrays(message.content)
        layout, weight_key = get_layout(shared, sent), wire.get_text(shared, "weight-key")
        opened = before.open(boxes, self.policy, seats)
        # Before training: whoever comes next in the list may change the message.
        digest = self._told(message, before, context)
        reply = call_next(_without_seats(message), context)
        if reply.has_error():
            return reply
        try:
            if quantiser.has_integers:
                vector = _noised_integers(quantiser, layout, reply.content)
            else:
                update = _difference(layout, wire.arrays(reply.content), sent)
                rng = self._rounding(before.session.server_round, context)
                vector = _encode(quantiser, update, reply.content, weight_key, rng)
        except NotFiniteError:
            return wire.not_finite(message, "the update or a metric")
        after, masked = opened.upload(vector, quantiser.ring, digest)
        self._take(before.session, "train")
        # Last, since an exception after it would leave a client that thinks it has uploaded.
        context.state[wire.MASK] = put_participant(after)
        upload = put_upload(masked, quantiser.ring)
        return Message(passed_on(reply.content, upload), reply_to=message)

    def _told(self, message: Message, before: Participant, context: Context) -> bytes:
        """Return the digest of all that this client was told, which enters its mask keys."""
        settings = fingerprint(context.run_config)
        terms = Terms(before.session, before.threshold, settings, before.roster)
        return terms.digest(Instructions().of(message))

    def _seats(self, content: RecordDict, number: int) -> tuple[int, ...]:
        """Return who plays a canary; an order for a client that is not on that list is refused."""
        seats, order = wire.seat_numbers(content), Order.of(content)
        if order is not None and order.canary is not None and number not in seats:
            raise RefusedError(
                f"only a seat that all clients know of plays canaries; {number} is not one"
            )
        return seats

    def _take(self, session: Session, stage: str) -> None:
        """Note a step where several messages may be handled at once."""
        if isinstance(self.identity, Identity):
            take_once(self.identity.folder, session, stage)

    def _rounding(self, server_round: int, context: Context) -> np.random.Generator:
        """Return the source of the stochastic rounding."""
        if self.seed is None:
            return np.random.default_rng()
        client = int(context.node_config["partition-id"])
        return stream(self.seed, "rounding", server_round, client)


mask_mod = MaskMod()


def _shares(
    policy: Policy, order: ConfigRecord, before: Participant
) -> tuple[Participant, ConfigRecord]:
    """Share the secrets among the peers."""
    number, threshold = wire.get_int(order, "number"), wire.get_int(order, "threshold")
    after, boxes = before.share(number, get_keys_of_peers(order), threshold, policy)
    return after, ConfigRecord(put_by_number("boxes", boxes))


def _unmask(order: ConfigRecord, before: Participant) -> tuple[Participant, ConfigRecord]:
    """Reveal one share of each peer, once."""
    after, shares = before.reveal(get_numbers(order, "survivors"), get_numbers(order, "dropped"))
    return after, ConfigRecord(put_by_number("shares", shares))


def _without_seats(message: Message) -> Message:
    """Return the message as the app would have got it without an audit."""
    if wire.SEATS not in message.content:
        return message
    inside = copy.copy(message)
    kept = {key: record for key, record in message.content.items() if key != wire.SEATS}
    inside.content = RecordDict(kept)
    return inside


def _resume(context: Context, session: Session) -> Participant:
    """Return this round's participant; state of another round or run is refused."""
    kept = wire.config(context.state, wire.MASK)
    if kept is None:
        raise RefusedError("this stage comes after 'keys', which has not come")
    if (begun := get_session(kept)) != session:
        raise RefusedError(
            f"round must be {begun.server_round} of the run that sent the keys, "
            f"got {session.server_round}"
        )
    return get_participant(kept)


def _difference(layout: Layout, trained: ArrayRecord, sent: ArrayRecord) -> Vector:
    """Return what training has changed; in one pass, which two flat copies would not be."""
    layout.check(trained)
    update = np.empty(layout.dim)
    parts = np.split(update, np.cumsum(layout.sizes)[:-1])
    pairs = zip(layout.arrays_in(trained), layout.arrays_in(sent), parts, strict=True)
    for after, before, part in pairs:
        np.subtract(values(after), values(before), out=part, dtype=np.float64)
    return update


def _noised_integers(quantiser: Quantiser, layout: Layout, content: RecordDict) -> RingVector:
    """Return what `noise_mod` has rounded and noised, as ring integers."""
    arrays = wire.arrays(content)
    if list(arrays) != [wire.STEPS] or wire.config(content, wire.NOISE) is None:
        raise RefusedError(
            f"{quantiser.noise_distribution} noise must be on the update before it is masked: list "
            "noise_mod behind mask_mod in the client app"
        )
    steps = arrays[wire.STEPS].numpy()
    if steps.shape != (layout.dim,):
        raise RefusedError(f"update must have {layout.dim} coordinates, got shape {steps.shape}")
    return quantiser.encode_integers(steps)


def _encode(
    quantiser: Quantiser,
    update: Vector,
    content: RecordDict,
    weight_key: str,
    rng: np.random.Generator,
) -> RingVector:
    """Return update, weight and named metrics as ring integers."""
    metrics = _metrics(content)
    inside = {*quantiser.metrics, weight_key}
    names = {n for r in content.values() if isinstance(r, MetricRecord) for n in r}
    if others := sorted(names - inside):
        _log.info("not sent, since they are no part of the secure sum: %s", ", ".join(others))
    try:
        if weight_key not in metrics:
            raise ValueError(f"reply must state its weight {weight_key!r}, got {sorted(metrics)}")
        return quantiser.encode(update, metrics[weight_key], metrics, rng)
    except ValueError as error:
        # The text of an exception travels in plain text, and this one shows the client's numbers.
        _log.error("secure sum: this client stays out of the round: %s", error)
        if isinstance(error, NotFiniteError):
            raise
        if isinstance(error, HeavyError):  # a setting of the server's, and the most common mistake
            raise RefusedError(_HEAVY) from None
        raise RefusedError(
            "update, weight or a metric is missing or out of range; the client's own log says which"
        ) from None


def _metrics(content: RecordDict) -> dict[str, float]:
    """Return all scalar metrics of a reply."""
    return {
        name: float(value)
        for record in content.values()
        if isinstance(record, MetricRecord)
        for name, value in record.items()
        if isinstance(value, int | float)
    }


def _reply(message: Message, record: ConfigRecord) -> Message:
    return Message(RecordDict({wire.MASK: record}), reply_to=message)
