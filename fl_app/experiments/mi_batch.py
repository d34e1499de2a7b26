"""What the sum tells of a client, over the batch size.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 6 to 8: batches of 16 to 256, here with the linear
model. See `fl_app.experiments.mi_sweep` for what is measured.
"""

from __future__ import annotations

from fl_app.experiments.base import Cells, Table
from fl_app.experiments.mi import Setting
from fl_app.experiments.mi_sweep import Sweep, table

_SCALES = {
    "paper": Sweep(
        Setting("mnist", draws=60),
        "batch_size",
        (16, 32, 64, 128, 256),
        ("fedsgd", "fedavg", "fedprox"),
        (20,),
    ),
    "small": Sweep(
        Setting("digits", clients=20, draws=40, rank=8),
        "batch_size",
        (4, 8, 16, 32),
        ("fedsgd", "fedavg"),
        (10,),
    ),
}
_NOTES = (
    "In the paper the normalised figure falls with the batch for FedSGD, as 1/B, and less for the "
    "others, whose entropy does not depend on it.",
)


def seconds(scale: str) -> float:
    """Return the processor time, measured for the small scale and estimated for the other."""
    return {"paper": 120.0, "small": 6.0}[scale]


def run(scale: str, cells: Cells) -> Table:
    """Measure every batch size."""
    title = (
        f"What a secure sum tells of an update, over the batch: {_SCALES[scale].setting.dataset}"
    )
    return table(title, _SCALES[scale], cells, _NOTES)
