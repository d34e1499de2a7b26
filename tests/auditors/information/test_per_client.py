"""Information about every client from single covariances, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakmeter.auditors.information.theory import each_information
from leakmeter.auditors.rng import stream
from tests.helpers.refusals import refuses


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
