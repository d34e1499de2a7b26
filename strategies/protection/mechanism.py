"""What a mechanism is: both halves of its noise, what travels, what a release costs, whom it hides.

A new mechanism is a subclass of `Mechanism` in a file of its own, and its name on the room's front
page. `Noised` runs it, and knows no mechanism by name. On the client, `NoiseMod` obeys the order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, Message

from leakmeter.auditors._types import Vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.noise import distribution
from leakmeter.auditors.noise.distribution import Distribution
from leakmeter.strategies.accounting.accountant import multiplier_with_bit
from leakmeter.strategies.accounting.spending import Charge, Guarantees, Priced, Spending


@dataclass(frozen=True)
class FixedClip:
    """One clip norm for the whole run."""

    norm: float

    def __post_init__(self) -> None:
        if not 0 < self.norm < math.inf:
            raise ValueError(f"clip norm must be in (0, inf), got {self.norm}")

    @property
    def initial(self) -> float:
        """Clip norm of the first round."""
        return self.norm

    def bit_noise(self, expected: float | None) -> float | None:
        """Return None: no bits are released."""
        return None

    def moved(self, norm: float, below: float) -> float:
        """Return the norm of the next round: the same."""
        return norm


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

    def bit_noise(self, expected: float | None) -> float | None:
        """Return the noise on the sum of bits, given the public number of clients."""
        return self.bit_std or (expected or 1.0) / 20

    def moved(self, norm: float, below: float) -> float:
        """Return the norm of the next round, given the noised share of updates below this one.

        Algorithm 1: if too many are below it, it shrinks.
        """
        return norm * math.exp(-self.rate * (below - self.quantile))


Clipping: TypeAlias = FixedClip | AdaptiveClip
Order: TypeAlias = dict[str, int | float | str]


@dataclass(frozen=True)
class Clip:
    """The clip norm of a round.

    Attributes:
        norm: Largest norm of an update.
        bit_std: Noise on the sum of clip bits that is released with it; None if none are.
    """

    norm: float
    bit_std: float | None = None


@dataclass(frozen=True)
class Summed:
    """How a round's updates were summed, or will be.

    Attributes:
        clip: The clip norm.
        dim: Coordinates of an update.
        contributors: Clients in the sum.
        seats: Those among them that play a canary.
        step: Rounding step of each update; 0 without a secure sum.
        grain: Rounding step of the number type in which updates travel.
        saturated: Coordinates that did not fit the secure sum.
        pattern: How clients were drawn, as fields of a `Release`.
    """

    clip: Clip
    dim: int = 0
    contributors: int = 0
    seats: int = 0
    step: float = 0.0
    grain: float = 0.0
    saturated: int = 0
    pattern: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """What a mechanism charges for a sum.

    Attributes:
        release: The sum, with the noise of one contributor where clients add it.
        contributors: Contributors whose noise counts.
        is_coarse: Whether rounding was too coarse against the clients' noise for a proof.
    """

    release: Priced
    contributors: int
    is_coarse: bool = False


class Mechanism(ABC):
    """Noise with both halves: what clients do, what the server adds, and what it costs.

    Attributes:
        order_key: Record under which the order travels.
        clips_updates: Whether clients clip whole updates, and the server divides their sum by a
            public number. Otherwise the mean passes as it is, and clients send nothing else.
        fills_empty_rounds: Whether a round without clients gets noise like any other, or one
            client would be visible.
        adapts: Whether the clip norm may follow the updates.
        needs_sums: Why a secure sum must be around it; empty if none need be.
    """

    order_key: ClassVar[str] = wire.NOISE
    clips_updates: ClassVar[bool] = True
    fills_empty_rounds: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    needs_sums: ClassVar[str] = ""

    @property
    def noise_distribution(self) -> Distribution:
        """The distribution of the noise."""
        return distribution("gaussian")

    @abstractmethod
    def order(self, clip: Clip) -> Order:
        """Return what clients are told, beside the round and the metric that weights them."""

    def share_std(self, clip: Clip) -> float:
        """Return the noise that each client adds to its clipped update."""
        return 0.0

    def server_std(self, clip: Clip) -> float:
        """Return the noise that the server adds to the sum."""
        return 0.0

    def check_reply(self, message: Message, weight_key: str, *, is_sum: bool) -> None:
        """Raise if a reply, or the mean of a secure sum, is not what was ordered."""

    def grain(self, arrays: ArrayRecord, start: Vector) -> float:
        """Return the rounding step of the numbers in which updates to this model travel."""
        return float(np.spacing(np.abs(start).max(initial=0.0)))

    @abstractmethod
    def cost(self, summed: Summed) -> Cost:
        """Return what a sum costs."""

    @abstractmethod
    def read_release(self, values: Mapping[str, Any]) -> Priced:
        """Return the release of a charge that was kept as plain values."""

    @abstractmethod
    def guarantees(self, spending: Spending) -> Guarantees:
        """Return what the charges of a run, at least one, guarantee to whom."""


def charge(
    mechanism: Mechanism,
    summed: Summed,
    clients: tuple[int, ...],
    *,
    canaries: tuple[str, ...] = (),
    bearable: int | None = None,
) -> Charge:
    """Return the charge of a sum.

    Args:
        mechanism: Prices it.
        summed: The sum.
        clients: Everybody who pays.
        canaries: Canaries that were played, by name.
        bearable: Colluders that the secure sum tolerates; None without one.
    """
    cost = mechanism.cost(summed)
    return Charge(
        cost.release,
        clients,
        cost.contributors,
        canaries,
        bearable,
        is_masked=summed.step > 0,
        is_coarse=cost.is_coarse,
    )


def vector_std(noise_multiplier: float, clip: Clip) -> float:
    """Return the noise on the sum so that vector and clip bits together cost the requested one."""
    if noise_multiplier > 0 and clip.bit_std is not None:
        noise_multiplier = multiplier_with_bit(noise_multiplier, clip.bit_std)
    return noise_multiplier * clip.norm
