"""What Flower's own noise claims by its parameters, and what these deliver by the exact formula.

`LocalDpMod` states an ε, computed by the classical formula for a sensitivity that its user types.
The wrappers `DifferentialPrivacy…` state a noise multiplier z, which says: one release with noise
of z times its sensitivity. As read in flwr 1.41, they deliver less:

1. The mean that gets the noise weights clients by what they say themselves (`num-examples`). The
   noise is that of equal weights, z·C/n, while one client may make up the whole mean. An accountant
   of Flower's refuses unequal weights.
2. Adaptive wrappers move the clip norm before they add the noise, so the noise of a round is set by
   the clip norm of the next.
3. Wrappers with the clip on the client's side do not know whether any client clips.
4. Noise is added after the strategy inside, so behind its optimiser or its median.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, Final, Self

from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.hook.chain import Foreign, foreigners
from leakmeter.auditors.values import require
from leakmeter.auditors.verdict.claim import Claim
from leakmeter.auditors.wording import number

_LOCAL: Final = "LocalDpMod"
_PREFIX, _FLOWER = "DifferentialPrivacy", "flwr."
_CLIENT_FIXED: Final = f"{_PREFIX}ClientSideFixedClipping"
_ADAPTIVE: Final = (
    f"{_PREFIX}ServerSideAdaptiveClipping",
    f"{_PREFIX}ClientSideAdaptiveClipping",
)
_WRAPPERS: Final = (f"{_PREFIX}ServerSideFixedClipping", _CLIENT_FIXED, *_ADAPTIVE)


@dataclass(frozen=True)
class LocalNoise:
    """The parameters of a `LocalDpMod`, as its user typed them.

    Attributes:
        clip_norm: L2 norm that updates are clipped to.
        sensitivity: What the noise is computed for.
        epsilon: What the mod says it delivers.
        delta: At this δ.
    """

    clip_norm: float
    sensitivity: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require("(0, inf)", clip_norm=self.clip_norm)
        require("[0, inf)", sensitivity=self.sensitivity, epsilon=self.epsilon)
        require("(0, 1)", delta=self.delta)

    @classmethod
    def of(cls, mods: Iterable[Any]) -> Self | None:
        """Return what the first `LocalDpMod` of a list says; None without one.

        A subclass, or a mod of another project by this name, may do anything.
        """
        for mod in mods:
            kind = type(mod)
            if kind.__name__ == _LOCAL and kind.__module__.startswith(_FLOWER):
                own = (mod.clipping_norm, mod.sensitivity, mod.epsilon, mod.delta)
                return cls.read([float(value) for value in own])
        return None

    @classmethod
    def read(cls, values: object) -> Self | None:
        """Return the parameters that `values` lists; None if it is something else."""
        if not isinstance(values, list) or not all(type(one) is float for one in values):
            return None
        try:
            return cls(*values)
        except (TypeError, ValueError):  # of another length, or out of range
            return None

    @property
    def values(self) -> list[float]:
        """The parameters as `read` takes them."""
        return list(astuple(self))

    @property
    def std(self) -> float:
        """Standard deviation of the noise on each coordinate."""
        if self.epsilon == 0:
            return math.inf
        # Two logs: 1.25/δ overflows, and a client may answer any δ above 0.
        log = math.log(1.25) - math.log(self.delta)
        return self.sensitivity * math.sqrt(2 * log) / self.epsilon

    @property
    def claim(self) -> Claim:
        """What the mod claims, with what it delivers: noise against one update of the clip norm."""
        below = "" if self.sensitivity >= self.clip_norm else f", sensitivity {self.sensitivity:g}"
        return Claim(
            self.epsilon,
            self.delta,
            against="server",
            per="round",
            source=_LOCAL,
            clip_norm=self.clip_norm,
            delivered=_delivered(self.delta, self.clip_norm, self.std),
            rule=f"noise std {number(self.std)} for clip norm {self.clip_norm:g}{below}",
        )


def claims_of_mods(mods: Iterable[Any]) -> list[Claim]:
    """Return what the mods of a client app claim."""
    found = LocalNoise.of(mods)
    return [] if found is None else [found.claim]


def claims_of_strategy(strategy: Strategy | None, delta: float) -> Iterator[Claim]:
    """Yield what Flower's wrappers in a chain claim.

    Args:
        strategy: The chain.
        delta: A noise multiplier is a claim at every δ; this one is judged.
    """
    for held in foreigners(strategy):
        try:
            yield from _of_wrapper(held, delta)
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            continue  # somebody has changed what Flower's class keeps


def _of_wrapper(held: Foreign, delta: float) -> Iterator[Claim]:
    name = next((one for one in _WRAPPERS if one in held.kinds), None)
    if name is None:
        return
    kept = held.attributes(("noise_multiplier", "clipping_norm", "num_sampled_clients"))
    noise, clip, clients = (float(value) for value in kept.values())
    if noise <= 0:
        return  # says nothing
    separation = 1 / noise
    if name in _ADAPTIVE:
        # The user's multiplier is that of updates and clip bits together: squares add up.
        bits = held.attributes(["clipped_count_stddev"])["clipped_count_stddev"]
        separation = math.hypot(separation, 1 / (2 * float(bits)))
    delivered, rule = _of_mean(held, name, delta, clients / noise)
    source = type(held.strategy).__name__
    yield Claim(
        epsilon_gaussian(delta, separation),
        delta,
        against="outsider",
        per="round",
        source=source,
        clip_norm=None if name in _ADAPTIVE else clip,
        delivered=delivered,
        rule=rule,
    )
    if held.budget is not None:
        # With a fixed number of clients of equal weights, to remove one is to send zero.
        most, at = held.budget
        yield Claim(most, at, against="outsider", source=f"{source}.accountant", clip_norm=clip)


def _of_mean(held: Foreign, name: str, delta: float, most: float) -> tuple[float | None, str]:
    """Return the ε that a wrapper delivers, None if its parameters do not say it, and why.

    Args:
        held: The wrapper.
        name: Which of Flower's it is.
        delta: At this δ.
        most: Separation where one client makes up the whole mean: the clip norm over the noise.
    """
    if name in _ADAPTIVE:
        return None, "the noise of each round is set by the clip norm of the next one"
    if name == _CLIENT_FIXED:
        return None, "clients clip themselves, and the server cannot see whether they do"
    if not _is_plain_mean(held.held):
        inside = type(held.held).__name__
        return None, f"how far one update moves what {inside} makes of all is not known"
    clients = float(held.attributes(["num_sampled_clients"])["num_sampled_clients"])
    equal, worst = epsilon_gaussian(delta, most / clients), epsilon_gaussian(delta, most)
    if held.is_accounted:
        return equal, "equal weights, which the accountant checks"
    even = f"ε = {number(equal)} if all weights are equal"
    return worst, f"clients state their own weights: {even}, and this if one has nearly all"


def _is_plain_mean(strategy: Any) -> bool:
    """Whether a strategy, of either API, makes Flower's weighted mean of the updates, no more."""
    made = [getattr(type(strategy), name, None) for name in ("aggregate_train", "aggregate_fit")]
    return any(
        one.__module__.startswith(_FLOWER) and one.__qualname__.startswith("FedAvg.")
        for one in made
        if one is not None
    )


def _delivered(delta: float, distance: float, std: float) -> float:
    """Return the exact ε of Gaussian noise between two worlds at this distance."""
    separation = math.inf if std == 0 else distance / std
    return separation if math.isinf(separation) else float(epsilon_gaussian(delta, separation))
