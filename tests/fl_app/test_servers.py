"""Adaptive servers: their settings reach Flower, they resume, and the audit says what they do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAdam, FedAvgM, FedYogi

from leakmeter.auditors.hook.wrapper import chain
from leakmeter.fl_app import build
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from tests.helpers.numbers import first_fast


def innermost(config: Config) -> Any:
    return list(chain(build.server_strategy(config)))[-1]


@pytest.mark.parametrize(("server", "kind"), [("fedadam", FedAdam), ("fedyogi", FedYogi)])
def test_settings_of_an_adaptive_server_reach_flower(server, kind, tiny_config: Config) -> None:
    config = replace(tiny_config, server=server, server_beta1=0.5, server_beta2=0.9, server_tau=0.1)
    made = innermost(config)
    assert type(made) is kind
    assert (made.eta, made.beta_1, made.beta_2, made.tau) == (0.1, 0.5, 0.9, 0.1)
    assert innermost(replace(config, server_lr=0.03)).eta == 0.03


def test_the_usual_step_of_momentum_is_what_it_was(tiny_config: Config) -> None:
    usual = innermost(replace(tiny_config, server="fedavgm"))
    old = innermost(replace(tiny_config, server="fedavgm", server_lr=1.0))
    assert isinstance(usual, FedAvgM)
    assert usual.server_learning_rate == old.server_learning_rate == 1.0


@pytest.mark.parametrize("server", first_fast(1, ["fedadam", "fedyogi"]))
def test_a_resumed_run_keeps_both_moments(server: str, tmp_path: Path, tiny_config: Config) -> None:
    class Dying(Progress):
        def round(self, line: Any) -> None:
            super().round(line)
            if line.server_round == 2:
                raise KeyboardInterrupt

    config = replace(tiny_config, server=server, auditors="one-shot", rounds=3)
    launch(RunFolder.create(tmp_path / "whole", config), Progress())
    with pytest.raises(KeyboardInterrupt):
        launch(RunFolder.create(tmp_path / "cut", config), Dying())
    assert main(["--resume", str(tmp_path / "cut")]) == 0
    whole, cut = ((tmp_path / one / "report.json").read_bytes() for one in ("whole", "cut"))
    assert cut == whole
    said = [one["text"] for one in json.loads(whole)["limitations"]]
    assert any("scales every coordinate of the mean separately" in text for text in said)
