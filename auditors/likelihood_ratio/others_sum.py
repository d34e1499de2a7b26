"""Draws of the sum of the other clients: models of its distribution, and scores along directions.

Updates arrive one at a time. Those that are looked at again are in a `RowStore`, by blocks of
columns; the trials keep nothing but their scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import DivergedError
from leakmeter.auditors.likelihood_ratio.span import Span, SpanTracker
from leakmeter.auditors.likelihood_ratio.sum_distribution import (
    DenseGaussian,
    DualGaussian,
    SumDistribution,
)
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampling.sampler import (
    HOLDING_OUT,
    ROUNDING,
    RowStore,
    Stream,
    UpdateSampler,
    finite,
)
from leakmeter.auditors.values import AnyFloats, Vector, Watch

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
        rows = rows.changed(partial(_centred, draws=draws, sizes=sizes, model=self.model))
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
            tracker = SpanTracker(gap.size, affine=False)
            tracker.add(rows.columns(slice(0, gap.size)))
            found = tracker.outside(gap)
            return found, tracker.beyond(gap) if found.separated else None
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
            sums = noised(self._projected(project, draws, stream), project, stream, noise_std)
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
        return noised(found[:, :1], project, stream, noise_std)[:, 0], found[:, 1:].ravel()

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


def _centred(at: slice, block: AnyFloats, *, draws: int, sizes: Vector, model: Vector) -> AnyFloats:
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


def noised(
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
