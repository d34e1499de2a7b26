"""Histograms of canary cosines against what they would be without a leak."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from leakmeter.auditors.finding import Histogram, Sees
from leakmeter.auditors.wording import slug
from leakmeter.fl_app.report.draw.chart import REFERENCE, Axis, Chart, Figure, Series
from leakmeter.fl_app.report.read.run import Run

_WHERE: Final[Mapping[Sees | None, str]] = {
    "final model": "in the final model",
    "all models": "in the models of all rounds",
}


def cosines(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure for each run and each model that was searched for canaries."""
    figures = []
    for i, run in enumerate(runs):
        drawn: dict[Sees | None, Histogram] = {}
        for f in run.of_the_run:
            for detail in f.details:
                if isinstance(detail, Histogram) and detail.edges[1:]:
                    drawn.setdefault(f.threat_model.sees, detail)
        name = f", {run.name}" if len(runs) > 1 else ""
        figures += [
            _figure(i, _WHERE.get(sees, "in the model"), h, name) for sees, h in drawn.items()
        ]
    return figures


def _figure(color: int, where: str, bins: Histogram, name: str) -> Figure:
    middles = [(a + b) / 2 for a, b in pairwise(bins.edges)]
    known = "the normal distribution" if bins.is_exact else "draws of the exact distribution"
    lines = (
        Series(
            f"took part ({sum(bins.included)})",
            bins.edges,
            _shares(bins.included),
            color,
            is_filled=True,
        ),
        Series(
            f"did not ({sum(bins.excluded)})", bins.edges, _shares(bins.excluded), color + 1, dash=1
        ),
        Series("without a leak", middles, bins.null, REFERENCE, dash=2),
    )
    return Figure(
        Chart(
            f"cosines-{slug(where)}",
            f"Canaries {where}{name}",
            "Shares of canaries over their cosine with the change of the model: those that took "
            "part, those that did not, and the distribution without a leak.",
            Axis("cosine in standard deviations of the null"),
            Axis("share of canaries", has_zero=True),
            lines,
        ),
        "The further the canaries that took part are to the right of the others, the more "
        f"confident the attacker is. Without a leak: {known}. Bins of equal width; one standard "
        "deviation is 1/√d.",
        is_first=where == _WHERE["all models"],
    )


def _shares(counts: Sequence[float]) -> list[float]:
    total = math.fsum(counts) or 1.0
    return [count / total for count in counts]
