"""Lower bounds from scores: golden values, twins, edges and properties."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import laplace, norm

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import (
    MAX_EXACT,
    BandAndFixed,
    Bonferroni,
    Fixed,
    PilotSplit,
    Scores,
    SimultaneousBand,
    TradeoffBound,
    band_level,
    epsilon_lower_bound,
    error_curve,
    miss_rate,
    spread_counts,
    upper_limit,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from tests.helpers.numbers import num_examples

steady = settings(derandomize=True, deadline=None)
RULES = [Fixed(0.8), PilotSplit(), SimultaneousBand(), Bonferroni(), BandAndFixed(0.8)]


def quantiles(law, num_samples):
    """Return samples without luck."""
    return law.ppf((np.arange(num_samples) + 0.5) / num_samples)


def test_a_pilot_takes_other_ranks_from_other_scores_and_the_same_from_the_same():
    # One choice of ranks for all data would tie the test to the pilot.
    def ranks(values):
        pilot, test = Scores.of(values, values, None).split(PilotSplit())
        assert sorted([*pilot.ins, *test.ins]) == sorted(values)
        return tuple(np.searchsorted(np.sort(values), pilot.ins))

    rows = stream(7, "split").normal(size=(20, 30))
    assert len({ranks(row) for row in rows}) == 20
    assert ranks(rows[0]) == ranks(rows[0][::-1])


@pytest.mark.parametrize(
    ("rule", "num_samples", "delta", "cap"),
    [
        (Fixed(0.5), 5000, 0.0, 7.21150153982787),
        (Fixed(0.5), 5000, 1e-6, 7.211500539089321),
        (Fixed(0.5), 5000, 0.5, 6.517616038661934),
        (Fixed(0.5), 5000, 0.9, 4.902251854664389),
        (SimultaneousBand(), 5000, 0.0, 6.452),
        (SimultaneousBand(), 1000, 0.0, 4.884),
        (PilotSplit(), 10_000, 0.0, 7.21150153982787),
        # ln(1/b − 1), b = 1 − (0.02)^(1/5000) for four fifths of the failures, 0.0125 for half.
        (BandAndFixed(0.5, 0.8), 5000, 0.0, 7.152747330720709),
        (BandAndFixed(0.5, 0.5), 5000, 0.0, 7.039243637394034),
    ],
)
def test_perfect_separation_reaches_the_cap(rule, num_samples, delta, cap):
    bound = epsilon_lower_bound(np.ones(num_samples), np.zeros(num_samples), delta=delta, rule=rule)
    assert bound.cap == pytest.approx(
        cap, rel=1e-4 if isinstance(rule, SimultaneousBand) else 1e-12
    )
    assert bound.value == bound.cap
    assert bound.saturated


def test_above_the_exact_size_the_band_is_bonferroni():
    ins, outs = quantiles(norm(1, 1), MAX_EXACT + 1), quantiles(norm(0, 1), MAX_EXACT + 1)
    above = epsilon_lower_bound(ins, outs, delta=1e-5)
    assert above.value == epsilon_lower_bound(ins, outs, delta=1e-5, rule=Bonferroni()).value
    below = epsilon_lower_bound(ins[1:], outs[1:], delta=1e-5)
    assert 0.9 * below.value < above.value < below.value


def test_a_known_null_shows_a_large_epsilon():
    bound = epsilon_lower_bound(
        quantiles(norm(20, 1), 1000), null_logsf=norm(0, 1).logsf, delta=1e-6
    )
    assert 250 < bound.value < epsilon_gaussian(1e-6, 20.0)
    assert (bound.cap, bound.saturated) == (None, False)
    assert Assumption.KNOWN_NULL in bound.assumptions


def test_a_score_that_the_null_cannot_have_shows_an_infinite_epsilon():
    def uniform_logsf(t):
        with np.errstate(divide="ignore"):
            return np.log(np.clip(1 - t, 0, 1))

    for family in ("any", "gaussian"):
        bound = epsilon_lower_bound(
            [2.0] * 100, null_logsf=uniform_logsf, delta=1e-5, family=family
        )
        assert bound.value == math.inf


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        (Fixed(1.0), 0.9),
        (PilotSplit(), 0.79),  # with numpy 1, which splits otherwise, 0.7998
        (SimultaneousBand(), 0.8),
        (Bonferroni(), 0.75),
        (BandAndFixed(1.0), 0.9),
    ],
    ids=lambda value: type(value).__name__,
)
def test_bounds_come_near_the_truth(rule, share):
    ins, outs = quantiles(laplace(1, 1), 5000), quantiles(laplace(0, 1), 5000)
    assert share < epsilon_lower_bound(ins, outs, delta=0, rule=rule).value < 1
    known = epsilon_lower_bound(ins, null_logsf=laplace(0, 1).logsf, delta=0, rule=rule)
    assert share < known.value < 1


def test_the_gaussian_family_is_far_tighter_and_says_what_it_assumes():
    ins, outs = quantiles(norm(2, 1), 1000), quantiles(norm(0, 1), 1000)
    truth = epsilon_gaussian(1e-6, 2.0)
    bound = epsilon_lower_bound(ins, outs, delta=1e-6, family="gaussian")
    assert 0.8 * truth < bound.value < truth
    assert epsilon_lower_bound(ins, outs, delta=1e-6).value < 0.3 * truth
    assert bound.is_conditional
    assert Assumption.GAUSSIAN_MECHANISM in bound.assumptions


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_scores_of_one_run_make_a_bound_conditional_and_trials_do_not(rule):
    sampled, known = {"scores_out": [0.0, 1.0]}, {"null_logsf": np.zeros_like}
    for null in (sampled, known):
        trials = epsilon_lower_bound([1.0, 2.0], delta=0.1, rule=rule, **null)
        assert not trials.is_conditional
        assert Assumption.SEPARATE_TRIALS in trials.assumptions
        one_run = epsilon_lower_bound([1.0, 2.0], delta=0.1, rule=rule, same_run=True, **null)
        assert one_run.is_conditional
        assert Assumption.INDEPENDENT_SCORES in one_run.assumptions


def test_a_threshold_fixed_beforehand_and_the_band_give_the_larger_of_both():
    # Whatever the confidence is split into, either part is the plain rule at its own confidence.
    rng = stream(7, "two rules")
    winners = set()
    for shift, threshold in ((1.0, 0.5), (8.0, 4.0), (4.0, -3.0)):
        ins, outs = rng.normal(shift, 1, 300), rng.normal(0, 1, 300)
        for null in ({"scores_out": outs}, {"null_logsf": norm.logsf}):
            both, fixed, band = (
                epsilon_lower_bound(ins, delta=1e-3, rule=rule, confidence=confidence, **null)
                for rule, confidence in (
                    (BandAndFixed(threshold, 0.8), 0.95),
                    (Fixed(threshold), 0.96),
                    (SimultaneousBand(), 0.99),
                )
            )
            assert both.value == pytest.approx(max(fixed.value, band.value), rel=1e-6)
            winners.add(fixed.value > band.value)
            if both.cap is not None:
                assert both.cap == pytest.approx(max(fixed.cap, band.cap), rel=1e-6)
    assert winners == {True, False}
    assert Assumption.FIXED_THRESHOLD in both.assumptions
    # Nearly all failures go to the band, which a test without errors then reaches.
    perfect = np.ones(500), np.zeros(500)
    bound = epsilon_lower_bound(*perfect, delta=0, rule=BandAndFixed(0.5, 1e-6))
    band_cap = epsilon_lower_bound(*perfect, delta=0).cap
    assert bound.saturated
    assert bound.value == bound.cap == pytest.approx(band_cap, rel=1e-4)


def test_jeffreys_is_an_estimate_that_says_credible():
    ins, outs = quantiles(norm(1, 1), 200), quantiles(norm(0, 1), 200)
    credible = epsilon_lower_bound(ins, outs, delta=1e-5, limit="jeffreys")
    assert (credible.kind, credible.confidence) == ("estimate", None)
    assert "credible" in credible.rule
    assert credible.value > epsilon_lower_bound(ins, outs, delta=1e-5).value


def test_a_bound_carries_how_it_was_obtained():
    bound = epsilon_lower_bound([1.0, 2.0, 3.0], [0.0] * 5, delta=1e-5, rule=PilotSplit(0.4, 3))
    assert (bound.kind, bound.delta, bound.confidence) == ("lower_bound", 1e-5, 0.95)
    assert bound.sample_sizes == {"in": 2, "out": 3, "pilot in": 1, "pilot out": 2}
    assert bound.rule == (
        "threshold chosen on a pilot share of 0.4 (seed 3); Clopper-Pearson limits; sampled null"
    )
    assert bound.assumptions == (Assumption.SEPARATE_TRIALS,)
    both = epsilon_lower_bound([1.0], [0.0], delta=1e-5, rule=BandAndFixed(0.25, 0.75))
    assert both.rule == (
        "larger of two: a threshold fixed beforehand (75 % of the allowed failures) and the best "
        "threshold under a simultaneous band (exact up to 5000 samples); Clopper-Pearson limits; "
        "sampled null"
    )


@pytest.mark.parametrize(
    "rule", [*RULES, Fixed(math.inf), Fixed(-math.inf), BandAndFixed(math.inf)], ids=str
)
@pytest.mark.parametrize(
    ("ins", "outs"),
    [([1.0], [0.0]), ([1.0] * 50, [1.0] * 50), ([0.0, math.inf], [-math.inf]), ([0.0], [1.0])],
    ids=["one sample", "equal scores", "infinite scores", "upside down"],
)
def test_poor_data_give_zero_and_never_nan(ins, outs, rule):
    for limit, family in product(("clopper-pearson", "jeffreys"), ("any", "gaussian")):
        kwargs = {"delta": 1e-3, "rule": rule, "limit": limit, "family": family}
        bound = epsilon_lower_bound(ins, outs, **kwargs)
        assert bound.value == 0, kwargs
        assert bound.cap >= 0, kwargs
        known = epsilon_lower_bound(ins, null_logsf=np.zeros_like, **kwargs)
        assert known.value == 0, kwargs


def test_ties_are_never_split_and_a_score_at_the_threshold_counts_as_in():
    # Of 100 equal scores in either class, no threshold may separate any.
    ins, outs = [0.0] * 100 + [1.0] * 10, [0.0] * 100 + [1.0] * 10
    assert epsilon_lower_bound(ins, outs, delta=0, limit="jeffreys", rule=Fixed(1.0)).value == 0
    assert epsilon_lower_bound(ins, outs, delta=0).value == 0
    at = epsilon_lower_bound([1.0] * 100, [0.0] * 100, delta=0, rule=Fixed(1.0))
    assert at.saturated
    assert epsilon_lower_bound([1.0] * 100, [1.0] * 100, delta=0, rule=Fixed(1.0)).value == 0


scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=60)


@steady
@given(scores, scores, st.floats(0, 0.9), st.floats(0, 0.09), st.sampled_from(RULES))
def test_bounds_fall_when_delta_or_confidence_grows(ins, outs, delta, more, rule):
    bound = epsilon_lower_bound(ins, outs, delta=delta, rule=rule)
    assert 0 <= bound.value <= bound.cap
    # A pilot may choose another threshold for another delta.
    if not isinstance(rule, PilotSplit):
        assert epsilon_lower_bound(ins, outs, delta=delta + more, rule=rule).value <= bound.value
        surer = epsilon_lower_bound(ins, outs, delta=delta, rule=rule, confidence=0.99)
        assert surer.value <= bound.value


@steady
@given(scores, scores, st.floats(0, 0.5))
def test_only_the_order_of_scores_matters(ins, outs, delta):
    bound = epsilon_lower_bound(ins, outs, delta=delta)
    stretched = epsilon_lower_bound(np.exp(ins) * 3 - 7, np.exp(outs) * 3 - 7, delta=delta)
    assert stretched == bound
    assert epsilon_lower_bound(ins[::-1], outs[::-1], delta=delta) == bound


@steady
@given(scores, scores, st.floats(0, 0.5))
def test_the_band_agrees_with_counting_by_hand(ins, outs, delta):
    level_in, level_out = band_level(len(ins), 0.025), band_level(len(outs), 0.025)
    best = 0.0
    for threshold in {*ins, *outs}:
        fpr = float(upper_limit(sum(s >= threshold for s in outs), len(outs), level_out))
        fnr = float(upper_limit(sum(s < threshold for s in ins), len(ins), level_in))
        for hit, error in ((1 - delta - fnr, fpr), (1 - delta - fpr, fnr)):
            best = max(best, math.log(hit / error) if hit > 0 else 0.0)
    assert epsilon_lower_bound(ins, outs, delta=delta).value == pytest.approx(best, rel=1e-12)


# Limits for one count and for all at once: golden values, closed forms and simulation.

# Exact levels of a band that holds at 0.05, 0.025 and 0.01, by another recursion.
BAND_LEVELS = {
    10: (7.94338e-3, 3.68184e-3, 1.36745e-3),
    100: (2.46094e-3, 1.09378e-3, 3.86956e-4),
    500: (1.45579e-3, 6.39263e-4, 2.22881e-4),
    1000: (1.21695e-3, 5.32918e-4, 1.85169e-4),
    5000: (8.64136e-4, 3.77202e-4, 1.30513e-4),
}


@pytest.mark.parametrize("num_samples", BAND_LEVELS)
def test_band_levels_match_another_recursion(num_samples):
    levels = [band_level(num_samples, level) for level in (0.05, 0.025, 0.01)]
    assert levels == pytest.approx(BAND_LEVELS[num_samples], rel=1e-5)


def test_band_levels_match_closed_forms_for_one_and_two_samples():
    assert band_level(1, 0.05) == pytest.approx(0.05, rel=1e-12)
    first, second = upper_limit(np.arange(2), 2, 0.03)
    inside = 2 * first * second - first**2  # both orders, the smaller below both limits
    assert miss_rate(2, 0.03) == pytest.approx(1 - inside, rel=1e-12)


def test_miss_rate_matches_simulation_and_keeps_small_levels():
    uniforms = np.sort(stream(7, "band").random((40_000, 30)), axis=1)
    missed = (uniforms > upper_limit(np.arange(30), 30, 0.01)).any(axis=1).mean()
    assert miss_rate(30, 0.01) == pytest.approx(missed, abs=4 * math.sqrt(0.07 / 40_000))
    # Few limits fail together when they hardly ever fail.
    assert 1e-14 < miss_rate(30, 1e-14) < 30e-14


@pytest.mark.parametrize("level", [1e-12, 0.3, 0.9, 0.999])
def test_any_level_has_a_band(level):
    assert miss_rate(40, band_level(40, level)) == pytest.approx(level, rel=1e-7)


def test_limits_match_golden_values():
    clopper_pearson = [upper_limit(k, n, 0.025) for k, n in [(0, 5000), (0, 1000), (25, 5000)]]
    golden = [0.000737503801108105, 0.003682083896865671, 0.007372195916770871]
    assert clopper_pearson == pytest.approx(golden, rel=1e-13)
    assert upper_limit(1000, 1000, 0.025) == 1
    jeffreys = [upper_limit(k, 1000, 0.025, "jeffreys") for k in (0, 1000)]
    assert jeffreys == pytest.approx([0.0025081643414222978, 0.9999995090883053], rel=1e-12)


@pytest.mark.parametrize("num_samples", [1, 2, 7, 5001, 10**6])
def test_spread_counts_are_few_and_reach_both_ends(num_samples):
    counts = spread_counts(num_samples, 200)
    assert counts.size <= 200
    assert (counts[0], counts[-1]) == (0, num_samples - 1)


# The curve of all thresholds says what one bound at a time says, and covers the truth.

DELTAS = [0.0, 1e-6, 1e-3, 0.1, 0.5]
CURVES = [SimultaneousBand(), Bonferroni(10), BandAndFixed(4.0), BandAndFixed(3.5, 0.3)]
SCORES = st.lists(st.integers(0, 8).map(float), min_size=1, max_size=30)


@given(SCORES, SCORES, st.sampled_from(CURVES))
@settings(max_examples=num_examples(100), deadline=None)
def test_the_curve_proves_what_single_bounds_prove(ins, outs, rule) -> None:
    curve = TradeoffBound.of(ins, outs, rule=rule)
    single = [epsilon_lower_bound(ins, outs, delta=d, rule=rule) for d in DELTAS]
    np.testing.assert_allclose(curve.epsilons(DELTAS), [b.value for b in single], rtol=1e-12)
    np.testing.assert_allclose(curve.caps(DELTAS), [b.cap for b in single], rtol=1e-12)


@pytest.mark.parametrize("rule", [SimultaneousBand(), BandAndFixed(0.75)], ids=str)
def test_the_limits_of_a_gaussian_test_hold_together(rule) -> None:
    # With chance 0.95 or more no point of the curve is below the truth: of 200 curves at most
    # 10 + 3·√9.5 = 19 may be, a chance of 0.2 % for a right one.
    rng = stream(3, "curve")
    wrong = 0
    for _ in range(200):
        curve = TradeoffBound.of(rng.normal(1.5, 1, 80), rng.normal(0, 1, 80), rule=rule)
        fpr, fnr = norm.sf(curve.thresholds), norm.cdf(curve.thresholds - 1.5)
        wrong += bool((curve.fpr < fpr).any() or (curve.fnr < fnr).any())
    assert wrong <= 19


def test_a_few_points_keep_the_ends_of_the_curve() -> None:
    rng = stream(3, "thin")
    curve = TradeoffBound.of(rng.normal(1, 1, 500), rng.normal(0, 1, 500))
    thin = curve.points(20)
    assert len(thin["fpr"]) <= 20
    assert thin["fpr"] == sorted(thin["fpr"])
    assert thin["fnr"] == sorted(thin["fnr"], reverse=True)
    assert min(thin["fpr"]) == curve.fpr.min()
    assert min(thin["fnr"]) == pytest.approx(curve.fnr.min())
    perfect = TradeoffBound.of([1.0] * 1000, [0.0] * 1000)
    assert perfect.balanced() == pytest.approx(max(*perfect.least))


@given(SCORES, SCORES, st.sampled_from(CURVES))
@settings(max_examples=num_examples(60), deadline=None)
def test_what_was_counted_stays_below_the_limits_that_are_drawn(ins, outs, rule) -> None:
    found = error_curve(np.array(ins), np.array(outs), confidence=0.95, rule=rule)
    curve = TradeoffBound.of(ins, outs, rule=rule)
    assert list(found.epsilons) == curve.epsilons(found.deltas).tolist()
    assert all(epsilon <= cap for epsilon, cap in zip(found.epsilons, found.caps, strict=True))
    counted = list(zip(found.observed_fpr, found.observed_fnr, strict=True))
    assert 1 <= len(counted) <= 25
    for fpr, fnr in counted:
        thresholds = sorted({*ins, *outs})
        rates = [(np.mean(np.array(outs) >= t), np.mean(np.array(ins) < t)) for t in thresholds]
        assert (fpr, fnr) in [pytest.approx(rate) for rate in rates]
    for fpr, fnr in zip(found.fpr, found.fnr, strict=True):
        # A threshold fixed above all scores finds nobody, which no score as a threshold does.
        assert fnr == 1 or any(fpr >= a and fnr >= b for a, b in counted)


def test_a_figure_with_the_finding_s_rule_shows_the_finding_s_value() -> None:
    # The band alone draws 6.45 where the finding says 7.15: 5,000 trials without an error.
    ins, outs = np.full(5000, 3.0), np.full(5000, -3.0)
    finding = epsilon_lower_bound(ins, outs, delta=1e-6, rule=BandAndFixed(0.0))
    curve = error_curve(ins, outs, confidence=0.95, rule=BandAndFixed(0.0))
    assert curve.deltas[0] == pytest.approx(1e-6)
    assert curve.epsilons[0] == pytest.approx(finding.value, rel=1e-12)
    assert curve.caps[0] == pytest.approx(finding.cap, rel=1e-12)
    assert finding.value == pytest.approx(7.153, abs=1e-3)
    assert error_curve(ins, outs, confidence=0.95).epsilons[0] == pytest.approx(6.452, abs=1e-3)
