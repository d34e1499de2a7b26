"""A deployment has no seeded noise, no plain updates and no clients' data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fl_app.config import Config
from fl_app.deployed import check_deployed, is_deployed, noise_seed
from fl_app.errors import ConfigError


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/flwr-serverapp", "--insecure"])


@pytest.mark.parametrize("program", ["flwr-simulation", "flower-simulation", "run_sim.py", ""])
def test_a_simulation_is_no_deployment(
    program: str, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program])
    assert not is_deployed()
    assert noise_seed(tiny_config) == tiny_config.seed
    check_deployed(tiny_config)


@pytest.mark.usefixtures("deployed")
def test_noise_of_a_deployment_has_no_seed(tiny_config: Config) -> None:
    assert is_deployed()
    assert noise_seed(tiny_config) is None


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize("name", ["likelihood-ratio", "mutual-information"])
def test_auditors_that_draw_the_clients_data_are_refused(tiny_config: Config, name: str) -> None:
    config = replace(tiny_config, auditors=f"one-shot,{name}")
    with pytest.raises(ConfigError, match=f"auditors must be one-shot or none .*got '{name}'"):
        check_deployed(config)
    check_deployed(replace(config, auditors="one-shot"))
    check_deployed(replace(config, auditors="none"))


@pytest.mark.usefixtures("deployed")
def test_noise_that_the_training_draws_from_the_seed_is_refused(tiny_config: Config) -> None:
    filled = {"noise": "wfna", "wfna_floor": 1e-4, "clip_norm": 1.0, "algorithm": "fedsgd"}
    with pytest.raises(ConfigError, match="noise must be another in a deployment"):
        check_deployed(replace(tiny_config, auditors="none", **filled))
