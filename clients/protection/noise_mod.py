"""The client mod of noise: does what an order asks, within the limits of the client's owner.

Whole clients: clip, count, add noise, and weight all equally. McMahan, Ramage, Talwar, Zhang
(2018), Learning Differentially Private Recurrent Language Models, arXiv:1710.06963; Andrew,
Thakkar, McMahan, Ramaswamy (2021), Differentially Private Learning with Adaptive Clipping,
arXiv:1905.03871, for the bit that says whether a norm was below the clip norm.

Single records: `clients.protection.record_rule` draws the noise itself, since it sees the gradients
of single examples, which a mod cannot. The app states what it has done in a record next to its
arrays, and the mod compares that with the order.

Integers in the ring of a secure sum: round a clipped update, add integers, nothing else. Agarwal,
Kairouz, Liu (2021), arXiv:2110.04995, and Kairouz, Liu, Steinke (2021), arXiv:2102.06387. Ours
differs: no random rotation before rounding, so that a client needs no common seed; therefore few
bits cost more here than there. Rounding is that of the second paper, section 4.2: each coordinate
is rounded up with probability its fraction, and everything is drawn again until the norm is within
a bound that most draws meet. What depends on the draw is only the bias; the bound always holds.

Whatever training gives, the reply has the same form. A client whose training fails sends its share
of the noise alone. For whole clients that costs no privacy and leaves the accounting as it is. For
records it does as long as no single record decides whether training fails; our own update rule
takes a gradient that is not finite for zero.
"""

from __future__ import annotations

import copy
import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Unit
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.mods import Call, OrderedMod, failure_note, mods_around, with_answer
from leakmeter.auditors.noise import (
    Distribution,
    IntegerDistribution,
    IntegerSampler,
    RoundedNorms,
    gaussian,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import NotFiniteError, Vector, require, within
from leakmeter.clients.secure_sum.quantise import Rounding
from leakmeter.clients.secure_sum.wire import get_quantiser, metrics_of

if TYPE_CHECKING:
    from leakmeter.clients.protection.record_rule import GaussianSampling


# What hides which unit, by the record that its order travels in.
_KEYS: dict[Unit, str] = {"client": wire.NOISE, "record": wire.FILLED}
# What the server assumes of noise for records, and how the client's own value must compare.
_AT_LEAST = ("sigma2", "batch-size", "examples")
_AT_MOST = ("clip-norm",)
_EXACTLY = ("lr", "steps")
PROMISES = (*_AT_LEAST, *_AT_MOST, *_EXACTLY)
_MECHANISM = "mechanism"
_USUAL = "water-filling"  # if a record does not name the mechanism
_TRIES = 64  # of rounding; all fail with a chance below e^-32
_CHUNK = 1 << 14


@dataclass(frozen=True)
class NoiseMod(OrderedMod):
    """Lets only updates out that are as private as the server will claim.

    List it directly after `mask_mod` and before everything that changes the update.

    An order for whole clients: the update is clipped, and noised if the order says so. A client
    that adds its own noise sends no metrics but its weight, which is 1: they would travel without
    noise.

    An order for records: the app must have made the update at least as random as the order
    assumes. Loss and metrics stay here, and the weight is 1.

    What is wrong with an order is refused before training. If training fails, or its update is not
    finite or not as random as ordered, the client sends its noise alone, and says why only in its
    own log.

    Attributes:
        required: Whether a train message without an order gets an error.
        unit: What the required order must hide: whole clients or single records.
        max_clip_norm: Largest clip norm of updates that is accepted: a larger one protects less.
        min_noise_std: Least noise that the client itself adds, in units of the clip norm; with
            integer noise in units of the norm after rounding, which is larger.
        allow_tap: Whether the auditor's tap may collect kept updates; for simulations only.
        seed: Seed of the noise in a simulation; None takes the operating system's source.
        examples: Examples that the client has, if its owner wants orders for records that count on
            more of them refused before training; None does not.
    """

    carries_out: ClassVar[frozenset[str]] = frozenset(_KEYS.values())

    required: bool = True
    unit: Unit = "client"
    max_clip_norm: float = math.inf
    min_noise_std: float = 0.0
    allow_tap: bool = False
    seed: int | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        if self.unit not in _KEYS:
            raise BadValueError("unit", f"one of {', '.join(_KEYS)}", self.unit)
        require("(0, inf]", max_clip_norm=self.max_clip_norm)
        require("[0, inf)", min_noise_std=self.min_noise_std)
        require("at least 1", is_optional=True, examples=self.examples)

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Check the order, train, and do what was ordered."""
        if message.metadata.message_type.split(".")[0] != "train":
            return call_next(message, context)
        # Everything that an order says is checked before anybody trains.
        try:
            half = self._order_in(message, context)
        except ValueError as error:
            raise wire.RefusedError(str(error)) from None
        if half is None:
            return call_next(message, context)
        kept, trained, notes = copy.deepcopy(context.state), RecordDict(), {}
        try:
            trained = wire.trained_content(call_next(message, context))
            arrays, metrics = half.noised(trained)
        except (KeyboardInterrupt, SystemExit):  # of whoever ends the process
            raise
        except BaseException as error:  # the app's code, its libraries and data, in any way
            context.state = kept
            notes = failure_note(error, allow_tap=self.allow_tap)
            with np.errstate(all="ignore"):  # the app may have set them to raise
                arrays, metrics = half.noise_alone()
        metrics[wire.get_text(half.order, "weight-key")] = 1  # the accounting assumes equal weights
        key = wire.arrays_key(message.content)
        content = RecordDict({key: arrays, "metrics": metrics, half.key: half.done, **notes})
        mods = mods_around(call_next)
        return Message(with_answer(message, mods, trained, content), reply_to=message)

    def _order_in(self, message: Message, context: Context) -> _Half | None:
        """Return what a message asks this client to do; None if it asks for nothing.

        Raises:
            ValueError: The owner does not allow it, or insists on more.
        """
        found = {unit: wire.config(message.content, key) for unit, key in _KEYS.items()}
        orders = {unit: order for unit, order in found.items() if order is not None}
        collects = self.allow_tap and wire.only_collects(message.content)
        if self.required and self.unit not in orders and not collects:
            does = "clips" if self.unit == "client" else "fills"
            raise ValueError(f"a train message must carry {_KEYS[self.unit]!r}: this client {does}")
        if len(orders) > 1:
            raise ValueError(f"a train message must carry one of {list(_KEYS.values())}, got both")
        if not orders:
            return None
        prepare = self._of_clients if "client" in orders else self._of_records
        return prepare(message, next(iter(orders.values())), context)

    def _of_clients(self, message: Message, order: ConfigRecord, context: Context) -> _ClientHalf:
        """Return what clips and noises the update."""
        norm, std = self._sizes_in(order)
        sent = wire.own_arrays(message.content)
        layout = Layout.of(sent, wire.left_out(message.content))
        noise = wire.noise_distribution(message.content)
        ring = RingNoise.ordered(message.content, norm, std, layout.dim)
        if ring is not None:
            self._check_least(std, ring.norm)
        source, start = self._source(order, context), _finite(layout, sent)
        # Noise is added to the model in float64, and must not vanish in its last digits.
        grain = 2 * float(np.spacing(np.abs(start).max(initial=0.0)))
        if ring is None and 0 < std < grain:
            raise BadValueError("share-std", f"at least {grain:g} for this model", std)
        return _ClientHalf(order, layout, sent, start, source, norm, std, noise, ring)

    def _of_records(self, message: Message, order: ConfigRecord, context: Context) -> _RecordHalf:
        """Return what checks that the app has made its update as random as ordered."""
        if missing := sorted({*PROMISES, "weight-key"} - set(order)):
            raise ValueError(f"{wire.FILLED!r} must say {', '.join(missing)}")
        numbers = {name: wire.get_float(order, name) for name in PROMISES}
        for name in ("sigma2", "lr", "steps"):
            within(name, numbers[name], above=0.0, below=math.inf)
        if self.examples is not None and numbers["examples"] > self.examples:
            raise ValueError("examples must be at most what this client's owner has set")
        sent = wire.own_arrays(message.content)
        layout = Layout.of(sent, wire.left_out(message.content))
        start, source = _finite(layout, sent), self._source(order, context)
        half = _RecordHalf(order, layout, sent, start, source)
        if not half.std < math.inf:
            raise BadValueError("the noise of an update", "finite", half.std)
        return half

    def _sizes_in(self, order: ConfigRecord) -> tuple[float, float]:
        """Return the clip norm and noise that the order asks for, if the owner allows them."""
        if missing := sorted({"clip-norm", "share-std", "weight-key", "round"} - set(order)):
            raise ValueError(f"{wire.NOISE!r} must say {', '.join(missing)}")
        norm, std = wire.get_float(order, "clip-norm"), wire.get_float(order, "share-std")
        within("clip-norm", norm, above=0.0, below=math.inf, highest=self.max_clip_norm)
        self._check_least(std, norm)
        return norm, std

    def _check_least(self, std: float, norm: float) -> None:
        """Refuse noise below the owner's floor for updates of this norm."""
        least = self.min_noise_std * norm
        if not least <= std < math.inf:
            raise BadValueError("share-std", f"at least {least:g} and finite", std)

    def _source(self, order: ConfigRecord, context: Context) -> np.random.Generator | None:
        if self.seed is None:
            return None
        client = int(context.node_config["partition-id"])
        return stream(self.seed, "client-noise", wire.get_int(order, "round"), client)


noise_mod = NoiseMod()
fill_mod = NoiseMod(unit="record")


def filled_record(rule: GaussianSampling, num_examples: int) -> ConfigRecord:
    """Return the record that an app puts under `wire.FILLED`, next to the trained arrays.

    Args:
        rule: The update rule, with water filling or isotropic noise.
        num_examples: Examples that it weighted, or drew its minibatch from.
    """
    if rule.noise is None:
        raise BadValueError("noise", "WaterFilling or Isotropic", rule.noise)
    return ConfigRecord(
        {
            _MECHANISM: rule.mechanism,
            "sigma2": float(rule.noise.sigma2),
            "batch-size": int(rule.batch_size),
            "examples": int(num_examples),
            "clip-norm": float(rule.clip_norm),
            "lr": float(rule.lr),
            "steps": int(rule.steps),
        }
    )


@dataclass(frozen=True)
class _Half(ABC):
    """What a client does with an update, as one order says.

    Attributes:
        key: Record that the order travels in, and what was done.
        order: The order.
        layout: Of the update.
        sent: The model.
        start: The same as a vector.
        source: Source of the noise in a simulation; None for the operating system's.
    """

    key: ClassVar[str]

    order: ConfigRecord
    layout: Layout
    sent: ArrayRecord
    start: Vector
    source: np.random.Generator | None

    @property
    @abstractmethod
    def done(self) -> ConfigRecord:
        """What the reply says of the noise on it; nothing of the client's data."""

    @abstractmethod
    def noised(self, content: RecordDict) -> tuple[ArrayRecord, MetricRecord]:
        """Return what leaves of what training has given: arrays with noise, and metrics.

        Raises:
            Exception: It has given nothing that may leave.
        """

    @abstractmethod
    def noise_alone(self) -> tuple[ArrayRecord, MetricRecord]:
        """Return the same where training has given nothing; never raises."""


@dataclass(frozen=True)
class _ClientHalf(_Half):
    """Clips an update and adds noise to it.

    Attributes:
        norm: The clip norm.
        std: Noise that this client adds.
        noise: Its distribution.
        ring: The same in the ring of a secure sum, if it is integers.
    """

    key: ClassVar[str] = wire.NOISE

    norm: float
    std: float
    noise: Distribution
    ring: RingNoise | None

    @property
    def done(self) -> ConfigRecord:
        return ConfigRecord({"clip-norm": self.norm, "share-std": self.std})

    def noised(self, content: RecordDict) -> tuple[ArrayRecord, MetricRecord]:
        if wire.FILLED in content:
            raise wire.FailedError(
                f"a reply must not carry {wire.FILLED!r} here: clipping would change the "
                "distribution of an update that was filled, and its guarantee is of another kind"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # `clip` finds what is not finite
            update = self.layout.flatten(wire.arrays(content)) - self.start
        bounded = clip(update, self.norm)
        return self._sent(bounded, metrics_of(content), is_below=bounded is update)

    def noise_alone(self) -> tuple[ArrayRecord, MetricRecord]:
        return self._sent(np.zeros(self.layout.dim), MetricRecord(), is_below=True)

    def _sent(
        self, bounded: Vector, metrics: MetricRecord, *, is_below: bool
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Return a clipped update as it leaves; metrics leave only where no noise does."""
        if self.ring is not None:
            steps = self.ring.applied(bounded, self.source)
            return ArrayRecord({wire.STEPS: Array(steps)}), MetricRecord()
        if self.std > 0:
            # In float64 up to the secure sum: on a float16 model's grid noise may vanish.
            exact = ["float64"] * len(self.layout.names)
            noised = self.noise.noised(self.start + bounded, self.std, self.source)
            return self.layout.restore(noised, self.sent, exact), MetricRecord()
        metrics[wire.CLIP_BIT] = float(is_below)
        arrays = model_within(self.norm, bounded, self.start, self.layout, self.sent)
        return arrays, metrics


@dataclass(frozen=True)
class _RecordHalf(_Half):
    """Checks that the app has made its update as random as ordered."""

    key: ClassVar[str] = wire.FILLED

    @property
    def std(self) -> float:
        """Noise on the update of a client without any gradient, per coordinate."""
        sigma2, lr, steps = (wire.get_float(self.order, n) for n in ("sigma2", "lr", "steps"))
        return lr * math.sqrt(steps) * math.sqrt(sigma2)

    @property
    def done(self) -> ConfigRecord:
        return ConfigRecord({name: self.order[name] for name in PROMISES})

    def noised(self, content: RecordDict) -> tuple[ArrayRecord, MetricRecord]:
        done = wire.config(content, wire.FILLED)
        if done is None:
            raise wire.FailedError(
                f"the app's reply must carry {wire.FILLED!r}: its update has no such noise"
            )
        _compare(self.order, done)
        arrays = wire.arrays(content)
        if not np.isfinite(self.layout.flatten(arrays)).all():
            raise NotFiniteError("the update must be finite, got NaN or infinity")
        return arrays, MetricRecord()

    def noise_alone(self) -> tuple[ArrayRecord, MetricRecord]:
        """Return what a client without any gradient sends: noise of the floor's variance."""
        noise = gaussian(self.layout.dim, self.std, self.source)
        most = min(float(np.finfo(dtype).max) for dtype in self.layout.dtypes)
        inside = np.clip(self.start + noise, -most, most)  # what overflows would not be summed
        return self.layout.restore(inside, self.sent), MetricRecord()


def _finite(layout: Layout, sent: ArrayRecord) -> Vector:
    """Return the model as a vector; one that is not finite would hide whether noise is on it."""
    start = layout.flatten(sent)
    if not np.isfinite(start).all():
        raise ValueError("the model must be finite, got NaN or infinity")
    return start


def _compare(order: ConfigRecord, done: ConfigRecord) -> None:
    """Raise if the server assumes more than this client does."""
    wanted, own_way = (str(record.get(_MECHANISM, _USUAL)) for record in (order, done))
    if wanted != own_way:
        raise BadValueError("mechanism", f"this client's own {own_way!r}", wanted)
    # A larger minibatch is no less random, but is more likely to contain a given record.
    exact = (*_EXACTLY, "batch-size") if own_way == "minibatch" else _EXACTLY
    for name in PROMISES:
        asked, own = wire.get_float(order, name), wire.get_float(done, name)
        words = "at most" if name in _AT_LEAST else "at least"
        kept = own >= asked if name in _AT_LEAST else own <= asked
        if name in exact:
            words, kept = "exactly", own == asked
        if not kept:
            raise BadValueError(name, f"{words} this client's own {own:g}", asked)


@dataclass(frozen=True)
class RingNoise:
    """A client's share of integer noise, as the orders of a train message describe it.

    Attributes:
        step: Grid that updates are rounded to.
        clip_range: Coordinates are clipped to ± this value before rounding.
        limits: Norms of a rounded update, in steps.
        sampler: Draws the share, in steps.
    """

    step: float
    clip_range: float
    limits: RoundedNorms
    sampler: IntegerSampler

    @classmethod
    def ordered(cls, content: RecordDict, clip_norm: float, std: float, dim: int) -> Self | None:
        """Return the integer noise that a message asks for; None if it asks for other noise.

        Raises:
            ValueError: It is unknown, there is no secure sum, or the two orders differ.
        """
        distribution = wire.noise_distribution(content)
        if not isinstance(distribution, IntegerDistribution):
            return None
        name = distribution.name
        order = wire.config(content, wire.SUM_ORDER)
        if order is None:
            raise ValueError(
                f"{name} noise needs the order of a secure sum, {wire.SUM_ORDER!r}, beside it: "
                "list mask_mod before noise_mod"
            )
        quantiser = get_quantiser(order)
        if (quantiser.noise_distribution, quantiser.noise_std) != (name, std):
            raise ValueError(
                f"{wire.SUM_ORDER!r} must have the noise of {wire.NOISE!r}, {name} of {std:g}, got "
                f"{quantiser.noise_distribution} of {quantiser.noise_std:g}"
            )
        limits = RoundedNorms.of(clip_norm / quantiser.step, dim)
        sampler = IntegerSampler.of(distribution, (std / quantiser.step) ** 2)
        return cls(quantiser.step, quantiser.clip_range, limits, sampler)

    @property
    def norm(self) -> float:
        """Largest L2 norm of an update after rounding, in the update's units."""
        return self.limits.l2 * self.step

    def applied(self, update: Vector, rng: np.random.Generator | None) -> NDArray[np.int64]:
        """Return a clipped update in steps, with noise; no floating point touches the noise."""
        inside = np.clip(update, -self.clip_range, self.clip_range)
        rounded = to_integers(inside / self.step, self.limits, rng)
        return rounded + self.sampler.draw(len(update), rng)


def to_integers(
    values: Vector, limits: RoundedNorms, rng: np.random.Generator | None
) -> NDArray[np.int64]:
    """Return the values, in steps, as integers within the limits.

    Args:
        values: Flat, within the norm that the limits are for.
        limits: Norms of the result.
        rng: Source of the rounding; None for the operating system's.
    """
    for _ in range(_TRIES):
        whole = _rounded(values, os.urandom(32) if rng is None else rng.bytes(32))
        if int(whole @ whole) <= limits.l2**2:
            return whole
    return np.trunc(values).astype(np.int64)  # never longer than the values


def _rounded(values: Vector, key: bytes) -> NDArray[np.int64]:
    rounding, whole = Rounding(key), np.empty(len(values), np.int64)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        whole[part] = rounding.rounded(values[part].copy())
    return whole


def clip(update: Vector, norm: float) -> Vector:
    """Return the update scaled to at most `norm`, by one joint L2 norm; zero stays zero."""
    require("(0, inf)", norm=norm)
    if not np.isfinite(update).all():
        raise NotFiniteError("update must be finite, got NaN or infinity")
    peak = float(np.abs(update).max(initial=0.0))
    if peak == 0:
        return update
    direction = update / peak  # squares of very large or tiny entries leave float64's range
    length = float(np.linalg.norm(direction))
    return update if length <= norm / peak else direction * (norm / length)


def model_within(
    norm: float, update: Vector, start: Vector, layout: Layout, sent: ArrayRecord
) -> ArrayRecord:
    """Return the model after `update`, with a change within `norm` in the model's precision.

    The sum of a float32 model and an update is rounded, and that may lengthen the update.
    """
    shrink = 2.0**-24
    while True:
        arrays = layout.restore(start + update, sent)
        if float(np.linalg.norm(layout.flatten(arrays) - start)) <= norm or shrink > 1:
            return arrays if shrink <= 1 else layout.restore(start, sent)
        update, shrink = update * (1 - min(shrink, 1.0)), 2 * shrink
