"""What bounds refuse: every wrong argument is named."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.bounds.anytime import Anytime, AnytimeBound
from leakmeter.auditors.bounds.gaussian import (
    anderson_darling,
    epsilon_between_gaussians,
    epsilon_gaussian,
    tradeoff_gaussian,
)
from leakmeter.auditors.bounds.lower_bound import (
    BandAndFixed,
    Bonferroni,
    Fixed,
    PilotSplit,
    TradeoffBound,
    epsilon_lower_bound,
)
from leakmeter.auditors.bounds.one_run import (
    coin_bound,
    detectable_epsilon,
    guess_by_rank,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    share_bound,
)
from leakmeter.papers.gaussian import (
    classical_sigma_unsafe_above_epsilon_1,
    delta_gaussian,
    gaussian_sigma,
)
from tests.helpers.refusals import refuses

lower = partial(epsilon_lower_bound, [1.0], [0.0], delta=0.1)
known = partial(epsilon_lower_bound, [1.0], delta=0.1)
curve = partial(TradeoffBound.of, [1.0], [0.0])
coins = partial(coin_bound, [0.0], [True], delta=0)
shares = partial(share_bound, [1.0], delta=0)
anytime = partial(AnytimeBound, delta=0.1)
detectable = partial(detectable_epsilon, 1.0, canaries=100, dim=10**4, delta=1e-5, confidence=0.95)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("delta", partial(lower, delta=1.0)),
        ("delta", partial(lower, delta=-0.1)),
        ("confidence", partial(lower, confidence=1.0)),
        ("scores_in", partial(epsilon_lower_bound, [], [0.0], delta=0.1)),
        ("scores_out", partial(epsilon_lower_bound, [1.0], [math.nan], delta=0.1)),
        ("limit", partial(lower, limit="wald")),
        ("family", partial(lower, family="laplace")),
        ("null_logsf", partial(known, null_logsf=np.ones_like)),
        ("null_logsf", partial(known, null_logsf=np.sum)),
        ("threshold", partial(Fixed, math.nan)),
        ("threshold", partial(BandAndFixed, math.nan)),
        ("fraction", partial(PilotSplit, 1.0)),
        ("share", partial(BandAndFixed, share=0.0)),
        ("share", partial(BandAndFixed, share=1.0)),
        ("num_counts", partial(Bonferroni, 1)),
        ("confidence", partial(curve, confidence=1.0)),
        ("deltas", lambda: curve().epsilons([0.5, 1.0])),
        ("std_0", partial(epsilon_between_gaussians, 0, -1, 0, 1, 0.1)),
        ("std_1", partial(epsilon_between_gaussians, 0, 1, 0, math.inf, 0.1)),
        ("mean_0", partial(epsilon_between_gaussians, math.nan, 1, 0, 1, 0.1)),
        ("delta", partial(epsilon_between_gaussians, 0, 1, 0, 1, [0.5, 1])),
        ("epsilon", partial(delta_gaussian, -1, 1)),
        ("separation", partial(epsilon_gaussian, 0.1, -2)),
        ("fpr", partial(tradeoff_gaussian, 1.5, 1)),
        ("delta", partial(gaussian_sigma, 1, 0)),
        ("epsilon", partial(classical_sigma_unsafe_above_epsilon_1, 0, 0.1)),
        ("values", partial(anderson_darling, [1.0] * 20)),
        ("values", partial(anderson_darling, list(range(7)))),
        ("log_p", partial(coin_bound, [], [], delta=0)),
        ("log_p", partial(coin_bound, [[0.0]], [[True]], delta=0)),
        ("log_p", partial(coin_bound, [math.nan], [True], delta=0)),
        ("log_p", partial(coin_bound, [0.5], [True], delta=0)),
        ("included", partial(coin_bound, [0.0], [True] * 2, delta=0)),
        ("included", partial(coin_bound, [0.0], [0.5], delta=0)),
        ("included", partial(coin_bound, [0.0], [2], delta=0)),
        ("delta", partial(coins, delta=1.0)),
        ("confidence", partial(coins, confidence=1)),
        ("scores", partial(share_bound, [], delta=0)),
        ("scores", partial(share_bound, [math.nan], delta=0)),
        ("scores", partial(share_bound, [-2.0], delta=0)),
        ("delta", partial(shares, delta=-1)),
        ("confidence", partial(shares, confidence=0)),
        ("scores_in and scores_out", partial(guess_by_rank, [math.nan], [0.0], 1)),
        ("num_guesses", partial(guess_by_rank, [1.0], [0.0], 3)),
        ("delta", partial(anytime, delta=1.0)),
        ("confidence", partial(anytime, confidence=0.0)),
        ("confidence", partial(Anytime, 1.0)),
        ("planned", partial(anytime, planned=-1)),
        ("candidates", partial(anytime, candidates=[1.0, 0.5])),
        ("epsilon", lambda: detectable_epsilon(-1.0, **detectable.keywords)),
        ("canaries", partial(detectable, canaries=0)),
        ("dim", partial(detectable, dim=1)),
        ("delta", partial(detectable, delta=1.0)),
        ("confidence", partial(detectable, confidence=1.0)),
        ("directions", partial(detectable, directions=0)),
    ],
)
def test_a_wrong_argument_is_named(name: str, call: Any) -> None:
    with refuses(name):
        call()


@pytest.mark.parametrize("bound", [one_run_epsilon, one_run_gaussian_epsilon])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("num_canaries", (0, 0, 0, 0.1)),
        ("num_guesses", (10, 11, 0, 0.1)),
        ("num_correct", (10, 5, 6, 0.1)),
        ("delta", (10, 5, 5, 1.0)),
        ("confidence", (10, 5, 5, 0.1, 0.0)),
    ],
)
def test_wrong_counts_of_guesses_are_named(bound: Any, name: str, arguments: Any) -> None:
    with refuses(name):
        bound(*arguments)


@pytest.mark.parametrize(
    ("nulls", "given"),
    [
        ({"scores_out": None}, "neither"),
        ({"scores_out": [0.0], "null_logsf": np.zeros_like}, "both"),
    ],
)
def test_a_null_is_drawn_or_known(nulls: Any, given: str) -> None:
    with pytest.raises(ValueError, match=f"scores_out and null_logsf, got {given}"):
        known(**nulls)


def test_trials_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="both show the same draws"):
        anytime().add_trials([0.0, 1.0], [1.0, 0.0])
