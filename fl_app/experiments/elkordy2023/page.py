"""What the pages on mutual information share: words for figures, and lines for plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leakmeter.fl_app.experiments.elkordy2023.measure import IMAGE_BITS, Setting, paper_share
from leakmeter.fl_app.experiments.plot import Line

SOURCE = "Elkordy et al. 2023, "
# Why bits here and in the paper's figures are not the same quantity.
UNITS = (
    "ours are bits of a Gaussian model along fixed directions, the paper's those that MINE reads "
    "off whole updates, over an entropy that MINE has estimated too"
)
NOTE = (
    "Bits that the sum tells of one client's update, given the model, at the initial model: "
    "½ log₂|Σ| - ½ log₂|Σ without the client| along {rank} directions, which were fixed on other "
    "draws, with the standard error of a jackknife. A Gaussian model of the updates: for other "
    "laws neither an upper nor a lower bound. Without noise every further direction adds as much. "
    "Gaussian truth: (d*/2) log₂(N/(N - 1)) for clients of one law, in as many directions; "
    "it depends on nothing but N and d*. "
)
PAPER = (
    "Paper's axis: bits over the paper's entropy of what a round uses, 567 bits for an MNIST image "
    "(its own neural estimate): the batch for FedSGD, all of the client's images else. "
)
GAMES = (
    "Game independent: each draw gives every client fresh data, as the theory assumes. Game rerun: "
    "clients keep their data and only draw new batches, as the paper samples; the truth is then "
    "the entropy of the batch for any N, log₂ C(D, B) bits for FedSGD."
)


def plus_minus(found: Mapping[str, Any]) -> str:
    """Return the target's figure with its standard error."""
    return f"{number(found['bits'])} ± {number(found['error'])}"


def number(value: Any) -> str:
    """Return a number in three digits; cells keep infinities as text."""
    value = float(value)
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


_SHOWN: dict[str, Callable[[Setting, Mapping[str, Any]], Any]] = {
    "bits": lambda _, f: plus_minus(f),
    "mean over users": lambda _, f: number(f["mean"]),
    "smallest": lambda _, f: number(f["smallest"]),
    "largest": lambda _, f: number(f["largest"]),
    "directions": lambda _, f: f["rank"],
    "variance kept": lambda _, f: f"{100 * f['kept']:.0f} %",
    "Gaussian truth": lambda _, f: number(f["gaussian"]),
    "free coordinates": lambda _, f: f["free"],
    "paper's axis": lambda setting, f: share(setting, f),
}


def shown(setting: Setting, found: Mapping[str, Any], *columns: str) -> tuple[Any, ...]:
    """Return what `measure.look` has found, as the columns of these names show it."""
    return tuple(_SHOWN[name](setting, found) for name in columns)


def share(setting: Setting, found: Mapping[str, Any]) -> str:
    """Return the paper's axis in per cent, or nothing where the paper has no entropy."""
    part = paper_share(setting, float(found["bits"]), found["records"])
    return "" if part is None else f"{100 * part:.3g} %"


def data_share(setting: Setting, bits: float, records: int) -> str:
    """Return bits in per cent of the paper's entropy of all of a client's images, or nothing."""
    if setting.dataset not in IMAGE_BITS:
        return ""
    return f"{100 * bits / (records * IMAGE_BITS[setting.dataset]):.3g} %"


def line(
    label: str, x: Sequence[float], y: Sequence[Any], color: int = 0, style: str = "o-"
) -> Line:
    """Return a line without its infinite points, which no plot can show."""
    there = [(a, float(b)) for a, b in zip(x, y, strict=True) if math.isfinite(float(b))]
    return Line(label, [a for a, _ in there], [b for _, b in there], color, style)
