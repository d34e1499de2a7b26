"""Figures of experiments: one function a kind, no global state, the same bytes every time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.fl_app.config.field import ConfigError

# Inches: a row of pictures, and a panel.
_ROW = 0.62
_WIDTH, _HEIGHT = 5.2, 4.0


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
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    y_limits: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Strip:
    """One row of a gallery: grey (count, height, width) or colour (count, 3, height, width)."""

    label: str
    pictures: NDArray[np.floating[Any]]  # from 0, black, to 1


@dataclass(frozen=True)
class Gallery:
    """Rows of small pictures, one below the other."""

    title: str
    strips: Sequence[Strip]


def require_matplotlib() -> None:
    """Raise where no figure could be drawn, before hours of computing end in that.

    Raises:
        ConfigError: matplotlib, which only experiments need, is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "reproduce needs matplotlib for its figures, and it is not installed; "
            'run pip install "leakmeter[reproduce]"'
        )


def drawn(figure: Sequence[Panel] | Gallery) -> str | bytes:
    """Return a figure as its file should have it: lines as SVG, pictures as PNG."""
    return picture_figure(figure) if isinstance(figure, Gallery) else line_figure(figure)


def picture_figure(gallery: Gallery) -> bytes:
    """Return the pictures as PNG."""
    from matplotlib.figure import Figure

    rows = [_side_by_side(strip) for strip in gallery.strips]
    widest = max(row.shape[1] / row.shape[0] for row in rows)
    size = (_ROW * widest + 2.6, 1.1 * _ROW * len(rows) + 0.5)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    figure.suptitle(gallery.title, fontsize="medium")
    every = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for axes, strip, row in zip(every, gallery.strips, rows, strict=True):
        axes.imshow(row, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_ylabel(strip.label, rotation=0, ha="right", va="center", fontsize="small")
    image = io.BytesIO()
    figure.savefig(image, format="png", metadata={"Software": None})  # no release, no date
    return image.getvalue()


def _side_by_side(strip: Strip) -> NDArray[np.floating[Any]]:
    """Return a row's pictures in one, (height, width) or (height, width, 3), a gap after each."""
    gap = max(1, strip.pictures.shape[-1] // 14)
    edges = [(0, 0)] * (strip.pictures.ndim - 1) + [(0, gap)]
    framed = np.pad(strip.pictures, edges, constant_values=1.0)
    colours_last = np.moveaxis(framed, 1, -1) if framed.ndim == 4 else framed
    return np.concatenate(list(colours_last), axis=1)[:, :-gap]


def line_figure(panels: Sequence[Panel]) -> str:
    """Return panels side by side as SVG."""
    import matplotlib  # heavy, and only wanted where a figure is drawn
    from matplotlib.figure import Figure

    # Identifiers in an SVG are random unless salted, and text is drawn by the reader's fonts.
    with matplotlib.rc_context({"svg.hashsalt": "leakmeter", "svg.fonttype": "none"}):
        figure = Figure(figsize=(_WIDTH * len(panels), _HEIGHT), layout="constrained")
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
