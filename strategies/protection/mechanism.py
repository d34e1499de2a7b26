"""What a mechanism is: both halves of its noise, what travels, what a release costs, whom it hides.

A new mechanism is a subclass of `Mechanism` in a file of its own, and its name on the room's front
page. `Noised` runs it, and knows no mechanism by name. On the client, `NoiseMod` obeys the order.

Here are those that hide whole clients by noise on clipped updates, added by the server, by all, or
by each: McMahan, Ramage, Talwar, Zhang (2018), Learning Differentially Private Recurrent Language
Models, arXiv:1710.06963, where the server adds it.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from leakmeter.auditors.codec import codec
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Observer
from leakmeter.auditors.hook import wire
from leakmeter.auditors.noise import Distribution, distribution_named
from leakmeter.auditors.values import Vector, require
from leakmeter.clients.secure_sum.wire import metrics_of
from leakmeter.strategies.accounting.accountant import Release, multiplier_with_bit
from leakmeter.strategies.accounting.assurance import (
    Assurance,
    Charge,
    Exposure,
    Guarantees,
    Priced,
    Spending,
)


@dataclass(frozen=True)
class FixedClip:
    """One clip norm for the whole run.

    Attributes:
        norm: The clip norm.
        is_measured: Whether it was chosen by a look at the clients' data, which no guarantee
            covers; then the guarantees say so.
    """

    norm: float
    is_measured: bool = False

    def __post_init__(self) -> None:
        require("(0, inf)", norm=self.norm)

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
    is_measured: ClassVar[bool] = False  # what it learns of the norms is noised and charged

    def __post_init__(self) -> None:
        require("(0, inf)", initial=self.initial, rate=self.rate)
        require("(0, 1)", quantile=self.quantile)
        require("(0, inf)", is_optional=True, bit_std=self.bit_std)

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
        fewest: Fewest clients in a sum that a server which may do anything could have opened in
            place of this one; None where it must follow the protocol.
    """

    clip: Clip
    dim: int = 0
    contributors: int = 0
    seats: int = 0
    step: float = 0.0
    grain: float = 0.0
    saturated: int = 0
    pattern: Mapping[str, Any] = field(default_factory=dict)
    fewest: int | None = None


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
        release: What its charges are about.
    """

    order_key: ClassVar[str] = wire.NOISE
    clips_updates: ClassVar[bool] = True
    fills_empty_rounds: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    needs_sums: ClassVar[str] = ""
    release: ClassVar[type[Priced]] = Release

    @property
    def noise_distribution(self) -> Distribution:
        """The distribution of the noise."""
        return distribution_named("gaussian")

    def check_clipping(self, clipping: Clipping | None, clip_mean: float | None) -> None:
        """Raise if it cannot be combined with this clipping."""
        name, kind = type(self).__name__, self.noise_distribution
        if not self.clips_updates:
            if clipping is not None or clip_mean is not None:
                raise ValueError(
                    f"clipping and clip_mean must be None with {name}, which clips gradients of "
                    f"single examples, got {clipping} and {clip_mean}"
                )
            return
        if clipping is None:
            raise ValueError(f"clipping must be given with {name}, got None")
        if clipping.bit_noise(None) is None:
            return
        if not self.adapts:
            raise BadValueError("noise", "Central with an adaptive clip norm", self)
        if not kind.is_gaussian:
            raise BadValueError(
                "distribution",
                "gaussian with an adaptive clip norm: no proof covers other noise with bits",
                kind.name,
                fix="Take FixedClip",
            )

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
    def cost(self, summed: Summed) -> Charge:
        """Return what a sum costs: its release, whose noise counts, whether rounding was coarse."""

    def charge(self, summed: Summed, clients: tuple[int, ...], **about: Any) -> Charge:
        """Return the charge of a sum for everybody who pays; `about` are further fields of it."""
        is_masked, fewest = summed.step > 0, None
        if summed.fewest is not None:
            smallest = replace(summed, contributors=min(summed.fewest, summed.contributors))
            fewest = self.cost(smallest).contributors
        counted = self.cost(summed)
        return replace(counted, clients=clients, is_masked=is_masked, fewest=fewest, **about)

    def charges_of(self, state: Mapping[str, Any]) -> list[Charge]:
        """Return the charges in what `Spending.state` returned.

        Raises:
            CodecError: They are not such charges.
        """
        kept = codec(list[dict[str, Any]]).read(state.get("charges"), "charges")
        release = codec(self.release)
        read = [{**one, "release": release.read(one.get("release"), "release")} for one in kept]
        charges: list[Charge] = codec(list[Charge]).read(read, "charges")
        return charges

    @abstractmethod
    def guarantees(self, spending: Spending) -> Guarantees:
        """Return what the charges of a run, at least one, guarantee to whom."""


class NotNoisedError(ValueError):
    """A reply did not pass noise_mod, so the guarantee would not hold."""


def with_arrays(messages: Sequence[Message], arrays: ArrayRecord, weight_key: str) -> list[Message]:
    """Return copies of replies with other arrays; the replies themselves stay as they came.

    Flower's strategies raise if metrics differ in names or kinds. Metrics that not all clients sent
    in the same form are left out. An empty round has a reply of nobody, which brings its noise.
    """
    messages = messages or [Message(RecordDict(), dst_node_id=0, message_type="train")]
    sent = [metrics_of(message.content) for message in messages]
    alike = [
        name
        for name in sent[0]
        if name not in (wire.CLIP_BIT, weight_key) and len({_form(m.get(name)) for m in sent}) == 1
    ]
    copies = []
    for message, metrics in zip(messages, sent, strict=True):
        other = copy.copy(message)
        kept = MetricRecord({weight_key: 1, **{name: metrics[name] for name in alike}})
        other.content = RecordDict({"arrays": arrays, "metrics": kept})
        copies.append(other)
    return copies


def clip_bit(message: Message) -> float:
    """Return a reply's bit, or the mean of all bits behind masks, within [0, 1]."""
    for record in message.content.values():
        if isinstance(record, MetricRecord) and wire.CLIP_BIT in record:
            bit = wire.get_float(record, wire.CLIP_BIT)
            if bit != bit:
                raise ValueError(f"{wire.CLIP_BIT!r} must be a number, got NaN")
            return min(max(bit, 0.0), 1.0)
    raise NotNoisedError(
        f"replies must carry {wire.CLIP_BIT!r} for an adaptive clip norm: list noise_mod in the "
        f"client app, and {wire.CLIP_BIT!r} with (0, 1) among the metrics of Masked"
    )


def _form(value: float | list[int] | list[float] | None) -> int | None:
    """Return the length of a list, -1 for a number, None for what is missing."""
    if value is None:
        return None
    return len(value) if isinstance(value, list) else -1


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

    def _check(self, allowed: str = "(0, inf)") -> None:
        require(allowed, noise_multiplier=self.noise_multiplier)
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
        self._check("[0, inf)")

    def server_std(self, clip: Clip) -> float:
        """Return the noise with which vector and clip bits together cost the requested one."""
        multiplier = self.noise_multiplier
        if multiplier > 0 and clip.bit_std is not None:
            multiplier = multiplier_with_bit(multiplier, clip.bit_std)
        return multiplier * clip.norm

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
            raise BadValueError(
                "distribution",
                "over the reals with Local",
                self.distribution,
                fix="Integer noise needs the grid of a secure sum; take Distributed",
            )

    def share_std(self, clip: Clip) -> float:
        return self.noise_multiplier * clip.norm

    def cost(self, summed: Summed) -> Charge:
        """Return what a sum costs; on a coarse grid only the client's own noise counts.

        It is rounded after it.
        """
        count = 1 if self._is_coarse(summed) else summed.contributors
        return Charge(self._of_clients(summed), count)
