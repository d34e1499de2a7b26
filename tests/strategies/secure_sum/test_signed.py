"""Signed secure sums: honest rounds come out, and whatever a server or a client tries does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

from leakmeter.auditors.hook import wire
from leakmeter.clients import MaskMod
from leakmeter.clients.secure_sum.signing import Identity, TrustedKeys
from leakmeter.strategies import Masked
from leakmeter.strategies.grid import GridWrapper
from tests.strategies.secure_sum.test_masked import SEED, Federation, at, masked

Order = Callable[[int, str, ConfigRecord, RecordDict], RecordDict | None]

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(40)]
TRUSTED = TrustedKeys.of([key.public_key().public_bytes_raw() for key in KEYS])


def mods(trusted: TrustedKeys = TRUSTED, **policy: Any) -> list[MaskMod]:
    """Return what each of the clients signs and masks with."""
    return [
        MaskMod(allow_tap=True, seed=SEED, identity=Identity(key), trusted=trusted, **policy)
        for key in KEYS
    ]


class Signing(Federation):
    """Clients with keys of their own."""

    def __init__(self, num: int = 5, *, policy: Any = None, **options: Any) -> None:
        own = mods(**(policy or {}))

        def mod(message: Message, context: Context, call_next: Any) -> Message:
            return own[context.node_id - 1](message, context, call_next)

        super().__init__(num, mod=mod, **options)


@dataclass
class Lying(GridWrapper):
    """A server that changes orders on their way; it returns None to send nothing."""

    grid: Grid
    change: Order
    seen: list[tuple[int, str, Message]] = field(default_factory=list)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver what the change has made of the messages."""
        sent = []
        for message in messages:
            order = wire.config(message.content, wire.MASK) or ConfigRecord()
            node, stage = message.metadata.dst_node_id, str(order.get("stage"))
            content = self.change(node, stage, order, message.content)
            if content is not None:
                kind = message.metadata.message_type
                sent.append(Message(content, dst_node_id=node, message_type=kind))
        replies = list(self.grid.send_and_receive(sent, timeout=timeout))
        self.seen += [(m.metadata.src_node_id, "", m) for m in replies]
        return replies


def signed(clients: Federation, **options: Any) -> Masked:
    return masked(clients, trusted=TRUSTED, **options)


def with_order(content: RecordDict, **values: Any) -> RecordDict:
    order = wire.config(content, wire.MASK)
    return RecordDict({**content, wire.MASK: ConfigRecord({**(order or {}), **values})})


@pytest.mark.usefixtures("flower_task")
class TestHonest:
    def test_the_sum_is_the_same_as_without_signatures(self) -> None:
        results = [
            Federation().run(masked(Federation()), rounds=2),
            Signing().run(signed(Signing()), rounds=2),
        ]
        for name in ("w", "b"):
            one, other = (r.arrays[name].numpy() for r in results)
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("stage", ["keys", "shares", "train", "survivors", "unmask"])
    def test_one_may_drop_out_in_any_stage(self, stage: str) -> None:
        clients = Signing(faults=at(stage, [2]))
        strategy = signed(clients)
        clients.run(strategy)
        facts = strategy.facts()
        assert facts.abandoned is None
        assert facts.num_clients == (5 if stage in ("survivors", "unmask") else 4)

    def test_drawn_neighbours_give_the_sum(self) -> None:
        clients = Signing(30)
        strategy = signed(clients, neighbours=12, threshold=10, collusion_rate=0.0)
        clients.run(strategy, rounds=2)
        facts = strategy.facts()
        assert facts.abandoned is None
        assert facts.num_clients == 30
        assert facts.quantum is not None
        assert facts.aggregate == pytest.approx(clients.mean(), abs=facts.quantum)
