"""Epsilon, delta, trade-off and noise of two Gaussians: golden values, twins and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import kstest, norm

from leakmeter.auditors.bounds.gaussian import (
    anderson_darling,
    brent_root,
    epsilon_between_gaussians,
    epsilon_gaussian,
    tradeoff_gaussian,
)
from leakmeter.auditors.rng import stream
from leakmeter.papers.gaussian import (
    classical_sigma_unsafe_above_epsilon_1,
    delta_gaussian,
    gaussian_sigma,
    log_delta_gaussian,
)
from tests.helpers.processes import run_python

# mean_0, std_0, mean_1, std_1, delta, epsilon by 40-digit arithmetic. The last four are those at
# which the routine published with Andrew et al. 2024 (arXiv:2302.03098) fails or loses digits.
GOLDEN = [
    (0, 4.22467888932684, 1, 4.22467888932684, 1e-6, 0.9999999999999987965),
    (0, 1, 1, 1.5, 1e-6, 20.57920938320774737),
    (0, 1, 1, 0.5, 1e-6, 53.32770261584040982),
    (0, 1, 0, 2, 1e-6, 34.34063243222346221),
    (0, 1, 0, 0.5, 1e-6, 34.34063243222346221),
    (0, 1, 2, 1.000000001, 1e-6, 10.99715124411776473),
    (0, 1, 2, 1.000000000001, 1e-6, 10.99715121425054823),
    (0, 0.001, 0.00185, 0.00099, 1e-6, 10.43006900094833689),
    (0, 0.000493865, 0.00110, 0.000497, 8.1996e-7, 12.82659685009674831),
    (0.00172, 0.000165, 0.0520, 0.000166, 8.1996e-7, 47898.02388749884059),
    (0, 1, 300, 1, 1e-6, 46425.03513587114234),
    (0, 1, 300, 1.3, 1e-6, 46860.37440521163035),
    (0, 1, 0.5, 0.001, 1e-6, 13803842.45168002932),
    (0, 1, 0.000002, 1.0000001, 1e-6, 0.0),
    (0, 1, 1, 1.2, 1e-12, 19.05666800200795557),
    (0, 1, 1, 1.2, 0.1, 1.504646864728909509),
    (0, 1, -3, 0.8, 1e-6, 34.67670149678139101),
    (0, 1, -0.11909484106792304, 1.0021264823340654, 1e-6, 0.5149111581161081),
    (0, 1, 0, 1, 1e-6, 0.0),
    (0, 1, 2, 1.0000000000000002, 1e-6, 10.997151214220658),
    (1e8, 1, 1e8 + 1, 1.2, 1e-6, 10.380413420548338),
]

# separation, epsilon, mantissa and decimal exponent of delta, by 40-digit arithmetic.
GOLDEN_DELTA = [
    (0.1, 1, 1.2308359836427041957, -25),
    (0.1, 2, 3.7194507268046404412, -91),
    (0.1, 10, 1.9920487238567742323, -2175),
    (0.1, 50, 1.7764219181945148641, -54283),
    (0.1, 500, 5.6527133768937538396, -5428582),
    (0.5, 50, 4.6895737334716356036, -2166),
    (0.5, 500, 4.1588757128867813888, -217046),
    (1, 0, 0.38292492254802620728, 0),
    (1, 0.5, 0.23842170813487662832, 0),
    (1, 10, 9.8127058268469559492, -23),
    (1, 50, 1.37235288686672394, -536),
    (2, 0.5, 0.59918561853393326306, 0),
    (2, 2, 0.33189799877682939357, 0),
    (2, 10, 9.9402028161181527684, -6),
    (2, 50, 1.066262024474971471, -128),
    (2, 500, 5.7538681447266015502, -13469),
    (5, 0, 0.98758066934844772967, 0),
    (5, 10, 0.61662373041021237369, 0),
    (5, 50, 1.2556669972910951814, -14),
    (10, 0.5, 0.99999926472176652917, 0),
    (10, 10, 0.99994659771914987831, 0),
    (10, 50, 0.46049330589861399706, 0),
    (30, 5, 1.0, 0),
    (100, 0.5, 1.0, 0),
]

# The same examples every time: a failure is a change, not luck.
steady = settings(derandomize=True, deadline=None)
means = st.floats(-20, 20)
stds = st.floats(0.05, 20)
deltas = st.floats(1e-12, 0.9)


@pytest.mark.parametrize(("mean_0", "std_0", "mean_1", "std_1", "delta", "epsilon"), GOLDEN)
def test_epsilon_matches_forty_digit_arithmetic(mean_0, std_0, mean_1, std_1, delta, epsilon):
    value = epsilon_between_gaussians(mean_0, std_0, mean_1, std_1, delta)
    assert isinstance(value, float)
    assert value == pytest.approx(epsilon, rel=1e-12, abs=0)


def test_arguments_broadcast_and_an_array_gives_what_its_elements_give():
    m0, s0, m1, s1, delta, epsilon = np.array(GOLDEN).T
    found = epsilon_between_gaussians(m0, s0, m1, s1, delta)
    np.testing.assert_allclose(found, epsilon, rtol=1e-12)
    table = epsilon_between_gaussians(0, 1, [[1.0], [2.0]], 1, [1e-6, 1e-3, 0.1])
    assert table.shape == (2, 3)
    assert table[1, 0] == pytest.approx(10.997151214220658, rel=1e-12)
    assert delta_gaussian(0, 0) == epsilon_gaussian(0, 0) == 0
    assert log_delta_gaussian([0.0, 1.0], 0).tolist() == [-math.inf, -math.inf]


def plain_losses(first, second):
    """Return the privacy loss on a fine grid of quantiles of the first law."""
    x = first.ppf((np.arange(200_000) + 0.5) / 200_000)
    return first.logpdf(x) - second.logpdf(x)


def plain_hockey_stick(epsilon, losses):
    """Sum the excess of one law over the other."""
    return np.maximum(0, 1 - np.exp(epsilon - losses)).mean()


@pytest.mark.parametrize(
    ("mean", "std", "delta"), [(1, 1, 0.01), (1, 1.5, 0.02), (-2, 0.6, 0.1), (0, 3, 0.05)]
)
def test_epsilon_is_where_the_worse_of_two_summed_hockey_sticks_meets_delta(mean, std, delta):
    p, q = norm(0, 1), norm(mean, std)
    both = plain_losses(p, q), plain_losses(q, p)

    def excess(epsilon):
        return max(plain_hockey_stick(epsilon, losses) for losses in both) - delta

    if (mean, std) == (0, 3):  # narrow against wide, the loss of the narrow one is at most ln 3
        assert plain_hockey_stick(math.log(3), both[0]) == 0
    twin = brentq(excess, 0, 200, xtol=1e-4)
    assert epsilon_between_gaussians(0, 1, mean, std, delta) == pytest.approx(twin, rel=2e-3)


@steady
@given(means, stds, means, stds, deltas, st.floats(1.01, 100))
def test_epsilon_falls_when_delta_grows(mean_0, std_0, mean_1, std_1, delta, factor):
    smaller = epsilon_between_gaussians(mean_0, std_0, mean_1, std_1, delta / factor)
    assert smaller >= epsilon_between_gaussians(mean_0, std_0, mean_1, std_1, delta)


@steady
@given(st.floats(0, 20), stds, stds, deltas, st.integers(-40, 40))
def test_epsilon_knows_neither_unit_nor_order_nor_sign(shift, std_0, std_1, delta, power):
    value = epsilon_between_gaussians(0, std_0, shift, std_1, delta)
    unit = 2.0**power  # exact, so that the two problems are the same
    scaled = epsilon_between_gaussians(0, std_0 * unit, shift * unit, std_1 * unit, delta)
    swapped = epsilon_between_gaussians(shift, std_1, 0, std_0, delta)
    mirrored = epsilon_between_gaussians(0, std_0, -shift, std_1, delta)
    assert [scaled, swapped, mirrored] == pytest.approx([value] * 3, rel=1e-12, abs=1e-14)


@steady
@given(st.floats(0.01, 50), st.floats(1e-6, 100))
def test_epsilon_undoes_delta(separation, epsilon):
    delta = delta_gaussian(epsilon, separation)
    if 1e-300 < delta < 0.99:
        back = epsilon_gaussian(delta, separation)
        assert back == pytest.approx(epsilon, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "epsilon"),
    [
        ((0, 1, 0, 1, 0), 0.0),
        ((0, 1, 1, 1, 0), math.inf),
        ((0, 0, 0, 0, 0), 0.0),
        ((0, 0, 1, 0, 0.9), math.inf),
        ((0, 0, 0, 1, 0.5), math.inf),
        ((0, 1, 1, 1, 5e-324), 38.871832832494306),
        ((0, 1, 1, 1, 0.9999999999999999), 0.0),
        ((0, 1, 1e200, 1, 0.5), math.inf),
        ((0, 1e-200, 1, 1e200, 0.5), math.inf),
        ((1e308, 1, -1e308, 1, 0.5), math.inf),
    ],
)
def test_edges_have_defined_answers(arguments, epsilon):
    assert epsilon_between_gaussians(*arguments) == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize(("separation", "epsilon", "mantissa", "exponent"), GOLDEN_DELTA)
def test_delta_matches_forty_digit_arithmetic(separation, epsilon, mantissa, exponent):
    log_delta = math.log(mantissa) + exponent * math.log(10)
    assert log_delta_gaussian(epsilon, separation) == pytest.approx(log_delta, rel=1e-14, abs=1e-15)
    if exponent > -300:
        delta = mantissa * 10.0**exponent
        assert delta_gaussian(epsilon, separation) == pytest.approx(delta, rel=1e-12, abs=0)


def test_the_trade_off_curve_and_delta_describe_the_same_pair():
    # Dong et al. 2022, Proposition 2.12: delta is the largest gap above a line of slope -e^eps.
    fpr = np.linspace(0, 1, 200_001)
    gap = 1 - tradeoff_gaussian(fpr, 1.3) - math.exp(0.7) * fpr
    assert gap.max() == pytest.approx(delta_gaussian(0.7, 1.3), rel=1e-8)
    assert tradeoff_gaussian([0, 1], 1.3).tolist() == [1, 0]


def test_sigma_matches_forty_digit_arithmetic():
    for epsilon, sigma in (10, 0.541086831818366), (3, 1.54386141777564), (1, 4.22467888932684):
        assert gaussian_sigma(epsilon, 1e-6) == pytest.approx(sigma, rel=1e-14)
        assert gaussian_sigma(epsilon, 1e-6, 2.5) == pytest.approx(2.5 * sigma, rel=1e-14)
    sigmas = gaussian_sigma([0.0, 1.0], [[1e-6], [0.5]])
    assert sigmas.shape == (2, 2)
    # At epsilon 0 delta is the total variation, 2 Phi(1/(2 sigma)) - 1.
    assert sigmas[1, 0] == pytest.approx(1 / (2 * norm.ppf(0.75)), rel=1e-13)


@steady
@given(st.floats(0, 1e4), st.floats(1e-100, 0.9))
def test_sigma_spends_exactly_what_was_allowed(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta)
    spent = epsilon_gaussian(delta, 1 / sigma)
    assert spent == pytest.approx(epsilon, rel=1e-11, abs=1e-12)


def test_the_classical_formula_is_right_where_proven_and_wrong_for_large_epsilon():
    assert classical_sigma_unsafe_above_epsilon_1(0.02, 1e-7, 1.5) == 428.7644353553195
    for claimed, true in [(0.5, 0.35257249186661144), (20, 25.44261056666702), (50, 96.4339356)]:
        sigma = classical_sigma_unsafe_above_epsilon_1(claimed, 1e-5)
        assert epsilon_gaussian(1e-5, 1 / sigma) == pytest.approx(true, rel=1e-8)


@given(
    # Six digits: products of subnormal slopes are zero, and no step follows from them.
    st.lists(st.floats(-2, 2).map(lambda x: round(x, 6)), min_size=4, max_size=4),
    st.floats(-4, 4),
    st.floats(-4, 4),
    st.sampled_from([{"xtol": 2e-12}, {"xtol": 1e-14, "rtol": 1e-14}]),
)
def test_roots_are_those_of_scipy_bit_for_bit(
    weights: list[float], low: float, high: float, exactness: dict[str, float]
) -> None:
    def curve(x: float) -> float:
        return weights[0] * x**3 + weights[1] * x + math.tanh(5 * x * weights[2]) + weights[3]

    if (curve(low) < 0) != (curve(high) < 0):
        # Of x³ neither finds the zero in 100 steps: both return their last point.
        scipys = brentq(curve, low, high, **exactness, disp=False)
        assert brent_root(curve, low, high, **exactness) == scipys


def test_scipys_optimisers_are_not_imported_for_the_report_on_canaries() -> None:
    code = (
        "import sys; from leakmeter.auditors.bounds.one_run import one_run_gaussian_epsilon;"
        "one_run_gaussian_epsilon(1000, 250, 214, 1e-5); print('scipy.optimize' in sys.modules)"
    )
    assert run_python("-c", code).strip() == "False"


# The test of normality: its definition, uniform p-values, published critical values.


def test_anderson_darling_is_its_definition() -> None:
    values = stream(1, "sample").normal(3.0, 2.0, 50)
    z = np.sort((values - values.mean()) / values.std(ddof=1))
    total = sum((2 * i - 1) * (log_ndtr(z[i - 1]) + log_ndtr(-z[50 - i])) for i in range(1, 51))
    statistic, _ = anderson_darling(values)
    assert statistic == pytest.approx((-50 - total / 50) * (1 + 0.75 / 50 + 2.25 / 50**2))


@pytest.mark.parametrize("n", [8, 30, 500])
def test_p_values_are_uniform_on_normal_samples(n: int) -> None:
    p = [anderson_darling(stream(s, "normal").standard_normal(n))[1] for s in range(600)]
    assert kstest(p, "uniform").pvalue > 1e-3
    # Stephens' critical values, 0.752 at 5 % and 1.035 at 1 %, each within sampling error.
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize(("statistic", "p"), [(0.752, 0.05), (0.631, 0.10), (1.035, 0.01)])
def test_p_values_meet_the_published_critical_values(statistic: float, p: float) -> None:
    # Stretch the tails of a normal sample until its statistic is the wanted one.
    normal = np.sort(stream(2, "stretch").standard_normal(2000))

    def at(power: float) -> tuple[float, float]:
        return anderson_darling(np.sign(normal) * np.abs(normal) ** power)

    powers = np.linspace(1.0, 1.3, 400)
    nearest = min((at(power) for power in powers), key=lambda pair: abs(pair[0] - statistic))
    assert nearest[0] == pytest.approx(statistic, rel=0.02)
    assert nearest[1] == pytest.approx(p, rel=0.15)


def test_gumbel_samples_are_not_normal_and_far_ones_have_p_zero() -> None:
    assert anderson_darling(stream(0, "gumbel").gumbel(size=500))[1] < 1e-4
    statistic, p = anderson_darling(np.r_[np.zeros(5000), np.ones(5000)] + np.arange(10**4) * 1e-9)
    assert statistic > 150
    assert p == pytest.approx(0, abs=1e-100)
