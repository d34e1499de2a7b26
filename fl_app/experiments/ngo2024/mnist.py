"""Telling two updates apart in a secure sum on MNIST, d = 7,850, with even labels.

Ngo et al. (2024), arXiv:2403.17775, Fig. 3, with MNIST (60,000 images) in place of EMNIST digits
(280,000). See `fl_app.experiments.ngo2024.game` for what is played.
"""

from __future__ import annotations

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.ngo2024.game import Setting
from leakmeter.fl_app.experiments.ngo2024.page import Found, over_sizes, table

_SCALES = {
    "paper": Setting("mnist", models=5, candidates=1000, trials=1000, block=100),
    "small": Setting("mnist", models=1, fit=2000, candidates=60, trials=60, block=60),
}
TITLE = "Telling two updates apart in a secure sum: MNIST, d = 7,850, first round"
NOTES = (
    "In the paper the errors are smaller than on ADULT, and smaller still with skewed labels "
    "(ω = 1). Trials are 1,000 where the paper has 5,000: the cap is lower, the separations do "
    "not depend on it. A client here has 600 images, the paper's has 2,800.",
)
_CLAIM = "smaller errors than on ADULT; the curve close to the largest auditable"


def run(scale: str, cells: Cells) -> Table:
    """Play both games."""
    return table(
        TITLE,
        {"even": _SCALES[scale]},
        cells,
        paper="below ADULT's",
        notes=NOTES,
        compare=_compare if scale == "paper" else None,
    )


def _compare(found: Found) -> tuple[Comparison, ...]:
    return (compared(found, "even", "Fig. 3", _CLAIM),)


def compared(found: Found, labels: str, figure: str, claim: str) -> Comparison:
    """Return what the paper says of a figure beside what came out of both games."""
    dealt, drawn = found[labels, "partition"], found[labels, "independent"]
    cap = over_sizes({"": dealt["60"]}, "cap", ".2f")
    return Comparison(
        f"Ngo et al. 2024, {figure}",
        "telling two updates apart, d = 7,850, n + 1 = 60, 70, 90 clients",
        claim,
        f"separation dealt {over_sizes(dealt, 'separation', '.1f')}, independent "
        f"{over_sizes(drawn, 'separation', '.1f')} standard deviations; errors below "
        f"{over_sizes(dealt, 'error')} and {over_sizes(drawn, 'error')}; at δ = 1e-5 "
        f"ε ≥ {over_sizes(dealt, 'epsilon', '.2f')} and "
        f"{over_sizes(drawn, 'epsilon', '.2f')}, of {cap} that 1,000 trials can show",
        "MNIST, 600 images a client in place of 2,800; 1,000 trials in place of 5,000, "
        "which lowers what can be shown, not the separation",
    )
