"""The MINE audit: what do neural critics find of one client's update in the sum of a round?

Belghazi et al. 2018, Mutual Information Neural Estimation (arXiv:1801.04062), as in section 4.1 of
Elkordy et al. 2023 (arXiv:2208.02304). Ours differs in four points:
1. Critics look along the directions of the log-det audit (`mutual_information`), and share its
   draws. In all coordinates of a model they find next to nothing of thousands of nats.
2. Values are of draws that no critic was trained on, next to those of shuffled pairs. The paper's
   reading, on training samples, finds about as much in shuffled pairs and is not made.
3. Few draws of many clients are enough, since they are recombined (see below).
4. The figure of the run is the mean over its audited rounds, never the largest.

Critics T(x, z) that tell pairs from strangers, and the pairs that they are trained on.

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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from leakmeter.auditors.audited_round import AuditedRound, SumObserver
from leakmeter.auditors.auditor import Project
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Finding, Game
from leakmeter.auditors.information.draws import DrawPlan, Draws
from leakmeter.auditors.information.mutual_information import (
    NEURAL,
    InformationAuditor,
    InformationClaims,
)
from leakmeter.auditors.information.theory import Information, LimitOf, Theory
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import RoundSampler
from leakmeter.auditors.values import Floats, within
from leakmeter.auditors.wording import Assumption, counted

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
        x = _bend((part - self.centre[0]) / self.spread[0])[drawn, who]
        z, strangers = (_bend((one - self.centre[1]) / self.spread[1]) for one in (z, strangers))
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


def _bend(rows: Floats) -> Floats:
    """Return rows whose tails grow like logarithms, so that no score explodes."""
    size = np.abs(rows) / _BEND
    # The inverse hyperbolic sine, to 1e-15; numpy's own takes three times as long.
    return np.copysign(_BEND * np.log(size + np.sqrt(size * size + 1)), rows)


MAX_DIRECTIONS = 200  # from here on held-out critics find nothing, whatever there is
MIN_DRAWS = 8  # two in each of four parts: a stranger takes another draw of the same part
MIN_PAIRS = 20


@dataclass(frozen=True)
class Critics:
    """How many critics look at a round, and how they are trained.

    Attributes:
        count: Critics on the pairs as they are, and as many on shuffled ones. Four, or a multiple,
            test on every draw equally often.
        steps: Steps of ascent; validation chooses one of them.
        hidden: Width of both hidden layers.
        rate: Learning rate of Adam.
        device: Where torch trains them, such as "cuda". Pairs and weights are drawn on the CPU.
    """

    count: int = 4
    steps: int = 20
    hidden: int = 32
    rate: float = 1e-3
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, lowest in (("count", 2), ("steps", 0), ("hidden", 1)):
            within(name, getattr(self, name), lowest=lowest)
        within("rate", self.rate, above=0.0)


@dataclass(frozen=True)
class HeldOut:
    """Held-out NWJ values in nats: their mean over the critics is the estimate.

    Attributes:
        values: One per critic.
        nulls: One per critic on shuffled pairs.
        pairs: Updates behind them, K: draws times clients.
    """

    values: tuple[float, ...]
    nulls: tuple[float, ...]
    pairs: int

    @property
    def mean(self) -> float:
        """Mean over the critics."""
        return float(np.mean(self.values))

    @property
    def std_error(self) -> float:
        """Standard error of the mean; critics share the samples, so it is not all."""
        return float(np.std(self.values, ddof=1) / math.sqrt(len(self.values)))

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


def held_out_values(
    rows: Floats,
    fitted: Floats,
    *,
    critics: Critics,
    path: Sequence[str | int],
    seed: int,
    noise_std: float = 0.0,
    game: Game = "independent",
) -> HeldOut:
    """Return what critics find on draws that they were not trained on.

    Args:
        rows: Draws of all clients of a sum, (draws, clients, width), at least 8.
        fitted: Further draws that only train, (any, clients, width).
        critics: How many, and how they are trained.
        path: Names the randomness, together with the seed.
        seed: Of all randomness here.
        noise_std: Noise on each coordinate of the sum.
        game: What is random in the draws.
    """
    import torch

    within("draws", len(rows), lowest=MIN_DRAWS)
    within("draws times clients", rows.shape[0] * rows.shape[1], lowest=MIN_PAIRS)
    names = [(kind, i) for kind in ("pairs", "shuffled") for i in range(critics.count)]
    rngs = [stream(seed, "mine", *path, *name) for name in names]
    pairings = [
        Pairing.of(
            rows,
            fitted,
            # Both kinds split the draws alike; every four critics have an order of their own.
            order=stream(seed, "mine", *path, "split", i // PARTS).permutation(len(rows)),
            turn=i % PARTS,
            noise_std=noise_std,
            game=game,
        )
        for _, i in names
    ]
    played = [
        pairing.pairs(rng, is_shuffled=kind == "shuffled")
        for pairing, rng, (kind, _) in zip(pairings, rngs, names, strict=True)
    ]
    parts = [
        tuple(torch.from_numpy(np.stack(own)).to(critics.device) for own in zip(*part, strict=True))
        for part in zip(*played, strict=True)
    ]
    pairs = rows.shape[0] * rows.shape[1]
    correlations = np.stack([pairing.correlations for pairing in pairings])
    critic = GuidedCritic.drawn(correlations, critics.hidden, math.log(pairs), rngs, critics.device)
    values = train(critic, parts, steps=critics.steps, rate=critics.rate)
    return HeldOut(tuple(values[: critics.count]), tuple(values[critics.count :]), pairs)


class NeuralInformation(InformationAuditor):
    """Estimates I(client's update; sum of the round | model) by critics on held-out draws.

    Args:
        sampler: Draws fresh updates, and names the game; a function of the round where the
            clients' mechanism changes.
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last.
        plan: Draws and directions, as for `MutualInformation`; at least 8 draws. The rank must be
            a number.
        critics: How many critics, and how they are trained.
        limit: Gives the entropy of a client's updates, which no figure may exceed.
        colluding: Clients that show the server their update, or any number of them.
        observer: "server" sees the sum before server noise, "outsider" after it.
        seed: Names all draws. With the seed, sampler and plan of a `MutualInformation` both look
            along the same directions.

    Attributes:
        drawing: Draws of the last round. An auditor that shares it draws nothing twice.

    Example:
        information = MutualInformation(sampler, plan=DrawPlan(draws=16, rank=8))
        mine = NeuralInformation(sampler, plan=DrawPlan(draws=16, rank=8))
        mine.drawing = information.drawing
        strategy = Audited(FedAvg(), auditors=[information, mine], out="runs/mine")
    """

    name = "mine"
    quantity = NEURAL
    _rounds: Kept[_CriticRounds]

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        every: int = 1,
        plan: DrawPlan = DrawPlan(draws=MIN_DRAWS),  # noqa: B008 - a frozen value
        critics: Critics = Critics(),
        limit: LimitOf | None = None,
        colluding: Collection[int] | int = (),
        observer: SumObserver = "server",
        seed: int = 0,
    ) -> None:
        theory = Theory(limit=limit)
        super().__init__(
            sampler, plan, theory, colluding, every=every, observer=observer, seed=seed
        )
        if plan.rank is None:
            nothing = "In all coordinates of a model critics find nothing; use 8"
            raise BadValueError("plan.rank", "a number of directions", None, fix=nothing)
        if plan.draws < MIN_DRAWS:
            raise BadValueError("plan.draws", f"at least {MIN_DRAWS}", plan.draws)
        self.critics = critics
        self._rounds = _CriticRounds()

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._rounds = _CriticRounds()

    def limits(self, project: Project) -> Sequence[str]:
        """Return where updates cannot be resampled, or critics have too few pairs to say much."""
        said = list(super().limits(project))
        rank = min(self.plan.rank or 0, project.dim)
        if rank >= MAX_DIRECTIONS:
            said.append(
                f"critics find nothing along {rank} directions, whatever there is: use fewer than "
                f"{MAX_DIRECTIONS}, such as 8"
            )
        if project.honest is None:
            return said
        if few := self.too_few(project, self.plan.fit_draws(self.plan.rank or 1, project.honest)):
            return said + few
        if (pairs := self.plan.draws * project.honest) < MIN_PAIRS:
            draws = -(-MIN_PAIRS // project.honest)
            said.append(
                f"{self.plan.draws} draws of {project.honest} honest clients make {pairs} pairs, "
                f"and critics need {MIN_PAIRS}: use at least {draws} draws"
            )
        return said

    def measured(self, audited: AuditedRound, claims: InformationClaims) -> Sequence[Finding]:
        """Let critics look at draws of the round, the same as those of the log-det audit."""
        hidden, game, noise_std = audited.hidden, audited.game, audited.noise_std
        if self.plan.draws * len(hidden) < MIN_PAIRS:
            return ()
        drawn = self.drawing.directed(Draws.of(audited), self.plan, self.stream_of(audited))
        audited.watch("critics", 0.0)
        found = held_out_values(
            drawn.rows,
            drawn.fitted,
            critics=self.critics,
            path=(audited.server_round,),
            seed=self.seed,
            noise_std=noise_std,
            game=game,
        )
        self._rounds.add(audited.server_round, found, game)
        count = self.critics.count
        figure = Information(
            nats=found.mean,
            kind="estimate",
            rule=f"held-out NWJ, mean of {count} critics, pairs of all clients pooled",
            std_error=found.std_error,
            rank=drawn.subspace.rank,
            variance_kept=drawn.subspace.variance_kept,
            sample_sizes={"pairs": found.pairs, "clients": len(hidden), "critics": count},
            cap=found.cap,
            assumptions=_assumed(game),
        )
        known = claims.known(drawn.subspace.rank, noise_std)
        limit = claims.limit_of(dict.fromkeys(hidden, 1), 1)
        figure = figure.limited(limit)
        return [claims.finding(figure, known, NEURAL, null_band=found.null_band)]

    def report(self) -> Sequence[Finding]:
        """Return the mean over the audited rounds."""
        kept = self._rounds
        if not kept.rounds:
            return ()
        claims = replace(self._claims, game=kept.game)
        facts = {"audited rounds": len(kept.rounds)}
        return [claims.finding(kept.figure(), facts, NEURAL, null_band=kept.band())]


def _assumed(game: Game) -> tuple[str, ...]:
    """Return what the figure needs in a game."""
    pooled = (Assumption.GOOD_CRITIC, Assumption.POOLED_CLIENTS)
    # Shares of one partition are not recombined.
    return pooled if game == "partition" else (*pooled, Assumption.INDEPENDENT_CLIENTS)


@dataclass
class _CriticRounds:
    """What is kept of the audited rounds.

    Attributes:
        rounds: Which.
        values: Estimate, its standard error, mean of the shuffled pairs and cap in nats by round.
        single: Null band of a run with one audited round.
        game: What was random.
    """

    rounds: list[int] = field(default_factory=list)
    values: list[tuple[float, float, float, float]] = field(default_factory=list)
    single: tuple[float, float] = (0.0, 0.0)
    game: Game = "rerun"

    def add(self, server_round: int, found: HeldOut, game: Game) -> None:
        """Add a round."""
        self.rounds.append(server_round)
        self.values.append((found.mean, found.std_error, float(np.mean(found.nulls)), found.cap))
        self.single, self.game = found.null_band, game

    def figure(self) -> Information:
        """Return the mean over the rounds. Each round is judged alone: nothing is added up."""
        # (rounds, 4), transposed.
        means, _, _, caps = np.array(self.values).T
        rounds = counted(len(means), "audited round")
        return Information(
            nats=float(means.mean()),
            kind="estimate",
            rule=f"held-out NWJ of critics per round, mean over {rounds}",
            std_error=self._error(),
            sample_sizes={"audited rounds": len(means)},
            cap=float(caps.mean()),
            assumptions=_assumed(self.game),
        )

    def band(self) -> tuple[float, float]:
        """Return the 90 % band of that mean without a leak."""
        if len(self.rounds) == 1:
            return self.single
        nulls = [null for _, _, null, _ in self.values]
        return null_band(nulls, 1 / len(nulls), self._error())

    def _error(self) -> float:
        """Return the standard error of the mean: over the rounds, which have draws of their own."""
        means, errors, _, _ = np.array(self.values).T
        if len(means) == 1:
            return float(errors[0])
        return float(np.std(means, ddof=1) / math.sqrt(len(means)))
