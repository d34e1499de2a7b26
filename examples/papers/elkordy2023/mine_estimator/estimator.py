"""The neural estimate of I(x; z) of the paper, run so that one sees what it is worth.

Elkordy et al. 2023, How Much Privacy Does Federated Learning with Secure Aggregation Guarantee?
(arXiv:2208.02304), §4.1 and Appendix D: a network with two hidden layers of 100, 1,000 steps of
ascent on the Donsker-Varadhan bound (38), read off on its own training samples.

How ours differs:
1. The last formula of Appendix D lacks the bar on z in its second sum; strangers are meant.
2. Besides the paper's figure there are held-out ones from samples that neither trained the critic
   nor chose its step, the same for shuffled pairs, which carry no information, and ln K, beyond
   which nothing distribution-free can be certified (McAllester and Stratos 2020, arXiv:1811.04251).
3. With more coordinates than samples both are first rotated to as many as there are samples. Under
   plain ascent that changes no score; Adam works coordinate by coordinate, so there it changes the
   path, not the model.
4. All seeds and all shuffles train side by side (see `critics`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from leakmeter.auditors.information.theory import Information
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from leakmeter.papers.elkordy2023.mine_estimator.training import Outcome, Samples, Training, train

Rows = NDArray[np.floating[Any]]

_COLUMNS = 4096  # of wide samples at a time


@dataclass(frozen=True)
class Spread:
    """One figure in nats over several seeds, that is over weights, splits and shuffles.

    Attributes:
        values: One per seed.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.values))

    @property
    def std_error(self) -> float:
        """Standard error of the mean; critics share the samples, so it is not all."""
        return float(np.std(self.values, ddof=1) / math.sqrt(len(self.values)))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean by Student's t."""
        # A handful of seeds: the normal quantile 1.96 would be too short (2.78 for five).
        reach = float(stdtrit(len(self.values) - 1, 0.975)) * self.std_error
        return self.mean - reach, self.mean + reach

    @property
    def band(self) -> tuple[float, float]:
        """5 % and 95 % quantile over the seeds."""
        low, high = np.quantile(self.values, [0.05, 0.95])
        return float(low), float(high)


@dataclass(frozen=True)
class NeuralEstimate:
    """What critics found, in nats; nothing here certifies the information from above.

    Attributes:
        objective: What the critics were trained on.
        trained: The objective on the training samples after the last step: the paper's figure.
        last: The same critics' objective on test samples.
        held_out: The objective on test samples, of the critics that validation chose.
        dv: Donsker-Varadhan of those; biased upwards and heavy-tailed.
        nwj: NWJ of those, at most the information in expectation.
        null_trained: The paper's figure when pairs are shuffled: what it finds in nothing.
        null_nwj: The held-out NWJ then.
        stopped: Steps that validation chose.
        samples: Pairs K in all, and for training, validation and test.
    """

    objective: str
    trained: Spread
    last: Spread
    held_out: Spread
    dv: Spread
    nwj: Spread
    null_trained: Spread
    null_nwj: Spread
    stopped: tuple[int, ...]
    samples: dict[str, int]

    @property
    def log_samples(self) -> float:
        """ln K in nats: no distribution-free lower bound from K samples goes beyond about this."""
        return math.log(self.samples["pairs"])

    def information(self) -> Information:
        """Return the mean held-out NWJ value as the figure to report."""
        return Information(
            nats=self.nwj.mean,
            kind="estimate",
            rule=f"held-out NWJ of {self.objective} critics, {len(self.nwj.values)} seeds",
            std_error=self.nwj.std_error,
            sample_sizes=self.samples,
            cap=self.log_samples,
            assumptions=(Assumption.GOOD_CRITIC,),
        )


def estimate(
    x: Rows,
    z: Rows,
    *,
    seed: int,
    training: Training | None = None,
    seeds: int = 5,
    nulls: int = 5,
) -> NeuralEstimate:
    """Return neural estimates of I(x; z) from K pairs of rows.

    Every coordinate is centred and divided by its standard deviation first, which changes no
    information; constant ones are left out. Each seed has its own split: three fifths of the pairs
    train, one fifth chooses the step, one fifth is the test.

    Args:
        x: Draws of a client's update, (K, d).
        z: What the server saw with each of them, (K, any), such as the sum.
        seed: Of all randomness here; equal seeds give equal estimates.
        training: How critics are trained; None takes the paper's.
        seeds: Critics on the pairs as they are, at least 2.
        nulls: Critics on shuffled pairs, at least 2.

    Example:
        found = estimate(updates, sums, seed=0)
        print(found.trained.mean, found.nwj.interval, found.null_trained.band, found.log_samples)
    """
    training = Training() if training is None else training
    for name, value in (("seeds", seeds), ("nulls", nulls)):
        if value < 2:
            raise ValueError(f"{name} must be at least 2, got {value}")
    if x.ndim != 2 or z.ndim != 2 or len(x) != len(z):
        raise ValueError(f"x and z must be (K, any) with one K, got {x.shape} and {z.shape}")
    if len(x) < 20:
        raise ValueError(f"x must have at least 20 rows, got {len(x)}")
    scaled = [_standard("x", x), _standard("z", z)]
    names = [("seed", i) for i in range(seeds)] + [("null", i) for i in range(nulls)]
    rngs = [stream(seed, "mine", *name) for name in names]
    if not all(part.shape[1] for part in scaled):  # a constant says nothing
        found = Outcome(*(np.zeros(len(rngs)) for _ in range(6)))
        sizes = {"pairs": len(x)}
    else:
        parts = _split([rotated(part) for part in scaled], seeds, rngs)
        fan_in = scaled[0].shape[1] + scaled[1].shape[1]
        found = train(parts, training, fan_in, rngs)
        rows = (part.x.shape[1] for part in parts)
        sizes = {"pairs": len(x), **dict(zip(("train", "validation", "test"), rows, strict=True))}
    return NeuralEstimate(
        objective=training.objective,
        **{
            name: Spread(tuple(getattr(found, name)[:seeds].tolist()))
            for name in ("trained", "last", "held_out", "dv", "nwj")
        },
        null_trained=Spread(tuple(found.trained[seeds:].tolist())),
        null_nwj=Spread(tuple(found.nwj[seeds:].tolist())),
        stopped=tuple(int(step) for step in found.stopped[:seeds]),
        samples=sizes,
    )


def rotated(rows: Rows) -> Rows:
    """Return rows in a basis of their own span if that has fewer coordinates, X = L Q; else as is.

    The gradient of first-layer weights is a sum of rows times numbers, so plain ascent never leaves
    the rows' span: critics on L with weights W Qᵀ have at each step the scores of those on X.
    """
    count, width = rows.shape
    if width <= count:
        return rows
    # X Xᵀ = V Λ Vᵀ, (K, K), so L = V √Λ has the same inner products of rows as X, (K, rank).
    gram = np.zeros((count, count))
    for start in range(0, width, _COLUMNS):
        some = rows[:, start : start + _COLUMNS].astype(np.float64)
        gram += some @ some.T
    spectrum, vectors = np.linalg.eigh(gram)
    # Centred rows have at most K - 1 directions; the last eigenvalue is rounding.
    real = spectrum > 1e-10 * spectrum[-1]
    return np.asarray(vectors[:, real] * np.sqrt(spectrum[real]))


def _standard(name: str, rows: Rows) -> Rows:
    """Return the coordinates that vary, with mean 0 and variance 1, in single precision."""
    mean = rows.mean(axis=0, dtype=np.float64)
    std = rows.std(axis=0, dtype=np.float64)
    if not np.isfinite(std).all():
        raise ValueError(f"{name} must be finite, got {rows[~np.isfinite(rows)][0]}")
    moving = std > 64 * np.finfo(rows.dtype).eps * np.abs(mean)
    # In the rows' own precision, since wide rows in double would fill the memory.
    scaled = rows[:, moving] - mean[moving].astype(rows.dtype)
    scaled /= std[moving].astype(rows.dtype)
    return np.asarray(scaled, dtype=np.float32)


def _split(
    rows: Sequence[Rows], seeds: int, rngs: Sequence[np.random.Generator]
) -> tuple[Samples, Samples, Samples]:
    """Return training, validation and test samples per model; from `seeds` on, of strangers."""
    import torch

    count = len(rows[0])
    orders_x = np.stack([rng.permutation(count) for rng in rngs])
    shuffled = [rng.permutation(count) for rng in rngs[seeds:]]
    # (models, K): the same order for both keeps pairs together, another one makes strangers of
    # them.
    orders_z = np.concatenate([orders_x[:seeds], shuffled])
    x, z = (torch.from_numpy(np.asarray(part, dtype=np.float32)) for part in rows)
    # Samples of (models, rows, width): each model has its own split of the same K pairs.
    cuts = [0, 3 * count // 5, 4 * count // 5, count]
    first, second, third = (
        Samples(x[orders_x[:, a:b]], z[orders_z[:, a:b]]) for a, b in pairwise(cuts)
    )
    return first, second, third
