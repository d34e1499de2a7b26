"""What the sum reveals about a writer among other writers.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 14: FEMNIST by writer, a CNN, FedAvg with one and five
local epochs, the same target in every sum and the other users drawn at random. Here: MNIST by
writer (539 of them, 116 digits each in the middle), linear model. Writers keep their data (game
rerun), and a figure is the mean over several draws of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import SEED, Found, Setting, looked
from leakmeter.fl_app.experiments.plot import Panel

_PAPER_BITS = 176 * 678  # the paper's entropy of its target's images


@dataclass(frozen=True)
class _Scale:
    setting: Setting
    users: tuple[int, ...]
    epochs: tuple[int, ...]
    cohorts: int  # draws of the others


_SCALES = {
    "paper": _Scale(
        Setting(
            "mnist", clients=539, algorithm="fedavg", partition="natural", game="rerun", draws=120
        ),
        (2, 5, 10, 20, 50),
        (1, 5),
        cohorts=3,
    ),
    # Digits have no writers: skewed labels stand in for them.
    "small": _Scale(
        Setting(
            "digits",
            clients=40,
            algorithm="fedavg",
            batch_size=8,
            partition="dirichlet-labels",
            dirichlet=2.0,
            game="rerun",
            draws=60,
            rank=8,
        ),
        (2, 5, 20),
        (1,),
        cohorts=2,
    ),
}
_NOTES = (
    "Mean over draws of the other writers, smallest to largest in brackets; the target is the same "
    "throughout. Mean over users: of everybody in the sum. Paper's axis: bits over 567 bits for "
    "each of the target's images; the paper's target has 176 images at 678 bits. "
    "Writers keep their data, so that only the order of the batches is random, and two of them "
    "vary in fewer directions than are asked for. The mean over users "
    "is compared since a first look at these figures: the target's own do not always fall.",
)


def run(scale: str, cells: Cells) -> Table:
    """Measure every number of users, with several draws of the others."""
    what = _SCALES[scale]
    found = {
        (epochs, n): _drawn(cells, replace(what.setting, epochs=epochs), n, what.cohorts)
        for epochs, n in product(what.epochs, what.users)
    }

    def over_users(name: str, epochs: int) -> list[float]:
        return [_mean(found[epochs, n], name) for n in what.users]

    lines = []
    for color, epochs in enumerate(what.epochs):
        for name, label, style in (("bits", "target", "x--"), ("mean", "mean over users", "o-")):
            y = over_users(name, epochs)
            lines.append(page.line(f"{label}, E = {epochs}", what.users, y, color, style))
    truth = over_users("gaussian", what.epochs[-1])
    lines.append(page.line("Gaussian truth", what.users, truth, len(what.epochs), ":"))
    return Table(
        title=f"What a secure sum reveals about a writer: {what.setting.dataset}, FedAvg",
        columns=(
            *("epochs", "users", "bits", "mean over users", "Gaussian truth", "images"),
            "paper's axis",
        ),
        rows=tuple((*key, *_figures(what.setting, each)) for key, each in found.items()),
        notes=(page.NOTE.format(rank=what.setting.rank), *_NOTES),
        figures={"writers.svg": (Panel("A writer", "users", "bits", tuple(lines), True, True),)},
        comparisons=_comparisons(what, found) if scale == "paper" else (),
    )


def others(users: int, clients: int, cohort: int) -> list[int]:
    """Return who is in the sum beside the target in one draw."""
    rng = stream(SEED, "mi-writers", "others", users, cohort)
    return [1 + int(i) for i in np.sort(rng.choice(clients - 1, users - 1, replace=False))]


def _drawn(cells: Cells, setting: Setting, users: int, cohorts: int) -> list[Found]:
    """Return what is found with each draw of the others."""
    drawn = (others(users, setting.clients, i) for i in range(cohorts))
    return [looked(cells, setting, users, f"-others{i}", others=who) for i, who in enumerate(drawn)]


def _mean(found: Sequence[Found], name: str) -> float:
    return float(np.mean([float(f[name]) for f in found]))


def _figures(setting: Setting, found: Sequence[Found]) -> tuple[Any, ...]:
    bits = [float(f["bits"]) for f in found]
    held = found[0]["records"]
    low, high = page.number(min(bits)), page.number(max(bits))
    return (
        f"{page.number(np.mean(bits))} ({low} to {high})",
        page.number(_mean(found, "mean")),
        page.number(_mean(found, "gaussian")),
        held,
        page.data_share(setting, float(np.mean(bits)), held),
    )


def _comparisons(
    what: _Scale, found: Mapping[tuple[int, int], Sequence[Found]]
) -> tuple[Comparison, ...]:
    ranks = {n: min(int(f["rank"]) for e in what.epochs for f in found[e, n]) for n in what.users}
    fewer = "".join(f" ({r} for {n} users)" for n, r in ranks.items() if r < what.setting.rank)

    def over_users(name: str) -> str:
        """Return the bits of every number of users, and whether each is less than before."""
        parts = []
        for epochs in what.epochs:
            bits = [_mean(found[epochs, n], name) for n in what.users]
            falls = "falls" if bits == sorted(bits, reverse=True) else "does not fall throughout"
            parts.append(f"E = {epochs}: {', '.join(map(page.number, bits))} bits, {falls}")
        return "; ".join(parts)

    return (
        Comparison(
            f"{page.SOURCE}Fig. 14",
            f"leakage of one writer, N = {', '.join(map(str, what.users))} users, FedAvg, E = 1 "
            "and 5",
            "falls as N grows",
            f"{over_users('bits')} along {what.setting.rank} directions{fewer}, mean of "
            f"{what.cohorts} draws of the others",
            "it depends on who the others are: with other writers the same sum reveals several "
            "times more or less. MNIST by writer in place of FEMNIST, linear model in place of the "
            f"CNN; the paper normalises by {_PAPER_BITS:,} bits, its own neural estimate",
        ),
        Comparison(
            f"{page.SOURCE}Fig. 14",
            "the same on average over everybody in the sum",
            "not given",
            over_users("mean"),
            "the shares of the sum's variance add up to one, so that the average moves less",
        ),
    )
