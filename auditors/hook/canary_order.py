"""The order to `canary_mod`, its answer, and what answers mean for the audit and its user.

The order is a MetricRecord in the train message: Flower's clipping mods refuse a second
ConfigRecord there. The answer is a ConfigRecord in the reply, since `adaptiveclipping_mod` refuses
a second MetricRecord there. The hook removes it before any strategy sees the reply. It may pass our
masks and noise: nothing in it depends on a client's data there. Elsewhere a seat, whose update is
not sent, may say whether it took that for a model or a difference.

A canary has to look like an update. In a project that sends gradients, a seat that replied with a
whole model would distort the training, and the audit would take it for a leak. A seat decides for
itself as long as the server does not know, so that no round passes without canaries; the honest
replies of that round, and what the server makes of them, confirm or correct it (`ReplyKind`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, Self, TypeAlias, get_args

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from leakmeter.auditors.auditor import Canary, Project
from leakmeter.auditors.canary_draws import SEED_BITS, KindName, canary_key
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.guest_noise import Engine, LocalNoise
from leakmeter.auditors.hook.layout import Blocks
from leakmeter.auditors.values import Sliceable, Vector, require
from leakmeter.auditors.verdict.claim import USER

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
_MAX_NAME: Final = 60
_OVERSIZE: Final = 10.0  # a clip that does not work lets so much more pass
_MAX_NAMES: Final = 20  # of mods; more than anybody lists


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

    @classmethod
    def testing(cls, project: Project) -> Self:
        """Return how long canaries must be to test the claims about a run.

        Only a claim that somebody asks about is worth a distorted model, and Flower's own noise
        clips before it adds. Masks clip every coordinate: a longer canary would only be distorted
        there.
        """
        tested = [claim for claim in project.claims if claim.unit == "client"]
        if project.is_masked or all(claim.source != USER for claim in tested):
            return cls()
        return cls(_OVERSIZE, max(claim.clip_norm or 0.0 for claim in tested))

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
            raise wire.WireError(f"left-out must be a list of places, got {wire.describe(places)}")
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


def with_own_key(canary: Canary) -> Canary:
    """Return a canary as its seat may know it: with its own key in place of the seed."""
    return replace(canary, seed=canary_key(canary.seed, canary.id))


def take_answer(reply: Message) -> Answer | None:
    """Return the answer in a reply and remove it, whatever it contains."""
    if not reply.has_content():
        return None
    answer = Answer.of(reply.content)
    wire.remove(reply, wire.CANARY)
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
            f"{wire.describe(words)}"
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
    named = (word for word in words if word.isidentifier() and len(word) <= _MAX_NAME)
    return tuple(named)[:_MAX_NAMES]


Choice: TypeAlias = Literal["auto"] | Sends

CHOICES: Final = ("auto", *get_args(Sends))
_ALONG: Final = 0.7  # cosine from which on the server moves along something
_APART: Final = 0.1  # how far two cosines must differ to say which it is
_EXACT: Final = (
    100.0  # how much farther off the other must be if the server moves exactly along one
)
_ROUNDED: Final = 1e-4  # how far off rounding may make a cosine of 1
_NEAR: Final = 0.25  # how far a share may be from 1 or 0 to count as it
_BLURRED: Final = 0.05  # standard error of a share that noise has made useless
_BLOCK: Final = 2**15  # coordinates at a time, which stay in the processor's cache
_SHORT: Final = 0.75  # length of an update, relative to the model, up to which a seat can tell


class ReplyKind(Resumable):
    """What clients reply with: set by the user, or decided from honest replies.

    Args:
        choice: "auto" decides; until then seats decide for themselves.

    Attributes:
        sends: What clients reply with; None until it is decided.
        sign: 1 if the server adds what clients send, -1 if it subtracts it, as with gradients.
    """

    sends: Kept[Sends | None]
    sign: Kept[int]
    _has_sign: Kept[bool]

    def __init__(self, choice: Choice) -> None:
        if choice not in CHOICES:
            raise ValueError(f"sends must be one of {', '.join(CHOICES)}, got {choice!r}")
        self.sends = None if choice == "auto" else choice
        self.sign = 1
        self._has_sign = False

    def note_answers(self, told: Collection[Sends]) -> list[str]:
        """Take over what seats took their replies for, if it is still open; return what is wrong.

        Args:
            told: What each seat said that had to decide for itself.
        """
        kinds = set(told)
        if self.sends is None and len(kinds) == 1:
            self.sends = kinds.pop()
        return [MISTAKEN] if kinds - {self.sends} else []

    @property
    def needs_sign(self) -> bool:
        """Whether it is still open which way the server moves with what clients send."""
        return self.sends == "differences" and not self._has_sign

    def note_step(self, sent: Vector, released: Vector, mean: Vector | None) -> None:
        """Decide whether the server adds or subtracts the mean of what clients sent.

        Args:
            sent: The model before the round.
            released: The model after it.
            mean: Mean of what honest clients sent, if it is known. With canaries in it, the sign
                would favour included canaries, even if noise hides them all.
        """
        if not self.needs_sign or mean is None:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            product = float((released - sent) @ mean)
        if math.isfinite(product) and product != 0:
            self.sign, self._has_sign = (1 if product > 0 else -1), True


def reply_kind(
    sent: Sliceable, replies: Iterable[Vector], mean: Blocks | None, released: Sliceable
) -> Sends | None:
    """Return what honest replies to `sent` are; None if that cannot be decided.

    Args:
        sent: The model.
        replies: Those of clients without canaries.
        mean: Their weighted mean by blocks, if it is known.
        released: What the server has made of them.

    The server moves along r - s if replies r are models, and along r or -r if they are differences.
    If it moves along neither, because of noise or of an aggregate that is not a mean, the share
    r·s/‖s‖² of the sent model decides: about 1 for a model, about 0 for a difference. For a model
    of zeros both are the same, but a server that moves against r gets gradients.
    """
    square = _product(sent, sent)
    if not 0 < square < math.inf:
        if mean is None or square != 0:
            return None
        return "differences" if _cosines_of_step(sent, mean, released)[1] < -_ALONG else None
    if mean is not None:
        changed, replied = _cosines_of_step(sent, mean, released)
        along = {"models": changed, "differences": abs(replied)}
        first, second = sorted(along.values(), reverse=True)
        if first > _ALONG:
            is_exact = 1 - second > max(_EXACT * (1 - first), _ROUNDED)
            if not is_exact and first - second < _APART:
                return None
            return "models" if along["models"] == first else "differences"
    return _by_share(sent, square, replies)


def reply_kind_by_lengths(change: float, reply: float, sent: float) -> Sends | None:
    """Return what a reply r to a model s is, from the lengths of r - s, r and s alone.

    A model is near s, a difference is near 0, and the share r·s/‖s‖² is near 1 or 0. None if it is
    near neither: an update longer than the model, or a gradient in which most of the model is. None
    also for a client that has not trained, for a model of zeros, where it does not matter, and for
    what is not finite.
    """
    if not (0 < sent < math.inf and math.isfinite(change + reply)):
        return None
    share = (1 + (reply / sent) ** 2 - (change / sent) ** 2) / 2
    if 0 < change <= _SHORT * sent and abs(share - 1) <= _NEAR:
        return "models"
    return "differences" if reply <= _SHORT * sent and abs(share) <= _NEAR else None


def _by_share(sent: Sliceable, square: float, replies: Iterable[Vector]) -> Sends | None:
    """Decide by how much of the sent model, of this squared length, is in the replies."""
    with np.errstate(over="ignore", invalid="ignore"):
        shares = np.array([_product(sent, reply) / square for reply in replies])
    shares = shares[np.isfinite(shares)]
    if not shares.size:
        return None
    if shares.size > 1 and shares.std(ddof=1) / math.sqrt(shares.size) > _BLURRED:
        return None
    if abs(shares.mean() - 1) <= _NEAR:
        return "models"
    return "differences" if abs(shares.mean()) <= _NEAR else None


def _product(one: Sliceable, other: Sliceable) -> float:
    """Return an inner product."""
    return sum(float(one[part] @ block) for part, block in in_blocks(other))


def in_blocks(vector: Sliceable) -> Blocks:
    """Yield a vector by blocks."""
    for start in range(0, vector.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        yield part, vector[part]


def _cosines_of_step(sent: Sliceable, mean: Blocks, released: Sliceable) -> tuple[float, float]:
    """Return the cosines of the server's step with mean - sent and with the mean.

    Either is 0 where a vector is zero or not finite. Computed by blocks, without further vectors.
    """
    gram = np.zeros((3, 3))
    with np.errstate(over="ignore", invalid="ignore"):
        for part, answer in mean:
            base = sent[part]
            rows = np.stack([released[part] - base, answer - base, answer])  # (3, columns)
            gram += rows @ rows.T
        lengths = np.sqrt(np.diag(gram))
        found = [(float(gram[0, i]), float(lengths[0] * lengths[i])) for i in (1, 2)]
    first, second = (
        product / length if 0 < length < math.inf and math.isfinite(product) else 0.0
        for product, length in found
    )
    return first, second


NO_ANSWER: Final = (
    "no client answered for canary_mod, so no canary was played: list it in the client app, "
    "ClientApp(mods=[canary_mod]). If it is there, a mod before it builds its own replies and "
    "drops the answer"
)
UNDECIDED: Final = (
    "a seat could not tell whether its client app replies with a model or a difference, because "
    "its update is zero or longer than the model, so it played no canary in that round; once "
    "honest replies tell, seats play"
)
MISTAKEN: Final = (
    "seats took what their client app replies with for the wrong one of models and differences, so "
    "the canaries of a round have bent the model: set sends='models' or sends='differences'"
)
# Mods that change no update.
_NEUTRAL: Final = frozenset(
    {"message_size_mod", "arrays_size_mod", "parameters_size_mod", "canary_mod", "tap_mod"}
)
# Those, and mods that do nothing that matters to a canary of the trained update's length.
_HARMLESS: Final = _NEUTRAL | {"fixedclipping_mod", "adaptiveclipping_mod"}
# Known mods that keep no state, or none that a replay without masks changes.
_STATELESS: Final = _HARMLESS | {"LocalDpMod", "MaskMod", "mask_mod"}
_NOISE: Final = frozenset({"LocalDpMod", "NoiseMod", "noise_mod", "FillMod", "fill_mod"})
MASKS: Final = frozenset({"MaskMod", "mask_mod", "secaggplus_mod", "secagg_mod"})
HIDING: Final = _NOISE | MASKS


def guest_warnings(answers: Mapping[int, Answer], asked: Collection[int]) -> list[str]:
    """Return what is wrong with the canaries of a round, each sentence once.

    Args:
        answers: The answer of each client's `canary_mod`.
        asked: Clients that were asked and have replied.
    """
    if asked and not answers:
        return [NO_ANSWER]
    said = (words for answer in answers.values() for words in _warnings_about(answer))
    return list(dict.fromkeys(said))


CLAIMED: Final = (
    "canaries test the claim, and they replace what the training returns. Noise that the app adds "
    "inside its training function misses them, so a claim that counts on it would be refuted "
    "wrongly: add such noise in a mod before canary_mod"
)


def size_warning(size: Size) -> str:
    """Return that canaries are longer than updates, and why."""
    least = f" (or as the clip norm {size.least_norm:g}, if longer)" if size.least_norm else ""
    return (
        f"a claim is tested, so canaries are {size.times:g} times as long as the update that they "
        f"replace{least}: with shorter ones, a clip per parameter, a clip after the noise and "
        "weights that undo the clip would stay invisible. Without a clip that works, they distort "
        "the model; leave the claims out to train one for use"
    )


def replay_warnings(answers: Mapping[int, Answer]) -> list[str]:
    """Return what replays of a round do to mods before `canary_mod`, each sentence once."""
    names = dict.fromkeys(name for answer in answers.values() for name in answer.outer)
    return [
        f"{name} is before canary_mod and sees every replay: what it keeps in context.state is not "
        f"restored. If it keeps something there, list it after canary_mod, [canary_mod, {name}]"
        for name in names
        if name not in _STATELESS
    ]


def noise_around(answers: Mapping[int, Answer]) -> str | None:
    """Return the name of a mod that adds noise to what clients send, if there is one."""
    names = (name for a in answers.values() for name in (*a.outer, *a.inner))
    return next((name for name in names if name in _NOISE), None)


def bypasses_noise(answer: Answer) -> bool:
    """Whether a mod adds noise to a client's own update, but not to a canary."""
    return not _NOISE.isdisjoint(answer.inner)


def may_bypass(answer: Answer) -> bool:
    """Whether the training, or a mod that nobody knows, may protect updates but no canary."""
    return answer.trains_privately or not (_HARMLESS | HIDING).issuperset(answer.inner)


def may_be_longer(answer: Answer) -> bool:
    """Whether a canary may be longer than the update: not if a mod behind it may have clipped."""
    return _NEUTRAL.issuperset(answer.inner)


def _warnings_about(answer: Answer) -> Iterator[str]:
    for name in answer.inner:
        order = f"list canary_mod after it, [{name}, canary_mod]"
        if name in _NOISE:
            yield (
                f"canaries bypass the noise of {name}, so the numbers are those of a run without "
                f"it: {order}"
            )
        elif name in MASKS:
            yield f"{name} hides the update from canary_mod, so no canary was played: {order}"
        elif name not in _HARMLESS:
            yield (
                f"{name} handles the update before a canary replaces it, so canaries bypass it and "
                f"test no claim about the whole app: if it protects clients, {order}"
            )
    if answer.outcome == "other-arrays" and not MASKS & set(answer.inner):
        yield (
            "clients reply with other arrays than they are sent, so no canary was played: a canary "
            "must look like the update it replaces"
        )
    if answer.outcome == "undecided":
        yield UNDECIDED
    if answer.trains_privately:
        yield (
            "clients have loaded opacus: DP-SGD protects records inside a client. A canary "
            "replaces the update after the training, so the numbers are about clients, not "
            "records, and test no claim about the whole app. DpSgdAccountant() composes what "
            "records are guaranteed, and planted records test it"
        )
