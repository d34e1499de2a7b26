"""Decides whether clients reply with models or differences, and how the server uses them.

A canary has to look like an update. In a project that sends gradients, a seat that replied with a
whole model would distort the training, and the audit would take it for a leak. A seat decides for
itself as long as the server does not know, so that no round passes without canaries; the honest
replies of that round, and what the server makes of them, confirm or correct it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.hook.layout import Blocks
from leakmeter.auditors.hook.remarks import MISTAKEN
from leakmeter.auditors.hook.seat import Sends
from leakmeter.auditors.values import Sliceable, Vector

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


class Sending(Resumable):
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

    def note(
        self, sent: Sliceable, replies: Iterable[Vector], mean: Blocks | None, released: Sliceable
    ) -> None:
        """Decide what clients send from their replies to a model, if it is still open.

        Args:
            sent: The model.
            replies: Honest ones.
            mean: Their weighted mean by blocks, if it is known.
            released: What the server has made of them.
        """
        if self.sends is None:
            self.sends = decided(sent, replies, mean, released)

    def hear(self, told: Collection[Sends]) -> list[str]:
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


def decided(
    sent: Sliceable, replies: Iterable[Vector], mean: Blocks | None, released: Sliceable
) -> Sends | None:
    """Return what honest replies to `sent` are; None if that cannot be decided.

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


def told_by_lengths(change: float, reply: float, sent: float) -> Sends | None:
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
