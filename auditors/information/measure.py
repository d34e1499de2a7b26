"""Measures what the sum of one round reveals about its clients, by resampling their updates.

It knows nothing of Flower or of rounds: a sampler, a model and the names of the clients go in, and
figures of information come out. Directions are fixed on draws that are used for nothing else.

Clients that draw independently have Σ_z = Σ_1 + … + Σ_N, so I(x_i; z) of Gaussians follows from
their covariances one by one: ½ ln|Σ_z| - ½ ln|Σ_z - Σ_i|. A draw of N clients then counts N times,
and noise of the mechanism enters exactly, as σ²I. Compared with the determinants of drawn sums
(`auditors.information.logdet`) the same updates give an error about √N times smaller.

The jackknife (Quenouille 1956) removes the bias of the determinants, whatever the distribution.
What is left is of the order of one over the draws squared: for Gaussians below 1 % where draws
times other clients are 20 times the rank, and some 5 % downwards at 6 times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leakmeter.auditors._types import AnyFloats, Floats, Indices, Vector, Watch, within
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.auditor import UnableError
from leakmeter.auditors.information.draws import PARTS, Drawing, Draws, Look, most_directions
from leakmeter.auditors.information.figure import Information
from leakmeter.auditors.information.logdet import (
    jackknife,
    joint_information,
    logdet_information,
)
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampling.sampler import Stream, UpdateSampler


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
    found = (drawing or Drawing()).directed(
        sampler,
        model,
        clients,
        look=look,
        stream=stream,
        noise_std=noise_std,
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


# Directions of the sum with a smaller share of its largest variance are rounding.
_ROUNDING = 1e-12
# The others leave at least this share of a direction's variance, or it is the target's alone.
_OTHERS = 1e-9


@dataclass(frozen=True)
class EachInformation:
    """What the sum reveals about each client, in nats; infinite where the others do not hide it.

    Attributes:
        nats: One per client.
        std_error: Standard error of each.
        mean_error: Standard error of their mean.
        draws: Joint draws behind them.
        rank: Directions in which the sum varies.
    """

    nats: Floats
    std_error: Floats
    mean_error: float
    draws: int
    rank: int

    def of(self, client: int | None) -> Information:
        """Return the figure of one client by its place, or the mean over all for None."""
        who = "one client" if client is None else "the client"
        nats, error = (
            (float(self.nats.mean()), self.mean_error)
            if client is None
            else (float(self.nats[client]), float(self.std_error[client]))
        )
        mean = f", mean over {len(self.nats)} clients" if client is None else ""
        return Information(
            nats=nats,
            kind="approximation",
            rule=f"½ log₂|Σ| − ½ log₂|Σ without {who}| from single covariances{mean}",
            std_error=error if np.isfinite(error) else None,
            rank=self.rank,
            sample_sizes={"draws of each client": self.draws, "clients": len(self.nats)},
            assumptions=(Assumption.GAUSSIAN_UPDATES,),
        )


def each_information(rows: AnyFloats, *, noise_std: float = 0.0) -> EachInformation:
    """Return I(x_i; x_1 + … + x_N + noise) for every client i.

    Args:
        rows: Joint draws, (draws, clients, rank); clients are independent within a draw.
        noise_std: Noise on each coordinate of the sum.

    >>> from leakmeter.auditors.rng import stream
    >>> found = each_information(stream(0, "doc").standard_normal((200, 10, 4)))
    >>> truth = 2 * np.log(10 / 9)
    >>> bool(abs(found.nats - truth).max() < 4 * found.std_error.max() < 0.1)
    True
    """
    if rows.ndim != 3 or not rows.shape[1] or not rows.shape[2]:
        raise ValueError(f"rows must be (draws, clients, rank), none of them 0, got {rows.shape}")
    draws, clients, rank = rows.shape
    within("draws", draws, lowest=4)
    within("noise_std", noise_std, lowest=0.0)
    if noise_std == 0 and clients > 1 and rank > (most := most_directions(draws, clients)):
        raise ValueError(
            f"rank must be at most {most} for {draws} draws of {clients} clients, got {rank}"
        )
    centred = rows - rows.mean(axis=0, dtype=np.float64)  # (draws, clients, rank)
    # One covariance per client, (clients, rank, rank): K - 1 degrees of freedom each, and the sum
    # over N independent clients has N times as many. Draws of the sum itself would have K - 1.
    whole, kept = _nats(np.einsum("kni,knj->nij", centred, centred) / (draws - 1), noise_std)
    parts = np.array_split(np.arange(draws), min(draws, PARTS))
    # (parts, clients)
    left_out = np.stack([_nats(_without(centred, part), noise_std)[0] for part in parts])
    shares = np.array([draws / len(part) for part in parts])
    finite = np.isfinite(whole) & np.isfinite(left_out).all(axis=0)
    with np.errstate(invalid="ignore"):
        nats, errors = jackknife(whole, left_out, shares)
        mean_error = jackknife(whole.mean(), left_out.mean(axis=1), shares)[1]
    return EachInformation(
        nats=np.where(finite, nats, np.where(np.isfinite(whole), whole, np.inf)),
        std_error=np.where(finite, errors, np.inf),
        mean_error=float(mean_error) if finite.all() else np.inf,
        draws=draws,
        rank=kept,
    )


def _nats(covariances: Floats, noise_std: float) -> tuple[Floats, int]:
    """Return -½ ln|1 - Σ_z^-½ Σ_i Σ_z^-½| for each client, and the rank of Σ_z."""
    total = covariances.sum(axis=0) + noise_std**2 * np.eye(covariances.shape[-1])
    spectrum, directions = np.linalg.eigh(total)
    real = spectrum > _ROUNDING * max(spectrum[-1], 0.0)
    if not real.any():  # nothing varies at all
        return np.zeros(len(covariances)), 0
    # Whitens z: rootᵀ Σ_z root = 1, (rank, real).
    root = directions[:, real] / np.sqrt(spectrum[real])
    own = np.linalg.eigvalsh(root.T @ covariances @ root)  # (clients, rank): shares of the target
    alone = own[:, -1] > 1 - _OTHERS
    nats = -0.5 * np.log1p(-np.clip(own, 0.0, 1 - _OTHERS)).sum(axis=1)
    return np.where(alone, np.inf, nats), int(real.sum())


def _without(centred: Floats, part: Indices) -> Floats:
    """Return the clients' covariances with some draws left out."""
    rest = np.delete(centred, part, axis=0)
    rest = rest - rest.mean(axis=0)
    return np.asarray(np.einsum("kni,knj->nij", rest, rest) / (len(rest) - 1))
