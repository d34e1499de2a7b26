"""The game on known distributions, the worst pair, and the test between two updates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.likelihood_ratio.game import (
    Candidates,
    Challenge,
    ConstantSumError,
    OthersSum,
    PlayedGame,
    SampleBudget,
    between,
    challenge,
    farthest_pair,
    pilot_draws,
    play_game,
)
from leakmeter.auditors.likelihood_ratio.sum_distribution import DenseGaussian, DualGaussian, grams
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.moments import Scatter
from tests.helpers.numbers import few_or_many, most_allowed
from tests.helpers.refusals import refuses
from tests.helpers.rounds import audited_round

DIM = 10
SMALL = SampleBudget(fit=400, candidates=30, pilot=60, trials=400)


def play(
    sampler, key: int = 0, budget: SampleBudget = SMALL, others: int = 4, **more
) -> PlayedGame:
    """Return one played game of client 0 against a few others."""
    dim = len(sampler.root)
    audited = audited_round(sampler, np.zeros(dim), range(1, 1 + others), **more)
    return play_game(audited, budget=budget, stream=("t", key))


def test_the_separation_is_that_of_the_worst_pair(gaussian_sampler) -> None:
    sampler = gaussian_sampler(stream(0, "root").standard_normal((DIM, DIM)))
    played = play(sampler, budget=SampleBudget(fit=3000, candidates=30, pilot=60, trials=2000))
    chunks = sampler.sample(np.zeros(DIM), [0], 30, ("t", 0, "candidates"))
    rows = np.concatenate(list(chunks))[:, 0]
    covariance = 4 * sampler.root @ sampler.root.T
    gaps = rows[:, None] - rows[None]
    squares = np.einsum("ijk,kl,ijl->ij", gaps, np.linalg.inv(covariance), gaps)
    assert played.separation == pytest.approx(math.sqrt(squares.max()), rel=0.06)
    assert played.scores.std(ddof=1) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize(("num_others", "noise_std"), [(4, 0.0), (30, 0.0), (30, 2.0)])
def test_a_pilot_of_single_updates_has_the_moments_of_the_sum(
    gaussian_sampler, num_others: int, noise_std: float
) -> None:
    sampler = gaussian_sampler(np.eye(DIM))
    sums = OthersSum(sampler, np.zeros(DIM), range(1, 1 + num_others), lambda *_: None)
    [fit] = sums.gaussians(4000, ("t", "fit"), 0.0)
    test = between(np.eye(DIM)[0], np.zeros(DIM), fit)
    [(mean, std)] = sums.pilot(test.direction[:, None], 400, ("t", "pilot"), noise_std)
    length = float(np.linalg.norm(test.direction))
    truth = length * math.sqrt(num_others + noise_std**2)
    assert std == pytest.approx(truth, rel=0.12)  # 3.4 standard errors of 400 sums
    drawn = pilot_draws(400, num_others) + 4000 / num_others
    assert abs(mean) < 4 * length * math.sqrt(num_others / drawn)


@pytest.mark.parametrize("noise_std", [0.5, 3.0])
def test_noise_on_the_sum_is_part_of_the_trials(gaussian_sampler, noise_std: float) -> None:
    sampler = gaussian_sampler(np.eye(DIM))
    budget = SampleBudget(fit=2000, candidates=30, pilot=60, trials=2000)
    quiet, noisy = (play(sampler, budget=budget, noise_std=std) for std in (0.0, noise_std))
    factor = math.sqrt(4 / (4 + noise_std**2))
    assert noisy.separation == pytest.approx(factor * quiet.separation, rel=0.08)


def test_few_samples_flatter_the_fit_and_not_the_trials(gaussian_sampler) -> None:
    # 200 dimensions from 240 updates: the model promises more than fresh draws show.
    sampler = gaussian_sampler(stream(1, "root").standard_normal((200, 200)))
    played = play(sampler, budget=SampleBudget(fit=240, candidates=40, pilot=100, trials=400))
    assert played.modelled > 1.15 * played.separation


def fitted(sampler, key: int) -> tuple[np.ndarray, np.ndarray, Challenge]:
    """Return two sets of trials of equal worlds along one fitted direction, and the test."""
    others, model = list(range(1, 4)), np.zeros(len(sampler.root))
    moments = sampler.moments(model, others, 100, ("fit", key))
    rows = np.concatenate(list(sampler.sample(model, [0], 10, ("candidates", key))))[:, 0]
    test = challenge(rows, DenseGaussian.fit(moments))
    draws = [
        np.concatenate(list(sampler.sums(model, others, 60, (name, key)))) for name in ("a", "b")
    ]
    return draws[0], draws[1], test


@pytest.mark.parametrize("runs", few_or_many(15, 200))
def test_worlds_that_do_not_differ_are_told_apart_no_more_often_than_allowed(
    gaussian_sampler, runs: int
) -> None:
    sampler = gaussian_sampler(stream(0, "root").standard_normal((30, 30)))
    claims, chosen = 0, 0
    for key in range(runs):
        first, second, test = fitted(sampler, key)
        scores = first @ test.direction, second @ test.direction
        claims += epsilon_lower_bound(*scores, delta=1e-5).value > 0
        # The same with a direction that was chosen on the trials themselves claims too much.
        gap = first.mean(axis=0) - second.mean(axis=0)
        fooled = np.linalg.solve(np.cov(np.concatenate([first, second]).T), gap)
        chosen += epsilon_lower_bound(first @ fooled, second @ fooled, delta=1e-5).value > 0
    assert claims <= most_allowed(runs)
    assert chosen > 0.2 * runs


@pytest.mark.parametrize("runs", few_or_many(4, 20))
def test_bounds_stay_below_the_truth_and_come_near_it(gaussian_sampler, runs: int) -> None:
    sampler = gaussian_sampler(np.eye(DIM))
    budget = SampleBudget(fit=2000, candidates=20, pilot=50, trials=1000)
    above, ratios = 0, []
    for key in range(runs):
        played = play(sampler, key, budget, others=20)
        rows = np.concatenate(
            list(sampler.sample(np.zeros(DIM), [0], 20, ("t", key, "candidates")))
        )[:, 0]
        pair = rows[played.pair[0]] - rows[played.pair[1]]
        truth = epsilon_gaussian(0.01, float(np.linalg.norm(pair)) / math.sqrt(20))
        bound = epsilon_lower_bound(played.scores + played.shift, played.scores, delta=0.01)
        above += bound.value > truth
        ratios.append(bound.value / truth)
    assert above <= most_allowed(runs)
    assert np.median(ratios) > 0.5


def test_the_others_never_hold_what_is_behind_the_pair(gaussian_sampler) -> None:
    held = []

    class Watching(gaussian_sampler):
        def excluding_drawn(self, client, path, draws):
            held.append((client, tuple(path), tuple(draws)))
            return super().excluding_drawn(client, path, draws)

    played = play(Watching(np.eye(DIM)))
    apart = (0, ("t", 0, "candidates"), tuple(sorted(played.pair)))
    assert held == [apart, apart]  # in the pilot, and in the trials


def test_a_coordinate_that_only_the_target_moves_is_separation_by_support(
    gaussian_sampler,
) -> None:
    played = play(gaussian_sampler(np.eye(DIM), others=np.diag([1.0] * (DIM - 1) + [0.0])))
    assert played.facts["dimension"] == DIM - 1
    assert played.span.separated
    assert 0.01 < played.span.share < 1
    assert played.reached == 0
    assert played.beyond == pytest.approx(played.span.share)
    plain = play(gaussian_sampler(np.eye(DIM)))
    assert not plain.span.separated
    assert plain.beyond is None


@pytest.mark.parametrize(("rank", "separated"), [(4, True), (9, True), (30, False)])
def test_a_pair_beyond_what_the_others_span_is_separated_by_support(
    gaussian_sampler, rank: int, separated: bool
) -> None:
    """The others move in a few directions, the target in all; no coordinate is idle."""
    some = np.linalg.qr(stream(2, "mixed").standard_normal((30, 30)))[0][:, :rank]
    narrow = gaussian_sampler(np.eye(30), others=some @ some.T)
    for fit in (400, 40):  # the dense form and the dual one
        budget = SampleBudget(fit=fit, candidates=20, pilot=20, trials=40)
        played = play(narrow, budget=budget)
        assert played.span.separated == separated
        assert (played.beyond is not None) == separated
        assert played.reached == 0
        assert play(narrow, budget=budget, noise_std=0.1).span is None


def test_others_that_never_change_are_said_to_hide_nothing(gaussian_sampler) -> None:
    with pytest.raises(ConstantSumError, match="0 of 400 further draws") as caught:
        play(gaussian_sampler(np.eye(DIM), frozen=True))
    assert (caught.value.draws, caught.value.moved) == (SMALL.trials, 0)
    # Noise hides where the others do not.
    assert play(gaussian_sampler(np.eye(DIM), frozen=True), noise_std=1.0).separation >= 0


def test_last_bits_of_equal_updates_hide_nothing(gaussian_sampler) -> None:
    """Single precision leaves 5e-8 of an update; a coordinate near 0 must not count as varying."""

    class Rounded(gaussian_sampler):
        def _draw(self, clients, t, path):
            usual = super()._draw(clients, t, path)
            usual[..., 0] = 0.0
            return usual + 5e-8 * stream(t, *path).standard_normal(usual.shape)

    with pytest.raises(ConstantSumError, match="0 of 60 further draws"):
        play(
            Rounded(np.eye(DIM), frozen=True),
            budget=SampleBudget(fit=15, candidates=5, pilot=10, trials=20),
        )


def test_chunks_change_the_shrinkage_a_little_and_nothing_else(gaussian_sampler) -> None:
    first = play(gaussian_sampler(np.eye(DIM), chunk=50))
    second = play(gaussian_sampler(np.eye(DIM), chunk=400))
    assert first.pair == second.pair
    assert np.corrcoef(first.scores, second.scores)[0, 1] > 0.999


def test_progress_is_told_to_the_end(gaussian_sampler) -> None:
    seen: list[tuple[str, float]] = []
    play(gaussian_sampler(np.eye(DIM)), watch=lambda stage, share: seen.append((stage, share)))
    assert [stage for stage, _ in seen][:2] == ["fit", "candidates"]
    assert ("pilot", 1.0) in seen
    assert seen[-1] == ("test", 1.0)


def test_wrong_arguments_are_named(gaussian_sampler) -> None:
    sampler = gaussian_sampler(np.eye(DIM))
    with refuses("trials"):
        SampleBudget(trials=3)
    with refuses("others"):
        play(sampler, others=0)


WIDTH = 8
ROOT = stream(0, "root").standard_normal((WIDTH, WIDTH))
ROWS = stream(0, "fit").standard_normal((400, WIDTH)) @ ROOT.T
CANDIDATES = stream(0, "candidates").standard_normal((60, WIDTH)) @ ROOT.T + 100.0


def fits() -> list[DenseGaussian | DualGaussian]:
    """Return both forms of the same model."""
    moments = Scatter(WIDTH).add(ROWS).moments()
    return [DenseGaussian.fit(moments, shrinkage=0.1), DualGaussian.fit(ROWS, shrinkage=0.1)]


def test_the_pair_is_that_of_the_mahalanobis_distances() -> None:
    covariance = np.cov(ROWS.T)
    shrunk = 0.9 * covariance + 0.1 * np.diag(np.diagonal(covariance))
    distances = squareform(pdist(CANDIDATES, "mahalanobis", VI=np.linalg.inv(shrunk)))
    expected = np.unravel_index(distances.argmax(), distances.shape)
    for fit in fits():
        found = challenge(CANDIDATES, fit)
        assert set(found.pair) == set(expected)
        assert found.modelled == pytest.approx(distances.max(), rel=1e-3)


def test_scores_have_unit_variance_under_the_model_and_differ_by_the_separation() -> None:
    for fit in fits():
        test = challenge(CANDIDATES, fit)
        assert test.shift == pytest.approx(test.modelled, rel=1e-9)
        covariance = np.cov(ROWS.T)
        shrunk = 0.9 * covariance + 0.1 * np.diag(np.diagonal(covariance))
        assert test.direction @ shrunk @ test.direction == pytest.approx(1.0, rel=1e-3)


def test_equal_candidates_cannot_be_told_apart() -> None:
    for fit in fits():
        test = between(CANDIDATES[0], CANDIDATES[0], fit)
        assert (test.shift, test.modelled) == (0.0, 0.0)
        assert not test.direction.any()


def test_the_farthest_of_two_are_the_two() -> None:
    assert set(farthest_pair(np.array([[1.0, 0.0], [0.0, 1.0]]))) == {0, 1}
    with refuses("candidates"):
        challenge(CANDIDATES[:1], fits()[0])


def test_an_update_is_tested_against_the_candidate_farthest_from_it() -> None:
    covariance = np.cov(ROWS.T)
    shrunk = 0.9 * covariance + 0.1 * np.diag(np.diagonal(covariance))
    inverse = np.linalg.inv(shrunk)
    for fit in fits():
        for update in CANDIDATES[:5] + ROOT[0]:
            gaps = update - CANDIDATES
            farthest_one = np.einsum("ij,jk,ik->i", gaps, inverse, gaps).argmax()
            for rows in (CANDIDATES, CANDIDATES.astype(np.float32)):
                assert Candidates.of(rows, [fit]).against(update).pair == (-1, farthest_one)


def test_forms_of_one_fit_see_the_candidates_as_each_does_alone() -> None:
    fit = DualGaussian.fit(ROWS[:30], shrinkage=0.1)
    forms, centre = [fit, fit.leading(3)], CANDIDATES.mean(axis=0)
    for form, gram in zip(forms, grams(forms, CANDIDATES, centre), strict=True):
        assert np.array_equal(gram, form.gram(CANDIDATES, centre))
