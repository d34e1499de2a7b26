"""Telling two updates apart in a secure sum on ADULT, d = 210, in two games.

Ngo et al. (2024), arXiv:2403.17775, Fig. 2. See `fl_app.experiments.ngo2024.game` for what is
played.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.ngo2024.game import Setting
from leakmeter.fl_app.experiments.ngo2024.page import Found, over_sizes, table

Sizes = Mapping[str, Mapping[str, Any]]

_SCALES = {
    "paper": Setting("adult"),
    "small": Setting("adult", models=2, fit=4000, candidates=400, trials=600, block=300),
}
_NOTES = (
    "In the paper both error rates can be as small as 0.005 at once, and more clients in the sum "
    "help little. That is the partition game: its trials deal one finite data set to all 100 "
    "clients, so that the others' updates are negatively dependent and their sum varies less the "
    "more of them are in it. The attack then gets *stronger* with n. With clients whose data are "
    "drawn independently, as the paper's theorems assume, the errors are many times larger and "
    "grow with n.",
)


def run(scale: str, cells: Cells) -> Table:
    """Play both games and set them side by side."""
    title = "Telling two updates apart in a secure sum: ADULT, d = 210, first round"
    compare = _comparisons if scale == "paper" else None
    return table(title, {"": _SCALES[scale]}, cells, paper="0.005", notes=_NOTES, compare=compare)


def _times(dealt: Sizes, drawn: Sizes) -> str:
    """Return how much larger the errors of independent clients are, size by size."""
    each = (np.median(drawn[n]["error"]) / np.median(dealt[n]["error"]) for n in dealt)
    return ", ".join(f"{float(times):.0f}" for times in each)


def _comparisons(found: Found) -> tuple[Comparison, ...]:
    dealt, drawn = found["", "partition"], found["", "independent"]
    caps = over_sizes({"": dealt["60"]}, "cap", ".2f")
    return (
        Comparison(
            "Ngo et al. 2024, Fig. 2 (a)",
            "the error that both rates stay below at once, n + 1 = 60, 70, 90 clients",
            "as small as 0.005",
            f"as printed {over_sizes(dealt, 'error_as_printed')}, with limits that pay for the "
            f"choice of the threshold {over_sizes(dealt, 'error')}; with independent clients "
            f"{over_sizes(drawn, 'error')}",
            "the paper's trials deal one data set to all clients (game partition), which makes "
            "their sum vary less; its theorems are about independent clients, for whom the errors "
            f"are {_times(dealt, drawn)} times larger",
        ),
        Comparison(
            "Ngo et al. 2024, Fig. 2 (b)",
            "the audited curve, 5,000 trials",
            "close to the largest auditable; at ε = 7 still δ > 0.1",
            f"at δ = 1e-5 ε ≥ {over_sizes(dealt, 'epsilon', '.2f')} with 95 % confidence, of "
            f"{caps} that 5,000 trials without an error would show; independent "
            f"{over_sizes(drawn, 'epsilon', '.2f')}",
            "limits that hold at all thresholds together cannot show ε = 7 from 5,000 trials; the "
            "best threshold on the same trials has no confidence (see best-threshold)",
        ),
        Comparison(
            "Ngo et al. 2024, Fig. 2 (a, b)",
            "more clients in the sum: separation of the two worlds in standard deviations",
            "a marginal improvement of privacy",
            f"dealt: {over_sizes(dealt, 'separation', '.1f')}, it gets worse; independent: "
            f"{over_sizes(drawn, 'separation', '.1f')}, it gets better as 1/√n",
            "in the paper's game 90 of 100 clients hold nearly the whole data set together, so "
            "that their sum hardly varies",
        ),
    )
