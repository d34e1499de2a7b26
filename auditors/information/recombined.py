"""Held-out critics from few draws of many clients, as an audit of every round has them.

Source: Belghazi et al. 2018, Mutual Information Neural Estimation (arXiv:1801.04062), as Elkordy et
al. 2023 (arXiv:2208.02304) use it on one client's update x and the sum z. How ours differs:

1. **Draws are recombined.** Clients draw independently, so any draw of each client makes a sum of
   the right distribution. A few draws of all clients give thousands of pairs (x, z).
2. **Strangers are matched.** A stranger of (x, z) is the same x with the same sum, in which another
   draw of the client takes the place of x. That sum is independent of x, and most of what varies
   between the two scores cancels.
3. **Pairs of all clients are pooled.** The sum does not depend on which client I is picked, so
   I(x_I; z) is at most the mean of I(x_i; z) over the clients, and equal to it if they are alike.
4. **Nothing is read off on training draws.** Each critic has draws for training, for choosing its
   step and for the test, and the draws that fixed the directions train too. The value is NWJ on the
   test draws (Nguyen, Wainwright and Jordan 2010, arXiv:0809.0853). Its mean is at most I(x_I; z)
   for any critic that has not seen them: every recombined pair has the joint distribution exactly,
   although pairs share draws. A critic that validation finds no better than none counts as 0.
5. Critics start at the log density ratio of Gaussians (`critics.GuidedCritic`).

Clients that share one partition are not independent. Their draws are not recombined, and a stranger
is the sum of another draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from leakmeter.auditors._types import Floats, within
from leakmeter.auditors.information.critics import Adam, Best, GuidedCritic, log_mean_exp, nwj
from leakmeter.auditors.rng import stream

if TYPE_CHECKING:
    from torch import Tensor

MIN_DRAWS = 8  # two in each of four parts: a stranger takes another draw of the same part
MIN_PAIRS = 20
_PARTS = 4
_PAIRS = (1024, 512, 1024)  # recombined for training, validation and test
_SUMS = 64  # among them at least
_BATCH = 128
_CHECK_EVERY = 5
_BEND = 3.0  # standard deviations at which inputs are bent: a monotone map keeps the information
_LARGEST = 0.99  # correlation that a critic starts at


@dataclass(frozen=True)
class Critics:
    """How many critics look at a round, and how they are trained.

    Attributes:
        count: Critics on the pairs as they are, and as many on shuffled ones. Four, or a multiple,
            test on every draw equally often.
        steps: Steps of ascent; validation chooses one of them.
        hidden: Width of both hidden layers.
        rate: Learning rate of Adam.
    """

    count: int = 4
    steps: int = 20
    hidden: int = 32
    rate: float = 1e-3

    def __post_init__(self) -> None:
        for name, lowest in (("count", 2), ("steps", 0), ("hidden", 1)):
            within(name, getattr(self, name), lowest=lowest)
        within("rate", self.rate, above=0.0)


@dataclass(frozen=True)
class SeveralCritics:
    """One figure in nats of several critics.

    Attributes:
        values: One per critic.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the critics."""
        return float(np.mean(self.values))

    @property
    def std_error(self) -> float:
        """Standard error of the mean; critics share the samples, so it is not all."""
        return float(np.std(self.values, ddof=1) / math.sqrt(len(self.values)))


@dataclass(frozen=True)
class HeldOut(SeveralCritics):
    """Held-out NWJ values: their mean over the critics is the estimate.

    Attributes:
        nulls: One per critic on shuffled pairs.
        pairs: Updates behind them, K: draws times clients.
    """

    nulls: tuple[float, ...]
    pairs: int

    @property
    def null_band(self) -> tuple[float, float]:
        """What critics find in shuffled pairs: 90 %, widened by the error of the estimate."""
        return null_band(self.nulls, 1.0, self.std_error)

    @property
    def cap(self) -> float:
        """ln K: no distribution-free lower bound from K pairs goes much beyond it."""
        return math.log(self.pairs)


def null_band(nulls: Sequence[float], share: float, error: float) -> tuple[float, float]:
    """Return Student's 90 % band of an estimate without a leak.

    Critics on shuffled pairs often find exactly 0, while an estimate varies with its test draws. So
    its own error counts too: without it, next to nothing would be beyond the band.

    Args:
        nulls: Values without a leak, at least 2.
        share: Variance of the estimate without a leak, as a share of that of one value.
        error: Standard error of the estimate.

    >>> low, high = null_band([-1.0, 0.0, 1.0], 1.0, 0.0)
    >>> round(low, 2), round(high, 2)
    (-3.37, 3.37)
    """
    variance = float(np.var(nulls, ddof=1)) * (share + 1 / len(nulls)) + error**2
    reach = float(stdtrit(len(nulls) - 1, 0.95)) * math.sqrt(variance)
    return float(np.mean(nulls)) - reach, float(np.mean(nulls)) + reach


def held_out(
    rows: Floats,
    fitted: Floats,
    *,
    critics: Critics,
    path: Sequence[str | int],
    seed: int,
    noise_std: float = 0.0,
    is_dealt: bool = False,
    keeps_data: bool = False,
) -> HeldOut:
    """Return what critics find on draws that they were not trained on.

    Args:
        rows: Draws of all clients of a sum, (draws, clients, width), at least 8.
        fitted: Further draws that only train, (any, clients, width).
        critics: How many, and how they are trained.
        path: Names the randomness, together with the seed.
        seed: Of all randomness here.
        noise_std: Noise on each coordinate of the sum.
        is_dealt: Whether clients share one partition, so that draws cannot be recombined.
        keeps_data: Whether clients keep their data, so that each has a mean of its own.
    """
    import torch

    within("draws", len(rows), lowest=MIN_DRAWS)
    within("draws times clients", rows.shape[0] * rows.shape[1], lowest=MIN_PAIRS)
    names = [(kind, i) for kind in ("pairs", "shuffled") for i in range(critics.count)]
    rngs = [stream(seed, "mine", *path, *name) for name in names]
    games = [
        _Game.of(
            rows,
            fitted,
            # Both kinds split the draws alike; every four critics have an order of their own.
            order=stream(seed, "mine", *path, "split", i // _PARTS).permutation(len(rows)),
            turn=i % _PARTS,
            noise_std=noise_std,
            is_dealt=is_dealt,
            keeps_data=keeps_data,
        )
        for _, i in names
    ]
    played = [
        game.pairs(rng, is_shuffled=kind == "shuffled")
        for game, rng, (kind, _) in zip(games, rngs, names, strict=True)
    ]
    fitting, choosing, testing = (
        _Matched(*(torch.from_numpy(np.stack(rows)) for rows in zip(*part, strict=True)))
        for part in zip(*played, strict=True)
    )
    pairs = rows.shape[0] * rows.shape[1]
    correlations = np.stack([game.correlations for game in games])
    critic = GuidedCritic.drawn(correlations, critics.hidden, math.log(pairs), rngs)
    values = _trained(critic, fitting, choosing, testing, critics)
    return HeldOut(tuple(values[: critics.count]), tuple(values[critics.count :]), pairs)


@dataclass(frozen=True)
class _Matched:
    """Pairs and their strangers, (models, pairs, width) each."""

    x: Tensor
    z: Tensor
    strangers: Tensor

    def some(self, start: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        here = slice(start, start + count)
        return self.x[:, here], self.z[:, here], self.strangers[:, here]


def _trained(
    critic: GuidedCritic, fitting: _Matched, choosing: _Matched, testing: _Matched, how: Critics
) -> list[float]:
    """Train in place and return the held-out value of every model."""
    import torch

    def value(of: _Matched, offset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        joint, strangers = critic.matched(of.x, of.z, of.strangers)
        offset = log_mean_exp(strangers) if offset is None else offset
        return nwj(joint, strangers, offset), offset

    best = Best(critic)
    optimizer = Adam([(weight, how.rate) for weight in critic.weights])
    last = fitting.x.shape[1] - _BATCH
    for step in range(how.steps):
        if step % _CHECK_EVERY == 0:
            best.look(critic, value(choosing)[0], step)
        batch = fitting.some(step * _BATCH % (last + 1), _BATCH)
        critic.flat.grad = critic.gradient(*batch)
        optimizer.step()
    best.look(critic, value(choosing)[0], how.steps)
    best.put_back(critic)
    found, _ = value(testing, value(choosing)[1])
    return [float(v) for v in torch.where(best.value > 0, found, torch.zeros_like(found))]


@dataclass(frozen=True)
class _Game:
    """Draws of one critic, split in three, and how its inputs are scaled.

    Attributes:
        parts: For training, validation and test, (draws, clients, width) each.
        centre: Mean of x, (clients, width), and of z, (width,).
        spread: Standard deviation of x and of z, (width,) each; 1 where nothing varies.
        correlations: Between x and z, (width,).
        noise_std: Noise on each coordinate of the sum.
        is_dealt: Whether draws cannot be recombined.
    """

    parts: tuple[Floats, Floats, Floats]
    centre: tuple[Floats, Floats]
    spread: tuple[Floats, Floats]
    correlations: Floats
    noise_std: float
    is_dealt: bool

    @classmethod
    def of(
        cls,
        rows: Floats,
        fitted: Floats,
        *,
        order: NDArray[np.int64],
        turn: int,
        noise_std: float,
        is_dealt: bool,
        keeps_data: bool,
    ) -> _Game:
        """Split the draws and measure scales on the training draws."""
        quarters = np.array_split(order, _PARTS)
        testing, choosing, *rest = (quarters[(turn + i) % _PARTS] for i in range(_PARTS))
        train = np.concatenate([rows[np.concatenate(rest)], fitted])  # (draws, clients, width)
        each = train.mean(axis=0)
        centre = each if keeps_data else np.broadcast_to(each.mean(axis=0), each.shape)
        x_std = np.sqrt(np.square(train - centre).mean(axis=(0, 1)))
        if is_dealt:
            own = train.sum(axis=1).var(axis=0, ddof=1)
        else:
            own = train.var(axis=0, ddof=1).sum(axis=0)  # variances of independent clients add up
        z_std = np.sqrt(own + noise_std**2)
        x_std, z_std = (np.where(std > 0, std, 1.0) for std in (x_std, z_std))
        # The clients' covariances with the sum add up to its variance.
        correlations = own / rows.shape[1] / (x_std * z_std)
        return cls(
            (train, rows[choosing], rows[testing]),
            (np.asarray(centre), each.sum(axis=0)),
            (x_std, z_std),
            np.clip(correlations, 0.0, _LARGEST),
            noise_std,
            is_dealt,
        )

    def pairs(
        self, rng: np.random.Generator, *, is_shuffled: bool
    ) -> list[tuple[NDArray[np.float32], ...]]:
        """Return x, z and strangers of every part, (pairs, width) each."""
        return [
            self._part(part, count, rng, is_shuffled)
            for part, count in zip(self.parts, _PAIRS, strict=True)
        ]

    def _part(
        self, part: Floats, count: int, rng: np.random.Generator, is_shuffled: bool
    ) -> tuple[NDArray[np.float32], ...]:
        draws, clients, _ = part.shape
        each = count // _SUMS
        if self.is_dealt:  # one draw of all clients together
            chosen = np.broadcast_to(rng.integers(draws, size=(_SUMS, 1)), (_SUMS, clients))
        else:
            chosen = rng.integers(draws, size=(_SUMS, clients))
        sums = part[chosen, np.arange(clients)].sum(axis=1)  # (sums, width)
        sums = sums + self.noise_std * rng.standard_normal(sums.shape)
        who = rng.integers(clients, size=(_SUMS, each))
        drawn = np.take_along_axis(chosen, who, axis=1)
        other = (drawn + rng.integers(1, draws, size=drawn.shape)) % draws  # never the same
        z = sums[:, None]
        if self.is_dealt:
            strangers = z + part.sum(axis=1)[other] - part.sum(axis=1)[drawn]
        else:
            strangers = z - part[drawn, who] + part[other, who]  # (sums, each, width)
        # A draw and a sum are in many pairs, so they are bent before they are repeated.
        x = _bent((part - self.centre[0]) / self.spread[0])[drawn, who]
        z, strangers = (_bent((one - self.centre[1]) / self.spread[1]) for one in (z, strangers))
        z = np.broadcast_to(z, x.shape)
        if is_shuffled:
            # A coin decides which of the two sums an update is paired with. All pairs of one update
            # share it, as they share their chance deviations.
            coins = rng.random((draws, 1 if self.is_dealt else clients)) < 0.5
            swap = coins[drawn, 0 if self.is_dealt else who][..., None]
            z, strangers = np.where(swap, strangers, z), np.where(swap, z, strangers)
        order = rng.permutation(x.shape[0] * x.shape[1])
        bent = (one.reshape(-1, x.shape[-1]) for one in (x, z, strangers))
        return tuple(one[order].astype(np.float32) for one in bent)


def _bent(rows: Floats) -> Floats:
    """Return rows whose tails grow like logarithms, so that no score explodes."""
    size = np.abs(rows) / _BEND
    # The inverse hyperbolic sine, to 1e-15; numpy's own takes three times as long.
    return np.copysign(_BEND * np.log(size + np.sqrt(size * size + 1)), rows)
