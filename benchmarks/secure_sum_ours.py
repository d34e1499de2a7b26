"""Our side of a secure round: the functions alone, whole with all of Flower's messages, and bare.

One process derives the key of a pair once for both of its clients, and reads a public key once for
all. `apart` turns that off, so that every client computes all that it would compute by itself.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from benchmarks.secure_sum import (
    THRESHOLD,
    UPDATE,
    WEIGHT,
    Call,
    Case,
    Direct,
    Dropout,
    settle,
)
from leakmeter.auditors.hook import wire
from leakmeter.clients import MaskMod
from leakmeter.clients.secure_sum import keys as agreement
from leakmeter.clients.secure_sum import sharing
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.participant import MAX_EXPOSURE, Participant, Policy
from leakmeter.clients.secure_sum.quantise import Quantiser
from leakmeter.clients.secure_sum.signing import Identity, TrustedKeys
from leakmeter.clients.secure_sum.wire import (
    get_by_number,
    get_keys,
    get_keys_of_peers,
    get_participant,
    put_by_number,
    put_participant,
)
from leakmeter.strategies import Masked, Risks
from leakmeter.strategies.secure_sum.sum_round import AbandonedError, MaskedCohort
from leakmeter.strategies.secure_sum.topology import MAX_ABORT, Topology

DIGEST = bytes(32)  # of what clients were told; making it is measured in the whole round


class FirstReply(Strategy):
    """Sends one model to all and takes the first reply: no work beside the secure sum's."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one message a node."""
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, "train") for node in grid.get_node_ids()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return what all synthetic replies hold."""
        return wire.arrays(next(iter(replies)).content), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return nothing."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Return nothing."""

    def summary(self) -> None:
        """Say nothing."""


@contextmanager
def apart() -> Iterator[None]:
    """Let every client compute for itself what one process computes once for several."""
    with (
        patch.object(agreement, "_open_pairs", None),
        patch.object(agreement, "_loaded", X25519PublicKey.from_public_bytes),
        patch.object(sharing, "_powers", sharing._powers.__wrapped__),
    ):
        yield


def bare(case: Case) -> float:
    """Return the CPU seconds of the key pairs, keys, boxes and masks of a round, and nothing else.

    As many calls of the cipher and curve as all clients need, each for itself: no Shamir, no
    rounding, no records, nothing that the server does.
    """
    assert case.neighbours != "auto"
    degree = case.neighbours or case.clients - 1
    own, peer = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    zeros, stream, nonce = bytes(4 * case.dim), bytearray(4 * case.dim), bytes(12)
    info, place, text = bytes(150), bytes(60), bytes(78)

    settle()
    begin = time.process_time()
    for n in range(case.clients):
        # Two pairs are drawn; those who upload have read both again by then, the others one.
        uploads = n >= len(case.dropped)
        for _ in range(4 if uploads else 3):
            X25519PrivateKey.from_private_bytes(os.urandom(32))
        for _ in range(degree * (2 if uploads else 1)):
            key = hmac.digest(hmac.digest(b"salt", own.exchange(peer), "sha256"), info, "sha256")
        for _ in range(degree):
            box = AESGCM(key).encrypt(nonce, text, place)
            if uploads:
                AESGCM(key).decrypt(nonce, box, place)
        for _ in range((degree + 1) * uploads):
            cipher = Cipher(algorithms.AES128(key[:16]), modes.GCM(nonce))
            cipher.encryptor().update_into(zeros, stream)
    return time.process_time() - begin


def our_functions(case: Case) -> float:
    """Return the CPU seconds of what `MaskMod` and `Masked` call, with their records."""
    risks = Risks(max_abort=1.0, max_exposure=1.0)
    topology = Topology(threshold=THRESHOLD, neighbours=case.neighbours, risks=risks)
    policy, session = Policy(), Session(run=1, server_round=1)
    update = np.full(case.dim, UPDATE)

    settle()
    begin = time.process_time()
    states, keys = {}, {}
    for n in range(1, case.clients + 1):
        client = Participant.announce(session, n)
        states[n] = put_participant(client)
        keys[n] = get_keys(ConfigRecord({"keys": client.public.to_bytes()}))
    plan = topology.plan(case.clients)
    cohort = MaskedCohort(session, keys, plan.draw(sorted(keys)), plan.threshold)
    boxes = {}
    for n in keys:
        peers = put_by_number("keys", {p: cohort.keys[p].to_bytes() for p in cohort.graph[n]})
        announced = get_keys_of_peers(ConfigRecord(peers))
        client, for_peers = get_participant(states[n]).share(n, announced, plan.threshold, policy)
        states[n] = put_participant(client)
        boxes[n] = get_by_number(ConfigRecord(put_by_number("boxes", for_peers)), "boxes")
    sharers = cohort.enough(boxes)
    quantiser = Quantiser(clip_range=4.0, bits=32, max_clients=len(sharers), max_weight=1000.0)
    uploads = {}
    for n in sorted(sharers - case.dropped):
        for_me = {p: boxes[p][n] for p in cohort.neighbourhood(n, sharers)}
        order = ConfigRecord(put_by_number("boxes", for_me))
        client = get_participant(states[n]).open(get_by_number(order, "boxes"), policy)
        vector = quantiser.encode(update, WEIGHT, {}, np.random.default_rng())
        client, uploads[n] = client.upload(vector, quantiser.ring, DIGEST)
        states[n] = put_participant(client)
    cohort.check(uploads, sharers)
    revealed = {}
    for n in uploads:
        alive = [n, *cohort.neighbourhood(n, uploads)]
        gone = cohort.neighbourhood(n, sharers & case.dropped)
        client, shares = get_participant(states[n]).reveal(alive, gone)
        states[n] = put_participant(client)
        revealed[n] = get_by_number(ConfigRecord(put_by_number("shares", shares)), "shares")
    total = cohort.total(uploads, sharers, revealed, quantiser.ring, DIGEST)
    assert quantiser.implausible(total, len(uploads)) is None
    mean = quantiser.decode(total)
    seconds = time.process_time() - begin

    assert np.abs(mean.mean - UPDATE).max() <= mean.quantum
    return seconds


def our_round(
    case: Case, count_bytes: bool = False, *, is_signed: bool = False
) -> tuple[float, Direct]:
    """Return the CPU seconds of one round of `Masked` and `MaskMod`, with all their records.

    Args:
        case: Its shape.
        count_bytes: Whether the grid counts them.
        is_signed: Whether clients sign what they announce and who has survived, against a server
            that may do anything. Their keys are there before.
    """
    start = np.zeros(case.dim, np.float32)
    moved = ArrayRecord({"w": Array(start + np.float32(UPDATE))})
    metrics = MetricRecord({"num-examples": WEIGHT})

    def train(message: Message, _: Context) -> Message:
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    # 14 neighbours are a shape to measure, no graph to trust: any risk is let pass.
    limit = None if case.neighbours == "auto" else 1.0
    mods, lines = signing(case) if is_signed else ([MaskMod()] * case.clients, None)
    risks = Risks(max_abort=limit or MAX_ABORT, max_exposure=limit or MAX_EXPOSURE, trusted=lines)
    strategy = Masked(FirstReply(), threshold=THRESHOLD, neighbours=case.neighbours, risks=risks)

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        if wire.SUM_ORDER in message.content and context.node_id in case.dropped:
            raise Dropout  # after the shares, before it trains
        return mods[context.node_id - 1](message, context, call_next)

    grid = Direct(mod, train, case.clients, count_bytes)
    arrays = ArrayRecord({"w": Array(start)})

    settle()
    begin = time.process_time()
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    model, _ = strategy.aggregate_train(1, replies)
    seconds = time.process_time() - begin

    facts = strategy.facts()
    if model is None:  # 14 neighbours may be too few for the dropouts that they have drawn
        raise AbandonedError(facts.abandoned)
    assert facts.num_clients == case.clients - len(case.dropped)
    assert facts.aggregate is not None
    assert facts.quantum is not None
    assert np.abs(facts.aggregate - UPDATE).max() <= facts.quantum
    return seconds, grid


def signing(case: Case) -> tuple[list[MaskMod], TrustedKeys]:
    """Return one mod a client, each with a key of its own and the list of all."""
    keys = [Identity(Ed25519PrivateKey.generate()) for _ in range(case.clients)]
    trusted = TrustedKeys.of([key.public for key in keys])
    return [MaskMod(identity=key, trusted=trusted) for key in keys], trusted
