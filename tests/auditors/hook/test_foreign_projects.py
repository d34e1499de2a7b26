"""Other people's projects: the audit works, or says why not, and the training goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    Result,
    Strategy,
)

from leakmeter.auditors import (
    Audited,
    Auditor,
    DrawPlan,
    Finding,
    LikelihoodRatio,
    MutualInformation,
    OneShotCanaries,
    ReplaySampler,
    RoundView,
    SampleBudget,
    canary_mod,
)
from leakmeter.auditors.hook.run_audit import REPEATED, UNCOUNTED
from leakmeter.fl_app.report.read import read_runs
from leakmeter.strategies import Chosen
from leakmeter.strategies.chosen import FixedSize
from tests.guest.strategies import Controlled
from tests.helpers import strategies
from tests.helpers.federation import Drawing
from tests.helpers.findings import finding
from tests.helpers.numbers import first_fast
from tests.helpers.strategies import Counting, Piecemeal, TwoPhases

ROUNDS = 8
QUICK = SampleBudget(fit=30, candidates=6, pilot=10, trials=20)
pytestmark = pytest.mark.usefixtures("flower_draws")
ALL = {"min_train_nodes": 6, "min_available_nodes": 6, "fraction_evaluate": 0.0}

FEW = (
    "16 canaries in 8 rounds, of which about 8 take part: results vary widely, and estimates that "
    "fit a standard deviation are left out below 30; use more seats or rounds"
)


class Foreign(Drawing):
    """Clients that draw batches, and hold no integer array."""

    scale = 0.3

    def arrays(self) -> ArrayRecord:
        made = super().arrays()
        del made["n"]
        return made


@pytest.fixture
def foreign(flower_task: None) -> Any:  # noqa: ARG001
    """Return the maker of these federations."""
    return lambda **more: Foreign(**{"mods": [canary_mod], "identity": False, **more})


def panel() -> list[Auditor]:
    return [
        OneShotCanaries(seats=2),
        LikelihoodRatio(ReplaySampler(), budget=QUICK),
        MutualInformation(ReplaySampler(), every=0, plan=DrawPlan(draws=8, rank=2)),
    ]


def run(of: Any, strategy: Strategy, auditors: list[Auditor] | None = None) -> Audited:
    """Return an audited run."""
    audited = Audited(strategy, panel() if auditors is None else auditors, sends="models")
    result = audited.start(of.grid, of.arrays(), num_rounds=ROUNDS)
    assert len(result.train_metrics_clientapp) == ROUNDS
    return audited


def largest_bound(audited: Audited, auditor: str) -> float:
    found = [f for f in audited.findings() if f.auditor == auditor and f.kind == "lower_bound"]
    return max(f.value for f in found)


def limits(audited: Audited) -> list[str]:
    """Return what auditors cannot see here; that replays cost much is not at stake."""
    said = [one.text for one in audited.limitations]
    return [text for text in said if not text.startswith("the audit trains clients")]


@pytest.mark.parametrize(
    "make",
    first_fast(
        1,
        [
            lambda: FedAvg(**ALL),
            lambda: FedAvgM(server_momentum=0.9, **ALL),
            lambda: FedProx(proximal_mu=0.1, **ALL),
        ],
    ),
    ids=["FedAvg", "FedAvgM", "FedProx"],
)
def test_all_three_audits_work_around_flowers_strategies(
    foreign: Any, make: Callable[[], Strategy]
) -> None:
    audited = run(foreign(), make())
    assert audited.failures == []
    assert limits(audited) == [FEW]
    assert largest_bound(audited, "one-shot") > 0.5
    assert largest_bound(audited, "likelihood-ratio") > 0
    bits = [f for f in audited.findings() if f.auditor == "mutual-information"]
    assert bits[0].value > 0


def test_an_adaptive_optimiser_is_audited_and_said_to_blur_canaries(foreign: Any) -> None:
    audited = run(foreign(), FedAdam(eta=0.1, **ALL))
    assert audited.failures == []
    assert largest_bound(audited, "likelihood-ratio") > 0  # which looks at the mean itself
    assert limits(audited) == [
        FEW,
        "FedAdam scales every coordinate of the mean separately: an outsider who undoes that sees "
        "canaries more clearly than this audit does",
    ]


def dp(wrapper: Any, noise: float = 0.1, clip: float = 3.0) -> Strategy:
    """Return Flower's privacy wrapper around FedAvg."""
    name = "initial_clipping_norm" if "Adaptive" in wrapper.__name__ else "clipping_norm"
    options = {"noise_multiplier": noise, "num_sampled_clients": 6, name: clip}
    made: Strategy = wrapper(FedAvg(**ALL), **options)
    return made


def test_much_noise_of_flowers_wrapper_hides_the_canaries(foreign: Any) -> None:
    def bound(noise: float) -> float:
        strategy = dp(DifferentialPrivacyServerSideFixedClipping, noise=noise)
        audited = run(foreign(), strategy, [OneShotCanaries(seats=2)])
        assert audited.failures == []
        return largest_bound(audited, "one-shot")

    # A bound of 95 % confidence may be wrong in one run of twenty, so the draws are fixed.
    assert bound(noise=30.0) < 0.5
    assert bound(noise=0.01) > 2.0


def test_few_clients_a_round_and_flowers_default_minimum(foreign: Any) -> None:
    audited = run(foreign(), FedAvg(fraction_train=0.5, fraction_evaluate=0.0))
    assert audited.failures == []
    said = [one.text for one in audited.limitations]
    # Two of three clients play canaries: one is left, and it is not hidden by anybody.
    assert said == [
        FEW,
        "2 of the 3 clients of round 1 play canaries: the model learns only from 1; use fewer "
        "seats or more clients per round",
        "round 1 has 1 honest client and 2 canary seats: a sum hides a client only "
        "among others; not audited",
        "round 1 has 1 honest client and 2 canary seats: its update is the sum; nothing hides it",
        "produced no findings; this is not evidence of privacy",
    ]


class _Nodes(dict[int, Context]):
    """Contexts of nodes that have other ids than those of our own engine."""

    def keep(self, context: Context) -> None:
        self[context.node_id] = context


def test_nodes_with_long_ids_and_no_partition(foreign: Any) -> None:
    of, ids = foreign(), [2**64 - 1 - i for i in range(6)]  # Flower's are unsigned, of 64 bits
    app = of.grid._app

    def by_place(message: Message, context: Any) -> Message:
        place = ids.index(message.metadata.dst_node_id)
        assert not context.node_config
        context.node_config = {"partition-id": str(place)}  # the app's own way to its data
        reply = app(message, context)
        context.node_config = {}
        return reply

    of.grid._app = by_place
    nodes = {node: Context(1, node, {}, RecordDict(), {}) for node in ids}
    of.grid.get_node_ids, of.grid._contexts = lambda: ids, _Nodes(nodes)
    audited = run(of, FedAvg(**ALL))
    assert audited.failures == []
    assert largest_bound(audited, "one-shot") > 0.5


class OwnLoop(strategies.OwnLoop):
    """Has left out what it does not use of Flower's `start`."""

    def start(self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int) -> Result:
        return super().start(grid, initial_arrays, num_rounds)


def test_a_start_with_fewer_arguments_is_called_with_those_it_has(foreign: Any) -> None:
    assert not run(foreign(), OwnLoop(**ALL)).failures
    assert not run(foreign(), strategies.Through(OwnLoop(**ALL)), [Spy()]).failures
    of = foreign()
    with pytest.raises(TypeError, match="train_config"):  # asked for, so not dropped in silence
        Audited(OwnLoop(**ALL), [], sends="models").start(
            of.grid, of.arrays(), 1, train_config=ConfigRecord({"lr": 1.0})
        )


class Richer(FedAvg):
    """Has a loop of its own, whose two calls take and return more than Flower's."""

    def configure_train(self, *asked: Any, rate: float) -> Any:
        assert rate == 0.5
        return None if asked[0] == 2 else super().configure_train(*asked)

    def aggregate_train(self, server_round: int, replies: Any, grid: Any) -> Any:
        assert grid is not None
        arrays, _ = super().aggregate_train(server_round, replies)
        return arrays, MetricRecord({"large": 10**400}), "more"

    def start(self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3) -> Result:
        result = Result(arrays=initial_arrays)
        for r in range(1, num_rounds + 1):
            config = ConfigRecord()
            messages = self.configure_train(r, result.arrays, config, grid, rate=0.5)
            result.train_metrics_clientapp[r] = MetricRecord()
            if messages is not None:  # a round is skipped
                replies = grid.send_and_receive(messages)
                result.arrays, _, said = self.aggregate_train(r, replies, grid)
                assert said == "more"
        return result


def test_calls_that_take_and_return_more_than_flowers_are_handed_on(foreign: Any) -> None:
    spy = Spy()
    audited = run(foreign(), Richer(**ALL), [spy])
    assert not audited.failures
    assert spy.seen == [6] * (ROUNDS - 1)


class Elsewhere(FedAvg):
    """Trains without the two calls that Flower gives a strategy."""

    def start(self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3) -> Result:
        return Result(train_metrics_clientapp={r + 1: MetricRecord() for r in range(num_rounds)})


def test_a_loop_that_nobody_can_see_is_no_silent_success(foreign: Any) -> None:
    audited = run(foreign(), Elsewhere(**ALL))
    [failure] = audited.failures
    assert failure.startswith("the run was not audited: RuntimeError: the strategy's start never")
    assert not audited.findings()


class Spy(Auditor):
    name = "spy"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def observe(self, view: RoundView) -> list[Finding]:
        self.seen.append(len(view.replies))
        return []


def test_a_reply_that_cannot_be_read_is_left_out_of_the_audit_only(foreign: Any) -> None:
    def second(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 0:
            reply.content["control"] = ArrayRecord({"c": Array(np.zeros(2))})
        return reply

    spy = Spy()
    run(foreign(mods=[second]), Controlled(**ALL), [spy])
    assert spy.seen == [5] * ROUNDS


class Growing(FedAvg):
    """Returns a model of another shape after one of its rounds."""

    last = ROUNDS

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if server_round == self.last:
            arrays["b"] = Array(np.zeros(3))
        return arrays, metrics


@pytest.mark.parametrize("last", [1, ROUNDS])
def test_a_model_that_changes_its_shape_ends_the_audit_and_not_the_training(
    foreign: Any, last: int
) -> None:
    of, strategy, spy = foreign(), Growing(**ALL), Spy()
    strategy.last = last
    audited = Audited(strategy, [spy])
    assert audited.start(of.grid, of.arrays(), num_rounds=last).arrays["b"].shape == (3,)
    assert len(spy.seen) == last - 1
    [failure] = audited.failures
    seen = f"nothing is audited from round {last} on:" if last > 1 else "spy, round 1:"
    assert failure == (
        f"{seen} UnableError: the model has changed its arrays: array 'b' must have shape (12,), "
        "got (3,)"
    )
    assert (spy in audited.auditors) == (last > 1)  # what it has seen is reported


def test_without_masks_the_truth_is_what_was_sent_and_nobody_is_asked_for_it(foreign: Any) -> None:
    of = foreign()
    audited = run(of, FedAvg(**ALL), [LikelihoodRatio(ReplaySampler(), budget=QUICK)])
    assert [f for f in audited.findings() if f.quantity == "guess"]
    asked = [kind for kind, *_ in of.seen]
    # 8 rounds of 6; 6 candidates; of 5 others 6 for the fit, 3 for the pilot, 20 for trials.
    assert len(asked) == ROUNDS * 6 + 6 + (6 + 3 + 20) * 5


class Finds(Auditor):
    """Finds something in every round."""

    name = "finds"

    def observe(self, view: RoundView) -> list[Finding]:
        return [finding(server_round=view.server_round)]


def trained_alike(federation: Any, make: Callable[[], Strategy], out: Path) -> Audited:
    """Train for two rounds without and with an audit, which changes no bit; return the audit."""

    def trained(strategy: Strategy) -> dict[str, bytes]:
        fed = federation()
        arrays = strategy.start(fed.grid, fed.arrays(), 2).arrays
        return {name: array.numpy().tobytes() for name, array in arrays.items()}

    def chosen() -> Chosen:
        return Chosen(make(), FixedSize(6), num_clients=6, seed=1)

    run = Audited(chosen(), [Finds()], out=out)
    assert trained(run) == trained(chosen())
    return run


def rounds_of(run: Audited) -> list[int]:
    return [f.server_round for f in run.findings() if f.server_round is not None]


@pytest.mark.parametrize("strategy", [Piecemeal, TwoPhases])
def test_a_round_that_comes_twice_is_audited_once_and_said(
    federation: Any, tmp_path: Path, strategy: type[FedAvg]
) -> None:
    run = trained_alike(federation, strategy, tmp_path / "run")
    [read] = read_runs([tmp_path / "run"])  # a page can be made
    assert [line.server_round for line in read.rounds] == [1, 2]
    assert rounds_of(run) == [1, 2]
    assert [one.text for one in run.limitations] == [REPEATED]


@pytest.mark.parametrize(
    ("numbers", "audited"),
    [((0, 1), [1]), (np.arange(1, 3), [1, 2]), (("1", "2"), []), ((-1, 7), [7])],
)
def test_rounds_without_a_number_are_not_audited_and_said(
    federation: Any, tmp_path: Path, numbers: Any, audited: list[int]
) -> None:
    def counting() -> Counting:
        made = Counting()
        made.numbers = numbers
        return made

    run = trained_alike(federation, counting, tmp_path / "run")
    [read] = read_runs([tmp_path / "run"])
    assert [line.server_round for line in read.rounds] == audited
    assert rounds_of(run) == audited
    assert not run.failures
    said = UNCOUNTED in [one.text for one in run.limitations]
    assert said == (len(audited) < 2)
