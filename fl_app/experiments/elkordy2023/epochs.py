"""What the sum tells of a client, over the number of local epochs.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 11 and 12: one to ten passes over the local data, here
with the linear model. See `fl_app.experiments.elkordy2023.sweep` for what is measured.
"""

from __future__ import annotations

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import NAMES, Algorithm, Setting
from leakmeter.fl_app.experiments.elkordy2023.sweep import Found, Sweep, table

_SCALES = {
    "paper": Sweep(
        Setting("mnist", draws=60), "epochs", (1, 2, 5, 10), ("fedavg", "fedprox"), (10, 20)
    ),
    "small": Sweep(
        Setting("digits", clients=20, batch_size=8, draws=40, rank=8),
        "epochs",
        (1, 2, 5),
        ("fedavg", "fedprox"),
        (10,),
    ),
}
_NOTES = (
    "In the paper the figure grows with the epochs, but less than in proportion. With a fixed "
    "noise that is what happens: updates grow, and what can be told of one in a sum is bounded by "
    "the figure without noise.",
)


def run(scale: str, cells: Cells) -> Table:
    """Measure every number of epochs."""
    title = f"What a secure sum tells of an update, over epochs: {_SCALES[scale].setting.dataset}"
    return table(title, _SCALES[scale], cells, _NOTES, _compared if scale == "paper" else None)


_FIGURES: dict[Algorithm, str] = {"fedavg": "Fig. 11", "fedprox": "Fig. 12"}


def _compared(found: Found) -> tuple[Comparison, ...]:
    """Return what ten epochs tell beside one, with the paper's claim."""
    values, rows = _SCALES["paper"].values, []
    for (algorithm, users), cells in found.items():
        (first, noised), (last, louder) = cells[0], cells[-1]
        times = float(louder["bits"]) / float(noised["bits"])
        rows.append(
            Comparison(
                f"{page.SOURCE}{_FIGURES[algorithm]}",
                f"information over local epochs, {NAMES[algorithm]}, N = {users}",
                "grows with E, less than in proportion",
                f"{page.plus_minus(first)} bits at E = {values[0]}, {page.plus_minus(last)} at "
                f"{values[-1]}; under a fixed noise {page.number(noised['bits'])} and "
                f"{page.number(louder['bits'])}, {times:.1f} times as much",
                "without noise the figure does not change when updates grow; under noise it does "
                "as the paper says. The linear model in place of MLP and CNN",
            )
        )
    return tuple(rows)
