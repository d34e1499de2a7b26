"""What a simulation knows of records: which of them trained in a round, and which never did.

Auditors compare with it what an attacker finds; the attackers themselves see none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from leakmeter.auditors._types import Floats, Indices, Vector
from leakmeter.auditors.auditor import RoundView
from leakmeter.auditors.inversion import RoundImages
from leakmeter.auditors.rng import stream
from leakmeter.clients.update import as_steps, batch_sizes
from leakmeter.clients.water_filling.gaussian_sampling import GaussianSampling
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.rule import update_rule
from leakmeter.fl_app.task import Task, load_task

_MOST_RECORDS = 2000  # members, and as many held-out records, whose losses are compared
_CHUNK = 500  # records that go through a model at once


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
        steps = as_steps(rule)
        assert steps is not None
        each = [steps.passes * len(batch_sizes(steps, len(part))) for part in self.task.parts]
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
        rule = as_steps(update_rule(self.config))
        if rule is None:
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
        data, seed = self.task.dataset, self.config.seed
        used = np.zeros(data.num_train, dtype=bool)
        used[: len(uses)] = uses > 0
        # One order for all rounds, so that models are compared on the same records if they can be.
        order = stream(seed, "membership", "members").permutation(data.num_train)
        members = order[used[order]][:_MOST_RECORDS]
        held_out = stream(seed, "membership", "held-out").permutation(len(data.test_y))
        held_out = held_out[:_MOST_RECORDS]
        net = self.at(model).double()
        return (
            _losses(net, data.train_x[members], data.train_y[members]),
            _losses(net, data.test_x[held_out], data.test_y[held_out]),
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


def _losses(
    net: nn.Module, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]], y: Indices
) -> Floats:
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
