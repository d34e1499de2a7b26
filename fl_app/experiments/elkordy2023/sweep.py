"""What the sum tells of a client, over the batch size and over local epochs.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 6 to 8 (batches of 16 to 256), and Fig. 11 and 12 (one
to ten passes over the local data), here with the linear model. Each is measured without noise and
with a fixed noise. For clients of one distribution the Gaussian figure without noise depends on
neither: it does not change when an update is scaled. With noise of a fixed size it does, since
larger updates stand out more. The noise is as large as the sum itself varies at the first value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    NAMES,
    Algorithm,
    Setting,
    batch_bits,
    look,
    records_used,
    update_std,
)
from leakmeter.fl_app.experiments.plot import Panel

Variant = Literal["batch", "epochs"]
# What is told without and with noise for every value, by algorithm and users.
Found = Mapping[tuple[Algorithm, int], Sequence[tuple[dict[str, Any], dict[str, Any]]]]


@dataclass(frozen=True)
class Sweep:
    """Which values are looked at, for which algorithms.

    Attributes:
        setting: The federation.
        values: Batch sizes, or numbers of epochs.
        algorithms: Which ones.
        users: Sizes of the sum.
    """

    setting: Setting
    values: tuple[int, ...]
    algorithms: tuple[Algorithm, ...]
    users: tuple[int, ...]


@dataclass(frozen=True)
class _Page:
    """What is swept, and what to say about it.

    Attributes:
        field: Of `Setting`.
        name: The same for people.
        title: The same for the title.
        note: What the paper says.
        compare: Compares the first and the last value with what the paper says.
    """

    field: Literal["batch_size", "epochs"]
    name: str
    title: str
    note: str
    compare: Callable[[Sweep, Found], tuple[Comparison, ...]]


_SCALES: dict[Variant, dict[str, Sweep]] = {
    "batch": {
        "paper": Sweep(
            Setting("mnist", draws=60),
            (16, 32, 64, 128, 256),
            ("fedsgd", "fedavg", "fedprox"),
            (20,),
        ),
        "small": Sweep(
            Setting("digits", clients=20, draws=40, rank=8),
            (4, 8, 16, 32),
            ("fedsgd", "fedavg"),
            (10,),
        ),
    },
    "epochs": {
        "paper": Sweep(Setting("mnist", draws=60), (1, 2, 5, 10), ("fedavg", "fedprox"), (10, 20)),
        "small": Sweep(
            Setting("digits", clients=20, batch_size=8, draws=40, rank=8),
            (1, 2, 5),
            ("fedavg", "fedprox"),
            (10,),
        ),
    },
}


def run(scale: str, cells: Cells, variant: Variant) -> Table:
    """Measure every value of one sweep."""
    sweep, shown = _SCALES[variant][scale], _PAGES[variant]
    found: dict[tuple[Algorithm, int], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    rows: list[tuple[Any, ...]] = []
    bare, noised, shares = [], [], []
    for color, algorithm in enumerate(sweep.algorithms):
        for users in sweep.users:
            settings = [_at(sweep.setting, algorithm, shown.field, v) for v in sweep.values]
            each = found[algorithm, users] = _measured(cells, settings, users)
            rows += [
                _row(setting, value, users, *cell)
                for setting, value, cell in zip(settings, sweep.values, each, strict=True)
            ]
            per = [_per_record(s, plain) for s, (plain, _) in zip(settings, each, strict=True)]
            label = f"{NAMES[algorithm]}, N = {users}"
            style = "o-" if users == sweep.users[0] else "x--"
            draw: Callable[..., Any] = partial(page.line, label, sweep.values, color=color)
            bare.append(draw([plain["bits"] for plain, _ in each], style=style))
            noised.append(draw([hidden["bits"] for _, hidden in each], style=style))
            shares.append(draw(per, style=style))
    panels = (
        Panel("without noise", shown.name, "bits", tuple(bare), log_x=True),
        Panel("per record used", shown.name, "bits", tuple(shares), log_x=True, log_y=True),
        Panel("with a fixed noise", shown.name, "bits", tuple(noised), log_x=True),
    )
    return Table(
        title=f"What a secure sum tells of an update, over {shown.title}: {sweep.setting.dataset}",
        columns=(
            *("algorithm", "users", shown.name, "bits", "Gaussian truth", "per record used"),
            *("paper's axis", "batch entropy", "noise", "bits with noise"),
        ),
        rows=tuple(rows),
        notes=(page.NOTE.format(rank=sweep.setting.rank) + page.PAPER.strip(), shown.note, _NOTE),
        figures={f"{shown.field.replace('_', '-')}.svg": panels},
        comparisons=shown.compare(sweep, found) if scale == "paper" else (),
    )


_NOTE = (
    "Without noise a Gaussian figure does not change when updates are scaled, so it is flat but "
    "for its error: what falls with the batch on the paper's axis is what it is divided by. "
    "Noise: standard deviation on every coordinate of the mean update, fixed over the sweep, "
    "such that noise and sum vary alike at its first value."
)


def _at(setting: Setting, algorithm: Algorithm, field: str, value: int) -> Setting:
    changes: dict[str, Any] = {"algorithm": algorithm, field: value}
    return replace(setting, **changes)


def _measured(
    cells: Cells, settings: Sequence[Setting], users: int
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return what is told without and with noise, for every value of the sweep."""
    first = settings[0]
    std = float(cells.get(f"{first.cell}-spread", partial(update_std, first)))
    noise = std / math.sqrt(users)
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


_BATCH_FIGURES: dict[Algorithm, tuple[str, str]] = {
    "fedsgd": (
        "Fig. 6",
        "as 1/B: around 4 % of a batch's entropy at B = 16, below 1 % at 256, more than 20 users",
    ),
    "fedavg": ("Fig. 7", "0.8 % of the client's data at B = 16, 0.3 % at 256"),
    "fedprox": ("Fig. 8", "0.09 % of the client's data at B = 16, 0.04 % at 256"),
}
_EPOCH_FIGURES: dict[Algorithm, str] = {"fedavg": "Fig. 11", "fedprox": "Fig. 12"}


def _compare_batch(sweep: Sweep, found: Found) -> tuple[Comparison, ...]:
    low, high = sweep.values[0], sweep.values[-1]
    rows = []
    for (algorithm, users), cells in found.items():
        figure, published = _BATCH_FIGURES[algorithm]
        (first, noised), (last, drowned) = cells[0], cells[-1]
        per = [
            _per_record(_at(sweep.setting, algorithm, "batch_size", b), got)
            for b, got in ((low, first), (high, last))
        ]
        rows.append(
            Comparison(
                f"{page.SOURCE}{figure}",
                f"information over the batch, {NAMES[algorithm]}, N = {users}",
                published,
                f"{page.plus_minus(first)} bits at B = {low}, "
                f"{page.plus_minus(last)} at {high}; per record used "
                f"{page.number(per[0])} and {page.number(per[1])}; under a fixed noise "
                f"{page.number(noised['bits'])} and {page.number(drowned['bits'])} bits",
                "in bits nothing falls: a smaller update of the same shape is as easy to tell. "
                "FedSGD's fall is that of the axis, which is divided by B; what falls for all "
                f"three is what stands out of a noise. Else {page.UNITS}",
            )
        )
    return tuple(rows)


def _compare_epochs(sweep: Sweep, found: Found) -> tuple[Comparison, ...]:
    low, high = sweep.values[0], sweep.values[-1]
    rows = []
    for (algorithm, users), cells in found.items():
        (first, noised), (last, louder) = cells[0], cells[-1]
        times = float(louder["bits"]) / float(noised["bits"])
        rows.append(
            Comparison(
                f"{page.SOURCE}{_EPOCH_FIGURES[algorithm]}",
                f"information over local epochs, {NAMES[algorithm]}, N = {users}",
                "grows with E, less than in proportion",
                f"{page.plus_minus(first)} bits at E = {low}, {page.plus_minus(last)} at "
                f"{high}; under a fixed noise {page.number(noised['bits'])} and "
                f"{page.number(louder['bits'])}, {times:.1f} times as much",
                "without noise the figure does not change when updates grow; under noise it does "
                "as the paper says. The linear model in place of MLP and CNN",
            )
        )
    return tuple(rows)


_PAGES: dict[Variant, _Page] = {
    "batch": _Page(
        "batch_size",
        "batch size",
        "the batch",
        "In the paper the normalised figure falls with the batch for FedSGD, as 1/B, and less for "
        "the others, whose entropy does not depend on it.",
        _compare_batch,
    ),
    "epochs": _Page(
        "epochs",
        "local epochs",
        "epochs",
        "In the paper the figure grows with the epochs, but less than in proportion. With a fixed "
        "noise that is what happens: updates grow, and what can be told of one in a sum is bounded "
        "by the figure without noise.",
        _compare_epochs,
    ),
}
