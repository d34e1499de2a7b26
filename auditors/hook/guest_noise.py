"""Noise of the guest's own: what Flower's or Opacus's claims, and what it delivers.

`LocalDpMod` states an ε, computed by the classical formula for a sensitivity that its user types.
The wrappers `DifferentialPrivacy…` state a noise multiplier z, which says: one release with noise
of z times its sensitivity. As read in flwr 1.41, they deliver less than the exact formula says:

1. The mean that gets the noise weights clients by what they say themselves (`num-examples`). The
   noise is that of equal weights, z·C/n, while one client may make up the whole mean. An accountant
   of Flower's refuses unequal weights.
2. Adaptive wrappers move the clip norm before they add the noise, so the noise of a round is set by
   the clip norm of the next.
3. Wrappers with the clip on the client's side do not know whether any client clips.
4. Noise is added after the strategy inside, so behind its optimiser or its median.

Opacus's `PrivacyEngine` states an ε for what it was told to do. `canary_mod` watches the training
call: the noise of every step, the sensitivity of the clip that it was added to, steps without
noise, and how batches were drawn. These are settings, not data, but for the number of records,
which a reply without masks states anyway. Nothing is watched unless the app has loaded Opacus.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass, field
from functools import wraps
from typing import Any, Final, NamedTuple, Self

from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.hook.wrapper import Foreign, foreigners
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
    def _delivered(self) -> float:
        """The exact ε of this noise between two worlds that differ by one update."""
        separation = math.inf if self.std == 0 else self.clip_norm / self.std
        return math.inf if math.isinf(separation) else epsilon_gaussian(self.delta, separation)

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
            delivered=self._delivered,
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


LIBRARY: Final = "opacus"
_MAX_KINDS: Final = 10  # of steps; an app that has more changes its noise at every step
_MAX_STEPS: Final = 1_000_000
_UNSTATED: Final = -1.0
_HEAD: Final = 6  # numbers before those of the steps


class Steps(NamedTuple):
    """Equal steps of DP-SGD.

    Attributes:
        noise: Standard deviation of the noise on the sum of clipped gradients, in units of the most
            that one record adds to it.
        rate: Probability that a record is in a batch, if batches are Poisson samples.
        times: How many.
    """

    noise: float
    rate: float
    times: int


@dataclass(frozen=True)
class Engine:
    """What one training call of a client did.

    Attributes:
        steps: With noise.
        unnoised: Steps of the optimiser without any.
        per_pass: Steps of one pass over the data.
        is_poisson: Whether batches were Poisson samples, as the accountant supposes.
        has_batch_norm: Whether a layer mixed the records of a batch, so that no clip limits one.
        stated: The last (ε, δ) that the app asked the engine for; None if it did not ask.
    """

    steps: tuple[Steps, ...] = ()
    unnoised: int = 0
    per_pass: int = 1
    is_poisson: bool = True
    has_batch_norm: bool = False
    stated: tuple[float, float] | None = None

    @property
    def values(self) -> list[float]:
        """All of it as `read` takes it."""
        head = [self.unnoised, self.per_pass, self.is_poisson, self.has_batch_norm]
        stated = self.stated or (_UNSTATED, _UNSTATED)
        return [float(value) for value in (*head, *stated, *(v for s in self.steps for v in s))]

    @classmethod
    def read(cls, values: object) -> Self | None:
        """Return what `values` lists; None if it is something else, since a client may lie."""
        if not isinstance(values, list) or not all(type(one) is float for one in values):
            return None
        head, rest = values[:_HEAD], values[_HEAD:]
        if len(head) < _HEAD or len(rest) % 3 or len(rest) > 3 * _MAX_KINDS:
            return None
        unnoised, per_pass, is_poisson, has_batch_norm, epsilon, delta = head
        steps = tuple(
            Steps(rest[i], rest[i + 1], _count(rest[i + 2])) for i in range(0, len(rest), 3)
        )
        is_sound = (
            {is_poisson, has_batch_norm} <= {0.0, 1.0}
            and min(_count(unnoised), _count(per_pass) - 1) >= 0
            and all(0 <= s.noise < math.inf and 0 < s.rate <= 1 and s.times > 0 for s in steps)
        )
        if not is_sound:
            return None
        is_stated = 0 <= epsilon < math.inf and 0 < delta < 1
        flags = bool(is_poisson), bool(has_batch_norm)
        stated = (epsilon, delta) if is_stated else None
        return cls(steps, _count(unnoised), _count(per_pass), *flags, stated)


def _count(value: float) -> int:
    """Return a whole number in a range that can be counted to, else -1."""
    return int(value) if 0 <= value <= _MAX_STEPS and value == int(value) else -1


@dataclass
class _TrainingLog:
    """What is noted during one training call."""

    steps: Counter[tuple[float, float]] = field(default_factory=Counter)
    inner: int = 0  # steps of all optimisers, with noise or without
    per_pass: int = 1
    is_poisson: bool = True
    has_drawn: bool = False  # whether batches came from the engine's own loader
    has_batch_norm: bool = False
    stated: tuple[float, float] | None = None
    is_private: bool = False
    is_unknown: bool = False  # something happened that is not understood

    def engine(self) -> Engine | None:
        """Return what was noted; None if no engine was made, or more kinds of steps than fit."""
        if not self.is_private or self.is_unknown or len(self.steps) > _MAX_KINDS:
            return None
        steps = tuple(Steps(*kind, times) for kind, times in sorted(self.steps.items()))
        unnoised = max(self.inner - sum(self.steps.values()), 0)
        flags = self.is_poisson and (self.has_drawn or not steps), self.has_batch_norm
        return Engine(steps, unnoised, self.per_pass, *flags, self.stated)


_watching: ContextVar[_TrainingLog | None] = ContextVar("leakmeter dp-sgd", default=None)


@contextmanager
def watch_training() -> Iterator[Callable[[], Engine | None]]:
    """Watch a training call; gives a function that returns what it did, once it has."""
    log = _TrainingLog()
    token = _watching.set(log)
    if LIBRARY in sys.modules:
        _install()
    try:
        yield log.engine
    finally:
        _watching.reset(token)


def _install() -> None:
    """Let Opacus's classes tell, once in a process; outside a watched call they tell nobody."""
    from opacus import PrivacyEngine
    from opacus.utils import uniform_sampler
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if hasattr(PrivacyEngine.make_private, "__wrapped__"):
        return
    _tell_after(PrivacyEngine, "make_private", _note_engine)
    _tell_after(PrivacyEngine, "get_epsilon", _note_stated)
    for kind in _known_optimisers():
        if "add_noise" in vars(kind):
            _tell_after(kind, "add_noise", _note_noise)
    for sampler in ("UniformWithReplacementSampler", "DistributedUniformWithReplacementSampler"):
        _tell_after(getattr(uniform_sampler, sampler), "__iter__", _note_draw)
    register_optimizer_step_post_hook(_note_step)


def _known_optimisers() -> tuple[type, ...]:
    """Return the optimisers whose noise and clip are known to mean what `_note_noise` reads."""
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer

    return DPOptimizer, DPPerLayerOptimizer, DPOptimizerFastGradientClipping


def _note_step(*_: Any) -> None:
    """Count a step of any optimiser: those of DP-SGD call another one inside."""
    if (log := _watching.get()) is not None:
        log.inner += 1


def _tell_after(owner: type, name: str, note: Callable[..., None]) -> None:
    """Call `note` after a method, with the log, the object, what it returned and its arguments."""
    method = getattr(owner, name)

    @wraps(method)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        log = _watching.get()
        if log is not None:
            try:
                note(log, self, result, *args, **kwargs)
            except (AttributeError, TypeError, ValueError, ArithmeticError):
                log.is_unknown = True  # another release, or an engine of an earlier call
        return result

    setattr(owner, name, told)


def _note_engine(log: _TrainingLog, _: Any, result: tuple[Any, ...], **asked: Any) -> None:
    """Note how batches are to be drawn."""
    optimizer = next(one for one in result if hasattr(one, "original_optimizer"))
    loader = result[-1]
    log.is_private, log.per_pass = True, max(log.per_pass, len(loader))
    log.is_poisson &= asked.get("poisson_sampling", True) is True
    log.is_unknown |= type(optimizer) not in _known_optimisers()
    optimizer._leakmeter = (1 / len(loader), asked["module"], log)


def _note_draw(log: _TrainingLog, *_: Any) -> None:
    """Note that Poisson samples are drawn: some apps iterate over their first loader instead."""
    log.has_drawn = True


def _note_stated(log: _TrainingLog, _: Any, epsilon: float, delta: float, **__: Any) -> None:
    log.stated = (float(epsilon), float(delta))


def _note_noise(log: _TrainingLog, optimizer: Any, _: None) -> None:
    """Note the noise of a step, in units of what one record can add to the sum."""
    from torch.nn.modules.batchnorm import _BatchNorm

    rate, module, made_in = optimizer._leakmeter
    log.is_unknown |= made_in is not log  # batches of an earlier call
    layers = getattr(optimizer, "max_grad_norms", None)
    most = float(optimizer.max_grad_norm) if layers is None else math.hypot(*map(float, layers))
    noise = float(optimizer.noise_multiplier) * float(optimizer.max_grad_norm) / most
    rate = min(rate * optimizer.accumulated_iterations, 1.0)
    log.steps[round(noise, 9), rate] += 1
    norms = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    log.has_batch_norm |= any(layer.training for layer in norms)
