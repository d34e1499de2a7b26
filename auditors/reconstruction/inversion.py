"""Gradient inversion on the rounds of a run: which training images are in the sum?

As in Elkordy et al. 2023 (arXiv:2208.02304), §5.7, the attack treats the mean update of a secure
sum as the mean gradient, and searches for images with that gradient. Ours differs in four points:
1. The attacker does not aim at one client: a reconstruction counts if any client held the image.
2. A PSNR is compared with strangers, images that nobody in the round held. The nearest of many
   images is near even without a leak, and equally near among as many strangers.
3. Whether originals were recovered is a test with a known chance to be wrong: see below.
4. After several local steps the update is an approximate gradient, and the finding says so.

The test asks whether originals were recovered, or a stranger would have fitted as well.
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
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import AuditedRound, ScheduledAuditor
from leakmeter.auditors.auditor import DivergedError, Project, RoundView
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.reconstruction.attack import Attack, invert
from leakmeter.auditors.rng import derive, stream
from leakmeter.auditors.run_log import write_atomically
from leakmeter.auditors.values import AnyFloats, Floats, Indices, Vector, within
from leakmeter.auditors.wording import Assumption, counted, number

if TYPE_CHECKING:
    from torch import nn

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIDE = 64  # pixels that an image should have on a screen; digits have 8
_MAX_WORDS = 2000  # characters of a caption
_CAPTION = b"Description"


def png(rows: Sequence[AnyFloats], caption: str) -> bytes:
    """Return rows of images as one PNG, white between them.

    Args:
        rows: Each (count, height, width), or (count, channels, height, width) with 1 or 3 channels;
            from 0, black, to 1. All of one shape.
        caption: What the picture shows; kept as text in the file.
    """
    size = max(1, round(_SIDE / max(rows[0].shape[-2:])))
    strips = [_strip(row, size) for row in rows]
    pixels = np.concatenate(strips)  # (height, width, channels)
    height, width, channels = pixels.shape
    kind = {1: 0, 3: 2}[channels]  # grey or colour, as PNG numbers them
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    # Keyword, not compressed, no language, no translation of the keyword.
    words = _CAPTION + b"\0\0\0\0\0" + caption[:_MAX_WORDS].encode()
    return SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
            _chunk(b"iTXt", words),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),  # each line begins with filter 0
            _chunk(b"IEND", b""),
        )
    )


def caption_of(content: bytes) -> str:
    """Return the caption that `png` has put into a file; nothing for any other file."""
    head = _CAPTION + b"\0\0\0\0\0"
    for kind, data in _chunks(content):
        if kind == b"iTXt" and data.startswith(head):
            return data[len(head) :].decode(errors="replace")[:_MAX_WORDS]
    return ""


def _strip(row: AnyFloats, size: int) -> NDArray[np.uint8]:
    """Return a row of images side by side, (height, width, channels), with a white edge."""
    shown = row if row.ndim == 4 else row[:, None]
    large = shown.repeat(size, axis=-2).repeat(size, axis=-1)
    gap = max(2, large.shape[-1] // 16)
    framed = np.pad(large, [(0, 0), (0, 0), (0, gap), (0, gap)], constant_values=1.0)
    pixels = np.rint(255 * np.clip(framed, 0, 1)).astype(np.uint8)
    return np.concatenate(list(np.moveaxis(pixels, 1, -1)), axis=1)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the chunks of a PNG file as far as they are whole."""
    at = len(SIGNATURE) if content.startswith(SIGNATURE) else len(content)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        if at + 12 + length > len(content):
            return
        yield content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        at += 12 + length


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


# Folder of the pictures in that of the run.
FOLDER = "inversion"
# Images that are compared: enough for a null, and a matrix of products that fits any memory.
_MAX_ORIGINALS, _MAX_STRANGERS = 2000, 4000
_MAX_SHOWN = 16  # reconstructions in a picture, the best first
_LOW, _HIGH = 0.05, 0.95
_CHOICES = 999  # of originals by chance, for the null
_SERVER = ThreatModel(observer="server", sees="round sum", knows_cohort=True)


@dataclass(frozen=True)
class ImageComparison:
    """How near reconstructions come to the images of a round: PSNR in dB.

    Attributes:
        server_round: Which round.
        psnr: Mean over reconstructions of the PSNR with the nearest original.
        strangers: The same with as many strangers.
        mean_image: The same for the mean stranger in place of reconstructions, with originals.
        noise: The same for as many images of noise, with originals.
        best: PSNR of the reconstruction that is nearest to an original.
        nearest: Reconstructions that are nearer to an original than to any of these strangers.
        mismatch: Squared distance of the gradients, relative.
        sizes: Reconstructions, originals that were compared, and all strangers.
        band: 5 % and 95 % quantile of the same mean if the originals are chosen at random from
            originals and strangers.
        shared: The same quantiles if all audited rounds share the probability of being outside.
        caveat: Why the gradient is not exact; empty if it is.
        recovery: The test of the run, in its first audited round; None in the others.
    """

    server_round: int
    psnr: float
    strangers: float
    mean_image: float
    noise: float
    best: float
    nearest: int
    mismatch: float
    sizes: tuple[int, int, int]
    band: tuple[float, float]
    shared: tuple[float, float]
    caveat: str = ""
    recovery: Recovery | None = None


class Inversion(ScheduledAuditor):
    """Searches the sum of a round for the images that its clients trained on.

    The attacker reads the model sent and the mean update. The images of a simulation only show how
    near it came. With a run folder, pictures go into its folder `inversion`.

    Args:
        at: Returns the model, from images to scores, with the given flat parameters.
        images_of: Returns the images of a round, and strangers.
        rate: Learning rate of the clients; 1 for clients that send gradients.
        seek: Images to search for.
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last.
        attack: How to search for images.
        confidence: Of the test whether originals were recovered; one test a run, in the first
            audited round.
        seed: Seed of the draws.
    """

    name = "inversion"
    num_bounds = 1
    reads = frozenset({"sent", "facts", "instructed"})
    _played: Kept[list[ImageComparison]]  # pictures are on disk

    def __init__(
        self,
        at: Callable[[Vector], nn.Module],
        images_of: Callable[[RoundView], RoundImages],
        *,
        rate: float,
        seek: int = 8,
        every: int = 0,
        attack: Attack | None = None,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        super().__init__(every=every)
        within("confidence", confidence, above=0.0, below=1.0)
        within("rate", rate, above=0.0)
        within("seek", seek, lowest=1)
        self._at, self._images_of = at, images_of
        self.rate, self.seek = rate, seek
        self.attack, self.seed, self._played = attack or Attack(), seed, []
        self.confidence = confidence

    @property
    def due(self) -> None:
        """Reports do not list its schedule: a finding names its round."""

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._played = []

    def limits(self, project: Project) -> Sequence[str]:
        """Return what is in the sum in addition to the gradients of images."""
        if not project.seats:
            return ()
        return [
            f"{counted(project.seats, 'client')} of round 1 play canaries, which are in the sum "
            "and hide images; audit images in a run without one-shot"
        ]

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Search the round's mean update for images, if it has one."""
        view, update = audited.view, audited.facts.aggregate
        if update is None:
            return ()
        if not np.isfinite(update).all():
            raise DivergedError
        images = self._images_of(view)
        if not update.any() or not len(images.originals) or len(images.strangers) < 2:
            return ()
        found = invert(
            self._at(view.sent),
            -view.sign * update / (self.rate * images.steps),
            shape=images.originals.shape[1:],
            batch=self.seek,
            seed=derive(self.seed, self.name, view.server_round),
            attack=self.attack,
        )
        rng = stream(self.seed, self.name, "compare", view.server_round)
        compared = _Compared.of(found.images, images, rng)
        played = ImageComparison(
            server_round=view.server_round,
            mismatch=found.mismatch,
            caveat=_caveat(view, images),
            recovery=None if self._played else self._tested(found.images, images),
            **compared.figures(rng, sharing=len(self._due)),
        )
        self._played.append(played)
        self._draw(compared, played)
        return [self._finding(played, played.band, view.server_round)]

    def report(self) -> Sequence[Finding]:
        """Return how many originals were recovered, and the largest PSNR of all audited rounds."""
        if not self._played:
            return ()
        best = max(self._played, key=lambda one: one.psnr)
        # P(all below their edge) is at least the product of the rounds' probabilities, so the
        # largest edge is valid for the largest value.
        low, high = (max(one.shared[i] for one in self._played) for i in (0, 1))
        return [self._recovered(self._played[0]), self._finding(best, (low, high), None)]

    def _tested(self, found: AnyFloats, images: RoundImages) -> Recovery:
        """Test the first audited round, with draws of its own."""
        rng = stream(self.seed, self.name, "recovery")
        return recovery(found, images, chance=1 - self.confidence, rng=rng)

    def _recovered(self, played: ImageComparison) -> Finding:
        """Return what came of the test as a lower bound on the originals that were recovered."""
        test = played.recovery
        assert test is not None
        chance = 1 / (test.batches + 1)
        alike = Assumption.DEALT_AT_RANDOM if test.is_dealt else Assumption.RECORDS_ALIKE
        rule = (
            f"{test.recovered} of {counted(test.tested, 'tested original')} from the sum of round "
            f"{played.server_round} fit their reconstruction better than every stranger fits any, "
            f"in {test.batches} batches with the same labels (at most {number(test.stranger)} dB); "
            f"without a leak this has a chance of at most {number(chance, kind='guarantee')}"
        )
        none = (
            f"no original could be tested: each needs {test.batches} strangers of its label, which "
            "are dealt once; audit fewer clients or smaller batches, or use more data"
        )
        return Finding(
            value=float(test.recovered),
            kind="lower_bound",
            rule=rule if test.tested else none,
            confidence=1 - chance,
            sample_sizes={"originals": test.tested, "batches of strangers": test.batches},
            cap=float(test.tested),
            saturated=0 < test.recovered == test.tested,
            assumptions=(Assumption.THIS_ROUND_ONLY, alike),
            auditor=self.name,
            quantity="originals recovered",
            threat_model=_SERVER,
            unit="record",
            seed=self.seed,
            facts={
                "round": played.server_round,
                "originals": test.tested,
                "in the round": played.sizes[1],
                "weakest dB": test.worst,
                "strangers dB": test.stranger,
            },
        )

    def _finding(
        self, played: ImageComparison, band: tuple[float, float], server_round: int | None
    ) -> Finding:
        sought, originals, strangers = played.sizes
        return Finding(
            value=played.psnr,
            kind="diagnostic",
            rule=self._rule(played, band, is_of_run=server_round is None),
            sample_sizes={
                "reconstructions": sought,
                "originals": originals,
                "strangers": strangers,
            },
            cap=CEILING,
            saturated=played.psnr >= CEILING,
            assumptions=(Assumption.THIS_ROUND_ONLY, Assumption.RECORDS_ALIKE),
            auditor=self.name,
            quantity="reconstruction PSNR in dB",
            threat_model=_SERVER,
            unit="record",
            server_round=server_round,
            null_band=band,
            seed=self.seed,
            facts={
                "round": played.server_round,
                "best dB": played.best,
                "strangers dB": played.strangers,
                "mean image dB": played.mean_image,
                "noise dB": played.noise,
                "nearest to an original": played.nearest,
                "gradient mismatch": played.mismatch,
                "gradient is exact": not played.caveat,
                "method": f"{self.attack.method}, {self.attack.optimizer}",
            },
        )

    def _rule(self, played: ImageComparison, band: tuple[float, float], *, is_of_run: bool) -> str:
        """Return in words how the PSNR was computed, with its controls."""
        sought, originals, _ = played.sizes
        rounds = len(self._played) if is_of_run else 1
        many = f" (best of {rounds} audited rounds)" if rounds > 1 else ""
        low, high = (number(edge) for edge in band)
        caveat = f"The gradient is approximate: {played.caveat}. " if played.caveat else ""
        return (
            f"mean over {counted(sought, 'reconstruction')} from the sum of round "
            f"{played.server_round}{many}, each with the nearest of {counted(originals, 'image')} "
            f"that its clients trained on; the best has {number(played.best)} dB. As many "
            f"strangers: {number(played.strangers)} dB, and {low} to {high} dB in 90 % of random "
            "choices of images. Reconstructions nearer to an image of the round than to these "
            f"strangers: {played.nearest} of {sought}, without a leak about half. {caveat}A low "
            "PSNR is not evidence of privacy: another attack may find more"
        )

    def _draw(self, compared: _Compared, played: ImageComparison) -> None:
        """Write a picture of reconstructions, originals and strangers, if there is a folder."""
        if self.folder is None:
            return
        order = np.argsort(-compared.to_originals.max(axis=1), kind="stable")[:_MAX_SHOWN]
        rows = [part[order] for part in compared.rows()]
        words = (
            f"Round {played.server_round}. Top: images reconstructed from the sum of the round, "
            f"best match first ({len(order)} of {len(compared.images)}). "
            "Middle: the nearest image that a client of the round trained on. Bottom: the nearest "
            "of as many images that nobody in the round trained on. A reconstruction that is as "
            f"near to both shows nothing. Mean PSNR: {number(played.psnr)} dB (strangers: "
            f"{number(played.strangers)} dB)."
        )
        folder = self.folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        content = png([_shown(row) for row in rows], words)
        write_atomically(folder / f"round-{played.server_round:06d}.png", content)


def _caveat(view: RoundView, images: RoundImages) -> str:
    """Return why the update is not the gradient of images, in words."""
    facts, why = view.facts, []
    if images.steps > 1:
        why.append(f"clients take {number(images.steps)} steps, taken for one gradient")
    if facts.clip_norm is not None:
        why.append("clients clip")
    if facts.share_std or images.has_noise:  # 0 where the server adds all of it, after the sum
        why.append("clients add noise")
    if view.instructed:
        why.append(f"{counted(len(view.instructed), 'canary seat')} in the sum")
    return ", ".join(why)


@dataclass(frozen=True, eq=False)
class _Compared:
    """Reconstructions, and images of the round and strangers that they are compared with."""

    images: AnyFloats
    originals: AnyFloats
    strangers: AnyFloats  # in random order: the first are as many as originals
    to_originals: Floats  # PSNR, (reconstructions, originals)
    to_strangers: Floats  # PSNR, (reconstructions, strangers)
    controls: tuple[float, float]  # of the mean stranger and of noise, with originals

    @classmethod
    def of(cls, images: AnyFloats, known: RoundImages, rng: np.random.Generator) -> _Compared:
        """Choose what is compared, and compare it."""
        strangers = _some(known.strangers, _MAX_STRANGERS, rng)
        originals = _some(known.originals, min(_MAX_ORIGINALS, len(strangers)), rng)
        noise = rng.random(images.shape)
        mean_image = strangers.mean(axis=0, keepdims=True)
        controls = tuple(_nearest(psnr(guess, originals)) for guess in (mean_image, noise))
        near, far = psnr(images, originals), psnr(images, strangers)
        return cls(images, originals, strangers, near, far, (controls[0], controls[1]))

    def figures(self, rng: np.random.Generator, *, sharing: int) -> dict[str, Any]:
        """Return the numbers of a round, of which `sharing` rounds are audited."""
        count = len(self.originals)
        same = self.to_strangers[:, :count]
        nearer = self.to_originals.max(axis=1) > same.max(axis=1)
        null = np.sort(self._relabelled(rng))
        low, high, low_shared, high_shared = (
            _edge(null, q**share) for share in (1.0, 1.0 / max(sharing, 1)) for q in (_LOW, _HIGH)
        )
        return {
            "psnr": _nearest(self.to_originals),
            "strangers": _nearest(same),
            "mean_image": self.controls[0],
            "noise": self.controls[1],
            "best": float(self.to_originals.max()),
            "nearest": int(nearer.sum()),
            "sizes": (len(self.images), count, len(self.strangers)),
            "band": (low, high),
            "shared": (low_shared, high_shared),
        }

    def _relabelled(self, rng: np.random.Generator) -> Floats:
        """Return the mean PSNR for random choices of the originals, (choices,).

        If the reconstructions do not depend on which images were in the round, the real choice is
        exchangeable with these. Choices among strangers alone would be too far away: the nearest of
        n images is near, and it is an original with probability n / all.
        """
        every = np.concatenate([self.to_originals, self.to_strangers], axis=1)
        count = self.to_originals.shape[1]
        chosen = (rng.permutation(every.shape[1])[:count] for _ in range(_CHOICES))
        return np.array([_nearest(every[:, which]) for which in chosen])

    def rows(self) -> tuple[AnyFloats, AnyFloats, AnyFloats]:
        """Return each reconstruction, its nearest original and its nearest stranger."""
        count = len(self.originals)
        near = self.originals[self.to_originals.argmax(axis=1)]
        return self.images, near, self.strangers[self.to_strangers[:, :count].argmax(axis=1)]


def _some(images: AnyFloats, most: int, rng: np.random.Generator) -> AnyFloats:
    """Return at most `most` images, in random order."""
    chosen: Indices = rng.permutation(len(images))[:most]
    return np.asarray(images[chosen])


def _nearest(each: Floats) -> float:
    """Return the mean over images of the largest PSNR with any other; (images, others)."""
    return float(each.max(axis=1).mean())


def _edge(null: Floats, chance: float) -> float:
    """Return the value that a further draw does not exceed with the given probability.

    Args:
        null: Values in rising order.
        chance: In (0, 1).

    >>> _edge(np.arange(1.0, 20.0), 0.95), _edge(np.arange(1.0, 20.0), 0.05)
    (19.0, 1.0)
    """
    place = math.ceil(round(chance * (len(null) + 1), 9))
    return float(null[min(max(place, 1), len(null)) - 1])


def _shown(images: AnyFloats) -> AnyFloats:
    """Return images as a picture takes them: a single line of numbers is one pixel high."""
    flat = images[:, None] if images.ndim == 2 else images
    is_colour = flat.ndim == 4 and flat.shape[1] in (1, 3)
    return flat if flat.ndim == 3 or is_colour else flat.reshape(len(flat), -1, flat.shape[-1])
