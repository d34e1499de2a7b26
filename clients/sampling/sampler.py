"""Fresh local updates by the ten thousand, for audits that need the distribution of an update.

A call is cut into pieces whose bounds depend on nothing but the call, and every client of every
draw has generators of its own. So a number depends neither on the workers nor on who else was
asked for, save for the last bits of single precision, which depend on the piece.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakmeter.auditors._types import Indices
from leakmeter.auditors.finding import Game
from leakmeter.auditors.sampler import HOLDING_OUT, Stream
from leakmeter.clients.cohort.cohort import Cohort
from leakmeter.clients.sampling.chunks import Array, Job, Piece, Sampling
from leakmeter.clients.sampling.postprocess import Postprocess
from leakmeter.clients.sampling.source import Generators, Kept, Source

# A piece holds at most this many updates, and at most this many bytes of them.
_MOST_UPDATES, _MOST_BYTES = 2048, 2**26
# Updates that tell how long one of many takes, unless so many would take more than so many seconds.
_FEW, _ENOUGH = 32, 0.5


class _Spares(threading.local):
    """The generators of this thread's earlier pieces, which the next one uses again."""

    def __init__(self) -> None:
        self.generators: list[np.random.Generator] = []


_spares = _Spares()


class CohortSampler(Sampling):
    """Trains the redraws in this process, many at once.

    Args:
        cohort: Trains clients; knows model and update rule.
        data: Inputs and labels of all records.
        source: Which client has which records in a draw, and so which game is played.
        seed: The run's seed.
        postprocess: What a client does to its update before the sum (clip, noise, round); None for
            nothing.
        chunk: Most updates in memory at once; None: as many as fit in 64 MB, at most 2048.
        weighted: Whether the server weights clients by their examples; False for equal weights.
        holdings: The records that each client really holds, where a round is to be judged.

    Example:
        sampler = CohortSampler(Cohort(module, rule), (x, y), Kept(parts), seed=0)
        moments = sampler.moments(model, clients=[1, 2, 3], draws=1000, stream=("fit", 1))
    """

    def __init__(
        self,
        cohort: Cohort,
        data: tuple[Tensor, Tensor],
        source: Source,
        *,
        seed: int,
        postprocess: Postprocess | None = None,
        chunk: int | None = None,
        weighted: bool = True,
        holdings: Sequence[Indices] | None = None,
    ) -> None:
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        x, y = data
        if len(x) != len(y):
            raise ValueError(f"y must have one label per record ({len(x)}), got {len(y)}")
        self._cohort, self._x, self._y = cohort, x, y
        self._source, self._seed, self._postprocess = source, seed, postprocess
        self._weighted, self._holdings = weighted, holdings
        self._kept: tuple[str | int, ...] | None = None  # names the data, if not the call's stream
        most = min(_MOST_BYTES // (4 * cohort.dim), _MOST_UPDATES)
        self._chunk = chunk or max(most, 1)
        self._scale = float(cohort.weights(source.usual()).mean()) if weighted else 1.0

    @property
    def game(self) -> Game:
        return self._source.game

    @property
    def scale(self) -> float:
        return self._scale

    @property
    def free(self) -> Indices | None:
        return self._cohort.free if self._postprocess is None else None

    @property
    def sends_gradient(self) -> bool | None:
        return self._cohort.sends_gradient

    @property
    def chunk(self) -> int:
        return self._chunk

    def seconds(self, model: Array, client: int) -> float:
        """Return about how long one of many updates takes on an idle machine.

        It trains one, once more since the first may have to load something, and then a few together
        if they are short. Their randomness is of a stream of its own.
        """
        each = math.inf
        for draws in (1, 1, _FEW):
            if draws > 1 and draws * each > _ENOUGH:
                break
            begin = time.process_time()  # other work on the machine does not count
            for _ in self.sample(model, [client], draws, ("seconds",)):
                pass
            each = min(each, (time.process_time() - begin) / draws)
        return each

    def keeping(self, stream: Stream) -> CohortSampler:
        """Return the sampler whose clients hold, in draw t of any call, what this stream says."""
        other = copy.copy(self)
        other._kept, other._source = tuple(stream), self._source.settled()
        return other

    def holding(self, client: int, stream: Stream, draw: int) -> CohortSampler:
        """Return the sampler in which `client` always has the records of one draw of a stream."""
        other = copy.copy(self)
        records = self.held(client, stream, [draw])
        other._source = Kept((records,) * (client + 1))  # nobody else is asked for
        other._kept = None
        return other

    def shares(self, clients: Sequence[int], draw: int, stream: Stream) -> NDArray[np.float64]:
        """Return the clients' weights over `scale` in one draw, (clients,)."""
        if not self._weighted:
            return np.ones(len(clients))
        records, _ = self._hand(tuple(clients), draw, tuple(stream))
        return self._cohort.weights(records) / self._scale

    def excluding_drawn(self, client: int, stream: Stream, draws: Sequence[int]) -> CohortSampler:
        """Return the sampler of the other clients, given the records of `client` in these draws.

        The others never hold these records, except in the game "independent", which draws from all
        records. In the game "rerun" they never hold them anyway.
        """
        other = copy.copy(self)
        other._source = self._source.without(client, self.held(client, stream, draws))
        return other

    def held(self, client: int, stream: Stream, draws: Sequence[int]) -> Indices:
        """Return all records that `client` held in any of these draws, in order."""
        self._check((client,))
        hands = [self._hand((client,), draw, tuple(stream))[0][0] for draw in draws]
        return np.unique(np.concatenate(hands)) if hands else np.zeros(0, np.int64)

    def excluding_real(self, client: int) -> CohortSampler | None:
        """Return the sampler of the other clients, given the real records of `client`.

        None if the game depends on these records and they are not known.
        """
        if self.game not in HOLDING_OUT:
            return self
        if self._holdings is None:
            return None
        other = copy.copy(self)
        other._source = self._source.without(client, self._holdings[client])
        return other

    @property
    def has_noise(self) -> bool:
        """Whether rows carry noise that the clients add to hide themselves."""
        return self._postprocess is not None and self._postprocess.has_noise

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of all records."""
        return self._x, self._y

    def on(self, x: Tensor, y: Tensor) -> CohortSampler:
        """Return the same sampler with its data elsewhere: in another process, or nowhere."""
        other = copy.copy(self)
        other._x, other._y = x, y
        return other

    def rows(self, job: Job, piece: Piece) -> Array:
        """Return what the clients of one piece add to the sum."""
        records: list[Indices] = []
        rngs: list[np.random.Generator] = []
        spares, _spares.generators = iter(_spares.generators), []
        for draw in range(piece.first, piece.first + piece.count):
            hand, own = self._hand(piece.clients, draw, job.stream, spares)
            records += hand
            rngs += own
        # Single updates never leave the cache where nothing is done to them but a projection.
        project = job.project if self._postprocess is None else None
        along = None if project is None else torch.from_numpy(project)
        updates = self._cohort.updates(job.model, self._x, self._y, records, rngs, along)
        _spares.generators = [*rngs, *spares]  # nobody draws from them any longer
        rows = updates.cpu().numpy()
        weights = np.ones(len(records))
        if self._weighted:
            weights = self._cohort.weights(records)
        if self._postprocess is not None:
            rows = self._finished(rows, weights, job, piece)
            rows = rows if job.project is None else np.matmul(rows, job.project)
        factors = weights / self._scale
        if (factors != 1).any():
            rows *= factors.astype(rows.dtype)[:, None]
        rows = rows.reshape(*rows.shape[:-2], piece.count, len(piece.clients), -1)
        return rows.sum(axis=-2, dtype=np.float64) if job.is_summed else rows

    def _run(self, job: Job, pieces: Sequence[Piece]) -> Iterator[Array]:
        return (self.rows(job, piece) for piece in pieces)

    def _hand(
        self,
        clients: tuple[int, ...],
        draw: int,
        stream: tuple[str | int, ...],
        spares: Iterator[np.random.Generator] = iter(()),  # noqa: B008 - always empty
    ) -> tuple[list[Indices], list[np.random.Generator]]:
        """Return records and generator of each client in one draw; spare generators are used up."""
        data = stream if self._kept is None else self._kept
        shared = Generators(self._seed, *data, "deal")
        single = Generators(self._seed, *stream, "client")
        own = [single(draw, client, next(spares, None)) for client in clients]
        hold = own
        if self._kept is not None:
            kept = Generators(self._seed, *data, "client")
            hold = [kept(draw, client) for client in clients]
        return self._source.records(clients, partial(shared, draw), hold), own

    def _finished(self, rows: Array, weights: NDArray[np.float64], job: Job, piece: Piece) -> Array:
        """Return the updates as the clients send them; models share this randomness too."""
        assert self._postprocess is not None
        single = Generators(self._seed, *job.stream, "finish")
        draws = range(piece.first, piece.first + piece.count)
        done = [
            self._postprocess(
                own, weights, [single(draw, c) for draw in draws for c in piece.clients]
            )
            for own in rows.reshape(-1, *rows.shape[-2:]).astype(np.float64)
        ]
        return np.stack(done).reshape(rows.shape)

    def _check(self, clients: Sequence[int]) -> None:
        self._source.check(clients)
