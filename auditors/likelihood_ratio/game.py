"""Plays the game of the likelihood-ratio audit: fit, choose, test, each on draws of its own.

It knows nothing of Flower or of rounds: a sampler, a model and the names of the clients go in,
and the scores of the trials come out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import AnyFloats, Vector, Watch
from leakmeter.auditors._validate import within
from leakmeter.auditors.auditor import DivergedError
from leakmeter.auditors.likelihood_ratio.challenge import Challenge, between, challenge
from leakmeter.auditors.likelihood_ratio.span import Span, SpanTracker
from leakmeter.auditors.likelihood_ratio.sum_law import (
    DenseLaw,
    DualLaw,
    NothingMovesError,
    SumLaw,
)
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampler import ROUNDING, Stream, UpdateSampler, finite

# Up to this dimension the span of the others' updates is sampled, if the fit had so many updates
# of each client: fewer do not show what a sum never reaches.
_MOST_SPANNED, _PER_CLIENT = 1000, 60
# Draws without an exception below which nothing is said about what never happens. By the rule of
# three, 60 of them leave at most 3/60 = 5 % with 95 % confidence.
ENOUGH_DRAWS: Final = 60
# Rounding of the secure sum may hide a difference of fewer of its standard deviations.
_ROUNDED = 10.0


@dataclass(frozen=True)
class Effort:
    """How many draws go into each stage.

    Attributes:
        fit: Single updates behind the model of the others' sum.
        candidates: Updates of the target among which the worst pair is chosen.
        pilot: Draws of the sum that choose the form of the test and fix its threshold.
        trials: Draws of the sum on which the test is judged.
    """

    fit: int = 2000
    candidates: int = 200
    pilot: int = 200
    trials: int = 1000

    def __post_init__(self) -> None:
        for name, lowest in (("fit", 10), ("candidates", 2), ("pilot", 10), ("trials", 20)):
            within(name, getattr(self, name), lowest=lowest)


@dataclass(frozen=True)
class Beyond:
    """A part of the pair's difference that no sampled update of the others reached.

    Attributes:
        share: Its length relative to the difference.
        reached: Trials in which the others' sum moved along it nevertheless.
    """

    share: float
    reached: int


@dataclass(frozen=True)
class Duel:
    """A played game: what the test was, and how it did.

    Attributes:
        scores: Of the sum without the target, one for each trial; either candidate adds its own.
        shift: How much more the first candidate adds than the second.
        middle: Threshold half way between the two worlds, fixed on the pilot draws: there the
            log-likelihood ratio is 0.
        modelled: Separation according to the fit, in standard deviations.
        piloted: The same on the pilot draws, which have chosen the form.
        span: The pair's difference against the span of the others' updates; None where that was
            not computed, or noise covers everything.
        beyond: The part of the difference outside that span; None where there is none.
        facts: About the fit: form, samples, dimension, shrinkage, condition number.
        pair: Which of the candidates.
        real: Pilot mean and deviation along the test for the update that was really sent.
    """

    scores: Vector
    shift: float
    middle: float
    modelled: float
    piloted: float
    span: Span | None
    beyond: Beyond | None
    facts: dict[str, Any]
    pair: tuple[int, int]
    real: tuple[Challenge, float, float] | None = None

    @property
    def separation(self) -> float:
        """Distance of the two worlds in standard deviations of the trials."""
        return _ratio(self.shift, float(self.scores.std(ddof=1)))


class ConstantSumError(ValueError):
    """No update of the fit varied.

    Attributes:
        draws: Further draws of all updates of the others.
        moved: How many of these differed from the first.
    """

    def __init__(self, draws: int, moved: int) -> None:
        super().__init__(
            f"no update of the fit varied; {moved} of {draws} further draws of the other clients "
            "differed"
        )
        self.draws, self.moved = draws, moved


def duel(
    sampler: UpdateSampler,
    model: Vector,
    target: int,
    others: Sequence[int],
    *,
    effort: Effort,
    stream: Stream,
    noise_std: float = 0.0,
    rounding_std: float = 0.0,
    really: Vector | None = None,
    watch: Watch | None = None,
) -> Duel:
    """Play the game once.

    Args:
        sampler: Draws updates; its game decides what each trial resamples.
        model: Global model that the clients start from.
        target: Client whose two candidate updates are to be distinguished.
        others: Clients whose sum hides it.
        effort: How many draws go into each stage.
        stream: Names the randomness.
        noise_std: Noise of the mechanism on each coordinate of the sum.
        rounding_std: The same of its rounding, which is part of the trials but not of the model,
            since it is small.
        really: The target's true contribution, for a test of it against a candidate.
        watch: Told of the progress.

    Raises:
        ConstantSumError: The others' updates did not vary in the fit, and the sum has no noise.
    """
    if not others or target in others:
        raise ValueError(f"others must be clients beside the target {target}, got {list(others)}")
    watch = watch or _unwatched
    sums = _Sums(sampler, model, others, watch)
    added = math.hypot(noise_std, rounding_std)
    watch("fit", 0.0)
    try:
        laws = sums.laws(effort.fit, (*stream, "fit"), noise_std)
    except NothingMovesError:
        # The fit has few draws of each client: that they are equal shows nothing yet.
        draws = max(effort.trials, ENOUGH_DRAWS)
        raise ConstantSumError(draws, sums.moved(draws, (*stream, "test"))) from None
    watch("candidates", 0.0)
    drawn = (*stream, "candidates")
    rows = np.concatenate(list(finite(sampler.sample(model, [target], effort.candidates, drawn))))[
        :, 0
    ]
    tests = [challenge(rows, law) for law in laws]
    sums.sampler = sampler.apart(target, drawn, sorted({i for t in tests for i in t.pair}))
    pilot = sums.along(tests, effort.pilot, (*stream, "pilot"), added)
    spread = pilot.std(axis=0, ddof=1)
    reached = [_ratio(test.shift, std) for test, std in zip(tests, spread, strict=True)]
    best = int(np.argmax(reached))
    test = tests[best]
    real = None
    if really is not None and (beside := sampler.beside(target)) is not None:
        # Where the game holds records out, the others hold none of the target's real ones here.
        sums.sampler = beside
        truth = _against(really, rows, laws[0])
        scores = sums.along([truth], effort.pilot, (*stream, "verdict"), added)[:, 0]
        real = (truth, float(scores.mean()), float(scores.std(ddof=1)))
    # Both worlds share the distribution of the others: it depends on neither candidate, or it
    # leaves out the records of both.
    sums.sampler = sampler.apart(target, drawn, sorted(test.pair))
    span, part = sums.span(test, (*stream, "span")) if noise_std == 0 else (None, None)
    if part is not None and np.linalg.norm(part) <= _ROUNDED * rounding_std:
        part = None
    scores, along_part = sums.trials(test, part, effort.trials, (*stream, "test"), added)
    return Duel(
        scores=scores,
        shift=test.shift,
        middle=float(pilot[:, best].mean()) + test.shift / 2,
        modelled=test.modelled,
        piloted=reached[best],
        span=span,
        beyond=None if part is None or span is None else _beyond(part, span, along_part),
        facts=_facts(test.law, len(others)),
        pair=test.pair,
        real=real,
    )


class _Sums:
    """Draws of the others' sum, as models of its distribution or as scores along directions."""

    def __init__(
        self, sampler: UpdateSampler, model: Vector, others: Sequence[int], watch: Watch
    ) -> None:
        self.sampler = sampler
        self._model, self._others, self._watch = model, others, watch
        self._rows: NDArray[np.float32] | None = None  # samples that span all there is

    def laws(self, updates: int, stream: Stream, noise_std: float) -> list[SumLaw]:
        """Return models of the sum, in the forms that so many sampled updates allow."""
        free = self.sampler.free
        dim = self._model.size if free is None else free.size
        each = max(-(-updates // len(self._others)), 3)  # so that every client has its turns
        if updates >= 2 * dim:
            draws = each if self.sampler.game == "rerun" else max(updates, 3 * len(self._others))
            moments = self.sampler.moments(self._model, self._others, draws, stream)
            if not np.isfinite(moments.mean).all():
                raise DivergedError
            return [DenseLaw.fit(moments, free=free, noise_std=noise_std)]
        rows = self._spread(each, stream)
        freedom = len(rows) - len(self._others)
        law = DualLaw.fit(rows, free=free, noise_std=noise_std, freedom=freedom)
        self._rows = rows if law.is_saturated else None
        return [law, law.leading(len(rows) // 4)]

    def moved(self, draws: int, stream: Stream) -> int:
        """Return in how many draws some client's update differs from that of the first draw."""
        moved, first = 0, None
        chunks = self.sampler.sample(self._model, self._others, draws, stream)
        for chunk in self._watched(str(stream[-1]), chunks, draws):
            first = chunk[0] if first is None else first
            far = np.abs(chunk - first) > self._rounding(first)  # (draws, clients, dim)
            moved += int(far.any(axis=(1, 2)).sum())
        return moved

    def _rounding(self, updates: AnyFloats) -> AnyFloats:
        """Return how much equal updates, (..., dim), may seem to differ.

        An update is a difference of models, so its error is relative to the model. A small
        coordinate is a sum of larger terms, so it is also relative to the whole update.
        """
        size = np.sqrt(np.mean(np.square(updates), axis=-1, keepdims=True))
        return ROUNDING * np.maximum(np.maximum(np.abs(updates), size), np.abs(self._model))

    def _spread(self, draws: int, stream: Stream) -> NDArray[np.float32]:
        """Return rows whose covariance is that of the sum, from single updates.

        Each client's draws are centred by their own mean. Clients that partition one data set are
        dependent; one factor for all coordinates models that.
        """
        chunks = self.sampler.sample(self._model, self._others, draws, stream)
        watched = self._watched(str(stream[-1]), chunks, draws)
        drawn = np.concatenate(list(watched), dtype=np.float32)
        mean = drawn.mean(axis=0, dtype=np.float64)
        drawn -= mean.astype(np.float32)
        for client, centre in enumerate(mean):  # what rounding has left of a constant is none
            still = np.abs(drawn[:, client]).max(axis=0) <= self._rounding(centre)
            drawn[:, client, still] = 0.0
        factor = 1.0
        if self.sampler.game == "partition":
            independent = np.einsum("ijk,ijk->k", drawn, drawn, dtype=np.float64)
            moves = independent > 0
            together = (drawn.sum(axis=1, dtype=np.float64) ** 2).sum(axis=0)
            factor = float((together[moves] / independent[moves]).mean()) if moves.any() else 1.0
        rows = drawn.reshape(-1, drawn.shape[-1])
        rows *= np.float32(math.sqrt(factor * (len(rows) - 1) / (draws - 1)))
        return rows

    def span(self, test: Challenge, stream: Stream) -> tuple[Span, Vector | None]:
        """Return how a pair's difference relates to the others' span, and its part beyond it.

        The part, (dim,), is None where the samples show none. Without samples that span everything
        there is, only coordinates that never move count. Large models would take too many samples
        to say more.
        """
        gap, rows = test.first - test.second, self._rows
        dim, enough = test.law.kept.size, _PER_CLIENT * len(self._others)
        if isinstance(test.law, DenseLaw) and dim <= _MOST_SPANNED and test.law.samples >= enough:
            rows = self._spread(max(3 + 2 * dim // len(self._others), _PER_CLIENT + 1), stream)
        if rows is not None:
            tracker = SpanTracker(gap.size, affine=False)
            tracker.add(rows)
            found = tracker.outside(gap)
            return found, tracker.beyond(gap) if found.separated else None
        free = np.arange(gap.size) if self.sampler.free is None else self.sampler.free
        idle = np.setdiff1d(free, test.law.kept)
        part = np.zeros_like(gap)
        part[idle] = gap[idle]
        length, left = float(np.linalg.norm(gap)), float(np.linalg.norm(part))
        found = Span(
            dim=free.size,
            samples=test.law.samples,
            rank=test.law.kept.size,
            complete=False,
            norm=length,
            residual_norm=left,
            idle_columns=idle.size,
            idle_norm=left,
            noise=1e-5 * length,
        )
        return found, part if found.separated else None

    def along(
        self, tests: Sequence[Challenge], draws: int, stream: Stream, noise_std: float
    ) -> NDArray[np.float64]:
        """Return the sum's component along each test, with noise, (draws, tests)."""
        project = np.stack([test.direction for test in tests], axis=1)
        return _noised(self._projected(project, draws, stream), project, stream, noise_std)

    def trials(
        self, test: Challenge, part: Vector | None, draws: int, stream: Stream, noise_std: float
    ) -> tuple[Vector, Vector]:
        """Return the scores of the test with noise, (draws,), and the component along a part.

        The component is without noise. It is empty where there is no part.
        """
        project = test.direction[:, None]
        asked = project if part is None else np.stack([test.direction, _unit(part)], axis=1)
        found = self._projected(asked, draws, stream)
        return _noised(found[:, :1], project, stream, noise_std)[:, 0], found[:, 1:].ravel()

    def _projected(
        self, project: NDArray[np.float64], draws: int, stream: Stream
    ) -> NDArray[np.float64]:
        """Return draws of the sum times a matrix (dim, k), (draws, k)."""
        chunks = self.sampler.sums(self._model, self._others, draws, stream, project=project)
        found = np.concatenate(list(self._watched(str(stream[-1]), chunks, draws)))
        return np.asarray(found, dtype=np.float64)

    def _watched(self, stage: str, chunks: Iterator[AnyFloats], draws: int) -> Iterator[AnyFloats]:
        done = 0
        for chunk in finite(chunks):
            yield chunk
            done += len(chunk)
            self._watch(stage, done / draws)


def _noised(
    scores: NDArray[np.float64], project: NDArray[np.float64], stream: Stream, noise_std: float
) -> NDArray[np.float64]:
    """Return scores (draws, k) with the noise on the sum, along the columns of `project`."""
    if noise_std == 0:
        return scores
    # Noise along fixed directions is Gaussian with their inner products as covariance.
    root = np.linalg.qr(project, mode="r")
    normals = numbers(0, *stream, "noise").standard_normal((len(scores), len(root)))
    return np.asarray(scores + noise_std * normals @ root)


def _beyond(part: Vector, span: Span, along: Vector) -> Beyond:
    """Return how long a part of the difference is, and how many sums moved along it."""
    moved = np.abs(along - np.median(along)) > span.noise
    return Beyond(float(np.linalg.norm(part)) / span.norm, int(moved.sum()))


def _unit(vector: Vector) -> Vector:
    return vector / np.linalg.norm(vector)


def _against(really: Vector, rows: AnyFloats, law: SumLaw) -> Challenge:
    """Return the test of the true update against the candidate farthest from it."""
    gram = law.gram(np.concatenate([really[None].astype(rows.dtype), rows]) - rows.mean(axis=0))
    distances = np.diagonal(gram)[1:] - 2 * gram[0, 1:]
    index = int(distances.argmax())
    return between(really, rows[index], law, (-1, index))


def _ratio(shift: float, std: float) -> float:
    if shift <= 0:
        return 0.0
    return shift / std if std > 0 else math.inf


def _facts(law: SumLaw, num_others: int) -> dict[str, Any]:
    """Return how good the model can be."""
    return {
        "form": law.form,
        "samples": law.samples,
        "dimension": int(law.kept.size),
        "dimension_per_sample": law.kept.size / law.samples,
        "shrinkage": law.shrinkage,
        "condition_number": law.condition,
        "others": num_others,
    }


def _unwatched(stage: str, share: float) -> None:
    """Tell nobody."""
