"""Telling two updates apart in a secure sum on ADULT, d = 210, in two games.

Ngo et al. (2024), arXiv:2403.17775, Fig. 2. See `fl_app.experiments.secagg_lrt` for what is played.
"""

from __future__ import annotations

from fl_app.experiments.base import Cells, Table
from fl_app.experiments.secagg_lrt import Setting
from fl_app.experiments.secagg_lrt_page import table

_SCALES = {
    "paper": Setting("adult"),
    "small": Setting("adult", models=2, fit=4000, candidates=400, trials=600, block=300),
}
_NOTES = (
    "In the paper both error rates can be as small as 0.005 at once, and more clients in the sum "
    "help little. That is the partition game: its trials deal one finite data set to all 100 "
    "clients, so that the others' updates are negatively dependent and their sum varies less the "
    "more of them are in it. The attack then gets *stronger* with n. With clients whose data are "
    "drawn independently, as the paper's theorems assume, the errors are several times larger and "
    "grow with n.",
)


def seconds(scale: str) -> float:
    """Return the processor time that was measured."""
    return {"paper": 330.0, "small": 15.0}[scale]


def run(scale: str, cells: Cells) -> Table:
    """Play both games and set them side by side."""
    title = "Telling two updates apart in a secure sum: ADULT, d = 210, first round"
    return table(title, {"": _SCALES[scale]}, cells, paper="0.005", notes=_NOTES)
