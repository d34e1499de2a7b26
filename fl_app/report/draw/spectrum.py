"""Eigenvalues of the clients' own randomness, and what water filling added to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakmeter.auditors.wording import number, percent
from leakmeter.fl_app.report.draw.chart import REFERENCE, Axis, Chart, Figure, Series
from leakmeter.fl_app.report.read.run import Run


def spectra(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure for each run that has left a spectrum, of the last round that did."""
    figures = []
    for i, run in enumerate(runs):
        found = [f for f in run.findings if _is_spectrum(f.details.get("spectrum"))]
        if found:
            of_rounds = [f for f in found if f.server_round is not None] or found
            last = of_rounds[-1]
            name = f", {run.name}" if len(runs) > 1 else ""
            figures.append(_figure(i, last.details["spectrum"], last.server_round, name))
    return figures


def _is_spectrum(values: Any) -> bool:
    try:
        numbers = [float(v) for point in values["curve"] for v in (point[0], point[1], point[2])]
        return bool(numbers) and float(values["floor"]) >= 0 and float(values["dim"]) >= 1
    except (IndexError, KeyError, TypeError, ValueError):
        return False


def _figure(color: int, values: Any, server_round: int | None, name: str) -> Figure:
    floor = float(values["floor"])
    index = [float(point[0]) for point in values["curve"]]
    alone = [float(point[1]) for point in values["curve"]]
    added = [float(point[2]) for point in values["curve"]]
    filled = [max(a + b, 0.0) for a, b in zip(alone, added, strict=True)]
    least = min((v for v in [*alone, floor] if v > 0), default=1.0) / 3
    shown = [max(v, least) for v in alone]
    lines = [
        Series("after filling", index, filled, color + 1, 1, "square", low=shown, high=filled),
        Series("sampling alone", index, shown, color, 0, "circle"),
    ]
    if floor:
        lines.insert(0, Series("floor σ²", (index[0], index[-1]), (floor, floor), REFERENCE, 2))
    saved = values.get("share_saved")
    share = "" if saved is None else percent(round(float(saved), 6))
    words = f" {share} of isotropic noise is saved." if share else ""
    where = "" if server_round is None else f"One client in round {server_round}. "
    zero = f" Values at {number(least, 2)} stand for zero." if shown != alone else ""
    return Figure(
        Chart(
            "spectrum",
            f"Spectrum of a client's randomness{name}",
            "Variance along each direction, largest first: by sampling alone, and after the noise "
            "that water filling adds up to its floor.",
            Axis("direction, largest first", "log"),
            Axis("variance", "log", limits=(least, max(filled) * 1.3)),
            tuple(lines),
        ),
        f"{where}The shaded part is what water filling added.{words}{zero} A diagnosis of these "
        "data, no guarantee.",
    )
