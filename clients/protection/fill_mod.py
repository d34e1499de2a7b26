"""The client mod for noise on records: checks it, sets the weight to 1, drops metrics.

`clients.protection.gaussian_sampling` draws the noise itself: it sees the gradients of single
examples, which a mod cannot. The app states what it has done in a record next to its arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.mods import Call
from leakmeter.auditors.hook.seat import passed_on

if TYPE_CHECKING:
    from leakmeter.clients.protection.gaussian_sampling import GaussianSampling


# What the server assumes, and how the client's own value must compare with it.
_AT_LEAST = ("sigma2", "batch-size", "examples")
_AT_MOST = ("clip-norm",)
_EXACTLY = ("lr", "steps")
PROMISES = (*_AT_LEAST, *_AT_MOST, *_EXACTLY)
_MECHANISM = "mechanism"
_USUAL = "water-filling"  # if a record does not name the mechanism


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


@dataclass(frozen=True)
class FillMod:
    """Lets only filled updates out, at least as private as the server will claim.

    List it after `mask_mod` and before everything that changes the update. Loss and metrics stay
    here: they would travel without noise. The weight is 1, as the accounting assumes.

    Attributes:
        required: Whether a train message without an order gets an error.
        allow_tap: Whether the auditor's tap may collect kept updates; for simulations only.
    """

    required: bool = True
    allow_tap: bool = False

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Train, then check what the app states it has done."""
        if message.metadata.message_type.split(".")[0] != "train":
            return call_next(message, context)
        order = wire.config(message.content, wire.FILLED)
        if order is None:
            if not self.required or (self.allow_tap and wire.only_collects(message.content)):
                return call_next(message, context)
            raise ValueError(f"a train message must carry {wire.FILLED!r}: this client fills")
        if missing := sorted({*PROMISES, "weight-key"} - set(order)):
            raise ValueError(f"{wire.FILLED!r} must say {', '.join(missing)}")
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        done = wire.config(reply.content, wire.FILLED)
        if done is None:
            raise ValueError(
                f"the app's reply must carry {wire.FILLED!r}: its update has no such noise"
            )
        _compare(order, done)
        metrics = MetricRecord({wire.get_text(order, "weight-key"): 1})
        key, arrays = wire.arrays_key(reply.content), wire.arrays(reply.content)
        content = RecordDict({key: arrays, "metrics": metrics, wire.FILLED: done})
        return Message(passed_on(reply.content, content), reply_to=message)


fill_mod = FillMod()


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
