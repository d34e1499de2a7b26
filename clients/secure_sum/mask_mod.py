"""The client mod of secure sums: masks what leaves, and answers in one form whatever happens.

The server proposes, the client's own policy limits. Refusals happen before training and depend on
orders alone. After training every answer is a masked vector of the same size: an error would tell
the server something about this client's data, and no mask hides who sends an error.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Order
from leakmeter.auditors.hook.layout import Layout, values
from leakmeter.auditors.hook.mods import (
    Call,
    ModList,
    OrderedMod,
    canary_mod,
    failure_note,
    mods_around,
    names_of,
    tap_mod,
    unwrap,
    with_answer,
)
from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Vector
from leakmeter.clients.secure_sum.keys import Instructions, Session, binding, fingerprint
from leakmeter.clients.secure_sum.participant import Participant, Policy
from leakmeter.clients.secure_sum.quantise import Quantiser, RingVector
from leakmeter.clients.secure_sum.signing import Identity, PublicKeys, TrustedKeys, take_once
from leakmeter.clients.secure_sum.wire import (
    get_by_number,
    get_keys_of_peers,
    get_layout,
    get_numbers,
    get_participant,
    get_quantiser,
    get_roster,
    get_signatures,
    metrics_of,
    put_by_number,
    put_participant,
    put_upload,
)

# What a client makes of an order: its new state, and what it answers.
Answer: TypeAlias = Callable[[ConfigRecord, Participant], tuple[Participant, ConfigRecord]]

_log = logging.getLogger("flwr")
_NO_NOISE = "orders to noise must be carried out: list noise_mod directly behind mask_mod"
# Orders to noise, which a mod behind this one carries out.
_NOISES = (wire.NOISE, wire.FILLED)


@dataclass(frozen=True)
class MaskMod:
    """Takes part in secure sums and never lets a plain update out.

    Place it first in the list of mods: whoever is before it sees every message and may change it.
    If training fails, or gives what cannot be summed, the client uploads zeros of weight 0, masked
    like any other upload, and says what was wrong only in its own log. One that signs
    replaces a weight beyond the sum's limits by the nearest one within. Under an order to noise,
    `NoiseMod`, directly behind this mod, sends its share of the noise in place of the update.

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
        min_clip_range: Smallest clip range that the client takes part with.
        min_max_weight: Least weight that a sum must allow for, such as the number of examples.
        weight_key: The metric that weights the client.
        metrics: Names of metrics that a sum may contain; None for any that the app returns.
        outside: Names of mods that may be before this one in the list. Instruments of an audit
            (`canary_mod`, `tap_mod`) may not.
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
    min_clip_range: float = 0.0
    min_max_weight: float = 0.0
    weight_key: str = wire.WEIGHT
    metrics: Iterable[str] | None = None
    outside: Iterable[str] = ()

    def __post_init__(self) -> None:
        for name in ("metrics", "outside"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a list of names, got a text")
        object.__setattr__(self, "outside", tuple(self.outside))
        if self.metrics is not None:
            object.__setattr__(self, "metrics", frozenset(self.metrics))
        _ = self.policy  # refuses what cannot be
        if (self.identity is None) != (self.trusted is None):
            given, missing = ("trusted", "identity") if self.trusted else ("identity", "trusted")
            raise ValueError(f"{given} must come with {missing}: a client that signs needs both")
        if self.identity is not None and self.trusted is not None:
            signer = SigningClient(Identity.of(self.identity), TrustedKeys.of(self.trusted))
            object.__setattr__(self, "identity", signer.identity)
            object.__setattr__(self, "trusted", signer.trusted)

    @cached_property
    def policy(self) -> Policy:
        """What the client insists on."""
        return Policy(
            self.min_peers,
            self.min_threshold,
            self.colluders,
            math.inf if self.max_clip_range is None else self.max_clip_range,
            math.inf if self.max_weight is None else self.max_weight,
            self.min_clip_range,
            self.min_max_weight,
            self.weight_key,
            None if self.metrics is None else frozenset(self.metrics),
        )

    @cached_property
    def signing(self) -> SigningClient | None:
        """The stages of a client that signs; None if it does not."""
        if not isinstance(self.identity, Identity) or not isinstance(self.trusted, TrustedKeys):
            return None
        return SigningClient(self.identity, self.trusted)

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Answer a stage of the protocol, or train and mask."""
        kind = message.metadata.message_type.split(".")[0]
        if kind != "train":
            self._check_kind(kind)
            return call_next(message, context)
        order = wire.config(message.content, wire.MASK)
        if order is None:
            if not self.required or (self.allow_tap and wire.is_instrument(message.content)):
                return call_next(message, context)
            raise RefusedError(f"a train message must carry {wire.MASK!r}: this client masks")
        mods = mods_around(call_next)
        self._check_place(mods)
        session = Session(message.metadata.run_id, wire.get_int(order, "round"))
        stage = wire.get_text(order, "stage")
        if stage == "keys":
            return _reply(message, self._keys(order, session, context))
        before = _resume(context, session)
        if stage == "train":
            return self._train(order, before, message, context, call_next, mods)
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
            last = get_participant(kept).session
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

    def _check_kind(self, kind: str) -> None:
        """Refuse a message whose answer no mask would hide."""
        if kind == "get_parameters" and self.required:
            raise RefusedError("this client hands out no model: it would be in plain text")
        if self.signing is not None and kind != "query":  # an app has its own functions for these
            what = "evaluates nothing" if kind == "evaluate" else f"answers no {kind!r}"
            raise RefusedError(f"this client {what}: its metrics would be in plain text")

    def _check_place(self, mods: ModList) -> None:
        """Refuse to work behind mods that the owner has not named."""
        if mods.itself is None and self.signing is not None:
            raise RefusedError(
                "the app's list of mods cannot be read under this release of Flower, and a client "
                "that signs must know what is before mask_mod"
            )
        if any(unwrap(mod) is tool for mod in mods.before for tool in (canary_mod, tap_mod)):
            raise RefusedError("canary_mod and tap_mod must be behind mask_mod in the client app")
        if others := [name for name in names_of(mods.before) if name not in self.outside]:
            raise RefusedError(
                f"mask_mod must be first in the client app, got {', '.join(others)} before it: "
                "move it, or name it in MaskMod(outside=...)"
            )

    def _train(
        self,
        order: ConfigRecord,
        before: Participant,
        message: Message,
        context: Context,
        call_next: Call,
        mods: ModList,
    ) -> Message:
        """Check all that was ordered; then train, encode and mask."""
        boxes = get_by_number(order, "boxes")
        summed = self._sum_order(len(boxes), message, mods)
        opened = before.open(boxes, self.policy, self._seats(message.content, before.number))
        # Before training: whoever comes next in the list may change the message.
        digest = self._digest_of(message, before, context)
        vector, trained, notes = self._train_and_encode(
            summed, before.session.server_round, message, context, call_next
        )
        ring = summed.quantiser.ring
        after, masked = opened.upload(vector, ring, digest)
        self._take(before.session, "train")
        # Last, since an exception after it would leave a client that thinks it has uploaded.
        context.state[wire.MASK] = put_participant(after)
        upload = RecordDict({**put_upload(masked, ring), **notes})
        return Message(with_answer(message, mods, trained, upload), reply_to=message)

    def _train_and_encode(
        self,
        summed: _Summed,
        server_round: int,
        message: Message,
        context: Context,
        call_next: Call,
    ) -> tuple[RingVector, RecordDict, dict[str, ConfigRecord]]:
        """Train and return what to sum, what training has given, and notes about it.

        If training fails in any way, what is summed is blank.
        """
        rounding = self._rounding(server_round, context)
        # Without our own record, which is written again after the upload.
        others = {n: record for n, record in context.state.items() if n != wire.MASK}
        kept, trained, notes = RecordDict(copy.deepcopy(others)), RecordDict(), {}
        try:
            trained = wire.trained_content(call_next(_without_seats(message), context))
            vector = summed.encoded(trained, rounding)
            if self.allow_tap and (note := wire.config(trained, wire.BLANK)) is not None:
                notes = {wire.BLANK: note}  # of a mod that has sent its noise alone
        except RefusedError:  # by a mod behind this one, before training too
            raise
        except (KeyboardInterrupt, SystemExit):  # of whoever ends the process
            raise
        except BaseException as error:  # the app's code, its libraries and data, in any way
            if summed.noised_by is not None:
                # Whatever the data: no mod has noised. One that does answers in any case.
                raise RefusedError(_NO_NOISE) from None
            context.state = kept
            notes = failure_note(error, allow_tap=self.allow_tap)
            vector = summed.quantiser.encode_blank(summed.layout.dim)
        context.state = context.state if isinstance(context.state, RecordDict) else kept
        return vector, trained, notes

    def _sum_order(self, num_peers: int, message: Message, mods: ModList) -> _Summed:
        """Return how to encode an update; whatever is wrong with the order is refused."""
        content = message.content
        shared = wire.config(content, wire.SUM_ORDER)
        if shared is None:
            raise RefusedError(f"a train message must carry {wire.SUM_ORDER!r} with {wire.MASK!r}")
        quantiser = get_quantiser(shared)
        if quantiser.max_clients <= num_peers:
            raise RefusedError(f"max-clients must be at least {num_peers + 1}")
        asked = {key: found for key in _NOISES if (found := wire.config(content, key)) is not None}
        keys = [wire.get_text(found, "weight-key") for found in (shared, *asked.values())]
        self.policy.check_sum(quantiser, keys)
        if quantiser.noise_std > wire.share_std(content):
            # Room for noise widens the grid as a clip range does, past the owner's limit.
            raise RefusedError("noise-std must be at most the noise that clients are told to add")
        if asked and mods.itself is not None:
            nearest = mods.behind[0] if mods.behind else None
            if not (isinstance(nearest, OrderedMod) and nearest.carries_out >= set(asked)):
                raise RefusedError(_NO_NOISE)
        layout, sent = get_layout(shared, wire.arrays(content))
        about = (self.weight_key, next(iter(asked), None), self.signing is not None)
        return _Summed(quantiser, layout, sent, *about)

    def _digest_of(self, message: Message, before: Participant, context: Context) -> bytes:
        """Return the digest of all that this client was told, which enters its mask keys."""
        told = (fingerprint(context.run_config), before.roster, Instructions().of(message))
        return binding(before.session, before.threshold, *told)

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


@dataclass(frozen=True)
class SigningClient:
    """A client with a key of its own and a list of those of the others.

    Attributes:
        identity: Its own key.
        trusted: The keys of all clients.
    """

    identity: Identity
    trusted: TrustedKeys

    def __post_init__(self) -> None:
        if self.identity.public not in self.trusted:
            raise ValueError(
                f"trusted must have this client's own line, {self.identity.line}: the others' "
                "lists need it too"
            )
        self.trusted.check_enough()

    def draw(
        self, policy: Policy, order: ConfigRecord, before: Participant
    ) -> tuple[Participant, ConfigRecord]:
        """Draw neighbours among all who take part, if they are enough to hide among."""
        clients = get_roster(order)
        if strangers := sum(key not in self.trusted for key in clients.values()):
            raise RefusedError(f"all clients must be on the trusted list, {strangers} are not")
        draws, threshold = wire.get_int(order, "draws"), wire.get_int(order, "threshold")
        policy.check_draws(len(clients), draws, threshold)
        number, own = wire.get_int(order, "number"), self.identity.public
        after = before.draw(number, clients, own, (draws, threshold))
        return after, ConfigRecord({"drawn": list(after.drawn)})

    def shares(
        self, policy: Policy, order: ConfigRecord, before: Participant
    ) -> tuple[Participant, ConfigRecord]:
        """Share the secrets, once every announcement has a trusted signature."""
        peers = get_keys_of_peers(order, is_signed=True)
        known = {keys.signer for keys in peers.values()}
        if len(known) < len(peers) or self.identity.public in known:
            raise RefusedError("every client must announce keys once; one has done so twice")
        for peer, keys in peers.items():
            keys.check(before.session, peer, self.trusted)
        return _shared(policy, order, before, peers)

    def survivors(
        self, order: ConfigRecord, before: Participant
    ) -> tuple[Participant, ConfigRecord]:
        """Sign who has survived, once."""
        after, signature = before.sign(get_numbers(order, "survivors"), self.identity)
        return after, ConfigRecord({"signature": signature})

    def unmask(self, order: ConfigRecord, before: Participant) -> tuple[Participant, ConfigRecord]:
        """Reveal one share of each peer, once enough others have signed as this client has."""
        after, shares = before.reveal_signed(*get_signatures(order))
        return after, ConfigRecord(put_by_number("shares", shares))


def _shares(
    policy: Policy, order: ConfigRecord, before: Participant
) -> tuple[Participant, ConfigRecord]:
    """Share the secrets among the peers."""
    return _shared(policy, order, before, get_keys_of_peers(order))


def _shared(
    policy: Policy, order: ConfigRecord, before: Participant, peers: Mapping[int, PublicKeys]
) -> tuple[Participant, ConfigRecord]:
    number, threshold = wire.get_int(order, "number"), wire.get_int(order, "threshold")
    after, boxes = before.share(number, peers, threshold, policy)
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
    before = get_participant(kept)
    if before.session != session:
        raise RefusedError(
            f"round must be {before.session.server_round} of the run that sent the keys, "
            f"got {session.server_round}"
        )
    return before


@dataclass(frozen=True)
class _Summed:
    """How a client's reply enters a sum, as all clients were told.

    Attributes:
        quantiser: Encodes the update.
        layout: Of the update.
        sent: The model.
        weight_key: The metric that weights the client.
        noised_by: Record of the order to noise, if there is one; the reply has one like it.
        takes_nearest: Whether a weight beyond the limits counts as the nearest one.
    """

    quantiser: Quantiser
    layout: Layout
    sent: ArrayRecord
    weight_key: str
    noised_by: str | None
    takes_nearest: bool

    def encoded(self, content: RecordDict, rng: np.random.Generator) -> RingVector:
        """Return update, weight and named metrics as ring integers.

        Raises:
            Exception: The reply has none, or such as cannot be summed.
        """
        if self.noised_by is not None and wire.config(content, self.noised_by) is None:
            raise wire.FailedError(_NO_NOISE)
        if self.quantiser.has_integers:
            return self.quantiser.encode_integers(self._integers(content))
        metrics = _metrics(content)
        inside = {*self.quantiser.metrics, self.weight_key}
        if others := sorted(metrics_of(content).keys() - inside):
            _log.info("not sent, since they are no part of the secure sum: %s", ", ".join(others))
        if self.weight_key not in metrics:
            raise wire.FailedError(f"reply must state its weight {self.weight_key!r}")
        if self.noised_by is not None:
            # A client without its metrics still owes its share, and says nothing about them.
            lows = {name: low for name, (low, _) in self.quantiser.metrics.items()}
            known = {name: value for name, value in metrics.items() if math.isfinite(value)}
            metrics = {**lows, **known}
        update = self._difference(wire.arrays(content))
        if self.noised_by is not None:  # noise on a huge model may leave float64
            np.nan_to_num(update, copy=False)
        weight = metrics[self.weight_key]
        if self.takes_nearest and (nearest := self.quantiser.nearest_weight(weight)) != weight:
            _log.warning(
                "weight %g is beyond what the sum has room for: taken as %g", weight, nearest
            )
            weight = nearest
        return self.quantiser.encode(update, weight, metrics, rng)

    def _difference(self, trained: ArrayRecord) -> Vector:
        """Return what training has changed; in one pass, which two flat copies would not be."""
        self.layout.check(trained)
        update, end = np.empty(self.layout.dim), 0
        arrays = (self.layout.arrays_in(trained), self.layout.arrays_in(self.sent))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found later
            for after, before, size in zip(*arrays, self.layout.sizes, strict=True):
                start, end = end, end + size
                part = update[start:end]
                np.subtract(values(after), values(before), out=part, dtype=np.float64)
        return update

    def _integers(self, content: RecordDict) -> NDArray[np.int64]:
        """Return what `noise_mod` has rounded and noised."""
        arrays = wire.arrays(content)
        if list(arrays) != [wire.STEPS]:
            raise wire.FailedError(f"arrays must be {wire.STEPS!r} alone under integer noise")
        steps = arrays[wire.STEPS].numpy()
        if steps.shape != (self.layout.dim,):
            raise wire.FailedError(f"update must have {self.layout.dim} steps, got {steps.shape}")
        return steps


def _metrics(content: RecordDict) -> dict[str, float]:
    """Return all scalar metrics of a reply."""
    found = metrics_of(content).items()
    return {name: wire.as_float(value) for name, value in found if isinstance(value, int | float)}


def _reply(message: Message, record: ConfigRecord) -> Message:
    return Message(RecordDict({wire.MASK: record}), reply_to=message)
