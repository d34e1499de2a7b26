"""Plays the game of the likelihood-ratio audit: fit, choose, test, each on draws of its own.

It knows nothing of Flower or of rounds: a sampler, a model and the names of the clients go in,
and the scores of the trials come out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from leakmeter.auditors._types import Floats, Vector
from leakmeter.auditors._validate import within
from leakmeter.auditors.audited_round import AuditedRound
from leakmeter.auditors.likelihood_ratio.challenge import Candidates, Challenge, between, farthest
from leakmeter.auditors.likelihood_ratio.span import Span
from leakmeter.auditors.likelihood_ratio.sum_law import DenseLaw, NothingMovesError, SumLaw
from leakmeter.auditors.likelihood_ratio.sums import (
    Sums,
    fit_draws,
    is_dense,
    pilot_draws,
    span_draws,
)
from leakmeter.auditors.sampler import HOLDING_OUT, Stream, UpdateSampler, finite
from leakmeter.auditors.sampling.row_store import RowStore, file_bytes

# Draws without an exception below which nothing is said about what never happens. By the rule of
# three, 60 of them leave at most 3/60 = 5 % with 95 % confidence.
ENOUGH_DRAWS: Final = 60
# Rounding of the secure sum may hide a difference of fewer of its standard deviations.
_ROUNDED = 10.0
_DECISIVE: Final = 1e3  # a separation in standard deviations that leaves no doubt


@dataclass(frozen=True)
class Effort:
    """How many draws go into each stage.

    Attributes:
        fit: Single updates that model the aggregate of the other clients.
        candidates: Updates of the target among which the worst pair is chosen.
        pilot: Draws of the sum that choose the form of the test and fix its threshold. Where
            clients are independent, a few draws of each of them tell as much.
        trials: Draws of the sum on which the test is judged.
        models: Further initial models, (dim,) each, at which the first audited round's test is
            repeated, as section 5 of the paper repeats it. They show how far the bound depends on
            the initial model. The paper averages over them; a mean of lower bounds bounds nothing.
    """

    fit: int = 2000
    candidates: int = 200
    pilot: int = 200
    trials: int = 1000
    models: tuple[Vector, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, lowest in (("fit", 10), ("candidates", 2), ("pilot", 10), ("trials", 20)):
            within(name, getattr(self, name), lowest=lowest)

    def updates(self, others: int, dim: int) -> int:
        """Return how many updates a game samples, in the game "rerun".

        Args:
            others: Clients other than the target.
            dim: Coordinates of an update.
        """
        each = fit_draws(self.fit, others)
        draws = each + pilot_draws(self.pilot, others) + self.trials
        if is_dense(self.fit, dim):
            draws += span_draws(dim, others * (each - 1) + 1, others)
        return self.candidates + others * draws

    def file_bytes(self, others: int, dim: int) -> int:
        """Return how large the temporary files of a game are."""
        counts = [self.candidates, self.candidates + 1]
        if not is_dense(self.fit, dim):
            counts.append(others * fit_draws(self.fit, others))
        return sum(file_bytes(count, dim) for count in counts)


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

    def ratios(self) -> tuple[Vector, Vector]:
        """Return log-likelihood ratios of all trials in both worlds, as the pilot models them.

        The pilot fixed threshold and scale, so both are fixed before any trial. The shift must be
        above 0.
        """
        # Gaussians `piloted` standard deviations apart. Beyond the cap every trial is decided.
        scale = min(self.piloted, _DECISIVE) ** 2 / self.shift
        outside = scale * (self.scores - self.middle)
        return outside + scale * self.shift, outside


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


def duel(audited: AuditedRound, *, effort: Effort, stream: Stream) -> Duel:
    """Play the game of a round once.

    The mechanism's noise and rounding are part of the trials. The model of the others' sum has the
    noise alone: rounding is small.

    Args:
        audited: The round, with the target whose two candidate updates are to be distinguished.
            Where its true contribution is known, it is tested against a candidate too.
        effort: How many draws go into each stage.
        stream: Names the randomness.

    Raises:
        ConstantSumError: The others' updates did not vary in the fit, and the sum has no noise.
    """
    sampler, model, target, others = (
        audited.sampler,
        audited.model,
        audited.target,
        audited.others,
    )
    if target is None or not others:
        raise ValueError(f"others must be clients other than the target {target}, got {others}")
    watch, noise_std, added = audited.watch, audited.noise_std, audited.seen_std
    really = audited.contribution(target)
    sums = Sums(sampler, model, others, watch)
    watch("fit", 0.0)
    try:
        laws = sums.laws(effort.fit, (*stream, "fit"), noise_std)
    except NothingMovesError:
        # The fit has few draws of each client: that they are equal shows nothing yet.
        draws = max(effort.trials, ENOUGH_DRAWS)
        raise ConstantSumError(draws, sums.moved(draws, (*stream, "test"))) from None
    watch("candidates", 0.0)
    drawn = (*stream, "candidates")
    rows = RowStore(effort.candidates, model.size)
    for row in finite(sampler.updates(model, [target], effort.candidates, drawn)):
        rows.add(row)
    candidates = Candidates.of(rows, laws)
    tests = [candidates.worst_pair(index) for index in range(len(laws))]
    sums.sampler = sampler.excluding_drawn(
        target, drawn, sorted({i for t in tests for i in t.pair})
    )
    truth = None if really is None else candidates.against(really)
    holds_out = sampler.game in HOLDING_OUT
    # As many columns with the truth as without it: on their number depends the order in which a
    # product adds, and a replay, which has no truth, finds the same to the last digit.
    asked = tests if holds_out else [*tests, truth or tests[0]]
    pilot = sums.pilot(asked, effort.pilot, (*stream, "pilot"), added)
    reached = [_ratio(t.shift, std) for t, (_, std) in zip(tests, pilot, strict=False)]
    best = int(np.argmax(reached))
    test = tests[best]
    real = None
    if truth is not None and not holds_out:
        real = (truth, *pilot[-1])
    elif truth is not None and (beside := sampler.excluding_real(target)) is not None:
        sums.sampler = beside  # the others hold none of the target's real records here
        real = (truth, *sums.pilot([truth], effort.pilot, (*stream, "verdict"), added)[0])
    # Both worlds share the distribution of the others: it depends on neither candidate, or it
    # leaves out the records of both.
    sums.sampler = sampler.excluding_drawn(target, drawn, sorted(test.pair))
    span, part = None, None
    if noise_std == 0:
        span, part = sums.span(test, _gap(rows, test.pair), (*stream, "span"))
    if part is not None and np.linalg.norm(part) <= _ROUNDED * audited.rounding_std:
        part = None
    scores, along_part = sums.trials(test, part, effort.trials, (*stream, "test"), added)
    return Duel(
        scores=scores,
        shift=test.shift,
        middle=pilot[best][0] + test.shift / 2,
        modelled=test.modelled,
        piloted=reached[best],
        span=span,
        beyond=None if part is None or span is None else _beyond(part, span, along_part),
        facts=_facts(test.law, len(others)),
        pair=test.pair,
        real=real,
    )


def challenges(
    sampler: UpdateSampler,
    models: Floats,
    target: int,
    others: Sequence[int],
    *,
    effort: Effort,
    stream: Stream,
) -> list[Challenge]:
    """Return the tests of a duel at several initial models, between one pair of candidates.

    The models share all draws, and the pair is the one farthest apart on average over them, so that
    the trials can serve all models at once. The sum has no noise, and the fit needs as many draws
    as a covariance matrix does.

    Args:
        sampler: Draws updates.
        models: The initial models, (models, dim).
        target: Client whose two candidate updates are to be distinguished.
        others: Clients whose sum hides it.
        effort: How many draws go into the fit and the candidates.
        stream: Names the randomness, as in `duel`.
    """
    drawn = (*stream, "candidates")
    rows, laws = [], []
    gram = np.zeros((effort.candidates, effort.candidates))
    fits = sampler.moments_each(models, others, effort.fit, (*stream, "fit"))
    for model, moments in zip(models, fits, strict=True):
        sample = finite(sampler.sample(model, [target], effort.candidates, drawn))
        rows.append(np.concatenate(list(sample))[:, 0])  # (candidates, dim)
        laws.append(DenseLaw.fit(moments, free=sampler.free, overwrite=True))
        gram += laws[-1].gram(rows[-1], rows[-1].mean(axis=0))
    first, second = farthest(gram)
    return [
        between(own[first], own[second], law, (first, second))
        for own, law in zip(rows, laws, strict=True)
    ]


def _beyond(part: Vector, span: Span, along: Vector) -> Beyond:
    """Return how long a part of the difference is, and how many sums moved along it."""
    moved = np.abs(along - np.median(along)) > span.noise
    return Beyond(float(np.linalg.norm(part)) / span.norm, int(moved.sum()))


def _gap(rows: RowStore, pair: tuple[int, int]) -> Vector:
    """Return the difference of two candidates, (dim,)."""
    first, second = (rows.row(index).astype(np.float64) for index in pair)
    return np.asarray(first - second)


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
