"""Loads data sets as plain arrays: digits, ADULT, image sets and a synthetic Gaussian task.

ADULT: Becker and Kohavi (1996), UCI Machine Learning Repository; we keep the complete rows, as
the 104-feature encoding in the literature does. Only numpy is imported here; scikit-learn and
torchvision are when a data set that needs them is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.errors import ConfigError, out_of_range, unknown_name
from leakmeter.fl_app.config.field import expanded
from leakmeter.fl_app.config.names import DATASETS
from leakmeter.fl_app.data.cifar import load_cifar10
from leakmeter.fl_app.data.dataset import (
    FOLDER_VARIABLE,
    Dataset,
    Floats,
    Labels,
    Request,
    content,
    locate,
)
from leakmeter.fl_app.data.mnist import load_emnist_digits, load_fashion_mnist, load_mnist


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    download: bool = False,
    seed: int = 0,
    synthetic_examples: int = 2000,
    synthetic_features: int = 20,
    synthetic_classes: int = 10,
) -> Dataset:
    """Return a data set by name.

    Args:
        name: One of `fl_app.config.names.DATASETS`.
        data_dir: Folder with the files of ADULT or of images; LEAKMETER_DATA is tried after it.
        download: Whether images may be downloaded into the first folder if no folder has them.
        seed: The run's seed. Only "synthetic" depends on it; all other splits are fixed.
        synthetic_examples: Training records of "synthetic"; a quarter as many are for testing.
        synthetic_features: Features of "synthetic".
        synthetic_classes: Classes of "synthetic".

    Raises:
        ConfigError: The name is unknown, a number is out of range, or files are missing or wrong.
    """
    if name not in DATASETS:
        raise unknown_name("--dataset", name, DATASETS)
    given = (data_dir, os.environ.get(FOLDER_VARIABLE))
    request = Request(
        folders=tuple(dict.fromkeys(expanded("--data-dir", folder) for folder in given if folder)),
        download=download,
        seed=seed,
        examples=synthetic_examples,
        features=synthetic_features,
        classes=synthetic_classes,
    )
    return _LOADERS[name](request)


def _digits(_: Request) -> Dataset:
    """Scikit-learn's 1,797 digits of 8×8, which come with the package."""
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


def _synthetic(request: Request) -> Dataset:
    """Balanced classes, each a unit Gaussian around its own random centre."""
    classes, features = request.classes, request.features
    if classes < 2:
        raise out_of_range("--synthetic-classes", "at least 2", classes)
    if features < 1:
        raise out_of_range("--synthetic-features", "at least 1", features)
    if request.examples < classes:
        allowed = f"at least {classes}, one per class"
        raise out_of_range("--synthetic-examples", allowed, request.examples)
    # Centres at distance about 3 from the origin overlap a little in any number of features.
    centres = stream(request.seed, "synthetic", "centres").normal(size=(classes, features))
    centres *= 3 / np.sqrt(features)

    def draw(part: str, count: int) -> tuple[Floats, Labels]:
        rng = stream(request.seed, "synthetic", part)
        y = rng.permutation(np.arange(count, dtype=np.int64) % classes)
        return (centres[y] + rng.normal(size=(count, features))).astype(np.float32), y

    train = draw("train", request.examples)
    test = draw("test", max(classes, request.examples // 4))
    return Dataset("synthetic", *train, *test, num_classes=classes)


_ADULT_NUMERIC = (0, 2, 4, 10, 11, 12)  # age, fnlwgt, education-num, gain, loss, hours
_ADULT_CATEGORICAL = (1, 3, 5, 6, 7, 8, 9, 13)
_ADULT_HOW = "Get them by hand from https://archive.ics.uci.edu/dataset/2/adult."


def _adult(request: Request) -> Dataset:
    """ADULT's complete rows: 6 numbers scaled to [0, 1], then 98 one-hot levels."""
    paths = locate("adult", request, ["adult"], ["adult.data", "adult.test"], _ADULT_HOW)
    train, train_y = _adult_rows(paths[0], 30_162, 7_508)
    test, test_y = _adult_rows(paths[1], 15_060, 3_700)
    # The test file lacks one country, so the training file alone sets levels and ranges.
    levels = [np.unique(train[:, column]) for column in _ADULT_CATEGORICAL]
    low, high = (f(train[:, _ADULT_NUMERIC].astype(float), axis=0) for f in (np.min, np.max))

    def encode(rows: NDArray[np.str_]) -> Floats:
        columns = zip(_ADULT_CATEGORICAL, levels, strict=True)
        one_hot = [rows[:, [column]] == known for column, known in columns]
        if not all(hot.any(axis=1).all() for hot in one_hot):
            raise ConfigError(f"adult: {paths[1]} has a level that {paths[0]} lacks")
        numbers = (rows[:, _ADULT_NUMERIC].astype(float) - low) / (high - low)
        return np.hstack([numbers, *one_hot]).astype(np.float32)

    train_x = encode(train)
    if train_x.shape[1] != 104:
        raise ConfigError(f"adult: {paths[0]} must give 104 features, got {train_x.shape[1]}")
    return Dataset("adult", train_x, train_y, encode(test), test_y, num_classes=2)


def _adult_rows(path: Path, num_rows: int, num_positive: int) -> tuple[NDArray[np.str_], Labels]:
    """Return the complete rows, as text, and their labels, if they are as many as published."""
    lines = content(path).decode(errors="replace").splitlines()
    # Labels end in a full stop in the test file only; "?" stands for an unknown value.
    split = ([cell.strip() for cell in line.rstrip(" .").split(",")] for line in lines)
    rows = [row for row in split if len(row) == 15 and "?" not in row]
    complete = np.array([row for row in rows if all(row[i].isdecimal() for i in _ADULT_NUMERIC)])
    positive = complete.reshape(-1, 15)[:, 14] == ">50K"
    if (got := (len(positive), int(positive.sum()))) != (num_rows, num_positive):
        raise ConfigError(
            f"adult: {path} must have {num_rows} complete rows, {num_positive} of them >50K, "
            f"got {got[0]} and {got[1]}: it is not the original file"
        )
    return complete, positive.astype(np.int64)


_LOADERS: dict[str, Callable[[Request], Dataset]] = {
    "digits": _digits,
    "adult": _adult,
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "emnist-digits": load_emnist_digits,
    "cifar10": load_cifar10,
    "synthetic": _synthetic,
}
