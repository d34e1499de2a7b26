"""Each mechanism of the zoo against its own formula: what it clips, adds, and lets through."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)
from scipy.special import ndtr

from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.noise_mod import clip
from leakmeter.fl_app.engines.inline import run_inline
from leakmeter.papers.base import quiet
from leakmeter.papers.claims_zoo import broken
from leakmeter.papers.claims_zoo.audit import CLIP_NORM, averaging
from leakmeter.papers.claims_zoo.noise import (
    MeanForSum,
    NoisyMod,
    RunawayClip,
    Stepping,
    per_layer,
    per_parameter,
    total,
)
from leakmeter.papers.gaussian import delta_gaussian, gaussian_sigma

DIM = 400


def vectors(count: int, norm: float) -> np.ndarray:
    """Return random vectors of this norm, one a row."""
    rows = stream(0, "vectors").standard_normal((count, DIM))
    return norm * rows / np.linalg.norm(rows, axis=1, keepdims=True)


def noise(std: float = 1.0) -> np.ndarray:
    """Return the noise that `right` adds."""
    return std * stream(1, "noise").standard_normal(DIM)


right = NoisyMod(partial(clip, norm=1.0), 0.5, lambda *_: stream(1, "noise"))


def test_layers_clipped_one_by_one_are_together_longer_by_the_root_of_their_number() -> None:
    [update] = vectors(1, 100.0)
    assert np.linalg.norm(per_layer(update, 1.0, 16)) == pytest.approx(4.0)
    [short] = vectors(1, 0.5)
    assert np.array_equal(per_layer(short, 1.0, 16), short)


def test_parameters_clipped_one_by_one_may_be_longer_by_the_root_of_the_dimension() -> None:
    assert np.linalg.norm(per_parameter(np.full(DIM, 7.0), 1.0)) == pytest.approx(math.sqrt(DIM))
    [update] = vectors(1, 4.0)  # four times the norm, and no coordinate reaches it
    assert np.array_equal(per_parameter(update, 1.0), update)


def test_noise_is_added_to_the_clipped_update() -> None:
    [update] = vectors(1, 10.0)
    noised = right.noised(np.ones(DIM), update, stream(1, "noise"))
    assert noised == pytest.approx(1.0 + update / 10 + noise(0.5))


def test_noise_that_is_clipped_with_the_update_leaves_its_direction() -> None:
    [update] = vectors(1, 1e6)
    last = NoisyMod(right.clip, right.std, right.source, clips_last=True)
    released = last.noised(np.zeros(DIM), update, stream(1, "noise"))
    assert np.linalg.norm(released) == pytest.approx(1.0)
    # The noise has norm 10 beside a million, so the cosine misses 1 by half of 1e-10.
    assert released @ update / 1e6 == pytest.approx(1.0, abs=1e-10)


def test_noise_below_the_spacing_of_float32_is_lost_and_larger_updates_are_not() -> None:
    start, spacing = np.full(DIM, broken._WEIGHT), broken._SPACING
    assert spacing == 2.0**-12
    mod = NoisyMod(lambda update: update, broken._SHARE, right.source, in_float32=True)
    update = np.where(np.arange(DIM) % 2, 0.51, 0.49) * spacing
    released = mod.noised(start, update, stream(1, "noise")) - start
    # A share of a ninth of the spacing reaches half of it in one of 150,000 coordinates.
    assert np.array_equal(released, np.where(np.arange(DIM) % 2, spacing, 0.0))
    exact = NoisyMod(mod.clip, mod.std, mod.source)
    assert exact.noised(start, update, stream(1, "noise")) - start == pytest.approx(
        update + noise(broken._SHARE), abs=1e-9
    )


@pytest.mark.parametrize(
    ("source", "same_rounds", "same_clients"),
    [(broken.fresh, False, False), (broken.same_each_round, True, False),
     (broken.same_for_all, False, True)],
)  # fmt: skip
def test_noise_comes_again_in_other_rounds_or_from_other_clients(
    source: Callable[[int, int, int], np.random.Generator], same_rounds: bool, same_clients: bool
) -> None:
    def first(server_round: int, client: int) -> float:
        return float(source(3, server_round, client).standard_normal())

    assert (first(1, 5) == first(2, 5)) is same_rounds
    assert (first(1, 5) == first(1, 6)) is same_clients
    assert source(3, 1, 5).standard_normal() != source(4, 1, 5).standard_normal()


def test_the_noise_of_the_mean_is_added_to_the_sum_and_divided_once_more() -> None:
    updates = vectors(20, 10.0)
    step = MeanForSum(1.0, 0.5, stream(1, "noise"))
    assert step(updates) == pytest.approx(updates.mean(axis=0) / 10 + noise(0.5) / 20**2)


def test_a_clip_norm_that_runs_away_grows_without_a_limit_and_keeps_its_noise() -> None:
    step = RunawayClip(1.0, 0.5, stream(1, "noise"))
    short = vectors(20, 0.1)
    assert step(short) == pytest.approx(short.mean(axis=0) + noise(0.5) / 20)
    for _ in range(29):
        step(short)
    assert step.norm == pytest.approx(math.exp(0.2 * 0.5 * 30))
    silent = RunawayClip(3.0, 0.0, stream(1, "noise"))
    long = vectors(20, 10.0)
    assert silent(long) == pytest.approx(long.mean(axis=0) * 0.3)
    assert silent.norm == pytest.approx(3 * math.exp(-0.2 * 0.5))  # clipped too often: it shrinks


def test_shares_are_summed_and_not_averaged() -> None:
    updates = vectors(5, 1.0)
    assert total(updates) == pytest.approx(5 * updates.mean(axis=0))


def change(
    strategy: Strategy, updates: np.ndarray, *, examples: int = 1, mods: tuple[NoisyMod, ...] = ()
) -> np.ndarray:
    """Return how one round changes a zero model; the first client states so many examples."""
    clients, server, found = ClientApp(mods=list(mods)), ServerApp(), []

    @clients.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = ArrayRecord({"w": Array(updates[client])})
        metrics = MetricRecord({"num-examples": 1 if client else examples})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        model = ArrayRecord({"w": Array(np.zeros(DIM))})
        found.append(strategy.start(grid, model, num_rounds=1).arrays["w"].numpy())

    with quiet():
        run_inline(server, clients, len(updates))
    return np.asarray(found[0])


def test_a_strategy_takes_the_step_in_place_of_the_mean() -> None:
    updates = vectors(5, 1.0)
    assert change(Stepping(total, 5), updates) == pytest.approx(updates.sum(axis=0))


def test_a_mod_noises_each_reply_by_round_and_client() -> None:
    updates, mod = vectors(3, 10.0), NoisyMod(right.clip, 0.5, partial(broken.fresh, 7))
    noises = [0.5 * broken.fresh(7, 1, client).standard_normal(DIM) for client in range(3)]
    assert change(Stepping(total, 3), updates, mods=(mod,)) == pytest.approx(
        (updates / 10 + noises).sum(axis=0)
    )


def test_in_flowers_wrapper_a_stated_weight_multiplies_what_was_clipped() -> None:
    updates = vectors(20, 10.0)
    inner = averaging(20)
    wrapper = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, CLIP_NORM, 20)
    moved = change(wrapper, updates, examples=100)
    weights = np.array([100, *[1] * 19]) / 119
    assert moved == pytest.approx(weights @ updates / 10)
    assert weights[0] * 20 > 16  # times what the noise is for


def test_flowers_adaptive_clip_norm_grows_while_no_update_is_clipped() -> None:
    wrapper = DifferentialPrivacyServerSideAdaptiveClipping(
        averaging(20), 0.0, 20, initial_clipping_norm=1.0
    )
    change(wrapper, vectors(20, 0.1))
    assert wrapper.clipping_norm == pytest.approx(math.exp(0.2 * 0.5))


def test_what_rounded_shares_deliver_is_that_of_the_likeliest_outcome() -> None:
    # One coordinate moves by a step. The other ones are as they were, whoever takes part.
    share, shares = 1 / 4, 3
    tails = [ndtr(-0.5 / share), ndtr(-1.5 / share)]
    one = {0: 1 - 2 * tails[0], 1: tails[0] - tails[1], -1: tails[0] - tails[1]}
    sums = {0: 0.0, 1: 0.0}
    for steps in product((-1, 0, 1), repeat=shares):
        if (k := sum(steps)) in sums:
            sums[k] += math.prod(one[step] for step in steps)
    expected = math.log((sums[0] - 1e-5) / sums[1])
    # Two steps and more, which the sums here leave out, have a chance of 1e-9.
    assert broken.swallowed_epsilon(0.6, share, 1.0, shares) == pytest.approx(expected, abs=1e-6)
    twice = broken.swallowed_epsilon(0.75, share, 1.0, shares)  # norm of two halves, and a little
    assert twice == pytest.approx(math.log((sums[0] ** 2 - 1e-5) / sums[1] ** 2), abs=1e-6)


def test_what_is_claimed_is_false_of_all_broken_mechanisms() -> None:
    found = {one.name: one.claim for one in broken.mechanisms()}
    assert len(found) == 12
    assert all(claim.delivered > 1.2 * claim.epsilon for claim in found.values())
    unbounded = {name for name, claim in found.items() if math.isinf(claim.delivered)}
    assert unbounded == {
        *("same noise in each round", "same noise for all clients", "clipped after the noise"),
        "adaptive clip that runs away",
    }


def test_finite_figures_are_those_of_gaussians_so_far_apart() -> None:
    found = {one.name: one.claim.delivered for one in broken.mechanisms()}
    std, std_of_2 = gaussian_sigma(8.0, 1e-5), gaussian_sigma(2.0, 1e-5)
    classical = math.sqrt(2 * math.log(1.25e5))
    separations = {
        "sensitivity far below the clip norm": 10 / (1e-4 * classical),
        "each layer clipped and noised by itself": math.sqrt(16) / std,
        "each parameter clipped by itself": math.sqrt(1000) / std,
        "noise of the mean added to the sum": 20 / std,
        "classical formula at ε = 50": 50 / classical,
        "budget of one round stated for the run": math.sqrt(30) / std_of_2,
        "weights that undo the clip": 20 * 100 / (4 * 100 + 16) / std,
    }
    for name, separation in separations.items():
        assert delta_gaussian(found[name], separation) == pytest.approx(1e-5), name
    # With 60 digits: 213106544.710 and 96.4339356336.
    assert found["sensitivity far below the clip norm"] == pytest.approx(213106544.710, rel=1e-11)
    assert found["classical formula at ε = 50"] == pytest.approx(96.4339356336, rel=1e-11)


def test_the_noise_of_a_claim_would_keep_it_without_the_mistake() -> None:
    assert broken._delivered(CLIP_NORM / broken._STD) == pytest.approx(8.0)
    [lost] = (one for one in broken.mechanisms() if one.is_least)
    assert lost.claim.clip_norm is not None
    separation = lost.claim.clip_norm / (math.sqrt(broken._SHARES) * broken._SHARE)
    assert broken._delivered(separation) == pytest.approx(lost.claim.epsilon)
