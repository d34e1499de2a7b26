"""All charts of a page, in the order of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakmeter.fl_app.report.draw import curves, rounds
from leakmeter.fl_app.report.draw.chart import Figure
from leakmeter.fl_app.report.draw.cosines import cosines
from leakmeter.fl_app.report.draw.spectrum import spectra
from leakmeter.fl_app.report.read.run import Run


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return all charts that the runs have data for, with names that differ."""
    found = [
        *curves.tradeoffs(runs),
        *curves.epsilons(runs),
        *cosines(runs),
        *rounds.growth(runs),
        *rounds.single_rounds(runs),
        *rounds.information(runs),
        *rounds.critics(runs),
        *spectra(runs),
        *rounds.accuracy(runs),
    ]
    return [
        replace(one, chart=replace(one.chart, name=f"figure-{i}-{one.chart.name}"))
        for i, one in enumerate(found, start=1)
    ]
