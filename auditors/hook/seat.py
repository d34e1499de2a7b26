"""The order that the hook sends to `canary_mod`, and the mod's answer.

The order is a MetricRecord in the train message: Flower's clipping mods refuse a second
ConfigRecord there. The answer is a ConfigRecord in the reply, since `adaptiveclipping_mod` refuses
a second MetricRecord there. The hook removes it before any strategy sees the reply. It may pass our
masks and noise: nothing in it depends on a client's data there. Elsewhere a seat, whose update is
not sent, may say whether it took that for a model or a difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.canary_draws import SEED_BITS, KindName, canary_key
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.flower_noise import LocalNoise
from leakmeter.auditors.hook.opacus import Engine
from leakmeter.auditors.values import require

# Whether the arrays of a reply are a model, or what is to be added to or taken from one.
Sends: TypeAlias = Literal["models", "differences"]
# What became of an order: nothing was ordered; done, as far as the update was finite; the reply had
# other arrays than the message; it could be a model or a difference, and stays as it is.
Outcome: TypeAlias = Literal["greeted", "played", "other-arrays", "undecided"]

# All that an order may have.
FIELDS: Final = frozenset(
    {
        *("id", "included", "seed", "norm", "kind", "left-out", "difference", "open"),
        *("times", "least-norm"),
    }
)
# Kinds of canaries by the numbers that travel; without one it is the first.
_KINDS: Final[tuple[KindName, ...]] = ("sphere", "signs")

_WORD: Final = 32  # bits of a seed that travel together
_SHIFTS: Final = range(0, SEED_BITS, _WORD)
_LONGEST_NAME: Final = 60
_MOST_NAMES: Final = 20  # of mods; more than anybody lists


@dataclass(frozen=True)
class Size:
    """How long canaries are, next to the updates that they replace.

    Attributes:
        times: A canary is so many times as long; more than once only where a claim is tested.
        least_norm: An update counts as at least this long.
    """

    times: float = 1.0
    least_norm: float = 0.0

    def __post_init__(self) -> None:
        require("[1, inf)", times=self.times)
        require("[0, inf)", least_norm=self.least_norm)

    def norm(self, update: float) -> float:
        """Return the norm of a canary in place of an update of this norm.

        >>> Size(10.0, least_norm=1.0).norm(0.2)
        10.0
        """
        return self.times * max(update, self.least_norm)


@dataclass(frozen=True)
class Order:
    """What a train message asks of `canary_mod`.

    Attributes:
        canary: What to send in place of the update; None asks for an answer alone. Its seed is
            the canary's own key, see `keyed`.
        left_out: Places of the message's arrays that are no part of the update. FedAvg turns
            integers into floats after round 1, so a client cannot find out alone.
        sends: What the client app replies with; None leaves it to the seat to find out.
        size: How long the canary is.
    """

    canary: Canary | None = None
    left_out: tuple[int, ...] = ()
    sends: Sends | None = "models"
    size: Size = Size()

    def to_record(self) -> MetricRecord:
        """Return the order as it travels.

        Whole numbers have 64 bits there, so a seed is split into words of 32, lowest first.
        """
        record = MetricRecord()
        if self.sends == "differences":
            record["difference"] = 1
        if self.sends is None:
            record["open"] = 1
        if self.left_out:
            record["left-out"] = list(self.left_out)
        if (canary := self.canary) is not None:
            record["id"], record["included"] = canary.id, int(canary.included)
            record["seed"] = [canary.seed >> shift & (2**_WORD - 1) for shift in _SHIFTS]
            if canary.norm is not None:
                record["norm"] = float(canary.norm)
            if number := _KINDS.index(canary.kind):
                record["kind"] = number
            if self.size != Size():
                record["times"] = float(self.size.times)
                record["least-norm"] = float(self.size.least_norm)
        return record

    @classmethod
    def of(cls, content: RecordDict) -> Order | None:
        """Return the order in a train message, if there is one.

        Raises:
            WireError: The order lacks a value, or has an impossible one.
        """
        record = content.get(wire.CANARY)
        if not isinstance(record, MetricRecord):
            return None
        is_difference = "difference" in record and _flag(record, "difference")
        sends: Sends | None = "differences" if is_difference else "models"
        if "open" in record and _flag(record, "open"):
            sends = None
        places = record.get("left-out", [])
        if not isinstance(places, list) or not all(type(p) is int and p >= 0 for p in places):
            raise wire.WireError(f"left-out must be a list of places, got {wire.described(places)}")
        canary = _canary(record) if "id" in record else None
        return cls(canary, tuple(int(place) for place in places), sends, _size(record))


@dataclass(frozen=True)
class Answer:
    """What `canary_mod` says about itself.

    Attributes:
        outcome: What became of the order.
        outer: Mods before it in the list; they get its reply.
        inner: Mods behind it; what they do happens before the canary replaces the update.
        trains_privately: Whether the client process has loaded a library for DP-SGD.
        sends: What a seat took its reply for, if the order left that open.
        local_noise: The parameters of Flower's `LocalDpMod` before it, where nothing else hides the
            reply. They are settings, not data.
        engine: What a training with Opacus did, under the same condition.
    """

    outcome: Outcome = "greeted"
    outer: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    trains_privately: bool = False
    sends: Sends | None = None
    local_noise: LocalNoise | None = None
    engine: Engine | None = None

    def to_record(self) -> ConfigRecord:
        """Return the answer as it travels."""
        record = ConfigRecord({"outcome": self.outcome, "trains-privately": self.trains_privately})
        for key, names in (("outer", self.outer), ("inner", self.inner)):
            if names:  # Flower's message_size_mod raises at an empty text
                record[key] = " ".join(names)
        if self.sends is not None:
            record["sends"] = self.sends
        if self.local_noise is not None:
            record["local-noise"] = self.local_noise.values
        if self.engine is not None:
            record["dp-sgd"] = self.engine.values
        return record

    @classmethod
    def of(cls, content: RecordDict) -> Answer | None:
        """Return the answer in a reply; None if there is none, or something else in its place."""
        record = wire.config(content, wire.CANARY)
        if record is None:
            return None
        outcome = record.get("outcome")
        known = [one for one in get_args(Outcome) if one == outcome]
        if not known:
            return None
        private = record.get("trains-privately") is True
        told = [one for one in get_args(Sends) if one == record.get("sends")]
        names = _names(record, "outer"), _names(record, "inner")
        noise = LocalNoise.read(record.get("local-noise"))
        engine = Engine.read(record.get("dp-sgd"))
        return cls(known[0], *names, private, told[0] if told else None, noise, engine)


def keyed(canary: Canary) -> Canary:
    """Return a canary as its seat may know it: with its own key in place of the seed."""
    return replace(canary, seed=canary_key(canary.seed, canary.id))


def take_answer(reply: Message) -> Answer | None:
    """Return the answer in a reply and remove it, whatever it contains."""
    if not reply.has_content() or wire.CANARY not in reply.content:
        return None
    answer = Answer.of(reply.content)
    reply.content = RecordDict({k: v for k, v in reply.content.items() if k != wire.CANARY})
    return answer


def canaries(messages: Iterable[Message]) -> dict[int, Canary]:
    """Return the canary of each node whose train message orders one."""
    ordered = ((m.metadata.dst_node_id, Order.of(m.content)) for m in messages)
    return {node: o.canary for node, o in ordered if o is not None and o.canary is not None}


def _canary(record: MetricRecord) -> Canary:
    number, seed = wire.get_int(record, "id"), _seed(record)
    norm = wire.get_float(record, "norm") if "norm" in record else None
    kind = wire.get_int(record, "kind") if "kind" in record else 0
    if not 0 <= kind < len(_KINDS):
        allowed = f"a number from 0 to {len(_KINDS) - 1}"
        raise wire.WireError(
            f"kind must be {allowed}, got {kind}: use the server's release of leakmeter here"
        )
    try:
        return Canary(number, seed, _flag(record, "included"), norm, _KINDS[kind])
    except ValueError as error:
        raise wire.WireError(f"canary order: {error}") from error


def _size(record: MetricRecord) -> Size:
    named = {"times": "times", "least-norm": "least_norm"}
    given = {to: wire.get_float(record, key) for key, to in named.items() if key in record}
    try:
        return Size(**given)
    except ValueError as error:
        raise wire.WireError(f"canary order: {error}") from error


def _seed(record: MetricRecord) -> int:
    """Return the seed that travels as words."""
    words = record.get("seed")
    if (
        not isinstance(words, list)
        or len(words) != len(_SHIFTS)
        or not all(type(word) is int and 0 <= word < 2**_WORD for word in words)
    ):
        raise wire.WireError(
            f"seed must be a list of {len(_SHIFTS)} whole numbers in [0, 2^{_WORD}), got "
            f"{wire.described(words)}"
        )
    return sum(int(word) << shift for word, shift in zip(words, _SHIFTS, strict=True))


def _flag(record: MetricRecord, name: str) -> bool:
    value = wire.get_int(record, name)
    if value not in (0, 1):
        raise wire.WireError(f"{name} must be 0 or 1, got {value}")
    return bool(value)


def _names(record: ConfigRecord, key: str) -> tuple[str, ...]:
    """Return names of mods; anything else that a client sends in their place is left out."""
    text = record.get(key)
    words = text[:1000].split() if isinstance(text, str) else []
    named = (word for word in words if word.isidentifier() and len(word) <= _LONGEST_NAME)
    return tuple(named)[:_MOST_NAMES]
