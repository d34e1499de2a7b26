"""How far an audit can see: what it says is what simulated audits do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakmeter.auditors.bounds.one_run import detectable_epsilon, headline
from leakmeter.auditors.canary_draws import cosine_logsf
from leakmeter.auditors.rng import stream
from leakmeter.papers.gaussian import gaussian_sigma
from tests.helpers.numbers import few_or_many

SETTINGS = {"canaries": 100, "dim": 10_000, "delta": 1e-5, "confidence": 0.95}


def share_refuted(
    claim: float,
    delivered: float,
    runs: int,
    *,
    canaries: int,
    dim: int,
    delta: float,
    confidence: float,
    directions: int = 1,
    has_coins: bool = True,
) -> float:
    """Return the share of audits of a Gaussian mechanism that refute a claim about its ε."""
    rng, mean = stream(5, "power", canaries), 1 / gaussian_sigma(delivered, delta)
    refuted = 0
    for _ in range(runs):
        is_in = rng.random(canaries) < 0.5 if has_coins else np.ones(canaries, dtype=bool)
        along = rng.standard_normal(canaries) + mean * is_in
        cosines = along / np.sqrt(along**2 + rng.chisquare(dim - 1, canaries))
        log_p = np.minimum(cosine_logsf(cosines, dim) + math.log(directions), 0.0)
        if is_in.any():
            guesses = 1 if has_coins else None
            settings = {"delta": delta, "confidence": confidence, "guesses": guesses}
            bound, _ = headline(cosines, is_in, log_p, **settings)  # type: ignore[arg-type]
            refuted += bound.value > claim
    return refuted / runs


@pytest.mark.parametrize("runs", few_or_many(20, 2000))
@pytest.mark.parametrize(
    ("claim", "settings"),
    [
        (8.0, SETTINGS),
        (1.0, SETTINGS | {"canaries": 150}),
        (20.0, SETTINGS | {"dim": 100, "canaries": 30, "directions": 3, "confidence": 0.99}),
        (8.0, SETTINGS | {"canaries": 9, "has_coins": False}),
        (8.0, SETTINGS | {"canaries": 80, "delta": 1e-3}),  # δ takes what coins would need
    ],
)
def test_four_of_five_audits_refute_a_mechanism_that_delivers_this(
    claim: float, settings: dict[str, float], runs: int
) -> None:
    delivered = detectable_epsilon(claim, **settings)  # type: ignore[arg-type]
    power = share_refuted(claim, delivered, runs, **settings)  # type: ignore[arg-type]
    # Three standard errors of these runs and of the thousand behind the answer; 2 % for half of
    # the canaries that take part, where δ is large, and the tail of the noncentral t.
    error = 3 * math.sqrt(0.8 * 0.2 * (1 / runs + 1 / 1000)) + 0.02
    assert power == pytest.approx(0.8, abs=error)


def test_more_canaries_see_more_and_more_directions_confidence_or_claimed_see_less() -> None:
    def seen(claim: float = 8.0, **changed: float) -> float:
        return detectable_epsilon(claim, **SETTINGS | {"canaries": 40} | changed)  # type: ignore[arg-type]

    usual = seen()
    assert 8 < seen(canaries=200) < usual < min(seen(directions=3), seen(confidence=0.99))
    assert 1 < seen(1.0) < usual < min(seen(20.0), seen(has_coins=False))
    detectable_epsilon.cache_clear()
    assert seen() == usual  # always the same


def test_where_no_mechanism_is_refuted_nothing_is_detectable() -> None:
    # Above what seeds can show; or two coins, of which both say out in a quarter of the runs.
    assert detectable_epsilon(88.0, **SETTINGS) == math.inf
    assert detectable_epsilon(1.0, **SETTINGS | {"canaries": 2}) == math.inf
    assert detectable_epsilon(1.0, **SETTINGS | {"delta": 0.5}) == math.inf
