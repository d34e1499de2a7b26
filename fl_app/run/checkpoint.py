"""Compares parts of a checkpoint with those of a new run, where nothing declares their types."""

from __future__ import annotations

from typing import Any

import numpy as np


def difference(kept: Any, form: Any, name: str) -> str | None:
    """Return in words where `kept` has another structure than a run writes; None if nowhere.

    Args:
        kept: What was loaded.
        form: The same part of a new run. A None there may have become anything since; empty lists
            and dictionaries may have been filled with anything.
        name: Its name in the text.
    """
    if form is None:
        return None
    if isinstance(form, dict) and isinstance(kept, dict):
        if missing := [key for key in form if key not in kept]:
            return f"{name} lacks {missing[0]!r}"
        found = (difference(kept[k], item, f"{name}, {k!r}") for k, item in form.items())
        return next((words for words in found if words is not None), None)
    if isinstance(form, np.ndarray) and isinstance(kept, np.ndarray):
        if kept.shape == form.shape and kept.dtype.kind in "fiub":
            return None
        return f"{name} has shape {kept.shape} of {kept.dtype}, not {form.shape} of {form.dtype}"
    number = (int, float)
    wanted = {int: number, float: number, tuple: (list,)}.get(type(form), (type(form),))
    if type(kept) in wanted:
        return None
    return f"{name} is of type {type(kept).__name__}, not {wanted[-1].__name__}"
