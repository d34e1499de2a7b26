"""Measures what a secure sum reveals about a client's update, at the initial model.

Elkordy et al. (2023), arXiv:2208.02304, section 5. A federation is the `Config` of a run. Figures
are those of a Gaussian model along a fixed number of directions; the paper's neural estimate is
added on request. What several rounds reveal is in `papers.elkordy2023.rounds`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors.finding import Game
from leakmeter.auditors.information.draws import DrawPlan, Draws, SharedDraws, measure
from leakmeter.auditors.information.theory import NATS_PER_BIT, gaussian_information, update_entropy
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import UpdateSampler
from leakmeter.auditors.values import Floats, Vector
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.update import LocalSteps
from leakmeter.fl_app.build.audit import sampler_for
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.task import Task, load_task, update_rule
from leakmeter.papers import distribute
from leakmeter.papers.base import Cells, accuracy
from leakmeter.papers.elkordy2023.mine_estimator import estimator

# Entropy of an image as the paper has estimated it, by MINE, in bits; for its axis only.
IMAGE_BITS = {"mnist": 567.0, "cifar10": 1403.0}
SEED = 2208
TARGET = 0
NAMES = {"fedsgd": "FedSGD", "fedavg": "FedAvg", "fedprox": "FedProx"}
Found = dict[str, Any]  # what `look` returns

_TRAINING: Found = {"algorithm": "fedsgd", "batch_size": 32, "epochs": 1, "lr": 0.1, "prox_mu": 0.1}
_AUDIT: Found = {"auditors": "mutual-information", "lrt_game": "independent", "seed": SEED}
_SIZE: Found = {"clients": 50, "sample": 5, "mi_draws": 180, "mi_rank": 40}
# What experiments vary, 50 users of 1,200 images; and the same in small.
FEDERATION = Config(dataset="mnist", model="linear", **_TRAINING, **_AUDIT, **_SIZE)
DIGITS = replace(FEDERATION, dataset="digits", clients=20, batch_size=8, mi_draws=60, mi_rank=8)


@dataclass(frozen=True)
class Point:
    """What is found in one federation; needs no data, so that kept cells make their table."""

    config: Config
    found: Mapping[str, Any]  # by `look`, with "users" in the sum and whatever else was measured

    def __getitem__(self, name: str) -> Any:
        """Return one of the figures, or else a setting."""
        return self.found[name] if name in self.found else getattr(self.config, name)

    def __or__(self, more: Mapping[str, Any]) -> Point:
        """Return the point with more figures; cells keep infinities as text."""
        own = {name: math.inf if value == "inf" else value for name, value in more.items()}
        return replace(self, found={**self.found, **own})

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return NAMES[self.config.algorithm]

    @property
    def used(self) -> int:
        """Records of the target that are used: in a round of FedSGD its batch, else all."""
        held = int(self["records"])
        is_batch = self.config.algorithm == "fedsgd" and "participations" not in self.found
        return min(self.config.batch_size, held) if is_batch else held

    @property
    def per_record(self) -> float:
        """Bits over the records that are used."""
        return float(self["bits"]) / self.used

    @property
    def whole_bits(self) -> float:
        """What alike Gaussian clients reveal in every free coordinate, in bits.

        In the game independent a client's records are drawn too. No figure exceeds the entropy of
        these and of its batches, which large models reach.
        """
        assert (self.config.game, self.config.partition) == ("independent", "iid")
        rule = update_rule(self.config)
        assert isinstance(rule, LocalSteps)
        held = int(self["records"])
        batches, pool = rule.batch_sizes(held), held * self.config.clients
        limit = update_entropy(pool, held, batches, epochs=rule.passes).over(1)
        hidden = self["users"] - self["colluding"]
        return gaussian_information(int(self["free"]), hidden).limited(limit).bits

    def share(self, bits: float) -> float:
        """Return bits over the paper's entropy of what is used; not a number if it has none."""
        return bits / (self.used * IMAGE_BITS.get(self.config.dataset, math.nan))


def name_of(config: Config) -> str:
    """Return a name for the draws: federations of one experiment that differ in what is drawn."""
    skew = f"-dirichlet{config.dirichlet:g}"
    kinds = {"iid": "", "dirichlet": f"-clients{skew}", "dirichlet-labels": skew}
    kind = kinds.get(config.partition, f"-{config.partition}")
    net = "" if config.model == "linear" else f"-{config.model}"
    own = f"{config.algorithm}-B{config.batch_size}-E{config.epochs}"
    return f"{config.dataset}{net}{kind}-{own}-{config.game}"


def cell_of(config: Config) -> str:
    """Return a name for results; those of another size are not taken for these."""
    return f"{name_of(config)}-{config.mi_draws}x{config.mi_rank}"


@lru_cache(maxsize=8)
def _drawing(config: Config, users: int) -> SharedDraws:  # noqa: ARG001 - name it
    """Return where the draws of so many users are kept: sizes of noise share them."""
    return SharedDraws()


def initial_model(task: Task) -> Vector:
    """Return the parameters that the first round sends, as one vector."""
    return np.asarray(parameters_to_vector(task.initial.parameters()).detach().double().numpy())


def accuracy_of(task: Task, model: Vector) -> float:
    """Return the accuracy of a model on the test records."""
    net = task.new_model()
    vector_to_parameters(torch.from_numpy(model).float(), net.parameters())
    return accuracy(task, net)


def noised_accuracies(
    config: Config, users: int, std: float, clip: float, *, rounds: int, plays: int
) -> list[float]:
    """Return the accuracy after so many rounds with noise on the clipped mean, for every run.

    The library clips each client's update. The paper clips the mean, which hides nobody.
    """
    task = load_task(config)
    cohort, data = Cohort(task.new_model(), update_rule(config)), task.dataset
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    parts = task.parts[:users]
    found = []
    for play in range(plays):
        model = initial_model(task)
        for t in range(rounds):
            names = ("mi-dp", "accuracy", play, t)
            rngs = [stream(SEED, *names, user) for user in range(users)]
            mean = cohort.updates(model, x, y, parts, rngs).double().numpy().mean(axis=0)
            mean *= min(1.0, clip / max(float(np.linalg.norm(mean)), 1e-300))
            model = model + mean + std * stream(SEED, *names, "noise").standard_normal(model.size)
        found.append(accuracy_of(task, model))
    return found


def sampler_of(config: Config) -> tuple[UpdateSampler, Vector]:
    """Return what draws updates, and the model that they start from."""
    task, rule, game = load_task(config), update_rule(config), cast(Game, config.game)
    sampler = sampler_for(task, config.task, rule, game, threads=distribute.threads())
    return distribute.distributed(sampler), initial_model(task)


def look(
    config: Config,
    users: int,
    *,
    colluding: int = 0,
    noise_std: float = 0.0,
    others: Sequence[int] | None = None,
) -> Found:
    """Return what the sum of so many users reveals about one of them, and about all on average.

    `colluding` of them show the server their update. Noise is on each coordinate of the users' mean
    update, after the sum. Without `others`, the first users are in the sum beside the target.
    """
    others = range(1, users) if others is None else others
    assert len(others) == users - 1
    assert TARGET not in others
    assert 0 <= colluding <= users - 2
    hidden = [TARGET, *others[colluding:]]
    sampler, model = sampler_of(config)
    found = measure(
        Draws(sampler, model, hidden, noise_std * users),
        target=TARGET,
        plan=DrawPlan(draws=config.mi_draws, rank=config.mi_rank),
        stream=("mi", name_of(config)),
        seed=SEED,
        drawing=_drawing(config, users),
    )
    each = np.array([nats for nats, _ in found.each.values()])
    return {
        "bits": found.figure.bits,
        "error": _bits(found.figure.std_error),
        "mean": _bits(float(each.mean())),
        "largest": _bits(float(each.max())),
        "smallest": _bits(float(each.min())),
        "gaussian": gaussian_information(found.rank, len(hidden)).bits,
        "rank": found.rank,
        "kept": found.figure.variance_kept,
        "free": model.size if sampler.free is None else int(sampler.free.size),
        "records": held_by_target(config),
    }


def looked(cells: Cells, config: Config, users: int, suffix: str = "", **how: Any) -> Found:
    """Return what `look` gives now, or gave in an earlier run."""
    key = f"{cell_of(config)}-N{users}{suffix}"
    return dict(cells.get(key, look, config, users, **how))


def critics(config: Config, users: int, *, draws: int, count: int) -> Found:
    """Return what `count` critics find in so many pairs of the target's update and the sum."""
    sampler, model = sampler_of(config)
    drawn = Draws(sampler, model, list(range(users)))
    x, y = drawn.pairs(TARGET, draws, ("mi", name_of(config)))
    found = estimator.estimate(x, x + y, seed=SEED, seeds=count, nulls=count)
    return in_bits(found) | {"log_draws": _bits(found.log_samples)}


def in_bits(found: estimator.NeuralEstimate) -> Found:
    """Return what critics have found on training pairs, shuffled ones and held out, in bits."""
    return {
        "trained": _bits(found.trained.mean),
        "shuffled": _bits(found.null_trained.mean),
        "held_out": _bits(found.nwj.mean),
        "held_out_error": _bits(found.nwj.std_error),
    }


def update_std(config: Config) -> float:
    """Return the std of one client's update along the measured directions, as a root mean."""
    rows = _of_target(config, "spread")
    spectrum = np.linalg.svd(rows - rows.mean(axis=0, dtype=np.float64), compute_uv=False)
    return float(np.sqrt((spectrum[: config.mi_rank] ** 2).mean() / (len(rows) - 1)))


def largest_norm(config: Config) -> float:
    """Return the largest norm among some updates of the target."""
    return float(np.linalg.norm(_of_target(config, "norm"), axis=1).max())


def _of_target(config: Config, name: str) -> Floats:
    """Return updates of the target, (draws, dim)."""
    sampler, model = sampler_of(config)
    rows = sampler.sample(model, [TARGET], config.mi_draws, ("mi", name_of(config), name))
    return np.concatenate(list(rows))[:, 0]


def held_by_target(config: Config) -> int:
    """Return how many records the target holds."""
    return len(load_task(config).parts[TARGET])


def _bits(nats: float | None) -> float:
    return math.inf if nats is None else nats / NATS_PER_BIT
