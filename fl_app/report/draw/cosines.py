"""Histograms of canary cosines against what they would be without a leak."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.wording import slug
from leakmeter.fl_app.report.draw.chart import REFERENCE, Axis, Chart, Figure, Series
from leakmeter.fl_app.report.read.run import Run


def cosines(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure for each run and each model that canaries were looked for in."""
    figures = []
    for i, run in enumerate(runs):
        seen: set[str] = set()
        for f in run.of_the_run:
            if f.threat_model not in seen and _has_counts(f.details):
                seen.add(f.threat_model)
                figures.append(_figure(i, run, f, many=len(runs) > 1))
    return figures


def _has_counts(values: Mapping[str, Any]) -> bool:
    try:
        edges = [float(v) for v in values["edges"]]
        counts = [len([float(v) for v in values[name]]) for name in ("included", "unobserved")]
        return len(edges) > 1 and counts == [len(edges) - 1] * 2
    except (KeyError, TypeError, ValueError):
        return False


def _figure(color: int, run: Run, finding: Finding, *, many: bool) -> Figure:
    values = finding.details
    edges = [float(v) for v in values["edges"]]
    null, known = _null(values, edges)
    lines = [
        Series(
            f"took part ({sum(values['included'])})",
            edges,
            _shares(values["included"]),
            color,
            is_filled=True,
        ),
        Series(
            f"did not ({sum(values['unobserved'])})",
            edges,
            _shares(values["unobserved"]),
            color + 1,
            dash=1,
        ),
    ]
    if null is not None:
        middles = [(a + b) / 2 for a, b in pairwise(edges)]
        lines.append(Series(f"without a leak, {known}", middles, null, REFERENCE, dash=2))
    which = _which(finding.threat_model)
    title = f"Canaries {which}" + (f", {run.name}" if many else "")
    return Figure(
        Chart(
            f"cosines-{slug(which)}",
            title,
            "Shares of canaries over their cosine with the change of the model, those that took "
            "part against those that did not and against the law without a leak.",
            Axis("cosine in standard deviations of the null"),
            Axis("share of canaries", has_zero=True),
            tuple(lines),
        ),
        "The further the canaries that took part stand to the right of the others, the surer the "
        "adversary is. Bins of equal width; one standard deviation is 1/√d.",
    )


def _shares(counts: Sequence[float]) -> list[float]:
    total = math.fsum(counts) or 1.0
    return [count / total for count in counts]


def _null(values: Mapping[str, Any], edges: Sequence[float]) -> tuple[list[float] | None, str]:
    """Return the share of each bin without a leak, and where it is known from."""
    null = values.get("null")
    if null == "N(0, 1)":
        below = [0.5 * math.erfc(-edge / math.sqrt(2)) for edge in edges]
        return [b - a for a, b in pairwise(below)], "normal law"
    if isinstance(null, list) and len(null) == len(edges) - 1:
        return [float(v) for v in null], "drawn from its exact law"
    return None, ""  # reports of early releases


def _which(threat_model: str) -> str:
    if "final model" in threat_model:
        return "in the final model"
    return "in the models of all rounds" if "every round" in threat_model else "in the model"
