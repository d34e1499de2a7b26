"""Distributions of noise: what clients, the server and the accountant need of each, by name.

A new one is a subclass of `Distribution` in a file of its own, and its row in `DISTRIBUTIONS`.
"""

from __future__ import annotations

from leakmeter.auditors.noise.distribution import Distribution, Gaussian
from leakmeter.auditors.noise.integer import DiscreteGaussian, Skellam

DISTRIBUTIONS: dict[str, Distribution] = {
    "gaussian": Gaussian(),
    "skellam": Skellam(),
    "discrete-gaussian": DiscreteGaussian(),
}


def distribution_named(name: object) -> Distribution:
    """Return the distribution of this name.

    Raises:
        ValueError: There is none.
    """
    if not isinstance(name, str) or name not in DISTRIBUTIONS:
        shown = f"{name:.40}" if isinstance(name, str) else type(name).__name__
        known = ", ".join(DISTRIBUTIONS)
        raise ValueError(f"distribution must be one of {known}, got {shown!r}")
    return DISTRIBUTIONS[name]
