"""Training of critics: full-batch ascent, the step chosen on validation samples, held-out values.

The paper's figure needs all steps and the last critic, so training never ends early; the critic of
the best look at the validation samples is kept beside it, and is what the held-out values are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from leakmeter.auditors.information.neural import log_mean_exp, nwj
from leakmeter.auditors.values import Floats, within
from leakmeter.papers.elkordy2023.mine_estimator.critics import (
    Critic,
    JointCritic,
    SeparableCritic,
    donsker_varadhan,
    info_nce,
    jensen_shannon,
    row_index,
    smile,
    split_table,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Objective = Literal["mine", "infonce", "smile"]
_REACH = 300.0  # sum of |inputs| up to which Adam's rate is taken as it is
_SHIFTS = 8  # orders of strangers where all pairs would cost too much


@dataclass(frozen=True)
class Training:
    """How critics are trained; the defaults are the paper's where it says.

    Attributes:
        objective: "mine" is the paper's; "infonce" and "smile" train a separable critic.
        hidden: Width of both hidden layers.
        steps: Steps of ascent; for "mine" each on all training samples.
        rate: Learning rate; Adam's is lowered for the first layer if inputs are very many.
        optimizer: "adam", or "ascent" for plain gradient ascent.
        memory: Weight of the newest step in the moving average of E_Q[e^T] that the gradient is
            divided by (Belghazi et al. 2018, eq. 12); 1 is the plain gradient.
        rows: Training samples per step where the objective is over all pairs ("infonce", "smile").
        clip: Where SMILE clips the logarithm of the density ratio.
        check_every: Steps between looks at the validation samples.
    """

    objective: Objective = "mine"
    hidden: int = 100
    steps: int = 1000
    rate: float = 1e-3
    optimizer: Literal["adam", "ascent"] = "adam"
    memory: float = 0.1
    rows: int = 128
    clip: float = 5.0
    check_every: int = 20

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise ValueError(f"objective must be in {get_args(Objective)}, got {self.objective!r}")
        if self.optimizer not in ("adam", "ascent"):
            raise ValueError(f"optimizer must be 'adam' or 'ascent', got {self.optimizer!r}")
        for name, lowest in (("hidden", 1), ("steps", 1), ("check_every", 1), ("rows", 2)):
            within(name, getattr(self, name), lowest=lowest)
        within("rate", self.rate, above=0.0)
        within("memory", self.memory, above=0.0, highest=1.0)
        within("clip", self.clip, above=0.0)


@dataclass(frozen=True)
class Samples:
    """Pairs of one purpose: x and z of every model, (models, rows, width) each."""

    x: Tensor
    z: Tensor

    def some(self, rows: Tensor) -> Samples:
        """Return the given rows of each model, (models, chosen)."""
        return Samples(*(t.gather(1, row_index(rows, t)) for t in (self.x, self.z)))


@dataclass(frozen=True)
class Outcome:
    """What the critics are worth, one number per model each.

    Attributes:
        trained: The objective on the training samples after the last step.
        last: The objective on the test samples after the last step.
        held_out: The objective on the test samples at the step that validation chose.
        dv: Donsker-Varadhan there.
        nwj: NWJ there; the offset comes from the validation samples.
        stopped: The step that validation chose.
    """

    trained: Floats
    last: Floats
    held_out: Floats
    dv: Floats
    nwj: Floats
    stopped: Floats


def train(
    parts: tuple[Samples, Samples, Samples],
    training: Training,
    fan_in: int,
    rngs: Sequence[np.random.Generator],
) -> Outcome:
    """Train one critic per generator and return what each is worth.

    Args:
        parts: Training, validation and test samples.
        training: How.
        fan_in: Coordinates of x and z together, before any rotation.
        rngs: One generator per model, for its weights and the orders of its strangers.
    """
    import torch

    fitting, choosing, testing = parts
    inputs = fitting.x.shape[2], fitting.z.shape[2]
    kind = JointCritic if training.objective == "mine" else SeparableCritic
    critic: Critic = kind.drawn(inputs, training.hidden, fan_in, rngs)
    best = _ascend(critic, fitting, choosing, training, rngs)
    with torch.no_grad():
        # Before the best weights return: the paper's figure is that of the last step.
        fitted = _value(critic, fitting, training)
        last = _of_table(critic.table(testing.x, testing.z), training)
        best.put_back(critic)
        held_out, dv, lower = _held_out(critic, choosing, testing, training)
    found = (fitted, last, held_out, dv, lower, best.step)
    return Outcome(*(np.asarray(values, dtype=np.float64) for values in found))


def _ascend(
    critic: Critic,
    fitting: Samples,
    choosing: Samples,
    training: Training,
    rngs: Sequence[np.random.Generator],
) -> Best:
    """Train `critic` in place and return the best weights on the way."""
    best = Best(critic)
    optimizer = _optimizer(critic, fitting, training)
    average: Tensor | None = None
    for step in range(training.steps):
        if step % training.check_every == 0:
            best.look(critic, _promise(critic, choosing, training), step)
        order = _orders(rngs, fitting.x.shape[1])
        if isinstance(critic, JointCritic):
            joint, strangers = critic.pairs(fitting.x, fitting.z, [order])  # (models, rows) each
            average = _moving(average, log_mean_exp(strangers.detach()), training.memory)
            gain = averaged_gain(joint, strangers, average)
        else:
            some = fitting.some(order[:, : training.rows])
            # (models, rows, rows): every x with every z, pairs on the diagonal.
            gain = _separable_gain(critic.table(some.x, some.z), training)
        # Models share no weight, so the gradient of the sum is each model's own.
        gain.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    best.look(critic, _promise(critic, choosing, training), training.steps)
    return best


def _optimizer(critic: Critic, fitting: Samples, training: Training) -> torch.optim.Optimizer:
    """Return the optimiser of a critic's weights."""
    import torch

    if training.optimizer == "ascent":
        return torch.optim.SGD(critic.weights, lr=training.rate, maximize=True)
    # Adam moves each weight by the rate, hence the first layer's sums by the rate times the sum
    # of |inputs|. With thousands of inputs that throws training about, so there it moves less.
    reach = sum(float(rows.abs().sum(2).mean()) for rows in (fitting.x, fitting.z))
    lowered = training.rate * min(1.0, _REACH / reach)
    groups = [
        {"params": critic.weights[:2], "lr": lowered},
        {"params": critic.weights[2:], "lr": training.rate},
    ]
    return torch.optim.Adam(groups, maximize=True)


class Best:
    """The weights of each model at its best look at the validation samples."""

    def __init__(self, critic: Critic) -> None:
        import torch

        self.weights = [weight.detach().clone() for weight in critic.weights]
        models = self.weights[0].shape[0]
        self.value = torch.full((models,), -torch.inf)
        self.step = torch.zeros(models)

    def put_back(self, critic: Critic) -> None:
        """Give the critic its best weights again."""
        import torch

        with torch.no_grad():
            for weight, kept in zip(critic.weights, self.weights, strict=True):
                weight.copy_(kept)

    def look(self, critic: Critic, value: Tensor, step: int) -> None:
        """Keep the weights of the models that have improved."""
        better = value > self.value  # never so for a value that is not a number
        self.value[better] = value[better]
        self.step[better] = step
        for kept, weight in zip(self.weights, critic.weights, strict=True):
            kept[better] = weight.detach()[better]


def averaged_gain(joint: Tensor, strangers: Tensor, log_average: Tensor) -> Tensor:
    """Return a function with the gradient of Donsker-Varadhan, its denominator averaged over steps.

    The gradient of ln E_Q[e^T] is E_Q[e^T ∇T] / E_Q[e^T]. On a batch the quotient is biased; with
    a moving average below it is less so (Belghazi et al. 2018, §3.2).
    """
    # The shift is by a constant (no gradient), so this is not the bound itself: only its gradient
    # is.
    return joint.mean(1) - (strangers - log_average[:, None]).exp().mean(1)


def _moving(average: Tensor | None, newest: Tensor, memory: float) -> Tensor:
    """Return the logarithm of the moving average of exponentials."""
    import torch

    if average is None or memory == 1:
        return newest
    # ln((1 - m) e^a + m e^b): the averages themselves overflow once scores pass 88 in single
    # precision.
    return torch.logaddexp(average + np.log1p(-memory), newest + np.log(memory))


def _separable_gain(table: Tensor, training: Training) -> Tensor:
    if training.objective == "infonce":
        return info_nce(table)
    return jensen_shannon(*split_table(table))


def _value(critic: Critic, samples: Samples, training: Training) -> Tensor:
    """Return the objective on samples; for "mine" with a few orders of strangers, not all pairs."""
    if isinstance(critic, JointCritic):
        return donsker_varadhan(*critic.pairs(samples.x, samples.z, _shifts(samples)))
    return _of_table(critic.table(samples.x, samples.z), training)


def _promise(critic: Critic, samples: Samples, training: Training) -> Tensor:
    """Return what a step is chosen by."""
    import torch

    with torch.no_grad():
        if training.objective == "smile":
            # Clipped on one side, SMILE's own value grows without end as scores do.
            return jensen_shannon(*split_table(critic.table(samples.x, samples.z)))
        return _value(critic, samples, training)


def _of_table(table: Tensor, training: Training) -> Tensor:
    """Return the objective from the scores of all pairs."""
    if training.objective == "infonce":
        return info_nce(table)
    joint, strangers = split_table(table)
    if training.objective == "smile":
        return smile(joint, strangers, training.clip)
    return donsker_varadhan(joint, strangers)


def _held_out(
    critic: Critic, choosing: Samples, testing: Samples, training: Training
) -> tuple[Tensor, Tensor, Tensor]:
    """Return objective, Donsker-Varadhan and NWJ on all pairs of the test samples."""
    # NWJ is a bound for any fixed offset. From the test samples themselves it would turn into
    # Donsker-Varadhan, which is biased upwards.
    offset = log_mean_exp(split_table(critic.table(choosing.x, choosing.z))[1])
    table = critic.table(testing.x, testing.z)
    joint, strangers = split_table(table)
    return (
        _of_table(table, training),
        donsker_varadhan(joint, strangers),
        nwj(joint, strangers, offset),
    )


def _orders(rngs: Sequence[np.random.Generator], rows: int) -> Tensor:
    """Return one random order of the rows per model."""
    import torch

    return torch.from_numpy(np.stack([rng.permutation(rows) for rng in rngs]))


def _shifts(samples: Samples) -> list[Tensor]:
    """Return fixed orders in which no row meets its partner, the same for all models."""
    import torch

    models, rows, _ = samples.x.shape
    line = torch.arange(rows)
    # Evenly spread shifts, so that none repeats; with few rows there are fewer of them.
    shifts = np.unique(np.linspace(1, rows - 1, min(_SHIFTS, rows - 1)).astype(int))
    return [line.roll(int(shift)).expand(models, -1) for shift in shifts]
