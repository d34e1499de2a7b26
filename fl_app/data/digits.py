"""Scikit-learn's 1,797 digits of 8×8, which come with the package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from leakmeter.fl_app.data.dataset import Dataset, Request


def load(_: Request) -> Dataset:
    """Return the digits, scaled to [0, 1]."""
    package = find_spec("sklearn")  # its file alone: an import takes a second
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("scikit-learn is not installed", name="sklearn")
    file = Path(package.submodule_search_locations[0], "datasets/data/digits.csv.gz")
    rows = np.loadtxt(file, delimiter=",")  # 64 pixels and the label
    x = (rows[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)
    y = rows[:, -1].astype(np.int64)
    # Every fifth record of each class: stratified, and independent of any random generator.
    is_test = np.zeros(len(y), dtype=bool)
    for label in range(10):
        is_test[np.flatnonzero(y == label)[::5]] = True
    return Dataset("digits", x[~is_test], y[~is_test], x[is_test], y[is_test], num_classes=10)
