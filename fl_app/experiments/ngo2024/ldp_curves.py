"""How little the sum of independent updates hides: optimal LDP curves against Gaussian ones.

Ngo et al. (2024), arXiv:2403.17775, Fig. 1: entries of the others' updates exponential or uniform,
d entries, n other clients. The figure's own n and d are not in the text; these are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from leakmeter.auditors.ldp.curve import ldp_curve
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.plot import Line, Panel

_EPSILONS = {"exponential": (0.0, 0.5, 1.0, 2.0, 4.0), "uniform": (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)}
_TITLES = {
    "exponential": "(a) exponential, x in [0, 4]",
    "uniform": "(b) uniform, x in [-1/2, 1/2]",
}
# Points of a curve, and the (n, d) of each case.
_SCALES: dict[str, tuple[int, dict[str, tuple[tuple[int, int], ...]]]] = {
    "paper": (
        81,
        {
            "exponential": ((50, 1), (50, 5), (100, 10), (1000, 10), (1000, 100)),
            "uniform": ((10, 1), (10, 5), (50, 5), (50, 10), (100, 100)),
        },
    ),
    "small": (17, {"exponential": ((50, 5), (100, 10)), "uniform": ((10, 5), (50, 10))}),
}


def run(scale: str, cells: Cells) -> Table:
    """Compute every curve with its bounds and set it beside the Gaussian one."""
    points, pairs = _SCALES[scale]
    rows: list[tuple[Any, ...]] = []
    panels = []
    every: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {}
    for case, sizes in pairs.items():
        curves = every[case] = {}
        for n, d in sizes:
            key = f"{case}-n{n}-d{d}-{points}points"
            curves[n, d] = cells.get(key, partial(_cell, case, n, d, points))
        rows += [row for (n, d), got in curves.items() for row in _rows(case, n, d, got)]
        panels.append(_panel(case, curves))
    return Table(
        title="Optimal LDP curves of a secure sum without noise",
        columns=("case", "n", "d", "ε", "δ", "lower", "upper", "Gaussian model", "δ / Gaussian"),
        rows=tuple(rows),
        notes=(
            "The exact δ lies between lower and upper. The Gaussian model (Theorem 2, noise of the "
            "same covariance) is an approximation. It understates δ where ε is large, most if n is "
            "small and the law skewed. δ grows quickly with d: Δ is proportional to √(d/n).",
            "Of the exponential case both directions are computed and the worse is shown, since "
            "the Gamma law is not symmetric. The paper's n and d are not in its text.",
        ),
        figures={"curves.svg": tuple(panels)},
        comparisons=_comparisons(every) if scale == "paper" else (),
    )


def _comparisons(
    every: Mapping[str, Mapping[tuple[int, int], Mapping[str, Any]]],
) -> tuple[Comparison, ...]:
    def delta(case: str, n: int, d: int, epsilon: float) -> float:
        got = every[case][n, d]
        return float(got["delta"][got["epsilons"].index(epsilon)])

    def ratio(case: str, n: int, d: int, epsilon: float) -> str:
        got = every[case][n, d]
        at = got["epsilons"].index(epsilon)
        return f"{got['delta'][at] / got['gaussian'][at]:.3g}"

    return (
        Comparison(
            "Ngo et al. 2024, Fig. 1 (a)",
            "exponential entries: the exact curve against the Gaussian one",
            "close to the Gaussian curve",
            f"δ exact over Gaussian at ε = 1, 2, 4 for n = 1,000, d = 100: "
            f"{', '.join(ratio('exponential', 1000, 100, e) for e in (1.0, 2.0, 4.0))}; for "
            f"n = 50, d = 1: {', '.join(ratio('exponential', 50, 1, e) for e in (1.0, 2.0, 4.0))}",
            "close where n is large; for few clients the Gaussian curve understates δ, most at "
            "large ε. The Gamma law is not symmetric, so both directions are computed and the "
            "worse is shown. The figure's n and d are not in the text",
        ),
        Comparison(
            "Ngo et al. 2024, Fig. 1 (b)",
            "uniform entries: the same",
            "close even for a small n",
            f"δ exact over Gaussian at ε = 1, 2, 4 for n = 10, d = 5: "
            f"{', '.join(ratio('uniform', 10, 5, e) for e in (1.0, 2.0, 4.0))}; for n = 10, "
            f"d = 1: {', '.join(ratio('uniform', 10, 1, e) for e in (1.0, 2.0, 4.0))}",
            "agrees; less close for d = 1",
        ),
        Comparison(
            "Ngo et al. 2024, Fig. 1 (a, b)",
            "δ over the dimension",
            "grows rapidly with d at a given ε",
            "at ε = 1: exponential, n = 1,000, d = 10 and 100: "
            f"{delta('exponential', 1000, 10, 1.0):.2g} and "
            f"{delta('exponential', 1000, 100, 1.0):.2g}; uniform, n = 10, d = 1 and 5: "
            f"{delta('uniform', 10, 1, 1.0):.2g} and {delta('uniform', 10, 5, 1.0):.2g}",
        ),
    )


def _rows(case: str, n: int, d: int, got: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the lines of the table, at a few of the epsilons."""
    rows = []
    for epsilon in _EPSILONS[case]:
        at = got["epsilons"].index(epsilon)
        delta, lower, upper, gaussian = (
            got[name][at] for name in ("delta", "lower", "upper", "gaussian")
        )
        shown = (f"{delta:.7g}", f"{lower:.9g}", f"{upper:.9g}", f"{gaussian:.4g}")
        rows.append((case, n, d, epsilon, *shown, f"{delta / gaussian:.3g}"))
    return rows


def _panel(case: str, curves: Mapping[tuple[int, int], Mapping[str, Any]]) -> Panel:
    """Return exact curves as lines and Gaussian ones dashed in the same colour."""
    lines = []
    for color, ((n, d), got) in enumerate(curves.items()):
        exact, model = f"n = {n}, d = {d}", "_model"  # an underscore keeps it out of the legend
        lines.append(Line(exact, got["epsilons"], got["delta"], color))
        lines.append(Line(model, got["epsilons"], got["gaussian"], color, "--"))
    return Panel(
        title=f"{_TITLES[case]}; dashed: Gaussian model",
        x_label="ε",
        y_label="δ",
        lines=tuple(lines),
        log_y=True,
        y_limits=(1e-8, 1.5),
    )


def _cell(case: str, n: int, d: int, points: int) -> dict[str, Any]:
    """Return one curve from 0 to the last epsilon of the table."""
    epsilons = np.linspace(0.0, _EPSILONS[case][-1], points)
    curve = ldp_curve(case, n, d, epsilons)
    return {
        "epsilons": epsilons,
        "separation": curve.separation,
        "infinite_mass": curve.infinite_mass,
        "delta": curve.delta,
        "lower": curve.lower,
        "upper": curve.upper,
        "gaussian": curve.gaussian,
        "forward": curve.forward,
        "backward": curve.backward,
    }
