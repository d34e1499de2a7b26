"""Fresh updates of the clients of a sum, and what they reveal about each of these clients.

It needs no run: a sampler, a model and the numbers of the clients go in, and figures of information
come out. Updates are drawn whole or along directions, once for all auditors that share them.
Directions are fixed on draws of their own. A Gaussian model uses these for nothing else; critics
may train on them, since they are tested on other draws.

The directions are those in which single updates vary most (`leading_directions`). Samples are fewer
than the coordinates of all but the smallest models, so directions come from their products,
(samples, samples), which are added up block by block; the samples may be in a file. The products
are taken once: those of some draws around their own means follow from those around the means of
all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import AuditedRound, no_watch
from leakmeter.auditors.auditor import UnableError
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information.theory import (
    Information,
    each_information,
    joint_information,
    logdet_information,
    most_directions,
)
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampling.sampler import (
    ROUNDING,
    RowStore,
    Stream,
    UpdateSampler,
    finite,
    taken,
)
from leakmeter.auditors.values import AnyFloats, Floats, Vector, Watch, within


@dataclass(frozen=True)
class Subspace:
    """Directions along which sums are looked at, fixed before the samples they are used on.

    Attributes:
        directions: Orthonormal columns, (dim, rank).
        variance_kept: Share of the variance of the samples it was fitted on.
    """

    directions: Floats
    variance_kept: float

    @property
    def rank(self) -> int:
        """Number of directions, d*."""
        return int(self.directions.shape[1])


class ConstantUpdatesError(ValueError):
    """No update varies in this game, so there is nothing to learn."""


def leading_directions(rows: RowStore, draws: int, rank: int) -> Subspace:
    """Return the directions of largest variance around each client's mean, at most `rank`.

    The share of the variance is that of the second half of the draws along the directions of the
    first, if both vary: directions look better on the draws they come from.

    Args:
        rows: All clients of the first draw, then of the second, and so on, (draws · clients, dim).
        draws: How many draws.
        rank: Most directions.

    Raises:
        ConstantUpdatesError: No update varies.
    """
    if len(rows) < rows.shape[1]:
        return _from_products(rows, draws, rank)
    whole = np.concatenate([block for _, block in rows.blocks()], axis=1)
    return _from_rows(whole.reshape(draws, -1, rows.shape[1]), rank)


def _from_rows(drawn: AnyFloats, rank: int) -> Subspace:
    """Return the directions from more samples than coordinates, (draws, clients, dim)."""
    half = len(drawn) // 2
    every, first, second = map(_centre_rows, (drawn, drawn[:half], drawn[half:]))
    if not every.any():
        raise _nothing_varies()
    directions, kept = _leading(every, rank)  # (dim, rank)
    if first.any() and second.any():
        # (draws/2 · clients, rank)
        along = second @ _leading(first, rank)[0].astype(second.dtype)
        kept = float(np.square(along).sum()) / float(np.square(second).sum())
    return Subspace(directions, kept)


def _leading(rows: AnyFloats, rank: int) -> tuple[Floats, float]:
    """Return at most this many directions of rows, and the share of the variance along them all."""
    spectrum, directions = principal(rows)
    kept = np.cumsum(spectrum) / spectrum.sum()
    every = _num_directions(kept)
    # One layout in memory, whatever the rank: the last bits of products depend on it.
    directions = np.ascontiguousarray(directions[:, :every])
    return directions[:, :rank], min(1.0, float(kept[every - 1]))


def _from_products(samples: RowStore, draws: int, rank: int) -> Subspace:
    """Return the directions from fewer samples than coordinates."""
    # Gram matrix X Xᵀ, (samples, samples), summed over blocks of columns: X itself may be in a
    # file.
    products = np.zeros((len(samples), len(samples)))
    for _, rows in _deviations(samples, draws):
        products += rows @ rows.T
    if not np.trace(products) > 0:
        raise _nothing_varies()
    mix, kept = _mixed(products, rank)
    share = _share_held_out(products, len(samples) // draws, rank)
    # Xᵀ u / √λ for each eigenvector u of the Gram matrix: orthonormal columns, (dim, rank).
    directions = np.empty((samples.shape[1], mix.shape[1]))
    for at, rows in _deviations(samples, draws):
        directions[at] = rows.T @ mix
    return Subspace(directions, kept if share is None else share)


def _mixed(products: Floats, rank: int) -> tuple[Floats, float]:
    """Return the weights of samples in directions, (samples, rank), and the variance along all."""
    # λ (k,) and u (samples, k); the weights u / √λ make each direction a unit vector.
    spectrum, left = _positive(*np.linalg.eigh(products))
    kept = np.cumsum(spectrum) / spectrum.sum()
    every = _num_directions(kept)
    return (left / np.sqrt(spectrum))[:, : min(rank, every)], min(1.0, float(kept[every - 1]))


def _share_held_out(products: Floats, clients: int, rank: int) -> float | None:
    """Return the second half's share along the first half's directions; None if one is constant."""
    # Whole draws only: a client split between halves would be centred around two means.
    half = len(products) // clients // 2 * clients
    first, crossed, second = (
        _recentre(part, clients)
        for part in (products[:half, :half], products[half:, :half], products[half:, half:])
    )
    least = ROUNDING**2 * np.trace(products)  # below it deviations are rounding
    if not min(np.trace(first), total := np.trace(second)) > least:
        return None
    # crossed @ weights are the second half's coordinates along the first half's directions,
    # (draws/2 · clients, rank); their squares over the trace of all squares are the share.
    return float(np.square(crossed @ _mixed(first, rank)[0]).sum() / total)


def _recentre(products: Floats, clients: int) -> Floats:
    """Return the products of some draws with others, each client's around its mean of these.

    Inner products are linear: means of samples are means of their products, on either side.
    """
    draws, others = (size // clients for size in products.shape)
    found = products.reshape(draws, clients, others, clients)  # (k, i, l, j)
    # ⟨a - ā, b - b̄⟩: the mean over draws is taken off once for each side of the product.
    found = found - found.mean(axis=0)
    found -= found.mean(axis=2, keepdims=True)
    return np.asarray(found.reshape(products.shape))


def _deviations(rows: RowStore, draws: int) -> Iterator[tuple[slice, Floats]]:
    """Yield blocks of columns in double precision, each client's draws around its own mean."""
    for at, block in rows.blocks():
        yield at, _centre_rows(block.reshape(draws, -1, block.shape[1])).astype(np.float64)


def _centre_rows(drawn: AnyFloats) -> AnyFloats:
    """Return draws less each client's own mean as rows of one matrix; rounding is set to 0."""
    mean = drawn.mean(axis=0, dtype=np.float64)
    rest = drawn - mean.astype(drawn.dtype)
    # A coordinate that never moves differs from its mean by rounding: that is no direction.
    still = np.abs(rest).max(axis=0) <= ROUNDING * np.abs(mean)  # (clients, columns)
    rest[:, still] = 0.0
    return np.reshape(rest, (-1, drawn.shape[-1]))


def _nothing_varies() -> ConstantUpdatesError:
    return ConstantUpdatesError("every update is the same in every draw of this game")


def _num_directions(kept: Floats) -> int:
    """Return how many directions keep all of the variance, from what the first k keep."""
    # 1 + index, since kept[k - 1] is what the first k keep.
    # The last steps of a cumulative sum may miss 1 by a rounding.
    return 1 + int(np.searchsorted(kept, 1 - 1e-12))


def principal(draws: AnyFloats) -> tuple[Floats, Floats]:
    """Return the positive eigenvalues of the scatter, largest first, and their directions."""
    # Mean in double: rows may be single, and a mean of thousands of them would lose digits.
    centred = draws - draws.mean(axis=0, dtype=np.float64)
    if len(draws) >= draws.shape[1]:
        return _positive(*np.linalg.eigh(centred.T @ centred))
    # Fewer rows than coordinates: (K, K) instead of (d, d). X Xᵀ u = λ u implies that Xᵀ u / √λ is
    # a unit eigenvector of Xᵀ X for the same λ.
    spectrum, left = _positive(*np.linalg.eigh(centred @ centred.T))
    return spectrum, centred.T @ left / np.sqrt(spectrum)  # (K,), (d, K)


def _positive(spectrum: Floats, directions: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues above rounding, largest first, and their eigenvectors."""
    # `eigh` sorts upwards, so the last one is the largest; below its rounding a 0 may have any
    # sign.
    floor = len(spectrum) * np.finfo(np.float64).eps * spectrum[-1]
    real = spectrum > max(floor, 0.0)
    return spectrum[real][::-1], directions[:, real][:, ::-1]


@dataclass(frozen=True)
class DrawPlan:
    """How many draws and directions the audit of a round uses.

    Attributes:
        draws: Joint draws of all clients, K.
        rank: Directions d* that are measured, fewer if the draws do not allow that many; None
            takes all coordinates, which needs more draws than there are of them.
        fit: Further draws, which fix the directions; more if the clients are too few for them.
        pairs: Pairs of draws that share a client's data, in every audited round, for what all
            rounds together reveal about it; 0 leaves that out.
    """

    draws: int = 16
    rank: int | None = 8
    fit: int = 4
    pairs: int = 0

    def __post_init__(self) -> None:
        within("draws", self.draws, lowest=4)
        within("fit", self.fit, lowest=4)
        if self.rank is not None:
            within("rank", self.rank, lowest=1)
        within("pairs", self.pairs, lowest=0)

    def fit_draws(self, rank: int, clients: int) -> int:
        """Return draws that fix this many directions; more than asked for if clients are few."""
        # Three samples per direction, and one draw more, since each client's mean is taken off.
        return max(self.fit, 1 + -(-3 * rank // clients))


@dataclass(frozen=True)
class Directed:
    """Draws of a round along its directions.

    Attributes:
        subspace: The directions in which single updates vary most.
        fitted: The draws that fixed them, along them, (draws, clients, rank).
        rows: Further draws along them, (draws, clients, rank).
    """

    subspace: Subspace
    fitted: Floats
    rows: Floats


class SharedDraws:
    """Draws a sum along its directions, once for all auditors that share this and ask alike.

    Share it only between auditors of one sampler: `mine.drawing = information.drawing`. The draws
    are a function of the stream, so sharing them changes no finding.
    """

    def __init__(self) -> None:
        self._asked: tuple[Any, ...] = ()
        self._model: Vector | None = None
        self._found: Directed | None = None

    def directed(self, drawn: Draws, plan: DrawPlan, stream: Stream) -> Directed:
        """Return the draws of a sum; the stream names the randomness.

        Raises:
            ConstantUpdatesError: No update varies.
            ValueError: There are too few draws for one direction.
        """
        assert plan.rank is not None
        sampler, clients, draws = drawn.sampler, drawn.clients, plan.draws
        rank = affordable_rank(plan.rank, draws, len(clients), sampler.game, drawn.noise_std)
        fit = plan.fit_draws(rank, len(clients))
        asked = (sampler.game, sampler.scale, tuple(clients), rank, fit, draws, tuple(stream))
        is_known = asked == self._asked and np.array_equal(drawn.model, self._model)  # type: ignore[arg-type]
        if self._found is None or not is_known:
            subspace, fitted = drawn.subspace(rank, fit, (*stream, "directions"))
            rows = drawn.along(subspace, draws, (*stream, "draws"))
            self._asked, self._model = asked, drawn.model.copy()
            self._found = Directed(subspace, fitted, rows)
        return self._found


@dataclass(frozen=True, eq=False)
class Draws:
    """Fresh updates of the clients of a sum.

    Attributes:
        sampler: Draws updates; its game decides what is random.
        model: Global model that the clients start from.
        clients: Whose updates are in the sum and not known to the observer.
        noise_std: Noise of the mechanism on each coordinate of the sum.
        watch: Told of the progress.
    """

    sampler: UpdateSampler
    model: Vector
    clients: Sequence[int]
    noise_std: float = 0.0
    watch: Watch = no_watch

    @classmethod
    def of(cls, audited: AuditedRound) -> Draws:
        """Return the draws of a round."""
        noise_std, watch = audited.noise_std, audited.watch
        return cls(audited.sampler, audited.model, audited.hidden, noise_std, watch)

    def pairs(
        self, target: int, draws: int, stream: Stream, rng: np.random.Generator | None = None
    ) -> tuple[Floats, Floats]:
        """Return the target's updates and the sum of the others, (draws, coordinates) each.

        Args:
            target: Whose update is at stake.
            draws: How many.
            stream: Names the randomness.
            rng: Draws the noise; needed if there is any.
        """
        free = self.sampler.free
        dim = self.model.size if free is None else free.size
        place = list(self.clients).index(target)
        x = np.empty((draws, dim), dtype=np.float32)  # updates of a model in single precision
        y = np.empty((draws, dim), dtype=np.float64 if self.noise_std else np.float32)
        done = 0
        for chunk in self._chunks("draws", draws, (*stream, "draws"), None):
            rows = chunk if free is None else taken(chunk, free)  # (chunk, clients, dim)
            here = slice(done, done + len(rows))
            x[here] = rows[:, place]
            # Subtracting the target in double loses nothing; summing the others in single would.
            y[here] = rows.sum(axis=1, dtype=np.float64) - rows[:, place]
            done += len(rows)
        if rng is not None and self.noise_std:
            y += self.noise_std * rng.standard_normal(y.shape)
        return x, y  # type: ignore[return-value]

    def subspace(self, rank: int, draws: int, stream: Stream) -> tuple[Subspace, Floats]:
        """Return the directions of largest variance, and the draws that fixed them along them."""
        self.watch("directions", 0.0)
        rows = RowStore(draws * len(self.clients), self.model.size)
        updates = self.sampler.updates(self.model, self.clients, draws, stream)
        for done, row in enumerate(finite(updates), 1):
            rows.add(row)
            if done % len(self.clients) == 0:
                self.watch("directions", done / len(rows))
        found = leading_directions(rows, draws, rank)
        # (draws · clients, rank), block by block of columns: the rows may not fit into memory at
        # once.
        along = np.zeros((len(rows), found.rank))
        for at, block in rows.blocks():
            along += block @ found.directions[at].astype(block.dtype)
        return found, along.reshape(draws, len(self.clients), -1)

    def along(self, subspace: Subspace, draws: int, stream: Stream, stage: str = "draws") -> Floats:
        """Return draws of all clients along the directions, (draws, clients, rank)."""
        chunks = self._chunks(stage, draws, stream, subspace.directions)
        return np.concatenate(list(chunks)).astype(np.float64)

    def _chunks(
        self, stage: str, draws: int, stream: Stream, project: Floats | None
    ) -> Iterator[NDArray[np.floating[Any]]]:
        done = 0
        self.watch(stage, 0.0)
        drawn = self.sampler.sample(self.model, self.clients, draws, stream, project=project)
        for chunk in finite(drawn):
            yield chunk
            done += len(chunk)
            self.watch(stage, done / draws)


def affordable_rank(rank: int, draws: int, clients: int, game: Game, noise_std: float) -> int:
    """Return the rank, or the largest that this many draws allow."""
    if game == "partition":
        most = (draws - 4) // 2  # the joint covariance of x and z, and some rows to spare
    elif noise_std > 0:
        # Noise makes Σ_z regular in every direction, however few the draws.
        most = rank
    else:
        most = most_directions(draws, clients)
    if most < 1:
        raise BadValueError("draws", f"more for {clients} clients in the game {game}", draws)
    return min(rank, most)


@dataclass(frozen=True)
class Measured:
    """What was found.

    Attributes:
        figure: Of the target, or the mean over all clients.
        each: Nats and standard error of every client that was measured.
        rank: Directions that were measured, d*.
    """

    figure: Information
    each: Mapping[int, tuple[float, float]]
    rank: int


def measure(
    drawn: Draws,
    *,
    target: int | None,
    plan: DrawPlan,
    stream: Stream,
    seed: int = 0,
    drawing: SharedDraws | None = None,
) -> Measured:
    """Return what the sum of the clients' updates reveals about the target, or about each.

    Args:
        drawn: Draws of the clients' updates.
        target: Whose update is at stake; None takes the mean over all clients, and the first of
            them where only one can be looked at.
        plan: How many draws and directions.
        stream: Names the randomness of the draws.
        seed: Of the noise.
        drawing: Draws along directions, shared with others who look at the round.

    Raises:
        ConstantUpdatesError: No update varies.
        ValueError: There are too few draws for this many directions.
    """
    rng, clients = numbers(seed, *stream, "noise"), drawn.clients
    is_dealt = drawn.sampler.game == "partition"
    if plan.rank is None:
        check_whole(drawn.sampler, drawn.model.size, plan.draws)
        one = clients[0] if target is None else target
        # (K, d) each, in the same draws: row k of x + y has the y of row k.
        x, y = drawn.pairs(one, plan.draws, stream, rng)
        return _in_whole(x, y, one, is_dealt)
    found = (drawing or SharedDraws()).directed(drawn, plan, stream)
    # (K, clients, rank) and orthonormal (dim, rank).
    rows, subspace = found.rows, found.subspace
    place = None if target is None else list(clients).index(target)
    if is_dealt:
        # Along orthonormal directions noise is what it is in coordinates.
        # (K, rank): the noise is on the sum, once, not on each client.
        noise = drawn.noise_std * rng.standard_normal(rows[:, 0].shape)
        figure, errors = _dependent(rows, noise, place)
    else:
        independent = each_information(rows, noise_std=drawn.noise_std)
        figure = independent.of(place)
        errors = np.stack([independent.nats, independent.std_error], axis=1)
    rule = f"{figure.rule} in {subspace.rank} fixed directions"
    figure = replace(figure, rule=rule, variance_kept=subspace.variance_kept)
    each = {c: (float(a), float(b)) for c, (a, b) in zip(clients, errors, strict=True)}
    return Measured(figure, each, subspace.rank)


def _in_whole(x: Floats, y: Floats, client: int, is_dealt: bool) -> Measured:
    """Return what paired draws of all coordinates show of one client."""
    # Shares of one partition are correlated, so this takes the joint covariance of x and z.
    figure = joint_information(x, x + y) if is_dealt else logdet_information(x + y, y)
    each = {client: (figure.nats, figure.std_error or 0.0)}
    return Measured(figure, each, figure.rank or 0)


def _dependent(rows: Floats, noise: Floats, place: int | None) -> tuple[Information, Floats]:
    """Return the figure, and nats and errors of all clients, where clients share one partition."""
    # z, (K, rank); x of client i is rows[:, i], (K, rank).
    total = rows.sum(axis=1) + noise
    found = [joint_information(rows[:, i], total) for i in range(rows.shape[1])]
    each = np.array([[one.nats, one.std_error or 0.0] for one in found])
    if place is not None:
        return found[place], each
    # The clients' figures come from the same draws: their errors may all have one sign.
    nats, error = each.mean(axis=0)
    rule = f"{found[0].rule}, mean over {len(found)} clients"
    return replace(found[0], nats=float(nats), std_error=float(error), rule=rule), each


def check_whole(sampler: UpdateSampler, dim: int, draws: int) -> None:
    """Raise unless this many draws are enough for determinants of all coordinates."""
    dim = dim if sampler.free is None else sampler.free.size
    # A sample covariance of d coordinates is singular unless K > d; the joint one has 2 d.
    needed = (2 if sampler.game == "partition" else 1) * dim
    if draws <= needed:
        raise UnableError(
            f"draws must be above {needed} to look at all {dim} coordinates in the game "
            f"{sampler.game}, got {draws}: use more, or give a rank"
        )
