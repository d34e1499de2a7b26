"""A learning task: data partitioned among clients, a model, and its evaluation."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from leakmeter.fl_app import model
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.data.dataset import Dataset
from leakmeter.fl_app.data.load import dealt
from leakmeter.fl_app.data.partition import Sizes, sizes


@dataclass(frozen=True)
class Task:
    """Data, partition and model of a run; the same in the server and in every client."""

    dataset: Dataset
    parts: tuple[Tensor, ...]
    initial: nn.Module

    @property
    def sizes(self) -> Sizes:
        """Smallest, median and largest number of records at a client."""
        return sizes(tuple(part.numpy() for part in self.parts))

    @property
    def dim(self) -> int:
        """Number of parameters of the model."""
        return sum(parameter.numel() for parameter in self.initial.parameters())

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return one client's inputs and labels."""
        part = self.parts[client].numpy()
        x, y = self.dataset.train_x[part], self.dataset.train_y[part]
        return torch.from_numpy(x), torch.from_numpy(y)

    def new_model(self) -> nn.Module:
        """Return a new model with the initial parameters."""
        return copy.deepcopy(self.initial)

    def initial_arrays(self) -> ArrayRecord:
        """Return the initial parameters as Flower sends them."""
        return ArrayRecord(self.initial.state_dict())

    def accuracy(self, net: nn.Module) -> float:
        """Return the accuracy of a model on the test set."""
        found = self.evaluate(ArrayRecord(net.state_dict()))["accuracy"]
        assert isinstance(found, float)
        return found

    def evaluate(self, arrays: ArrayRecord) -> MetricRecord:
        """Return accuracy and loss of a model on the test set."""
        net = self.new_model()
        net.load_state_dict(arrays.to_torch_state_dict())
        x, y = torch.from_numpy(self.dataset.test_x), torch.from_numpy(self.dataset.test_y)
        with torch.no_grad():
            logits = net(x)
        return MetricRecord(
            {
                "accuracy": float((logits.argmax(dim=1) == y).double().mean()),
                "loss": float(cross_entropy(logits, y)),
            }
        )


def load_task(config: Config | TaskConfig) -> Task:
    """Return the task of a configuration, loaded once per process."""
    return _load(config.task if isinstance(config, Config) else config)


@lru_cache(maxsize=4)
def _load(config: TaskConfig) -> Task:
    dataset, parts = dealt(config)
    initial = model.build(config.model, dataset.input_shape, dataset.num_classes, config.seed)
    return Task(dataset, tuple(torch.from_numpy(part) for part in parts), initial)
