"""Measures what the sum of one round reveals about its clients, by resampling their updates.

It knows nothing of Flower or of rounds: a sampler, a model and the names of the clients go in, and
figures of information come out. Directions are fixed on draws that are used for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leakmeter.auditors._types import Floats, Vector, Watch
from leakmeter.auditors._validate import within
from leakmeter.auditors.auditor import UnableError
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information.draws import Drawing, Draws
from leakmeter.auditors.information.figure import Information
from leakmeter.auditors.information.logdet import joint_information, logdet_information
from leakmeter.auditors.information.per_client import each_information, most_directions
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampler import Stream, UpdateSampler


@dataclass(frozen=True)
class Look:
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
class Measured:
    """What was found.

    Attributes:
        figure: Of the target, or the mean over all clients.
        each: Nats and standard error of every client that was measured.
        rank: Directions that were measured, d*.
        variance_kept: Their share of the variance.
    """

    figure: Information
    each: Mapping[int, tuple[float, float]]
    rank: int
    variance_kept: float


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
    drawing: Drawing | None = None,
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
        seed: Of the noise.
        drawing: Draws along directions, shared with others who look at the round.
        watch: Told of the progress.

    Raises:
        ConstantUpdatesError: No update varies.
        ValueError: There are too few draws for this many directions.
    """
    rng = numbers(seed, *stream, "noise")
    is_dealt = sampler.game == "partition"
    if look.rank is None:
        check_whole(sampler, model.size, look.draws)
        one = clients[0] if target is None else target
        drawn = Draws(sampler, model, clients, watch)
        # (K, d) each, in the same draws: row k of x + y has the y of row k.
        x, y = drawn.pairs(one, look.draws, stream, noise_std=noise_std, rng=rng)
        return _in_whole(x, y, one, is_dealt)
    rank = affordable(look.rank, look.draws, len(clients), sampler.game, noise_std)
    found = (drawing or Drawing()).directed(
        sampler,
        model,
        clients,
        rank=rank,
        fit=look.fit_draws(rank, len(clients)),
        draws=look.draws,
        stream=stream,
        watch=watch,
    )
    # (K, clients, rank) and orthonormal (dim, rank).
    rows, subspace = found.rows, found.subspace
    place = None if target is None else list(clients).index(target)
    if is_dealt:
        # Along orthonormal directions noise is what it is in coordinates.
        # (K, rank): the noise is on the sum, once, not on each client.
        noise = noise_std * rng.standard_normal(rows[:, 0].shape)
        figure, errors = _dependent(rows, noise, place)
    else:
        independent = each_information(rows, noise_std=noise_std)
        figure = independent.of(place)
        errors = np.stack([independent.nats, independent.std_error], axis=1)
    kept = subspace.variance_kept
    rule = f"{figure.rule} in {subspace.rank} fixed directions"
    figure = replace(figure, rule=rule, variance_kept=kept)
    each = {c: (float(a), float(b)) for c, (a, b) in zip(clients, errors, strict=True)}
    return Measured(figure, each, subspace.rank, kept)


def affordable(rank: int, draws: int, clients: int, game: Game, noise_std: float) -> int:
    """Return the rank, or the largest that this many draws allow."""
    if game == "partition":
        most = (draws - 4) // 2  # the joint covariance of x and z, and some rows to spare
    elif noise_std > 0:
        # Noise makes Σ_z regular in every direction, however few the draws.
        most = rank
    else:
        most = most_directions(draws, clients)
    if most < 1:
        raise ValueError(
            f"draws must be more for {clients} clients in the game {game}, got {draws}"
        )
    return min(rank, most)


def _in_whole(x: Floats, y: Floats, client: int, is_dealt: bool) -> Measured:
    """Return what paired draws of all coordinates show of one client."""
    # Shares of one partition are correlated, so this takes the joint covariance of x and z.
    figure = joint_information(x, x + y) if is_dealt else logdet_information(x + y, y)
    each = {client: (figure.nats, figure.std_error or 0.0)}
    return Measured(figure, each, figure.rank or 0, 1.0)


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
