"""How little the sum of independent updates hides: optimal LDP curves against Gaussian ones.

Ngo et al. (2024), arXiv:2403.17775, Fig. 1: entries of the others' updates exponential or uniform,
d entries, n other clients. The figure's own n and d are not in the text; these are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from leakmeter.papers.base import Cells, Comparison, Table
from leakmeter.papers.ngo2024.ldp.curve import ldp_curve
from leakmeter.papers.plot import Line, Panel

Curves = Mapping[tuple[str, int, int], Mapping[str, Any]]  # by case, n and d

_EPSILONS = {"exponential": (0.0, 0.5, 1.0, 2.0, 4.0), "uniform": (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)}
_TITLES = {
    "exponential": "(a) exponential, x in [0, 4]",
    "uniform": "(b) uniform, x in [-1/2, 1/2]",
}
_CURVES = (  # case, n and d
    *(("exponential", n, d) for n, d in ((50, 1), (50, 5), (100, 10), (1000, 10), (1000, 100))),
    *(("uniform", n, d) for n, d in ((10, 1), (10, 5), (50, 5), (50, 10), (100, 100))),
)
_FEW = (("exponential", 50, 5), ("exponential", 100, 10), ("uniform", 10, 5), ("uniform", 50, 10))
_SCALES = {"paper": (81, _CURVES), "small": (17, _FEW)}  # points of a curve


def run(scale: str, cells: Cells) -> Table:
    """Compute every curve with its bounds and set it beside the Gaussian one."""
    points, keys = _SCALES[scale]
    curves = cells.each(f"{{}}-n{{}}-d{{}}-{points}points", keys, partial(_cell, points))
    return Table(
        title="Optimal LDP curves of a secure sum without noise",
        columns=("case", "n", "d", "ε", "δ", "lower", "upper", "Gaussian model", "δ / Gaussian"),
        rows=[
            (*size, epsilon, *_shown(got, epsilon))
            for size, got in curves.items()
            for epsilon in _EPSILONS[size[0]]
        ],
        notes=(
            "The exact δ is between lower and upper. The Gaussian model (Theorem 2, noise of the "
            "same covariance) is an approximation. It understates δ where ε is large, most if n is "
            "small and the distribution skewed. δ grows quickly with d: Δ is proportional to "
            "√(d/n).",
            "The Gamma distribution is not symmetric, so both directions of the exponential case "
            "are computed and the worse is shown. The paper's n and d are not in its text.",
        ),
        figures={"curves.svg": [_panel(case, curves) for case in _TITLES]},
        comparisons=_comparisons(curves) if scale == "paper" else (),
    )


def _shown(got: Mapping[str, Any], epsilon: float) -> tuple[str, ...]:
    """Return δ with its bounds, the Gaussian δ, and how much larger the exact one is."""
    at = got["epsilons"].index(epsilon)
    names = ("delta", "lower", "upper", "gaussian")
    delta, lower, upper, gaussian = (got[name][at] for name in names)
    shown = (f"{delta:.7g}", f"{lower:.9g}", f"{upper:.9g}", f"{gaussian:.4g}")
    return *shown, f"{delta / gaussian:.3g}"


def _comparisons(curves: Curves) -> tuple[Comparison, ...]:
    def ratios(case: str, n: int, d: int) -> str:
        return ", ".join(_shown(curves[case, n, d], epsilon)[-1] for epsilon in (1.0, 2.0, 4.0))

    def delta(case: str, n: int, d: int) -> str:
        got = curves[case, n, d]
        return f"{got['delta'][got['epsilons'].index(1.0)]:.2g}"

    return (
        Comparison(
            "Ngo et al. 2024, Fig. 1 (a)",
            "exponential entries: the exact curve against the Gaussian one",
            "close to the Gaussian curve",
            "δ exact over Gaussian at ε = 1, 2, 4 for n = 1,000, d = 100: "
            f"{ratios('exponential', 1000, 100)}; for n = 50, d = 1: "
            f"{ratios('exponential', 50, 1)}",
            "Close where n is large. For few clients the Gaussian curve understates δ, most at "
            "large ε. The Gamma distribution is not symmetric, so we compute both directions and "
            "show the worse. The text does not state the figure's n and d",
        ),
        Comparison(
            "Ngo et al. 2024, Fig. 1 (b)",
            "uniform entries: the same",
            "close even for a small n",
            f"δ exact over Gaussian at ε = 1, 2, 4 for n = 10, d = 5: {ratios('uniform', 10, 5)}; "
            f"for n = 10, d = 1: {ratios('uniform', 10, 1)}",
            "Close for d = 5. For d = 1 the Gaussian curve understates δ, most at large ε",
        ),
        Comparison(
            "Ngo et al. 2024, Fig. 1 (a, b)",
            "δ over the dimension",
            "grows rapidly with d at a given ε",
            "at ε = 1: exponential, n = 1,000, d = 10 and 100: "
            f"{delta('exponential', 1000, 10)} and {delta('exponential', 1000, 100)}; uniform, "
            f"n = 10, d = 1 and 5: {delta('uniform', 10, 1)} and {delta('uniform', 10, 5)}",
        ),
    )


def _panel(case: str, curves: Curves) -> Panel:
    """Return exact curves as lines and Gaussian ones dashed in the same colour."""
    lines = []
    own = [(n, d, got) for (name, n, d), got in curves.items() if name == case]
    for color, (n, d, got) in enumerate(own):
        lines.append(Line(f"n = {n}, d = {d}", got["epsilons"], got["delta"], color))
        # An underscore keeps it out of the legend.
        lines.append(Line("_model", got["epsilons"], got["gaussian"], color, "--"))
    title = f"{_TITLES[case]}; dashed: Gaussian model"
    return Panel(title, "ε", "δ", lines, log_y=True, y_limits=(1e-8, 1.5))


def _cell(points: int, case: str, n: int, d: int) -> dict[str, Any]:
    """Return one curve from 0 to the last epsilon of the table."""
    epsilons = np.linspace(0.0, _EPSILONS[case][-1], points)
    curve = asdict(ldp_curve(case, n, d, epsilons))
    names = ("epsilons", "separation", "infinite_mass", "delta", "lower", "upper", "gaussian")
    return {name: curve[name] for name in (*names, "forward", "backward")}
