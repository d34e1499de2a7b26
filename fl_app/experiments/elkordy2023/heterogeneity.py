"""What the sum reveals about clients whose data are unlike the others'.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 13: label shares that each client draws from a
Dirichlet distribution of concentration α = 1, 10, 100 and ∞ (Hsu, Qi and Brown 2019,
arXiv:1909.06335, whom the paper follows), FedAvg; here with the linear model on MNIST in place of a
CNN on CIFAR-10. Beside it labels that are split over the clients, which makes their sizes differ.
Clients keep their data (game rerun), since clients that draw skewed data afresh are alike again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import Found, Setting, looked
from leakmeter.fl_app.experiments.plot import Panel

Skew = Literal["dirichlet", "dirichlet-labels"]
_SKEWS: dict[Skew, str] = {"dirichlet": "α by client", "dirichlet-labels": "α by label"}
_COLUMNS = ("bits", "mean over users", "smallest", "largest", "Gaussian truth", "paper's axis")


@dataclass(frozen=True)
class _Scale:
    setting: Setting
    users: tuple[int, ...]
    concentrations: tuple[float, ...]
    epochs: Mapping[Skew, tuple[int, ...]]


_SCALES = {
    "paper": _Scale(
        Setting("mnist", algorithm="fedavg", game="rerun"),
        (2, 5, 10, 20),
        (1.0, 10.0, 100.0, math.inf),
        {"dirichlet": (1,), "dirichlet-labels": (1, 5)},
    ),
    "small": _Scale(
        Setting("digits", 20, "fedavg", batch_size=8, game="rerun", draws=60, rank=8),
        (2, 5, 10, 20),
        (0.5, 10.0, math.inf),
        {"dirichlet": (1,), "dirichlet-labels": (1,)},
    ),
}
_NOTE = (
    "α by client: each client draws its label shares, and all have as many records, as in the "
    "paper. α by label: each label is split over the clients, so who has more records stands out "
    "for that too. Smallest and largest: over the users in the sum. They are chosen among "
    "estimates: for α = ∞, where users differ little, much of the range is estimation error. In "
    "large sums the mean over users hardly moves, since the shares of the sum's variance add up to "
    "one: who differs from the others stands out, and the others hide the better for it."
)


def run(scale: str, cells: Cells) -> Table:
    """Measure every concentration in both partitions."""
    what = _SCALES[scale]
    found: dict[tuple[Skew, int, float], list[Found]] = {}
    rows, panels = [], []
    for skew, name in _SKEWS.items():
        for epochs in what.epochs[skew]:
            lines = []
            for color, alpha in enumerate(what.concentrations):
                setting = replace(what.setting, epochs=epochs)
                if math.isfinite(alpha):
                    setting = replace(setting, partition=skew, dirichlet=alpha)
                each = found[skew, epochs, alpha] = [looked(cells, setting, n) for n in what.users]
                label, largest = page.number(alpha), [f["largest"] for f in each]
                lines.append(page.line(f"α = {label}", what.users, largest, color))
                rows += [
                    (name, epochs, label, n, *page.shown(setting, f, *_COLUMNS))
                    for n, f in zip(what.users, each, strict=True)
                ]
            title = f"Most exposed user, {name}, E = {epochs}"
            panels.append(Panel(title, "users", "bits", tuple(lines), log_x=True, log_y=True))
    return Table(
        title=f"What a secure sum reveals about unlike clients: {what.setting.dataset}, FedAvg",
        columns=("partition", "epochs", "α", "users", *_COLUMNS),
        rows=tuple(rows),
        notes=(page.NOTE.format(rank=what.setting.rank) + page.PAPER + page.GAMES, _NOTE),
        figures={"heterogeneity.svg": tuple(panels)},
        comparisons=_comparisons(what, found) if scale == "paper" else (),
    )


def _comparisons(
    what: _Scale, found: Mapping[tuple[Skew, int, float], Sequence[Found]]
) -> tuple[Comparison, ...]:
    rows = []
    for skew, name in _SKEWS.items():
        own = {key: each for key, each in found.items() if key[0] == skew}
        epochs = ", ".join(map(str, what.epochs[skew]))
        mean, largest = (_falls(own.values(), key) for key in ("mean", "largest"))
        ends = [
            f"α = {page.number(alpha)}, E = {e}: {page.number(each[-1]['largest'])} and "
            f"{page.number(each[-1]['smallest'])}"
            for (_, e, alpha), each in own.items()
            if alpha in (what.concentrations[0], what.concentrations[-1])
        ]
        rows += [
            Comparison(
                f"{page.SOURCE}Fig. 13",
                f"information over N = {what.users[0]} to {what.users[-1]}, FedAvg, {name}: 1, "
                f"10, 100, ∞; E = {epochs}",
                "falls with N for every α, E = 1 and 5",
                f"falls throughout in {mean} of {len(own)} cases on average over the users, and in "
                f"{largest} for the most exposed user",
                "MNIST and the linear model in place of CIFAR-10 and a CNN",
            ),
            Comparison(
                f"{page.SOURCE}Fig. 13",
                f"the most and the least exposed of {what.users[-1]} users, {name}",
                "one target; no spread over users is given",
                f"{'; '.join(ends)} bits, at α = ∞ much of it estimation error",
                "who differs from the others stands out: one target does not speak for all",
            ),
        ]
    return tuple(rows)


def _falls(cases: Iterable[Sequence[Found]], name: str) -> int:
    """Return in how many cases each figure is less than that of fewer users."""
    columns = [[float(f[name]) for f in each] for each in cases]
    return sum(column == sorted(column, reverse=True) for column in columns)
