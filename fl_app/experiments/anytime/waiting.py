"""How many rounds it takes to refute that Flower's local noise keeps the ε it is asked for.

Flower's `LocalDpMod` computes its noise by the classical formula, which holds for ε below 1 only.
Asked for ε = 50 at δ = 1e-5 it delivers 96.4. In every round one canary passes the mod, if its coin
says so. Somebody on the wire sees the noised update and scores it along the canary. A test of the
mod itself shows that its noise has the standard deviation that is drawn here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from scipy.special import log_ndtr

from leakmeter.auditors._types import Floats
from leakmeter.auditors.bounds import AnytimeBound, coin_bound
from leakmeter.auditors.gaussian.pair import (
    classical_sigma_unsafe_above_epsilon_1,
    epsilon_gaussian,
    gaussian_sigma,
)
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.coverage.streams import ALLOWED

ASKED: Final = 50.0
DELTA: Final = 1e-5
DELIVERED: Final = round(
    epsilon_gaussian(DELTA, 1 / classical_sigma_unsafe_above_epsilon_1(ASKED, DELTA)), 1
)
TARGETS: Final = (50.0, 60.0, 70.0)
_CANDIDATES: Final = np.arange(101.0)
_SEED: Final = 0


def bounds_of(planned: int, number: int, *, is_right: bool = False) -> Mapping[str, Floats]:
    """Return the bounds after each round of one run.

    Args:
        planned: Rounds of the run.
        number: Of the run, which names its draws.
        is_right: Whether noise that keeps ε = 50 replaces Flower's.

    Returns:
        By bets ("anytime"), and by the best threshold with an equal part of the allowed failures
        for every planned round ("split"), (rounds,) each.
    """
    rng = stream(_SEED, "anytime", "waiting", planned, int(is_right), number)
    sigma = gaussian_sigma if is_right else classical_sigma_unsafe_above_epsilon_1
    is_in = rng.random(planned) < 0.5
    log_p = np.asarray(log_ndtr(-rng.standard_normal(planned) - is_in / sigma(ASKED, DELTA)))
    bets = AnytimeBound(
        delta=DELTA, confidence=1 - ALLOWED, planned=planned, candidates=_CANDIDATES
    )
    after = range(1, planned + 1)
    by_bets = [bets.add_canaries(log_p[t - 1 : t], is_in[t - 1 : t]) for t in after]
    # δ is paid once here too: what it covers is the same at every look. The rest is split.
    part = 1 - (ALLOWED - planned * DELTA / 2) / planned
    by_band = [coin_bound(log_p[:t], is_in[:t], delta=0.0, confidence=part).value for t in after]
    # The limits of all looks hold together, so the largest so far is a bound as well.
    return {"anytime": np.array(by_bets), "split": np.maximum.accumulate(by_band)}


def rounds_until(values: Floats, target: float) -> int | None:
    """Return after which round a bound has refuted ε = `target`; None for never."""
    passed = np.flatnonzero(values >= target)
    return int(passed[0]) + 1 if passed.size else None
