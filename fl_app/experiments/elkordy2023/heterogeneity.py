"""What the sum tells of a client whose data are unlike the others'.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 13: labels dealt by a Dirichlet law of concentration
1, 10, 100 and ∞, FedAvg; here with the linear model on MNIST in place of a CNN on CIFAR-10.
Clients keep their data (game rerun), since clients that draw skewed data afresh are alike again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import Setting, look
from leakmeter.fl_app.experiments.plot import Panel


@dataclass(frozen=True)
class _Scale:
    setting: Setting
    users: tuple[int, ...]
    concentrations: tuple[float, ...]
    epochs: tuple[int, ...]


_SCALES = {
    "paper": _Scale(
        Setting("mnist", algorithm="fedavg", game="rerun"),
        (2, 5, 10, 20),
        (1.0, 10.0, 100.0, math.inf),
        (1, 5),
    ),
    "small": _Scale(
        Setting(
            "digits",
            clients=20,
            batch_size=8,
            algorithm="fedavg",
            game="rerun",
            draws=60,
            rank=8,
        ),
        (2, 5, 10, 20),
        (0.5, 10.0, math.inf),
        (1,),
    ),
}
_NOTES = (
    "Smallest and largest: over the users in the sum. They are chosen among estimates: for "
    "α = ∞, where users differ little, much of the range is estimation error. In large sums the "
    "mean over users hardly moves, since the shares of the sum's variance add up to one: who "
    "differs from the others, or has more data, stands out, and the others hide the better for it. "
    "In the paper the figure falls with the users for every concentration.",
)


def run(scale: str, cells: Cells) -> Table:
    """Measure every concentration."""
    what = _SCALES[scale]
    rows: list[tuple[Any, ...]] = []
    panels = []
    told: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for epochs in what.epochs:
        lines = []
        for color, concentration in enumerate(what.concentrations):
            setting = _skewed(replace(what.setting, epochs=epochs), concentration)
            found = [
                dict(cells.get(f"{setting.cell}-N{n}", partial(look, setting, n)))
                for n in what.users
            ]
            told[epochs, concentration] = found
            rows += [
                (epochs, page.number(concentration), n, *_figures(setting, f))
                for n, f in zip(what.users, found, strict=True)
            ]
            label = f"α = {page.number(concentration)}"
            lines.append(page.line(label, what.users, [f["largest"] for f in found], color))
        title = f"Most exposed user, E = {epochs}"
        panels.append(Panel(title, "users", "bits", tuple(lines), log_x=True, log_y=True))
    return Table(
        title=f"What a secure sum tells of unlike clients: {what.setting.dataset}, FedAvg",
        columns=(
            *("epochs", "α", "users", "bits", "mean over users", "smallest", "largest"),
            *("Gaussian truth", "paper's axis"),
        ),
        rows=tuple(rows),
        notes=(page.NOTE.format(rank=what.setting.rank) + page.PAPER + page.GAMES, *_NOTES),
        figures={"heterogeneity.svg": tuple(panels)},
        comparisons=_comparisons(what, told) if scale == "paper" else (),
    )


def _comparisons(
    what: _Scale, told: dict[tuple[int, float], list[dict[str, Any]]]
) -> tuple[Comparison, ...]:
    def falls(name: str) -> int:
        columns = [[float(f[name]) for f in found] for found in told.values()]
        return sum(column == sorted(column, reverse=True) for column in columns)

    rows = [
        Comparison(
            f"{page.SOURCE}Fig. 13",
            f"information over N = {what.users[0]} to {what.users[-1]}, FedAvg, α = 1, 10, 100, ∞ "
            "and E = 1, 5",
            "falls with N for every α",
            f"falls throughout in {falls('mean')} of {len(told)} cases on average over the users, "
            f"and in {falls('largest')} for the most exposed user",
            "MNIST and the linear model in place of CIFAR-10 and a CNN",
        )
    ]
    for epochs in what.epochs:
        skewed, even = (told[epochs, a][-1] for a in (what.concentrations[0], math.inf))
        rows.append(
            Comparison(
                f"{page.SOURCE}Fig. 13",
                f"the most and the least exposed of {what.users[-1]} users, E = {epochs}",
                "one target; no spread over users is given",
                f"α = 1: {page.number(skewed['largest'])} and {page.number(skewed['smallest'])} "
                f"bits; α = ∞: {page.number(even['largest'])} and "
                f"{page.number(even['smallest'])}, much of it estimation error",
                "who differs from the others stands out: one target does not speak for all",
            )
        )
    return tuple(rows)


def _skewed(setting: Setting, concentration: float) -> Setting:
    if math.isinf(concentration):
        return setting
    return replace(setting, partition="dirichlet-labels", dirichlet=concentration)


def _figures(setting: Setting, found: dict[str, Any]) -> tuple[str, ...]:
    names = ("mean", "smallest", "largest", "gaussian")
    return (
        page.plus_minus(found),
        *(page.number(found[name]) for name in names),
        page.share(setting, found),
    )
