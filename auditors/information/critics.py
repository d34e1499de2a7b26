"""Critics T(x, z) that tell pairs from strangers, and the pairs that they are trained on.

Sources: Belghazi et al. 2018, Mutual Information Neural Estimation (arXiv:1801.04062), as Elkordy
et al. 2023 (arXiv:2208.02304) use it on one client's update x and the sum z; Nguyen, Wainwright and
Jordan 2010 (arXiv:0809.0853) for NWJ. How ours differs:

1. Weights carry a leading axis of models, (models, in, out), so all critics train in one product.
2. A critic starts at the log density ratio of Gaussians: a network alone needs thousands of pairs
   before it finds the little that one client leaves in a sum.
3. **Draws are recombined.** Clients draw independently, so any draw of each client makes a sum of
   the right distribution. A few draws of all clients give thousands of pairs (x, z).
4. **Strangers are matched.** A stranger of (x, z) is the same x with the same sum, in which another
   draw of the client takes the place of x. That sum is independent of x, and most of what varies
   between the two scores cancels.
5. **Pairs of all clients are pooled.** The sum does not depend on which client I is picked, so
   I(x_I; z) is at most the mean of I(x_i; z) over the clients, and equal to it if they are alike.
6. **Nothing is read off on training draws.** Each critic has draws for training, for choosing its
   step and for the test. The value is NWJ on the test draws. Its mean is at most I(x_I; z) for any
   critic that has not seen them: every recombined pair has the joint distribution exactly, although
   pairs share draws. A critic that validation finds no better than none counts as 0.

Clients that share one partition are not independent. Their draws are not recombined, and a stranger
is the sum of another draw.

Torch is imported on use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.finding import Game
from leakmeter.auditors.values import Floats

if TYPE_CHECKING:
    from torch import Tensor

PARTS = 4  # of the draws: a test, a validation, and the rest for training
_PAIRS = (1024, 512, 1024)  # recombined for training, validation and test
_SUMS = 64  # among them at least
_BATCH = 128
_CHECK_EVERY = 5
_BEND = 3.0  # standard deviations at which inputs are bent: a monotone map keeps the information
_LARGEST = 0.99  # correlation that a critic starts at
_BETAS = 0.9, 0.999  # of Adam's two moments


@dataclass(frozen=True)
class GuidedCritic:
    """A network on x and z, added to a quadratic form that starts at the ratio of Gaussians.

    Its gradient is written out: for networks this small, autograd costs more than the products.

    Attributes:
        flat: All weights, (models, any): one step of Adam moves them together.
        parts: The same by name, as views of `flat`: those of the network of the paper, whose last
            layer starts at 0; then those of x_i z_j, (models, width, width), and of x_i² and z_i²,
            (models, 1, width) each.
        most: Scores are clipped to ±most: nobody can show more than ln K from K pairs.
    """

    flat: Tensor
    parts: tuple[Tensor, ...]
    most: float

    @classmethod
    def drawn(
        cls,
        correlations: NDArray[np.float64],
        hidden: int,
        most: float,
        rngs: Sequence[np.random.Generator],
        device: str = "cpu",
    ) -> GuidedCritic:
        """Return one critic per generator.

        Args:
            correlations: Of each coordinate of x with that of z, (models, width), in [0, 1).
            hidden: Width of both hidden layers.
            most: Where scores are clipped.
            rngs: One per model, for its weights.
            device: Where the critics are to be trained. Weights are drawn on the CPU, so they are
                the same on every device.
        """
        import torch

        width = correlations.shape[1]
        first, second = (2 * width, (width, width, 1)), (hidden, (hidden, 1, 1))
        network = [
            normal((inputs, hidden), fan_in, rngs).detach()
            for fan_in, layer in (first, second)
            for inputs in layer
        ]
        rho = torch.from_numpy(correlations.astype(np.float32))
        # Of standard normals with correlation ρ the log density ratio is, up to a constant,
        # (ρ x z - ρ² (x² + z²) / 2) / (1 - ρ²).
        slope = rho / (1 - rho**2)
        square = (-rho * slope / 2)[:, None]
        drawn = [*network[:-1], 0 * network[-1], torch.diag_embed(slope), square, square]
        flat = torch.cat([weight.flatten(1) for weight in drawn], dim=1).to(device)
        cut = torch.split(flat, [weight[0].numel() for weight in drawn], dim=1)
        views = (own.view(w.shape) for own, w in zip(cut, drawn, strict=True))
        return cls(flat, tuple(views), most)

    def matched(self, x: Tensor, z: Tensor, strangers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of x with z, and of the same x with the strangers in place of z."""
        import torch

        scores = self._layers(x, torch.cat([z, strangers], dim=1))[2]
        scores = scores.clamp_(-self.most, self.most)
        return scores[:, : x.shape[1]], scores[:, x.shape[1] :]

    def gradient(self, x: Tensor, z: Tensor, strangers: Tensor) -> Tensor:
        """Return the gradient of each model's Donsker-Varadhan value, (models, any) as `flat`."""
        import torch

        pairs, both = x.shape[1], torch.cat([z, strangers], dim=1)
        first, second, scores = self._layers(x, both)
        slope = torch.full_like(scores, 1 / pairs)  # of the value along each score
        slope[:, pairs:] = -scores[:, pairs:].clamp(-self.most, self.most).softmax(1)
        slope *= scores.abs() <= self.most
        _, _, _, w_second, _, w_last, *_ = self.parts
        row = slope[:, None]  # (models, 1, rows)
        # A layer after its ReLU is 0 or more; its sign is the ReLU's slope, without a bool.
        to_second = (slope[:, :, None] * w_last).mul_(second.sign())  # (models, rows, hidden)
        to_first = (to_second @ w_second.mT).mul_(first.sign())
        to_x = to_first[:, :pairs] + to_first[:, pairs:]  # both scores of a pair have the same x
        met = slope[:, :, None] * both
        found = (
            x.mT @ to_x,
            both.mT @ to_first,
            to_x.sum(1, keepdim=True),
            first.mT @ to_second,
            to_second.sum(1, keepdim=True),
            row @ second,
            x.mT @ (met[:, :pairs] + met[:, pairs:]),
            (row[:, :, :pairs] + row[:, :, pairs:]) @ x.square(),
            row @ both.square(),
        )
        return torch.cat([part.flatten(1) for part in found], dim=1)

    def _layers(self, x: Tensor, both: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return two hidden layers, (models, rows, hidden), and scores, (models, rows), unclipped.

        Rows are those of `both`: the z, then the strangers of the same x.
        """
        import torch

        w_x, w_z, b_first, w_second, b_second, w_last, product, x_square, z_square = self.parts
        twice = (len(x), 2, x.shape[1], -1)
        first = both @ w_z
        first.view(twice).add_((x @ w_x).add_(b_first)[:, None])
        second = torch.baddbmm(b_second, first.relu_(), w_second).relu_()
        # x_square·x² + z·(product x + z_square z), and the network's last layer
        inner = both * z_square
        inner.view(twice).add_((x @ product)[:, None])
        scores = (second * w_last).sum(-1).add_(inner.mul_(both).sum(-1))
        scores.view(twice[:-1]).add_((x.square() * x_square).sum(-1)[:, None])
        return first, second, scores


class Adam:
    """Ascent by Adam (Kingma and Ba 2015, arXiv:1412.6980, Algorithm 1).

    The same numbers as torch's, which imports its compiler with the first step: three seconds.

    Args:
        weight: What is trained, in place.
        rate: How far it may move in a step.
    """

    def __init__(self, weight: Tensor, rate: float) -> None:
        self._weight, self._rate, self._steps = weight, rate, 0
        self._mean, self._square = weight.mul(0.0), weight.mul(0.0)

    def step(self, gradient: Tensor) -> None:
        """Move the weight along a gradient."""
        self._steps += 1
        # Corrections of the moments' start at 0 (Algorithm 1, last lines).
        first, second = (1 - beta**self._steps for beta in _BETAS)
        self._mean.lerp_(gradient, 1 - _BETAS[0])
        self._square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        size = (self._square.sqrt() / second**0.5).add_(1e-8)
        self._weight.addcdiv_(self._mean, size, value=self._rate / first)


def train(
    critic: GuidedCritic, parts: Sequence[Sequence[Tensor]], *, steps: int, rate: float
) -> list[float]:
    """Train in place and return the held-out value of every model.

    Args:
        critic: One for each model.
        parts: For training, validation and test: updates, sums and strangers of every model,
            (models, pairs, width) each, on the critic's device.
        steps: Steps of ascent; validation chooses one of them.
        rate: Learning rate of Adam.
    """
    import torch

    fitting, choosing, testing = parts

    def value(of: Sequence[Tensor], offset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        joint, strangers = critic.matched(*of)
        offset = log_mean_exp(strangers) if offset is None else offset
        return nwj(joint, strangers, offset), offset

    def look() -> None:
        """Keep the weights of the models that have improved."""
        now, _ = value(choosing)
        better = now > best  # never so for a value that is not a number
        best[better], kept[better] = now[better], critic.flat[better]

    best, kept = critic.flat.new_full((len(critic.flat),), -torch.inf), critic.flat.clone()
    adam, last = Adam(critic.flat, rate), fitting[0].shape[1] - _BATCH
    for step in range(steps):
        if step % _CHECK_EVERY == 0:
            look()
        start = step * _BATCH % (last + 1)
        adam.step(critic.gradient(*(rows[:, start : start + _BATCH] for rows in fitting)))
    look()
    critic.flat.copy_(kept)
    found, _ = value(testing, value(choosing)[1])
    values: list[float] = torch.where(best > 0, found, torch.zeros_like(found)).tolist()
    return values


def nwj(joint: Tensor, strangers: Tensor, offset: Tensor) -> Tensor:
    """Return E_P[T - c] - E_Q[e^(T - c)] + 1 per model.

    Its expectation is at most the information for any T and c that do not depend on the samples:
    take the offset c from others.
    """
    return joint.mean(1) - offset - (strangers - offset[:, None]).exp().mean(1) + 1


def log_mean_exp(scores: Tensor) -> Tensor:
    """Return ln of the mean of e^score per model."""
    return scores.logsumexp(1) - math.log(scores.shape[1])


def normal(shape: tuple[int, int], fan_in: int, rngs: Sequence[np.random.Generator]) -> Tensor:
    """Return weights with the variance of torch's `Linear`, 1 / (3 fan_in)."""
    import torch

    drawn = [rng.standard_normal(shape, dtype=np.float32) for rng in rngs]
    return torch.from_numpy(np.stack(drawn) / np.float32(math.sqrt(3 * fan_in))).requires_grad_()


@dataclass(frozen=True)
class Pairing:
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
        game: Game,
    ) -> Pairing:
        """Split the draws and measure scales on the training draws.

        Clients of one partition depend on each other, so their draws cannot be recombined. In
        "rerun" clients keep their data, so each has a mean of its own.
        """
        quarters = np.array_split(order, PARTS)
        testing, choosing, *rest = (quarters[(turn + i) % PARTS] for i in range(PARTS))
        train = np.concatenate([rows[np.concatenate(rest)], fitted])  # (draws, clients, width)
        each = train.mean(axis=0)
        centre = each if game == "rerun" else np.broadcast_to(each.mean(axis=0), each.shape)
        x_std = np.sqrt(np.square(train - centre).mean(axis=(0, 1)))
        if game == "partition":
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
            game == "partition",
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
