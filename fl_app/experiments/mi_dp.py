"""What the sum tells of a client if the server adds noise to it before anybody sees it.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 16: linear model on MNIST, noise on the aggregate for
ε from 5 to 5,000 at δ = 1/1,200 and a norm of at most C = 1. The paper's noise is the classical
σ = C √(2 ln(1.25/δ)) / ε, which is short of the ε that it names where that is large; it is taken
as a size of noise here, not as a guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from fl_app.experiments import mi_page as page
from fl_app.experiments.base import Cells, Table
from fl_app.experiments.mi import Setting, largest_norm, look
from fl_app.experiments.plot import Panel

_DELTA = 1 / 1200
_CLIP = 1.0


@dataclass(frozen=True)
class _Scale:
    setting: Setting
    users: tuple[int, ...]
    epsilons: tuple[float, ...]


_SCALES = {
    "paper": _Scale(
        Setting("mnist"), (2, 5, 10, 20, 50), (5.0, 10.0, 50.0, 500.0, 5000.0, math.inf)
    ),
    "small": _Scale(
        Setting("digits", clients=20, batch_size=8, draws=60, rank=8),
        (2, 5, 20),
        (10.0, 500.0, math.inf),
    ),
}


def noise_std(epsilon: float) -> float:
    """Return the paper's noise on each coordinate of the aggregate.

    >>> round(noise_std(5.0), 4)
    0.7649
    """
    return _CLIP * math.sqrt(2 * math.log(1.25 / _DELTA)) / epsilon


def seconds(scale: str) -> float:
    """Return the processor time, measured for the small scale and estimated for the other."""
    return {"paper": 40.0, "small": 5.0}[scale]


def run(scale: str, cells: Cells) -> Table:
    """Measure every size of noise."""
    what = _SCALES[scale]
    setting = what.setting
    rows: list[tuple[Any, ...]] = []
    lines = []
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
        rows += [
            (
                page.number(epsilon),
                page.number(std),
                n,
                page.plus_minus(f),
                page.number(f["mean"]),
                page.number(f["gaussian"]),
                page.share(setting, f),
            )
            for n, f in zip(what.users, found, strict=True)
        ]
        label = f"ε = {page.number(epsilon)}"
        lines.append(page.line(label, what.users, [f["mean"] for f in found], color))
    norm = float(cells.get(f"{setting.cell}-norm", partial(largest_norm, setting)))
    return Table(
        title=f"What a noised sum tells of an update: {setting.dataset}, linear model",
        columns=(
            *("ε named", "noise on the mean", "users", "bits", "mean over users"),
            *("Gaussian truth without noise", "paper's axis"),
        ),
        rows=tuple(rows),
        notes=(page.NOTE.format(rank=setting.rank) + page.PAPER.strip(), _note(norm)),
        figures={
            "noise.svg": (Panel("Noised sum", "users", "bits", tuple(lines), True, True),),
        },
    )


def _note(norm: float) -> str:
    clips = (
        "so that clipping the aggregate to 1 changes nothing"
        if norm <= _CLIP
        else (
            "so that clipping the aggregate to 1, which is left out here, would change some of them"
        )
    )
    return (
        f"Updates have norms up to {norm:.2g}, {clips}. Noise of a fixed size on the mean hides "
        "more in larger sums: there a client's part of the mean is smaller."
    )
