"""What the sum reveals about a client if the server adds noise to it before anybody sees it.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 16: linear model on MNIST, up to 1,000 users, noise on
the aggregate for ε from 5 to 5,000 at δ = 1/1,200 and a norm of at most C = 1. The noise is the
classical σ = C √(2 ln(1.25/δ)) / ε, which is short of the ε that it names where that is large; it
is taken as a size of noise here, not as a guarantee. (The paper's text has ε under the root as
well. At ε = 5,000 that would be 0.054 on each coordinate, too much for the accuracy of Fig. 16
(b).) Beside it the accuracy of a model that is trained with this noise in every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    SEED,
    Found,
    Setting,
    accuracy_of,
    initial_model,
    largest_norm,
    looked,
    paper_share,
    task_of,
)
from leakmeter.fl_app.experiments.plot import Panel

_DELTA = 1 / 1200
_CLIP = 1.0
_COLUMNS = ("bits", "mean over users", "Gaussian truth", "directions", "variance kept")


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
        (2, 5, 10, 20, 50, 1000),
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
    what, setting = _SCALES[scale], _SCALES[scale].setting
    # Sizes of noise share their draws, so those of one number of users follow each other.
    found = {(e, n): _found(cells, what, n, e) for n in what.users for e in what.epsilons}
    norm = float(cells.get(f"{setting.cell}-norm", partial(largest_norm, setting)))
    seen, dim = (found[math.inf, what.users[0]][name] for name in ("rank", "free"))

    def lines(name: str) -> tuple[Any, ...]:
        return tuple(
            page.line(
                f"ε = {page.number(e)}", what.users, [found[e, n][name] for n in what.users], i
            )
            for i, e in enumerate(what.epsilons)
        )

    bits = f"bits along {seen} of {dim:,} directions"
    return Table(
        title=f"What a noised sum reveals about an update: {setting.dataset}, linear model",
        columns=("ε named", "noise on the mean", "users", *_COLUMNS, "paper's axis", "accuracy"),
        rows=tuple(
            (
                page.number(e),
                page.number(noise_std(e)),
                n,
                *page.shown(setting, found[e, n], *_COLUMNS, "paper's axis"),
                f"{found[e, n]['accuracy']:.3f}",
            )
            for e in what.epsilons
            for n in what.users
        ),
        notes=(
            page.NOTE.format(rank=f"{seen} of {dim:,}") + page.PAPER.strip(),
            _note(norm, what),
        ),
        figures={
            "noise.svg": (
                Panel("Noised sum", "users", bits, lines("mean"), True, True),
                Panel(f"Accuracy after {what.rounds} rounds", "users", "", lines("accuracy"), True),
            ),
        },
        comparisons=_comparisons(what, found) if scale == "paper" else (),
    )


def _found(cells: Cells, what: _Scale, users: int, epsilon: float) -> Found:
    """Return the information in the sum, and the accuracy with the noise in every round."""
    # In the game independent a batch of FedSGD is a uniform subset of all records, however many
    # of these a client holds: more clients change no distribution.
    setting = replace(what.setting, clients=max(users, what.setting.clients))
    std, suffix = noise_std(epsilon), f"-eps{epsilon:g}"
    key = f"{setting.key}-N{users}{suffix}-accuracy-{what.rounds}x{what.plays}"
    work = partial(accuracies, setting, users, std, what.rounds, what.plays)
    told = looked(cells, setting, users, suffix, noise_std=std)
    return told | {"accuracy": float(np.mean(cells.get(key, work)))}


def accuracies(setting: Setting, users: int, std: float, rounds: int, plays: int) -> list[float]:
    """Return the accuracy after so many rounds with noise on the clipped mean, for every run."""
    import torch

    from leakmeter.clients.cohort.cohort import Cohort

    task = task_of(setting)
    cohort, data = Cohort(task.new_model(), setting.rule), task.dataset
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
        found.append(accuracy_of(task, model))
    return found


def _comparisons(what: _Scale, found: Mapping[tuple[float, int], Found]) -> tuple[Comparison, ...]:
    setting, first, last = what.setting, what.users[0], what.users[-1]
    seen = found[math.inf, first]
    directions = f"along {seen['rank']} of {seen['free']:,} directions"

    def shares(users: int) -> str:
        told = (found[e, users] for e in (5000.0, 5.0))
        parts = (paper_share(setting, float(f["mean"]), f["records"]) for f in told)
        return " to ".join(f"{100 * part:.2g} %" for part in parts if part is not None)

    def accuracy(epsilon: float) -> str:
        return f"{100 * found[epsilon, last]['accuracy']:.0f} %"

    return (
        Comparison(
            f"{page.SOURCE}Fig. 16 (a)",
            f"leakage from ε = 5,000 to ε = 5, N = {first} users",
            "0.234 % to 0.056 %",
            f"{shares(first)} {directions}",
            "noise of 0.76 on every coordinate of a mean that varies by some thousandths leaves "
            "next to nothing to find; what a MINE of the paper's size reads off shuffled pairs, "
            "which share nothing, is 6 bits in mi-users, 0.034 % of a batch's entropy. Else "
            f"{page.UNITS}",
        ),
        Comparison(
            f"{page.SOURCE}Fig. 16 (a)",
            f"the same in large sums, N = {last:,} users",
            "0.046 % to 0.034 %: more users make the noise matter less",
            f"{shares(last)} {directions}: they make it matter more",
            "a client's part of the mean shrinks as 1/N while the noise stays, so that what is "
            "revealed falls as 1/N²; the paper's values at N = 1,000 are the size of what MINE "
            "reads off where there is nothing",
        ),
        Comparison(
            f"{page.SOURCE}Fig. 16 (b)",
            f"accuracy with noise in every round, N = {last:,}, {what.rounds} rounds of FedSGD",
            "ε = 10: below 50 %; ε = 5,000: above 90 %",
            f"ε = 10: {accuracy(10.0)}; ε = 5,000: {accuracy(5000.0)}; "
            f"without noise {accuracy(math.inf)}",
            "without noise too the model is no better after so many steps, and hardly depends on "
            "the users; the paper does not say how many rounds it trains",
        ),
    )


def _note(norm: float, what: _Scale) -> str:
    clips = "changes nothing" if norm <= _CLIP else "would change some of them; it is left out here"
    return (
        f"Updates have norms up to {norm:.2g}, so that clipping the aggregate to 1 {clips}. Noise "
        "of a fixed size on the mean hides more in larger sums: there a client's part of the mean "
        f"is smaller. Accuracy: after {what.rounds} rounds with this noise in each of them, mean "
        f"of {what.plays} runs. Gaussian truth: without noise. Noise: √(2 ln(1.25/δ)) / ε; the "
        "paper's text has ε under the root."
    )
