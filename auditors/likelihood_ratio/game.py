"""The game of the likelihood-ratio audit: fit, choose, test, each on draws of its own.

Ngo, Östman, Durisi, Graell i Amat (2024), Secure Aggregation is Not Private Against Membership
Inference Attacks, arXiv:2403.17775, eq. 10 and 11: for a Gaussian sum of the others the most
distinguishable pair is the one that is farthest apart in units of their covariance, and the
log-likelihood ratio is linear in what the server sees. So a client enters a trial through a
single number, and a trial costs no more than its scalar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from leakmeter.auditors.audited_round import AuditedRound, Trials
from leakmeter.auditors.bounds.gaussian import anderson_darling
from leakmeter.auditors.likelihood_ratio.others_sum import (
    OthersSum,
    fit_draws,
    is_dense,
    pilot_draws,
    span_draws,
)
from leakmeter.auditors.likelihood_ratio.span import Span
from leakmeter.auditors.likelihood_ratio.sum_distribution import (
    NothingMovesError,
    SumDistribution,
    grams,
)
from leakmeter.auditors.sampling.sampler import HOLDING_OUT, RowStore, Stream, file_bytes, finite
from leakmeter.auditors.values import AnyFloats, Floats, Vector, within

# Draws without an exception below which nothing is said about what never happens. By the rule of
# three, 60 of them leave at most 3/60 = 5 % with 95 % confidence.
ENOUGH_DRAWS: Final = 60
# Rounding of the secure sum may hide a difference of fewer of its standard deviations.
_ROUNDED = 10.0
_DECISIVE: Final = 1e3  # a separation in standard deviations that leaves no doubt


@dataclass(frozen=True)
class SampleBudget:
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
class Challenge:
    """A pair of candidates and the direction that distinguishes them best.

    Attributes:
        pair: Which of the candidates; a large score favours the first.
        direction: Σ⁻¹(first - second) over the separation, (dim,): the model's scores have unit
            variance.
        shift: How far the first candidate's score is above the second's.
        total: Sum of the two candidates' scores.
        modelled: Separation of the pair in standard deviations, as the model of the fit has it.
        distribution: That model.
    """

    pair: tuple[int, int]
    direction: Vector
    shift: float
    total: float
    modelled: float
    distribution: SumDistribution


@dataclass(frozen=True)
class Candidates:
    """Candidates and their inner products in each model of one fit.

    Attributes:
        rows: The candidates, (m, dim).
        centre: Their mean, (dim,).
        fits: The models.
        grams: Inner products of the candidates around their mean, (m, m), one for each model.
    """

    rows: RowStore
    centre: AnyFloats
    fits: Sequence[SumDistribution]
    grams: Sequence[Floats]

    @classmethod
    def of(cls, candidates: AnyFloats | RowStore, fits: Sequence[SumDistribution]) -> Candidates:
        """Return the candidates as the models see them."""
        if len(candidates) < 2:
            raise ValueError(f"candidates must be at least 2, got {len(candidates)}")
        rows = RowStore.of(candidates)
        # Around their own mean the products are small, and so is what cancels in the distances.
        centre = rows.mean()
        return cls(rows, centre, fits, grams(fits, rows, centre))

    def worst_pair(self, index: int) -> Challenge:
        """Return the test of the pair that a model sets farthest apart."""
        first, second = farthest(self.grams[index])
        pair = (first, second)
        return between(self.rows.row(first), self.rows.row(second), self.fits[index], pair)

    def gap(self, pair: tuple[int, int]) -> Vector:
        """Return the difference of two candidates, (dim,)."""
        first, second = (self.rows.row(index).astype(np.float64) for index in pair)
        return np.asarray(first - second)

    def against(self, update: Vector) -> Challenge:
        """Return the test of an update against the candidate farthest from it in the first model.

        |x - c|² is |c|² - 2 x·c and what all candidates share, and Σ⁻¹x is solved for once.
        """
        toward = self.fits[0].solve(update - self.centre)
        # (m,): (c - centre)ᵀ Σ⁻¹ (x - centre) for each candidate c.
        products = self.rows.times(toward, self.centre)
        index = int((np.diagonal(self.grams[0]) - 2 * products).argmax())
        return between(update, self.rows.row(index), self.fits[0], (-1, index))


def challenge(candidates: AnyFloats | RowStore, fit: SumDistribution) -> Challenge:
    """Return the test of the pair of candidates, (m, dim), that a model sets farthest apart."""
    return Candidates.of(candidates, [fit]).worst_pair(0)


def between(
    first: AnyFloats, second: AnyFloats, fit: SumDistribution, pair: tuple[int, int] = (0, 1)
) -> Challenge:
    """Return the test between two given updates."""
    x, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    gap = x - other
    direction = fit.solve(gap)  # Σ⁻¹(x - other), (dim,)
    # Mahalanobis distance: √(gapᵀ Σ⁻¹ gap). Rounding can make a 0 negative.
    # Equal candidates, or equal in all that the model knows of: nothing to distinguish.
    separation = math.sqrt(max(float(direction @ gap), 0.0))
    direction = direction / separation if separation > 0 else np.zeros_like(direction)
    shift, total = float(direction @ gap), float(direction @ (x + other))
    return Challenge(pair, direction, shift, total, separation, fit)


def farthest(gram: Floats) -> tuple[int, int]:
    """Return the two rows farthest apart, from their inner products; the first pair if several.

    >>> farthest(np.array([[0.0, 0.0, 0.0], [0.0, 1.0, -2.0], [0.0, -2.0, 4.0]]))
    (1, 2)
    """
    lengths = np.diagonal(gram)
    # Polarisation: |a - b|² = |a|² + |b|² - 2 a·b, for all pairs at once, (m, m).
    squares = lengths[:, None] + lengths[None, :] - 2 * gram
    np.fill_diagonal(squares, -np.inf)
    first, second = np.unravel_index(int(squares.argmax()), squares.shape)
    return int(first), int(second)


@dataclass(frozen=True)
class PlayedGame:
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
        beyond: Length of the part of the difference that no sampled update of the others reached,
            relative to the difference; None where there is none.
        reached: Trials in which the others' sum moved along that part nevertheless.
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
    beyond: float | None
    reached: int
    facts: dict[str, Any]
    pair: tuple[int, int]
    real: tuple[Challenge, float, float] | None = None

    @property
    def trials(self) -> Trials:
        """The same trials in both worlds: the first candidate moves each score by `shift`."""
        return Trials(self.scores + self.shift, self.scores, self.middle)

    @property
    def separation(self) -> float:
        """Distance of the two worlds in standard deviations of the trials."""
        return _ratio(self.shift, float(self.scores.std(ddof=1)))

    @cached_property
    def normality(self) -> tuple[float, float] | None:
        """Statistic and p-value of a test of normality; None for scores that do not vary."""
        return anderson_darling(self.scores) if np.ptp(self.scores) > 0 else None

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


def play_game(audited: AuditedRound, *, budget: SampleBudget, stream: Stream) -> PlayedGame:
    """Play the game of a round once.

    The mechanism's noise and rounding are part of the trials. The model of the others' sum has the
    noise alone: rounding is small.

    Args:
        audited: The round, with the target whose two candidate updates are to be distinguished.
            Where its true contribution is known, it is tested against a candidate too.
        budget: How many draws go into each stage.
        stream: Names the randomness.

    Raises:
        ConstantSumError: The others' updates did not vary in the fit, and the sum has no noise.
    """
    sampler, target, others = audited.sampler, audited.target, audited.others
    if target is None or not others:
        raise ValueError(f"others must be clients other than the target {target}, got {others}")
    sums, added = OthersSum(sampler, audited.model, others, audited.watch), audited.seen_std
    fits = _fit(sums, budget, stream, audited.noise_std)
    drawn = (*stream, "candidates")
    candidates = Candidates.of(_candidates(audited, target, budget.candidates, drawn), fits)
    tests = [candidates.worst_pair(index) for index in range(len(fits))]
    sums.sampler = sampler.excluding_drawn(
        target, drawn, sorted({i for t in tests for i in t.pair})
    )
    really, holds_out = audited.contribution(target), sampler.game in HOLDING_OUT
    truth = None if really is None else candidates.against(really)
    # As many columns with the truth as without it: on their number depends the order in which a
    # product adds, and a replay, which has no truth, finds the same to the last digit.
    asked = tests if holds_out else [*tests, truth or tests[0]]
    pilot = sums.pilot(_directions(asked), budget.pilot, (*stream, "pilot"), added)
    piloted = [_ratio(t.shift, std) for t, (_, std) in zip(tests, pilot, strict=False)]
    best = int(np.argmax(piloted))
    test, real = tests[best], None
    if truth is not None and not holds_out:
        real = (truth, *pilot[-1])
    elif truth is not None and (without := sampler.excluding_real(target)) is not None:
        sums.sampler = without  # the others hold none of the target's real records here
        names = (*stream, "verdict")
        real = (truth, *sums.pilot(_directions([truth]), budget.pilot, names, added)[0])
    # Both worlds share the distribution of the others: it depends on neither candidate, or it
    # leaves out the records of both.
    sums.sampler = sampler.excluding_drawn(target, drawn, sorted(test.pair))
    span, part = None, None
    if audited.noise_std == 0:
        span, part = sums.span(test.distribution, candidates.gap(test.pair), (*stream, "span"))
    if part is not None and np.linalg.norm(part) <= _ROUNDED * audited.rounding_std:
        part = None
    scores, along = sums.trials(test.direction, part, budget.trials, (*stream, "test"), added)
    beyond, reached = None, 0
    if part is not None and span is not None:
        beyond = float(np.linalg.norm(part)) / span.norm
        reached = int((np.abs(along - np.median(along)) > span.noise).sum())
    return PlayedGame(
        scores=scores,
        shift=test.shift,
        middle=pilot[best][0] + test.shift / 2,
        modelled=test.modelled,
        piloted=piloted[best],
        span=span,
        beyond=beyond,
        reached=reached,
        facts=test.distribution.facts() | {"others": len(others)},
        pair=test.pair,
        real=real,
    )


def _fit(
    sums: OthersSum, budget: SampleBudget, stream: Stream, noise_std: float
) -> list[SumDistribution]:
    """Return models of the others' sum, or raise how often updates that were equal differ."""
    sums.watch("fit", 0.0)
    try:
        return sums.gaussians(budget.fit, (*stream, "fit"), noise_std)
    except NothingMovesError:
        # The fit has few draws of each client: that they are equal shows nothing yet.
        draws = max(budget.trials, ENOUGH_DRAWS)
        raise ConstantSumError(draws, sums.moved(draws, (*stream, "test"))) from None


def _candidates(audited: AuditedRound, target: int, count: int, stream: Stream) -> RowStore:
    """Return this many updates of the target."""
    audited.watch("candidates", 0.0)
    rows = RowStore(count, audited.model.size)
    for row in finite(audited.sampler.updates(audited.model, [target], count, stream)):
        rows.add(row)
    return rows


def _directions(tests: Sequence[Challenge]) -> Floats:
    """Return the directions of some tests as columns, (dim, tests)."""
    return np.stack([test.direction for test in tests], axis=1)


def _ratio(shift: float, std: float) -> float:
    if shift <= 0:
        return 0.0
    return shift / std if std > 0 else math.inf
