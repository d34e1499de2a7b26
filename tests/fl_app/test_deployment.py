"""A deployment has no seeded noise, no plain updates and no clients' data."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from leakmeter.auditors.hook.wrapper import chain
from leakmeter.fl_app import client_app
from leakmeter.fl_app.build import server_strategy
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.deployment import (
    check_deployed,
    is_deployed,
    noise_seed,
    with_possible_auditors,
)
from leakmeter.strategies import Chosen
from tests.helpers.refusals import refuses

INLINE = "leakmeter.fl_app.engines.inline"


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/flwr-serverapp", "--insecure"])


@pytest.mark.parametrize("program", ["flwr-simulation", "flower-simulation", "run_sim.py", ""])
def test_a_simulation_is_no_deployment(
    program: str, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program])
    monkeypatch.setitem(sys.modules, INLINE, ModuleType(INLINE))
    assert not is_deployed()
    assert noise_seed(tiny_config, is_deployed()) == tiny_config.seed
    check_deployed(tiny_config)


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process under a name that tells nothing, in which nobody has loaded a simulation."""
    monkeypatch.setattr("sys.argv", ["/somewhere/start.py"])
    for name in ("flwr.server.superlink.fleet.vce", INLINE):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("unknown")
def test_what_shows_no_simulation_is_taken_for_a_deployment(tiny_config: Config) -> None:
    assert is_deployed()
    assert noise_seed(tiny_config, is_deployed()) is None


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize("engine", ["flwr.server.superlink.fleet.vce", INLINE])
def test_simulators_show_a_simulation_unless_a_supernode_has_loaded_them(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, engine, ModuleType(engine))
    assert not is_deployed()
    monkeypatch.setitem(sys.modules, "flwr.supernode.cli", ModuleType("flwr.supernode.cli"))
    assert is_deployed()


@pytest.mark.slow  # imports Flower's programs, torch and Ray
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("flwr.supernode.cli", "[False, False, True]"),
        ("flwr.supernode.cli, leakmeter.fl_app.client_app", "[False, False, True]"),
        ("flwr.simulation.ray_transport.ray_actor", "[True, False, False]"),
    ],
)
def test_flowers_workers_load_its_simulator_and_its_clients_of_a_deployment_do_not(
    program: str, said: str
) -> None:
    ask = "import sys, {}; print([m in sys.modules for m in {}])"
    marks = f"('flwr.server.superlink.fleet.vce', '{INLINE}', 'flwr.supernode.cli')"
    call = [sys.executable, "-c", ask.format(program, marks)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == said


def cohorts(config: Config) -> list[list[int]]:
    """Return who takes part in each round of a run."""
    [chosen] = [held for held in chain(server_strategy(config)) if isinstance(held, Chosen)]
    return [chosen.cohort(server_round) for server_round in range(1, 21)]


@pytest.mark.usefixtures("deployed")
def test_clients_who_know_the_seed_of_a_deployment_do_not_know_its_cohorts(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny_config, auditors="none", participation="fixed")
    assert cohorts(config) != cohorts(config)
    once = replace(config, participation="epochs")
    assert cohorts(once) == cohorts(once)  # or a resumed run would ask clients twice
    monkeypatch.setattr("sys.argv", ["run_sim.py"])
    monkeypatch.setitem(sys.modules, INLINE, ModuleType(INLINE))
    assert cohorts(config) == cohorts(config)


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"auditors": "one-shot,likelihood-ratio"}, "--auditors"),
        ({"auditors": "one-shot,mutual-information"}, "--auditors"),
        ({"auditors": "one-shot,mine"}, "--auditors"),
        # A server has no data to measure a norm on, and its folders are not for others to fill.
        ({"noise": "central", "clipping": "measured"}, "--clip-norm"),
        ({"download": True, "data_dir": "/elsewhere"}, "--download"),
        ({"dropout": 0.1}, "--dropout"),
        # Noise that the training draws from the run's seed.
        (
            {"noise": "wfna", "wfna_floor": 1e-4, "clip_norm": 1.0, "algorithm": "fedsgd"},
            "--noise",
        ),
        (
            {
                "noise": "distributed",
                "clip_norm": 1.0,
                "target_epsilon": 1.0,
                "participation": "poisson",
            },
            "--target-epsilon",
        ),
    ],
)
def test_what_only_a_simulation_has_is_refused(
    changes: dict[str, Any], option: str, tiny_config: Config
) -> None:
    alone = replace(tiny_config, auditors="none")
    assert is_deployed()
    for allowed in (alone, replace(alone, auditors="one-shot,recorder")):
        check_deployed(allowed)
    check_deployed(replace(alone, noise="central", clipping="measured", clip_norm=0.5))
    with refuses(option):
        check_deployed(replace(alone, **changes))


@pytest.mark.usefixtures("deployed")
def test_a_deployment_plays_canaries_unless_somebody_chose_otherwise() -> None:
    config, said = with_possible_auditors(Config())
    assert config == replace(Config(), auditors="one-shot")
    check_deployed(config)
    assert "auditors = 'one-shot' (10 clients per round send a canary" in said
    assert "without likelihood-ratio, mutual-information, mine: " in said
    for auditors in ("none", "one-shot,recorder", "likelihood-ratio"):
        chosen = replace(Config(), auditors=auditors)
        assert with_possible_auditors(chosen) == (chosen, "")


def test_a_simulation_keeps_its_auditors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, INLINE, ModuleType(INLINE))
    assert with_possible_auditors(Config()) == (Config(), "")


def test_a_client_of_a_deployment_fetches_nothing(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_app, "is_deployed", lambda: True)
    asked: list[bool] = []
    monkeypatch.setattr(client_app, "load_task", lambda task: asked.append(task.download))
    client_app._task_here(replace(tiny_config, download=True, data_dir="/elsewhere"))
    assert asked == [False]
