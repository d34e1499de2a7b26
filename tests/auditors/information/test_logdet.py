"""Log-determinant information: Gaussian truth, single clients, directions and bad input."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from leakmeter.auditors.information.draws import ConstantUpdatesError, leading_directions
from leakmeter.auditors.information.theory import (
    Information,
    each_information,
    gaussian_information,
    jackknife,
    joint_information,
    log_det_bias,
    log_det_std,
    logdet_information,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import RowStore
from tests.helpers.numbers import few_or_many
from tests.helpers.refusals import refuses

Floats = NDArray[np.float64]


def gaussian_sums(dim: int, users: int, draws: int, *path: int) -> tuple[Floats, Floats, Floats]:
    """Return draws of a target, of the sum with it, and of the same sum without it."""
    rng = stream(5, "sums", dim, users, draws, *path)
    x = rng.standard_normal((draws, dim))
    y = math.sqrt(users - 1) * rng.standard_normal((draws, dim))
    return x, x + y, y


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


# The third has hardly more draws than coordinates. Each fails by chance once in 370 seeds.
@pytest.mark.parametrize("runs", few_or_many(40, 400))
@pytest.mark.parametrize(("dim", "users", "draws"), [(1, 2, 30), (10, 5, 40), (30, 20, 32)])
def test_the_mean_over_many_samples_is_the_gaussian_truth(
    dim: int, users: int, draws: int, runs: int
) -> None:
    found = [logdet_information(*gaussian_sums(dim, users, draws, i)[1:]).nats for i in range(runs)]
    mean, error = mean_and_error(found)
    assert abs(mean - gaussian_information(dim, users).nats) < 3 * error


@pytest.mark.parametrize("dim", [1, 10, 100, *few_or_many(400, 1000)])
def test_gaussian_clients_follow_the_formula_within_the_stated_error(dim: int) -> None:
    for users in (2, 20) if dim < 400 else (5,):
        _, with_target, without = gaussian_sums(dim, users, dim + dim // 2 + 50)
        found = logdet_information(with_target, without)
        truth = gaussian_information(dim, users).nats
        assert found.std_error is not None
        assert abs(found.nats - truth) < 3 * found.std_error
        assert found.std_error < 0.1 * truth or dim < 100


def test_unequal_numbers_of_draws_are_corrected_and_would_mislead_uncorrected() -> None:
    corrected, naive = [], []
    for i in range(200):
        _, _, without = gaussian_sums(25, 11, 80, i)
        _, with_target, _ = gaussian_sums(25, 11, 40, i)
        corrected.append(logdet_information(with_target, without).nats)
        naive.append(
            0.5 * np.linalg.slogdet(np.cov(with_target.T))[1]
            - 0.5 * np.linalg.slogdet(np.cov(without.T))[1]
        )
    truth = gaussian_information(25, 11).nats
    mean, error = mean_and_error(corrected)
    assert abs(mean - truth) < 3 * error
    mean, error = mean_and_error(naive)
    assert mean < truth - 10 * error  # forty against eighty draws: even the sign is wrong
    assert mean < 0


@pytest.mark.parametrize(("dim", "users", "draws"), [(5, 2, 200), (50, 2, 100), (40, 20, 50)])
def test_the_standard_error_is_that_of_repeated_samples(dim: int, users: int, draws: int) -> None:
    found = [logdet_information(*gaussian_sums(dim, users, draws, i)[1:]) for i in range(150)]
    scatter = np.std([f.nats for f in found], ddof=1)
    stated = np.sqrt(np.mean([f.std_error**2 for f in found if f.std_error is not None]))
    # 150 repetitions know the spread to 6 %; the stated one may be large, hardly too small.
    assert 0.85 * scatter < stated < 1.6 * scatter


def test_heavy_tails_show_in_the_standard_error() -> None:
    values, stated = [], []
    for i in range(150):
        rng = stream(6, "tails", i)
        x, y = rng.standard_t(6, (80, 20)), rng.standard_t(6, (80, 20))
        found = logdet_information(x + y, y)
        values.append(found.nats)
        stated.append(found.std_error)
    gaussian = [logdet_information(*gaussian_sums(20, 2, 80, i)[1:]).std_error for i in range(20)]
    assert np.mean(stated) > 0.85 * np.std(values)
    assert np.mean(stated) > 1.1 * np.mean(gaussian)


def test_paired_draws_are_less_noisy_than_unrelated_ones() -> None:
    paired, unrelated = [], []
    for i in range(100):
        _, with_target, without = gaussian_sums(10, 20, 40, i)
        paired.append(logdet_information(with_target, without).nats)
        unrelated.append(logdet_information(with_target, gaussian_sums(10, 20, 40, i, 1)[2]).nats)
    assert np.std(paired) < 0.5 * np.std(unrelated)
    assert np.std(unrelated) == pytest.approx(log_det_std(10, 40) / math.sqrt(2), rel=0.25)


# Standard deviations of the figure from unrelated draws, by the trigamma sum.
@pytest.mark.parametrize(
    ("dim", "draws", "std"), [(200, 1000, 0.47277803186676054), (900, 1000, 1.521898926576272)]
)
def test_the_spread_of_a_log_determinant_is_known(dim: int, draws: int, std: float) -> None:
    assert math.sqrt(2) * log_det_std(dim, draws) / 2 == pytest.approx(std, rel=1e-12)


def test_leaving_out_rows_by_leverage_equals_leaving_them_out() -> None:
    _, with_target, without = gaussian_sums(4, 3, 20)
    found = joint_information(with_target, without)
    rows = np.arange(20)
    # The bias of 19 rows, the same for all, does not change their spread.
    slow = np.array(
        [joint_information(with_target[rows != i], without[rows != i]).nats for i in rows]
    )
    assert found.std_error == pytest.approx(
        math.sqrt(19 / 20 * ((slow - slow.mean()) ** 2).sum()), rel=1e-9
    )


def test_unequally_many_draws_have_the_error_of_unrelated_ones() -> None:
    _, with_target, without = gaussian_sums(5, 4, 60)
    found = logdet_information(with_target, without[:40])
    both = math.hypot(log_det_std(5, 60), log_det_std(5, 40))
    assert found.std_error == pytest.approx(both / 2)


def test_the_jackknife_of_a_mean_is_its_textbook_error() -> None:
    values = stream(1, "mean").standard_normal(50)
    left_out = (values.sum() - values) / 49
    textbook = values.std(ddof=1) / math.sqrt(50)
    _, std = jackknife(values.mean(), left_out, np.full(50, 50.0))
    assert std == pytest.approx(textbook)


def test_the_joint_plug_in_is_unbiased_and_raw_it_is_not() -> None:
    found, raw = [], []
    for i in range(200):
        x, z, _ = gaussian_sums(5, 4, 40, i)
        found.append(joint_information(x, z).nats)
        dets = [np.linalg.slogdet(np.cov(a.T))[1] for a in (x, z, np.hstack([x, z]))]
        raw.append((dets[0] + dets[1] - dets[2]) / 2)
    truth = gaussian_information(5, 4).nats
    mean, error = mean_and_error(found)
    assert abs(mean - truth) < 3 * error
    assert np.mean(raw) > truth + 5 * error
    bias = (2 * log_det_bias(5, 40) - log_det_bias(10, 40)) / 2
    assert np.subtract(raw, found) == pytest.approx(bias, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-8, 1e6])
def test_scaling_shifting_and_mixing_coordinates_change_nothing(scale: float) -> None:
    _, with_target, without = gaussian_sums(6, 3, 50)
    mix = stream(2, "mix").standard_normal((6, 6)) * scale
    plain = logdet_information(with_target, without)
    mixed = logdet_information(with_target @ mix + 3 * scale, without @ mix - 5 * scale)
    assert mixed.nats == pytest.approx(plain.nats, abs=1e-9)
    assert mixed.std_error == pytest.approx(plain.std_error, rel=1e-6)


def test_coordinates_that_never_move_are_left_out() -> None:
    _, with_target, without = gaussian_sums(4, 3, 50)
    plain = logdet_information(with_target, without)
    dead = np.full((50, 3), 0.1)
    padded = logdet_information(np.hstack([with_target, dead]), np.hstack([without, dead]))
    assert padded.nats == pytest.approx(plain.nats)
    assert padded.rank == 4


def test_constant_updates_carry_nothing_and_a_lone_mover_everything() -> None:
    constant = np.full((20, 3), 0.7)
    assert logdet_information(constant, constant).nats == 0
    assert joint_information(constant, constant).nats == 0
    x, _, _ = gaussian_sums(3, 2, 20)
    assert logdet_information(x, constant).nats == math.inf
    _, _, y = gaussian_sums(3, 2, 20)
    assert abs(logdet_information(y + 1.0, y).nats) < 1e-12  # a target that always says the same


def test_single_precision_rows_are_read_as_they_are() -> None:
    _, with_target, without = gaussian_sums(10, 5, 60)
    double = logdet_information(with_target, without)
    single = logdet_information(with_target.astype(np.float32), without.astype(np.float32))
    assert single.nats == pytest.approx(double.nats, abs=1e-4)


def test_a_figure_is_limited_by_the_entropy_of_what_is_random() -> None:
    found = Information(2.0, "approximation", "by a model", std_error=0.1)
    assert found.limited(None) is found
    below, above = found.limited(3.0), found.limited(1.5)
    assert (below.nats, below.cap, below.std_error) == (2.0, 3.0, 0.1)
    assert (above.nats, above.cap, above.std_error) == (1.5, 1.5, None)
    assert above.rule != below.rule == found.rule
    assert above.bound().saturated
    assert not below.bound().saturated
    critics = Information(2.0, "estimate", "critic", cap=math.log(4))
    assert critics.limited(3.0).cap == math.log(4)
    assert (critics.bound().value, critics.bound().cap) == pytest.approx((2 / math.log(2), 2.0))
    assert critics.bound().saturated


def low_rank(draws: int, *path: int) -> tuple[Floats, Floats]:
    """Return sums of three users, with and without the target, that move in 3 of 30 directions."""
    basis = np.linalg.qr(stream(3, "basis").standard_normal((30, 3)))[0]
    _, with_target, without = gaussian_sums(3, 3, draws, *path)
    scale = np.array([3.0, 2.0, 1.0])
    return (with_target * scale) @ basis.T, (without * scale) @ basis.T


@pytest.mark.parametrize("draws", [20, 100])  # fewer and more than coordinates
def test_a_subspace_fitted_elsewhere_finds_the_rank_and_the_information(draws: int) -> None:
    subspace = leading_directions(RowStore.of(low_rank(draws)[0]), draws, rank=8)
    assert subspace.rank == 3
    assert subspace.variance_kept == pytest.approx(1.0)
    assert subspace.directions.T @ subspace.directions == pytest.approx(np.eye(3), abs=1e-9)
    found = logdet_information(*(rows @ subspace.directions for rows in low_rank(200, 1)))
    assert found.std_error is not None
    assert abs(found.nats - gaussian_information(3, 3).nats) < 3 * found.std_error
    assert found.rank == 3


Y = gaussian_sums(3, 2, 20)[2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: logdet_information(Y[:3], Y[:3]), "sums_with"),
        (lambda: logdet_information(Y, Y[:, :2]), "sums_without"),
        (lambda: logdet_information(Y * [1, 1, 0], Y), "sums_with"),
        (lambda: logdet_information(Y @ np.ones((3, 2)), Y @ np.ones((3, 2))), "sums_with"),
        (lambda: logdet_information(Y[:, 0], Y), "sums_with"),
        (lambda: logdet_information(Y * math.nan, Y), "sums_with"),
        (lambda: logdet_information([], []), "sums_with"),
        (lambda: joint_information(Y, Y), "x and z together"),
        (lambda: joint_information(Y, Y[:5]), "z"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with refuses(message):
        call()


DRAWS, CLIENTS, DIM, RANK = 6, 5, 200, 3


def drawn(dtype: type[np.floating], dim: int = DIM) -> np.ndarray:
    """Return updates (draws, clients, dim): a few strong directions, a mean for each client."""
    rng = stream(0, "directions", dim)
    strong = rng.standard_normal((DRAWS, CLIENTS, 4)) @ rng.standard_normal((4, dim))
    weak = rng.standard_normal((DRAWS, CLIENTS, dim))
    return (strong + 0.3 * weak + 5 * rng.standard_normal((CLIENTS, dim))).astype(dtype)


def slow(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the projection on the directions and the share of the second half, by SVD."""

    def leading(part: np.ndarray) -> np.ndarray:
        centred = (part - part.mean(axis=0)).reshape(-1, rows.shape[2])
        return np.linalg.svd(centred, full_matrices=False)[2][:RANK].T

    rows = rows.astype(np.float64)
    found, half = leading(rows), DRAWS // 2
    rest = rows[half:] - rows[half:].mean(axis=0)
    along = rest @ leading(rows[:half])
    return found @ found.T, float(np.square(along).sum() / np.square(rest).sum())


# More coordinates than samples, and fewer: products of samples, and of coordinates.
@pytest.mark.parametrize("dim", [DIM, 12])
@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-9), (np.float32, 1e-5)])
def test_directions_are_those_of_the_singular_value_decomposition(dtype, close, dim) -> None:
    rows = drawn(dtype, dim)
    found = leading_directions(RowStore.of(rows.reshape(-1, dim)), DRAWS, RANK)
    projection, share = slow(rows)
    np.testing.assert_allclose(found.directions @ found.directions.T, projection, atol=close)
    np.testing.assert_allclose(found.directions.T @ found.directions, np.eye(RANK), atol=1e-9)
    assert found.variance_kept == pytest.approx(share, rel=close)


def test_a_constant_half_shows_no_share_of_its_own() -> None:
    rows = drawn(np.float64)
    rows[: DRAWS // 2] = rows[0]
    found = leading_directions(RowStore.of(rows.reshape(-1, DIM)), DRAWS, RANK)
    assert found.variance_kept == pytest.approx(1.0)  # of all directions that there are
    rows[:] = rows[0]
    with pytest.raises(ConstantUpdatesError, match="every update is the same"):
        leading_directions(RowStore.of(rows.reshape(-1, DIM)), DRAWS, RANK)


def gaussians(key: int, draws: int, spreads: np.ndarray, rank: int) -> np.ndarray:
    """Return draws of independent Gaussian clients, each with a spread of its own."""
    return stream(key, "each").standard_normal((draws, len(spreads), rank)) * spreads[:, None]


def truth(spreads: np.ndarray, rank: int, noise_std: float) -> np.ndarray:
    """Return ½ d ln(Σ_z / Σ_y) for such clients."""
    variances = spreads**2
    total = variances.sum() + noise_std**2
    return rank / 2 * np.log(total / (total - variances))


@pytest.mark.parametrize(
    ("draws", "clients", "rank", "noise_std", "runs"),
    [
        *((16, 30, 8, 0.0, 25), (60, 2, 6, 3.0, 25), (40, 5, 1, 0.0, 25), (25, 12, 12, 3.0, 25)),
        *(
            pytest.param(*sizes, 40, marks=pytest.mark.slow)
            for sizes in ((16, 30, 8, 3.0), (60, 2, 6, 0.0), (40, 5, 1, 3.0), (25, 12, 12, 0.0))
        ),
    ],
)
def test_it_follows_the_closed_form_and_states_its_error(
    draws, clients, rank, noise_std, runs
) -> None:
    spreads = np.linspace(0.5, 2.0, clients)
    found = [
        each_information(gaussians(key, draws, spreads, rank), noise_std=noise_std)
        for key in range(runs)
    ]
    values = np.stack([f.nats for f in found])
    spread = values.std(axis=0, ddof=1)
    # Three standard errors over clients that share draws, and 1.5 % for what is left of the bias.
    off = np.abs(values.mean(axis=0) - truth(spreads, rank, noise_std))
    assert (off < 3.5 * spread / math.sqrt(runs) + 0.015 * truth(spreads, rank, noise_std)).all()
    stated = np.stack([f.std_error for f in found]).mean(axis=0)
    assert 0.85 < np.median(stated / spread) < 1.3


def test_single_covariances_are_far_more_exact_than_drawn_sums() -> None:
    from leakmeter.auditors.information.theory import logdet_information

    errors = {"sums": [], "single": []}
    exact = truth(np.ones(20), 4, 0.0)[0]
    for key in range(30):
        rows = gaussians(key, 30, np.ones(20), 4)
        total = rows.sum(axis=1)
        errors["sums"].append(logdet_information(total, total - rows[:, 0]).nats - exact)
        errors["single"].append(each_information(rows).nats[0] - exact)
    assert np.std(errors["sums"]) > 2.5 * np.std(errors["single"])


def test_the_mean_over_clients_has_its_own_smaller_error() -> None:
    found = each_information(gaussians(1, 16, np.ones(30), 8))
    mean = found.of(None)
    assert mean.nats == pytest.approx(truth(np.ones(30), 8, 0.0)[0], rel=0.02)
    assert mean.std_error is not None
    assert mean.std_error < found.std_error.mean() / 5
    assert found.of(3).nats == found.nats[3]
    assert mean.kind == "approximation"


def test_an_update_that_never_varies_gives_nothing_away() -> None:
    rows = gaussians(2, 20, np.array([0.0, 1.0, 1.0, 1.0]), 3) + 5.0
    found = each_information(rows)
    assert abs(found.nats[0]) < 1e-9
    assert (found.nats[1:] > 0.1).all()
    assert not each_information(np.ones((6, 5, 2))).nats.any()


def test_an_update_that_nobody_hides_is_given_away() -> None:
    rows = gaussians(3, 20, np.array([1.0, 0.0, 0.0, 0.0, 0.0]), 2)
    assert each_information(rows).nats[0] == math.inf
    assert each_information(rows).of(0).std_error is None
    alone = each_information(rows, noise_std=2.0)
    assert alone.nats[0] == pytest.approx(math.log(1 + 1 / 4), abs=4 * alone.std_error[0])
    # A direction of its own is enough.
    own = gaussians(4, 20, np.ones(5), 2)
    own[:, 1:, 1] = 0.0
    assert each_information(own).nats[0] == math.inf


def test_scaling_changes_nothing_and_a_projection_tells_less() -> None:
    rows = gaussians(5, 40, np.linspace(1, 2, 6), 5)
    mixed = rows @ stream(5, "mix").standard_normal((5, 5)) * 1e-4
    assert each_information(mixed).nats == pytest.approx(each_information(rows).nats, rel=1e-6)
    assert (each_information(rows[..., :2]).nats < each_information(rows).nats).all()


@pytest.mark.parametrize(
    ("shape", "noise_std", "words"),
    [
        ((3, 4, 2), 0.0, "draws"),
        ((8, 3), 0.0, "rows"),
        ((8, 3, 2), -1.0, "noise_std"),
        ((8, 2, 20), 0.0, "rank"),
    ],
)
def test_wrong_arguments_are_named(shape, noise_std, words) -> None:
    with refuses(words):
        each_information(np.ones(shape), noise_std=noise_std)
