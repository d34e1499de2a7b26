"""Sizes: what is too large by itself or together is refused before anything is allocated."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leakmeter.fl_app.build import strategy as calibrate
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.config.settings import MODELS
from leakmeter.fl_app.engines import cluster
from leakmeter.fl_app.run import early
from leakmeter.fl_app.run.launch import check_nodes
from leakmeter.fl_app.run.run import preflight
from leakmeter.fl_app.task import load_task

HUGE = 99999999999999999999
MANY = {"clients": 10**5, "synthetic_examples": 10**5}


def test_every_number_has_an_upper_limit() -> None:
    for spec in fields(Config):
        if type(spec.default) in (int, float):
            with pytest.raises(ConfigError):
                Config(**{spec.name: type(spec.default)(1e31)})


def test_an_upper_limit_is_named_only_where_it_is_exceeded() -> None:
    with pytest.raises(ConfigError) as caught:
        Config(rounds=HUGE)
    assert str(caught.value) == f"--rounds must be at most 100000, got {HUGE}. Try --rounds 30."


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"synthetic_examples": 10**7, "synthetic_features": 10**4}, "GB of it for the records"),
        (
            {"synthetic_features": 10**6, "synthetic_classes": 10**5, "auditors": "none"},
            "the updates of a round",
        ),
        (
            {"clients": 10**6, "sample": 10**5, "rounds": 10**5, "synthetic_per_client": 9},
            "clients per round x rounds must be at most 1,000,000,000",
        ),
        (
            {**MANY, "synthetic_classes": 10**5, "partition": "dirichlet"},
            "clients x classes must be at most",
        ),
        (
            {**MANY, "sample": 10**5, "auditors": "none", "canary_seats": 0},
            "the shares of a secure sum",
        ),
        ({"synthetic_per_client": 10**6, "synthetic_features": 10**4}, "GB of it for the records"),
        ({"rounds": 10**5, "canary_repetitions": 1}, "canaries x rounds must be at most"),
        ({"lrt_fit": 10**6, "model": "mlp"}, "for likelihood-ratio, but this machine has"),
        (
            {"lrt_candidates": 10**5, "synthetic_features": 1, "synthetic_classes": 2},
            "for likelihood-ratio, but this machine has",
        ),
        ({"mi_draws": 10**6, "model": "mlp"}, "for mutual-information, but this machine has"),
    ],
)
def test_settings_too_large_together_are_refused_with_the_estimate(
    values: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "memory", lambda: 8 * 2**30)
    config = Config(**{"dataset": "synthetic", "model": "linear", **values})
    with pytest.raises(ConfigError, match=words) as caught:
        preflight(config)
    assert "lower --" in str(caught.value)


def test_sizes_are_checked_before_noise_is_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any) -> float:
        raise AssertionError("all rounds would be planned, many times")

    monkeypatch.setattr(calibrate, "_multiplier", never)
    sizes = ["--sample", "1000000", "--rounds", "100000", "--auditors", "none"]
    noise = ["--noise", "central", "--clip-norm", "1", "--target-epsilon", "1"]
    assert main([*sizes, *noise, "--out", str(tmp_path / "run")]) == 2
    assert "clients per round x rounds must be at most" in capsys.readouterr().err


def test_clients_that_are_generated_here_take_room_only_if_a_round_asks_them() -> None:
    many = Config(
        dataset="synthetic", clients=10**6, sample=100, rounds=3, synthetic_per_client=100
    )
    needs = {engine: _of_clients(replace(many, engine=engine)) for engine in ("inline", "ray")}
    assert needs == {"inline": 4096 * 330, "ray": 4096 * 10**6}
    assert _of_clients(replace(many, clients=200)) == 4096 * 200


def _of_clients(config: Config) -> int:
    return next(need.bytes for need in early.estimate(config) if need.purpose == "the clients")


def test_usual_runs_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "memory", lambda: 4 * 2**30)
    early.check_size(Config())
    for changes in (
        {"dataset": "cifar10", "model": "cnn"},
        {"dataset": "mnist", "clients": 3400, "sample": 90, "rounds": 2000},
    ):
        shape = {"cifar10": (3, 32, 32), "mnist": (28, 28)}[changes["dataset"]]
        monkeypatch.setattr(early, "_shape", lambda _, shape=shape: (shape, 10))
        early.check_size(Config(**changes))


@pytest.mark.parametrize("model", ["linear", "slp", "mlp"])
def test_the_size_of_a_model_is_known_before_it_is_made(tiny_config: Config, model: str) -> None:
    dim = load_task(replace(tiny_config, model=model)).dim
    assert MODELS[model].parameters(model, (20,), 10) == dim


def test_a_machine_says_how_much_memory_it_has() -> None:
    assert 2**28 < early.memory() < 2**50


# Every node of a cluster shows that it can run clients; a stand-in answers for Ray.


class RayError(Exception):
    """What Ray raises where a task cannot run."""


def node(name: str) -> dict[str, Any]:
    """Return a node as Ray describes it; all of them are on one machine."""
    where = {"NodeManagerHostname": "host", "NodeManagerAddress": "10.0.0.1"}
    return {"NodeID": name, "Alive": True, "Resources": {"CPU": 1}, **where}


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | RayError]:
    """Node id to what it answers: nothing, a reason, or an error of Ray's."""
    answers: dict[str, str | RayError] = {}

    def options(scheduling_strategy: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda _: scheduling_strategy)

    def get(name: str) -> str:
        if isinstance(answer := answers[name], RayError):
            raise answer
        return answer

    ray = SimpleNamespace(
        remote=lambda **_: lambda _: SimpleNamespace(options=options),
        get=get,
        nodes=lambda: [node(name) for name in answers],
        exceptions=SimpleNamespace(RayError=RayError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(cluster, "on_node", lambda name, **_: name)
    return answers


@pytest.mark.parametrize("bad", ["first", "second"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("data-dir must contain the data set", "data-dir must contain"),
        (RayError("no room"), "--ray-address .*got no room"),  # it starts no worker
    ],
)
def test_one_bad_node_is_found_where_two_share_an_address(
    bad: str, answer: Any, words: str, reasons: dict[str, Any], tiny_config: Config
) -> None:
    reasons.update({"first": "", "second": ""})
    check_nodes(tiny_config)
    reasons[bad] = answer
    with pytest.raises(ConfigError, match=rf"node host 10\.0\.0\.1: {words}"):
        check_nodes(tiny_config)
