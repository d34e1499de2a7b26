"""The figures of a page as data, and where everything in them is.

`figure` states what a figure is, `layout` and `scale` place it, and the other modules choose what
to show. Nothing here knows HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakmeter.fl_app.report.draw import curves, rounds
from leakmeter.fl_app.report.draw.figure import Figure
from leakmeter.fl_app.report.read import Run


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return all figures that the runs have data for, in the order of the page."""
    found = [
        *curves.tradeoffs(runs),
        *curves.epsilons(runs),
        *curves.cosines(runs),
        *rounds.growth(runs),
        *rounds.single_rounds(runs),
        *rounds.information(runs),
        *rounds.critics(runs),
        *curves.spectra(runs),
        *rounds.accuracy(runs),
    ]
    return [replace(one, name=f"figure-{i}-{one.name}") for i, one in enumerate(found, start=1)]
