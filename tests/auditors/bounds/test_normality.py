"""The test of normality: its definition, uniform p-values, published critical values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import kstest

from leakmeter.auditors.bounds.gaussian import anderson_darling
from leakmeter.auditors.rng import stream


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
