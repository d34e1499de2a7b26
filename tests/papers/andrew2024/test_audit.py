"""Runs of this project that experiments play: what is in them, and what is said of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import Scores
from leakmeter.auditors.canaries.transcript import Transcript
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.noise_mod import clip
from leakmeter.clients.update import fedavg
from leakmeter.fl_app.build.strategy import participation
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.task import load_task
from leakmeter.papers.andrew2024 import audit
from leakmeter.papers.andrew2024.all_models import WARM, smoothed
from leakmeter.papers.andrew2024.audit import (
    DIGITS,
    Played,
    mean_std,
    normal_logsf,
    one_shot,
    play,
    published,
    seeded,
    with_canaries,
)
from leakmeter.papers.andrew2024.records import _SMALL, train
from leakmeter.papers.andrew2024.writers import _printed_epsilons

TINY = replace(DIGITS, model="linear", clients=12, sample=2, rounds=4)
DELTA = 1e-5


# What is played.


def by_hand(config: Config) -> tuple[np.ndarray, dict[int, Canary]]:
    """Return the change of the model over a run, by Algorithm 2 word for word, and its canaries."""
    task, canaries = load_task(config), one_shot(config, include="all")
    start = parameters_to_vector(task.initial.parameters()).detach().double().numpy()
    canaries.begin(start.size, config.rounds)
    model, played = start, {}
    rule = fedavg(config.epochs, config.batch_size, config.lr)
    for t in range(1, config.rounds + 1):
        cohort = participation(config).cohort(config.seed, t, config.clients)
        orders = canaries.instruct(t, cohort)
        played |= {order.id: order for order in orders.values()}
        std = config.noise_multiplier * config.clip_norm
        total = std * stream(config.seed, "server-noise", t).standard_normal(model.size)
        for client in cohort:
            if client in orders:
                order = orders[client]
                total += config.clip_norm * canary_vector(order.seed, order.id, model.size)
                continue
            net = task.new_model()
            vector_to_parameters(torch.from_numpy(model).float(), net.parameters())
            rule(net, *task.examples(client), stream(config.seed, "train", t, client))
            trained = parameters_to_vector(net.parameters()).detach().double().numpy()
            total += clip(trained - model, config.clip_norm)
        # Models travel in single precision.
        model = (model + config.server_lr * total / config.cohort).astype(np.float32).astype(float)
    return model - start, played


def test_a_run_of_this_project_has_the_scores_of_the_printed_algorithm() -> None:
    config = seeded(with_canaries(TINY, 14), 0.1, "by hand")
    change, orders = by_hand(config)
    rows = np.stack([canary_vector(orders[i].seed, i, change.size) for i in range(14)])
    twin = rows @ change / np.linalg.norm(change)
    scores = play(config).scores["final model"]
    np.testing.assert_allclose(scores.included, twin, atol=1e-6)
    assert scores.excluded.size == 14
    assert np.abs(scores.excluded).max() < np.abs(twin).max()


@pytest.mark.slow
def test_records_and_a_federation_of_single_records_have_the_same_scores() -> None:
    config = seeded(with_canaries(replace(_SMALL, sample=12, rounds=5), 20), 0.4, "records")
    fast, slow = train(config)["momentum"], play(config)
    for sees in ("final model", "all models"):
        ours, theirs = fast.scores[sees], slow.scores[sees]  # type: ignore[index]
        np.testing.assert_allclose(ours.included, theirs.included, atol=1e-6)
        np.testing.assert_allclose(ours.excluded, theirs.excluded, atol=1e-6)
    assert fast.accuracy == pytest.approx(slow.accuracy, abs=0.005)
    without = train(replace(config, server_momentum=0.0))
    same = [without[view].scores["all models"].included for view in ("momentum", "mean")]
    np.testing.assert_array_equal(*same)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_simulated_maxima_are_those_of_the_auditor_on_real_vectors(beta: float) -> None:
    dim, canaries, rounds, seed = 4000, 20, 12, 5
    rows = np.stack([canary_vector(seed, i, dim) for i in range(canaries)])
    means = stream(3, "means").standard_normal((WARM + rounds, dim))
    for i in range(canaries // 2):
        means[WARM + i] += 6 * rows[i]
    # What the server does: each change is the mean and beta times the change before.
    changes, last = [], np.zeros(dim)
    for mean in means:
        last = beta * last + mean
        changes.append(last)
    transcript = Transcript(seed, range(canaries), dim)
    for change in changes[WARM:]:
        transcript.add(np.zeros(dim), change)
    maxima = math.sqrt(dim) * transcript.largest(100, 0.01, stream(0, "pool")).cosines
    simulated = smoothed(rows @ means.T, beta)[:, WARM:].max(axis=1)
    # The simulation takes the length of a change for its mean: true to 1/√(2d) = 1.1 % here.
    np.testing.assert_allclose(simulated, maxima, rtol=0.1, atol=0.1)


def test_canaries_leave_the_cohorts_alone_and_lengthen_the_step() -> None:
    config = with_canaries(TINY, 14)
    assert (config.canary_seats, config.cohort, config.server_lr) == (4, 6, 3.0)
    assert with_canaries(TINY, 14, 2).canary_seats == 7
    assert play(seeded(TINY, 0.0, "bare")).scores == {}


def test_a_failed_auditor_leaves_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(*_: Any) -> None:
        raise ArithmeticError("made up")

    monkeypatch.setattr("leakmeter.auditors.OneShotCanaries.observe", observe)
    with pytest.raises(RuntimeError, match="one-shot, round 1: ArithmeticError: made up"):
        play(with_canaries(TINY, 14))


# What is said.


def test_the_published_bounds_agree_with_their_plain_twins() -> None:
    rng = stream(1, "twins")
    inside, outside = rng.normal(0.02, 0.01, 60), rng.normal(0.0, 0.01, 50)

    def high(count: int, of: int) -> float:
        return float(beta.ppf(0.95, 0.5 + count, 0.5 + of - count))

    def twin(rates: Callable[[float], tuple[float, float]], thresholds: Any) -> float:
        best = 0.0
        for t in thresholds:
            fpr, fnr = rates(t)
            for a, b in ((fpr, fnr), (fnr, fpr)):
                if 1 - DELTA - a > 0:
                    best = max(best, math.log((1 - DELTA - a) / b))
        return best

    def sampled(t: float) -> tuple[float, float]:
        return high(sum(outside >= t), 50), high(sum(inside < t), 60)

    def closed(t: float) -> tuple[float, float]:
        return 0.5 * math.erfc(100 * t / math.sqrt(2)), high(sum(inside < t), 60)

    every = [*inside, *outside]
    both, known = Scores.of(inside, outside, None), Scores.of(100 * inside, None, normal_logsf)
    assert published(both, DELTA) == pytest.approx(twin(sampled, every))
    assert published(known, DELTA) == pytest.approx(twin(closed, inside))


def test_the_published_bound_of_a_thousand_saturates_where_the_paper_says() -> None:
    inside, outside = np.linspace(1, 2, 1000), np.linspace(-1, 0, 1000)
    both = Scores.of(inside, outside, None)
    assert published(both, 341_000**-1.1) == pytest.approx(6.24, abs=0.02)


def test_the_printed_epsilons_of_table_5_are_of_one_participation_at_another_delta() -> None:
    said = _printed_epsilons()
    assert "147.8 for five participations, 41.6 for one" in said.ours
    for z, epsilon in ((0.16, 33.8), (0.18, 28.1), (0.195, 24.8), (0.25, 16.9), (0.315, 12.0)):
        assert epsilon_gaussian(0.0077, 1 / z) == pytest.approx(epsilon, abs=0.06)


@pytest.fixture(scope="module")
def coins() -> tuple[Config, Played]:
    """A run with a coin for each canary."""
    sizes = {"sample": 3, "canary_seats": 3, "clients": 60, "rounds": 10}
    config = replace(TINY, participation="once", auditors="one-shot", **sizes)
    config = seeded(config, 0.5, "coins")
    return config, play(config, "coin")


def test_bounds_are_set_beside_the_guarantee_that_covers_them(
    coins: tuple[Config, Played],
) -> None:
    config, played = coins
    # Zero-out, one participation; clients and canaries take part once.
    assert audit.guaranteed(played, config) == pytest.approx(epsilon_gaussian(DELTA, 2.0), rel=1e-6)
    config = seeded(with_canaries(replace(TINY, rounds=6), 12, 2), 0.5, "all")
    # All canaries play: add-remove, and clients take part more often than a canary.
    expected = epsilon_gaussian(DELTA, math.sqrt(2) / 0.5)
    assert audit.guaranteed(play(config), config) == pytest.approx(expected)


def test_what_is_said_is_what_the_auditor_reports(coins: tuple[Config, Played]) -> None:
    _, played = coins
    said = audit.final_model(played)
    own = [f for f in played.findings if f.threat_model.sees == "final model"]
    estimates = [f.value for f in own if f.kind == "estimate"]
    bounds = [f.value for f in own if f.kind == "lower_bound"]
    assert said["known"] in estimates
    assert said["estimated"]
    assert [said["headline"], said["bound"]] == bounds[:2]
    without = replace(played, findings=[f for f in played.findings if f.kind != "estimate"])
    assert not audit.final_model(without)["estimated"]


def test_a_mean_has_the_digits_of_its_sample_std() -> None:
    assert mean_std([2000.0, 2240.0]) == "2120 ± 170"
    assert mean_std([1.0, 2.0, 3.0], "+") == "+2.0 ± 1.0"
    assert mean_std([0.25, 0.75]) == "0.50 ± 0.35"  # the population's would be 0.25
    assert mean_std([6.25, 6.25]) == "6.25 ± 0.00"
    assert mean_std([1.5]) == "1.50"
