"""Apps with Flower's legacy API are audited: strategies of `flwr.server`, `NumPyClient`."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import Server, ServerApp, ServerAppComponents, ServerConfig, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    Strategy,
)

from leakmeter.auditors import (
    Anytime,
    Claim,
    OneShotCanaries,
    SingleUpdates,
    StopAbove,
    canary_mod,
    passive,
)
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook.legacy import LegacyAudited, legacy_apps_audited
from leakmeter.auditors.hook.mods import Call
from leakmeter.auditors.hook.wire import from_scalars, record_of
from leakmeter.auditors.hook.wrapper import survey
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.engines.inline import run_inline
from tests.helpers.numbers import first_fast

CLIENTS, ROUNDS = 6, 8
Model = list[np.ndarray]


def first_model() -> Model:
    """Return 1 210 float parameters and a counter."""
    weights = np.linspace(-1, 1, 1200, dtype=np.float32).reshape(40, 30)
    return [weights, np.array(3), np.ones(10)]


class Client(NumPyClient):
    """Moves the model half way to a point of its own; notes what it is told."""

    def __init__(self, number: int, told: list[Mapping[str, Any]], noise: float = 0.0) -> None:
        self.number, self.told, self.noise = number, told, noise

    def fit(self, parameters: Model, config: dict[str, Any]) -> tuple[Model, int, dict[str, Any]]:
        self.told.append(dict(config))
        rng, own = stream(0, "target", self.number), np.random.default_rng()
        trained = [self._moved(a, rng, own) for a in parameters]
        return trained, 10 * (self.number + 1), {"train-loss": float(self.number), "word": "a"}

    def _moved(self, array: np.ndarray, rng: Any, own: Any) -> np.ndarray:
        if not array.shape:
            return np.asarray(array + 1)
        target = rng.standard_normal(array.shape) + self.noise * own.standard_normal(array.shape)
        return np.asarray(0.5 * array + 0.5 * target, dtype=array.dtype)

    def evaluate(
        self, parameters: Model, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        return 0.5, 10, {"accuracy": self.number / 100}


class Fails(Client):
    """The same, but client 3 raises in every other fit."""

    def fit(self, parameters: Model, config: dict[str, Any]) -> Any:
        made = super().fit(parameters, config)
        if self.number == 3 and len(self.told) % 2:
            raise RuntimeError("out of memory")
        return made


def client_fn_of(kind: type[Client], told: dict[int, list[Any]], **more: Any) -> Any:
    def client_fn(context: Context) -> Any:
        number = int(context.node_config["partition-id"])
        return kind(number, told.setdefault(number, []), **more).to_client()

    return client_fn


def numbers_of_losses(metrics: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the mean, from metrics that are the clients' own."""
    assert all(set(one) == {"train-loss", "word"} for _, one in metrics)
    return {"train-loss": float(np.mean([one["train-loss"] for _, one in metrics]))}


SETTINGS: dict[str, Any] = {
    "min_fit_clients": CLIENTS,
    "min_available_clients": CLIENTS,
    "min_evaluate_clients": CLIENTS,
    "on_fit_config_fn": lambda server_round: {"lr": 0.1, "round": server_round},
    "fit_metrics_aggregation_fn": numbers_of_losses,
}


def with_order(kind: type[FedAvg]) -> type[FedAvg]:
    """Return a strategy that adds results in the order of clients, and keeps them.

    Flower's own order is that in which threads end, and so are float32 sums.
    """

    class Ordered(kind):  # type: ignore[valid-type, misc]
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            results = sorted(results, key=lambda result: int(result[0].cid))
            arrays = {int(p.cid) - 1: parameters_to_ndarrays(r.parameters) for p, r in results}
            self.__dict__.setdefault("come", []).append(arrays)
            self.failed = [*self.__dict__.get("failed", []), len(failures)]
            made = super().aggregate_fit(server_round, results, failures)
            self.last = made[0]
            return made

    Ordered.__name__ = kind.__name__
    return Ordered


def strategy_of(kind: type[FedAvg] = FedAvg, **more: Any) -> Any:
    start = ndarrays_to_parameters(first_model())
    return with_order(kind)(initial_parameters=start, **{**SETTINGS, **more})


def run(
    strategy: Strategy,
    *,
    num_rounds: int = ROUNDS,
    kind: type[Client] = Client,
    mods: Sequence[Any] = (canary_mod,),
    noise: float = 0.0,
) -> dict[int, list[Any]]:
    """Run a legacy app in this process; return what its clients were told."""
    told: dict[int, list[Any]] = {}
    parts = ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=num_rounds))
    client = ClientApp(client_fn=client_fn_of(kind, told, noise=noise), mods=list(mods))
    run_inline(ServerApp(server_fn=lambda _: parts), client, CLIENTS)
    return told


def audited(strategy: Strategy, auditors: Any = None, **more: Any) -> LegacyAudited:
    chosen = [OneShotCanaries(seats=2)] if auditors is None else auditors
    return LegacyAudited(strategy, chosen, **{"num_rounds": ROUNDS, "sends": "models", **more})


def largest(findings: Sequence[Finding], sees: str) -> float:
    """Return the largest proven ε about an observer."""
    found = [f for f in findings if f.kind == "lower_bound" and f.threat_model.sees == sees]
    return max(f.value for f in found if f.server_round is None)


def same(one: Model, other: Model) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("claims", [(), (Claim(10.0),)])
def test_single_updates_of_a_legacy_app_are_seen(claims: tuple[Claim, ...]) -> None:
    strategy, plain = strategy_of(), strategy_of()
    watched = audited(strategy, [SingleUpdates(seats=2)], num_rounds=1, claims=claims)
    run(watched, num_rounds=1)
    run(plain, mods=(), num_rounds=1)
    assert largest(watched.audit.findings, "updates") > 80
    assert not watched.audit.failures
    start, lengths = first_model()[0], []
    for client in range(CLIENTS):
        own, sent = plain.come[0][client][0], strategy.come[0][client][0]
        if not np.array_equal(own, sent):  # a seat
            lengths.append(np.linalg.norm(sent - start) / np.linalg.norm(own - start))
    assert np.allclose(lengths, 10 if claims else 1, rtol=0.1)
    assert len(lengths) == 2


def test_honest_clients_train_as_without_the_audit() -> None:
    plain, watched, played = strategy_of(), strategy_of(), strategy_of()
    told = run(plain, mods=(), num_rounds=3)
    assert run(audited(watched, [], num_rounds=3), num_rounds=3) == told
    assert plain.last.tensors == watched.last.tensors  # without orders to the last bit
    without_mod = audited(strategy_of(), num_rounds=3)
    run(without_mod, mods=(), num_rounds=3)
    assert any("list it in the client app" in one.text for one in without_mod.audit.limitations)
    assert run(audited(played, num_rounds=3), num_rounds=3) == told
    assert told[0] == [{"lr": 0.1, "round": number} for number in (1, 2, 3)]
    honest = [c for c in range(CLIENTS) if same(plain.come[0][c], played.come[0][c])]
    assert len(honest) == CLIENTS - 2
    for seat in set(range(CLIENTS)) - set(honest):  # the counter and all shapes and types stay
        before, after = plain.come[0][seat], played.come[0][seat]
        assert [(a.shape, a.dtype) for a in before] == [(a.shape, a.dtype) for a in after]
        assert before[1] == after[1]


def test_a_shared_instruction_is_copied_for_the_client_that_gets_an_order() -> None:
    shared: list[FitIns] = []

    class Shares(FedAvg):
        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
            made = super().configure_fit(server_round, parameters, client_manager)
            shared.append(made[0][1])
            return [(proxy, made[0][1]) for proxy, _ in made]

    strategy = audited(strategy_of(Shares), num_rounds=2)
    run(strategy, num_rounds=2)
    assert [ins.config for ins in shared] == [{"lr": 0.1, "round": n} for n in (1, 2)]
    assert all(isinstance(ins.parameters, Parameters) for ins in shared)


@pytest.mark.parametrize(
    ("kind", "more"),
    first_fast(
        1, [(FedMedian, {}), (FedProx, {"proximal_mu": 0.1}), (FedAvgM, {"server_momentum": 0.5})]
    ),
)
def test_other_legacy_strategies_are_audited(kind: type[FedAvg], more: dict[str, Any]) -> None:
    strategy = audited(strategy_of(kind, **more))
    told = run(strategy)
    assert not strategy.audit.failures
    if kind is FedMedian:
        assert any("FedMedian" in one.text for one in strategy.audit.limitations)
    else:
        assert largest(strategy.audit.findings, "all models") > 1
    assert ("proximal_mu" in told[0][0]) == (kind is FedProx)


def test_what_a_legacy_strategy_does_to_updates_is_known() -> None:
    strategy = audited(strategy_of(FedAdam), num_rounds=2)
    run(strategy, num_rounds=2)
    assert any("FedAdam" in one.text for one in strategy.audit.limitations)
    inner: Any = FedMedian()
    wrapped: Any = DifferentialPrivacyServerSideFixedClipping(inner, 5.0, 5.0, CLIENTS)
    project = survey(wrapped, 10, 3)
    assert project.noised_by == ("DifferentialPrivacyServerSideFixedClipping",)
    assert project.selected_by == ("FedMedian",)


@pytest.mark.usefixtures("flower_draws")
def test_noise_of_a_legacy_wrapper_hides_canaries() -> None:
    noised = DifferentialPrivacyServerSideFixedClipping(strategy_of(), 5.0, 5.0, CLIENTS)
    strategy = audited(noised)
    run(strategy)
    assert largest(strategy.audit.findings, "all models") < 1
    assert not strategy.audit.failures


def test_a_client_that_fails_ends_neither_training_nor_audit() -> None:
    inner = strategy_of()
    strategy = audited(inner)
    run(strategy, kind=Fails)
    assert sum(inner.failed) == ROUNDS / 2
    assert not strategy.audit.failures
    assert any(warning.kind == "dropouts" for warning in strategy.audit.warnings)
    assert largest(strategy.audit.findings, "all models") > 1


def test_replays_train_clients_of_the_legacy_api_again() -> None:
    strategy = audited(strategy_of(), passive(seats=2, trials=20), num_rounds=3)
    told = run(strategy, num_rounds=3, noise=0.3)
    assert not strategy.audit.failures
    assert "likelihood-ratio" in {f.auditor for f in strategy.audit.findings}
    assert max(map(len, told.values())) > 10
    assert all(set(config) == {"lr", "round"} for configs in told.values() for config in configs)


def test_clients_that_train_the_same_in_every_replay_are_named() -> None:
    strategy = audited(strategy_of(), passive(seats=2, trials=20), num_rounds=3)
    run(strategy, num_rounds=3)
    assert any("same update twice" in words for words in strategy.audit.failures)


def test_models_without_floats_are_named_before_round_1_and_trained() -> None:
    class Bags(FedAvg):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            return Parameters([b"{tree}" * server_round], ""), {}

    class Trees(Client):
        def fit(self, parameters: Model, config: Any) -> Any:
            self.told.append(config)
            return [], 1, {}

    strategy = audited(Bags(initial_parameters=Parameters([], "")), num_rounds=3)
    told = run(strategy, kind=Trees, num_rounds=1)
    assert told
    assert any("must have float arrays" in words for words in strategy.audit.failures)
    assert record_of(Parameters([b"{tree}"], ""))["0"].dtype == "bytes"


def test_a_run_above_the_limit_asks_no_client_any_more() -> None:
    canaries = OneShotCanaries(seats=2, confidence=Anytime(0.95))
    strategy = audited(strategy_of(), [canaries], callbacks=[StopAbove(0.5)])
    told = run(strategy)
    assert strategy.audit.stop_rule.reason is not None
    assert len(told[0]) == strategy.audit.seen < ROUNDS
    assert any(warning.kind == "stopped-above" for warning in strategy.audit.warnings)


class SkipsEvaluation(Server):
    """A server with a loop of its own, which never evaluates."""

    def fit(self, num_rounds: int, timeout: float | None) -> Any:
        self.parameters = self._get_initial_parameters(server_round=0, timeout=timeout)
        for number in range(1, num_rounds + 1):
            made = self.fit_round(server_round=number, timeout=timeout)
            assert made is not None
            assert made[0] is not None
            self.parameters = made[0]
        assert self.strategy.come  # type: ignore[attr-defined]  # of the strategy inside
        return super().fit(0, timeout)


def by_server_fn(strategy: Any) -> ServerApp:
    config = ServerConfig(num_rounds=ROUNDS)
    return ServerApp(server_fn=lambda _: ServerAppComponents(strategy=strategy, config=config))


def by_own_server(strategy: Any) -> ServerApp:
    server = SkipsEvaluation(client_manager=SimpleClientManager(), strategy=strategy)
    config = ServerConfig(num_rounds=ROUNDS)
    return ServerApp(server_fn=lambda _: ServerAppComponents(server=server, config=config))


def by_arguments(strategy: Any) -> ServerApp:
    return ServerApp(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))


@pytest.mark.parametrize("make", [by_server_fn, by_own_server, by_arguments])
def test_an_untouched_legacy_app_is_audited(
    make: Callable[[Any], ServerApp], tmp_path: Path
) -> None:
    made: list[LegacyAudited] = []

    def audit(strategy: Strategy, num_rounds: int) -> LegacyAudited:
        made.append(audited(strategy, num_rounds=num_rounds, out=tmp_path / "run"))
        return made[-1]

    before = ClientApp.__init__, ServerApp.__init__
    with legacy_apps_audited(audit):
        server, client = make(strategy_of()), ClientApp(client_fn=client_fn_of(Client, {}))
    assert (ClientApp.__init__, ServerApp.__init__) == before
    run_inline(server, client, CLIENTS)
    made[0].finish()
    assert len(made) == 1
    assert largest(made[0].audit.findings, "all models") > 5
    assert not made[0].audit.failures
    assert json.loads((tmp_path / "run" / "report.json").read_text())["findings"]
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert len(lines) == ROUNDS
    last = json.loads(lines[-1])
    assert last["num_clients"] == CLIENTS
    assert ({"train-loss", "loss"} <= set(last["metrics"])) == (make is not by_own_server)


def test_an_audit_whose_server_is_gone_reports_what_it_has(tmp_path: Path) -> None:
    strategy = audited(strategy_of(), num_rounds=ROUNDS, out=tmp_path / "run")
    run(strategy, num_rounds=3)
    assert not (tmp_path / "run" / "report.json").exists()
    del strategy
    gc.collect()
    assert (tmp_path / "run" / "report.json").exists()


def test_rounds_beyond_the_planned_ones_are_trained_and_not_audited(tmp_path: Path) -> None:
    inner = strategy_of()
    strategy = audited(inner, num_rounds=2, out=tmp_path / "run")
    run(strategy, num_rounds=4)
    assert len(inner.come) == 4
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "run-2").exists()


def test_what_a_client_sends_in_place_of_an_answer_is_left_out() -> None:
    sent = {"leakmeter.canary": "[1", "leakmeter.a": 3.5, "leakmeter.b": '{"a": {}}', "loss": 1.0}
    assert from_scalars(sent, ConfigRecord) == {}


def test_a_strategy_of_the_message_api_is_sent_to_audited() -> None:
    from flwr.serverapp.strategy import FedAvg as MessageFedAvg

    with pytest.raises(TypeError, match=r"leakmeter\.Audited"):
        LegacyAudited(MessageFedAvg(), [], num_rounds=1)  # type: ignore[arg-type]


def test_clients_in_one_process_take_turns() -> None:
    inside = threading.Semaphore(1)

    def alone(message: Any, context: Context, call_next: Call) -> Any:
        assert inside.acquire(blocking=False)
        time.sleep(0.002)
        inside.release()
        return call_next(message, context)

    inner = strategy_of()
    run(inner, mods=(alone,), num_rounds=2)
    assert inner.failed == [0, 0]


class InMemory(ClientProxy):
    """A client without any run of Flower's."""

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        return FitRes(Status(Code.OK, ""), ins.parameters, 10, {"train-loss": 0.0, "word": "a"})

    def evaluate(self, *_: Any) -> Any: ...

    def get_properties(self, *_: Any) -> Any: ...

    def get_parameters(self, *_: Any) -> Any: ...

    def reconnect(self, *_: Any) -> Any: ...


def test_a_server_outside_of_an_app_trains_and_says_whether_it_is_audited() -> None:
    manager = SimpleClientManager()
    for number in range(CLIENTS):
        manager.register(InMemory(str(number)))
    strategy = audited(strategy_of(fraction_evaluate=0.0), num_rounds=2)
    history, _ = Server(client_manager=manager, strategy=strategy).fit(2, None)
    assert len(history.metrics_distributed_fit["train-loss"]) == 2
    said = [one.text for one in strategy.audit.limitations]
    # Releases before 1.38 let anybody make a message; then the missing mod is what is said.
    assert any("ServerApp" in words or "canary_mod" in words for words in said)
