"""What one run's canaries say: estimates, the bounds as published, and bounds that hold.

Andrew et al. (2024), arXiv:2302.03098, Algorithms 1 to 3 and section 5. The published bounds take
the best threshold on the very scores that are counted, with Jeffreys limits at the full level for
each rate: they carry no confidence, and are shown to be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, log_ndtr

from leakmeter.auditors.bounds.lower_bound import proven_epsilons
from leakmeter.auditors.canaries.estimates import Std, band, one_fit, two_fits
from leakmeter.auditors.canaries.proofs import cosine_logsf, prove
from leakmeter.auditors.canaries.transcript import Transcript

Scores = NDArray[np.float64]

CONFIDENCE = 0.95
_ALPHA = 1 - CONFIDENCE
_NULL_RUNS = 400  # simulated runs without a leak behind a null band
_NULL_POOL = 50_000  # canaries drawn for the null of the maxima
_SPENT = 0.1 * _ALPHA  # of the failures, for limits that come from these draws
_STDS: tuple[Std, ...] = ("known", "fitted")


def published_closed(cosines: Scores, dim: int, delta: float) -> float:
    """Return ε_lo as published for a known null: FPR exact, FNR by Jeffreys, best threshold."""
    z = np.sort(cosines) * np.sqrt(dim)
    return _best(log_ndtr(-z), _jeffreys(np.arange(z.size), z.size), delta)


def published_sampled(inside: Scores, outside: Scores, delta: float) -> float:
    """Return ε_lo as published for a sampled null: both rates by Jeffreys, best threshold."""
    thresholds = np.unique(np.concatenate([inside, outside]))
    misses = np.searchsorted(np.sort(inside), thresholds, side="left")
    alarms = outside.size - np.searchsorted(np.sort(outside), thresholds, side="left")
    rates = _jeffreys(alarms, outside.size), _jeffreys(misses, inside.size)
    return _best(np.log(rates[0]), rates[1], delta)


def _jeffreys(count: NDArray[np.intp], of: int) -> Scores:
    """Return the upper end of the one-sided Jeffreys interval, at the full level."""
    return np.asarray(betaincinv(0.5 + count, 0.5 + of - count, 1 - _ALPHA))


def _best(log_fpr: Scores, fnr: Scores, delta: float) -> float:
    return max(0.0, float(proven_epsilons(log_fpr, fnr, delta=delta).max()))


def final_model(
    cosines: Scores, dim: int, delta: float, rng: np.random.Generator
) -> dict[str, Any]:
    """Return what the final model says (Algorithm 2), from cosines of canaries that took part."""
    z = cosines[None] * np.sqrt(dim)
    null = rng.standard_normal((_NULL_RUNS, cosines.size))
    everyone = np.ones(cosines.size, dtype=bool)
    bound = _proven(cosines, everyone, cosine_logsf(cosines, dim), delta, 0.0)
    found: dict[str, Any] = {"bound": bound, "published": published_closed(cosines, dim, delta)}
    for std in _STDS:
        found[std] = float(one_fit(z, std, delta)[0])
        found[f"{std}_null"] = band(one_fit(null, std, delta))
    return found


def all_models(
    transcript: Transcript, played: int, delta: float, rng: np.random.Generator
) -> dict[str, Any]:
    """Return what all models say (Algorithm 3); canaries after the first `played` stayed out."""
    maxima, log_p, pool = transcript.largest(_NULL_POOL, _SPENT, rng)
    inside, outside = maxima[:played], maxima[played:]
    draws = rng.choice(pool, (_NULL_RUNS, maxima.size))
    return {
        "fitted": float(two_fits(inside[None], outside[None], delta)[0]),
        "fitted_null": band(two_fits(draws[:, :played], draws[:, played:], delta)),
        "bound": _proven(maxima, np.arange(maxima.size) < played, log_p, delta, _SPENT),
        "published": published_sampled(inside, outside, delta),
        "shift": float((inside.mean() - outside.mean()) / outside.std()),
    }


def _proven(
    scores: Scores, is_in: NDArray[np.bool_], log_p: Scores, delta: float, spent: float
) -> float:
    """Return the bound with the known null, which is the first."""
    known, *_ = prove(
        scores, is_in, log_p, delta=delta, confidence=CONFIDENCE, guesses=None, spent=spent
    )
    return known.value


def mean_std(values: Sequence[float], digits: str = ".2f") -> str:
    """Return mean and std, where the paper does so too."""
    numbers = np.asarray([float(value) for value in values])
    return f"{numbers.mean():{digits}} ± {numbers.std():{digits.lstrip('+')}}"
