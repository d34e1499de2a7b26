"""The exact test between two updates in a sum of integers: its score, its bound, its attacker."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.noise import RoundedNorms, RoundingGrid
from leakmeter.auditors.verdict.claim import covers
from leakmeter.auditors.wording import Assumption
from leakmeter.clients.protection.noise_mod import to_integers
from leakmeter.papers.ring_noise.integer_sum import IntegerNoise, IntegerSum
from leakmeter.strategies.accounting.accountant import Release
from leakmeter.strategies.accounting.assurance import Assurance
from leakmeter.strategies.protection.mechanism import Distributed

KINDS: tuple[Any, ...] = ("skellam", "discrete-gaussian")
DELTA = 1e-5


def pair(norm: float, dim: int, adjacency: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return two rounded updates of this norm that point away from each other, or one and zero."""
    rng = np.random.default_rng(seed)
    values = np.full(dim, norm / math.sqrt(dim)) * rng.choice([-1, 1], dim)
    limits = RoundedNorms.of(norm, dim)
    first = to_integers(values, limits, rng)
    second = to_integers(-values, limits, rng) if adjacency == "replace" else 0 * first
    return first, second


def guarantee(game: IntegerSum, norm: float, adjacency: str) -> Any:
    """Return what the accountant guarantees against the server in one round."""
    limits = RoundedNorms.of(norm, len(game.first))
    grid = RoundingGrid(1.0, limits.l1, len(game.first), game.shares)
    named = {"distribution": game.noise.distribution, "grid": grid}
    release = Release(math.sqrt(game.shares * game.noise.variance), limits.l2, **named)
    noise = Distributed(1.0, min_honest=game.shares, distribution=game.noise.distribution)
    assurance = Assurance(noise, (release,), 1, is_masked=True, colluders=game.colluders)
    found = assurance.findings(DELTA)
    return next(f for f in found if (f.observer, f.adjacency) == ("server", adjacency))


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_the_exact_log_ratio_of_the_sum(kind: str) -> None:
    """Against a convolution by hand, of three shares in two coordinates."""
    noise = IntegerNoise(kind, 0.8)
    side = np.exp(noise.log_pmf())
    one = np.concatenate([side[:0:-1], side])
    three = np.convolve(np.convolve(one, one), one)
    centre = len(three) // 2
    game = IntegerSum(noise, 3, np.array([2, -1]), np.array([0, 1]))
    total = np.array([1, 2])
    expected = sum(
        math.log(three[centre + total[j] - game.first[j]])
        - math.log(three[centre + total[j] - game.second[j]])
        for j in range(2)
    )
    assert game.scores(total) == pytest.approx([expected])
    assert game.scores(np.array([[1, 2], [1, 2]])) == pytest.approx([expected] * 2)


def test_the_attacker_is_named_and_its_adjacency_follows_from_the_pair() -> None:
    noise, zero = IntegerNoise("skellam", 4.0), np.zeros(3, np.int64)
    game = IntegerSum(noise, 4, np.array([3, 1, 0]), zero, colluders=2)
    assert game.adjacency == "zero-out"
    assert IntegerSum(noise, 4, game.first, -game.first).adjacency == "replace"
    found = game.finding(game.play(partial(noise.sampler.draw, rng=None), 50), delta=DELTA)
    model = found.threat_model
    assert (model.observer, model.sees, model.holds) == ("server", "round sum", "two updates")
    assert (model.game, model.colluders, model.knows_cohort) == ("worst-data", 2, True)
    assert Assumption.KNOWN_REST in found.assumptions
    assert not found.is_conditional
    assert found.facts["distribution"] == "skellam"


@pytest.mark.parametrize(
    "wrong", [{"shares": 0}, {"second": np.zeros(2, np.int64)}, {"second": np.zeros(3)}]
)
def test_what_is_no_game_is_refused(wrong: dict[str, Any]) -> None:
    given = {"shares": 2, "first": np.ones(3, np.int64), "second": np.zeros(3, np.int64)}
    with pytest.raises(ValueError, match="must be"):
        IntegerSum(IntegerNoise("skellam", 1.0), **{**given, **wrong})


def audited(kind: str, adjacency: str, trials: int, cheat: float = 1.0) -> tuple[Any, Any]:
    """Return the bound of a game in 40 dimensions, and the guarantee that it stands against.

    With `cheat` below 1 the clients add that share of the variance that is accounted for.
    """
    norm, dim, shares = 6.0, 40, 3
    limits = RoundedNorms.of(norm, dim)
    noise = IntegerNoise(kind, limits.l2**2 / shares)
    game = IntegerSum(noise, shares, *pair(norm, dim, adjacency), colluders=1)
    real = IntegerNoise(kind, cheat * noise.variance).sampler
    played = game.play(partial(real.draw, rng=np.random.default_rng(7)), trials)
    return game.finding(played, delta=DELTA), guarantee(game, norm, adjacency)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_ten_thousand_runs_stay_below_the_guarantee_and_show_something(
    kind: str, adjacency: str
) -> None:
    bound, limit = audited(kind, adjacency, 10_000)
    assert covers(limit, bound)
    assert 0.5 < bound.value < limit.value


@pytest.mark.slow
def test_clients_that_add_too_little_noise_are_found_out() -> None:
    bound, limit = audited("skellam", "zero-out", 10_000, cheat=0.02)
    assert bound.value > limit.value


def test_a_few_trials_prove_little_and_never_more_than_is_guaranteed() -> None:
    bound, limit = audited("skellam", "replace", 300)
    assert 0 <= bound.value < limit.value
