"""Optimal LDP curves of sums: golden values, closed forms, twins, bounds and refusals."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc

from leakmeter.auditors.rng import stream
from leakmeter.papers.gaussian import delta_gaussian
from leakmeter.papers.ngo2024.ldp.curve import ldp_curve
from leakmeter.papers.ngo2024.ldp.irwin_hall import IrwinHall
from leakmeter.papers.ngo2024.ldp.loss_distribution import gamma_loss, irwin_hall_loss, loss_cells
from leakmeter.papers.ngo2024.ldp.privacy_loss import Cells, deltas, lower_measure, upper_measure
from tests.helpers.numbers import few_or_many, first_fast

Floats = NDArray[np.float64]

# Delta by case, n, d and epsilon, computed independently by a finer lattice; that of 500, 10, 4 by
# integrating the loss's moment generating function along a vertical line in the complex plane.
REFERENCE: dict[tuple[str, int, int], dict[float, float]] = {
    ("exponential", 10, 1): {
        0.0: 0.4905092016429069,
        0.5: 0.40466988520836783,
        2.0: 0.22629038590509043,
        6.0: 0.06531398363899706,
    },
    ("exponential", 20, 1): {
        0.5: 0.23367586269147841,
        1.0: 0.14879706714688382,
        6.0: 0.0014940198397272227,
    },
    ("exponential", 50, 1): {
        0.0: 0.22452104700016143,
        1.0: 0.030157720763395738,
        2.0: 0.0022903739772221067,
    },
    ("exponential", 100, 1): {
        0.0: 0.15917331395477485,
        2.0: 2.5489736914940652e-05,
    },
    ("exponential", 50, 5): {
        0.5: 0.3602344473576969,
        1.0: 0.2530452523908888,
        2.0: 0.10228940563396915,
    },
    ("exponential", 100, 5): {
        0.0: 0.34815144321916297,
        0.5: 0.20555149763882963,
        2.0: 0.016391326261552836,
        6.0: 4.310861345202469e-08,
    },
    ("exponential", 100, 10): {
        1.0: 0.2401024661907251,
        2.0: 0.08671445399838924,
    },
    ("exponential", 500, 10): {
        1.0: 0.015432239328404526,
        2.0: 0.0001250141226510062,
        4.0: 1.1059169439456e-11,
    },
    ("exponential", 1000, 10): {
        0.5: 0.02648898553384693,
        2.0: 1.4095481854260272e-07,
    },
    ("exponential", 1000, 100): {
        0.5: 0.3439706916686755,
        1.0: 0.22821363047942236,
        6.0: 5.669304116390272e-06,
    },
    ("uniform", 3, 1): {
        0.0: 0.6666666666666665,
        0.5: 0.5796948720833663,
        1.0: 0.49235364278835086,
        4.0: 0.2210919123935133,
    },
    ("uniform", 5, 1): {
        0.5: 0.43759623122042496,
        1.0: 0.33296794374498645,
        2.0: 0.17525362259285648,
        4.0: 0.049642065424241884,
        6.0: 0.022797766096385886,
    },
    ("uniform", 10, 1): {
        0.0: 0.41096264282441847,
        0.5: 0.27191026122218864,
        6.0: 0.00017564530706983797,
        8.0: 3.2279700273552484e-05,
    },
    ("uniform", 20, 1): {
        0.5: 0.1482298079254084,
        2.0: 0.00441751993647711,
        6.0: 2.1853054830158494e-08,
    },
    ("uniform", 5, 5): {
        0.5: 0.8951326124746863,
        1.0: 0.8685664577496645,
        4.0: 0.6315556897457452,
    },
    ("uniform", 10, 5): {
        0.5: 0.7197095502607413,
        2.0: 0.507623320278998,
        8.0: 0.01597873619578596,
    },
    ("uniform", 20, 5): {
        1.0: 0.41091093408661133,
        2.0: 0.2272398598843992,
        4.0: 0.03557940607831666,
        6.0: 0.002182134039082738,
    },
    ("uniform", 10, 10): {
        0.5: 0.8942808040422516,
        1.0: 0.8672559114764162,
        8.0: 0.2164190265791485,
    },
    ("uniform", 20, 10): {
        0.0: 0.7792627272902534,
        0.5: 0.7200587883813437,
        1.0: 0.6536188919812821,
        2.0: 0.5065191765427711,
        8.0: 0.011160046364489687,
    },
    ("uniform", 50, 10): {
        0.0: 0.5613283263116204,
        0.5: 0.44958445983962475,
        4.0: 0.014037560256152102,
    },
}


# Few and many clients, one entry and many; the others are slow.
FAST = (
    *(("exponential", 10, 1), ("exponential", 1000, 100), ("uniform", 3, 1), ("uniform", 50, 10)),
)


@pytest.mark.parametrize(
    "key",
    [pytest.param(k, marks=() if k in FAST else pytest.mark.slow) for k in REFERENCE],
    ids=str,
)
def test_curves_agree_with_the_reference_and_hold_it_between_close_bounds(
    key: tuple[str, int, int],
) -> None:
    epsilons, truth = np.array(list(REFERENCE[key])), np.array(list(REFERENCE[key].values()))
    curve = ldp_curve(*key, epsilons)
    np.testing.assert_allclose(curve.delta, truth, rtol=1e-6)
    # The reference has errors of its own, of about 1e-9.
    assert (curve.lower <= truth * (1 + 2e-8)).all()
    assert (curve.upper >= truth * (1 - 2e-8)).all()
    assert (curve.upper <= curve.lower * (1 + 1e-5)).all()


def exact_exponential(n: int, epsilon: float) -> tuple[float, float]:
    """Return delta in both directions for d = 1 by distribution functions."""
    z = 4 / -math.expm1(-(epsilon + 4) / (n - 1))
    forward = gammainc(n, z) - math.exp(epsilon) * gammainc(n, z - 4)
    if epsilon >= 4:
        return float(forward), 0.0
    z = 4 / -math.expm1(-(4 - epsilon) / (n - 1))
    return float(forward), float(gammaincc(n, z - 4) - math.exp(epsilon) * gammaincc(n, z))


@pytest.mark.parametrize("n", [2, 3, 7, 30, 400])
def test_one_exponential_entry_has_the_closed_form_in_both_directions(n: int) -> None:
    epsilons = np.array([0.0, 0.3, 1.0, 1.7, 3.0])
    truth = np.array([exact_exponential(n, float(e)) for e in epsilons])
    curve = ldp_curve("exponential", n, 1, epsilons)
    fine = truth > 1e-11  # below, the closed form is a difference of rounding errors
    assert fine[:, 0].sum() >= 3
    np.testing.assert_allclose(curve.forward[fine[:, 0]], truth[fine[:, 0], 0], rtol=1e-6)
    # The lattice is coarse where the loss backwards nears its end at 4; nothing depends on it.
    np.testing.assert_allclose(curve.backward[:4], truth[:4, 1], rtol=1e-5, atol=1e-11)
    np.testing.assert_allclose(curve.backward[fine[:, 1]], truth[fine[:, 1], 1], rtol=1e-2)
    np.testing.assert_array_equal(curve.delta, np.maximum(curve.forward, curve.backward))


def test_two_uniform_clients_have_a_curve_on_paper() -> None:
    # Triangular noise: the densities are 1 - u and u, in the ratio e^eps at u = 1/(1 + e^eps).
    epsilons = np.array([0.0, 0.5, 2.0, 6.0])
    grow = np.exp(epsilons)
    u = 1 / (1 + grow)
    truth = 1 - (1 - u) ** 2 / 2 - grow * u**2 / 2
    np.testing.assert_allclose(ldp_curve("uniform", 2, 1, epsilons).delta, truth, rtol=1e-6)


def test_a_single_other_client_hides_almost_nothing() -> None:
    assert ldp_curve("uniform", 1, 3, [0.0, 9.0]).lower.tolist() == [1.0, 1.0]
    curve = ldp_curve("exponential", 1, 1, [0.0, 1.0, 50.0])
    np.testing.assert_allclose(curve.delta, 1 - math.exp(-4), rtol=1e-14)
    assert curve.infinite_mass == curve.delta[0]


def test_the_infinite_mass_is_exact_and_delta_ends_in_it() -> None:
    curve = ldp_curve("uniform", 5, 2, [40.0])
    assert curve.infinite_mass == pytest.approx(1 - (1 - 1 / 120) ** 2, rel=1e-14)
    assert curve.delta[0] == pytest.approx(curve.infinite_mass, rel=1e-3)
    assert curve.lower[0] > curve.infinite_mass
    skewed = ldp_curve("exponential", 10, 2, 40.0)
    assert skewed.infinite_mass == pytest.approx(1 - (1 - float(gammainc(10, 4))) ** 2, rel=1e-14)
    assert skewed.delta[0] == pytest.approx(skewed.infinite_mass, rel=0.1)
    assert skewed.lower[0] > skewed.infinite_mass


@pytest.mark.parametrize("draws", few_or_many(60_000, 200_000))
@pytest.mark.parametrize(("case", "n", "d"), [("exponential", 30, 3), ("uniform", 12, 4)])
def test_a_simulation_of_the_loss_agrees(case: str, n: int, d: int, draws: int) -> None:
    # Five standard errors: a chance of 6e-7, and the seed is fixed.
    rng, epsilon = stream(7, "ldp", case), 1.0
    if case == "exponential":
        z = rng.gamma(n, size=(draws, d))
        loss = np.where(z > 4, (n - 1) * np.log(z / np.where(z > 4, z - 4, 1.0)) - 4, np.inf)
    else:
        u = rng.random((draws, d, n)).sum(axis=-1) - 1
        drawn = IrwinHall(n)
        inside = np.maximum(u, 1e-3)
        loss = (drawn.density(inside + 1)[0] - drawn.density(inside)[0]).reshape(draws, d)
        loss[u <= 0] = np.inf
    gain = np.maximum(-np.expm1(epsilon - loss.sum(axis=1)), 0.0)
    delta = ldp_curve(case, n, d, epsilon).delta[0]
    assert abs(gain.mean() - delta) < 5 * gain.std() / math.sqrt(draws)
    wrong = ldp_curve(case, n, d + 1, epsilon).delta[0]
    assert abs(gain.mean() - wrong) > 25 * gain.std() / math.sqrt(draws)


@pytest.mark.parametrize(
    ("case", "n", "d"),
    first_fast(2, [("exponential", 20, 3), ("uniform", 8, 2), ("exponential", 50, 1)]),
)
def test_a_dense_curve_is_smooth_decreasing_and_convex_in_e_to_the_epsilon(
    case: str, n: int, d: int
) -> None:
    epsilons = np.linspace(0, 6, 121)
    curve = ldp_curve(case, n, d, epsilons)
    slopes = np.diff(curve.delta) / np.diff(np.exp(epsilons))
    assert (slopes < 0).all()
    assert (np.diff(slopes) > -1e-6 * np.abs(slopes[1:])).all()
    assert (curve.upper <= curve.lower * (1 + 1e-5)).all()


def test_each_direction_keeps_its_digits_far_below_the_rounding_of_an_fft() -> None:
    curve = ldp_curve("exponential", 1000, 10, [4.0])
    assert 1e-22 < curve.lower[0] <= curve.upper[0] < 1e-20
    assert curve.upper[0] <= curve.lower[0] * (1 + 1e-5)


def test_more_entries_leak_more_and_more_clients_less() -> None:
    deltas_of_d = [ldp_curve("uniform", 12, d, 1.0).delta[0] for d in (1, 2)]
    deltas_of_n = [ldp_curve("exponential", n, 3, 1.0).delta[0] for n in (20, 80)]
    assert deltas_of_d == sorted(deltas_of_d)
    assert deltas_of_n == sorted(deltas_of_n, reverse=True)


@pytest.mark.parametrize("case", ["exponential", "uniform"])
def test_many_clients_make_the_sum_gaussian(case: str) -> None:
    curve = ldp_curve(case, 5000, 2, [0.0, 0.05])
    np.testing.assert_allclose(curve.delta, curve.gaussian, rtol=0.02)
    scale = 4.0 if case == "exponential" else math.sqrt(12)
    assert curve.separation == pytest.approx(scale * math.sqrt(2 / 5000), rel=1e-14)
    np.testing.assert_array_equal(curve.gaussian, delta_gaussian([0.0, 0.05], curve.separation))


def test_the_gaussian_model_understates_delta_thirtyfold_at_fifty_clients() -> None:
    curve = ldp_curve("exponential", 50, 1, 2.0)
    assert 30 < curve.delta[0] / curve.gaussian[0] < 31


def test_both_directions_of_a_symmetric_law_are_one() -> None:
    cells, spread = loss_cells(irwin_hall_loss(9, 35.0), 3, 300)
    epsilons = np.array([0.0, 1.0, 4.0])
    there, back = (deltas(way, 3, epsilons, spread) for way in (cells, cells.reversed()))
    np.testing.assert_allclose(there[0], back[0], rtol=1e-10)
    np.testing.assert_allclose(there[1], back[1], rtol=1e-10)


def test_pairs_of_opposite_signs_are_less_distinguishable_than_either_direction() -> None:
    # Entries of which one goes up and one down: nothing proves it, so it is looked at.
    cells, _ = loss_cells(gamma_loss(10, 35.0, 4.0), 2, 200)
    up, down = upper_measure(cells), lower_measure(cells.reversed(), 1.0)
    mixed = np.convolve(up.mass, down.mass)
    losses = up.origin + down.origin + up.step * np.arange(mixed.size)
    for epsilon in (0.0, 0.25, 1.0, 3.0):
        gain = np.where(losses > epsilon, -np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
        opposite = up.infinite + float(mixed @ gain)
        assert opposite < ldp_curve("exponential", 10, 2, epsilon).lower[0]


def crude(cells: Cells, d: int, epsilon: float, *, up: bool) -> float:
    """Return the twin: losses of the nodes rounded up or down, convolved d times by a loop."""
    mass = np.zeros(cells.mass.shape[1] + 1)
    mass[int(up) : mass.size - 1 + int(up)] += cells.mass.sum(axis=0)
    drawn, infinite = mass, cells.ends.infinite + cells.ends.above * up
    for _ in range(d - 1):
        drawn = np.convolve(drawn, mass)
    losses = d * cells.first * cells.step + cells.step * np.arange(drawn.size)
    gain = np.where(losses > epsilon, -np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
    return 1 - (1 - infinite) ** d + float(drawn @ gain)


@pytest.mark.parametrize("n", [6, 40])
def test_the_bounds_lie_within_plain_rounding_up_and_down(n: int) -> None:
    for drawn in (gamma_loss(n, 35.0, 4.0), irwin_hall_loss(n, 35.0)):
        cells, spread = loss_cells(drawn, 3, 40)
        for epsilon in (0.0, 0.77, 2.5):
            (lower,), (upper,) = deltas(cells, 3, np.array([epsilon]), spread)
            assert crude(cells, 3, epsilon, up=False) < lower < upper
            assert upper < crude(cells, 3, epsilon, up=True)


def test_both_measures_keep_the_mass_of_p_and_the_upper_one_that_of_q() -> None:
    cells, spread = loss_cells(gamma_loss(20, 35.0, 4.0), 1, 500)
    high, low = upper_measure(cells), lower_measure(cells, spread)
    q = float((cells.mass * np.exp(-cells.losses)).sum())
    assert q == pytest.approx(1.0, rel=1e-12)  # Q lies wholly where the loss is finite
    assert high.mass.sum() + high.infinite == pytest.approx(1.0, rel=1e-14)
    assert low.mass.sum() + low.infinite == pytest.approx(1.0, rel=1e-14)
    assert high.mass @ np.exp(-high.losses) == pytest.approx(q, rel=1e-12)
    excess = low.mass @ np.exp(-low.losses) / q - 1
    assert -1e-14 < excess < 1e-9


def exact_density(n: int, x: Fraction) -> Fraction:
    """Return the density of a sum of n uniforms by its alternating sum, in rational numbers."""
    terms = ((-1) ** k * math.comb(n, k) * (x - k) ** (n - 1) for k in range(n + 1) if x > k)
    return sum(terms, Fraction(0)) / math.factorial(n - 1)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9, 10, 17, 40])
def test_the_density_of_a_sum_of_uniforms_is_exact_in_the_tails_too(n: int) -> None:
    x = np.append(stream(3, "irwin-hall", n).uniform(0.0, n, 40), [1e-3, n - 2.0**-9])
    log_f, slope = IrwinHall(n).density(x)
    for i, at in enumerate(x):
        truth = float(exact_density(n, Fraction(float(at))))
        assert math.exp(log_f[i]) == pytest.approx(truth, rel=1e-11)
        if n > 2:
            there, before = (exact_density(n - 1, Fraction(float(at)) - k) for k in (0, 1))
            assert slope[i] == pytest.approx(float(there - before) / truth, rel=1e-8, abs=1e-11)


@pytest.mark.parametrize("n", [60, 300, 900])
def test_the_density_of_many_uniforms_has_the_right_mass_and_variance(n: int) -> None:
    x = n / 2 + np.linspace(-12, 12, 4001) * math.sqrt(n / 12)
    f = np.exp(IrwinHall(n).density(x)[0])
    step = x[1] - x[0]
    assert f.sum() * step == pytest.approx(1.0, rel=1e-12)
    assert ((x - n / 2) ** 2 * f).sum() * step == pytest.approx(n / 12, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("laplace", 5, 2, 1.0), "case must be one of exponential, uniform, got 'laplace'"),
        (("uniform", 0, 2, 1.0), "n must be a whole number >= 1, got 0"),
        (("uniform", 2.5, 2, 1.0), "n must be a whole number >= 1, got 2.5"),
        (("uniform", True, 2, 1.0), "n must be a whole number >= 1, got True"),
        (("uniform", 5, -1, 1.0), "d must be a whole number >= 1, got -1"),
        (("uniform", 5, 2, [0.0, -0.5]), r"epsilons must be in \[0, inf\), got -0.5"),
        (("uniform", 5, 2, math.nan), r"epsilons must be in \[0, inf\), got nan"),
        (("uniform", 5, 2, math.inf), r"epsilons must be in \[0, inf\), got inf"),
        (("uniform", 5, 2, []), r"epsilons must be a number or a sequence, got shape \(0,\)"),
        (("uniform", 5, 2, [[1.0]]), r"epsilons must be a number or a sequence, got shape"),
    ],
)
def test_a_wrong_argument_is_named_with_its_range(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ldp_curve(*arguments)


def test_epsilons_come_back_in_their_order_and_repeat() -> None:
    curve = ldp_curve("uniform", 6, 2, [2.0, 0.0, 2.0])
    assert curve.epsilons.tolist() == [2.0, 0.0, 2.0]
    assert curve.delta[0] == curve.delta[2] < curve.delta[1]
