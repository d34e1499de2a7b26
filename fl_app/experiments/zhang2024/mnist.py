"""Four ways to noise sampled gradients, at equal accumulated (ε, δ) for one record: linear model.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Fig. 4 and Fig. 5, 50 users. Ours differs:

1. All floors are calibrated with bounds that hold (`strategies.water_filling.rdp`), composed over
   the rounds in Rényi DP and converted tightly. Row 6 of Table 1, which the paper prices WF-NA
   with, is no theorem; with the corrected bound the floor for WF-NA is above that for isotropic
   noise.
2. The paper trains for 100 epochs, and each of 50 users holds 1,200 records. At the scale "paper"
   users hold 600 and there are 20 rounds, so that it takes minutes.
3. Isotropic noise on Gaussian sampling (row 5) is trained as well: it is what WF-NA should beat.
"""

from __future__ import annotations

from leakmeter.fl_app.experiments.base import Cells, Table
from leakmeter.fl_app.experiments.zhang2024.page import (
    compared,
    compared_spectrum,
    panels,
    ranking,
    row,
    spectrum_note,
    words,
)
from leakmeter.fl_app.experiments.zhang2024.training import DELTA, Scale, compute

_SCALES = {
    "paper": Scale("mnist", 50, 600, 20, 32, 10.0, 0.3, (0.5, 1.0, 2.0, 4.0, 8.0), 3),
    "small": Scale("digits", 5, 150, 5, 16, 4.0, 0.8, (2.0, 16.0), 2),
}


def run(scale: str, cells: Cells) -> Table:
    """Train every mechanism at every ε with every seed."""
    size = _SCALES[scale]
    got, middle, spectrum = compute(scale, size, cells)
    return Table(
        title=f"Accuracy at equal ε for one record, {size.dataset}, linear model, {size.users} "
        f"users of {size.examples} records, {size.rounds} rounds, B = {size.batch}, "
        f"C = {size.clip:g}, δ = {DELTA:g}",
        columns=("mechanism", "ε", "σ² per user", "accuracy", "ms a round"),
        rows=tuple(row(name, epsilon, runs) for (name, epsilon), runs in got.items()),
        notes=(
            *ranking(got),
            words(size.seeds),
            f"Steps have the length {size.lr:g} for all mechanisms; the paper gives none. Records, "
            "rounds and runs are fewer than its own, for the sake of time.",
            spectrum_note(spectrum, middle),
        ),
        figures={"accuracy.svg": panels(got, spectrum)},
        comparisons=(
            *compared(
                got,
                "linear model",
                f"{size.examples} records a user and {size.rounds} rounds in place of 1,200 and "
                "100 epochs; floors from bounds that hold, composed in Rényi DP",
            ),
            compared_spectrum(spectrum, "linear model", got),
        ),
    )
