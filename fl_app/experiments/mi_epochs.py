"""What the sum tells of a client, over the number of local epochs.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 11 and 12: one to ten passes over the local data, here
with the linear model. See `fl_app.experiments.mi_sweep` for what is measured.
"""

from __future__ import annotations

from fl_app.experiments.base import Cells, Table
from fl_app.experiments.mi import Setting
from fl_app.experiments.mi_sweep import Sweep, table

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


def seconds(scale: str) -> float:
    """Return the processor time, measured for the small scale and estimated for the other."""
    return {"paper": 400.0, "small": 8.0}[scale]


def run(scale: str, cells: Cells) -> Table:
    """Measure every number of epochs."""
    title = f"What a secure sum tells of an update, over epochs: {_SCALES[scale].setting.dataset}"
    return table(title, _SCALES[scale], cells, _NOTES)
