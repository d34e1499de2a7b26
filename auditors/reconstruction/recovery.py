"""Were originals recovered, or would a stranger have fitted as well? An exact test.

Each original is compared with the reconstruction that it is matched to, and each stranger with its
nearest one. An original is recovered if it fits better than every stranger does. Strangers are
dealt in S batches with the labels of the tested originals, and no record is in two batches. Let
U be the originals on which the reconstructions do not depend. If records were dealt at random among
those of their label, U is exchangeable with its counterpart in each batch, so that one of U fits
best of all with a probability of at most 1 / (S + 1). With the remaining probability every
recovered original is one that the reconstructions depend on: their number is a lower bound.

Matching can only lower the fit of an original, and one image then recovers one original at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from leakmeter.auditors.values import AnyFloats, Floats, Indices, within

CEILING: Final = 60.0  # dB; beyond it nobody sees a difference, and equal images have no finite one
_MIN_BATCHES = 99
_CHUNK = 4096  # strangers that are compared at once


@dataclass(frozen=True, eq=False)
class RoundImages:
    """What a simulation knows of a round: images, from 0 to 1, (count, *shape), and their gradient.

    Attributes:
        originals: Those that clients trained on in the round.
        strangers: Those of the same source that nobody trained on in the round.
        labels: Of the originals, (count,); None where there are none.
        stranger_labels: Of the strangers.
        dealt: How many of the strangers, the first ones, were dealt at random: chance alone decided
            that they are not among the originals of their label.
        steps: Mean number of steps of a client. With 1 the update is a gradient; with more it is an
            approximation.
        has_noise: Whether clients have added noise of which the round's facts say nothing.
    """

    originals: AnyFloats
    strangers: AnyFloats
    labels: Indices | None = None
    stranger_labels: Indices | None = None
    dealt: int = 0
    steps: float = 1.0
    has_noise: bool = False

    def __post_init__(self) -> None:
        within("steps", self.steps, lowest=1.0)


@dataclass(frozen=True)
class Recovery:
    """What the test found.

    Attributes:
        recovered: Originals that fit better than every stranger.
        tested: Originals that were tested; 0 if there are too few strangers for any.
        batches: Batches of strangers, each with the labels of the tested originals.
        worst: PSNR in dB of the recovered original that fits least; 0 if none is.
        stranger: PSNR in dB of the stranger that fits best.
        is_dealt: Whether chance alone decided who is an original.
    """

    recovered: int
    tested: int
    batches: int
    worst: float
    stranger: float
    is_dealt: bool


def recovery(
    images: AnyFloats, known: RoundImages, *, chance: float, rng: np.random.Generator
) -> Recovery:
    """Test whether reconstructions show originals.

    Args:
        images: Reconstructions, (count, *shape), which must not depend on the strangers.
        known: What the round trained on, and strangers.
        chance: Of a wrong answer, at most; in (0, 1).
        rng: Chooses originals and strangers before anything is compared.
    """
    from scipy.optimize import linear_sum_assignment  # a fifth of a second, and few ask

    batches = max(_MIN_BATCHES, math.ceil(1 / chance) - 1)
    tested, strangers = _drawn(known, known.dealt, batches, rng)
    is_dealt = len(tested) > 0
    if not is_dealt:
        tested, strangers = _drawn(known, len(known.strangers), batches, rng)
    if not len(tested):
        return Recovery(0, 0, batches, 0.0, 0.0, is_dealt=False)
    fits = psnr(known.originals[tested], images)
    rows, columns = linear_sum_assignment(fits, maximize=True)
    parts = np.array_split(strangers, math.ceil(len(strangers) / _CHUNK))
    best = max(float(psnr(known.strangers[part], images).max()) for part in parts)
    found = [fit for fit in fits[rows, columns].tolist() if fit > best]
    return Recovery(
        len(found), len(tested), batches, min(found, default=0.0), best, is_dealt=is_dealt
    )


def psnr(images: AnyFloats, others: AnyFloats) -> Floats:
    """Return the PSNR in dB of each image with each other one, (images, others)."""
    one, two = (np.asarray(a, dtype=np.float64).reshape(len(a), -1) for a in (images, others))
    # ‖a - b‖² = ‖a‖² + ‖b‖² - 2ab: no array of all differences.
    squares = (one**2).sum(1)[:, None] + (two**2).sum(1) - 2 * one @ two.T
    least = 10 ** (-CEILING / 10)
    return np.asarray(-10 * np.log10(np.maximum(squares / one.shape[1], least)))


def _drawn(
    known: RoundImages, pool: int, batches: int, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Return as many originals as there are strangers of their labels for, and these strangers."""
    originals, strangers = (rng.permutation(n) for n in (len(known.originals), pool))
    tested, compared = [originals[:0]], [strangers[:0]]
    own, others = _labels(known.labels, originals), _labels(known.stranger_labels, strangers)
    for label in np.unique(own):
        free = strangers[others == label]
        chosen = originals[own == label][: len(free) // batches]
        tested.append(chosen)
        compared.append(free[: batches * len(chosen)])
    return np.concatenate(tested), np.concatenate(compared)


def _labels(labels: Indices | None, which: Indices) -> Indices:
    return np.zeros(len(which), dtype=np.int64) if labels is None else labels[which]
