"""What the sum tells of a client, over the batch size.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 6 to 8: batches of 16 to 256, here with the linear
model. See `fl_app.experiments.elkordy2023.sweep` for what is measured.
"""

from __future__ import annotations

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    NAMES,
    Algorithm,
    Setting,
    over,
    records_used,
)
from leakmeter.fl_app.experiments.elkordy2023.sweep import Found, Sweep, table

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


def run(scale: str, cells: Cells) -> Table:
    """Measure every batch size."""
    title = (
        f"What a secure sum tells of an update, over the batch: {_SCALES[scale].setting.dataset}"
    )
    return table(title, _SCALES[scale], cells, _NOTES, _compared if scale == "paper" else None)


_PUBLISHED: dict[Algorithm, tuple[str, str]] = {
    "fedsgd": (
        "Fig. 6",
        "as 1/B: around 4 % of a batch's entropy at B = 16, below 1 % at 256, more than 20 users",
    ),
    "fedavg": ("Fig. 7", "0.8 % of the client's data at B = 16, 0.3 % at 256"),
    "fedprox": ("Fig. 8", "0.09 % of the client's data at B = 16, 0.04 % at 256"),
}


def _compared(found: Found) -> tuple[Comparison, ...]:
    """Return what becomes of the first batch size at the last, beside the paper."""
    sweep, rows = _SCALES["paper"], []
    for (algorithm, users), cells in found.items():
        figure, published = _PUBLISHED[algorithm]
        (first, noised), (last, drowned) = cells[0], cells[-1]
        per = [
            float(got["bits"])
            / records_used(over(sweep.setting, algorithm=algorithm, batch_size=b), got["records"])
            for b, got in zip((sweep.values[0], sweep.values[-1]), (first, last), strict=True)
        ]
        rows.append(
            Comparison(
                f"{page.SOURCE}{figure}",
                f"information over the batch, {NAMES[algorithm]}, N = {users}",
                published,
                f"{page.plus_minus(first)} bits at B = {sweep.values[0]}, "
                f"{page.plus_minus(last)} at {sweep.values[-1]}; per record used "
                f"{page.number(per[0])} and {page.number(per[1])}; under a fixed noise "
                f"{page.number(noised['bits'])} and {page.number(drowned['bits'])} bits",
                "in bits nothing falls: a smaller update of the same shape is as easy to tell. "
                "FedSGD's fall is that of the axis, which is divided by B; what falls for all "
                f"three is what stands out of a noise. Else {page.UNITS}",
            )
        )
    return tuple(rows)
