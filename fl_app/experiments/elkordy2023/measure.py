"""Measures what a secure sum tells of a client's update, over the sweeps of the paper.

Elkordy et al. (2023), arXiv:2208.02304, section 5: users, batch size, local epochs, heterogeneity
and noise after the sum, at the initial model. The accumulated information of several rounds is in
`fl_app.experiments.elkordy2023.accumulated`. Figures are those of a Gaussian model along a fixed
number of directions; the paper's neural estimate is added on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from leakmeter.auditors._types import Floats, Vector
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information import (
    batch_entropy,
    gaussian_information,
    update_entropy,
)
from leakmeter.auditors.information.draws import Drawing, Draws
from leakmeter.auditors.information.figure import NATS_PER_BIT
from leakmeter.auditors.information.measure import Look, measure
from leakmeter.auditors.sampler import UpdateSampler
from leakmeter.fl_app.experiments import distribute

if TYPE_CHECKING:
    from leakmeter.clients.update import StepRule
    from leakmeter.fl_app.config.task_config import TaskConfig
    from leakmeter.fl_app.experiments.base import Cells
    from leakmeter.fl_app.task import Task

# Entropy of an image as the paper has estimated it, by MINE, in bits; for its axis only.
IMAGE_BITS = {"mnist": 567.0, "cifar10": 1403.0}
SEED = 2208
TARGET = 0

Algorithm = Literal["fedsgd", "fedavg", "fedprox"]
Found = dict[str, Any]  # what `look` returns
NAMES: dict[Algorithm, str] = {"fedsgd": "FedSGD", "fedavg": "FedAvg", "fedprox": "FedProx"}


@dataclass(frozen=True)
class Setting:
    """One federation under audit.

    Attributes:
        dataset: Data set of the run.
        clients: Clients among whom the data are dealt.
        algorithm: What a client does with its data.
        batch_size: Records in a gradient step.
        epochs: Local passes; FedSGD takes one step.
        lr: Step length.
        mu: How strongly FedProx holds a client near the model sent.
        partition: Of `fl_app.data.partition`; "natural" gives each client a person's records.
        dirichlet: Concentration of the Dirichlet partitions.
        game: Which randomness is resampled; see `auditors.sampler.Game`.
        draws: Joint draws of the clients.
        rank: Directions that are looked along.
        model: Which model.
        synthetic_examples: Records of the synthetic data set.
    """

    dataset: str
    clients: int = 50
    algorithm: Algorithm = "fedsgd"
    batch_size: int = 32
    epochs: int = 1
    lr: float = 0.1
    mu: float = 0.1
    partition: Literal["iid", "dirichlet", "dirichlet-labels", "natural"] = "iid"
    dirichlet: float = 1.0
    game: Game = "independent"
    draws: int = 180
    rank: int = 40
    model: str = "linear"
    synthetic_examples: int = 6000

    @property
    def rule(self) -> StepRule:
        """What a client does with its data."""
        from leakmeter.clients.update import FedAvg, FedProx, FedSGD

        match self.algorithm:
            case "fedsgd":
                return FedSGD(self.batch_size, self.lr)
            case "fedavg":
                return FedAvg(self.epochs, self.batch_size, self.lr)
            case "fedprox":
                return FedProx(self.epochs, self.batch_size, self.lr, self.mu)

    @property
    def key(self) -> str:
        """Names the draws: settings of one experiment that differ in what is drawn."""
        skewed = f"-dirichlet{self.dirichlet:g}"
        kinds = {
            "iid": "",
            "dirichlet": f"-clients{skewed}",
            "dirichlet-labels": skewed,
            "natural": "-natural",
        }
        own = f"{self.algorithm}-B{self.batch_size}-E{self.epochs}"
        net = "" if self.model == "linear" else f"-{self.model}"
        return f"{self.dataset}{net}{kinds[self.partition]}-{own}-{self.game}"

    @property
    def cell(self) -> str:
        """Names results; those of another size are not taken for these."""
        return f"{self.key}-{self.draws}x{self.rank}"


def config_of(setting: Setting) -> TaskConfig:
    """Return what decides about the setting's data, partition and model."""
    from leakmeter.fl_app.config.task_config import TaskConfig

    return TaskConfig(
        dataset=setting.dataset,
        synthetic_examples=setting.synthetic_examples,
        model=setting.model,
        partition=setting.partition,
        dirichlet=setting.dirichlet,
        clients=setting.clients,
        seed=SEED,
    )


def task_of(setting: Setting) -> Task:
    """Return data, partition and model."""
    return _task(config_of(setting))


@lru_cache(maxsize=1)
def _task(config: TaskConfig) -> Task:
    from leakmeter.fl_app.task import load_task

    return load_task(config)


@lru_cache(maxsize=1)
def _drawing(setting: Setting) -> Drawing:  # noqa: ARG001 - names it
    """Return where a setting's draws are kept: sizes of noise that follow each other share them."""
    return Drawing()


def initial_model(task: Task) -> Vector:
    """Return the parameters that the first round sends, as one vector."""
    import torch

    flat = torch.nn.utils.parameters_to_vector(task.initial.parameters())
    return np.asarray(flat.detach().double().numpy())


def accuracy_of(task: Task, model: Vector) -> float:
    """Return the accuracy of a model on the test records."""
    import torch

    net, data = task.new_model(), task.dataset
    torch.nn.utils.vector_to_parameters(torch.from_numpy(model).float(), net.parameters())
    with torch.no_grad():
        right = net(torch.from_numpy(data.test_x)).argmax(dim=1) == torch.from_numpy(data.test_y)
    return float(right.double().mean())


def sampler_of(setting: Setting) -> tuple[UpdateSampler, Vector]:
    """Return what draws updates, and the model that they start from."""
    from leakmeter.fl_app.engines.samplers import sampler_for

    task = task_of(setting)
    sampler = sampler_for(
        task, config_of(setting), setting.rule, setting.game, threads=distribute.threads()
    )
    return distribute.distributed(sampler), initial_model(task)


def look(
    setting: Setting,
    users: int,
    *,
    colluding: int = 0,
    noise_std: float = 0.0,
    others: Sequence[int] | None = None,
) -> Found:
    """Return what the sum of so many users tells of one of them, and of all on average.

    Args:
        setting: The federation.
        users: Users in the sum, the target among them.
        colluding: Of these, users that show the server their update.
        noise_std: Noise on each coordinate of the users' mean update, after the sum.
        others: Who is in the sum beside the target; None takes the first users.
    """
    if not 0 <= colluding <= users - 2:
        raise ValueError(f"colluding must be in [0, users - 2 = {users - 2}], got {colluding}")
    others = range(1, users) if others is None else others
    if len(others) != users - 1 or TARGET in others:
        raise ValueError(f"others must be {users - 1} users but the target, got {list(others)}")
    hidden = [TARGET, *others[colluding:]]
    sampler, model = sampler_of(setting)
    found = measure(
        sampler,
        model,
        hidden,
        target=TARGET,
        look=Look(draws=setting.draws, rank=setting.rank),
        stream=("mi", setting.key),
        noise_std=noise_std * users,
        seed=SEED,
        drawing=_drawing(setting),
    )
    free = model.size if sampler.free is None else int(sampler.free.size)
    each = np.array([nats for nats, _ in found.each.values()])
    return {
        "bits": found.figure.bits,
        "error": _bits(found.figure.std_error),
        "mean": _bits(float(each.mean())),
        "largest": _bits(float(each.max())),
        "smallest": _bits(float(each.min())),
        "gaussian": gaussian_information(found.rank, len(hidden)).bits,
        "rank": found.rank,
        "kept": found.variance_kept,
        "free": free,
        "records": held_by_target(setting),
    }


def looked(cells: Cells, setting: Setting, users: int, suffix: str = "", **how: Any) -> Found:
    """Return what `look` gives now, or gave in an earlier run."""
    key = f"{setting.cell}-N{users}{suffix}"
    return dict(cells.get(key, partial(look, setting, users, **how)))


def critics(setting: Setting, users: int, *, draws: int, count: int) -> dict[str, Any]:
    """Return what neural critics find in whole updates, on training pairs and held out, in bits.

    Args:
        setting: The federation.
        users: Users in the sum, the target among them.
        draws: Pairs of the target's update and the sum; the paper does not say how many it has.
        count: Critics on the pairs as they are, and on shuffled pairs.
    """
    from leakmeter.auditors.information.mine import estimator  # torch, for those who ask

    sampler, model = sampler_of(setting)
    drawn = Draws(sampler, model, list(range(users)))
    x, y = drawn.pairs(TARGET, draws, ("mi", setting.key))
    found = estimator.estimate(x, x + y, seed=SEED, seeds=count, nulls=count)
    return {
        "trained": _bits(found.trained.mean),
        "shuffled": _bits(found.null_trained.mean),
        "held_out": _bits(found.nwj.mean),
        "held_out_error": _bits(found.nwj.std_error),
        "log_draws": _bits(found.log_samples),
    }


def update_std(setting: Setting) -> float:
    """Return the std of one client's update along the measured directions, as a root mean.

    A noise of this size on the sum hides about as much as one more client would.
    """
    rows = _of_target(setting, "spread")
    spectrum = np.linalg.svd(rows - rows.mean(axis=0, dtype=np.float64), compute_uv=False)
    return float(np.sqrt((spectrum[: setting.rank] ** 2).mean() / (len(rows) - 1)))


def largest_norm(setting: Setting) -> float:
    """Return the largest norm among some updates of the target."""
    return float(np.linalg.norm(_of_target(setting, "norm"), axis=1).max())


def _of_target(setting: Setting, name: str) -> Floats:
    """Return updates of the target, (draws, dim)."""
    sampler, model = sampler_of(setting)
    rows = sampler.sample(model, [TARGET], setting.draws, ("mi", setting.key, name))
    return np.concatenate(list(rows))[:, 0]


def held_by_target(setting: Setting) -> int:
    """Return how many records the target holds."""
    return len(task_of(setting).parts[TARGET])


# What follows needs cells only, so that kept results make their table without the data.


def records_used(setting: Setting, held: int) -> int:
    """Return how many of a client's records a round uses."""
    return min(setting.batch_size, held) if setting.algorithm == "fedsgd" else held


def batch_bits(setting: Setting, held: int) -> float:
    """Return what the choice of a batch from so many records holds at most, in bits."""
    return batch_entropy(held, min(setting.batch_size, held)).bits


def whole_bits(setting: Setting, found: Mapping[str, Any], hidden: int) -> float:
    """Return what alike Gaussian clients reveal in every free coordinate, in bits.

    In the game independent a client's records are drawn too. No figure exceeds the entropy of
    these and of its batches, which large models reach.

    Args:
        setting: The federation.
        found: What `look` returned.
        hidden: Users in the sum that do not collude.
    """
    from leakmeter.clients.update import batch_sizes

    assert (setting.game, setting.partition) == ("independent", "iid")
    held, rule = int(found["records"]), setting.rule
    batches = batch_sizes(rule, held)
    limit = update_entropy(held * setting.clients, held, batches, epochs=rule.passes).over(1)
    return gaussian_information(int(found["free"]), hidden).limited(limit).bits


def paper_share(setting: Setting, bits: float, held: int) -> float | None:
    """Return the bits as a share of the paper's entropy of what a round uses; None if unknown.

    FedSGD is normalised by its batch, the others by all records of the target (Fig. 3 and 4).
    """
    if setting.dataset not in IMAGE_BITS:
        return None
    return bits / (records_used(setting, held) * IMAGE_BITS[setting.dataset])


def _bits(nats: float | None) -> float:
    return float("inf") if nats is None else nats / NATS_PER_BIT
