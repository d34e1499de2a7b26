"""What a client's training with Opacus really did: noise, clip, batches and steps.

Opacus's `PrivacyEngine` states an ε for what it was told to do. `canary_mod` watches the training
call: the noise of every step, the sensitivity of the clip that it was added to, steps without
noise, and how batches were drawn. These are settings, not data, but for the number of records,
which a reply without masks states anyway. Nothing is watched unless the app has loaded Opacus.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, NamedTuple, Self

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
class _Log:
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


_log: ContextVar[_Log | None] = ContextVar("leakmeter dp-sgd", default=None)


@contextmanager
def watched() -> Iterator[Callable[[], Engine | None]]:
    """Watch a training call; gives a function that returns what it did, once it has."""
    log = _Log()
    token = _log.set(log)
    if LIBRARY in sys.modules:
        _install()
    try:
        yield log.engine
    finally:
        _log.reset(token)


def _install() -> None:
    """Let Opacus's classes tell, once in a process; outside a watched call they tell nobody."""
    from opacus import PrivacyEngine
    from opacus.utils import uniform_sampler
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if hasattr(PrivacyEngine.make_private, "__wrapped__"):
        return
    _after(PrivacyEngine, "make_private", _made)
    _after(PrivacyEngine, "get_epsilon", _stated)
    for kind in _understood():
        if "add_noise" in vars(kind):
            _after(kind, "add_noise", _noised)
    for sampler in ("UniformWithReplacementSampler", "DistributedUniformWithReplacementSampler"):
        _after(getattr(uniform_sampler, sampler), "__iter__", _drew)
    register_optimizer_step_post_hook(_stepped)


def _understood() -> tuple[type, ...]:
    """Return the optimisers whose noise and clip are known to mean what `_noised` reads."""
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer

    return DPOptimizer, DPPerLayerOptimizer, DPOptimizerFastGradientClipping


def _stepped(*_: Any) -> None:
    """Count a step of any optimiser: those of DP-SGD call another one inside."""
    if (log := _log.get()) is not None:
        log.inner += 1


def _after(owner: type, name: str, note: Callable[..., None]) -> None:
    """Call `note` after a method, with the log, the object, what it returned and its arguments."""
    method = getattr(owner, name)

    @wraps(method)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        log = _log.get()
        if log is not None:
            try:
                note(log, self, result, *args, **kwargs)
            except (AttributeError, TypeError, ValueError, ArithmeticError):
                log.is_unknown = True  # another release, or an engine of an earlier call
        return result

    setattr(owner, name, told)


def _made(log: _Log, _: Any, result: tuple[Any, ...], **asked: Any) -> None:
    """Note how batches are to be drawn."""
    optimizer = next(one for one in result if hasattr(one, "original_optimizer"))
    loader = result[-1]
    log.is_private, log.per_pass = True, max(log.per_pass, len(loader))
    log.is_poisson &= asked.get("poisson_sampling", True) is True
    log.is_unknown |= type(optimizer) not in _understood()
    optimizer._leakmeter = (1 / len(loader), asked["module"], log)


def _drew(log: _Log, *_: Any) -> None:
    """Note that Poisson samples are drawn: some apps iterate over their first loader instead."""
    log.has_drawn = True


def _stated(log: _Log, _: Any, epsilon: float, delta: float, **__: Any) -> None:
    log.stated = (float(epsilon), float(delta))


def _noised(log: _Log, optimizer: Any, _: None) -> None:
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
