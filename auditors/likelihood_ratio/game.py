"""The game of the likelihood-ratio audit: fit, choose, test, each on draws of its own.

Ngo, Östman, Durisi, Graell i Amat (2024), Secure Aggregation is Not Private Against Membership
Inference Attacks, arXiv:2403.17775, eq. 10 and 11: for a Gaussian sum of the others the most
distinguishable pair is the one that is farthest apart in units of their covariance, and the
log-likelihood ratio is linear in what the server sees. So a client enters a trial through a
single number, and a trial costs no more than its scalar.

`OthersSum` draws the sum of the other clients: models of its distribution, and scores along
directions. Updates arrive one at a time. Those that are looked at again are in a `RowStore`, by
blocks of columns; the trials keep nothing but their scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import AuditedRound, Trials
from leakmeter.auditors.auditor import DivergedError
from leakmeter.auditors.bounds.gaussian import anderson_darling
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.likelihood_ratio.sum_distribution import (
    DenseGaussian,
    DualGaussian,
    NothingMovesError,
    SampleSpan,
    Span,
    SumDistribution,
    grams,
)
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampling.sampler import (
    HOLDING_OUT,
    ROUNDING,
    RowStore,
    Stream,
    UpdateSampler,
    file_bytes,
    finite,
)
from leakmeter.auditors.values import AnyFloats, Floats, Vector, Watch, within

# Up to this dimension the span of the others' updates is sampled, if the fit had this many updates
# of each client: fewer do not show what a sum never reaches.
_MAX_SPANNED, _PER_CLIENT = 1000, 60


def is_dense(updates: int, dim: int) -> bool:
    """Whether this many updates of the fit are enough for a covariance matrix."""
    return updates >= 2 * dim


def fit_draws(updates: int, others: int) -> int:
    """Return draws of each of the others for this many updates in all, equally many of each."""
    return max(-(-updates // others), 3)


def span_draws(dim: int, samples: int, others: int) -> int:
    """Return draws of each of the others for the span of their updates; 0 if it is not sampled.

    Args:
        dim: Coordinates that a dense model covers.
        samples: Updates behind that model.
        others: How many clients.
    """
    if dim > _MAX_SPANNED or samples < _PER_CLIENT * others:
        return 0
    return max(3 + 2 * dim // others, _PER_CLIENT + 1)


def pilot_draws(sums: int, others: int) -> int:
    """Return draws of each of the others that show a variance as well as this many sums do."""
    return 1 - (1 - sums) // others


class OthersSum:
    """Draws of the others' sum.

    Args:
        sampler: Draws updates. It may be exchanged between two stages.
        model: Global model that the clients start from.
        others: Clients in the sum.
        watch: Told of the progress.
    """

    def __init__(
        self, sampler: UpdateSampler, model: Vector, others: Sequence[int], watch: Watch
    ) -> None:
        self.sampler, self.model = sampler, model
        self.others, self.watch = others, watch
        self._rows: RowStore | None = None  # samples that span all there is
        self._fitted: tuple[float, Vector] | None = None  # draws of each client, mean of the sum

    def gaussians(self, updates: int, stream: Stream, noise_std: float) -> list[SumDistribution]:
        """Return models of the sum, in the forms that this many sampled updates allow."""
        free, num_others = self.sampler.free, len(self.others)
        each = fit_draws(updates, num_others)
        if is_dense(updates, self.model.size if free is None else free.size):
            draws = each if self.sampler.game == "rerun" else max(updates, 3 * num_others)
            # Mean (dim,) and scatter (dim, dim) of the sum. In the game rerun every client has its
            # own distribution and is drawn `draws` times; otherwise clients are alike, and `draws`
            # counts single updates.
            moments = self.sampler.moments(self.model, self.others, draws, stream)
            if not np.isfinite(moments.mean).all():
                raise DivergedError
            every = draws if self.sampler.game == "rerun" else draws / num_others
            self._fitted = (every, moments.mean)
            return [DenseGaussian.fit(moments, free=free, noise_std=noise_std, overwrite=True)]
        rows = self._drawn(each, stream)
        # Mean of the sum = clients × mean over all their rows: every client has as many rows.
        self._fitted = (each, num_others * np.asarray(rows.mean(), dtype=np.float64))
        rows = self._spread(rows, each)
        # One degree of freedom per client goes into its own mean.
        count, freedom = len(rows), len(rows) - num_others
        dual = DualGaussian.fit(rows, free=free, noise_std=noise_std, freedom=freedom)
        self._rows = rows if dual.is_saturated and rows.is_in_memory else None
        return [dual, dual.leading(count // 4)]

    def moved(self, draws: int, stream: Stream) -> int:
        """Return in how many draws some client's update differs from that of the first draw."""
        firsts, moved = RowStore(len(self.others), self.model.size), set[int]()
        for index, row in enumerate(self._updates(draws, stream)):
            draw, place = divmod(index, len(self.others))
            if draw == 0:
                firsts.add(row)
            elif draw not in moved:
                first = firsts.row(place)
                size = math.sqrt(np.mean(np.square(first)))
                if (np.abs(row - first) > _rounding(first, size, self.model)).any():
                    moved.add(draw)
        return len(moved)

    def _updates(self, draws: int, stream: Stream) -> Iterator[AnyFloats]:
        """Yield the others' updates one by one, draw by draw, and tell of the progress."""
        updates = self.sampler.updates(self.model, self.others, draws, stream)
        for done, row in enumerate(finite(updates), 1):
            yield row
            if done % len(self.others) == 0:
                self.watch(str(stream[-1]), done / (draws * len(self.others)))

    def _drawn(self, draws: int, stream: Stream) -> RowStore:
        """Return the others' updates, (draws · clients, dim), draw by draw."""
        rows = RowStore(draws * len(self.others), self.model.size, np.float32)
        for row in self._updates(draws, stream):
            rows.add(row)
        return rows

    def _spread(self, rows: RowStore, draws: int) -> RowStore:
        """Return rows whose covariance is that of the sum, from single updates, which are lost.

        Each client's draws are centred by their own mean. Clients that partition one data set are
        dependent; one factor for all coordinates models that.
        """
        sizes = _mean_sizes(rows, draws)
        rows = rows.changed(partial(_demean, draws=draws, sizes=sizes, model=self.model))
        factor = _dependence(rows, draws) if self.sampler.game == "partition" else 1.0
        # With n clients and k draws each, n·k rows: a covariance over rows divides by n·k - 1,
        # while the sum of the clients' own covariances divides by k - 1. The rows are stretched by
        # the ratio.
        scale = np.float32(math.sqrt(factor * (len(rows) - 1) / (draws - 1)))
        return rows.changed(lambda _, block: np.multiply(block, scale, out=block))

    def span(self, fit: SumDistribution, gap: Vector, stream: Stream) -> tuple[Span, Vector | None]:
        """Return how the pair's difference relates to the others' span, and its part beyond it.

        The part, (dim,), is None where the samples show none. Without samples in memory that span
        everything there is, only coordinates that never move count. Large models would take too
        many samples to say more.
        """
        rows, draws = self._rows, 0
        if isinstance(fit, DenseGaussian):
            draws = span_draws(fit.kept.size, fit.samples, len(self.others))
        if draws:
            rows = self._spread(self._drawn(draws, stream), draws)
        if rows is not None:
            # Rows are centred already: their linear span is that of the deviations.
            span = SampleSpan(rows.columns(slice(0, gap.size)), affine=False)
            found = span.outside(gap)
            return found, span.beyond(gap) if found.separated else None
        return self._idle(fit, gap)

    def _idle(self, fit: SumDistribution, gap: Vector) -> tuple[Span, Vector | None]:
        """Return the same for a span of all coordinates that ever move."""
        is_idle = np.full(gap.size, self.sampler.free is None)
        if self.sampler.free is not None:
            is_idle[self.sampler.free] = True
        dim = int(is_idle.sum())
        # Left: free coordinates that no sample has moved. Along them a gap would be seen with
        # certainty.
        is_idle[fit.kept] = False
        part = np.where(is_idle, gap, 0.0)
        length, left = float(np.linalg.norm(gap)), float(np.linalg.norm(part))
        found = Span(
            dim=dim,
            samples=fit.samples,
            rank=fit.kept.size,
            complete=False,
            norm=length,
            residual_norm=left,
            idle_columns=int(is_idle.sum()),
            idle_norm=left,
            noise=1e-5 * length,
        )
        return found, part if found.separated else None

    def pilot(
        self, project: NDArray[np.float64], draws: int, stream: Stream, noise_std: float
    ) -> list[tuple[float, float]]:
        """Return mean and deviation of the sum along columns, (dim, k), with noise.

        They are as good as those of this many sums.

        Where clients are independent and draw as they did in the fit, their variances add up. Then
        a few draws of each tell as much as many sums, and the fit's draws tell of the mean too.
        """
        if self.sampler.game in HOLDING_OUT:
            sums = with_noise(self._projected(project, draws, stream), project, stream, noise_std)
            means, variances = sums.mean(axis=0), sums.var(axis=0, ddof=1)
        else:
            assert self._fitted is not None
            every, mean = self._fitted
            each = pilot_draws(draws, len(self.others))
            sample = self.sampler.sample(self.model, self.others, each, stream, project=project)
            rows = self._collected(sample, each, stream)  # (draws, clients, k)
            # (k,): the mean of a sum is the sum of the clients' means.
            own = rows.mean(axis=0).sum(axis=0)
            # Pooled with the fit's mean, weighted by draws: both estimate the same number.
            means = (every * (mean @ project) + each * own) / (every + each)
            # Noise of variance s² per coordinate has variance s²‖direction‖² along a direction.
            noise = noise_std**2 * np.square(project).sum(axis=0)
            variances = rows.var(axis=0, ddof=1).sum(axis=0) + noise
        return list(zip(means.tolist(), np.sqrt(variances).tolist(), strict=True))

    def trials(
        self, direction: Vector, part: Vector | None, draws: int, stream: Stream, noise_std: float
    ) -> tuple[Vector, Vector]:
        """Return the scores along a test with noise, (draws,), and the component along a part.

        The component is without noise. It is empty where there is no part.
        """
        project = direction[:, None]
        asked = project if part is None else np.stack([direction, _unit(part)], axis=1)
        found = self._projected(asked, draws, stream)
        # No noise on the component: whether the others ever reach a part is asked of their updates
        # alone.
        return with_noise(found[:, :1], project, stream, noise_std)[:, 0], found[:, 1:].ravel()

    def _projected(
        self, project: NDArray[np.float64], draws: int, stream: Stream
    ) -> NDArray[np.float64]:
        """Return draws of the sum times a matrix (dim, k), (draws, k)."""
        chunks = self.sampler.sums(self.model, self.others, draws, stream, project=project)
        return self._collected(chunks, draws, stream)

    def _collected(
        self, chunks: Iterator[AnyFloats], draws: int, stream: Stream
    ) -> NDArray[np.float64]:
        """Return all chunks as one array, and tell of the progress."""
        found, done = [], 0
        for chunk in finite(chunks):
            found.append(chunk)
            done += len(chunk)
            self.watch(str(stream[-1]), done / draws)
        return np.asarray(np.concatenate(found), dtype=np.float64)


def _mean_sizes(rows: RowStore, draws: int) -> Vector:
    """Return the root mean square of each client's mean update, (clients,)."""
    # Summed over blocks of columns, as a block may have only some of them.
    squares = np.zeros(len(rows) // draws)
    for _, block in rows.blocks():
        squares += [np.square(mean).sum() for mean in _means(block, draws)]
    return np.sqrt(squares / rows.shape[1])


def _means(block: AnyFloats, draws: int) -> NDArray[np.float64]:
    """Return the clients' means of some columns, (clients, columns)."""
    drawn = block.reshape(draws, -1, block.shape[1])
    return np.asarray(drawn.mean(axis=0, dtype=np.float64))


def _demean(at: slice, block: AnyFloats, *, draws: int, sizes: Vector, model: Vector) -> AnyFloats:
    """Subtract each client's mean from its draws; what rounding has left of a constant is 0."""
    means = _means(block, draws)
    drawn = block.reshape(draws, -1, block.shape[1])
    # In place, (draws, clients, columns): `drawn` is a view of `block`, which is returned.
    drawn -= means.astype(np.float32)
    for client, (centre, size) in enumerate(zip(means, sizes, strict=True)):
        still = np.abs(drawn[:, client]).max(axis=0) <= _rounding(centre, size, model[at])
        drawn[:, client, still] = 0.0
    return block


def _rounding(update: AnyFloats, size: float, model: Vector) -> AnyFloats:
    """Return how much equal updates, (columns,), may seem to differ.

    An update is a difference of models, so its error is relative to the model. A small coordinate
    is a sum of larger terms, so it is also relative to the size of the whole update.
    """
    return ROUNDING * np.maximum(np.maximum(np.abs(update), size), np.abs(model))


def _dependence(rows: RowStore, draws: int) -> float:
    """Return the variance of sums over that of independent clients, the mean over coordinates."""
    total, count = 0.0, 0
    for _, block in rows.blocks():
        drawn = block.reshape(draws, -1, block.shape[1])
        # Σ over draws of Σ_i d_i², against (Σ_i d_i)²: equal in the mean if clients are
        # independent, less if the records of one are missing from the others.
        independent = np.einsum("ijk,ijk->k", drawn, drawn, dtype=np.float64)
        moves = independent > 0
        together = (drawn.sum(axis=1, dtype=np.float64) ** 2).sum(axis=0)
        total += float((together[moves] / independent[moves]).sum())
        count += int(moves.sum())
    return total / count if count else 1.0


def with_noise(
    scores: NDArray[np.float64], project: NDArray[np.float64], stream: Stream, noise_std: float
) -> NDArray[np.float64]:
    """Return scores (draws, k) with the noise on the sum, along the columns of `project`."""
    if noise_std == 0:
        return scores
    # Noise along fixed directions is Gaussian with their inner products as covariance.
    # PᵀP = RᵀR, so normals @ R have covariance PᵀP, (k, k), without a vector of size dim per draw.
    root = np.linalg.qr(project, mode="r")
    normals = numbers(0, *stream, "noise").standard_normal((len(scores), len(root)))
    return np.asarray(scores + noise_std * normals @ root)


def _unit(vector: Vector) -> Vector:
    return vector / np.linalg.norm(vector)


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
            raise BadValueError("candidates", "at least 2", len(candidates))
        rows = RowStore.of(candidates)
        # Around their own mean the products are small, and so is what cancels in the distances.
        centre = rows.mean()
        return cls(rows, centre, fits, grams(fits, rows, centre))

    def worst_pair(self, index: int) -> Challenge:
        """Return the test of the pair that a model sets farthest apart."""
        first, second = farthest_pair(self.grams[index])
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


def farthest_pair(gram: Floats) -> tuple[int, int]:
    """Return the two rows farthest apart, from their inner products; the first pair if several.

    >>> farthest_pair(np.array([[0.0, 0.0, 0.0], [0.0, 1.0, -2.0], [0.0, -2.0, 4.0]]))
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
        raise BadValueError("others", f"clients other than the target {target}", others)
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
