"""The task: data dealt to clients, a model of one's own, and how good it has become."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.task import load_task
from tests.helpers.refusals import refuses


def test_the_clients_together_hold_every_training_record_once(tiny_config: Config) -> None:
    task = load_task(tiny_config)
    inputs, labels = zip(*(task.examples(client) for client in range(6)), strict=True)
    assert [len(y) for y in labels] == [20] * 6
    together = np.sort(torch.cat(inputs).numpy(), axis=0)
    assert np.array_equal(together, np.sort(task.dataset.train_x, axis=0))
    assert str(task.sizes) == "20 to 20 records each, median 20"


def test_equal_settings_share_one_task_and_others_do_not(tiny_config: Config) -> None:
    task = load_task(tiny_config)
    assert load_task(replace(tiny_config, rounds=9, lr=0.5, auditors="none")) is task
    assert load_task(replace(tiny_config, seed=1)) is not task
    assert load_task(replace(tiny_config, model="mlp")).dim == 13_210


def test_a_task_needs_no_configuration_of_a_whole_run(tiny_config: Config) -> None:
    assert load_task(tiny_config.task) is load_task(tiny_config)
    alone = TaskConfig(dataset="synthetic", synthetic_examples=20, model="linear", clients=1)
    assert [len(part) for part in load_task(alone).parts] == [20]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dataset": "cats"}, "--dataset"),
        ({"model": "resnet"}, "--model"),
        ({"partition": "fair"}, "--partition"),
        ({"partition": "dirichlet", "dirichlet": 0.0}, "--dirichlet"),
        ({"clients": 0}, "--clients"),
        ({"synthetic_classes": 1}, "--synthetic-classes"),
    ],
)
def test_loading_refuses_a_task_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with refuses(message):
        load_task(TaskConfig(**{"dataset": "synthetic", "model": "linear", **wrong}))


def test_a_new_model_is_ones_own_and_always_the_same(tiny_config: Config) -> None:
    task = load_task(tiny_config)
    before = task.initial_arrays().to_torch_state_dict()
    model = task.new_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    after = task.new_model().state_dict()
    assert task.dim == 210 == sum(value.numel() for value in after.values())
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_accuracy_is_the_share_of_test_records_that_are_right(tiny_config: Config) -> None:
    task = load_task(tiny_config)
    constant = task.new_model().state_dict()
    for value in constant.values():
        value.zero_()
    list(constant.values())[-1][3] = 1.0  # everything is a 3
    metrics = task.evaluate(ArrayRecord(constant))
    assert metrics["accuracy"] == np.mean(task.dataset.test_y == 3)
    # ln(9 + e) - 1 for a 3, ln(9 + e) for the others
    assert metrics["loss"] == pytest.approx(np.log(9 + np.e) - np.mean(task.dataset.test_y == 3))


def test_natural_clients_hold_the_records_of_one_user_each(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load_task(tiny_config).dataset
    users = np.arange(120) % 8
    known = replace(plain, users=users)
    monkeypatch.setattr("leakmeter.fl_app.data.dataset.dataset_of", lambda _: known)
    task = load_task(replace(tiny_config, partition="natural", seed=99))
    owners = [set(users[part]) for part in task.parts]
    assert [len(owner) for owner in owners] == [1] * 6
    assert len(set.union(*owners)) == 6
    assert str(task.sizes) == "15 to 15 records each, median 15"


def test_an_empty_client_is_an_error_when_the_task_is_loaded(tiny_config: Config) -> None:
    with refuses("--clients"):
        load_task(replace(tiny_config, clients=121))


# The default job takes a minute and more; a few of its rounds see the same training.
@pytest.mark.parametrize(
    ("arguments", "rounds", "least"),
    [
        (["--auditors", "one-shot", "--secagg", "off", "--rounds", "6"], 6, 0.6),
        pytest.param([], 30, 0.85, marks=pytest.mark.slow),
    ],
    ids=["few rounds", "as it is"],
)
def test_the_default_job_learns_the_digits(
    arguments: list[str], rounds: int, least: float, tmp_path: Path
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["rounds"][-1]["accuracy"] > least
    assert report["failures"] == []
    assert {f["server_round"] for f in report["findings"]} == {None, *range(1, rounds + 1)}
