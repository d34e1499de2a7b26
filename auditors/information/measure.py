"""Measures what the sum of one round reveals about its clients, by resampling their updates.

It knows nothing of Flower or of rounds: a sampler, a model and the names of the clients go in, and
figures of information come out. Directions are fixed on draws that are used for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Floats, Vector, Watch
from leakmeter.auditors._validate import within
from leakmeter.auditors.auditor import UnableError
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information.directions import leading_directions
from leakmeter.auditors.information.figure import Information
from leakmeter.auditors.information.logdet import Subspace, joint_information, logdet_information
from leakmeter.auditors.information.per_client import each_information, most_directions
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampler import Stream, UpdateSampler, finite
from leakmeter.auditors.sampling.row_store import RowStore

if TYPE_CHECKING:
    from leakmeter.auditors.information.mine.estimator import NeuralEstimate


ESTIMATORS = ("log-det", "mine")


@dataclass(frozen=True)
class Look:
    """How closely a round is looked at.

    Attributes:
        draws: Joint draws of all clients, K.
        rank: Directions d* that are looked along, fewer if the draws do not allow so many; None
            takes all coordinates, which needs more draws than there are of them.
        fit: Further draws, which fix the directions; more if the clients are few for so many.
        estimators: Of "log-det" and "mine", at least one; the second is slow.
        critics: Critics of "mine" on the pairs as they are, and as many on shuffled ones.
        pairs: Pairs of draws that share a client's data, in every audited round, for what all
            rounds together reveal about it; 0 leaves that out.
    """

    draws: int = 16
    rank: int | None = 8
    fit: int = 4
    estimators: tuple[str, ...] = ("log-det",)
    critics: int = 5
    pairs: int = 0

    def __post_init__(self) -> None:
        within("draws", self.draws, lowest=20 if "mine" in self.estimators else 4)
        within("fit", self.fit, lowest=4)
        if self.rank is not None:
            within("rank", self.rank, lowest=1)
        if not self.estimators or not set(self.estimators) <= set(ESTIMATORS):
            allowed = f"one or more of {', '.join(ESTIMATORS)}"
            raise ValueError(f"estimators must be {allowed}, got {self.estimators!r}")
        within("critics", self.critics, lowest=2)
        within("pairs", self.pairs, lowest=0)

    def fit_draws(self, rank: int, clients: int) -> int:
        """Return draws that fix so many directions; more than asked for if clients are few."""
        return max(self.fit, 1 + -(-3 * rank // clients))


@dataclass(frozen=True)
class Measured:
    """What was found.

    Attributes:
        figure: Of the target, or the mean over all clients; None without the estimator "log-det".
        each: Nats and standard error of every client that was measured.
        rank: Directions that were looked along, d*.
        variance_kept: Their share of the variance.
        neural: What critics found of one client, if asked for.
    """

    figure: Information | None
    each: Mapping[int, tuple[float, float]]
    rank: int
    variance_kept: float
    neural: NeuralEstimate | None = None


def measure(
    sampler: UpdateSampler,
    model: Vector,
    clients: Sequence[int],
    *,
    target: int | None,
    look: Look,
    stream: Stream,
    noise_std: float = 0.0,
    seed: int = 0,
    watch: Watch | None = None,
) -> Measured:
    """Return what the sum of the clients' updates reveals about the target, or about each.

    Args:
        sampler: Draws updates; its game decides what is random.
        model: Global model that the clients start from.
        clients: Whose updates are in the sum and not known to the observer.
        target: Whose update is at stake; None takes the mean over all clients, and the first of
            them where only one can be looked at.
        look: How closely.
        stream: Names the randomness of the draws.
        noise_std: Noise of the mechanism on each coordinate of the sum.
        seed: Of the noise and the critics.
        watch: Told of the progress.

    Raises:
        ConstantUpdatesError: No update varies.
        ValueError: There are too few draws for so many directions.
    """
    drawn = _Draws(sampler, model, clients, watch or _unwatched, numbers(seed, *stream, "noise"))
    one = clients[0] if target is None else target
    if look.rank is None:
        if "log-det" in look.estimators:
            check_whole(sampler, model.size, look.draws)
        x, y = drawn.pairs(one, look.draws, stream, noise_std)
        return _in_whole(x, y, one, sampler.game == "partition", look, seed)
    rank = _affordable(look.rank, look.draws, len(clients), sampler.game, noise_std)
    fit = look.fit_draws(rank, len(clients))
    subspace = drawn.subspace(rank, fit, (*stream, "directions"))
    rows = drawn.along(subspace, look.draws, (*stream, "draws"))
    rank, kept = subspace.rank, subspace.variance_kept
    place = None if target is None else list(clients).index(target)
    figure, each = None, {}
    noise = drawn.noise(rows[:, 0].shape, noise_std)
    if "log-det" in look.estimators:
        if sampler.game == "partition":
            figure, found = _dependent(rows, noise, place)
        else:
            independent = each_information(rows, noise_std=noise_std)
            figure = independent.of(place)
            found = np.stack([independent.nats, independent.std_error], axis=1)
        figure = replace(
            figure, rule=f"{figure.rule} in {rank} fixed directions", variance_kept=kept
        )
        each = {c: (float(a), float(b)) for c, (a, b) in zip(clients, found, strict=True)}
    neural = None
    if "mine" in look.estimators:
        neural = _neural(rows[:, list(clients).index(one)], rows.sum(axis=1) + noise, look, seed)
    return Measured(figure, each, rank, kept, neural)


def _affordable(rank: int, draws: int, clients: int, game: Game, noise_std: float) -> int:
    """Return the rank, or the largest that so many draws allow."""
    if game == "partition":
        most = (draws - 4) // 2  # the joint covariance of x and z, and some rows to spare
    elif noise_std > 0:
        most = rank
    else:
        most = most_directions(draws, clients)
    if most < 1:
        raise ValueError(
            f"draws must be more for {clients} clients in the game {game}, got {draws}"
        )
    return min(rank, most)


def _in_whole(x: Floats, y: Floats, client: int, is_dealt: bool, look: Look, seed: int) -> Measured:
    """Return what paired draws of all coordinates show of one client."""
    figure, each = None, {}
    rank = int(x.shape[1])
    if "log-det" in look.estimators:
        # Shares of one partition are correlated, so this takes the joint covariance of x and z.
        figure = joint_information(x, x + y) if is_dealt else logdet_information(x + y, y)
        each = {client: (figure.nats, figure.std_error or 0.0)}
        rank = figure.rank or 0
    neural = _neural(x, x + y, look, seed) if "mine" in look.estimators else None
    return Measured(figure, each, rank, 1.0, neural)


def _dependent(rows: Floats, noise: Floats, place: int | None) -> tuple[Information, Floats]:
    """Return the figure, and nats and errors of all clients, where clients share one partition."""
    total = rows.sum(axis=1) + noise
    found = [joint_information(rows[:, i], total) for i in range(rows.shape[1])]
    each = np.array([[one.nats, one.std_error or 0.0] for one in found])
    if place is not None:
        return found[place], each
    # The clients' figures come from the same draws: their errors may all have one sign.
    nats, error = each.mean(axis=0)
    rule = f"{found[0].rule}, mean over {len(found)} clients"
    return replace(found[0], nats=float(nats), std_error=float(error), rule=rule), each


def _neural(x: Floats, z: Floats, look: Look, seed: int) -> NeuralEstimate:
    from leakmeter.auditors.information.mine.estimator import (
        estimate,  # torch, and only for those who ask
    )

    return estimate(x, z, seed=seed, seeds=look.critics, nulls=look.critics)


def check_whole(sampler: UpdateSampler, dim: int, draws: int) -> None:
    """Raise unless so many draws are enough for determinants of all coordinates."""
    dim = dim if sampler.free is None else sampler.free.size
    needed = (2 if sampler.game == "partition" else 1) * dim
    if draws <= needed:
        raise UnableError(
            f"draws must be above {needed} to look at all {dim} coordinates in the game "
            f"{sampler.game}, got {draws}: take more, or give a rank"
        )


class _Draws:
    """Fresh updates of a round's clients."""

    def __init__(
        self,
        sampler: UpdateSampler,
        model: Vector,
        clients: Sequence[int],
        watch: Watch,
        rng: np.random.Generator,
    ) -> None:
        self._sampler, self._model, self._clients = sampler, model, list(clients)
        self._watch, self._rng = watch, rng

    def pairs(
        self, target: int, draws: int, stream: Stream, noise_std: float
    ) -> tuple[Floats, Floats]:
        """Return the target's updates and the noised sum of the others, (draws, coordinates)."""
        free = self._sampler.free
        dim = self._model.size if free is None else free.size
        place = self._clients.index(target)
        x = np.empty((draws, dim), dtype=np.float32)
        y = np.empty((draws, dim), dtype=np.float64 if noise_std else np.float32)
        done = 0
        for chunk in self._chunks("draws", draws, (*stream, "draws"), None):
            rows = chunk if free is None else chunk[..., free]
            here = slice(done, done + len(rows))
            x[here] = rows[:, place]
            y[here] = rows.sum(axis=1, dtype=np.float64) - rows[:, place]
            done += len(rows)
        if noise_std:
            y += self.noise(y.shape, noise_std)
        return x, y  # type: ignore[return-value]

    def subspace(self, rank: int, draws: int, stream: Stream) -> Subspace:
        """Return the directions in which single updates vary most, on draws of their own."""
        self._watch("directions", 0.0)
        rows = RowStore(draws * len(self._clients), self._model.size)
        updates = self._sampler.updates(self._model, self._clients, draws, stream)
        for done, row in enumerate(finite(updates), 1):
            rows.add(row)
            if done % len(self._clients) == 0:
                self._watch("directions", done / len(rows))
        return leading_directions(rows, draws, rank)

    def along(self, subspace: Subspace, draws: int, stream: Stream) -> Floats:
        """Return draws of all clients along the directions, (draws, clients, rank)."""
        chunks = self._chunks("draws", draws, stream, subspace.directions)
        return np.concatenate(list(chunks)).astype(np.float64)

    def noise(self, shape: tuple[int, ...], std: float) -> Floats:
        """Return noise on sums; along orthonormal directions it is what it is in coordinates."""
        return std * self._rng.standard_normal(shape) if std else np.zeros(shape)

    def _chunks(
        self, stage: str, draws: int, stream: Stream, project: Floats | None
    ) -> Iterator[NDArray[np.floating[Any]]]:
        done = 0
        self._watch(stage, 0.0)
        drawn = self._sampler.sample(self._model, self._clients, draws, stream, project=project)
        for chunk in finite(drawn):
            yield chunk
            done += len(chunk)
            self._watch(stage, done / draws)


def _unwatched(stage: str, share: float) -> None:
    """Tell nobody."""
