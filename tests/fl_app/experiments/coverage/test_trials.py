"""Bounds with the best threshold on the same trials: how often they are above the truth."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.bounds.rules import Fixed
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.coverage import trials as best_threshold
from tests.fl_app.experiments.small import RESULTS, Reproduced, read_cells


def test_best_thresholds_break_their_confidence_and_our_rules_keep_theirs(
    reproduced: Reproduced,
) -> None:
    small = reproduced("best-threshold")
    found, runs = small.cells, reproduced.scale("best-threshold").runs
    assert len(small.table.rows) == len(found) * len(best_threshold._RULES)
    # 5 % and three standard errors.
    most = 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    for law, cell in found.items():
        for rule, whose in best_threshold._RULES.items():
            assert whose != "ours" or cell[rule]["exceeds"] <= most, (law, rule)
        assert cell["best threshold"]["median"] >= cell["band"]["median"]
    for law in ("no-leak", "Laplace-1-apart"):
        assert found[f"{law}-200x{runs}"]["best threshold, known null"]["exceeds"] > 0.5


def test_the_kept_audits_show_it_for_both_published_rules() -> None:
    cells = read_cells(RESULTS / "best-threshold").values()
    most = 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5
    for rule, whose in best_threshold._RULES.items():
        worst = max(cell[rule]["exceeds"] for cell in cells)
        assert (worst > most) == (whose != "ours"), (rule, worst)


def test_where_errors_are_rare_the_two_rules_regain_most_of_what_the_band_pays() -> None:
    found = read_cells(RESULTS / "best-threshold")["Gaussian-8-apart-small-delta-5000x1000"]
    shown = [found[rule]["median"] for rule in ("band", "band and fixed", "fixed")]
    assert shown == pytest.approx([6.45, 7.15, 7.21], abs=0.01)


def test_the_best_threshold_is_the_largest_of_all_fixed_ones() -> None:
    rng = stream(1, "scores")
    inside, outside = rng.normal(1.0, 1.0, 60), rng.normal(0.0, 1.0, 60)
    each = [
        epsilon_lower_bound(inside, outside, delta=1e-3, rule=Fixed(t)).value
        for t in np.concatenate([inside, outside])
    ]
    got = best_threshold.best_threshold(inside, outside, 1e-3)
    assert got == pytest.approx(max(each), rel=1e-12)


@pytest.mark.parametrize("law", best_threshold._LAWS, ids=lambda law: law.name)
def test_the_known_null_is_that_of_the_scores(law: best_threshold._Law) -> None:
    drawn = law.draw(stream(2, law.name), 20_000)
    for t in (-1.5, 0.0, 0.7, 2.0):
        share = float(np.mean(drawn >= t))
        truth = float(np.exp(law.logsf(np.array([t])))[0])
        assert abs(share - truth) < 4 * (truth * (1 - truth) / drawn.size) ** 0.5


@pytest.mark.parametrize(
    "law",
    [law for law in best_threshold._LAWS if law.name.startswith("Laplace")],
    ids=lambda law: law.name,
)
def test_the_true_epsilon_of_laplace_scores_is_that_of_their_densities(
    law: best_threshold._Law,
) -> None:
    # δ(ε) = ∫ max(0, p - e^ε q) on a fine grid.
    x = np.linspace(-40, 40, 800_001)
    p, q = 0.5 * np.exp(-np.abs(x - law.shift)), 0.5 * np.exp(-np.abs(x))
    step = x[1] - x[0]
    delta = float(np.maximum(p - np.exp(law.epsilon) * q, 0).sum() * step)
    assert delta == pytest.approx(law.delta, rel=1e-2)
