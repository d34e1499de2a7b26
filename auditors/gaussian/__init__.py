"""Exact privacy of two Gaussians: epsilon, delta, trade-off, noise; needs scipy only."""

from __future__ import annotations

from leakmeter.auditors.gaussian.pair import (
    anderson_darling,
    classical_sigma_unsafe_above_epsilon_1,
    delta_gaussian,
    epsilon_between_gaussians,
    epsilon_gaussian,
    gaussian_sigma,
    log_delta_gaussian,
    tradeoff_gaussian,
)

__all__ = [
    "anderson_darling",
    "classical_sigma_unsafe_above_epsilon_1",
    "delta_gaussian",
    "epsilon_between_gaussians",
    "epsilon_gaussian",
    "gaussian_sigma",
    "log_delta_gaussian",
    "tradeoff_gaussian",
]
