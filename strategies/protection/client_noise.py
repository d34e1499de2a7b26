"""Noise on clipped updates that hides whole clients: added by the server, by all, or by each.

McMahan, Ramage, Talwar, Zhang (2018), Learning Differentially Private Recurrent Language Models,
arXiv:1710.06963, where the server adds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from flwr.app import Message

from leakmeter.auditors.finding import Observer
from leakmeter.auditors.hook import wire
from leakmeter.auditors.noise import Distribution, distribution_named
from leakmeter.auditors.values import require
from leakmeter.strategies.accounting.accountant import Release
from leakmeter.strategies.accounting.assurance import Assurance, Charge, Exposure, Spending
from leakmeter.strategies.protection.mechanism import (
    Clip,
    Mechanism,
    NotNoisedError,
    Order,
    Summed,
    vector_std,
)

# Rounding errors of float64 below this share of the clip norm are ignored, as in every guarantee
# about real numbers.
_NEGLIGIBLE = 1e-9


class ClientNoise(Mechanism):
    """Noise on the sum of clipped updates; subclasses say who adds it.

    Attributes:
        protects: The observer that the noise is meant for.
        exposures: What observers see, from those who see most.
        own_share: Contributors that count in any case: a client counts on noise that it adds
            to its own update.
    """

    protects: ClassVar[Observer] = "server"
    exposures: ClassVar[tuple[Exposure, ...]]
    own_share: ClassVar[int] = 0

    noise_multiplier: float
    distribution: str

    @property
    def noise_distribution(self) -> Distribution:
        return distribution_named(self.distribution)

    @property
    def by_clients(self) -> bool:
        """Whether clients add it; the accountant then multiplies what one of them adds."""
        return self.share_std(Clip(1.0)) > 0

    def order(self, clip: Clip) -> Order:
        """Return clip norm and each client's noise, and its distribution if clients add it."""
        order: Order = {"clip-norm": clip.norm, "share-std": self.share_std(clip)}
        return {**order, "distribution": self.distribution} if self.by_clients else order

    def check_reply(self, message: Message, weight_key: str, *, is_sum: bool) -> None:
        """Raise if a reply did not pass noise_mod; a secure sum has checked those in it."""
        if is_sum:
            return
        weight = wire.weight(message.content, weight_key)
        node = message.metadata.src_node_id
        if weight != 1:
            raise NotNoisedError(
                f"{weight_key} must be 1 under noise, got {weight:g} from node {node}: "
                "list noise_mod in the client app"
            )
        if self.by_clients and wire.config(message.content, wire.NOISE) is None:
            raise NotNoisedError(
                f"the reply of node {node} must say that it carries noise, but does not: "
                "list noise_mod in the client app"
            )

    def discounted(self, bearable: int | None) -> int:
        """Return the clients whose noise does not count, given what secure sums tolerate."""
        return bearable or 0

    def guarantees(self, spending: Spending) -> Assurance:
        single = spending.releases
        colluders = self.discounted(spending.bearable)
        smallest = spending.smallest() if self.by_clients and not self.own_share else None
        return Assurance(
            self,
            releases=spending.sums(colluders, self.own_share) if self.by_clients else single,
            smallest=() if smallest is None else smallest.sums(colluders),
            participations=spending.participations,
            canary_rounds=spending.canary_rounds,
            colluders=colluders,
            single=single if self.own_share else (),
            is_masked=any(charge.is_masked for charge in spending.charges),
            is_coarse=any(charge.is_coarse for charge in spending.charges),
        )

    def _of_clients(self, summed: Summed) -> Release:
        """Return a sum with the noise that one client adds before it."""
        reach = self.noise_distribution.of_clients(summed.clip.norm, summed.step, summed.dim)
        return Release(
            noise_std=self.share_std(summed.clip),
            sensitivity=reach.sensitivity,
            distribution=self.distribution,
            grid=reach.grid,
            **summed.pattern,
        )

    def _is_coarse(self, summed: Summed) -> bool:
        """Whether a client's noise is below two rounding steps.

        Each client rounds separately, so rounding is not post-processing of the noised sum. Only a
        fine grid leaves the analysis of noise over the reals valid.
        """
        return self.share_std(summed.clip) < 2 * max(summed.step, summed.grain)

    def _check(self, least: float = math.ulp(0.0)) -> None:
        if not least <= self.noise_multiplier < math.inf:
            allowed = "at least 0" if least == 0 else "above 0"
            raise ValueError(
                f"noise_multiplier must be {allowed} and finite, got {self.noise_multiplier}"
            )
        distribution_named(self.distribution)  # raises if it is unknown


@dataclass(frozen=True)
class Central(ClientNoise):
    """The server adds noise to the mean: protects against outsiders, not against the server.

    Attributes:
        noise_multiplier: Noise on the sum in units of the clip norm.
        distribution: Name of the noise's distribution. If it is over integers, the server rounds
            the sum to a grid of its own, so that no bits of a floating-point sample are released.
    """

    fills_empty_rounds: ClassVar[bool] = True
    adapts: ClassVar[bool] = True
    protects: ClassVar[Observer] = "outsider"
    exposures: ClassVar[tuple[Exposure, ...]] = (
        Exposure("server", "round sum", "none"),  # the mean before noise
        Exposure("outsider", "noised sum"),
    )

    noise_multiplier: float
    distribution: str = "gaussian"

    def __post_init__(self) -> None:
        self._check(0.0)

    def server_std(self, clip: Clip) -> float:
        return vector_std(self.noise_multiplier, clip)

    def discounted(self, bearable: int | None) -> int:
        """Return 0: clients add no noise that they could reveal."""
        return 0

    def cost(self, summed: Summed) -> Charge:
        """Return what a sum costs; each client rounds, which may lengthen its update by step·√d."""
        std, root = self.server_std(summed.clip), math.sqrt(summed.dim)
        norm, step = summed.clip.norm, summed.step
        # The float64 rounding error of a coordinate of the sum of a secure mean.
        slack = summed.contributors * summed.grain if step else 0.0
        if slack * root > _NEGLIGIBLE * norm:
            step += slack
        moved = norm + step * root
        plain = Release(std, moved, bit_std=summed.clip.bit_std, **summed.pattern)
        if std == 0 or self.noise_distribution.is_gaussian:
            return Charge(plain, summed.contributors)
        reach = self.noise_distribution.of_server(moved, std, summed.dim)
        noised = replace(plain, distribution=self.distribution, grid=reach.grid)
        return Charge(replace(noised, sensitivity=reach.sensitivity), summed.contributors)


@dataclass(frozen=True)
class Distributed(ClientNoise):
    """Clients add shares of the noise before masking: also protects against the server.

    Each share has variance target / min_honest, so that this many shares reach the target.
    A canary seat adds its share to the canary, and counts like any other contributor.

    Attributes:
        noise_multiplier: Least noise on the sum in units of the clip norm.
        min_honest: Honest contributors that are certain: threshold of the secure sum minus
            colluders.
        colluders: Contributors that reveal their noise to the server, so that it does not
            count; None takes as many as the secure sum tolerates, and never more are counted.
        distribution: Name of the shares' distribution. Integers are added inside the ring of the
            secure sum, after rounding; sums of Skellam shares are Skellam again.
    """

    needs_sums: ClassVar[str] = (
        "noise Distributed needs Masked around Noised: single shares are weak, got no secure sum; "
        "write Masked(Noised(strategy, ...), max_weight=1) or take Local"
    )
    exposures: ClassVar[tuple[Exposure, ...]] = (
        Exposure("server", "round sum"),
        Exposure("outsider", "noised sum"),
    )

    noise_multiplier: float
    min_honest: int
    colluders: int | None = None
    distribution: str = "gaussian"

    def __post_init__(self) -> None:
        self._check()
        require("at least 1", min_honest=self.min_honest)
        require("at least 0", is_optional=True, colluders=self.colluders)

    def share_std(self, clip: Clip) -> float:
        return self.noise_multiplier * clip.norm / math.sqrt(self.min_honest)

    def discounted(self, bearable: int | None) -> int:
        """Return the declared ones, in no round more than its secure sum tolerates."""
        known = (self.colluders, bearable)
        return min((n for n in known if n is not None), default=0)

    def cost(self, summed: Summed) -> Charge:
        """Return what a sum costs; integer noise is added after rounding, on any grid."""
        is_coarse = self._is_coarse(summed) and not self.noise_distribution.is_integer
        return Charge(self._of_clients(summed), summed.contributors, is_coarse=is_coarse)


@dataclass(frozen=True)
class Local(ClientNoise):
    """Every client adds all the noise itself: protects even on the wire.

    Attributes:
        noise_multiplier: Noise on each update in units of the clip norm.
        distribution: Name of its distribution, over the reals.
    """

    own_share: ClassVar[int] = 1
    exposures: ClassVar[tuple[Exposure, ...]] = (
        Exposure("server", "updates", "own"),
        Exposure("wire", "updates", "own"),
        Exposure("outsider", "noised sum"),
    )

    noise_multiplier: float
    distribution: str = "gaussian"

    def __post_init__(self) -> None:
        self._check()
        if self.noise_distribution.is_integer:
            raise ValueError(
                f"distribution must be over the reals with Local, got {self.distribution!r}: "
                "integer noise needs the grid of a secure sum; take Distributed"
            )

    def share_std(self, clip: Clip) -> float:
        return self.noise_multiplier * clip.norm

    def cost(self, summed: Summed) -> Charge:
        """Return what a sum costs; on a coarse grid only the client's own noise counts.

        It is rounded after it.
        """
        count = 1 if self._is_coarse(summed) else summed.contributors
        return Charge(self._of_clients(summed), count)
