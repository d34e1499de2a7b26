"""Figures of experiments: one function a kind, no global state, the same bytes every time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One line of a panel; a label with a leading underscore stays out of the legend."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0  # index into a palette; lines that belong together share one
    style: str = "-"


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    y_limits: tuple[float, float] | None = None


def line_figure(panels: Sequence[Panel], *, width: float = 5.2, height: float = 4.0) -> str:
    """Return panels side by side as SVG; width and height of each are in inches."""
    import matplotlib  # heavy, and only wanted where a figure is drawn
    from matplotlib.figure import Figure

    # Identifiers in an SVG are random unless salted, and text is drawn by the reader's fonts.
    with matplotlib.rc_context({"svg.hashsalt": "leakmeter", "svg.fonttype": "none"}):
        figure = Figure(figsize=(width * len(panels), height), layout="constrained")
        for place, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(1, len(panels), place)
            axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
            for line in panel.lines:
                # A curve may be a single point, which a line would not show.
                (drawn,) = axes.plot(line.x, line.y, line.style, label=line.label, lw=1.4, ms=4)
                drawn.set(color=f"C{line.color}", marker="o" if len(line.x) < 3 else "")
            axes.set_xscale("log" if panel.log_x else "linear")
            axes.set_yscale("log" if panel.log_y else "linear")
            if panel.y_limits:
                axes.set_ylim(*panel.y_limits)
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
        image = io.BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None, "Creator": None})
    return image.getvalue().decode()
