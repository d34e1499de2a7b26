"""Telling two updates apart in a secure sum on MNIST, d = 7,850, with even and skewed labels.

Ngo et al. (2024), arXiv:2403.17775, Fig. 3 and 4, with MNIST (60,000 images) in place of EMNIST
digits (280,000). See `fl_app.experiments.secagg_lrt` for what is played.
"""

from __future__ import annotations

from dataclasses import replace

from fl_app.experiments.base import Cells, Table
from fl_app.experiments.secagg_lrt import Setting
from fl_app.experiments.secagg_lrt_page import table

_PAPER = Setting("mnist", models=5, candidates=1000, trials=1000, block=100)
_SMALL = Setting("mnist", models=1, fit=2000, candidates=60, trials=60, block=60)
_SCALES = {
    scale: {"even": setting, "ω = 1": replace(setting, partition="dirichlet")}
    for scale, setting in {"paper": _PAPER, "small": _SMALL}.items()
}
_NOTES = (
    "In the paper the errors are smaller than on ADULT, and smaller still with skewed labels "
    "(ω = 1). Trials are 1,000 where the paper has 5,000: the cap is lower, the separations do "
    "not depend on it. A client here has 600 images, the paper's has 2,800. Labels are skewed by "
    "splitting each label among the clients by a Dirichlet draw of its own, so that sizes differ, "
    "and the sum weights clients by their images.",
)


def seconds(scale: str) -> float:
    """Return the processor time that was measured."""
    return {"paper": 5000.0, "small": 120.0}[scale]


def run(scale: str, cells: Cells) -> Table:
    """Play both games for both partitions."""
    title = "Telling two updates apart in a secure sum: MNIST, d = 7,850, first round"
    return table(title, _SCALES[scale], cells, paper="below ADULT's", notes=_NOTES)
