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
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector, require
from leakmeter.auditors.finding import Unit
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.mods import Call
from leakmeter.auditors.hook.seat import passed_on
from leakmeter.auditors.noise.integer import IntegerDistribution, RoundedNorms, Sampler
from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.clipping import clip, model_within
from leakmeter.clients.secure_sum.masking import Ring, mask_stream
from leakmeter.clients.secure_sum.quantise import round_up_at_random
from leakmeter.clients.secure_sum.wire import get_quantiser

if TYPE_CHECKING:
    from leakmeter.clients.protection.record_rule import GaussianSampling

# Turns the reply of the app into what leaves the client.
_Finish: TypeAlias = Callable[[Message], Message]

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
class NoiseMod:
    """Lets only updates out that are as private as the server will claim.

    List it after `mask_mod` and before everything that changes the update.

    An order for whole clients: the update is clipped, and noised if the order says so. A client
    that adds its own noise sends no metrics but its weight, which is 1: they would travel without
    noise. If its update is not finite, it sends only its noise; a client without noise replies
    with an error.

    An order for records: the app must have made the update at least as random as the order
    assumes. Loss and metrics stay here, and the weight is 1.

    Attributes:
        required: Whether a train message without an order gets an error.
        unit: What the required order must hide: whole clients or single records.
        max_clip_norm: Largest clip norm of updates that is accepted: a larger one protects less.
        min_noise_std: Least noise that the client itself adds, in units of the clip norm; with
            integer noise in units of the norm after rounding, which is larger.
        allow_tap: Whether the auditor's tap may collect kept updates; for simulations only.
        seed: Seed of the noise in a simulation; None takes the operating system's source.
    """

    required: bool = True
    unit: Unit = "client"
    max_clip_norm: float = math.inf
    min_noise_std: float = 0.0
    allow_tap: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.unit not in _KEYS:
            raise ValueError(f"unit must be one of {', '.join(_KEYS)}, got {self.unit!r}")
        if not self.max_clip_norm > 0:
            raise ValueError(f"max_clip_norm must be above 0, got {self.max_clip_norm}")
        require("[0, inf)", min_noise_std=self.min_noise_std)

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Check the order, train, and do what was ordered."""
        if message.metadata.message_type.split(".")[0] != "train":
            return call_next(message, context)
        found = {unit: wire.config(message.content, key) for unit, key in _KEYS.items()}
        orders = {unit: order for unit, order in found.items() if order is not None}
        collects = self.allow_tap and wire.only_collects(message.content)
        if self.required and self.unit not in orders and not collects:
            does = "clips" if self.unit == "client" else "fills"
            raise ValueError(f"a train message must carry {_KEYS[self.unit]!r}: this client {does}")
        if len(orders) > 1:
            raise ValueError(f"a train message must carry one of {list(_KEYS.values())}, got both")
        if not orders:
            return call_next(message, context)
        # Everything that the order says is checked before anybody trains.
        prepare = self._clipped if "client" in orders else self._compared
        finish = prepare(message, next(iter(orders.values())), context)
        reply = call_next(message, context)
        return reply if reply.has_error() else finish(reply)

    def _clipped(self, message: Message, order: ConfigRecord, context: Context) -> _Finish:
        """Return what clips and noises the update."""
        norm, std = self._allowed(order)
        sent = wire.arrays(message.content)
        layout = Layout.of(sent, wire.left_out(message.content))
        noise = wire.noise_distribution(message.content)
        ring = RingNoise.ordered(message.content, norm, std, layout.dim)
        if ring is not None:
            self._check_least(std, ring.norm)
        source = self._source(order, context)

        def finish(reply: Message) -> Message:
            if wire.FILLED in reply.content:
                raise ValueError(
                    f"a reply must not carry {wire.FILLED!r} here: clipping would change the "
                    "distribution of an update that was filled, and its guarantee is of another "
                    "kind"
                )
            start = layout.flatten(sent)
            update = layout.flatten(wire.arrays(reply.content)) - start
            is_finite = bool(np.isfinite(update).all())
            if not is_finite and std == 0:
                return wire.not_finite(message, "the update")
            # A client that stays out reveals something about its data, and no noise covers that.
            # So a client that adds noise sends only its noise.
            bounded = clip(update, norm) if is_finite else np.zeros(layout.dim)
            metrics = MetricRecord()
            if ring is not None:
                arrays = ArrayRecord({wire.STEPS: Array(ring.applied(bounded, source))})
            elif std > 0:
                # In float64 up to the secure sum: on a float16 model's grid noise may vanish.
                exact = ["float64"] * len(layout.names)
                noised = noise.noised(start + bounded, std, source)
                arrays = layout.restore(noised, sent, exact)
            else:
                arrays = model_within(norm, bounded, start, layout, sent)
                metrics = metrics_of(reply.content)
                metrics[wire.CLIP_BIT] = float(bounded is update)
            done = ConfigRecord({"clip-norm": norm, "share-std": std})
            return _outgoing(message, reply, order, arrays, metrics, {wire.NOISE: done})

        return finish

    def _compared(self, message: Message, order: ConfigRecord, context: Context) -> _Finish:
        """Return what checks that the app has made its update as random as ordered."""
        if missing := sorted({*PROMISES, "weight-key"} - set(order)):
            raise ValueError(f"{wire.FILLED!r} must say {', '.join(missing)}")

        def finish(reply: Message) -> Message:
            done = wire.config(reply.content, wire.FILLED)
            if done is None:
                raise ValueError(
                    f"the app's reply must carry {wire.FILLED!r}: its update has no such noise"
                )
            _compare(order, done)
            arrays = wire.arrays(reply.content)
            return _outgoing(message, reply, order, arrays, MetricRecord(), {wire.FILLED: done})

        return finish

    def _allowed(self, order: ConfigRecord) -> tuple[float, float]:
        """Return the clip norm and noise that the order asks for, if the owner allows them."""
        if missing := sorted({"clip-norm", "share-std", "weight-key", "round"} - set(order)):
            raise ValueError(f"{wire.NOISE!r} must say {', '.join(missing)}")
        norm, std = wire.get_float(order, "clip-norm"), wire.get_float(order, "share-std")
        if not (0 < norm <= self.max_clip_norm and norm < math.inf):
            raise ValueError(
                f"clip-norm must be in (0, {self.max_clip_norm:g}] and finite, got {norm:g}"
            )
        self._check_least(std, norm)
        return norm, std

    def _check_least(self, std: float, norm: float) -> None:
        """Refuse noise below the owner's floor for updates of this norm."""
        least = self.min_noise_std * norm
        if not least <= std < math.inf:
            raise ValueError(f"share-std must be at least {least:g} and finite, got {std:g}")

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
        raise ValueError(f"noise must be WaterFilling or Isotropic, got {rule.noise}")
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


def _outgoing(
    message: Message,
    reply: Message,
    order: ConfigRecord,
    arrays: ArrayRecord,
    metrics: MetricRecord,
    done: dict[str, ConfigRecord],
) -> Message:
    """Return what leaves the client: arrays, metrics, what was done, and the audit's answer."""
    metrics[wire.get_text(order, "weight-key")] = 1  # the accounting assumes equal weights
    key = wire.arrays_key(reply.content)
    content = RecordDict({key: arrays, "metrics": metrics, **done})
    return Message(passed_on(reply.content, content), reply_to=message)


def _compare(order: ConfigRecord, done: ConfigRecord) -> None:
    """Raise if the server assumes more than this client does."""
    wanted, own_way = (str(record.get(_MECHANISM, _USUAL)) for record in (order, done))
    if wanted != own_way:
        raise ValueError(f"mechanism must be this client's own {own_way!r}, got {wanted!r}")
    # A larger minibatch is no less random, but is more likely to contain a given record.
    exact = (*_EXACTLY, "batch-size") if own_way == "minibatch" else _EXACTLY
    for name in PROMISES:
        asked, own = wire.get_float(order, name), wire.get_float(done, name)
        words = "at most" if name in _AT_LEAST else "at least"
        kept = own >= asked if name in _AT_LEAST else own <= asked
        if name in exact:
            words, kept = "exactly", own == asked
        if not kept:
            raise ValueError(f"{name} must be {words} this client's own {own:g}, got {asked:g}")


def metrics_of(content: RecordDict) -> MetricRecord:
    """Return all metrics of a reply in one record."""
    records = [r for r in content.values() if isinstance(r, MetricRecord)]
    return MetricRecord({name: value for record in records for name, value in record.items()})


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
    sampler: Sampler

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
        sampler = Sampler.of(distribution, (std / quantiser.step) ** 2)
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
    whole = np.empty(len(values), np.int64)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, min(start + _CHUNK, len(values)))
        bits = mask_stream(key, part.stop - start, Ring(32), start)
        whole[part] = round_up_at_random(values[part].copy(), bits)
    return whole
