"""The client mod of DP-FedAvg: clip, count, add noise, and weight all clients equally.

McMahan, Ramage, Talwar, Zhang (2018), Learning Differentially Private Recurrent Language Models,
arXiv:1710.06963; Andrew, Thakkar, McMahan, Ramaswamy (2021), Differentially Private Learning with
Adaptive Clipping, arXiv:1905.03871, for the bit that says whether a norm was below the clip norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from leakmeter.auditors._types import Vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.mods import Call
from leakmeter.auditors.hook.seat import passed_on
from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.clipping import clip, gaussian
from leakmeter.clients.protection.ring_noise import RingNoise


@dataclass(frozen=True)
class NoiseMod:
    """Clips and noises the update as the message orders, within the limits of its owner.

    List it after `mask_mod` and before everything that changes the update. A client that adds its
    own noise sends no metrics but its weight, which is 1: they would travel without noise. If its
    update is not finite, it sends only its noise; a client without noise replies with an error.

    Attributes:
        required: Whether a train message without an order gets an error.
        max_clip_norm: Largest clip norm that is accepted: a larger one protects less.
        min_noise_std: Least noise that the client itself adds, in units of the clip norm; with
            integer noise in units of the norm after rounding, which is larger.
        allow_tap: Whether the auditor's tap may collect kept updates; for simulations only.
        seed: Seed of the noise in a simulation; None takes the operating system's source.
    """

    required: bool = True
    max_clip_norm: float = math.inf
    min_noise_std: float = 0.0
    allow_tap: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.max_clip_norm > 0:
            raise ValueError(f"max_clip_norm must be above 0, got {self.max_clip_norm}")
        if not 0 <= self.min_noise_std < math.inf:
            raise ValueError(f"min_noise_std must be in [0, inf), got {self.min_noise_std}")

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Train, then clip and noise."""
        if message.metadata.message_type.split(".")[0] != "train":
            return call_next(message, context)
        order = wire.config(message.content, wire.NOISE)
        if order is None:
            if not self.required or (self.allow_tap and wire.only_collects(message.content)):
                return call_next(message, context)
            raise ValueError(f"a train message must carry {wire.NOISE!r}: this client clips")
        norm, std = self._allowed(order)
        sent = wire.arrays(message.content)
        layout = Layout.of(sent, wire.left_out(message.content))
        ring = RingNoise.ordered(message.content, norm, std, layout.dim)
        if ring is not None:
            self._check_least(std, ring.norm)
        source = self._source(order, context)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        if wire.FILLED in reply.content:
            raise ValueError(
                f"a reply must not carry {wire.FILLED!r} here: clipping would change the "
                "distribution of an update that was filled, and its guarantee is of another kind"
            )
        start = layout.flatten(sent)
        update = layout.flatten(wire.arrays(reply.content)) - start
        is_finite = bool(np.isfinite(update).all())
        if not is_finite and std == 0:
            return wire.not_finite(message, "the update")
        # A client that stays out reveals something about its data, and no noise covers that. So a
        # client that adds noise sends only its noise.
        bounded = clip(update, norm) if is_finite else np.zeros(layout.dim)
        is_below = bounded is update
        if ring is not None:
            steps = Array(ring.applied(bounded, source))
            arrays, metrics = ArrayRecord({wire.STEPS: steps}), MetricRecord()
        elif std > 0:
            noise = gaussian(layout.dim, std, source)
            # In float64 up to the secure sum: rounded to a float16 model's grid, noise may vanish.
            exact = ["float64"] * len(layout.names)
            arrays = layout.restore(start + bounded + noise, sent, exact)
            metrics = MetricRecord()
        else:
            arrays, metrics = _within(norm, bounded, start, layout, sent), _metrics(reply.content)
            metrics[wire.CLIP_BIT] = float(is_below)
        metrics[wire.get_text(order, "weight-key")] = 1  # the accounting assumes equal weights
        done = ConfigRecord({"clip-norm": norm, "share-std": std})
        key = wire.arrays_key(reply.content)
        content = RecordDict({key: arrays, "metrics": metrics, wire.NOISE: done})
        return Message(passed_on(reply.content, content), reply_to=message)

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


def _within(
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


def _metrics(content: RecordDict) -> MetricRecord:
    """Return all metrics of a reply in one record."""
    records = [r for r in content.values() if isinstance(r, MetricRecord)]
    return MetricRecord({name: value for record in records for name, value in record.items()})
