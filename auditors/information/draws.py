"""Fresh updates of a round's clients, whole or along directions, drawn once for all who share them.

Directions are fixed on draws of their own. A Gaussian model uses these for nothing else; critics
may train on them, since they are tested on other draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Floats, Vector, Watch, within
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information.directions import Subspace, leading_directions
from leakmeter.auditors.sampling.row_store import RowStore
from leakmeter.auditors.sampling.sampler import Stream, UpdateSampler, finite

PARTS = 20  # that a jackknife over draws leaves out, at most


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


class Drawing:
    """Draws a round along its directions, once for all auditors that share this and ask alike.

    Share it only between auditors of one sampler: `mine.drawing = information.drawing`. The draws
    are a function of the stream, so sharing them changes no finding.
    """

    def __init__(self) -> None:
        self._asked: tuple[Any, ...] = ()
        self._model: Vector | None = None
        self._found: Directed | None = None

    def directed(
        self,
        sampler: UpdateSampler,
        model: Vector,
        clients: Sequence[int],
        *,
        look: Look,
        stream: Stream,
        noise_std: float = 0.0,
        watch: Watch | None = None,
    ) -> Directed:
        """Return the draws of a round.

        Args:
            sampler: Draws updates; its game decides what is random.
            model: Global model that the clients start from.
            clients: Whose updates are in the sum and not known to the observer.
            look: Draws and directions.
            stream: Names the randomness.
            noise_std: Noise on each coordinate of the sum, with which few draws suffice.
            watch: Told of the progress.

        Raises:
            ConstantUpdatesError: No update varies.
            ValueError: There are too few draws for one direction.
        """
        assert look.rank is not None
        draws = look.draws
        rank = affordable(look.rank, draws, len(clients), sampler.game, noise_std)
        fit = look.fit_draws(rank, len(clients))
        asked = (sampler.game, sampler.scale, tuple(clients), rank, fit, draws, tuple(stream))
        is_known = asked == self._asked and np.array_equal(model, self._model)  # type: ignore[arg-type]
        if self._found is None or not is_known:
            drawn = Draws(sampler, model, clients, watch or _unwatched)
            subspace, fitted = drawn.subspace(rank, fit, (*stream, "directions"))
            rows = drawn.along(subspace, draws, (*stream, "draws"))
            self._asked, self._model = asked, model.copy()
            self._found = Directed(subspace, fitted, rows)
        return self._found


class Draws:
    """Fresh updates of a round's clients."""

    def __init__(
        self,
        sampler: UpdateSampler,
        model: Vector,
        clients: Sequence[int],
        watch: Watch | None = None,
    ) -> None:
        self._sampler, self._model, self._clients = sampler, model, list(clients)
        self._watch = watch or _unwatched

    def pairs(
        self,
        target: int,
        draws: int,
        stream: Stream,
        *,
        noise_std: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> tuple[Floats, Floats]:
        """Return the target's updates and the sum of the others, (draws, coordinates) each.

        Args:
            target: Whose update is at stake.
            draws: How many.
            stream: Names the randomness.
            noise_std: Noise on each coordinate of the sum.
            rng: Draws that noise; needed if there is any.
        """
        free = self._sampler.free
        dim = self._model.size if free is None else free.size
        place = self._clients.index(target)
        x = np.empty((draws, dim), dtype=np.float32)  # updates of a model in single precision
        y = np.empty((draws, dim), dtype=np.float64 if noise_std else np.float32)
        done = 0
        for chunk in self._chunks("draws", draws, (*stream, "draws"), None):
            rows = chunk if free is None else chunk[..., free]  # (chunk, clients, dim)
            here = slice(done, done + len(rows))
            x[here] = rows[:, place]
            # Subtracting the target in double loses nothing; summing the others in single would.
            y[here] = rows.sum(axis=1, dtype=np.float64) - rows[:, place]
            done += len(rows)
        if rng is not None and noise_std:
            y += noise_std * rng.standard_normal(y.shape)
        return x, y  # type: ignore[return-value]

    def subspace(self, rank: int, draws: int, stream: Stream) -> tuple[Subspace, Floats]:
        """Return the directions of largest variance, and the draws that fixed them along them."""
        self._watch("directions", 0.0)
        rows = RowStore(draws * len(self._clients), self._model.size)
        updates = self._sampler.updates(self._model, self._clients, draws, stream)
        for done, row in enumerate(finite(updates), 1):
            rows.add(row)
            if done % len(self._clients) == 0:
                self._watch("directions", done / len(rows))
        found = leading_directions(rows, draws, rank)
        # (draws · clients, rank), block by block of columns: the rows may not fit into memory at
        # once.
        along = np.zeros((len(rows), found.rank))
        for at, block in rows.blocks():
            along += block @ found.directions[at].astype(block.dtype)
        return found, along.reshape(draws, len(self._clients), -1)

    def along(self, subspace: Subspace, draws: int, stream: Stream) -> Floats:
        """Return draws of all clients along the directions, (draws, clients, rank)."""
        chunks = self._chunks("draws", draws, stream, subspace.directions)
        return np.concatenate(list(chunks)).astype(np.float64)

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


def most_directions(draws: int, clients: int) -> int:
    """Return the largest rank that this many draws allow without noise.

    With one part left out, the covariance of the others' sum must still have four times as many
    degrees of freedom.
    """
    return (draws - -(-draws // min(draws, PARTS)) - 1) * (clients - 1) // 4
