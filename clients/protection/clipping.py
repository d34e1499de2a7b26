"""Clipping of one flat update, and of a model's change."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.values import NotFiniteError, Vector, require


def clip(update: Vector, norm: float) -> Vector:
    """Return the update scaled to at most `norm`, by one joint L2 norm; zero stays zero."""
    require("(0, inf)", norm=norm)
    if not np.isfinite(update).all():
        raise NotFiniteError("update must be finite, got NaN or infinity")
    peak = float(np.abs(update).max(initial=0.0))
    if peak == 0:
        return update
    direction = update / peak  # squares of very large or tiny entries leave float64's range
    length = float(np.linalg.norm(direction))
    return update if length <= norm / peak else direction * (norm / length)


def model_within(
    norm: float, update: Vector, start: Vector, layout: Layout, sent: ArrayRecord
) -> ArrayRecord:
    """Return the model after `update`, with a change within `norm` in the model's precision.

    The sum of a float32 model and an update is rounded, and that may lengthen the update.
    """
    shrink = 2.0**-24
    while True:
        arrays = layout.restore(start + update, sent)
        if float(np.linalg.norm(layout.flatten(arrays) - start)) <= norm or shrink > 1:
            return arrays if shrink <= 1 else layout.restore(start, sent)
        update, shrink = update * (1 - min(shrink, 1.0)), 2 * shrink
