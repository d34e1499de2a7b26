"""What a simulation knows of records: which of them trained in a round, and which never did.

Auditors compare with it what an attacker finds; the attackers themselves see none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors._types import Floats, Indices, Vector
from leakmeter.auditors.auditor import RoundView
from leakmeter.auditors.inversion import RoundImages
from leakmeter.auditors.records import Shadows, logit_confidences
from leakmeter.auditors.rng import stream
from leakmeter.clients.cohort.cohort import Cohort
from leakmeter.clients.protection.gaussian_sampling import GaussianSampling
from leakmeter.clients.update import LocalSteps, fedavg
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.rule import update_rule
from leakmeter.fl_app.task import Task, load_task

_MOST_RECORDS = 2000  # members, and as many held-out records, whose losses are compared
_CHUNK = 500  # records that go through a model at once
_LEAST_OWN, _MOST_OWN = 20, 1000  # test records that shadow models are trained on

_Labelled = tuple[NDArray[np.float32], Indices]


@dataclass(frozen=True)
class SimulatedRecords:
    """The records of a run, and the clients that train on them.

    Attributes:
        config: The run's settings.
        cohort_of: Returns the clients that a round asks.
    """

    config: Config
    cohort_of: Callable[[int], Sequence[int]]

    @property
    def task(self) -> Task:
        """Data, partition and model."""
        return load_task(self.config)

    @property
    def mean_steps(self) -> float:
        """Mean number of gradient steps of a client in a round."""
        rule = update_rule(self.config)
        if isinstance(rule, GaussianSampling):
            return float(rule.steps)
        each = [rule.passes * len(rule.batch_sizes(len(part))) for part in self.task.parts]
        return float(np.mean(each))

    def trained(self, view: RoundView) -> Indices:
        """Return the training records that the honest clients of a round trained on."""
        asked = [c for c in self.cohort_of(view.server_round) if c not in view.instructed]
        # Replies of a recorded run are not kept; then all that were asked count.
        answered = set(view.replies) or set(asked)
        own = [self._of_client(view.server_round, c) for c in asked if c in answered]
        return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *own]))

    def _of_client(self, server_round: int, client: int) -> Indices:
        """Return what a client trains on: one batch with FedSGD, else all of its records."""
        part = self.task.parts[client].numpy()
        rule = update_rule(self.config)
        if not isinstance(rule, LocalSteps):
            return part
        # The client's own stream draws its batches first: see `train` in `fl_app.client_app`.
        rng = stream(self.config.seed, "train", server_round, client)
        return np.asarray(part[rule.order(len(part), rng)])

    def losses(self, model: Vector, uses: Indices) -> tuple[Floats, Floats]:
        """Return the losses of records that trained and of test records.

        Args:
            model: Flat parameters.
            uses: Rounds in which each training record trained.
        """
        members, held_out = self._compared(uses)
        net = self.at(model).double()
        return _losses(net, *members), _losses(net, *held_out)

    def shadows(self, uses: Indices) -> Shadows:
        """Return what models of the attacker's own make of the same records.

        The attacker holds half of the test records and trains each model on half of these. None of
        them is compared, so this is the offline attack.
        """
        (x, y), (other_x, other_y) = self._compared(uses)
        rows = np.concatenate([x, other_x]), np.concatenate([y, other_y])
        each = [_losses(self.at(model).double(), *rows) for model in _shadow_models(self.config)]
        return Shadows(np.stack([logit_confidences(losses) for losses in each]))

    def _compared(self, uses: Indices) -> tuple[_Labelled, _Labelled]:
        """Return records that trained and test records, each with labels."""
        data = self.task.dataset
        used = np.zeros(data.num_train, dtype=bool)
        used[: len(uses)] = uses > 0
        # One order for all rounds, so that models are compared on the same records if they can be.
        order = stream(self.config.seed, "membership", "members").permutation(data.num_train)
        members = order[used[order]][:_MOST_RECORDS]
        held_out = _test_records(self.config)[1][:_MOST_RECORDS]
        return (
            (data.train_x[members], data.train_y[members]),
            (data.test_x[held_out], data.test_y[held_out]),
        )

    def at(self, model: Vector) -> nn.Module:
        """Return the model with the given flat parameters."""
        net = self.task.new_model()
        start = torch.from_numpy(model).to(next(net.parameters()).dtype)
        vector_to_parameters(start, net.parameters())
        return net

    def images(self, view: RoundView) -> RoundImages:
        """Return the images that a round trained on, and all others, of the test part as well."""
        data, trained = self.task.dataset, self.trained(view)
        others = np.setdiff1d(np.arange(data.num_train), trained)
        strangers = np.concatenate([data.train_x[others], data.test_x])
        return RoundImages(data.train_x[trained], strangers)

    def check_shadows(self) -> None:
        """Raise if there are too few test records to train shadow models on and to compare with."""
        own, _ = _test_records(self.config)
        if self.config.membership_shadows and len(own) < _LEAST_OWN:
            few = len(self.task.dataset.test_y)
            allowed = f"0 with {few} test records, as it needs {2 * _LEAST_OWN}"
            raise out_of_range("--membership-shadows", allowed, self.config.membership_shadows)


def _test_records(config: Config) -> tuple[Indices, Indices]:
    """Return the attacker's own test records, none without shadow models, and the others."""
    count = len(load_task(config).dataset.test_y)
    order = stream(config.seed, "membership", "held-out").permutation(count)
    own = count // 2 if config.membership_shadows else 0
    return order[:own], order[own:]


@lru_cache(maxsize=1)
def _shadow_models(config: Config) -> Floats:
    """Return flat models, each trained on half of the attacker's records; (models, dim).

    They take as many passes as a client that is in every round, with its step length and batches.
    """
    task, own = load_task(config), _test_records(config)[0][:_MOST_OWN]
    names = [("membership", "shadow", i) for i in range(config.membership_shadows)]
    parts = [stream(config.seed, *name, "part").permutation(own)[: len(own) // 2] for name in names]
    rngs = [stream(config.seed, *name, "batches") for name in names]
    passes = config.rounds * (1 if config.algorithm == "fedsgd" else config.epochs)
    start = parameters_to_vector(task.initial.parameters()).detach()
    x, y = torch.from_numpy(task.dataset.test_x), torch.from_numpy(task.dataset.test_y)
    cohort = Cohort(task.new_model(), fedavg(passes, config.batch_size, config.lr))
    updates = cohort.updates(start, x, y, parts, rngs)
    return np.asarray((start + updates).double().numpy())


def _losses(net: nn.Module, x: NDArray[np.float32], y: Indices) -> Floats:
    """Return the cross-entropy of each record."""
    with torch.no_grad():
        each = [
            cross_entropy(
                net(torch.from_numpy(x[first : first + _CHUNK]).double()),
                torch.from_numpy(y[first : first + _CHUNK]),
                reduction="none",
            )
            for first in range(0, len(y), _CHUNK)
        ]
    return np.asarray(torch.cat(each).numpy())
