"""DP-FedAvg with random canaries, played without messages: many runs where Flower plays one.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation for
Federated Learning, arXiv:2302.03098, Algorithms 2 and 3. Ours differs in three points:
1. The server adds the mean update as it is. With momentum the canaries of the last rounds weigh
   less, which are few among the paper's 2048 rounds and many among ours.
2. The clip norm is fixed, and the noise with it.
3. The sum is divided by the honest clients of a round, a fixed public number, unless `counted`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors._types import Vector
from leakmeter.auditors.canaries.schedule import schedule
from leakmeter.auditors.canaries.transcript import Transcript
from leakmeter.auditors.canary import canary_vector
from leakmeter.auditors.rng import derive, stream
from leakmeter.clients.cohort.cohort import Cohort
from leakmeter.clients.update import FedAvg
from leakmeter.fl_app.config.task_config import TaskConfig
from leakmeter.fl_app.task import Task, load_task

Rows = NDArray[np.float32]

SEED = 2302


@dataclass(frozen=True)
class Federation:
    """Who learns what.

    Attributes:
        dataset: Data set.
        model: Model.
        partition: How records are dealt to clients.
        clients: Clients in all.
        rounds: Rounds of an epoch; each client takes part in one of them.
        epochs: Passes over all clients, each in a new random order.
        batch_size: Records in a local step.
        lr: Local step length.
        clip_norm: Norm that updates are clipped to, and the norm of a canary.
    """

    dataset: str = "mnist"
    model: str = "linear"
    partition: str = "natural"
    clients: int = 539
    rounds: int = 49
    epochs: int = 1
    batch_size: int = 20
    lr: float = 0.1
    clip_norm: float = 0.5

    @property
    def all_rounds(self) -> int:
        """Rounds of a run."""
        return self.rounds * self.epochs

    def task(self) -> Task:
        """Return data, partition and initial model: the same in every run."""
        return load_task(
            TaskConfig(
                dataset=self.dataset,
                model=self.model,
                partition=self.partition,
                clients=self.clients,
                seed=0,
            )
        )

    def cohorts(self, seed: int) -> list[list[int]]:
        """Return who takes part in each round."""
        shuffled = (stream(seed, "order", e).permutation(self.clients) for e in range(self.epochs))
        return [part.tolist() for order in shuffled for part in np.array_split(order, self.rounds)]


@dataclass(frozen=True)
class Canaries:
    """Who else takes part.

    Attributes:
        count: Canaries.
        repetitions: Rounds in which each of them plays.
        counted: Whether the sum is divided by clients and canaries, as Algorithm 2 is printed.
    """

    count: int
    repetitions: int = 1
    counted: bool = False


@dataclass(frozen=True, eq=False)
class Played:
    """What a run left behind.

    Attributes:
        accuracy: Of the final model.
        changes: Of the model, one row a round.
        canaries: Those that were played, one a row.
        canary_seed: Names them, and as many more as one likes.
    """

    accuracy: float
    changes: Rows  # (rounds, dim)
    canaries: Rows  # (count, dim)
    canary_seed: int

    def final(self) -> Vector:
        """Return the cosines of the played canaries with the change since the start."""
        total = self.changes.sum(axis=0, dtype=np.float64)
        return np.asarray(self.canaries @ (total / np.linalg.norm(total)).astype(np.float32), float)

    def transcript(self, unobserved: int) -> Transcript:
        """Return what all models show of the played canaries and of others after them."""
        played, dim = self.canaries.shape
        found = Transcript(self.canary_seed, range(played + unobserved), dim)
        found.restore({"changes": self.changes})
        return found


def play(federation: Federation, noise_multiplier: float, canaries: Canaries, seed: int) -> Played:
    """Return one run.

    Args:
        federation: Who learns what.
        noise_multiplier: Noise on the sum of a round, in units of the clip norm.
        canaries: Who else takes part.
        seed: Names order, batches, canaries and noise.
    """
    task = federation.task()
    x, y = torch.from_numpy(task.dataset.train_x), torch.from_numpy(task.dataset.train_y)
    cohort = Cohort(
        task.initial, FedAvg(epochs=1, batch_size=federation.batch_size, lr=federation.lr)
    )
    canary_seed = derive(seed, "canaries")
    plan = schedule(canaries.count, canaries.repetitions, federation.all_rounds, seed)
    model = parameters_to_vector(task.initial.parameters()).detach().double().numpy()
    own = canary_rows(canary_seed, range(canaries.count), model.size)
    changes = np.empty((federation.all_rounds, model.size), dtype=np.float32)
    for t, clients in enumerate(federation.cohorts(seed)):
        rngs = [stream(seed, "batches", t, client) for client in clients]
        records = [task.parts[client].numpy() for client in clients]
        clipped = _clipped_sum(
            cohort.updates(model, x, y, records, rngs).double().numpy(), federation.clip_norm
        )
        noise = noise_multiplier * stream(seed, "noise", t).standard_normal(model.size)
        beside = own[plan[t + 1]].sum(axis=0, dtype=np.float64) + noise
        number = len(clients) + canaries.counted * len(plan[t + 1])
        # Rounded as it is kept, so that the model is the sum of what is kept.
        changes[t] = (clipped + federation.clip_norm * beside) / number
        model = model + changes[t]
    return Played(accuracy(task, model), changes, own, canary_seed)


def _clipped_sum(updates: NDArray[np.float64], norm: float) -> Vector:
    """Return the sum of updates, each scaled to at most `norm`."""
    lengths = np.maximum(np.linalg.norm(updates, axis=1), np.finfo(np.float64).tiny)
    return np.asarray(np.minimum(1.0, norm / lengths) @ updates)


def canary_rows(seed: int, ids: range, dim: int) -> Rows:
    """Return these canaries, one a row."""
    rows = np.empty((len(ids), dim), dtype=np.float32)
    for row, i in zip(rows, ids, strict=True):
        row[:] = canary_vector(seed, i, dim)
    return rows


def accuracy(task: Task, model: Vector) -> float:
    """Return the share of test records that a model gets right."""
    net = task.new_model()
    vector_to_parameters(torch.from_numpy(model).float(), net.parameters())
    with torch.no_grad():
        guesses = net(torch.from_numpy(task.dataset.test_x)).argmax(dim=1).numpy()
    return float((guesses == task.dataset.test_y).mean())
