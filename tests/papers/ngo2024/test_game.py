"""The published audit of a secure sum, in small: what must hold in each of its games."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from leakmeter.auditors.bounds.lower_bound import Fixed, epsilon_lower_bound
from leakmeter.auditors.finding import Game
from leakmeter.auditors.likelihood_ratio.game import SampleBudget, between, play_game
from leakmeter.papers.base import CELLS, Cells, Table
from leakmeter.papers.ngo2024.game import (
    Setting,
    _attack,
    _challenges,
    _judged,
    _stream,
    _sums,
    audit,
    sampler_of,
)
from leakmeter.papers.ngo2024.secure_sum import _GAMES, _SCALES, run
from tests.auditors.conftest import GaussianSampler
from tests.helpers.rounds import audited_round

# 20 clients of 30 records each: 189 free parameters, fitted from 1,500 updates.
SMALL = Setting(
    "synthetic",
    models=2,
    clients=20,
    sums=(10, 18),
    fit=1500,
    candidates=60,
    trials=300,
    pilot=50,
    block=150,
    synthetic_examples=600,
)
# Enough for what does not depend on the numbers.
FEW = replace(SMALL, models=1, fit=400, candidates=20, trials=20, pilot=20, block=10)


def quiet(folder: Path) -> Cells:
    """Return cells that say nothing."""
    return Cells(folder, lambda _: None)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict]]:
    """Return all games, played once for all tests."""
    folder = tmp_path_factory.mktemp("cells")
    return {game: audit(SMALL, game, quiet(folder)) for game in _GAMES}


def test_the_attack_gets_stronger_with_clients_where_they_share_one_data_set(played) -> None:
    few, many = (np.median(played["partition"][n]["separation"]) for n in ("10", "18"))
    assert many > 1.2 * few


def test_the_attack_gets_weaker_with_independent_clients(played) -> None:
    few, many = (np.median(played["independent"][n]["separation"]) for n in ("10", "18"))
    assert many < 0.9 * few
    # As 1/√n: 300 trials leave 4 % of doubt about each.
    assert many / few == pytest.approx(np.sqrt(9 / 17), rel=0.2)


@pytest.mark.parametrize("size", ["10", "18"])
def test_the_attack_is_stronger_where_the_pairs_records_are_held_out(played, size: str) -> None:
    """The two conventions for independent clients are two games.

    The separations are 1.23 times larger. 300 trials leave an error of 6 % (one standard error) of
    the ratio, so it is below 1.05 with a chance of 1 %; the seed is fixed.
    """
    held_out, all_records = (
        np.median(played[game][size]["separation"])
        for game in ("independent-held-out", "independent")
    )
    assert held_out > 1.05 * all_records


def test_one_fixed_threshold_shows_more_than_the_band_where_it_makes_no_error(played) -> None:
    """The band alone shows at most 3.72 with 300 trials, four fifths of the failures 4.33."""
    got = played["partition"]["18"]
    assert got["cap"] == pytest.approx(4.333, abs=1e-3)
    assert got["epsilon"] == pytest.approx([got["cap"]] * SMALL.models)


def test_a_threshold_named_beforehand_shows_what_the_paper_states_if_it_makes_no_error() -> None:
    """5,000 trials without an error: δ > 0.1 at ε = 7, but 0.04 with half of the failures."""
    scores = np.linspace(-1.0, 1.0, 5000)[None]
    [[whole], [half]] = _judged(np.array([10.0]), scores, np.array([5.0]), 1.0)["fixed"]
    assert (whole["epsilon"], half["epsilon"]) == pytest.approx((7.21, 7.04), abs=0.005)
    assert (whole["delta"], half["delta"]) == pytest.approx((0.19, 0.04), abs=0.005)
    # With errors: the ε that is proven at this δ is 7.
    scores = np.append(scores, [[6.0]], axis=1)
    [[one], _] = _judged(np.array([30.0]), scores, np.array([5.0]), 1.0)["fixed"]
    at_delta = epsilon_lower_bound(scores[0] + 30, scores[0], delta=one["delta"], rule=Fixed(5.0))
    assert at_delta.value == pytest.approx(7.0)


def test_sums_of_one_data_set_vary_less_than_those_of_independent_clients(played) -> None:
    # With two candidates' records apart, n of 18 who share the rest have (18 - n) / 17 of the
    # variance, and what batches add.
    for size in ("10", "18"):
        expected = (18 - (int(size) - 1)) / 17
        shared = played["partition"][size]["variance_ratio"]
        assert expected - 0.12 < shared < expected + 0.3
        for game in ("independent", "independent-held-out"):
            assert played[game][size]["variance_ratio"] == pytest.approx(1, abs=0.2)


def test_bounds_stay_below_their_cap_and_the_printed_error_flatters(played) -> None:
    for game in played.values():
        for got in game.values():
            assert len(got["epsilon"]) == SMALL.models
            assert all(0 <= e <= got["cap"] + 1e-9 for e in got["epsilon"])
            assert all(p <= b for p, b in zip(got["error_as_printed"], got["error"], strict=True))


def test_an_interrupted_experiment_computes_only_what_is_missing(tmp_path: Path) -> None:
    said: list[str] = []

    def played(setting: Setting) -> tuple[dict, list[str]]:
        """Return the result, and which cells had to be computed."""
        del said[:]
        done = audit(setting, "independent", Cells(tmp_path, said.append))
        return done, [line.strip().partition(":")[0] for line in said]

    first, (_, _, _, block, whole) = played(FEW)  # attack, pilot, two blocks, and all together
    assert whole == "synthetic-iid-independent-1x400x20x20x20"
    assert block == "synthetic-iid-independent-1x400x20-trials-10"
    kept = (tmp_path / CELLS).read_text().splitlines(keepends=True)
    left = [k for k in kept if f'"{whole}"' not in k and f'"{block}"' not in k]
    (tmp_path / CELLS).write_text("".join(left))
    assert played(FEW) == (first, [block, whole])
    # More trials go on where these have ended.
    _, more = played(replace(FEW, trials=30))
    assert [name.rpartition("-")[2] for name in more] == ["20", "1x400x20x30x20"]


@pytest.mark.parametrize("game", ["partition", "independent-held-out"])
def test_the_audit_that_users_run_has_the_same_scores_on_the_same_draws(game: Game) -> None:
    """`play_game` with one model and one size; it adds up in another order, in single precision.

    In the game "independent" its pilot needs no sums, so its threshold is another.
    """
    one = replace(SMALL, models=1, sums=(18,), trials=60)
    sampler, (model,) = sampler_of(one, game)
    budget = SampleBudget(
        fit=one.fit, candidates=one.candidates, pilot=one.pilot, trials=one.trials
    )
    audited = audited_round(sampler, model, one.others)
    played = play_game(audited, budget=budget, stream=_stream(one, game))
    attack = _attack(one, game)
    assert set(attack["pair"]) == set(played.pair)
    assert attack["shifts"] == pytest.approx([played.shift], rel=1e-5)
    for stage, draws in (("pilot", one.pilot), ("test", one.trials)):
        scores = _sums(one, game, attack, stage, range(draws))["scores"][0, 0]
        if stage == "pilot":
            middle = scores.mean() + played.shift / 2
            assert middle == pytest.approx(played.middle, abs=1e-4)
        else:
            assert scores == pytest.approx(played.scores, abs=1e-4)  # a standard deviation is 1


def test_the_page_has_a_line_for_each_game_and_size_and_a_figure(tmp_path: Path) -> None:
    with patch.dict(_SCALES["mnist"], small=FEW):
        page = run("small", quiet(tmp_path), "mnist")
    assert isinstance(page, Table)
    games = ("partition", "independent-held-out")
    assert [row[:3] for row in page.rows] == [
        ("even", game, size) for game in games for size in ("10", "18")
    ]
    assert [len(row) for row in page.rows] == [len(page.columns)] * 4
    assert all(all(row[-3:]) for row in page.rows)  # what the threshold of the pilot shows
    assert "never a mean of ε" in page.to_markdown()
    assert len(page.figures["curves.svg"]) == 4


def test_skewed_labels_are_drawn_in_two_ways_and_their_title_says_how_clients_are_weighted(
    tmp_path: Path,
) -> None:
    with patch.dict(_SCALES["mnist-skewed"], paper=FEW):
        page = run("paper", quiet(tmp_path), "mnist-skewed")
    assert "skewed labels" in page.title
    assert "weighted by their images" in page.title
    assert len({row[0] for row in page.rows}) == 2
    assert all(row[-3] for row in page.rows)
    assert [row.source for row in page.comparisons] == ["Ngo et al. 2024, Fig. 4"] * 2


@pytest.mark.parametrize("effect", [0.0, 3.0])
def test_several_models_share_the_pair_that_is_farthest_apart_on_average(
    effect: float,
) -> None:
    class Moved(GaussianSampler):
        """A model scales the updates of the target along its own coordinate."""

        def sample(self, model, clients, draws, path, *, project=None):
            for chunk in super().sample(model, clients, draws, path):
                scaled = chunk * (1 + effect * model) if list(clients) == [0] else chunk
                yield scaled if project is None else scaled @ project

    sampler, models = Moved(np.eye(10)), np.eye(10)[:3]
    others, names = range(1, 5), ("t", 0)
    budget = SampleBudget(fit=400, candidates=30, pilot=60, trials=400)
    tests = _challenges(sampler, models, 0, others, budget=budget, stream=names)
    each = [
        _challenges(sampler, m[None], 0, others, budget=budget, stream=names)[0] for m in models
    ]
    assert len({test.pair for test in tests}) == 1
    mean = np.mean([test.modelled**2 for test in tests])
    for own, model in zip(each, models, strict=True):
        # With one model it is the pair of the game itself, with its test.
        played = play_game(audited_round(sampler, model, others), budget=budget, stream=names)
        assert (own.pair, own.shift) == (played.pair, pytest.approx(played.shift, rel=1e-9))
        rows = [
            np.concatenate(list(sampler.sample(m, [0], 30, (*names, "candidates")))) for m in models
        ]
        pairs = [
            between(found[own.pair[0], 0], found[own.pair[1], 0], test.distribution)
            for found, test in zip(rows, tests, strict=True)
        ]
        assert np.mean([test.modelled**2 for test in pairs]) <= mean * (1 + 1e-9)
    assert ({own.pair for own in each} == {tests[0].pair}) == (effect == 0)
