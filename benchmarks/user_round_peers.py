"""Federated averaging as a user of Flower or of pfl writes it.

    python user_round_peers.py flower folder mlp 10
    python user_round_peers.py pfl-population 1000000 small 3

The arguments are the peer, the folder with the records (those of a client lie together), the model
and the rounds. The folder contains them as tensors in `data.npz`, and as images in the files of
torchvision's MNIST. In place of a folder, `pfl-population` takes the number of clients, each of
which generates its records when it trains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CLIENTS, BATCH, LR = 100, 64, 0.1
FEATURES, CLASSES, RECORDS = 20, 10, 100  # of a population, as `run_sim.py` has them


def model(name: str) -> nn.Module:
    """Return the linear model, one with two hidden layers, or the convolutional one."""
    widths = {
        "linear": (784, 10),
        "mlp": (784, 100, 100, 10),
        "cnn": (128, 80, 64, 10),
        "small": (FEATURES, 100, 100, CLASSES),
    }[name]
    layers = convolutions() if name == "cnn" else []
    layers.append(nn.Flatten())
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutions() -> list[nn.Module]:
    """Return the layers before the dense ones: five convolutions, three of them pooled."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 28, 28))]
    for place, (fan_in, fan_out) in enumerate(pairwise((1, 16, 32, 48, 48, 32))):
        layers += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.ReLU()]
        if place in (0, 1, 4):
            layers.append(nn.MaxPool2d(3, stride=2))
    return layers


@lru_cache(maxsize=1)
def records(folder: str) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of all clients, one client after the other."""
    kept = np.load(Path(folder, "data.npz"))
    return torch.from_numpy(kept["x"]), torch.from_numpy(kept["y"])


@lru_cache(maxsize=1)
def images(folder: str) -> Any:
    """Return the same records as images, each made a tensor when it is read."""
    from torchvision.datasets import MNIST
    from torchvision.transforms import ToTensor

    return MNIST(folder, transform=ToTensor())


def places(client: int, count: int) -> range:
    """Return where one client's records are."""
    return range(client * count // CLIENTS, (client + 1) * count // CLIENTS)


def of_client(folder: str, client: int) -> tuple[Tensor, Tensor]:
    """Return one client's records."""
    x, y = records(folder)
    own = places(client, len(y))
    return x[own.start : own.stop], y[own.start : own.stop]


def train(peer: str, folder: str, name: str, arrays: Any, client: int) -> tuple[nn.Module, int]:
    """Train as a client of Flower's usually does."""
    from torch.utils.data import DataLoader, Subset, TensorDataset

    torch.set_num_threads(1)
    net = model(name)
    own: Any = (
        Subset(images(folder), places(client, len(images(folder))))
        if peer == "flower-images"
        else TensorDataset(*of_client(folder, client))
    )
    net.load_state_dict(arrays.to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    for inputs, labels in DataLoader(own, BATCH, shuffle=True):
        optimiser.zero_grad()
        cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return net, len(own)


def flower(peer: str, folder: str, name: str, rounds: int) -> None:
    """Run Flower's FedAvg on its Ray simulation."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    class Complete(FedAvg):
        """A round without some of its clients would be cheaper than ours."""

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            answers = [reply for reply in replies if not reply.has_error()]
            if len(answers) < CLIENTS:
                raise RuntimeError(f"round {server_round}: {len(answers)} of {CLIENTS} answered")
            return super().aggregate_train(server_round, answers)

    client_app, server_app = ClientApp(), ServerApp()
    here = str(Path(__file__).parent)

    @client_app.train()
    def answer(message: Message, context: Context) -> Message:
        sys.path.insert(0, here)  # by its name, so that an actor keeps the data
        import user_round_peers as peers  # type: ignore[import-not-found]

        arrays = message.content.array_records["arrays"]
        client = int(context.node_config["partition-id"])
        net, count = peers.train(peer, folder, name, arrays, client)
        metrics = MetricRecord({"num-examples": count})
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    @server_app.main()
    def serve(grid: Grid, _: Context) -> None:
        strategy = Complete(0.999999, 0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        strategy.start(grid, ArrayRecord(model(name).state_dict()), num_rounds=rounds)

    backend: dict[str, Any] = {
        "init_args": {"address": "local", "num_cpus": 2, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client_app, CLIENTS, backend_config=backend)


@dataclass(frozen=True)
class Federation:
    """Clients of pfl's: how many, the records of each, and what it does with them."""

    clients: int
    records: Callable[[int], tuple[Tensor, Tensor]]
    batch: int = BATCH
    lr: float = LR
    epochs: int = 1


def generated(client: int) -> tuple[Tensor, Tensor]:
    """Return a client's own records: each class a Gaussian around its centre."""
    centres = np.random.default_rng(0).standard_normal((CLASSES, FEATURES), dtype=np.float32)
    rng = np.random.default_rng([1, client])
    labels = rng.integers(CLASSES, size=RECORDS)
    spread = rng.standard_normal((RECORDS, FEATURES), dtype=np.float32)
    return torch.from_numpy(centres[labels] * 3 / FEATURES**0.5 + spread), torch.from_numpy(labels)


def pfl_population(_: str, clients: str, name: str, rounds: int) -> None:
    """Run pfl's federated averaging with 100 of so many clients per round."""
    pfl_rounds(Federation(int(clients), generated, batch=8, lr=0.3, epochs=2), name, rounds)


def pfl(_: str, folder: str, name: str, rounds: int) -> None:
    """Run pfl's federated averaging with the records of a folder."""
    pfl_rounds(Federation(CLIENTS, lambda client: of_client(folder, client)), name, rounds)


def pfl_rounds(of: Federation, name: str, rounds: int) -> None:
    """Run pfl's federated averaging in this process, with 100 clients per round."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    set_framework_module(pytorch_ops)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model(name)

        def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
            return cross_entropy(self.layers(inputs), targets)

        def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = True) -> dict[str, Any]:
            return {
                "loss": Weighted(float(self.loss(inputs, targets)) * len(targets), len(targets))
            }

    def own(client: int) -> Any:
        return Dataset(raw_data=list(of.records(client)), user_id=str(client))

    net, users = Net(), range(of.clients)
    trained = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    data = FederatedDataset(own, get_user_sampler("minimize_reuse", users))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=CLIENTS,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        trained,
        NNTrainHyperParams(
            local_learning_rate=of.lr, local_num_epochs=of.epochs, local_batch_size=of.batch
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[],
    )


if __name__ == "__main__":
    peer_name, data_folder, model_name, num_rounds = sys.argv[1:]
    run = {
        "flower": flower,
        "flower-images": flower,
        "pfl": pfl,
        "pfl-population": pfl_population,
    }[peer_name]
    run(peer_name, data_folder, model_name, int(num_rounds))
