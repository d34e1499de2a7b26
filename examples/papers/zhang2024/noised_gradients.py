"""Four ways to noise sampled gradients, at equal accumulated (ε, δ) for one record.

Zhang and Psounis (2024), arXiv:2405.04551, section 5.3, Fig. 4 and Fig. 5, 50 users, linear model
and CNN. Ours differs:

1. All floors are calibrated with bounds that hold (`strategies.accounting.rdp`), composed over
   the rounds in Rényi DP and converted tightly. Row 6 of Table 1, which the paper prices WF-NA
   with, is no theorem; with the corrected bound the floor for WF-NA is above that for isotropic
   noise.
2. Isotropic noise on Gaussian sampling (row 5) is trained as well: it is what WF-NA should beat.
3. Records and rounds are fewer, so that it takes minutes. So few steps would not leave the plateau
   that the CNN starts on: it starts from a model that public records have brought off it.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors.records.game import CovarianceSpectrum
from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.gradients import per_example_gradients
from leakmeter.clients.update import UpdateRule
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.data import dataset as data
from leakmeter.fl_app.data.dataset import Dataset
from leakmeter.fl_app.task import Task, build_model, record_rule
from leakmeter.papers.base import Cells, Comparison, Table, accuracy
from leakmeter.papers.plot import Line, Panel
from leakmeter.papers.zhang2024 import prices
from leakmeter.papers.zhang2024.prices import calibrated_floor

_DELTA = 1e-4
# The noise of a run that each mechanism is, and what prices it.
_PRICES: dict[str, tuple[str, Callable[..., float]]] = {
    "SGD-DP": ("record-sgd", prices.minibatch_epsilon),
    "GSGD-DP": ("wfna", prices.water_filling_epsilon),
    "GSGD isotropic": ("record-isotropic", prices.gaussian_sampling_epsilon),
    "GD-DP": ("record-gd", prices.full_gradient_epsilon),
}
MECHANISMS = tuple(_PRICES)
# Neighbours in the published order, the better one first; isotropic noise is not in its figure.
_PUBLISHED = (("GSGD-DP", "SGD-DP"), ("GD-DP", "GSGD-DP"))
_NAMES = {"linear": "linear model", "cnn": "CNN"}

Runs = Sequence[Mapping[str, Any]]
Got = Mapping[tuple[str, float], Runs]  # by mechanism and ε


@dataclass(frozen=True)
class Scale:
    """How large the runs are; all fixed before the first one."""

    config: Config  # users, who take part in every round; rounds of one step each; B, C, lr
    examples: int  # D, records of each user
    epsilons: tuple[float, ...]  # of all rounds together
    seeds: int  # runs that differ in split, start and noise
    once: tuple[str, ...] = ()  # mechanisms that are run once only
    enlarged: int = 1  # pixels on a side that one pixel becomes: some models need larger images
    public: int = 0  # records that no user holds, which the start is trained on; 0: at random

    @property
    def runs(self) -> str:
        """How many runs the mechanisms have."""
        return f"{self.seeds}, {' and '.join(self.once)} one" if self.once else f"{self.seeds}"


_NOISE: dict[str, Any] = {"noise": "wfna", "wfna_floor": 1.0, "clip_norm": 10.0}
_USERS = Config(clients=50, sample=50, algorithm="fedsgd", epochs=1, auditors="none", **_NOISE)
_LINEAR = replace(_USERS, dataset="mnist", model="linear", rounds=20, batch_size=32, lr=0.3)
_DIGITS = replace(_LINEAR, dataset="digits", clients=5, sample=5, clip_norm=4.0)
_CNN = replace(_LINEAR, model="cnn", rounds=8, batch_size=8, lr=0.01)
_CNN_DIGITS = replace(_DIGITS, model="cnn", rounds=3, batch_size=8, lr=0.1)
_SCALES = {
    "linear": {
        "paper": Scale(_LINEAR, 600, (0.5, 1.0, 2.0, 4.0, 8.0), 3),
        "small": Scale(replace(_DIGITS, rounds=5, batch_size=16, lr=0.8), 150, (2.0, 16.0), 2),
    },
    "cnn": {
        "paper": Scale(_CNN, 60, (2.0, 8.0), 3, ("GSGD isotropic", "GD-DP"), public=2000),
        "small": Scale(_CNN_DIGITS, 40, (8.0, 64.0), 1, enlarged=2, public=600),
    },
}


def run(scale: str, cells: Cells, variant: str) -> Table:
    """Train every mechanism at every ε with every seed."""
    size = _SCALES[variant][scale]
    config, middle = size.config, size.epsilons[len(size.epsilons) // 2]
    got: dict[tuple[str, float], Runs] = {}
    for name, epsilon in product(MECHANISMS, size.epsilons):
        key = f"{scale}-{name.replace(' ', '-')}-eps{epsilon:g}"
        floor = cells.get(f"{key}-floor", floor_of, size, name, epsilon)
        got[name, epsilon] = [
            cells.get(f"{key}-seed{seed}", _train, size, name, floor, seed)
            for seed in range(1 if name in size.once else size.seeds)
        ]
    floor = got["GSGD-DP", middle][0]["floor"]
    spectrum = cells.get(f"{scale}-spectrum-eps{middle:g}", _spectrum, size, floor)
    notes, net = [_MEANING, _SPECTRUM], _NAMES[variant]
    about = {"size": size, "middle": middle, **spectrum}
    if size.public:
        about["start"] = cells.get(f"{scale}-start", start_accuracy, size)
        notes, net = [_START, *notes], f"CNN of {spectrum['dim']:,} parameters"
    return Table(
        title=f"Accuracy at equal ε for one record, {config.dataset}, {net}, {config.clients} "
        f"users of {size.examples} records, {config.rounds} rounds, B = {config.batch_size}, "
        f"C = {config.clip_norm:g}, δ = {_DELTA:g}",
        columns=("mechanism", "ε", "σ² per user", "runs", "accuracy", "ms a round"),
        rows=tuple(_row(name, epsilon, runs) for (name, epsilon), runs in got.items()),
        notes=tuple(note.format(**about) for note in notes),
        figures={"accuracy.svg": _panels(got, spectrum)},
        comparisons=(
            *compared(got, _NAMES[variant], has_start=size.public > 0),
            _compared_spectrum(spectrum, _NAMES[variant], got),
        ),
    )


def floor_of(size: Scale, name: str, epsilon: float) -> float:
    """Return the least σ² that keeps all rounds together within ε."""
    config = size.config
    setting = {"users": config.clients, "clip": config.clip_norm, "examples": size.examples}
    batch = {} if name == "GD-DP" else {"batch": config.batch_size}
    rest = {"rounds": config.rounds, "delta": _DELTA, **batch}
    return calibrated_floor(_PRICES[name][1], epsilon, tol=1e-3, **setting, **rest)


def _train(size: Scale, name: str, floor: float, seed: int) -> dict[str, float]:
    """Return the accuracy on test data after all rounds, and the time of one."""
    noise, task = _PRICES[name][0], task_of(size, seed)
    algorithm = "gd" if noise == "record-gd" else "fedsgd"
    config = replace(size.config, noise=noise, algorithm=algorithm, wfna_floor=floor)
    net, spent = trained(task, record_rule(config), config.rounds, seed, ("train", name))
    return {"accuracy": accuracy(task, net), "seconds": spent / config.rounds, "floor": floor}


def trained(
    task: Task, rule: UpdateRule, rounds: int, seed: int, names: Sequence[str]
) -> tuple[nn.Module, float]:
    """Return the model after so many rounds of all users, and the processor time."""
    net, users = task.new_model(), [task.examples(user) for user in range(len(task.parts))]
    start = time.process_time()
    for server_round in range(1, rounds + 1):
        moved = []
        for user, (x, y) in enumerate(users):
            own = copy.deepcopy(net)
            rule(own, x, y, stream(seed, *names, server_round, user))
            moved.append(parameters_to_vector(own.parameters()).detach())
        # Equal weights: the mean of the models is the model after the mean update.
        vector_to_parameters(torch.stack(moved).mean(dim=0), net.parameters())
    return net, time.process_time() - start


def _spectrum(size: Scale, floor: float) -> dict[str, Any]:
    """Return eigenvalues of one user's sampling covariance and what the floor adds."""
    task, config = task_of(size, 0), size.config
    gradients = per_example_gradients(task.new_model(), *task.examples(0), config.clip_norm)
    batch = config.batch_size
    found = CovarianceSpectrum.of_gram(gradients.gram(), gradients.dim, batch=batch, floor=floor)
    return {
        "curve": found.curve(),
        "floor": floor,
        "dim": found.dim,
        "rank": found.rank,
        "covered": found.num_covered,
        "saved": found.share_saved,
    }


def start_accuracy(size: Scale) -> float:
    """Return the accuracy of the first run's start on test data."""
    task = task_of(size, 0)
    return accuracy(task, task.initial)


@lru_cache(maxsize=2)
def task_of(size: Scale, seed: int) -> Task:
    """Return equal shares of randomly chosen records, and the model that the first round sends."""
    dataset = _data(size.config.dataset, size.enlarged)
    order = stream(seed, "wfna-split").permutation(len(dataset.train_y))
    wanted = size.config.clients * size.examples
    assert wanted + size.public <= len(order)  # public records are nobody's
    parts = order[:wanted].reshape(size.config.clients, -1)
    net = build_model(size.config.model, dataset.input_shape, dataset.num_classes, seed)
    if size.public:
        _train_publicly(net, dataset, order[-size.public :], seed)
    return Task(dataset, tuple(parts), net)


def _train_publicly(net: nn.Module, dataset: Dataset, records: np.ndarray, seed: int) -> None:
    """Train the start on records that no user holds."""
    x, y = torch.from_numpy(dataset.train_x[records]), torch.from_numpy(dataset.train_y[records])
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(4):
        mixed = torch.from_numpy(stream(seed, "wfna-public", epoch).permutation(len(y)))
        for some in torch.split(mixed, 50):
            optimiser.zero_grad()
            cross_entropy(net(x[some]), y[some]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()


@lru_cache(maxsize=1)
def _data(name: str, enlarged: int = 1) -> Dataset:
    found = data.load(name)
    if enlarged == 1:
        return found

    def larger(x: np.ndarray) -> np.ndarray:
        pixel = np.ones((1, enlarged, enlarged), x.dtype)
        return np.kron(x.reshape(len(x), *found.input_shape), pixel)

    return replace(found, train_x=larger(found.train_x), test_x=larger(found.test_x))


_MEANING = (
    "Runs of each mechanism: {size.runs}. They differ in split, start and noise; mean ± std. Means "
    "over other numbers of runs have other starts and are not to be compared. Runs of one "
    "mechanism at different ε share their draws, scaled: they are no repetitions of each other. ε "
    "is that of all rounds together, for one record that is replaced, against a server that learns "
    "each secure sum of honest users only. SGD-DP alone gains from the secrecy of batches. Steps "
    "have the length {size.config.lr:g}; the paper gives none. Time is that of one core for all "
    "users of a round."
)
_START = (
    "The first run starts at an accuracy of {start:.4f}, from {size.public} public records that no "
    "user holds; the published runs start at random and are far longer. The kind of start was "
    "chosen, and the step length set, after ten short runs without noise that looked at a part of "
    "the test data; accuracies are to be compared with each other, not with the paper's. A first "
    "run had steps of 0.03, at which full gradients without any noise swing (0.877 after 4 rounds, "
    "0.814 after 8); 0.01 replaced it after that had been seen."
)
_SPECTRUM = (
    "Spectrum (Fig. 4): one user at the first model, floor of ε = {middle:g}; {covered} of {dim} "
    "directions need no noise, and {saved:.2%} of the variance of isotropic noise is saved. A "
    "diagnosis of these data, not a guarantee."
)


def _mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation over runs; the latter is 0 for one run."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _of(runs: Runs, name: str = "accuracy") -> list[float]:
    return [run[name] for run in runs]


def _row(name: str, epsilon: float, runs: Runs) -> tuple[Any, ...]:
    mean, std = _mean_std(_of(runs))
    accuracy = f"{mean:.4f} ± {std:.4f}" if len(runs) > 1 else f"{mean:.4f}"
    milliseconds = f"{1e3 * np.mean(_of(runs, 'seconds')):.0f}"
    return name, epsilon, f"{runs[0]['floor']:.4g}", len(runs), accuracy, milliseconds


def relations(got: Got, epsilon: float) -> str:
    """Return accuracies at one ε, and which neighbours in the published order are apart.

    Runs of one number share split and start, so their differences are taken run by run.
    """
    runs = {name: got[name, epsilon] for name in MECHANISMS}
    is_uneven = len({len(own) for own in runs.values()}) > 1  # means of other starts
    means = ", ".join(
        f"{name} {np.mean(_of(own)):.4f}" + " (one run)" * (is_uneven and len(own) == 1)
        for name, own in runs.items()
    )
    return "; ".join([means, *(_relation(got, epsilon, *pair) for pair in _PUBLISHED)])


def _relation(got: Got, epsilon: float, better: str, worse: str) -> str:
    """Say whether the better one in the paper is above the other here, at 95 % confidence."""
    both = zip(_of(got[better, epsilon]), _of(got[worse, epsilon]), strict=False)
    apart = [one - other for one, other in both]  # one mechanism may have run once
    if len(apart) == 1:
        return f"one run shows no order of {better} and {worse}"
    mean, std = _mean_std(apart)
    reach = stdtrit(len(apart) - 1, 0.975) * std / math.sqrt(len(apart))
    size = f"{mean:+.4f} ± {reach:.4f}"
    if abs(mean) <= reach:
        return f"no order of {better} and {worse} is shown ({size})"
    return f"{better} is {'above' if mean > 0 else 'below'} {worse} ({size})"


def compared(got: Got, net: str, *, has_start: bool = False) -> Iterator[Comparison]:
    """Yield what the paper says of its Fig. 5 beside what came out."""
    source = "Zhang and Psounis 2024, Fig. 5"
    start = ", a start from public records" if has_start else ""
    once = " Accuracies of one run have another start than means of several" if has_start else ""
    for epsilon in dict.fromkeys(e for _, e in got):
        yield Comparison(
            source,
            f"accuracy at equal ε = {epsilon:g}, MNIST, {net}",
            "GD-DP > GSGD-DP > SGD-DP, GSGD-DP significantly above SGD-DP",
            relations(got, epsilon),
            f"Fewer records and rounds{start}; σ² from bounds that hold, composed in Rényi DP. In "
            "brackets: mean difference of runs with the same split and start, with its 95 % "
            f"interval, each by itself. An order is named only where that excludes 0.{once}",
        )
    times = []
    for name in ("SGD-DP", "GSGD-DP", "GD-DP"):
        own = [run for (n, _), runs in got.items() if n == name for run in runs]
        times.append(f"{name} {1e3 * np.mean(_of(own, 'seconds')):.0f} ms")
    yield Comparison(
        source,
        f"time of a round, {net}",
        "SGD-DP takes least and GSGD-DP most, which needs an SVD of the covariance",
        ", ".join(times),
        "We draw the noise through the Gram matrix, without an SVD of size d × d",
    )


def _compared_spectrum(spectrum: Mapping[str, Any], net: str, got: Got) -> Comparison:
    shown = [
        f"ε = {e:g}: {_relation(got, e, 'GSGD-DP', 'GSGD isotropic')}"
        for e in dict.fromkeys(e for _, e in got)
    ]
    return Comparison(
        "Zhang and Psounis 2024, Fig. 4",
        f"noise that WF-NA adds against isotropic noise of the same σ², {net}",
        "less: only where eigenvalues are below σ²",
        f"{1 - spectrum['saved']:.2%} of its variance; {spectrum['covered']} of "
        f"{spectrum['dim']} directions need none",
        "The published figure is a sketch without a data set. Few records span few of the "
        "directions, and at equal ε the sound bound needs a larger σ² than isotropic noise. "
        f"Accuracy, where GSGD-DP is WF-NA: {'; '.join(shown)}",
    )


def _panels(got: Got, spectrum: Mapping[str, Any]) -> tuple[Panel, ...]:
    """Return accuracy over ε, and the spectrum with what is added to it."""
    lines = []
    for color, name in enumerate(MECHANISMS):
        epsilons = [e for n, e in got if n == name]
        means = [_mean_std(_of(got[name, e])) for e in epsilons]
        lines.append(Line(name, epsilons, [m for m, _ in means], color))
        for sign in (-1, 1) if any(std for _, std in means) else ():
            lines.append(Line("_std", epsilons, [m + sign * s for m, s in means], color, ":"))
    index, sampled, added = np.transpose(spectrum["curve"])
    floor = spectrum["floor"]
    least = floor * 1e-6  # a logarithm has no zero
    noises = (
        Line("by sampling", index, np.maximum(sampled, least), 0),
        Line("added by WF-NA", index, np.maximum(added, least), 1),
        Line("isotropic noise", index, [floor] * len(index), 2, "--"),
    )
    title = "one user's sampling noise and what WF-NA adds"
    return (
        Panel("accuracy; dotted: ± std", "ε", "accuracy on test data", tuple(lines), log_x=True),
        Panel(title, "index of the eigenvalue", "variance", noises, log_x=True, log_y=True),
    )
