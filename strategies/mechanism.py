"""Small values that say who adds the noise of DP-FedAvg, and how updates are clipped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias, get_args

from leakmeter.auditors.noise.integer import Law


@dataclass(frozen=True)
class Central:
    """The server adds noise to the mean: protects against outsiders, not against the server.

    Attributes:
        noise_multiplier: Noise on the sum in units of the clip norm.
        law: Law of the noise. With an integer law the server rounds the sum to a grid of its own
            and adds integers, so that no bits of a floating-point sample are released.
    """

    noise_multiplier: float
    law: Law = "gaussian"

    def __post_init__(self) -> None:
        _check_multiplier(self.noise_multiplier, 0.0)
        _check_law(self.law)


@dataclass(frozen=True)
class Distributed:
    """Clients add shares of the noise before masking: also protects against the server.

    Each share has variance target / min_honest, so that this many shares reach the target.
    A canary seat adds its share to the canary, and counts like any other contributor.

    Attributes:
        noise_multiplier: Least noise on the sum in units of the clip norm.
        min_honest: Honest contributors that are certain: threshold of the secure sum minus
            colluders.
        colluders: Contributors that reveal their noise to the server, so that it does not count;
            None takes as many as the secure sum tolerates, and never more are counted.
        law: Law of the shares. Integer laws are added inside the ring of the secure sum, after
            rounding; sums of Skellam shares are Skellam again.
    """

    noise_multiplier: float
    min_honest: int
    colluders: int | None = None
    law: Law = "gaussian"

    def __post_init__(self) -> None:
        _check_multiplier(self.noise_multiplier)
        if self.min_honest < 1:
            raise ValueError(f"min_honest must be at least 1, got {self.min_honest}")
        if self.colluders is not None and self.colluders < 0:
            raise ValueError(f"colluders must be at least 0, got {self.colluders}")
        _check_law(self.law)


@dataclass(frozen=True)
class Local:
    """Every client adds all the noise itself: protects even on the wire.

    Attributes:
        noise_multiplier: Noise on each update in units of the clip norm.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check_multiplier(self.noise_multiplier)


@dataclass(frozen=True)
class FixedClip:
    """One clip norm for the whole run."""

    norm: float

    def __post_init__(self) -> None:
        if not 0 < self.norm < math.inf:
            raise ValueError(f"clip norm must be in (0, inf), got {self.norm}")


@dataclass(frozen=True)
class AdaptiveClip:
    """A clip norm that follows a quantile of the update norms.

    Andrew, Thakkar, McMahan, Ramaswamy (2021), arXiv:1905.03871, Algorithm 1.

    Attributes:
        initial: Clip norm of the first round.
        quantile: Share of updates that should be below the clip norm.
        rate: Step of the geometric update.
        bit_std: Noise on the sum of the clients' bits; None takes a twentieth of the cohort.
    """

    initial: float
    quantile: float = 0.5
    rate: float = 0.2
    bit_std: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.initial < math.inf:
            raise ValueError(f"initial clip norm must be in (0, inf), got {self.initial}")
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile must be in (0, 1), got {self.quantile}")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate must be in (0, inf), got {self.rate}")
        if self.bit_std is not None and not 0 < self.bit_std < math.inf:
            raise ValueError(f"bit_std must be in (0, inf), got {self.bit_std}")


Noise: TypeAlias = Central | Distributed | Local
Clipping: TypeAlias = FixedClip | AdaptiveClip


def law_of(noise: Noise) -> Law:
    """Return which noise law it has; local noise is Gaussian."""
    return "gaussian" if isinstance(noise, Local) else noise.law


def _check_law(law: str) -> None:
    if law not in get_args(Law):
        raise ValueError(f"law must be one of {', '.join(get_args(Law))}, got {law!r}")


def _check_multiplier(value: float, least: float = math.ulp(0.0)) -> None:
    if not least <= value < math.inf:
        allowed = "at least 0" if least == 0 else "above 0"
        raise ValueError(f"noise_multiplier must be {allowed} and finite, got {value}")
