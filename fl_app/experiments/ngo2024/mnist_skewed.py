"""Telling two updates apart in a secure sum on MNIST, d = 7,850, with skewed labels.

Ngo et al. (2024), arXiv:2403.17775, Fig. 4, with MNIST in place of EMNIST digits, as in
`fl_app.experiments.ngo2024.mnist`.
"""

from __future__ import annotations

from dataclasses import replace

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.ngo2024.mnist import _SCALES as _EVEN
from leakmeter.fl_app.experiments.ngo2024.mnist import NOTES, TITLE, compared
from leakmeter.fl_app.experiments.ngo2024.page import Found, table

_LABELS = "ω = 1"
_SCALES = {scale: replace(even, partition="dirichlet") for scale, even in _EVEN.items()}
_NOTES = (
    *NOTES,
    "Labels are skewed by splitting each label among the clients by a Dirichlet draw of its own, "
    "so that sizes differ, and the sum weights clients by their images.",
)
_CLAIM = "smaller errors than with even labels; the curve is the largest auditable"


def run(scale: str, cells: Cells) -> Table:
    """Play both games."""
    return table(
        TITLE,
        {_LABELS: _SCALES[scale]},
        cells,
        paper="below those with even labels",
        notes=_NOTES,
        compare=_compare if scale == "paper" else None,
    )


def _compare(found: Found) -> tuple[Comparison, ...]:
    return (compared(found, _LABELS, "Fig. 4", _CLAIM),)
