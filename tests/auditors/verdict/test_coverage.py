"""All that a run shows holds together at its confidence, and the check would notice if not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import norm

import leakmeter
from leakmeter.auditors import Finding, OneShotCanaries, ThreatModel
from leakmeter.auditors.auditor import Auditor, share_confidence
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import Fixed, epsilon_lower_bound
from leakmeter.auditors.rng import stream
from leakmeter.auditors.verdict.verdict import judge
from tests.auditors.canaries.test_auditor import play
from tests.helpers.numbers import few_or_many, most_allowed

DELTA = 0.01
MU = 1.0  # of the Gaussian case
TRUTH = {0.0: 0.0, MU: float(epsilon_gaussian(DELTA, MU))}
SEEN = ("final model", "all models", "noised sum", "round sum")  # the weakest first


class Tight(Auditor):
    """A bound that is too large as often as it may be: of trials at the best threshold."""

    num_bounds = 1

    def __init__(self, sees: str, rng: np.random.Generator, mu: float) -> None:
        self.name, self.confidence = sees, 0.95
        self.rng, self.mu = rng, mu
        self.model = ThreatModel(observer="outsider", sees=sees, participations=1)  # type: ignore[arg-type]

    def report(self) -> Sequence[Finding]:
        # Where (P(in ≥ t) - δ)/P(out ≥ t) is e^ε: for equal worlds anywhere, without δ.
        threshold = self.mu / 2 + TRUTH[self.mu] / self.mu if self.mu else -0.5
        bound = epsilon_lower_bound(
            self.rng.normal(self.mu, 1, 2000),
            null_logsf=norm(0, 1).logsf,
            delta=DELTA if self.mu else 0.0,
            rule=Fixed(threshold),
            confidence=self.confidence,
        )
        about = {"auditor": self.name, "quantity": "epsilon", "adjacency": "zero-out"}
        return [Finding.of(bound, threat_model=self.model, **about)]


class Rebuilds(Auditor):
    """A test of reconstructions that nothing is behind: among S strangers any rank is as likely."""

    name, num_bounds, confidence = "inversion", 1, 0.95

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def report(self) -> Sequence[Finding]:
        is_wrong = self.rng.random() < 1 - self.confidence
        model = ThreatModel(observer="server", sees="round sum")
        own = {"auditor": self.name, "unit": "record", "confidence": self.confidence}
        about = {"quantity": "originals recovered", "kind": "lower_bound", "rule": "ranks"}
        return [Finding(value=float(is_wrong), threat_model=model, **about, **own)]  # type: ignore[arg-type]


def failures(runs: int, mu: float, *, is_shared: bool = True) -> tuple[int, float]:
    """Return in how many runs something shown is wrong, and the confidence that they state."""
    rng, wrong = stream(3, "together", str(mu)), 0
    for _ in range(runs):
        auditors = [*(Tight(sees, rng, mu) for sees in SEEN), Rebuilds(rng)]
        if is_shared:
            share_confidence(auditors)
        verdict = judge([f for one in auditors for f in one.report()])
        shown = [row.low > TRUTH[mu] for row in verdict.rows]
        wrong += any(shown) or verdict.headline[0] == "rebuilt"
    assert verdict.confidence is not None
    return wrong, verdict.confidence


RUNS = few_or_many(80, 4000)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("mu", [0.0, MU], ids=["no leak", "Gaussian"])
def test_all_bounds_of_a_run_hold_together_at_its_confidence(mu: float, runs: int) -> None:
    wrong, confidence = failures(runs, mu)
    assert confidence == pytest.approx(0.95)
    assert wrong <= most_allowed(runs)
    if runs > 1000:  # so tight that a wrong share would show
        assert wrong > 0.5 * 0.05 * runs


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("mu", [0.0, MU], ids=["no leak", "Gaussian"])
def test_the_check_catches_bounds_that_do_not_share_the_confidence(mu: float, runs: int) -> None:
    wrong, confidence = failures(runs, mu, is_shared=False)
    assert wrong > most_allowed(runs)
    assert confidence == pytest.approx(0.75)  # which the verdict would say
    assert wrong <= most_allowed(runs, 0.25)


@pytest.mark.parametrize("runs", few_or_many(8, 200))
@pytest.mark.parametrize("leak", [False, True], ids=["no leak", "Gaussian"])
def test_both_bounds_of_the_canaries_hold_beside_other_bounds(leak: bool, runs: int) -> None:
    truth = float(epsilon_gaussian(1e-5, 1 / 0.4)) if leak else 0.0
    wrong = shown = 0
    for seed in range(runs):
        canaries = OneShotCanaries(seats=40, seed=seed)
        share_confidence([canaries, Rebuilds(stream(seed, "other"))])
        assert canaries.confidence == pytest.approx(1 - 0.05 / 3)
        found = play(canaries, dim=400, rounds=2, sigma=0.4, seed=seed, leak=leak)
        verdict = judge([f for f in found if f.server_round is None])
        wrong += any(row.low > truth for row in verdict.rows)
        shown += any(row.low > 0 for row in verdict.rows)
    assert wrong <= most_allowed(runs)
    assert shown > runs / 2 or not leak


@pytest.mark.slow
def test_whole_runs_refute_no_true_guarantee_more_often_than_stated() -> None:
    runs = 20
    refuted = 0
    for seed in range(runs):
        result = leakmeter.run(
            rounds=3,
            model="linear",
            noise="central",
            clip_norm=1.0,
            noise_multiplier=0.5,
            auditors="one-shot,likelihood-ratio,membership",
            seed=seed,
        )
        assert result.verdict.confidence == pytest.approx(0.95)
        assert any(math.isfinite(row.high) for row in result.verdict.rows)
        refuted += result.verdict.severity == "refuted"
    assert refuted <= most_allowed(runs)
