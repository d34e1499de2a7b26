"""What the sum tells of a client if the server adds noise to it before anybody sees it.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 16: linear model on MNIST, noise on the aggregate for
ε from 5 to 5,000 at δ = 1/1,200 and a norm of at most C = 1. The noise is the classical
σ = C √(2 ln(1.25/δ)) / ε, which is short of the ε that it names where that is large; it is taken
as a size of noise here, not as a guarantee. (The paper's text has ε under the root as well. At
ε = 5,000 that would be 0.054 on each coordinate, too much for the accuracy of Fig. 16 (b).)
Beside it the accuracy of a model that is trained with this noise in every round, Fig. 16 (b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    SEED,
    Setting,
    initial_model,
    largest_norm,
    look,
    paper_share,
    task_of,
)
from leakmeter.fl_app.experiments.plot import Panel

_DELTA = 1 / 1200
_CLIP = 1.0


@dataclass(frozen=True)
class _Scale:
    setting: Setting
    users: tuple[int, ...]
    epsilons: tuple[float, ...]
    rounds: int  # that the accuracy is taken after
    plays: int  # runs over which it is averaged


_SCALES = {
    "paper": _Scale(
        Setting("mnist"),
        (2, 5, 10, 20, 50),
        (5.0, 10.0, 50.0, 500.0, 5000.0, math.inf),
        rounds=100,
        plays=3,
    ),
    "small": _Scale(
        Setting("digits", clients=20, batch_size=8, draws=60, rank=8),
        (2, 5, 20),
        (10.0, 500.0, math.inf),
        rounds=30,
        plays=1,
    ),
}


def noise_std(epsilon: float) -> float:
    """Return the paper's noise on each coordinate of the aggregate.

    >>> round(noise_std(5.0), 4)
    0.7649
    """
    return _CLIP * math.sqrt(2 * math.log(1.25 / _DELTA)) / epsilon


def run(scale: str, cells: Cells) -> Table:
    """Measure every size of noise."""
    what = _SCALES[scale]
    setting = what.setting
    rows: list[tuple[Any, ...]] = []
    lines, learnt = [], []
    told: dict[float, list[dict[str, Any]]] = {}
    for color, epsilon in enumerate(what.epsilons):
        std = noise_std(epsilon)
        found = [
            dict(
                cells.get(
                    f"{setting.cell}-N{n}-eps{epsilon:g}", partial(look, setting, n, noise_std=std)
                )
            )
            for n in what.users
        ]
        accurate = [_accuracy(cells, what, n, epsilon) for n in what.users]
        found = told[epsilon] = [f | {"accuracy": a} for f, a in zip(found, accurate, strict=True)]
        rows += [_row(setting, epsilon, n, f) for n, f in zip(what.users, found, strict=True)]
        label = f"ε = {page.number(epsilon)}"
        lines.append(page.line(label, what.users, [f["mean"] for f in found], color))
        learnt.append(page.line(label, what.users, accurate, color))
    norm = float(cells.get(f"{setting.cell}-norm", partial(largest_norm, setting)))
    return Table(
        title=f"What a noised sum tells of an update: {setting.dataset}, linear model",
        columns=(
            *("ε named", "noise on the mean", "users", "bits", "mean over users"),
            *("Gaussian truth without noise", "paper's axis", "accuracy"),
        ),
        rows=tuple(rows),
        notes=(page.NOTE.format(rank=setting.rank) + page.PAPER.strip(), _note(norm, what)),
        figures={
            "noise.svg": (
                Panel("Noised sum", "users", "bits", tuple(lines), True, True),
                Panel(f"Accuracy after {what.rounds} rounds", "users", "", tuple(learnt), True),
            ),
        },
        comparisons=_comparisons(what, told) if scale == "paper" else (),
    )


def _row(setting: Setting, epsilon: float, users: int, found: dict[str, Any]) -> tuple[Any, ...]:
    return (
        page.number(epsilon),
        page.number(noise_std(epsilon)),
        users,
        page.plus_minus(found),
        page.number(found["mean"]),
        page.number(found["gaussian"]),
        page.share(setting, found),
        f"{found['accuracy']:.3f}",
    )


def _accuracy(cells: Cells, what: _Scale, users: int, epsilon: float) -> float:
    """Return the accuracy with the noise in every round, mean over runs."""
    key = f"{what.setting.key}-N{users}-eps{epsilon:g}-accuracy-{what.rounds}x{what.plays}"
    work = partial(accuracies, what.setting, users, noise_std(epsilon), what.rounds, what.plays)
    return float(np.mean(cells.get(key, work)))


def accuracies(setting: Setting, users: int, std: float, rounds: int, plays: int) -> list[float]:
    """Return the accuracy after so many rounds with noise on the clipped mean, for every run."""
    import torch
    from torch.nn.utils import vector_to_parameters

    from leakmeter.clients.cohort.cohort import Cohort

    task = task_of(setting)
    cohort, net, data = Cohort(task.new_model(), setting.rule), task.new_model(), task.dataset
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    parts = [part.numpy() for part in task.parts[:users]]
    found = []
    for play in range(plays):
        model = initial_model(task)
        for t in range(rounds):
            names = ("mi-dp", "accuracy", play, t)
            rngs = [stream(SEED, *names, user) for user in range(users)]
            mean = cohort.updates(model, x, y, parts, rngs).double().numpy().mean(axis=0)
            mean *= min(1.0, _CLIP / max(float(np.linalg.norm(mean)), 1e-300))
            model = model + mean + std * stream(SEED, *names, "noise").standard_normal(model.size)
        vector_to_parameters(torch.from_numpy(model).float(), net.parameters())
        with torch.no_grad():
            right = net(torch.from_numpy(data.test_x)).argmax(dim=1) == torch.from_numpy(
                data.test_y
            )
        found.append(float(right.double().mean()))
    return found


def _comparisons(what: _Scale, told: dict[float, list[dict[str, Any]]]) -> tuple[Comparison, ...]:
    setting, last = what.setting, what.users[-1]
    first = what.users[0]

    def shares(at: int) -> str:
        found = (
            paper_share(setting, float(told[e][at]["mean"]), told[e][at]["records"])
            for e in (5000.0, 5.0)
        )
        return " to ".join(f"{100 * share:.2g} %" for share in found if share is not None)

    def accuracy(epsilon: float) -> str:
        return f"{100 * told[epsilon][-1]['accuracy']:.0f} %"

    return (
        Comparison(
            f"{page.SOURCE}Fig. 16 (a)",
            f"leakage from ε = 5,000 to ε = 5, N = {first} users",
            "0.234 % to 0.056 %",
            f"{shares(0)} along {setting.rank} directions",
            "noise of 0.76 on every coordinate of a mean that varies by some thousandths leaves "
            "next to nothing to tell; what MINE reads off shuffled pairs, which share nothing, is "
            f"6 bits in mi-users, 0.034 % of a batch's entropy. Else {page.UNITS}",
        ),
        Comparison(
            f"{page.SOURCE}Fig. 16 (a)",
            f"the same in large sums: the paper's N = 1,000, ours N = {last}",
            "0.046 % to 0.034 %: more users make the noise matter less",
            f"{shares(-1)}: they make it matter more",
            "a client's part of the mean shrinks as 1/N while the noise stays, so that what is "
            "told falls as 1/N²; the paper's values at N = 1,000 are the size of what MINE reads "
            "off where there is nothing",
        ),
        Comparison(
            f"{page.SOURCE}Fig. 16 (b)",
            f"accuracy with noise in every round; the paper's N = 1,000, ours N = {last}, "
            f"{what.rounds} rounds of FedSGD",
            "ε = 10: below 50 %; ε = 5,000: above 90 %",
            f"ε = 10: {accuracy(10.0)}; ε = 5,000: {accuracy(5000.0)}; "
            f"without noise {accuracy(math.inf)}",
            "without noise too the model is no better after so many steps, and hardly depends on "
            "the users; the paper does not say how many rounds it trains",
        ),
    )


def _note(norm: float, what: _Scale) -> str:
    clips = (
        "so that clipping the aggregate to 1 changes nothing"
        if norm <= _CLIP
        else (
            "so that clipping the aggregate to 1, which is left out here, would change some of them"
        )
    )
    return (
        f"Updates have norms up to {norm:.2g}, {clips}. Noise of a fixed size on the mean hides "
        "more in larger sums: there a client's part of the mean is smaller. Accuracy: after "
        f"{what.rounds} rounds with this noise in each of them, mean of {what.plays} runs. Noise: "
        "√(2 ln(1.25/δ)) / ε; the paper's text has ε under the root."
    )
