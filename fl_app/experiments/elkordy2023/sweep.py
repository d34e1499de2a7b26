"""What the sum reveals about a client, over the batch size and over local epochs.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 6 to 8 (batches of 16 to 256), and Fig. 11 and 12 (one
to ten passes over the local data), here with the linear model. Each is measured without noise and
with a fixed noise. For clients of one distribution the Gaussian figure without noise depends on
neither: it does not change when an update is scaled. With noise of a fixed size it does, since
larger updates stand out more. The noise is as large as the sum itself varies at the first value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    NAMES,
    Algorithm,
    Found,
    Setting,
    batch_bits,
    looked,
    records_used,
    update_std,
)
from leakmeter.fl_app.experiments.plot import Panel

Variant = Literal["batch", "epochs"]


@dataclass(frozen=True)
class Sweep:
    """Which values are looked at, for which algorithms.

    Attributes:
        setting: Everything else.
        values: Of the field that is swept.
        algorithms: What clients do.
        users: Users in the sum.
    """

    setting: Setting
    values: tuple[int, ...]
    algorithms: tuple[Algorithm, ...]
    users: tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """What is found at one value, without and with noise."""

    setting: Setting
    value: int
    bare: Found
    noised: Found
    noise: float

    @property
    def per_record(self) -> float:
        """Bits over the records that a round uses."""
        return float(self.bare["bits"]) / records_used(self.setting, self.bare["records"])


Points = Mapping[tuple[Algorithm, int], Sequence[Point]]  # by algorithm and users
_PAPER = Setting("mnist", draws=60)
_SMALL = Setting("digits", clients=20, batch_size=8, draws=40, rank=8)
_SCALES: dict[Variant, dict[str, Sweep]] = {
    "batch": {
        "paper": Sweep(_PAPER, (16, 32, 64, 128, 256), ("fedsgd", "fedavg", "fedprox"), (20,)),
        "small": Sweep(_SMALL, (4, 8, 16, 32), ("fedsgd", "fedavg"), (10,)),
    },
    "epochs": {
        "paper": Sweep(_PAPER, (1, 2, 5, 10), ("fedavg", "fedprox"), (10, 20)),
        "small": Sweep(_SMALL, (1, 2, 5), ("fedavg", "fedprox"), (10,)),
    },
}
# Field of `Setting`, its name, and the same for the title.
_SWEPT: dict[Variant, tuple[str, str, str]] = {
    "batch": ("batch_size", "batch size", "the batch"),
    "epochs": ("epochs", "local epochs", "epochs"),
}
_NOTES: dict[Variant, str] = {
    "batch": "In the paper the normalised figure falls with the batch for FedSGD, as 1/B, and less "
    "for the others, whose entropy does not depend on it.",
    "epochs": "In the paper the figure grows with the epochs, but less than in proportion. With a "
    "fixed noise that is what happens: updates grow, and what can be learnt of one in a sum is "
    "bounded by the figure without noise.",
}
_NOTE = (
    "Without noise a Gaussian figure does not change when updates are scaled, so it is flat but "
    "for its error: what falls with the batch on the paper's axis is what it is divided by. "
    "Noise: standard deviation on every coordinate of the mean update, fixed over the sweep, "
    "such that noise and sum vary alike at its first value."
)


def run(scale: str, cells: Cells, variant: Variant) -> Table:
    """Measure every value of one sweep."""
    sweep, (field, name, title) = _SCALES[variant][scale], _SWEPT[variant]
    found = {
        (algorithm, users): _points(cells, sweep, field, algorithm, users)
        for algorithm, users in product(sweep.algorithms, sweep.users)
    }

    def panel(title: str, show: Any, *, log_y: bool = False) -> Panel:
        lines = tuple(
            page.line(
                f"{NAMES[algorithm]}, N = {users}",
                sweep.values,
                [show(point) for point in points],
                sweep.algorithms.index(algorithm),
                "o-" if users == sweep.users[0] else "x--",
            )
            for (algorithm, users), points in found.items()
        )
        return Panel(title, name, "bits", lines, log_x=True, log_y=log_y)

    panels = (
        panel("without noise", lambda point: point.bare["bits"]),
        panel("per record used", lambda point: point.per_record, log_y=True),
        panel("with a fixed noise", lambda point: point.noised["bits"]),
    )
    compare = _compare_batch if variant == "batch" else _compare_epochs
    return Table(
        title=f"What a secure sum reveals about an update, over {title}: {sweep.setting.dataset}",
        columns=(
            *("algorithm", "users", name, "bits", "Gaussian truth", "per record used"),
            *("paper's axis", "batch entropy", "noise", "bits with noise"),
        ),
        rows=tuple(_row(users, point) for (_, users), points in found.items() for point in points),
        notes=(
            page.NOTE.format(rank=sweep.setting.rank) + page.PAPER.strip(),
            _NOTES[variant],
            _NOTE,
        ),
        figures={f"{field.replace('_', '-')}.svg": panels},
        comparisons=compare(found) if scale == "paper" else (),
    )


def _points(
    cells: Cells, sweep: Sweep, field: str, algorithm: Algorithm, users: int
) -> list[Point]:
    """Return what is found without and with noise, for every value of the sweep."""
    changes: list[dict[str, Any]] = [{"algorithm": algorithm, field: v} for v in sweep.values]
    settings = [replace(sweep.setting, **change) for change in changes]
    first = settings[0]
    noise = float(cells.get(f"{first.cell}-spread", partial(update_std, first))) / math.sqrt(users)
    return [
        Point(
            setting,
            value,
            looked(cells, setting, users),
            looked(cells, setting, users, "-noise", noise_std=noise),
            noise,
        )
        for setting, value in zip(settings, sweep.values, strict=True)
    ]


def _row(users: int, at: Point) -> tuple[Any, ...]:
    setting, one_step = at.setting, at.setting.algorithm == "fedsgd"
    return (
        NAMES[setting.algorithm],
        users,
        at.value,
        *page.shown(setting, at.bare, "bits", "Gaussian truth"),
        page.number(at.per_record),
        page.share(setting, at.bare),
        page.number(batch_bits(setting, at.bare["records"])) if one_step else "",
        page.number(at.noise),
        page.plus_minus(at.noised),
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


def _compare_batch(found: Points) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            f"{page.SOURCE}{_BATCH_FIGURES[algorithm][0]}",
            f"information over the batch, {NAMES[algorithm]}, N = {users}",
            _BATCH_FIGURES[algorithm][1],
            f"{page.plus_minus(first.bare)} bits at B = {first.value}, "
            f"{page.plus_minus(last.bare)} at {last.value}; per record used "
            f"{page.number(first.per_record)} and {page.number(last.per_record)}; under a fixed "
            f"noise {_noised(first)} and {_noised(last)} bits",
            "in bits nothing falls: a smaller update of the same shape is as easy to recognise. "
            "FedSGD's fall is that of the axis, which is divided by B; what falls for all "
            f"three is what stands out of a noise. Else {page.UNITS}",
        )
        for (algorithm, users), (first, *_, last) in found.items()
    )


def _compare_epochs(found: Points) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            f"{page.SOURCE}{_EPOCH_FIGURES[algorithm]}",
            f"information over local epochs, {NAMES[algorithm]}, N = {users}",
            "grows with E, less than in proportion",
            f"{page.plus_minus(first.bare)} bits at E = {first.value}, "
            f"{page.plus_minus(last.bare)} at {last.value}; under a fixed noise {_noised(first)} "
            f"and {_noised(last)}, "
            f"{float(last.noised['bits']) / float(first.noised['bits']):.1f} times as much",
            "without noise the figure does not change when updates grow; under noise it does "
            "as the paper says. The linear model in place of MLP and CNN",
        )
        for (algorithm, users), (first, *_, last) in found.items()
    )


def _noised(at: Point) -> str:
    return page.number(at.noised["bits"])
