"""Training with noised gradients at equal accumulated (ε, δ) for one record.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), section 5.3. All floors are calibrated with bounds that hold
(`strategies.water_filling.rdp`), composed over the rounds in Rényi DP and converted tightly.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors.records.spectrum import Spectrum
from leakmeter.auditors.rng import stream
from leakmeter.clients.water_filling.gaussian_sampling import GaussianSampling, Isotropic
from leakmeter.clients.water_filling.per_example import per_example_gradients
from leakmeter.clients.water_filling.water_filling import WaterFilling
from leakmeter.fl_app import model
from leakmeter.fl_app.data import load as data
from leakmeter.fl_app.data.dataset import Dataset
from leakmeter.fl_app.experiments.base import Cells
from leakmeter.strategies.water_filling.guarantee import (
    full_gradient_epsilon,
    gaussian_sampling_epsilon,
    minibatch_epsilon,
    water_filling_epsilon,
)
from leakmeter.strategies.water_filling.rdp import calibrated_floor

DELTA = 1e-4
MECHANISMS = ("SGD-DP", "GSGD-DP", "GSGD isotropic", "GD-DP")

Runs = Sequence[Mapping[str, Any]]
Got = Mapping[tuple[str, float], Runs]  # by mechanism and ε


@dataclass(frozen=True)
class Scale:
    """How large the runs are; all fixed before the first one.

    Attributes:
        dataset: Its name.
        users: All of them take part in every round.
        examples: D, records of each user.
        rounds: One step of every user each.
        batch: B.
        clip: C.
        lr: Step length.
        epsilons: Of all rounds together.
        seeds: Runs that differ in split, start and noise.
        once: Mechanisms that are run once only.
        model: Its name.
        enlarged: Pixels on a side that one pixel becomes, for models that need larger images.
        public: Records that no user holds, on which the start is trained; 0 starts at random.
    """

    dataset: str
    users: int
    examples: int
    rounds: int
    batch: int
    clip: float
    lr: float
    epsilons: tuple[float, ...]
    seeds: int
    once: tuple[str, ...] = ()
    model: str = "linear"
    enlarged: int = 1
    public: int = 0


def compute(scale: str, size: Scale, cells: Cells) -> tuple[Got, float, Mapping[str, Any]]:
    """Train every mechanism at every ε with every seed.

    Returns:
        Runs by mechanism and ε, the ε in the middle, and the spectrum at its floor.
    """
    got: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for name in MECHANISMS:
        for epsilon in size.epsilons:
            key = f"{scale}-{name.replace(' ', '-')}-eps{epsilon:g}"
            price = cells.get(f"{key}-floor", partial(floor_of, size, name, epsilon))
            got[name, epsilon] = [
                cells.get(f"{key}-seed{seed}", partial(_train, size, name, price, seed))
                for seed in range(1 if name in size.once else size.seeds)
            ]
    middle = size.epsilons[len(size.epsilons) // 2]
    floor = got["GSGD-DP", middle][0]["floor"]
    spectrum = cells.get(f"{scale}-spectrum-eps{middle:g}", partial(_spectrum, size, floor))
    return got, middle, spectrum


def floor_of(size: Scale, name: str, epsilon: float) -> float:
    """Return the least σ² that keeps all rounds together within ε."""
    setting: dict[str, Any] = {
        "users": size.users,
        "clip": size.clip,
        "examples": size.examples,
        "rounds": size.rounds,
        "delta": DELTA,
    }
    prices: dict[str, Callable[..., float]] = {
        "SGD-DP": minibatch_epsilon,
        "GSGD-DP": water_filling_epsilon,
        "GSGD isotropic": gaussian_sampling_epsilon,
        "GD-DP": full_gradient_epsilon,
    }
    if name != "GD-DP":
        setting["batch"] = size.batch
    return calibrated_floor(prices[name], epsilon, tol=1e-3, **setting)


def rule_of(size: Scale, name: str, floor: float) -> GaussianSampling:
    """Return what each user does in a round."""
    make = partial(GaussianSampling, size.lr, size.clip, simulated=True)
    match name:
        case "SGD-DP":
            return make(size.batch, "minibatch", Isotropic(floor))
        case "GSGD-DP":
            return make(size.batch, "gaussian", WaterFilling(floor))
        case "GSGD isotropic":
            return make(size.batch, "gaussian", Isotropic(floor))
    return make(0, "full", Isotropic(floor))


def _train(size: Scale, name: str, floor: float, seed: int) -> dict[str, float]:
    """Return the accuracy on test data after all rounds, and the time of one."""
    dataset = _data(size.dataset, size.enlarged)
    net = started(size, seed)
    users = _users(size, seed)
    rule = rule_of(size, name, floor)
    start = time.process_time()
    for number in range(1, size.rounds + 1):
        moved = []
        for user, (x, y) in enumerate(users):
            own = copy.deepcopy(net)
            rule(own, x, y, stream(seed, "train", name, number, user))
            moved.append(parameters_to_vector(own.parameters()).detach())
        # Equal weights: the mean of the models is the model after the mean update.
        vector_to_parameters(torch.stack(moved).mean(dim=0), net.parameters())
    spent = time.process_time() - start
    return {
        "accuracy": _accuracy(net, dataset),
        "seconds": spent / size.rounds,
        "floor": floor,
    }


def _spectrum(size: Scale, floor: float) -> dict[str, Any]:
    """Return eigenvalues of one user's sampling covariance and what the floor adds."""
    x, y = _users(size, 0)[0]
    gradients = per_example_gradients(started(size, 0), x, y, size.clip)
    found = Spectrum.of_gram(gradients.gram(), gradients.dim, batch=size.batch, floor=floor)
    return {
        "curve": found.curve(),
        "floor": floor,
        "dim": found.dim,
        "rank": found.rank,
        "covered": found.num_covered,
        "saved": found.share_saved,
    }


def started(size: Scale, seed: int) -> nn.Module:
    """Return the model that the first round sends."""
    return copy.deepcopy(_start(size, seed))


@lru_cache(maxsize=2)
def _start(size: Scale, seed: int) -> nn.Module:
    dataset = _data(size.dataset, size.enlarged)
    net = model.build(size.model, dataset.input_shape, dataset.num_classes, seed)
    if size.public:
        x, y = _records(size, _order(size, seed)[-size.public :])
        optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
        for epoch in range(4):
            mixed = torch.from_numpy(stream(seed, "wfna-public", epoch).permutation(len(y)))
            for some in torch.split(mixed, 50):
                optimiser.zero_grad()
                cross_entropy(net(x[some]), y[some]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
    return net


def start_accuracy(size: Scale) -> float:
    """Return the accuracy of the first run's start on test data."""
    return _accuracy(started(size, 0), _data(size.dataset, size.enlarged))


def _users(size: Scale, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return equal shares of randomly chosen training records."""
    order = _order(size, seed)
    wanted = size.users * size.examples
    if wanted + size.public > len(order):
        raise ValueError(
            f"users x examples + public must be at most {len(order)}, got {wanted + size.public}"
        )
    return [_records(size, part) for part in order[:wanted].reshape(size.users, -1)]


def _order(size: Scale, seed: int) -> np.ndarray:
    count = len(_data(size.dataset, size.enlarged).train_y)
    return stream(seed, "wfna-split").permutation(count)


def _records(size: Scale, which: np.ndarray) -> tuple[Tensor, Tensor]:
    dataset = _data(size.dataset, size.enlarged)
    return torch.from_numpy(dataset.train_x[which]), torch.from_numpy(dataset.train_y[which])


@lru_cache(maxsize=1)
def _data(name: str, enlarged: int = 1) -> Dataset:
    found = data.load(name)
    if enlarged == 1:
        return found
    larger = [
        np.kron(x.reshape(len(x), *found.input_shape), np.ones((1, enlarged, enlarged), x.dtype))
        for x in (found.train_x, found.test_x)
    ]
    return replace(found, train_x=larger[0], test_x=larger[1])


def _accuracy(net: nn.Module, dataset: Dataset) -> float:
    with torch.no_grad():
        guesses = net(torch.from_numpy(dataset.test_x)).argmax(dim=1).numpy()
    return float((guesses == dataset.test_y).mean())
