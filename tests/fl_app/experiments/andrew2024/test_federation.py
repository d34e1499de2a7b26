"""Rounds with canaries that experiments play themselves, and the published bounds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta
from torch.nn.utils import parameters_to_vector

from leakmeter.auditors.canaries.transcript import Transcript
from leakmeter.auditors.canary import canary_vector
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.rng import stream
from leakmeter.clients.noise.clipping import clip
from leakmeter.clients.update import FedAvg
from leakmeter.fl_app.experiments.andrew2024.all_models import _largest
from leakmeter.fl_app.experiments.andrew2024.audit import (
    published_closed,
    published_sampled,
)
from leakmeter.fl_app.experiments.andrew2024.federation import Canaries, Federation, play
from leakmeter.fl_app.experiments.andrew2024.records import _SCALES as RECORDS
from leakmeter.fl_app.experiments.andrew2024.records import _play
from leakmeter.fl_app.experiments.andrew2024.writers import _printed_epsilons

TINY = Federation("digits", "linear", "iid", clients=6, rounds=3, batch_size=8)
DELTA = 1e-5


# What is played.


def test_a_round_is_the_mean_of_clipped_updates_and_the_model_is_the_sum_of_its_changes() -> None:
    seed = 5
    played = play(TINY, 0.0, Canaries(0), seed)
    task = TINY.task()
    start = parameters_to_vector(task.initial.parameters()).detach().double().numpy()
    rule = FedAvg(epochs=1, batch_size=TINY.batch_size, lr=TINY.lr)
    updates = []
    for client in TINY.cohorts(seed)[0]:
        own = copy.deepcopy(task.initial)
        rule(own, *task.examples(client), stream(seed, "batches", 0, client))
        trained = parameters_to_vector(own.parameters()).detach().double().numpy()
        updates.append(clip(trained - start, TINY.clip_norm))
    np.testing.assert_allclose(played.changes[0], np.mean(updates, axis=0), atol=1e-6)


def test_every_client_takes_part_once_an_epoch() -> None:
    twice = Federation("digits", "linear", "iid", clients=7, rounds=3, epochs=2)
    cohorts = twice.cohorts(1)
    assert len(cohorts) == twice.all_rounds == 6
    first, second = (sorted(chain(*part)) for part in (cohorts[:3], cohorts[3:]))
    assert first == second == list(range(7))
    assert cohorts[:3] != cohorts[3:]


def test_canaries_and_noise_are_what_they_are_said_to_be() -> None:
    bare, more = (play(TINY, 0.0, Canaries(k), 3) for k in (0, 4))
    added = (more.changes[0] - bare.changes[0]).astype(np.float64) * 2 / TINY.clip_norm
    lengths = [added @ canary_vector(more.canary_seed, i, added.size) for i in range(4)]
    assert sum(length == pytest.approx(1, abs=0.2) for length in lengths) in (1, 2)
    noised = play(TINY, 2.0, Canaries(0), 3)
    noise = (noised.changes[0] - bare.changes[0]).astype(np.float64) * 2 / TINY.clip_norm
    # 650 coordinates: the std is known to 2.8 %, and the seed is fixed.
    assert noise.std() == pytest.approx(2.0, rel=0.09)


def test_counted_canaries_divide_the_sum_by_everybody() -> None:
    alone, counted = (play(TINY, 0.0, Canaries(6, counted=c), 3) for c in (False, True))
    # Two clients and two canaries a round.
    np.testing.assert_allclose(counted.changes[0], alone.changes[0] / 2, rtol=1e-5)


def test_scores_are_those_of_the_auditor_that_goes_round_by_round() -> None:
    played = play(TINY, 0.1, Canaries(5), 3)
    slow = Transcript(played.canary_seed, range(9), played.changes.shape[1])
    for change in played.changes:
        slow.add(np.zeros(change.size), change.astype(np.float64))
    fast = played.transcript(4)
    np.testing.assert_allclose(fast.final()[0], slow.final()[0], atol=1e-6)
    np.testing.assert_allclose(played.final(), slow.final()[0][:5], atol=1e-6)
    both = [t.largest(1000, 0.01, stream(0, "pool"))[0] for t in (fast, slow)]
    np.testing.assert_allclose(*both, atol=1e-6)


def test_records_take_steps_along_clipped_gradients_canaries_and_noise() -> None:
    size = RECORDS["small"]
    played = _play(size, 0.4, 7)
    steps = math.ceil(1433 / size.batch)
    assert abs(len(played.changes) - steps) <= 1
    # Sum of a batch: at most 32 clipped gradients, a few canaries, and noise of 0.4·√d.
    longest = np.linalg.norm(played.changes, axis=1).max() * size.batch
    assert longest < size.batch + 5 + 0.4 * math.sqrt(played.changes.shape[1]) * 1.05
    assert played.accuracy > 0.5


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
    assert published_sampled(inside, outside, DELTA) == pytest.approx(twin(sampled, every))
    assert published_closed(inside, 10_000, DELTA) == pytest.approx(twin(closed, inside))


def test_the_published_bound_of_a_thousand_saturates_where_the_paper_says() -> None:
    inside, outside = np.linspace(1, 2, 1000), np.linspace(-1, 0, 1000)
    assert published_sampled(inside, outside, 341_000**-1.1) == pytest.approx(6.24, abs=0.02)


def test_the_printed_epsilons_of_table_5_are_of_one_participation_at_another_delta() -> None:
    said = _printed_epsilons()
    assert "147.8 for five participations, 41.6 for one" in said.ours
    for z, epsilon in ((0.16, 33.8), (0.18, 28.1), (0.195, 24.8), (0.25, 16.9), (0.315, 12.0)):
        assert epsilon_gaussian(0.0077, 1 / z) == pytest.approx(epsilon, abs=0.06)


def test_momentum_leaves_the_law_of_a_single_cosine_alone() -> None:
    rng = stream(4, "law")
    for rate in (0.0, 0.9):
        last = _largest(1, 0, 1.0, rate, rng)
        assert last.std() == pytest.approx(1, abs=0.07)
        assert abs(last.mean()) < 0.1
