"""The known wrong case: Flower's local noise is too small for a large epsilon, and it shows."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
from scipy.stats import kstest

from leakmeter.auditors.wording import Assumption
from leakmeter.papers.gaussian import classical_sigma_unsafe_above_epsilon_1
from tests.helpers.project import ROOT

pytestmark = pytest.mark.usefixtures("flower_draws")  # the mod under audit is Flower's
EXAMPLE = ROOT / "examples" / "local_dp_is_not_local_enough.py"


@pytest.fixture
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


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


def test_the_example_runs_and_says_so(
    example: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    example["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("ε = 50 at δ = 1e-05")
    assert lines[1].endswith("ε = 96.4")
    assert "95% confidence" in lines[2]
