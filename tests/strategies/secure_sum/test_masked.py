"""Whole rounds of secure aggregation around Flower's strategies, all clients in this process."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from leakmeter.auditors import Audited, Auditor, Finding, RoundView, canary_mod, tap_mod
from leakmeter.auditors.auditor import Canary, RoundFacts
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.finding import ThreatModel
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.wrapper import Wrapper
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from leakmeter.clients import MaskMod
from leakmeter.clients.secure_sum.keys import ClientSecrets
from leakmeter.clients.secure_sum.quantise import Quantiser, add_vectors
from leakmeter.clients.secure_sum.wire import put_by_number
from leakmeter.fl_app.engines.inline import run_inline
from leakmeter.strategies import Masked, Risks
from leakmeter.strategies.flower import ReadArray, restore_strategy, strategy_state
from leakmeter.strategies.secure_sum.masked import Tally
from leakmeter.strategies.secure_sum.sum_round import Exchange
from leakmeter.strategies.secure_sum.topology import Topology
from tests.helpers import federation
from tests.helpers.refusals import refuses

Arrays = dict[str, Any]
Reply = Callable[[Message], Message]

MODEL: Arrays = {"w": np.zeros((2, 3)), "b": np.array(0.25)}
SEED = 5
OUTSIDE = ("_fault", "mod", "watch", "count", "lie", "relay")  # mods of tests, before masks
SIMULATED = MaskMod(allow_tap=True, seed=SEED, outside=OUTSIDE)


def record(arrays: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


class Federation(federation.Federation):
    """Clients that add a fixed update of their own to the model, and may fail at any stage.

    Args:
        num: How many.
        faults: Client, round and stage to what it does with its reply: raise, or change it.
        update: Client to what it adds to every float array.
        weight: Client to its weight.
        metrics: Client to further metrics.
        mod: What masks.
        mods: What comes after it.
    """

    def __init__(
        self,
        num: int = 5,
        *,
        faults: Callable[[int, int, str], Reply | None] = lambda *_: None,
        update: Callable[[int], float] = lambda client: 0.1 * (client + 1),
        weight: Callable[[int], float] = lambda client: 10 * (client % 9 + 1),
        metrics: Callable[[int], dict[str, Any]] = lambda _: {},
        mod: Any = SIMULATED,
        mods: Sequence[Any] = (tap_mod, canary_mod),
    ) -> None:
        self.num, self.faults, self.update = num, faults, update
        self.weight, self.metrics = weight, metrics  # type: ignore[method-assign]
        super().__init__(num, mods=[self._fault, mod, *mods], identity=False)

    def _fault(self, message: Message, context: Context, call_next: Any) -> Message:
        order = wire.config(message.content, wire.MASK) or ConfigRecord()
        client = context.node_id - 1
        happens = self.faults(client, int(str(order.get("round", 0))), str(order.get("stage")))
        reply: Message = call_next(message, context)
        return happens(reply) if happens else reply

    def trained(self, client: int, arrays: ArrayRecord) -> Arrays:
        moved = {
            name: a.numpy() + np.asarray(self.update(client) * (a.numpy().dtype.kind == "f"))
            for name, a in arrays.items()
        }
        return {n: np.asarray(v, arrays[n].numpy().dtype) for n, v in moved.items()}

    def fedavg(self, kind: type[FedAvg] = FedAvg, **options: Any) -> FedAvg:
        inner = kind(min_train_nodes=self.num, min_available_nodes=self.num, **options)
        inner.fraction_evaluate = 0.0
        return inner

    def run(
        self,
        strategy: Strategy,
        rounds: int = 1,
        model: Mapping[str, Any] = MODEL,
        grid_of: Callable[[Grid], Grid] = lambda grid: grid,
    ) -> Result:
        """Run a strategy's own loop on these clients."""
        results: list[Result] = []
        server = ServerApp()

        @server.main()
        def main(grid: Grid, _: Context) -> None:
            results.append(
                strategy.start(grid_of(grid), record(model), num_rounds=rounds, timeout=5)
            )

        run_inline(server, self.app(), self.num)
        return results[0]

    def mean(self, clients: Iterable[int] | None = None) -> float:
        """Return the weighted mean of the updates, every coordinate the same."""
        who = list(range(self.num) if clients is None else clients)
        total = sum(self.weight(c) for c in who)
        return sum(self.weight(c) * self.update(c) for c in who) / total


def masked(clients: Federation, **options: Any) -> Masked:
    return made(clients.fedavg(), **{"max_weight": 100.0, "threshold": 3, **options})


def made(inner: Strategy, **options: Any) -> Masked:
    """Return the wrapper with the settings of its risks side by side with its own."""
    names = {f.name for f in fields(Risks)} & options.keys()
    risks = Risks(**{name: options.pop(name) for name in names})
    return Masked(inner, risks=risks, **options)


def played(clients: Federation, make: Callable[..., Masked] = masked, **options: Any) -> Masked:
    """Return the strategy of one round."""
    strategy = make(clients, **options)
    clients.run(strategy)
    return strategy


def raises(_: Message) -> Message:
    raise RuntimeError("gone")


def at(
    stage: str, who: Iterable[int], happens: Reply = raises, rounds: Iterable[int] = (1,)
) -> Callable[[int, int, str], Reply | None]:
    """Return faults of some clients at one stage."""
    cases = {(client, server_round, stage) for client in who for server_round in rounds}
    return lambda *case: happens if case in cases else None


def with_content(**records: Any) -> Reply:
    return lambda reply: _set(reply, records)


def with_order(**values: Any) -> Reply:
    return with_content(**{wire.MASK: ConfigRecord(values)})


def changed(change: Callable[[ConfigRecord], dict[str, Any]]) -> Callable[[Message], Message]:
    """Return a fault that changes the honest answer of a stage."""

    def happens(reply: Message) -> Message:
        order = reply.content[wire.MASK]
        reply.content = RecordDict({wire.MASK: ConfigRecord({**order, **change(order)})})
        return reply

    return happens


def _set(reply: Message, records: Mapping[str, Any]) -> Message:
    reply.content = RecordDict(dict(records))
    return reply


def check_mean(strategy: Masked, expected: float) -> None:
    aggregate, quantum = strategy.facts().aggregate, strategy.facts().quantum
    assert np.abs(aggregate - expected).max() <= quantum


# Who takes part, and who drops out when.


def test_a_round_gives_the_weighted_mean_to_the_quantisers_step() -> None:
    clients = Federation()
    strategy = masked(clients)
    result = clients.run(strategy)
    check_mean(strategy, clients.mean())
    assert strategy.facts().num_clients == 5
    assert strategy.facts().total_weight == 150.0
    assert strategy.facts().saturated == 0
    moved = result.arrays["w"].numpy()
    assert np.allclose(moved, clients.mean(), atol=2 * strategy.facts().quantum)
    assert np.allclose(result.arrays["b"].numpy(), 0.25 + clients.mean(), atol=1e-7)


def test_the_mean_is_the_same_bit_for_bit_as_that_of_the_unmasked_ring_sum() -> None:
    clients = Federation(faults=at("train", {1}), metrics=lambda c: {"loss": 0.5 * c})
    strategy = played(clients, metrics={"loss": (0.0, 4.0)}, bits=20)
    quantiser = Quantiser(
        clip_range=4.0, bits=20, max_clients=5, max_weight=100.0, metrics={"loss": (0.0, 4.0)}
    )
    start = Layout.of(record(MODEL)).flatten(record(MODEL))
    plain = [
        quantiser.encode(
            (start + clients.update(c)) - start,
            clients.weight(c),
            {"loss": 0.5 * c},
            stream(SEED, "rounding", 1, c),
        )
        for c in (0, 2, 3, 4)
    ]
    expected = quantiser.decode(add_vectors(plain, quantiser.ring))
    assert (strategy.facts().aggregate == expected.mean).all()
    assert strategy.facts().total_weight == expected.total_weight
    assert strategy.facts().quantum == expected.quantum


@pytest.mark.parametrize("stage", ["keys", "shares", "train", "unmask"])
@pytest.mark.parametrize("gone", [{1}, {1, 4}])
def test_up_to_the_threshold_may_drop_out_at_any_stage(stage: str, gone: set[int]) -> None:
    clients = Federation(faults=at(stage, gone))
    strategy = played(clients)
    left = [c for c in range(5) if c not in gone or stage == "unmask"]
    assert strategy.facts().num_clients == len(left)
    assert strategy.facts().total_weight == sum(clients.weight(c) for c in left)
    check_mean(strategy, clients.mean(left))


@pytest.mark.parametrize("stage", ["keys", "shares", "train", "unmask"])
def test_below_the_threshold_the_round_is_abandoned_and_the_next_goes_on(
    stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[RoundFacts] = []

    class Watch(Auditor):
        def observe(self, view: RoundView) -> Sequence[Finding]:
            seen.append(view.facts)
            assert (view.released == view.sent).all() == (view.facts.abandoned is not None)
            return ()

    clients = Federation(faults=at(stage, {0, 1, 2}, rounds=[2]))
    strategy = masked(clients)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = clients.run(Audited(strategy, [Watch()], sends="models"), rounds=3)
    assert [f.abandoned is None for f in seen] == [True, False, True]
    assert seen[1].aggregate is None
    assert (seen[1].num_clients, seen[1].total_weight) == (0, 0.0)
    said = [r.getMessage() for r in caplog.records if "abandoned" in r.getMessage()]
    assert len(said) == 1
    assert "the model stays as it is" in said[0]
    assert np.allclose(result.arrays["w"].numpy(), 2 * clients.mean(), atol=1e-6)


NOT_MASKING: dict[str, Any] = {"mod": lambda m, c, n: n(m, c), "mods": ()}


@pytest.mark.parametrize(
    ("options", "words", "stages"),
    [
        ({"num": 2}, ["2 clients were chosen, 3 are needed"], set()),
        ({"faults": "keys"}, ["0 of 5 clients have announced keys", "gone"], {"keys"}),
        (
            {"faults": "train"},
            ["0 clients have uploaded, 2 are needed"],
            {"keys", "shares", "train"},
        ),
        # The stage is named that the app could not answer.
        (NOT_MASKING, ["announced keys", "'keys'"], {"keys"}),
    ],
    ids=["two", "nobody", "no uploads", "no mod"],
)
def test_why_there_is_no_sum_is_said_and_nothing_further_is_asked(
    options: dict[str, Any], words: list[str], stages: set[str]
) -> None:
    gone = at(options.get("faults", "none"), range(5))
    asked: set[str] = set()

    def faults(client: int, server_round: int, stage: str) -> Reply | None:
        asked.add(stage)
        return gone(client, server_round, stage)

    strategy = played(Federation(**{**options, "faults": faults}))
    assert all(one in str(strategy.facts().abandoned) for one in words)
    assert asked == stages
    assert strategy.findings() == ()


def test_a_client_whose_policy_refuses_is_a_dropout() -> None:
    strict = MaskMod(min_peers=5, seed=SEED, outside=OUTSIDE)
    lenient = MaskMod(seed=SEED, outside=OUTSIDE)

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        return (strict if context.node_id == 3 else lenient)(message, context, call_next)

    clients = Federation(mod=mod)
    strategy = played(clients)
    check_mean(strategy, clients.mean([0, 1, 3, 4]))


# Replies that no client of ours would send.

GARBAGE = Array(dtype="uint32", shape=(9,), stype="numpy.ndarray", data=b"no array")
LENGTH = 7 + 2 + 2 * 2  # seven coordinates, two counts, weight and saturation in two digits each


def upload(array: np.ndarray[Any, Any]) -> Reply:
    return with_content(arrays=ArrayRecord({"masked": Array(array)}))


ZEROS = dict.fromkeys(range(1, 6), bytes(39))
MALFORMED: dict[tuple[str, str], Reply] = {
    ("keys", "nothing"): with_content(),
    ("keys", "another record"): with_content(other=ConfigRecord({"keys": bytes(96)})),
    ("keys", "short keys"): with_order(keys=bytes(95)),
    ("keys", "keys of another kind"): with_order(keys="text"),
    ("shares", "an empty record"): with_order(),
    ("shares", "no boxes"): with_order(**put_by_number("boxes", {})),
    ("shares", "boxes for some only"): with_order(**put_by_number("boxes", {1: b"", 2: b""})),
    ("train", "nothing"): with_content(),
    ("train", "a plain model"): with_content(arrays=record(MODEL)),
    ("train", "two records"): with_content(a=record(MODEL), b=record(MODEL)),
    ("train", "a longer vector"): upload(np.zeros(LENGTH + 1, np.uint32)),
    ("train", "garbage"): with_content(arrays=ArrayRecord({"masked": GARBAGE})),
    ("unmask", "nothing"): with_content(),
    ("unmask", "short shares"): with_order(**put_by_number("shares", {1: b"x", 2: b"y"})),
    ("unmask", "wrong shares"): with_order(**put_by_number("shares", ZEROS)),
}


@pytest.mark.parametrize(("stage", "form"), MALFORMED)
def test_a_malformed_reply_counts_as_a_dropout(stage: str, form: str) -> None:
    clients = Federation(faults=at(stage, {2}, MALFORMED[stage, form]))
    strategy = played(clients)
    assert strategy.facts().abandoned is None
    check_mean(strategy, clients.mean(range(5) if stage == "unmask" else [0, 1, 3, 4]))


@pytest.mark.parametrize(("update", "weight"), [(math.nan, 10), (0.1, 101)])
def test_a_clients_own_fault_keeps_it_out_of_the_sum(update: float, weight: float) -> None:
    odd = {
        "update": lambda c: update if c == 2 else 0.1,
        "weight": lambda c: weight if c == 2 else 10,
    }
    clients = Federation(**odd)
    strategy = played(clients)
    assert (strategy.facts().num_clients, strategy.facts().blank) == (4, 1)
    check_mean(strategy, clients.mean([0, 1, 3, 4]))
    [finding] = strategy.findings()
    assert finding.facts["updates that clients could not send"] == 1
    # Five survivors, of whom four have an update and one may collude.
    assert finding.value + finding.threat_model.colluders == 4


def lie(slot: int, amount: int) -> Reply:
    """Return a well-formed lie: something is added to one slot under the masks."""

    def change(reply: Message) -> Message:
        arrays = reply.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        vector = arrays["masked"].numpy().copy()
        vector[slot : slot + 1] += np.uint32(amount)  # an array wraps around, a scalar warns
        return _set(reply, {"arrays": ArrayRecord({"masked": Array(vector)})})

    return change


@pytest.mark.parametrize(
    ("slot", "amount", "reason"),
    [
        (0, 2**30, "largest sum in steps"),
        (3, 2**32 - 2**30, "smallest sum in steps"),
        (7, 1, "contributors"),
        (7, 2**32 - 1, "contributors"),
        (8, 2**32 - 1, "contributors without an update"),
        (8, 6, "contributors without an update"),
        (10, 2**6, "total weight"),  # the higher digit
        (11, 2**20, "saturated"),
    ],
)
def test_a_sum_that_no_honest_clients_can_have_ends_the_round(
    slot: int, amount: int, reason: str
) -> None:
    clients = Federation(faults=at("train", {2}, lie(slot, amount)))
    strategy = played(clients)
    assert "no honest one can" in strategy.facts().abandoned
    assert reason in strategy.facts().abandoned


def test_a_lie_within_the_limits_moves_the_mean_no_further_than_they_allow() -> None:
    step = 4.0 / ((2**31 - 1) // 5)
    for amount in (10**6, 10**8):
        clients = Federation(faults=at("train", {2}, lie(0, amount)))
        strategy = masked(clients)
        clients.run(strategy)
        moved = strategy.facts().aggregate[0] - clients.mean()
        # One step of the sum is step·max_weight/(total weight) of the mean.
        assert moved == pytest.approx(amount * step * 100 / 150, abs=strategy.facts().quantum)
        assert abs(strategy.facts().aggregate[0]) <= 4.0 + strategy.facts().quantum


# Arithmetic.


def test_metrics_inside_the_sum_are_averaged_and_others_are_dropped() -> None:
    clients = Federation(metrics=lambda c: {"loss": 0.5 * c, "secret": 7.0, "curve": [1.0, 2.0]})
    strategy = masked(clients, metrics={"loss": (0.0, 4.0)})
    result = clients.run(strategy)
    metrics = result.train_metrics_clientapp[1]
    assert set(metrics) == {"loss"}
    expected = sum(clients.weight(c) * 0.5 * c for c in range(5)) / 150
    assert metrics["loss"] == pytest.approx(expected, abs=1e-6)


def test_clipped_coordinates_are_counted_inside_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = Federation(update=lambda c: 9.0 if c in (1, 3) else 0.0, weight=lambda _: 10)
    strategy = masked(clients, clip_range=1.0)
    with caplog.at_level(logging.WARNING, "flwr"):
        clients.run(strategy)
    assert strategy.facts().saturated == 2 * 7
    assert any("14 coordinates were clipped" in r.getMessage() for r in caplog.records)
    check_mean(strategy, 2 / 5)


def test_weights_under_another_key_are_used() -> None:
    own = replace(SIMULATED, weight_key="mass")
    clients = Federation(metrics=lambda c: {"mass": 5.0 + c}, mod=own)
    inner = clients.fedavg(weighted_by_key="mass")
    strategy = made(inner, max_weight=10.0, threshold=3)
    clients.run(strategy)
    assert strategy.facts().total_weight == pytest.approx(35.0, abs=1e-6)


def test_a_largest_weight_that_is_too_small_says_what_to_do() -> None:
    clients = Federation(metrics=lambda c: {"num-examples": 200.0 + c, "loss": 1.0})
    strategy = played(clients, max_weight=100.0)
    assert "none of 5 clients had an update to send" in str(strategy.facts().abandoned)
    assert "max_weight of Masked is below their weights" in str(strategy.facts().abandoned)
    assert not strategy.facts().rejected


def test_integer_arrays_stay_as_sent_in_every_round_and_others_keep_their_type() -> None:
    whole = {"count": np.array(7), "flags": np.array([1, 2, 3], np.int32)}
    model = {**whole, **{f"w{b}": np.zeros(4, f"float{b}") for b in (16, 32, 64)}}
    clients = Federation()
    strategy = masked(clients)
    arrays = clients.run(strategy, rounds=3, model=model).arrays
    assert arrays["count"].numpy() == pytest.approx(7.0)
    assert arrays["flags"].numpy() == pytest.approx([1, 2, 3])
    assert strategy.facts().aggregate.shape == (12,)
    assert np.allclose(arrays["w64"].numpy(), 3 * clients.mean(), atol=1e-6)
    assert all(arrays[f"w{b}"].numpy().dtype == f"float{b}" for b in (16, 32, 64))


INNER: dict[str, tuple[dict[str, Any], float]] = {
    # How far one quantum in each round's mean can move the model after three rounds.
    "FedAvg": ({}, 3),
    "FedProx": ({"proximal_mu": 0.1}, 3),
    "FedAvgM": ({"server_momentum": 0.9, "server_learning_rate": 0.7}, 0.7 * (3 + 1.8 + 0.81)),
    # A step is η·m/(√v + τ), and m and √v move by about the quantum: 3·η/τ·(1 + |Δ|/τ).
    "FedAdam": ({"eta": 0.1, "tau": 0.1}, 3 * (1 + 0.4 / 0.1)),
    "FedYogi": ({"eta": 0.1, "tau": 0.1}, 3 * (1 + 0.4 / 0.1)),
    "FedAdagrad": ({"eta": 0.1, "tau": 0.1}, 3 * (1 + 0.4 / 0.1)),
}


@pytest.mark.parametrize("name", INNER)
def test_inner_strategies_agree_with_the_unmasked_run_to_the_quantisers_step(name: str) -> None:
    options, factor = INNER[name]
    kind = getattr(flower, name)
    model = {"w": np.zeros((2, 3)), "b": np.array([0.25])}
    clients = Federation()
    strategy = made(clients.fedavg(kind, **options), max_weight=100.0, threshold=3, bits=16)
    with_masks = clients.run(strategy, rounds=3, model=model).arrays
    plain = Federation(mod=MaskMod(required=False, outside=OUTSIDE))
    without = plain.run(plain.fedavg(kind, **options), rounds=3, model=model).arrays
    gaps = [np.abs(with_masks[n].numpy() - without[n].numpy()).max() for n in model]
    assert max(gaps) <= factor * strategy.facts().quantum + 1e-12
    assert max(gaps) > 0  # the comparison sees the rounding


# Graphs and settings.


@pytest.mark.parametrize("stage", ["keys", "shares", "train", "unmask"])
def test_a_sparse_graph_gives_the_same_mean_with_dropouts(stage: str) -> None:
    clients = Federation(num=14, update=lambda c: 0.01 * c, faults=at(stage, {3}))
    strategy = played(clients, neighbours=6, threshold=4, max_abort=1.0, max_exposure=1.0)
    assert strategy.facts().abandoned is None
    check_mean(strategy, clients.mean(c for c in range(14) if stage == "unmask" or c != 3))


def test_the_computed_graph_is_printed_with_its_risks(caplog: pytest.LogCaptureFixture) -> None:
    clients = Federation(num=40, weight=lambda _: 1)
    strategy = masked(clients, neighbours="auto")
    with caplog.at_level(logging.INFO, "flwr"):
        clients.run(strategy)
    check_mean(strategy, clients.mean())
    assert any("P(abort) ≤" in r.getMessage() for r in caplog.records)
    plan = Topology(neighbours="auto").plan(40)
    assert 2 * plan.threshold > plan.holders


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("threshold", {"threshold": 6}),
        ("threshold", {"threshold": 2}),
        ("threshold", {"threshold": 3, "colluders": 1}),
        ("threshold", {"threshold": 5, "colluders": 4}),
        ("degree", {"neighbours": 3}),
    ],
)
def test_settings_that_do_not_fit_the_first_cohort_are_a_mistake(
    name: str, options: dict[str, Any]
) -> None:
    clients = Federation()
    with refuses(name):
        clients.run(masked(clients, **options))
    assert not clients.seen


def test_a_ring_too_small_for_the_cohort_is_refused_before_anything_is_sent() -> None:
    asked: list[str] = []
    clients = Federation(num=130, faults=lambda _, __, stage: asked.append(stage))
    with refuses("max_clients"):
        clients.run(masked(clients, bits=8, threshold=0.6))
    assert not asked


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"threshold": 0.5}, "threshold"),
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": 1}, "threshold"),
        ({"neighbours": "some"}, "neighbours"),
        ({"neighbours": 1}, "neighbours"),
        ({"colluders": -1}, "colluders"),
        ({"bits": 65}, "bits"),
        ({"metrics": {"num-examples": (0.0, 1.0)}}, "metrics"),
    ],
)
def test_impossible_settings_are_refused_when_they_are_made(
    options: dict[str, Any], reason: str
) -> None:
    with refuses(reason):
        made(FedAvg(), **options)


REFUSED: dict[str, Callable[[], Strategy]] = {
    "Krum": lambda: flower.Krum(num_malicious_nodes=1),
    "MultiKrum": lambda: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": lambda: flower.Bulyan(num_malicious_nodes=1),
    "FedMedian": flower.FedMedian,
    "FedTrimmedAvg": flower.FedTrimmedAvg,
    "QFedAvg": lambda: flower.QFedAvg(client_learning_rate=0.1),
    "FedXgbBagging": flower.FedXgbBagging,
    "FedXgbCyclic": flower.FedXgbCyclic,
    "DifferentialPrivacyServerSideFixedClipping": lambda: (
        flower.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 5)
    ),
    "DifferentialPrivacyServerSideAdaptiveClipping": lambda: (
        flower.DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 1.0, 100)
    ),
    "DifferentialPrivacyClientSideAdaptiveClipping": lambda: (
        flower.DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), 1.0, 100)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_strategy_that_needs_single_replies_is_refused_with_the_reason(name: str) -> None:
    reason = f"must need only the weighted mean inside Masked, got {name}: (it|a|its|trimm|tree)"
    for strategy in (REFUSED[name](), Wrapper(REFUSED[name]())):
        with pytest.raises(TypeError, match=reason):
            Masked(strategy)


def test_every_strategy_of_flowers_is_either_tried_or_refused() -> None:
    # A new one in another release should be looked at, not let through.
    mean_only = {*INNER, "DifferentialPrivacyClientSideFixedClipping", "Result", "Strategy"}
    assert set(flower.__all__) <= mean_only | set(REFUSED)


def test_client_evaluation_beside_masking_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    clients = Federation()
    strategy = masked(clients)
    strategy.strategy.fraction_evaluate = 1.0  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "flwr"):
        clients.run(strategy, rounds=2)
    said = [r for r in caplog.records if "one by one, in clear" in r.getMessage()]
    assert len(said) == 1


# What the audit sees.


class Watching(Auditor):
    """Keeps the views, and may give canaries to some clients."""

    name = "watching"
    wants_truth = True

    def __init__(self, orders: Mapping[int, Canary] | None = None) -> None:
        self.views: list[RoundView] = []
        self.copies: list[dict[int, Any]] = []
        self._orders = dict(orders or {})

    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        return {c: o for c, o in self._orders.items() if c in chosen}

    def observe(self, view: RoundView) -> Sequence[Finding]:
        self.views.append(view)
        self.copies.append({c: np.array(v) for c, v in view.replies.items()})
        return ()


def test_the_auditor_is_shown_masked_vectors_and_complete_facts() -> None:
    clients = Federation(faults=at("train", {4}))
    watching = Watching()
    strategy = masked(clients)
    clients.run(Audited(strategy, [watching], sends="models"), rounds=2)
    view = watching.views[0]
    assert sorted(view.replies) == [0, 1, 2, 3]
    for vector in watching.copies[0].values():
        assert vector.shape == (LENGTH,)
        assert ((vector >= 0) & (vector < 2**32) & (vector == np.floor(vector))).all()
        # An honest coordinate is at most 4·w/100 of the ring's fifth; under the mask it is not.
        assert vector.max() > 2**24
    facts = view.facts
    assert facts.aggregate is not None
    assert np.allclose(facts.aggregate, clients.mean(range(4)), atol=facts.quantum or 0)
    known = {f.name for f in fields(RoundFacts) if getattr(facts, f.name) is not None}
    assert known == {
        *("aggregate", "num_clients", "total_weight", "quantum"),
        *("saturated", "coordinates", "asked", "blank"),
    }
    assert (facts.coordinates, facts.asked) == (4 * 7, 5)
    assert sorted(view.truth) == [0, 1, 2, 3]
    for client, update in view.truth.items():
        assert np.allclose(update, clients.update(client))
    for client, vector in watching.copies[0].items():
        if client in watching.copies[1]:
            assert (vector != watching.copies[1][client]).any()


def test_a_canary_plays_under_the_masks() -> None:
    orders = {0: Canary(id=3, seed=9, norm=0.5), 2: Canary(id=4, seed=9, included=False)}
    clients = Federation()
    watching = Watching(orders)
    strategy = masked(clients)
    clients.run(Audited(strategy, [watching], sends="models"))
    sent = {c: np.full(7, clients.update(c)) for c in (1, 3, 4)}
    sent |= {0: 0.5 * canary_vector(9, 3, 7), 2: np.zeros(7)}
    expected = sum(clients.weight(c) * update for c, update in sent.items()) / 150
    view = watching.views[0]
    assert view.facts.aggregate is not None
    assert np.abs(view.facts.aggregate - expected).max() <= (view.facts.quantum or 0)
    assert view.instructed == orders


def test_the_finding_says_what_is_hidden_from_whom_and_what_is_not() -> None:
    clients = Federation(faults=at("train", {0}, rounds=[2]))
    strategy = masked(clients, threshold=4)
    assert strategy.findings() == ()
    audited = Audited(strategy, [], sends="models")
    clients.run(audited, rounds=3)
    (finding,) = audited.findings()
    assert finding.kind == "guarantee"
    assert finding.quantity == "honest clients in the smallest sum"
    assert finding.threat_model == ThreatModel(
        observer="server", sees="round sum", knows_cohort=True, colluders=2
    )
    assert finding.value == 4.0 - 2.0
    assert finding.assumptions == (
        Assumption.HONEST_RELAY,
        Assumption.COMPUTATIONAL,
        Assumption.SUM_NOT_JUDGED,
    )
    assert finding.facts == {
        "rounds": 3,
        "abandoned": 0,
        "clients in the smallest sum": 4,
        "dropouts in stage train": 1,
    }
    json.dumps(finding.to_json())


def test_neither_canary_seats_nor_colluders_are_honest_clients() -> None:
    # Six clients, two of them seats, threshold 5: 2·5 − 6 − 1 = 3 colluders would leave one.
    orders = {0: Canary(id=3, seed=9, norm=0.5), 2: Canary(id=4, seed=9, included=False)}
    clients = Federation(num=6)
    audited = Audited(masked(clients, threshold=5), [Watching(orders)], sends="models")
    clients.run(audited)
    [finding] = audited.findings()
    assert finding.facts["clients in the smallest sum"] == 6
    assert (finding.threat_model.colluders, finding.value) == (2, 2.0)
    # 2·3 − 3 − 1 = 2 colluders of three clients would leave one alone, too.
    [few] = played(Federation(num=3), threshold=3).findings()
    assert (few.threat_model.colluders, few.value) == (1, 2.0)


def test_the_finding_of_a_sparse_graph_states_its_chance() -> None:
    clients = Federation(num=14)
    options = {"max_abort": 1.0, "max_exposure": 1.0, "dropout_rate": 0.2}
    strategy = masked(clients, neighbours=6, threshold=5, **options)
    clients.run(strategy, rounds=2)
    [finding] = strategy.findings()
    assert Assumption.RATES_FIXED_BEFOREHAND in finding.assumptions
    assert finding.facts["largest dropout rate"] == 0.2
    assert finding.facts["largest collusion rate"] == 0.05
    assert 0 <= finding.facts["chance that a client was exposed"] <= 2
    # 2·5 − 7 − 1 = 2 of a neighbourhood, above one in twenty of fourteen.
    assert (finding.threat_model.colluders, finding.value) == (2, 12.0)


# State.


def test_an_interrupted_run_goes_on_with_layout_and_tally() -> None:
    model = {"count": np.array(7), **MODEL}
    clients = Federation(faults=at("train", {0}, rounds=[1]))
    first = masked(clients)
    before = clients.run(first, rounds=2, model=model)
    state = json.loads(json.dumps(strategy_state(first)))
    again = masked(clients)
    restore_strategy(again, state)
    assert again.state() == first.state()
    # FedAvg has made the counter a float: a layout taken from this record would have it inside.
    assert before.arrays["count"].numpy().dtype.kind == "f"
    clients.run(again, model={n: a.numpy() for n, a in before.arrays.items()})
    assert again.facts().aggregate.shape == (7,)
    facts = again.findings()[0].facts
    assert (facts["clients in the smallest sum"], facts["rounds"]) == (4, 3)


def test_a_second_start_in_one_run_is_no_replay() -> None:
    clients = Federation()
    strategy = masked(clients)
    facts = []

    server = ServerApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        for start in (MODEL, MODEL):
            strategy.start(grid, record(start), num_rounds=2)
            facts.append(strategy.facts())

    run_inline(server, clients.app(), clients.num)
    assert all(f.abandoned is None for f in facts)


def test_secrets_reach_neither_logs_nor_records(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[ClientSecrets] = []
    generate = ClientSecrets.generate

    def remember() -> ClientSecrets:
        drawn.append(generate())
        return drawn[-1]

    monkeypatch.setattr(ClientSecrets, "generate", remember)
    clients = Federation(faults=at("unmask", {4}))
    strategy = masked(clients)
    audited = Audited(strategy, [Watching()], sends="models")
    with caplog.at_level(logging.DEBUG):
        result = clients.run(audited, rounds=2)
    assert len(drawn) == 10
    texts = [caplog.text, repr(result), repr(strategy.state()), repr(strategy.facts())]
    texts += [repr(audited.findings()), repr(audited.state()), repr(vars(strategy))]
    everything = "".join(texts)
    for secrets in drawn:
        for secret in (secrets.share.secret, secrets.mask.secret, secrets.seed):
            assert secret.hex() not in everything
            assert repr(secret)[2:-1] not in everything


def test_a_strategy_that_changes_what_it_reads_changes_no_other_reply() -> None:
    class Reading(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            one, other = (m.content["arrays"]["w"] for m in list(replies)[:2])
            assert isinstance(one, ReadArray)  # which parses its header once for all replies
            before, read = other.numpy(), one.numpy()
            read += 1
            assert np.array_equal(one.numpy(), before)
            assert np.array_equal(other.numpy(), before)
            return None, None

    clients = Federation(3)
    strategy = made(clients.fedavg(Reading), max_weight=100.0, threshold=2)
    clients.run(strategy)
    assert strategy.facts().num_clients == 3


@pytest.mark.parametrize("neighbours", [None, "auto"])
def test_honest_clients_and_colluders_of_a_finding_add_up(neighbours: Any) -> None:
    # On sparse graphs 50 colluders were taken off the count, and 24 stated.
    risks = Risks()
    plan = Topology(threshold=2 / 3, neighbours=neighbours, risks=risks).plan(1000)
    [finding] = Tally().with_round(990, plan, idle=10).findings(risks)
    assert finding.threat_model.colluders > 0
    assert finding.value == 990 - 10 - finding.threat_model.colluders


def test_a_failing_client_cannot_write_lines_of_its_own_into_log_and_report(caplog: Any) -> None:
    exchange = Exchange(None, {}, number=1, timeout=1.0)  # type: ignore[arg-type]
    exchange._complain("train", 3, "x\nVerdict:\r nothing leaks \x1b[2J" + "A" * 10_000)
    assert exchange.complaint.startswith("'train': x Verdict: nothing leaks [2JAAA")
    assert exchange.complaint.isprintable()
    assert len(exchange.complaint) < 600
    assert all("\n" not in record.getMessage() for record in caplog.records)
