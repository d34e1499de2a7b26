"""The data sets, each as plain arrays: digits, ADULT, MNIST and a synthetic Gaussian task.

ADULT: Becker and Kohavi (1996), UCI Machine Learning Repository; we keep the complete rows, as
the 104-feature encoding in the literature does. MNIST: LeCun, Cortes and Burges (1998). Only numpy
is imported here; scikit-learn and torchvision are when a data set that needs them is loaded.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditors.rng import stream
from fl_app.errors import ConfigError, out_of_range, unknown_name
from fl_app.names import DATASETS

FOLDER_VARIABLE = "LEAKMETER_DATA"

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Training and test records of a classification task.

    Attributes:
        name: The name it was loaded by.
        train_x: Training records, (n, *input_shape).
        train_y: Their classes, (n,), from 0 to num_classes - 1.
        test_x: Test records, (m, *input_shape).
        test_y: Their classes, (m,).
        num_classes: Number of classes.
        users: The person behind each training record, (n,), where the data set knows.
    """

    name: str
    train_x: Floats
    train_y: Labels
    test_x: Floats
    test_y: Labels
    num_classes: int
    users: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for part, x, y in (
            ("training", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            if not 0 < len(x) == len(y):
                raise ConfigError(
                    f"{self.name}: the {part} set must have as many labels as records, and at "
                    f"least one; got {len(x)} records and {len(y)} labels"
                )
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= self.num_classes:
                allowed = f"in 0..{self.num_classes - 1}"
                raise out_of_range(f"{self.name}: {part} labels", allowed, (low, high))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self.train_x.shape[1:]

    @property
    def num_train(self) -> int:
        """Number of training records."""
        return len(self.train_x)


@dataclass(frozen=True)
class _Request:
    """What `load` was asked for; each loader reads the fields it needs."""

    folders: tuple[Path, ...]
    download: bool
    seed: int
    examples: int
    features: int
    classes: int


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
        name: One of `fl_app.names.DATASETS`.
        data_dir: Folder with the files of ADULT or MNIST; LEAKMETER_DATA is tried after it.
        download: Whether MNIST may be fetched into the first folder when it is in none.
        seed: The run's seed. Only "synthetic" depends on it; all other splits are fixed.
        synthetic_examples: Training records of "synthetic"; a quarter as many are for testing.
        synthetic_features: Features of "synthetic".
        synthetic_classes: Classes of "synthetic".

    Raises:
        ConfigError: The name is unknown, a number is out of range, or files are missing or wrong.
    """
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    given = (data_dir, os.environ.get(FOLDER_VARIABLE))
    request = _Request(
        folders=tuple(dict.fromkeys(Path(folder).expanduser() for folder in given if folder)),
        download=download,
        seed=seed,
        examples=synthetic_examples,
        features=synthetic_features,
        classes=synthetic_classes,
    )
    return _LOADERS[name](request)


def _digits(_: _Request) -> Dataset:
    """Scikit-learn's 1,797 digits of 8×8, which come with the package."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = (bunch.images / 16).astype(np.float32), bunch.target.astype(np.int64)
    # Every fifth record of each class: stratified, and the same whatever generates numbers.
    is_test = np.zeros(len(y), dtype=bool)
    for label in range(10):
        is_test[np.flatnonzero(y == label)[::5]] = True
    return Dataset("digits", x[~is_test], y[~is_test], x[is_test], y[is_test], num_classes=10)


def _synthetic(request: _Request) -> Dataset:
    """Balanced classes, each a unit Gaussian around its own random centre."""
    classes, features = request.classes, request.features
    if classes < 2:
        raise out_of_range("synthetic-classes", "at least 2", classes)
    if features < 1:
        raise out_of_range("synthetic-features", "at least 1", features)
    if request.examples < classes:
        allowed = f"at least one a class ({classes})"
        raise out_of_range("synthetic-examples", allowed, request.examples)
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


def _locate(
    name: str, request: _Request, layouts: Sequence[str], files: Sequence[str], how: str
) -> list[Path]:
    """Return the path of each file, in the first folder and layout that has all of them.

    A file may be there as it is or with ".gz"; `how` tells the user where to get the files.
    """
    for place in (folder / layout for folder in request.folders for layout in layouts):
        pairs = [(place / file, place / f"{file}.gz") for file in files]
        # os.path.isfile, unlike Path.is_file, says no where a folder may not be entered.
        found = [next(filter(os.path.isfile, pair), None) for pair in pairs]
        if None not in found:
            return [path for path in found if path]
    wanted = f"{' or '.join(f'{layout}/' for layout in layouts)} with {', '.join(files)}"
    tried = ", ".join(map(str, request.folders)) or "none, as no data folder was named"
    raise ConfigError(
        f"{name}: looked for {wanted} (plain or .gz); folders tried: {tried}. {how} Name the "
        f"folder with --data-dir or the environment variable {FOLDER_VARIABLE}."
    )


def _content(path: Path) -> bytes:
    """Return a file's bytes, unpacked where it is a .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


_ADULT_NUMERIC = (0, 2, 4, 10, 11, 12)  # age, fnlwgt, education-num, gain, loss, hours
_ADULT_CATEGORICAL = (1, 3, 5, 6, 7, 8, 9, 13)
_ADULT_HOW = "Get them by hand from https://archive.ics.uci.edu/dataset/2/adult."


def _adult(request: _Request) -> Dataset:
    """ADULT's complete rows: 6 numbers scaled to [0, 1], then 98 one-hot levels."""
    paths = _locate("adult", request, ["adult"], ["adult.data", "adult.test"], _ADULT_HOW)
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
    lines = _content(path).decode(errors="replace").splitlines()
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


def _mnist(request: _Request) -> Dataset:
    """MNIST's 60,000 + 10,000 digits of 28×28, by torchvision."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    files = [f"{part}-{kind}" for part in ("train", "t10k") for kind in kinds]
    how = "Allow the download (--download), or put the files there."
    where = ("mnist", request, ["MNIST/raw", "mnist"], files, how)
    try:
        paths = _locate(*where)
    except ConfigError:
        if not (request.download and request.folders):
            raise
        _download_mnist(request.folders[0])
        paths = _locate(*where)
    train_x, train_y, test_x, test_y = (_read_idx(path) for path in paths)
    for path, x in ((paths[0], train_x), (paths[2], test_x)):
        if x.shape[1:] != (28, 28):
            raise out_of_range(f"mnist: {path}", "images of 28×28", x.shape)
    scaled = [x.astype(np.float32) / np.float32(255) for x in (train_x, test_x)]
    return Dataset("mnist", scaled[0], train_y, scaled[1], test_y, num_classes=10)


def _torchvision_mnist() -> Any:
    """Return torchvision's module of MNIST readers."""
    try:
        from torchvision.datasets import mnist
    except (ImportError, OSError, RuntimeError) as error:  # the last two: built for another torch
        raise ConfigError(
            f"mnist needs torchvision, which cannot be imported ({error}); install it with: "
            "pip install torchvision (in the version that belongs to your torch)"
        ) from error
    return mnist


def _download_mnist(folder: Path) -> None:
    """Let torchvision fetch the files into its own layout under `folder`."""
    try:
        _torchvision_mnist().MNIST(folder, download=True)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"mnist: download into {folder} failed: {error}") from error


def _read_idx(path: Path) -> NDArray[Any]:
    """Return the images or labels in an IDX file, packed or not."""
    mnist = _torchvision_mnist()
    read = mnist.read_image_file if "images" in path.name else mnist.read_label_file
    with TemporaryDirectory() as folder:
        # torchvision reads plain files only, and the data folder may be read-only.
        plain = Path(folder) / "idx"
        plain.write_bytes(_content(path))
        try:
            return np.asarray(read(str(plain)))
        except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"mnist: {path} is not a proper IDX file: {error}") from error


_LOADERS: dict[str, Callable[[_Request], Dataset]] = {
    "digits": _digits,
    "adult": _adult,
    "mnist": _mnist,
    "synthetic": _synthetic,
}
