"""P-values of canaries: exact where a formula is, honest where a simulation stands in."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import t as student

from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.canaries.proofs import cosine_logsf, largest_cosine_log_p, prove
from leakmeter.auditors.canaries.transcript import null_maxima
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.andrew2024.gaussian_sum import simulate_cosines

DELTA = 1e-6


@pytest.mark.parametrize("dim", [3, 100, 101, 7850, 10**6, 10**7])
def test_the_tail_of_a_cosine_is_that_of_student_t(dim: int) -> None:
    # T = √(d−1)·t/√(1−t²) has d − 1 degrees of freedom; scipy's tail is good until it underflows.
    z = np.array([-8.0, -1.0, -1e-6, 0.0, 1e-6, 1e-3, 0.5, 1.0, 3.0, 8.0, 20.0, 36.0])
    t = z[np.abs(z) < 0.99 * math.sqrt(dim)] / math.sqrt(dim)
    reference = student.logsf(t * np.sqrt((dim - 1) / (1 - t**2)), dim - 1)
    assert cosine_logsf(t, dim) == pytest.approx(reference, rel=2e-10)


@pytest.mark.parametrize("dim", [400, 10**4, 10**6, 10**7])
@pytest.mark.parametrize("z", [36.0, 37.0, 40.0, 100.0, 900.0])
def test_deep_in_the_tail_it_is_the_integral_of_the_density(dim: int, z: float) -> None:
    t, power = z / math.sqrt(dim), (dim - 3) / 2
    if t > 0.99:
        t = 0.99
    scale = dim * t

    def density(v: float) -> float:
        u = t + v / scale
        return math.exp(power * (math.log1p(-u * u) - math.log1p(-t * t))) if u < 1 else 0.0

    integral = quad(density, 0, min((1 - t) * scale, 60.0), epsabs=0, epsrel=1e-11, limit=500)[0]
    # ln B(a, ½) of the density, from the value at 0, where the tail is one half.
    half = quad(
        lambda v: math.exp(power * math.log1p(-v * v / dim)),
        *(0, min(40.0, math.sqrt(dim))),
        epsabs=0,
        epsrel=1e-12,
        limit=500,
    )[0] / math.sqrt(dim)
    reference = power * math.log1p(-t * t) + math.log(integral / scale / (2 * half))
    assert float(cosine_logsf(t, dim)) == pytest.approx(reference, rel=1e-11)


def test_the_ends_of_the_tail_are_defined() -> None:
    assert cosine_logsf([-1.0, 0.0, 1.0], 500).tolist() == [0.0, math.log(0.5), -math.inf]
    assert cosine_logsf([-2.0, 2.0], 500).tolist() == [0.0, -math.inf]  # rounding beyond the ends


def test_the_tail_of_a_cosine_never_rises() -> None:
    for dim in (100, 10**6):
        tail = cosine_logsf(np.linspace(-1, 1, 20_001), dim)
        assert (np.diff(tail) <= 0).all()


def gram_of(rounds: int, common: float) -> np.ndarray:
    """Return the Gram matrix of unit changes that share a direction."""
    return np.full((rounds, rounds), common) + (1 - common) * np.eye(rounds)


@pytest.mark.parametrize("common", [0.0, 0.5, 0.99])
def test_limits_on_p_values_hold_for_all_values_at_once(common: float) -> None:
    # A fresh, far larger sample tells the true tails; the limits may fail in 5 % of 60 pools.
    dim, gram = 300, gram_of(8, common)
    truth = np.sort(null_maxima(gram, dim, 1_000_000, stream(0, "truth")))
    values = truth[-np.unique(np.geomspace(200, 900_000, 60).astype(int))]
    tail = (truth.size - np.searchsorted(truth, values)) / truth.size
    failed = 0
    for seed in range(60):
        pool = null_maxima(gram, dim, 2000, stream(seed, "pool"))
        limits = largest_cosine_log_p(values, pool, dim, 8, 0.05)
        failed += bool((limits < np.log(tail) - 4 / np.sqrt(tail * truth.size)).any())
    assert failed <= 3 + 3 * math.sqrt(60 * 0.05 * 0.95)


def test_limits_on_p_values_are_close_and_have_no_floor() -> None:
    gram = gram_of(8, 0.99)
    pool = null_maxima(gram, 300, 100_000, stream(0, "pool"))
    middle = float(np.quantile(pool, 0.9))
    limits = largest_cosine_log_p(np.array([-1.0, middle, 0.9]), pool, 300, 8, 0.005)
    assert limits[0] == 0.0
    assert math.log(0.1) < limits[1] < math.log(0.12)  # the union bound would say 0.4 or so
    assert limits[2] == pytest.approx(float(cosine_logsf(0.9, 300)) + math.log(8))


def test_a_plain_share_of_shared_draws_breaks_the_confidence_and_limits_do_not() -> None:
    # Half of the canaries that are in have p-values e^-epsilon times as large: truth 5 at delta 0.
    # Where the largest of the shared draws are too small by chance, all canaries gain at once.
    epsilon, draws, runs = 5.0, 2000, 150
    above = np.zeros(2)
    for seed in range(runs):
        rng = stream(seed, "shared pool")
        p = rng.random(400)
        p = np.where(rng.random(400) < 0.5, 0.5 * math.exp(-epsilon) * p, p)
        pool = rng.random(draws)
        share = (1 + np.searchsorted(np.sort(pool), p)) / (1 + draws)
        plain = epsilon_lower_bound(-np.log(share), null_logsf=np.negative, delta=0.0)
        # In three dimensions a cosine is uniform: ours on the same draws.
        limits = largest_cosine_log_p(1 - 2 * p, 1 - 2 * pool, 3, 10**6, 0.005)
        ours = prove(
            -p, np.ones(400, bool), limits, delta=0.0, confidence=0.95, guesses=None, spent=0.005
        )[0]
        above += [plain.value > epsilon, ours.value > epsilon]
    nominal = 0.05 * runs + 3 * math.sqrt(0.05 * 0.95 * runs)
    assert above[0] > 2 * nominal
    assert above[1] <= nominal


def test_what_was_spent_on_the_null_is_taken_from_the_bound() -> None:
    log_p = cosine_logsf(stream(0, "scores").normal(0.3, 0.05, 200), 400)
    is_in = np.ones(200, dtype=bool)
    common = {"delta": DELTA, "confidence": 0.95, "guesses": None}
    free = prove(-log_p, is_in, log_p, **common)[0]  # type: ignore[arg-type]
    paid = prove(-log_p, is_in, log_p, **common, spent=0.02)[0]  # type: ignore[arg-type]
    assert paid.value < free.value
    assert paid.confidence == free.confidence == 0.95
    assert (
        paid.value
        == epsilon_lower_bound(-log_p, null_logsf=np.negative, delta=DELTA, confidence=0.97).value
    )


def test_no_canary_in_proves_nothing() -> None:
    scores = np.linspace(0, 1, 9)
    assert prove(scores, scores > 2, scores, delta=DELTA, confidence=0.95, guesses=2) == []


def test_a_thousand_scores_with_a_known_null_come_near_a_large_epsilon() -> None:
    # Separation 20: truth 290 at delta 1e-6; k/d is negligible against σ².
    cosines = simulate_cosines(10**7, 1000, 0.05, stream(0, "large"))
    bound = prove(
        cosines,
        np.ones(1000, dtype=bool),
        cosine_logsf(cosines, 10**7),
        delta=DELTA,
        confidence=0.95,
        guesses=None,
    )[0]
    truth = epsilon_gaussian(DELTA, 20.0)
    assert 0.8 * truth < bound.value < truth
