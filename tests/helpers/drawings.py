"""What covers what in a drawing, at some width: words against words, and against data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from leakmeter.fl_app.report.figure import TEXT, WIDE, Canvas, Text, width_of

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the plot

WIDTHS = (232, 330, 520)  # of a plot: on a phone, in a third of the page, in a wide card
_STEP = 3.0  # pixels between two points of a line that are looked at


def covered(drawing: Canvas, width: float) -> list[tuple[str, str]]:
    """Return pairs of words that meet, and words that a line, an area or a point meets."""
    words = [(one.words, _box(one, width)) for one in drawing.texts]
    found = [
        (one, other)
        for i, (one, a) in enumerate(words)
        for other, b in words[i + 1 :]
        if _meet(a, b)
    ]
    data = list(_data(drawing, width))
    return found + [(one, what) for one, box in words for what, mark in data if _meet(box, mark)]


def outside(drawing: Canvas, width: float) -> list[str]:
    """Return words that leave the drawing."""
    wide = -drawing.left, width + max(drawing.right, 20.0)
    boxes = ((one.words, _box(one, width)) for one in drawing.texts)
    return [
        words
        for words, (left, top, right, bottom) in boxes
        if left < wide[0] or right > wide[1] or top < -2 or bottom > drawing.height + 2
    ]


def _box(text: Text, width: float) -> Box:
    # Half a line less at each end than the widths that the layout reckons with: it may overrate.
    long, high = 0.9 * width_of(text.words), TEXT
    if text.is_upright:
        return text.by - high * 0.8, text.y - long / 2, text.by + high * 0.2, text.y + long / 2
    at = text.x / WIDE * width + text.by
    left = at - {"start": 0.0, "middle": long / 2, "end": long}[text.anchor]
    return left, text.y - high * 0.8, left + long, text.y + high * 0.2


def _data(drawing: Canvas, width: float) -> Iterator[tuple[str, Box]]:
    """Yield what is drawn of the data, in small boxes; a grid is no data."""
    for one in drawing.strokes:
        if one.look not in ("grid", "axis"):
            for piece in one.pieces:
                for (x1, y1), (x2, y2) in pairwise(piece):
                    yield from _line(one.look, x1 / WIDE * width, y1, x2 / WIDE * width, y2)
    for mark in drawing.marks:
        if "quiet" not in mark.look:
            x = mark.x / WIDE * width
            yield f"point {mark.words}", (x - 5, mark.y - 5, x + 5, mark.y + 5)


def _line(look: str, x1: float, y1: float, x2: float, y2: float) -> Iterator[tuple[str, Box]]:
    steps = max(int(max(abs(x2 - x1), abs(y2 - y1)) / _STEP), 1)
    for i in range(steps + 1):
        x, y = x1 + (x2 - x1) * i / steps, y1 + (y2 - y1) * i / steps
        yield look, (x - 1, y - 1, x + 1, y + 1)


def _meet(a: Box, b: Box) -> bool:
    return min(a[2], b[2]) > max(a[0], b[0]) and min(a[3], b[3]) > max(a[1], b[1])
