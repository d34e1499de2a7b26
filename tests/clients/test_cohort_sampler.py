"""The sampler against the plain rule, its games against their laws, and what may not matter."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors.rng import stream
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.sampler import (
    CohortSampler,
    Dealt,
    Fresh,
    Generated,
    Generators,
    Kept,
    Listed,
)
from leakmeter.clients.update import LocalSteps, UpdateRule, fedavg, fedsgd, gd
from tests.helpers.refusals import refuses

RECORDS, CLIENTS, DIM = 120, 6, 15
RULE = fedavg(epochs=1, batch_size=8, lr=0.2)


def shuffled(pool: np.ndarray, shares: int, rng: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(rng.permutation(pool), shares)


def chosen(pool: np.ndarray, shares: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(pool, len(pool) // shares, replace=False)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    rng = stream(0, "data")
    y = rng.integers(0, 3, RECORDS)
    x = rng.standard_normal((RECORDS, 4)) + 2 * np.eye(3, 4)[y]
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


def module() -> nn.Module:
    net = nn.Linear(4, 3)
    weights = stream(0, "model").standard_normal(DIM).astype(np.float32) / 3
    vector_to_parameters(torch.from_numpy(weights), net.parameters())
    return net


MODEL = parameters_to_vector(module().parameters()).detach().numpy().astype(np.float64)
UNEQUAL = tuple(np.split(np.arange(RECORDS), [10, 25, 50, 70, 100]))


def sampler(game: str = "rerun", rule: UpdateRule = RULE, **options: Any) -> CohortSampler:
    pool = np.arange(RECORDS)
    source = {
        "rerun": Kept(UNEQUAL),
        "partition": Dealt(pool=pool, num_clients=CLIENTS, deal=shuffled),
        "independent": Fresh(pool=pool, num_clients=CLIENTS, draw=chosen),
        "independent-held-out": Fresh(pool=pool, num_clients=CLIENTS, draw=chosen, holds_out=True),
    }[game]
    return CohortSampler(Cohort(module(), rule), data(), source, seed=3, **options)


def rows(of: CohortSampler, asked: Any = range(CLIENTS), draws: int = 5, **options: Any) -> Any:
    return np.concatenate(list(of.sample(MODEL, asked, draws, ("test", 1), **options)), axis=0)


def plain(game: str, rule: LocalSteps, draw: int, client: int) -> np.ndarray:
    """Return one row by the plain rule."""
    x, y = data()
    rng = Generators(3, "test", 1, "client")(draw, client)
    pool = np.arange(RECORDS)
    if game == "rerun":
        held = UNEQUAL[client]
    elif game == "partition":
        held = shuffled(pool, CLIENTS, Generators(3, "test", 1, "deal")(draw))[client]
    else:
        held = chosen(pool, CLIENTS, rng)
    net = copy.deepcopy(module())
    done = rule(net, x[held], y[held], rng)
    update = parameters_to_vector(net.parameters()).detach().numpy() - MODEL
    mean = min(RECORDS / CLIENTS, 8 if rule.is_one_step else RECORDS)
    return done.num_examples / mean * update


@pytest.mark.parametrize("game", ["rerun", "partition", "independent"])
@pytest.mark.parametrize("rule", [RULE, fedsgd(8, 0.3)])
def test_rows_are_the_plain_rules_updates_times_relative_weight(game, rule) -> None:
    found = rows(sampler(game, rule))
    assert found.shape == (5, CLIENTS, DIM)
    assert found.dtype == np.float32
    twin = [[plain(game, rule, draw, c) for c in range(CLIENTS)] for draw in range(5)]
    np.testing.assert_allclose(found, twin, atol=2e-6)


@pytest.mark.parametrize("game", ["rerun", "partition", "independent"])
def test_who_else_is_asked_for_and_in_what_chunks_changes_nothing(game: str) -> None:
    everyone = rows(sampler(game), draws=7)
    for chunk, asked in ((1, [4]), (5, [1, 4]), (1000, [4, 0, 2])):
        found = rows(sampler(game, chunk=chunk), asked, draws=7)
        np.testing.assert_allclose(found, everyone[:, asked], atol=1e-6)
    late = rows(sampler(game), draws=3, first=4)
    np.testing.assert_allclose(late, everyone[4:], atol=1e-6)
    of = sampler(game, chunk=13)
    assert [len(part) for part in of.sample(MODEL, range(CLIENTS), 5, ("test", 1))] == [2, 2, 1]
    assert len(np.unique(everyone[:, 0].round(7), axis=0)) == 7  # draws differ, and so do streams
    other = np.concatenate(list(of.sample(MODEL, [0], 7, ("test", 2))))[:, 0]
    assert not np.isclose(everyone[:, 0], other, atol=1e-7).all(axis=1).any()


@pytest.mark.parametrize("game", ["rerun", "partition", "independent"])
def test_sums_and_projections_are_of_the_same_draws(game: str) -> None:
    of, matrix = sampler(game), stream(0, "matrix").standard_normal((DIM, 2))
    found = rows(of).astype(np.float64)
    projected = rows(of, project=matrix)
    assert projected.dtype == np.float64
    # Weights are applied to projections in double precision, to updates in their own.
    np.testing.assert_allclose(projected, found @ matrix, rtol=1e-5, atol=1e-7)
    sums = np.concatenate(list(of.sums(MODEL, range(CLIENTS), 5, ("test", 1))))
    np.testing.assert_allclose(sums, found.sum(axis=1), rtol=1e-12, atol=1e-12)
    both = np.concatenate(list(of.sums(MODEL, range(CLIENTS), 5, ("test", 1), project=matrix)))
    np.testing.assert_allclose(both, projected.sum(axis=1), atol=1e-12)


def test_several_models_share_the_batches_of_each() -> None:
    of, models = sampler("partition"), np.stack([MODEL, 0.5 * MODEL])
    matrix = stream(0, "matrix").standard_normal((2, DIM, 1))
    asked = {"clients": range(CLIENTS), "draws": 5, "stream": ("test", 1)}
    found = np.concatenate(list(of.sample(models, **asked)), axis=1)
    projected = np.concatenate(list(of.sample(models, **asked, project=matrix)), axis=1)
    sums = np.concatenate(list(of.sums(models, **asked, project=matrix[0])), axis=1)
    assert found.shape == (2, 5, CLIENTS, DIM)
    for i, model in enumerate(models):
        alone = np.concatenate(list(of.sample(model, **asked)))
        np.testing.assert_allclose(found[i], alone, atol=1e-6)
        np.testing.assert_allclose(projected[i], alone @ matrix[i], atol=1e-5)
        np.testing.assert_allclose(sums[i], (alone @ matrix[0]).sum(axis=1), atol=1e-5)
    each = of.moments_each(models, range(CLIENTS), 60, ("fit",))
    other = of.moments(models[1], range(CLIENTS), 60, ("fit",))
    np.testing.assert_allclose(each[1].covariance, other.covariance, atol=1e-6)


def test_rows_times_scale_over_weight_are_updates_and_equal_weights_leave_them_as_they_are() -> (
    None
):
    of, equal = sampler(), sampler(weighted=False)
    assert (of.scale, equal.scale) == (RECORDS / CLIENTS, 1.0)
    sizes = np.array([len(part) for part in UNEQUAL])
    updates = rows(of) * of.scale / sizes[:, None]
    np.testing.assert_allclose(rows(equal), updates, atol=1e-6)
    mean = of.scale / sizes.sum() * rows(of).sum(axis=1)
    np.testing.assert_allclose(mean, sizes @ updates / sizes.sum(), atol=1e-6)


# Laws of the games.


def test_moments_of_reruns_are_the_sum_of_each_clients_own() -> None:
    found = sampler(chunk=32).moments(MODEL, range(CLIENTS), 50, ("test", 1))
    redraws = rows(sampler(), draws=50).astype(np.float64)
    twin = sum(np.cov(redraws[:, client].T) for client in range(CLIENTS))
    np.testing.assert_allclose(found.covariance, twin, atol=1e-6)
    np.testing.assert_allclose(found.mean, redraws.mean(axis=0).sum(axis=0), atol=1e-5)


@pytest.mark.parametrize("game", ["partition", "independent"])
def test_moments_fit_the_sums_of_their_own_game_and_not_of_the_other(game: str) -> None:
    # Five of six clients: a deal leaves little room for their sum, fresh data leave much.
    other = {"partition": "independent", "independent": "partition"}[game]
    asked = range(CLIENTS - 1)
    sums = np.concatenate(list(sampler(game).sums(MODEL, asked, 1500, ("sums",))))
    spread = np.var(sums, axis=0)
    fitted, wrong = (
        np.diag(sampler(g).moments(MODEL, asked, 340, ("fit",)).covariance) for g in (game, other)
    )
    assert 0.75 < np.mean(fitted / spread) < 1.33
    assert not 0.6 < np.mean(wrong / spread) < 1.67


def test_deals_are_negatively_dependent_and_fresh_draws_are_not() -> None:
    def dependence(game: str) -> float:
        found = rows(sampler(game), draws=400).astype(np.float64)
        centred = found - found.mean(axis=(0, 1))
        return float((centred[:, 0] * centred[:, 1]).mean() / (centred**2).mean())

    assert -1 / 5 - 0.06 < dependence("partition") < -0.08  # -1/(n - 1) but for the batches
    assert abs(dependence("independent")) < 0.04


# Setting records apart.


@pytest.mark.parametrize("game", ["partition", "independent-held-out"])
def test_others_never_see_what_the_target_held(game: str) -> None:
    x, y = data()
    of = sampler(game)
    held = of.held(2, ("candidates",), [3, 8])
    assert 20 < len(held) <= 40
    spoilt = x.clone()
    spoilt[held] = float("nan")
    rest = of.on(Listed(spoilt, y)).excluding_drawn(2, ("candidates",), [3, 8])
    assert rest.scale == of.scale
    assert np.isfinite(rows(rest, [0, 1, 3, 4, 5], draws=20)).all()
    assert not np.isfinite(rows(of.on(Listed(spoilt, y)), draws=20)).all()
    with refuses("clients"):
        rest.moments(MODEL, [0, 1, 2], 10, ("fit",))


def test_independent_clients_may_hold_what_the_target_held() -> None:
    """The data of the others do not depend on the pair, so its records are not held out."""
    x, y = data()
    of = sampler("independent", holdings=UNEQUAL)
    held = of.held(2, ("candidates",), [3, 8])
    spoilt = x.clone()
    spoilt[held] = float("nan")
    rest = of.on(Listed(spoilt, y)).excluding_drawn(2, ("candidates",), [3, 8])
    assert not np.isfinite(rows(rest, [0, 1, 3, 4, 5], draws=20)).all()
    others = [0, 1, 3, 4, 5]
    reruns = sampler()
    np.testing.assert_array_equal(rows(reruns.excluding_drawn(2, ("c",), [1])), rows(reruns))
    np.testing.assert_array_equal(reruns.held(2, ("c",), [1, 4]), UNEQUAL[2])
    assert len(reruns.held(2, ("c",), [])) == 0
    assert sampler("independent-held-out").excluding_real(2) is None
    assert sampler("independent-held-out", holdings=UNEQUAL).excluding_real(2) is not None
    for same in (
        of.excluding_drawn(2, ("candidates",), [3, 8]),
        of.excluding_real(2),
        sampler("independent"),
    ):
        assert same is not None
        np.testing.assert_array_equal(rows(same, others), rows(of, others))


def test_held_out_records_move_the_sum_of_the_others_away_from_the_target() -> None:
    """Without the records of the target the sum lacks what the target sends.

    The shift is 13 standard errors of 400 draws with held-out records, and 0 without. The test
    asks for 6, so it fails by chance with less than 1e-8.
    """
    apart = (2, ("candidates",), [3])
    shifts = {}
    for game in ("independent", "independent-held-out"):
        of = sampler(game)
        own = np.concatenate(list(of.sample(MODEL, [2], 1, ("candidates",), first=3)))[0, 0]
        usual = np.concatenate(list(of.sums(MODEL, [0, 1, 3, 4, 5], 400, ("a",))))
        rest = np.concatenate(
            list(of.excluding_drawn(*apart).sums(MODEL, [0, 1, 3, 4, 5], 400, ("b",)))
        )
        direction = own - usual.mean(axis=0) / 5
        scores = rest @ direction, usual @ direction
        error = np.hypot(*(score.std() / 20 for score in scores))
        shifts[game] = (scores[0].mean() - scores[1].mean()) / error
    assert abs(shifts["independent"]) < 6
    assert shifts["independent-held-out"] < -6


def test_a_candidate_held_just_the_records_that_are_set_apart() -> None:
    of, (x, y) = sampler("partition"), data()
    spoilt = torch.full_like(x, float("nan"))
    held = of.held(2, ("test", 1), [3])
    spoilt[held] = x[held]
    found = next(of.on(Listed(spoilt, y)).sample(MODEL, [2], 1, ("test", 1), first=3))
    np.testing.assert_allclose(found[0, 0], rows(of)[3, 2], atol=1e-6)


@pytest.mark.parametrize("game", ["rerun", "partition", "independent"])
def test_moments_of_a_large_model_leave_out_redundant_coordinates(
    game: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = sampler(game)
    model = np.zeros(of._cohort.dim, np.float32)
    asked = (model, [0, 1], 30, ("fit",))
    full = of.moments(*asked)
    monkeypatch.setattr("leakmeter.clients.sampler.RUNNING_FROM", 1)
    some = of.moments(*asked)
    assert of.free is not None
    assert full.columns is None
    np.testing.assert_array_equal(some.columns, of.free)
    np.testing.assert_allclose(some.mean, full.mean[of.free], atol=1e-12)
    # Deals share one factor, a mean over the coordinates that are there.
    rtol = 0.2 if game == "partition" else 1e-9
    expected = full.scatter[np.ix_(of.free, of.free)]
    np.testing.assert_allclose(some.scatter, expected, rtol=rtol, atol=1e-15)


# The mechanism.


def test_clipping_is_part_of_every_row_and_ends_redundancy() -> None:
    of, loose, tight = sampler(), sampler(clip_norm=1e3), sampler(clip_norm=0.05, weighted=False)
    assert of.free is not None
    assert tight.free is None
    np.testing.assert_allclose(np.linalg.norm(rows(tight), axis=2), 0.05, rtol=1e-5)
    np.testing.assert_allclose(rows(loose), rows(of), rtol=1e-6)
    two = next(tight.sample(np.stack([2 * MODEL, MODEL]), range(CLIENTS), 5, ("test", 1)))
    np.testing.assert_allclose(two[1], rows(tight), atol=1e-6)
    matrix = np.eye(DIM)[:, :2]
    np.testing.assert_allclose(rows(tight, project=matrix), rows(tight)[..., :2], atol=1e-12)


# The rest.


@pytest.mark.parametrize("game", ["partition", "independent"])
def test_kept_data_are_the_same_in_every_call_and_batches_are_not(game: str) -> None:
    plain, kept = sampler(game), sampler(game).keeping(("data", 1))
    streams = ("round", 1), ("round", 2)
    held = [kept.held(2, stream, [4]).tolist() for stream in streams]
    assert held[0] == held[1] != kept.held(2, streams[0], [5]).tolist()
    assert plain.held(2, streams[0], [4]).tolist() != plain.held(2, streams[1], [4]).tolist()

    def drawn(rule: UpdateRule) -> list[np.ndarray]:
        of = sampler(game, rule).keeping(("data", 1))
        return [np.concatenate(list(of.sample(MODEL, [2, 3], 4, stream))) for stream in streams]

    first, second = drawn(gd(lr=0.2, steps=1))  # nothing but the data is random
    assert np.array_equal(first, second)
    first, second = drawn(RULE)
    assert not np.isclose(first, second).all(axis=-1).any()


@pytest.mark.parametrize("game", ["partition", "independent", "independent-held-out"])
def test_kept_data_do_not_depend_on_who_else_is_asked_for(game: str) -> None:
    """Cohorts change between rounds, and a stand-in is asked for alone: no share has two owners."""
    of = sampler(game, gd(lr=0.2, steps=1), weighted=False)
    kept = of.excluding_drawn(1, ("candidates",), [0, 3]).keeping(("data", 1))
    everyone = rows(kept, [0, 2, 3, 4, 5])
    for place, client in enumerate((0, 2, 3, 4, 5)):
        np.testing.assert_array_equal(rows(kept, [client])[:, 0], everyone[:, place])
    np.testing.assert_array_equal(rows(kept, [3, 5]), everyone[:, [2, 4]])
    if game == "partition":
        held = [kept.held(client, ("any",), [2]) for client in (0, 2, 3, 4, 5)]
        together = np.concatenate([*held, of.held(1, ("candidates",), [0, 3])])
        assert sorted(together) == list(range(RECORDS))


def test_wrong_settings_name_field_range_and_value() -> None:
    for asked in ([0, 6], [1, 1]):
        with refuses("clients"):  # at the call, not with the first chunk
            sampler().sample(MODEL, asked, 5, ("test", 1))
        with refuses("clients"):
            sampler("independent").moments(MODEL, asked, 5, ("test", 1))
    with refuses("chunk"):
        sampler(chunk=0)
    for norm in (0.0, -1.0, float("nan"), float("inf")):
        with refuses("clip_norm"):
            sampler(clip_norm=norm)
    x, y = data()
    with pytest.raises(ValueError, match=r"y must have one label per record \(120\), got 119"):
        CohortSampler(Cohort(module(), RULE), (x, y[1:]), Kept(UNEQUAL), seed=0)
    with pytest.raises(ValueError, match="clients must be at least one, got none"):
        sampler().moments(MODEL, [], 10, ("fit",))


@pytest.mark.parametrize(("slow", "trained"), [(0.0, [1, 1, 32]), (1.0, [1, 1])])
def test_the_time_of_an_update_is_measured_on_few_of_them(
    slow: float, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, asked, clock = sampler(), [], [0.0]
    updates = Cohort.updates

    def counted(self: Cohort, start: Any, x: Any, y: Any, records: Any, *rest: Any) -> Any:
        asked.append(len(records))
        clock[0] += slow * len(records)
        return updates(self, start, x, y, records, *rest)

    monkeypatch.setattr(Cohort, "updates", counted)
    monkeypatch.setattr("leakmeter.clients.sampler.time.process_time", lambda: clock[0])
    before = rows(of)
    asked.clear()
    assert of.seconds(np.zeros(DIM), 2) == slow
    assert asked == trained
    np.testing.assert_array_equal(rows(of), before)


# Records that are made on demand.


def test_generated_records_give_the_numbers_of_listed_ones_bit_for_bit() -> None:
    x, y = data()
    asked: list[int] = []

    def made(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.append(len(records))
        return x.numpy()[records], y.numpy()[records]

    listed = sampler(chunk=12)
    lazy = listed.on(Generated(made, bytes_each=0))
    np.testing.assert_array_equal(rows(lazy), rows(listed))
    assert asked == [2 * RECORDS, 2 * RECORDS, RECORDS]  # two draws a piece, and never all at once
    cohort = Cohort(module(), RULE)
    for bytes_each, most in ((2**14, 2048), (2**20, 64), (2**30, 1)):  # they count in its size
        large = CohortSampler(cohort, Generated(made, bytes_each), Kept(UNEQUAL), seed=3)
        assert large._chunk == most


def test_listed_records_travel_whole_and_a_sampler_without_them() -> None:
    x, y = data()
    there = pickle.loads(pickle.dumps(Listed(x, y)))
    assert torch.equal(there.x, x)
    assert torch.equal(there.y, y)
    of = sampler()
    sent = pickle.dumps(of.on(None))
    assert len(sent) < len(pickle.dumps(of)) - 4 * x.numel()
    np.testing.assert_array_equal(rows(pickle.loads(sent).on(there)), rows(of))
