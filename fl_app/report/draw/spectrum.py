"""Eigenvalues of the clients' own randomness, and what water filling added to them."""

from __future__ import annotations

from collections.abc import Sequence

from leakmeter.auditors.finding import Spectrum
from leakmeter.auditors.wording import number, percent
from leakmeter.fl_app.report.draw.chart import REFERENCE, Axis, Chart, Figure, Series
from leakmeter.fl_app.report.draw.scale import HUGE
from leakmeter.fl_app.report.read.run import Run


def spectra(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure for each run that has left a spectrum, of the last round that did."""
    figures = []
    for i, run in enumerate(runs):
        drawn = [
            (f.server_round, detail)
            for f in sorted(run.findings, key=lambda f: f.server_round or 0)
            for detail in f.details
            if isinstance(detail, Spectrum) and detail.index
        ]
        if drawn:
            name = f", {run.name}" if len(runs) > 1 else ""
            figures.append(_figure(i, drawn[-1][1], drawn[-1][0], name))
    return figures


def _figure(color: int, drawn: Spectrum, server_round: int | None, name: str) -> Figure:
    floor, index, alone = drawn.floor, drawn.index, drawn.variance
    filled = [max(a + b, 0.0) for a, b in zip(alone, drawn.added, strict=True)]
    least = min((v for v in [*alone, floor] if v > 1 / HUGE), default=1.0) / 3
    shown = [max(v, least) for v in alone]
    lines = [
        Series("after filling", index, filled, color + 1, 1, "square", low=shown, high=filled),
        Series("sampling alone", index, shown, color, 0, "circle"),
    ]
    if floor:
        lines.insert(0, Series("floor σ²", (index[0], index[-1]), (floor, floor), REFERENCE, 2))
    saved = f" {percent(round(drawn.share_saved, 6))} of isotropic noise is saved." if floor else ""
    where = "" if server_round is None else f"One client in round {server_round}. "
    zero = f" Values at {number(least, 2)} stand for zero." if shown != list(alone) else ""
    return Figure(
        Chart(
            "spectrum",
            f"Spectrum of a client's randomness{name}",
            "Variance along each direction, largest first: by sampling alone, and after the noise "
            "that water filling adds up to its floor.",
            Axis("direction, largest first", "log"),
            Axis("variance", "log", limits=(least, min(max(filled), HUGE) * 1.3)),
            tuple(lines),
        ),
        f"{where}The shaded part is what water filling added.{saved}{zero} It describes these "
        "data and is no guarantee.",
    )
