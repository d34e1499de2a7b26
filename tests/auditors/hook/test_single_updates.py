"""Single updates through the hook: whoever writes the loop, whatever mods and clients do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from leakmeter.auditors import (
    Audited,
    Auditor,
    Claim,
    Finding,
    OneShotCanaries,
    SingleUpdates,
    canary_mod,
    passive,
)
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.hook import wire
from leakmeter.clients import MaskMod
from leakmeter.strategies import Chosen, Masked
from leakmeter.strategies.chosen import FixedSize
from tests.helpers.flower import NO_DIMENSIONS
from tests.helpers.numbers import first_fast
from tests.helpers.strategies import Sorted

pytestmark = pytest.mark.usefixtures("flower_task", "flower_draws")

CLIENTS = 12


def fedavg() -> FedAvg:
    return Sorted(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, fraction_evaluate=0.0)


def run(
    of: Any, auditors: Sequence[Auditor], rounds: int = 4, claims: Any = (), **options: Any
) -> Audited:
    """Return an audited run of all clients."""
    strategy = options.pop("strategy", None) or fedavg()
    audited = Audited(strategy, auditors, claims=claims, **{"sends": "models", **options})
    audited.start(of.grid, of.arrays(), num_rounds=rounds)
    assert audited.failures == []
    return audited


def found(audited: Any) -> list[Finding]:
    """Return the lower bounds of the auditor."""
    of_it = [f for f in audited.findings() if f.auditor == "single-update"]
    return [f for f in of_it if f.kind == "lower_bound"]


def half_precision(message: Message, context: Any, call_next: Any) -> Message:
    """Send in float16, as apps do that save bandwidth."""
    reply: Message = call_next(message, context)
    short = {
        name: Array(a.numpy().astype(np.float16)) if name in "wb" else a
        for name, a in wire.arrays(reply.content).items()
    }
    return wire.replace_arrays(reply, ArrayRecord(short))


def quantising(message: Message, context: Any, call_next: Any) -> Message:
    """Round what is sent to a grid."""
    reply: Message = call_next(message, context)
    coarse = {
        name: Array((np.round(a.numpy() * 64) / 64).astype(a.dtype)) if name in "wb" else a
        for name, a in wire.arrays(reply.content).items()
    }
    return wire.replace_arrays(reply, ArrayRecord(coarse))


def clipping() -> DifferentialPrivacyClientSideFixedClipping:
    return DifferentialPrivacyClientSideFixedClipping(fedavg(), 1e-9, 1.0, CLIENTS)


@NO_DIMENSIONS
@pytest.mark.parametrize(
    ("mods", "strategy", "least"),
    first_fast(
        3,
        [
            ([half_precision], None, 80),
            ([fixedclipping_mod], clipping, 80),
            ([LocalDpMod(1.0, 1.0, 50.0, 1e-5)], None, 20),
            ([], None, 80),
            ([quantising], None, 60),
            ([LocalDpMod(1.0, 1e-4, 10.0, 1e-5)], None, 80),  # as one platform ships it
        ],
    ),
    ids=["float16", "clipped", "noise", "plain", "grid", "no noise to speak of"],
)
def test_canaries_are_seen_through_the_clients_own_mods(
    mods: list[Any], strategy: Any, least: float, federation: Any
) -> None:
    of = federation(CLIENTS, mods=[*mods, canary_mod], identity=False)
    audited = run(of, [SingleUpdates(seats=4)], strategy=strategy and strategy())
    [bound] = found(audited)
    assert bound.value > least
    assert bound.adjacency == "zero-out"


@NO_DIMENSIONS
def test_enough_local_noise_shows_nothing(federation: Any) -> None:
    of = federation(CLIENTS, mods=[LocalDpMod(1.0, 1.0, 0.5, 1e-5), canary_mod], identity=False)
    [bound] = found(run(of, [SingleUpdates(seats=4)], rounds=8))
    assert bound.value == 0
    assert (bound.cap or 0) > 80


@pytest.mark.parametrize("rounds", [1, 3])
def test_one_round_is_enough(rounds: int, federation: Any) -> None:
    of = federation(CLIENTS, mods=[canary_mod], identity=False)
    [bound] = found(run(of, [SingleUpdates(repetitions=1)], rounds))
    assert bound.sample_sizes == {"in": 2 * rounds}  # of seats from the cohort, all take part
    assert bound.value > 80


def test_masks_leave_nothing_to_see_and_that_is_said_before_round_1(
    federation: Any, caplog: Any
) -> None:
    of = federation(5, mods=[MaskMod(seed=0), canary_mod])
    inner = FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    chosen = Chosen(inner, FixedSize(5), num_clients=5, seed=0)
    secure = Masked(chosen, max_weight=50.0, clip_range=8.0, metrics={"train-loss": (0.0, 9.0)})
    caplog.set_level("INFO", logger="flwr")
    auditors = [SingleUpdates(seats=1), OneShotCanaries(seats=1)]
    audited = run(of, auditors, 3, claims=[Claim(10.0)], strategy=secure)
    assert not [f for f in audited.findings() if f.auditor == "single-update"]
    said = [one.text for one in audited.limitations if one.auditor == "single-update"]
    assert said[0].startswith("clients mask their updates")
    assert said[1:] == ["produced no findings; this is not evidence of privacy"]
    assert caplog.text.index("clients mask their updates") < caplog.text.index("[ROUND 1/3]")
    # Canaries are not lengthened there, and one-shot has its seats.
    assert not any("times as long" in one.text for one in audited.limitations)
    assert auditors[1].canaries_played == (3, 3)


LIES: dict[str, Any] = {
    "huge": lambda a: np.full(a.shape, 1e300),
    "another shape": lambda _: np.zeros((3, 5)),
    "text": lambda _: np.array(["a", "b"]),
    "nan": lambda a: np.full_like(a, np.nan),
    "infinite": lambda a: np.full_like(a, np.inf),
}


@pytest.mark.parametrize("lie", first_fast(1, LIES))
def test_one_client_that_sends_anything_ends_no_audit(lie: str, federation: Any) -> None:
    def outer(message: Message, context: Any, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if int(context.node_config["partition-id"]) != 3:
            return reply
        record = dict(wire.arrays(reply.content))
        record["w"] = Array(LIES[lie](record["w"].numpy()))
        return wire.replace_arrays(reply, ArrayRecord(record))

    class Robust(Sorted):
        """Leaves out what cannot be averaged, as a server in use does."""

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            shape = (10, 12)
            fits = [r for r in replies if wire.arrays(r.content)["w"].numpy().shape == shape]
            finite = [r for r in fits if np.isfinite(wire.arrays(r.content)["w"].numpy()).all()]
            plain = [r for r in finite if abs(wire.arrays(r.content)["w"].numpy()).max() < 1e9]
            return super().aggregate_train(server_round, plain)

    of = federation(CLIENTS, mods=[outer, canary_mod], identity=False)
    strategy = Robust(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, fraction_evaluate=0.0)
    auditors = [OneShotCanaries(seats=5), SingleUpdates()]
    [bound] = found(run(of, auditors, 6, strategy=strategy))
    assert bound.value > 60


def test_seats_that_fail_are_counted(federation: Any) -> None:
    of = federation(CLIENTS, mods=[canary_mod], identity=False, fails=lambda _, client: client < 4)
    auditor = SingleUpdates(seats=5)
    [bound] = found(run(of, [auditor], 6))
    assert bound.sample_sizes["canaries"] == 30
    played, planned = auditor.canaries_played or (0, 0)
    assert 0 < played < planned
    assert bound.value > 40


def test_a_verdict_has_one_row_for_the_server_that_sees_updates(
    federation: Any, tmp_path: Path
) -> None:
    of = federation(CLIENTS, mods=[canary_mod], identity=False)
    run(of, passive(seats=2, trials=20)[:2], out=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    rows = [
        (row["attacker"]["observer"], row["attacker"]["sees"], row["adjacency"])
        for row in report["verdict"]["rows"]
    ]
    assert rows.count(("server", "updates", "zero-out")) == 1
    assert ("server", "updates", "replace") not in rows
    assert rows[0] == ("server", "updates", "zero-out")  # the worst
    assert report["verdict"]["rows"][0]["shown"]["auditor"] == "single-update"
    without = run(federation(CLIENTS, mods=[canary_mod], identity=False), [OneShotCanaries()])
    assert [row.question.adjacency for row in without.verdict.rows] == [
        "zero-out",
        "replace",
        "zero-out",
    ]


# Canaries longer than the update that they replace.


class Measuring(Auditor):
    """Notes how long the replies of seats are, and what they are."""

    name = "measuring"
    reads = frozenset({"replies", "instructed"})

    def __init__(self) -> None:
        self.seen: list[tuple[bool, float, float]] = []

    def observe(self, view: Any) -> Any:
        for client, order in sorted(view.instructed.items()):
            update = view.replies[client]
            along = canary_vector(order.seed, order.id, update.size) @ update
            self.seen.append((order.included, float(np.linalg.norm(update)), float(along)))
        return ()


TRAINED = dict.fromkeys(range(CLIENTS), 0.0)


@pytest.mark.parametrize(
    ("claims", "length"),
    [
        ((), None),
        ((Claim(10.0, unit="record"),), None),
        ((Claim(10.0, delta=1e-5, against="server", per="round"),), 10.0),
        ((Claim(10.0, against="outsider"),), 10.0),
        ((Claim(10.0, clip_norm=50.0), Claim(9.0, clip_norm=2.0)), 500.0),
    ],
)
def test_canaries_are_ten_times_as_long_exactly_where_a_claim_is_tested(
    claims: tuple[Claim, ...], length: float | None, federation: Any, caplog: Any
) -> None:
    caplog.set_level("INFO", logger="flwr")
    of, seen = federation(CLIENTS, mods=[canary_mod], identity=False), Measuring()
    usual = Measuring()
    run(of, [SingleUpdates(seats=4, include="coin"), usual], 1)
    caplog.clear()
    of = federation(CLIENTS, mods=[canary_mod], identity=False)
    audited = run(of, [SingleUpdates(seats=4, include="coin"), seen], 1, claims=claims)
    for (is_in, long, along), (_, before, _) in zip(seen.seen, usual.seen, strict=True):
        if not is_in:
            assert long < 1e-6  # a nudge, and no scaled-down canary
            continue
        assert along == pytest.approx(long, rel=1e-5)
        wanted = before if length is None else length if length > 100 else 10 * before
        assert long == pytest.approx(wanted, rel=1e-4)
    told = [one.text for one in audited.limitations if "times as long as the update" in one.text]
    assert len(told) == (length is not None)
    if told:
        assert caplog.text.index("times as long") < caplog.text.index("[ROUND 1/1]")
        assert ("or as the clip norm 50" in told[0]) == (length == 500.0)
        assert "they distort the model" in told[0]


def clip_per_row(message: Message, context: Any, call_next: Any) -> Message:
    """Clip every row on its own to norm 6, and add noise for a joint norm of 6: a known bug."""
    reply: Message = call_next(message, context)
    sent, made = wire.arrays(message.content), dict(wire.arrays(reply.content))
    rng = np.random.default_rng(context.node_id)
    for name in "wb":
        update = made[name].numpy() - sent[name].numpy()
        parts = update.reshape(len(update), -1)
        parts = parts * np.minimum(1, 6 / np.linalg.norm(parts, axis=1, keepdims=True))
        noisy = parts.reshape(update.shape) + 5 * rng.standard_normal(update.shape)
        made[name] = Array((sent[name].numpy() + noisy).astype(made[name].dtype))
    return wire.replace_arrays(reply, ArrayRecord(made))


def test_a_clip_per_row_shows_more_with_a_claim_than_without(federation: Any) -> None:
    values = []
    for claims in ((), (Claim(10.0, clip_norm=6.0),)):
        of = federation(CLIENTS, mods=[clip_per_row, canary_mod], identity=False)
        auditor = SingleUpdates(seats=11, include="all")
        run(of, [auditor], 1, claims=claims)
        values.append(float(np.nanmean(auditor._cosines)))
    assert values[1] > 2 * values[0]
