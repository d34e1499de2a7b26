"""The known wrong case: Flower's local noise is too small for a large epsilon, and it shows."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest, norm

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from leakmeter.papers.gaussian import classical_sigma_unsafe_above_epsilon_1, gaussian_sigma
from tests.helpers.project import ROOT

pytestmark = pytest.mark.usefixtures("flower_draws")  # the mod under audit is Flower's
EXAMPLE = ROOT / "examples" / "local_dp_is_not_local_enough.py"


@pytest.fixture
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def test_the_formula_delivers_almost_twice_what_is_asked_for() -> None:
    std = classical_sigma_unsafe_above_epsilon_1(50.0, 1e-5)
    assert epsilon_gaussian(1e-5, 1 / std) == pytest.approx(96.4, abs=0.05)


def test_flowers_mod_is_caught_with_confidence(example: dict[str, Any]) -> None:
    bound = example["audit"]()
    assert (bound.kind, bound.confidence, bound.delta) == ("lower_bound", 0.95, 1e-5)
    assert 50 < bound.value < 96.4
    assert Assumption.SEPARATE_TRIALS in bound.assumptions


def test_the_mod_adds_the_noise_that_the_null_takes_for_known(example: dict[str, Any]) -> None:
    mod = example["LocalDpMod"](clipping_norm=2.0, sensitivity=2.0, epsilon=50.0, delta=1e-5)
    std = classical_sigma_unsafe_above_epsilon_1(50.0, 1e-5, 2.0)
    scores = example["scores_through"](mod, 1e-9, 300) / std  # next to nothing is sent
    assert kstest(scores, "norm").pvalue > 1e-3
    assert kstest(1.2 * scores, "norm").pvalue < kstest(scores, "norm").pvalue


def test_the_right_noise_is_not_accused() -> None:
    # Separation of the analytic calibration; violations at most nominal + 3 standard errors.
    separation, runs = 1 / gaussian_sigma(50.0, 1e-5), 100
    above = 0
    for seed in range(runs):
        scores = stream(seed, "right noise").normal(separation, 1, 300)
        above += epsilon_lower_bound(scores, null_logsf=norm.logsf, delta=1e-5).value > 50
    assert above <= 0.05 * runs + 3 * np.sqrt(0.05 * 0.95 * runs)


def test_the_example_runs_and_says_so(
    example: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    example["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("ε = 50 at δ = 1e-05")
    assert lines[1].endswith("ε = 96.4")
    assert "95% confidence" in lines[2]
