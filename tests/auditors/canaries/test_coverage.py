"""Lower bounds from scores keep their confidence, and the check would notice if they did not."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.stats import laplace, norm

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import (
    Bonferroni,
    Fixed,
    PilotSplit,
    SimultaneousBand,
    epsilon_lower_bound,
    upper_limit,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from tests.helpers.numbers import few_or_many, most_allowed

RULES = [Fixed(0.8), PilotSplit(), SimultaneousBand(), Bonferroni()]
# Law of out, law of in, delta and the true epsilon.
CASES = {
    "no leak": (norm(0, 1), norm(0, 1), 0.0, 0.0),
    "Laplace": (laplace(0, 1), laplace(1, 1), 0.0, 1.0),
    "Gaussian": (norm(0, 1), norm(1, 1), 0.05, epsilon_gaussian(0.05, 1.0)),
}


def violations(claim, case, num_samples, num_runs):
    """Return in how many runs `claim(ins, outs, out_law, delta=…)` exceeds the true epsilon."""
    out_law, in_law, delta, truth = CASES[case]
    rng = stream(7, "coverage", case, num_samples)
    count = 0
    for _ in range(num_runs):
        ins = in_law.rvs(num_samples, random_state=rng)
        outs = out_law.rvs(num_samples, random_state=rng)
        count += claim(ins, outs, out_law, delta=delta) > truth
    return count


def sampled(ins, outs, _, **settings):
    return epsilon_lower_bound(ins, outs, **settings).value


def known(ins, _, out_law, **settings):
    return epsilon_lower_bound(ins, null_logsf=out_law.logsf, **settings).value


def gaussian(ins, outs, _, delta, **settings):
    return epsilon_lower_bound(ins, outs, delta=delta or 1e-5, family="gaussian", **settings).value


@pytest.mark.parametrize("runs", few_or_many(20, 400))
@pytest.mark.parametrize(
    ("claim", "case"),
    [
        *((claim, case) for claim in (sampled, known) for case in CASES),
        *((gaussian, case) for case in ("no leak", "Gaussian")),
    ],
)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_the_confidence_is_kept(rule, claim, case, runs):
    ruled = partial(claim, rule=rule)
    assert violations(ruled, case, 150, runs) <= most_allowed(runs)


@pytest.mark.parametrize("runs", few_or_many(150, 600))
def test_the_check_catches_a_threshold_chosen_on_the_tested_scores(runs):
    table = upper_limit(np.arange(5001), 5000, 0.025)

    def wrong(ins, outs, _, delta):
        at = np.concatenate([ins, outs])
        fpr = table[5000 - np.searchsorted(np.sort(outs), at)]
        fnr = table[np.searchsorted(np.sort(ins), at)]
        hits, rejections = np.maximum(1e-300, 1 - delta - np.array([fnr, fpr]))
        return np.log([hits / fpr, rejections / fnr]).max()

    def right(ins, outs, _, delta):
        return epsilon_lower_bound(ins, outs, delta=delta).value

    assert violations(wrong, "Laplace", 5000, runs) > most_allowed(runs)
    assert violations(right, "Laplace", 5000, runs) <= most_allowed(runs)


@pytest.mark.parametrize("limit", ["clopper-pearson", "jeffreys"])
def test_the_check_catches_a_chosen_threshold_under_a_known_null(limit):
    def wrong(ins, _, out_law, delta):
        fnr = upper_limit(np.arange(ins.size), ins.size, 0.05, limit)
        return (np.log(1 - delta - fnr) - out_law.logsf(np.sort(ins))).max()

    assert violations(wrong, "no leak", 150, 400) > 4 * most_allowed(400)


def test_one_run_scores_need_the_independence_that_is_written_down():
    # Everything is revealed with chance 0.2: (0, 0.2)-DP, yet all scores of a run go together.
    rng = stream(7, "reveal")
    claims = []
    for _ in range(200):
        reveal = 5.0 * (rng.random() < 0.2)
        ins, outs = rng.normal(reveal, 1, 100), rng.normal(0, 1, 100)
        bound = epsilon_lower_bound(ins, outs, delta=0.2, same_run=True)
        claims.append(bound.value > 0)
    assert sum(claims) > most_allowed(200)
    assert Assumption.INDEPENDENT_SCORES in bound.assumptions
