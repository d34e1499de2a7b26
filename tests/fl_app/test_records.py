"""What a round's other clients add to the sum, for the record-level audit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from leakmeter.auditors.auditor import Canary, RoundFacts, RoundView
from leakmeter.auditors.records.game import RecordBudget, audit_records
from leakmeter.clients.protection.gradients import per_example_gradients
from leakmeter.fl_app.build.audit import SimulatedRecords
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.task import load_task

SETTING: dict[str, Any] = {
    "dataset": "synthetic",
    "synthetic_examples": 160,
    "synthetic_features": 10,
    "synthetic_classes": 3,
    "model": "linear",
    "clients": 8,
    "sample": 5,
    "rounds": 1,
    "algorithm": "fedsgd",
    "batch_size": 1,
    "noise": "wfna",
    "wfna_floor": 0.0005,
    "clip_norm": 1.0,
    "auditors": "record-likelihood-ratio,one-shot",
    "canary_seats": 2,
}
COHORT = [0, 2, 3, 4, 5, 6, 7]
SEATS = {0: Canary(0, 1), 7: Canary(1, 1)}


def view(config: Config, num_clients: int = len(COHORT)) -> RoundView:
    sent = torch.nn.utils.parameters_to_vector(load_task(config).new_model().parameters())
    model = sent.detach().numpy().astype(np.float64)
    return RoundView(1, model, {}, model, RoundFacts(num_clients=num_clients), instructed=SEATS)


def case(config: Config, **more: Any) -> Any:
    return SimulatedRecords(config, lambda _: COHORT).case(view(config, **more))


@pytest.mark.parametrize("blocks", [1, 3])
def test_the_others_noise_is_that_of_their_whole_covariances(blocks: int) -> None:
    config = Config(**{**SETTING, "wfna_blocks": blocks})
    task, found = load_task(config), case(config)
    net, floor = task.new_model(), config.wfna_floor
    assert found.rest == pytest.approx(4 * floor)  # five honest clients, one of them the target
    assert found.records == len(task.parts[2])  # the first client of the round without a canary
    cuts = np.linspace(0, found.blocks[0].dim * blocks, blocks + 1).astype(int)
    for block, excess, start, stop in zip(
        found.blocks, found.excess, cuts[:-1], cuts[1:], strict=True
    ):
        more = np.zeros((stop - start, stop - start))
        for client in (3, 4, 5, 6):
            gradients = per_example_gradients(net, *task.examples(client), config.clip_norm)
            own = gradients.columns(int(start), int(stop))
            values, axes = np.linalg.eigh(own.T @ own / (config.batch_size * len(own)))
            more += (axes * np.maximum(values - floor, 0.0)) @ axes.T
        rows = np.array([block.products(axis) for axis in np.eye(block.dim)]).T
        assert np.abs(excess).max() > 0.001
        np.testing.assert_allclose(excess, rows @ more @ rows.T, atol=1e-7)


def test_the_noise_of_this_run_hides_far_more_than_the_worst_case_does() -> None:
    config = Config(**SETTING)
    found = case(config)
    budget = RecordBudget(pairs=2, pilot=40, trials=400)
    of_run = audit_records(found, delta=1e-3, budget=budget)
    worst = audit_records(replace(found, excess=()), delta=1e-3, budget=budget)
    assert of_run.bound.value < 0.5 < 1.0 < worst.bound.value


def test_who_was_in_the_sum_must_be_known_for_a_statement_about_this_run() -> None:
    config = Config(**SETTING)
    assert case(config).excess
    assert case(config, num_clients=6).excess == ()  # one of the cohort has dropped out
    absent = Config(**{**SETTING, "lrt_target": 1})
    assert case(absent).excess == ()  # nor was the client itself in the sum


def plain_rows(config: Config, client: int) -> np.ndarray:
    net, task = load_task(config).new_model(), load_task(config)
    gradients = per_example_gradients(net, *task.examples(client), config.clip_norm)
    return np.asarray(gradients.columns(0, gradients.dim))


@pytest.mark.parametrize(
    "changes",
    [{"noise": "record-isotropic"}, {"noise": "record-gd", "algorithm": "gd", "epochs": 1}],
)
def test_isotropic_noise_is_drawn_by_the_law_that_is_scored(changes: dict[str, Any]) -> None:
    config = Config(**{**SETTING, **changes})
    found = case(config)
    # Five honest clients add σ² to every direction, the target among them.
    assert (found.floor, found.rest) == (0.0, pytest.approx(5 * config.wfna_floor))
    own = np.arange(found.records)
    rng = np.random.default_rng(0)
    drawn = np.array([found.draw(own, rng) for _ in range(4000)])
    rows = plain_rows(config, 2)
    expected = 5 * config.wfna_floor * np.eye(rows.shape[1])
    if config.noise == "record-isotropic":
        expected += rows.T @ rows / (config.batch_size * len(rows))
        others = sum(
            r.T @ r / (config.batch_size * len(r)) for c in (3, 4, 5, 6)
            for r in [plain_rows(config, c)]
        )  # fmt: skip
        block = found.blocks[0]
        seen = np.array([block.products(axis) for axis in np.eye(block.dim)]).T
        np.testing.assert_allclose(found.excess[0], seen @ others @ seen.T, atol=1e-7)
    else:
        assert found.excess == ()  # the others' data change nothing
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    # Within six standard errors of 4000 draws; half the noise would be far outside.
    assert np.abs(np.cov(drawn.T) - expected).max() < 6 * np.sqrt(2 / 4000) * scale.max()
    deviation = np.abs(drawn.mean(axis=0) - rows.mean(axis=0))
    assert (deviation < 6 * np.sqrt(np.diag(expected) / 4000)).all()
