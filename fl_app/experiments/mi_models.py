"""What the sum tells of a client, over data sets and models, for a gradient step.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 3: linear, SLP and MLP on MNIST, linear, SLP and CNN
on CIFAR-10. The paper's leakage grows with the model. In a Gaussian model it does so by the number
of directions in which updates vary, and not otherwise, which is what the columns set apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from auditors.mi import gaussian_information
from fl_app.experiments import mi_page as page
from fl_app.experiments.base import Cells, Table
from fl_app.experiments.mi import Setting, look, over
from fl_app.experiments.plot import Panel


@dataclass(frozen=True)
class _Scale:
    settings: tuple[Setting, ...]
    users: tuple[int, ...]


def _settings(base: Setting, *models: str) -> tuple[Setting, ...]:
    return tuple(over(base, model=model) for model in models)


_SCALES = {
    "paper": _Scale(
        (
            *_settings(Setting("mnist"), "linear", "slp", "mlp"),
            *_settings(Setting("cifar10", draws=90, rank=20), "linear", "slp"),
            *_settings(Setting("cifar10", draws=40, rank=10), "cnn"),
        ),
        (2, 10, 20),
    ),
    "small": _Scale(
        _settings(
            Setting("digits", clients=20, batch_size=8, draws=60, rank=8), "linear", "slp", "mlp"
        ),
        (2, 10),
    ),
}


def seconds(scale: str) -> float:
    """Return the processor time, measured for the small scale and estimated for the other."""
    return {"paper": 400.0, "small": 4.0}[scale]


def run(scale: str, cells: Cells) -> Table:
    """Measure every model at every number of users."""
    what = _SCALES[scale]
    rows: list[tuple[Any, ...]] = []
    lines = []
    for color, setting in enumerate(what.settings):
        found = [cells.get(f"{setting.cell}-N{n}", partial(look, setting, n)) for n in what.users]
        rows += [_row(setting, n, got) for n, got in zip(what.users, found, strict=True)]
        label = f"{setting.dataset}, {setting.model}"
        each = [got["bits"] / got["rank"] for got in found]
        lines.append(page.line(label, what.users, each, color))
    return Table(
        title="What a secure sum tells of a gradient step, over data and models",
        columns=(
            *("data", "model", "users", "bits", "directions", "variance kept", "Gaussian truth"),
            *("free coordinates", "all coordinates", "paper's axis"),
        ),
        rows=tuple(rows),
        notes=(
            page.NOTE.format(rank="the stated number of") + page.PAPER,
            "All coordinates: the Gaussian truth for every coordinate that varies freely, an upper "
            "end that no number of samples here could confirm. CIFAR-10 may be a part of the data "
            "set; the run says so.",
        ),
        figures={"models.svg": (Panel("Bits a direction", "users", "bits", tuple(lines), True),)},
    )


def _row(setting: Setting, users: int, found: dict[str, Any]) -> tuple[Any, ...]:
    return (
        setting.dataset,
        setting.model,
        users,
        page.plus_minus(found),
        found["rank"],
        f"{100 * found['kept']:.0f} %",
        page.number(found["gaussian"]),
        found["free"],
        page.number(gaussian_information(found["free"], users).bits),
        page.share(setting, found),
    )
