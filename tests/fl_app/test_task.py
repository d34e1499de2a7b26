"""The task: data dealt to clients, a model of one's own, and how good it has become."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict

from leakmeter.auditors.hook import wire
from leakmeter.clients import update
from leakmeter.clients.protection.record_rule import GaussianSampling, Isotropic, WaterFilling
from leakmeter.clients.update import LocalSteps
from leakmeter.fl_app import task as training
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.task import load_task, record_rule, update_rule
from leakmeter.strategies.flower import current_delivery
from tests.helpers.refusals import refuses
from tests.helpers.runs import replies_of, report_of, train_order


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
        (["--auditors", "one-shot", "--secagg", "off", "--rounds", "4"], 4, 0.5),
        pytest.param([], 30, 0.85, marks=pytest.mark.slow),
    ],
    ids=["few rounds", "as it is"],
)
def test_the_default_job_learns_the_digits(
    arguments: list[str], rounds: int, least: float, tmp_path: Path
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    report = report_of(tmp_path / "run")
    assert report["rounds"][-1]["accuracy"] > least
    assert report["failures"] == []
    assert {f["server_round"] for f in report["findings"]} == {None, *range(1, rounds + 1)}


# Which update rule a configuration asks for.


def test_the_clients_rule_is_the_one_configured() -> None:
    steps = {"epochs": 3, "batch_size": 4, "lr": 0.5}
    assert update_rule(Config(**steps)) == update.fedavg(**steps)
    assert update_rule(Config(algorithm="fedsgd", **steps)) == update.fedsgd(4, 0.5)
    prox = update_rule(Config(algorithm="fedprox", prox_mu=0.2, **steps))
    assert prox == update.fedprox(**steps, mu=0.2)
    assert update_rule(Config(algorithm="gd", **steps)) == update.gd(3, 0.5)


def test_water_filling_takes_one_step_with_fedsgd_and_one_per_epoch_with_fedavg() -> None:
    noise = {"noise": "wfna", "wfna_floor": 0.02, "wfna_blocks": 3, "clip_norm": 0.7}
    config = Config(algorithm="fedsgd", lr=0.5, batch_size=4, epochs=3, **noise)
    filling = WaterFilling(0.02, blocks=3)
    assert update_rule(config) == GaussianSampling(0.5, 0.7, 4, noise=filling, simulated=True)
    assert record_rule(Config(algorithm="fedavg", epochs=3, **noise)).steps == 3


def test_noise_for_records_is_isotropic_on_the_gradient_that_its_name_says() -> None:
    own = {"wfna_floor": 0.02, "clip_norm": 0.7, "lr": 0.5, "batch_size": 4}
    noise = Isotropic(0.02)
    sgd = update_rule(Config(noise="record-sgd", algorithm="fedsgd", **own))
    assert sgd == GaussianSampling(0.5, 0.7, 4, "minibatch", noise, simulated=True)
    full = update_rule(Config(noise="record-gd", algorithm="gd", epochs=1, **own))
    assert full == GaussianSampling(0.5, 0.7, 0, "full", noise, simulated=True)
    sampled = update_rule(Config(noise="record-isotropic", algorithm="fedsgd", **own))
    assert sampled == GaussianSampling(0.5, 0.7, 4, "gaussian", noise, simulated=True)


# Clients that train together behind their messages: the same replies as each alone.


def replies(config: Config, *, together: bool, models: int = 1) -> list[RecordDict]:
    """Return what all clients answer to one push, or to a push for each."""
    config = replace(config, secagg="off")
    # A second round makes a second job.
    sent = [(c, train_order(config, 1 + c % models)) for c in range(config.clients)]
    pushes = [sent] if together else [[one] for one in sent]
    return [reply.content for push in pushes for reply in replies_of(config, *push)]


@pytest.mark.parametrize("change", [{}, {"model": "mlp"}, {"algorithm": "fedprox"}])
@pytest.mark.parametrize("models", [1, 2])
def test_clients_of_one_push_answer_as_each_alone(
    tiny_config: Config, change: dict[str, Any], models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny_config, synthetic_examples=125, **change)  # 20 or 21 records a client
    alone = replies(config, together=False, models=models)
    groups: list[int] = []
    usual = LocalSteps.train_together

    def counted(rule: LocalSteps, *about: Any) -> Any:
        # A client alone is a group of one.
        groups.extend([len(about[-1])] * (len(about[-1]) > 1))
        return usual(rule, *about)

    monkeypatch.setattr(LocalSteps, "train_together", counted)
    assert replies(config, together=True, models=models) == alone
    sizes = enumerate(map(len, load_task(config).parts))
    jobs = Counter((size, client % models) for client, size in sizes)
    assert sorted(groups) == sorted(size for size in jobs.values() if size > 1)


def test_a_message_that_was_changed_on_its_way_trains_alone(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny_config, secagg="off")
    honest = replies(config, together=True)
    seen: list[int] = []
    usual = training._Job.of

    def changed(message: Message) -> training._Job:
        """Return another round's job once client 3 trains."""
        job = usual(message)
        if current_delivery() is not None and message.metadata.dst_node_id == 4 and seen:
            return replace(job, server_round=7)
        seen.append(1)
        return job

    monkeypatch.setattr(training._Job, "of", staticmethod(changed))
    other = replies(config, together=True)
    same = [a == b for a, b in zip(honest, other, strict=True)]
    assert same == [True, True, True, False, True, True]


def test_a_model_that_is_not_dense_trains_alone(tiny_config: Config) -> None:
    slp = replace(tiny_config, model="slp")  # it ends in a ReLU
    assert replies(slp, together=True) == replies(slp, together=False)


def test_replays_draw_other_batches_together_too(tiny_config: Config) -> None:
    config = replace(tiny_config, secagg="off")
    sent = [
        (client, train_order(config, **{wire.REPLAY: wire.replay_record(number)}))
        for number in (0, 1)
        for client in (0, 1)
    ]
    models = [wire.arrays(reply.content) for reply in replies_of(config, *sent)]
    assert len({str(model["1.weight"].data) for model in models}) == 4
