"""A sweep of one local setting (batch size or epochs), without noise and with a fixed noise.

For clients of one law the Gaussian figure without noise depends on neither: it does not change
when an update is scaled. With noise of a fixed size it does, since larger updates stand out more.
The noise is as large as the sum itself varies at the first value of the sweep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    NAMES,
    Algorithm,
    Setting,
    batch_bits,
    look,
    over,
    records_used,
    update_std,
)
from leakmeter.fl_app.experiments.plot import Panel


@dataclass(frozen=True)
class Sweep:
    """Which values of which field are looked at, for which algorithms.

    Attributes:
        setting: The federation.
        field: Of the setting: "batch_size" or "epochs".
        values: That it takes.
        algorithms: Which ones.
        users: Sizes of the sum.
    """

    setting: Setting
    field: str
    values: tuple[int, ...]
    algorithms: tuple[Algorithm, ...]
    users: tuple[int, ...]


# What is told without and with noise for every value, by algorithm and users.
Found = Mapping[tuple[Algorithm, int], Sequence[tuple[dict[str, Any], dict[str, Any]]]]


def table(
    title: str,
    sweep: Sweep,
    cells: Cells,
    notes: Sequence[str],
    compare: Callable[[Found], tuple[Comparison, ...]] | None = None,
) -> Table:
    """Measure all cells of the sweep and lay them out; `compare` sets them beside the paper's."""
    everything: dict[tuple[Algorithm, int], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    rows: list[tuple[Any, ...]] = []
    bare, noised, shares = [], [], []
    for color, algorithm in enumerate(sweep.algorithms):
        for users in sweep.users:
            settings = [
                over(sweep.setting, algorithm=algorithm, **{sweep.field: value})
                for value in sweep.values
            ]
            found = everything[algorithm, users] = _measured(cells, settings, users)
            rows += [
                _row(setting, value, users, *cell)
                for setting, value, cell in zip(settings, sweep.values, found, strict=True)
            ]
            label = f"{NAMES[algorithm]}, N = {users}"
            style = "o-" if users == sweep.users[0] else "x--"
            draw: Callable[..., Any] = partial(page.line, label, sweep.values, color=color)
            bare.append(draw([plain["bits"] for plain, _ in found], style=style))
            noised.append(draw([hidden["bits"] for _, hidden in found], style=style))
            per = [
                _per_record(setting, plain)
                for (plain, _), setting in zip(found, settings, strict=True)
            ]
            shares.append(draw(per, style=style))
    name = {"batch_size": "batch size", "epochs": "local epochs"}[sweep.field]
    panels = (
        Panel("without noise", name, "bits", tuple(bare), log_x=True),
        Panel("per record used", name, "bits", tuple(shares), log_x=True, log_y=True),
        Panel("with a fixed noise", name, "bits", tuple(noised), log_x=True),
    )
    return Table(
        title=title,
        columns=(
            *("algorithm", "users", name, "bits", "Gaussian truth", "per record used"),
            *("paper's axis", "batch entropy", "noise", "bits with noise"),
        ),
        rows=tuple(rows),
        notes=(page.NOTE.format(rank=sweep.setting.rank) + page.PAPER.strip(), *notes, _NOTE),
        figures={f"{sweep.field.replace('_', '-')}.svg": panels},
        comparisons=compare(everything) if compare else (),
    )


_NOTE = (
    "Without noise a Gaussian figure does not change when updates are scaled, so it is flat but "
    "for its error: what falls with the batch on the paper's axis is what it is divided by. "
    "Noise: standard deviation on every coordinate of the mean update, fixed over the sweep, "
    "such that noise and sum vary alike at its first value."
)


def _measured(
    cells: Cells, settings: Sequence[Setting], users: int
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return what is told without and with noise, for every value of the sweep."""
    first = settings[0]
    spread = float(cells.get(f"{first.cell}-spread", partial(update_std, first)))
    noise = spread / math.sqrt(users)
    found = []
    for setting in settings:
        key = f"{setting.cell}-N{users}"
        plain = cells.get(key, partial(look, setting, users))
        hidden = cells.get(f"{key}-noise", partial(look, setting, users, noise_std=noise))
        found.append((dict(plain), dict(hidden) | {"noise": noise}))
    return found


def _per_record(setting: Setting, found: dict[str, Any]) -> float:
    return float(found["bits"]) / records_used(setting, found["records"])


def _row(
    setting: Setting, value: int, users: int, plain: dict[str, Any], hidden: dict[str, Any]
) -> tuple[Any, ...]:
    one_step = setting.algorithm == "fedsgd"
    return (
        NAMES[setting.algorithm],
        users,
        value,
        page.plus_minus(plain),
        page.number(plain["gaussian"]),
        page.number(_per_record(setting, plain)),
        page.share(setting, plain),
        page.number(batch_bits(setting, plain["records"])) if one_step else "",
        page.number(hidden["noise"]),
        page.plus_minus(hidden),
    )
