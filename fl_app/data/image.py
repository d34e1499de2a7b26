"""Images: scikit-learn's digits, MNIST and its relatives with MNIST's writers, CIFAR-10.

1. Digits: scikit-learn's 1,797 of 8×8, which come with the package.
2. MNIST, Fashion-MNIST and EMNIST's digits: LeCun, Cortes and Burges (1998); Xiao, Rasul and
   Vollgraf (2017), arXiv:1708.07747; Cohen, Afshar, Tapson and van Schaik (2017), arXiv:1702.05373.
   Writers: Yadav and Bottou (2019), "Cold Case: The Lost MNIST Digits" (arXiv:1905.10498), who
   found the record of every digit in NIST's collection. Their file lists MNIST's training digits in
   MNIST's order: 539 writers with 19 to 131 digits each.
3. CIFAR-10, whole as torchvision keeps it or a part of it in one file of arrays: Krizhevsky (2009),
   Learning Multiple Layers of Features from Tiny Images: 50,000 + 10,000 colour pictures of 32×32
   in ten classes. The part is a file `cifar10/cifar10*.npz` with x_train, y_train, x_test and
   y_test, pictures as bytes (records, 32, 32, 3). With a download allowed it is not used.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.fl_app.config.field import ConfigError, out_of_range
from leakmeter.fl_app.data.dataset import (
    Dataset,
    Floats,
    Labels,
    Request,
    check_size,
    content,
    locate,
    torchvision_datasets,
)

_WRITERS = "qmnist-train-labels-idx2-int"
_WRITER_LAYOUTS = ("qmnist-writers", "QMNIST/raw")  # the second one is torchvision's
_WRITERS_HOW = "Get it by hand from https://github.com/facebookresearch/qmnist."
_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
_CIFAR = "cifar-10-batches-py"  # torchvision's
_CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
_CIFAR_SIZES = (50_000, 10_000)
_KEYS = ("x_train", "y_train", "x_test", "y_test")
_CIFAR_SHAPE = (32, 32, 3)

Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class _Published:
    """A data set in MNIST's format: where its files are, and how much there is in them."""

    layouts: tuple[str, ...]
    parts: tuple[str, str] = ("train", "t10k")
    sizes: tuple[int, int] = (60_000, 10_000)
    split: tuple[str, ...] = ()  # what torchvision's class asks for besides the folder
    is_transposed: bool = False  # columns are stored as rows; torchvision leaves them so

    @property
    def files(self) -> list[str]:
        return [f"{part}-{kind}" for part in self.parts for kind in _KINDS]


_PUBLISHED = {
    "mnist": _Published(("MNIST/raw", "mnist")),
    "fashion-mnist": _Published(("FashionMNIST/raw", "fashion-mnist")),
    "emnist-digits": _Published(
        ("EMNIST/raw", "emnist"),
        ("emnist-digits-train", "emnist-digits-test"),
        (240_000, 40_000),
        ("digits",),
        is_transposed=True,
    ),
}


def load_digits(_: Request) -> Dataset:
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


def load_mnist(request: Request) -> Dataset:
    """Return grey pictures of 28×28, upright, scaled to [0, 1]; MNIST's with writers if known."""
    name = request.task.dataset
    published = _PUBLISHED[name]

    def fetch(folder: Path) -> None:
        maker = published.layouts[0].partition("/")[0]  # torchvision's class
        getattr(torchvision_datasets(name, "mnist"), maker)(folder, *published.split, download=True)

    paths = locate(name, request, published.layouts, published.files, fetch=fetch)
    train_x, train_y, test_x, test_y = (_read_idx(name, path) for path in paths)
    for path, x in ((paths[0], train_x), (paths[2], test_x)):
        if x.shape[1:] != (28, 28):
            raise out_of_range(f"{name}: {path}", "images of 28×28", x.shape)
    check_size(name, (len(train_x), len(test_x)), published.sizes)
    # One new array each: the first touch of its memory takes longer than the division.
    train_x, test_x = (np.divide(x, 255, dtype=np.float32) for x in (train_x, test_x))
    if published.is_transposed:
        train_x, test_x = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (train_x, test_x))
    found = Dataset(name, train_x, train_y, test_x, test_y, num_classes=10)
    if name != "mnist":
        return found
    try:
        (writers,) = locate("mnist", request, _WRITER_LAYOUTS, [_WRITERS], _WRITERS_HOW)
    except ConfigError as error:
        return replace(found, users_lack=str(error).removeprefix("mnist: "))
    return replace(found, users=_read_writers(writers, train_y))


def _read_writers(path: Path, labels: Labels) -> NDArray[np.int64]:
    """Return the writer of each training digit; raise if the file lists other digits."""
    table = _read_idx("mnist", path)  # (digits, 8): class, NIST's partition, writer, ...
    if table.ndim != 2 or table.shape[1] < 3:
        raise out_of_range(f"mnist: {path}", "a table with the writer in column 2", table.shape)
    if len(table) != len(labels):
        raise out_of_range(f"mnist: {path}", f"a row for each of {len(labels)} digits", len(table))
    if wrong := int((table[:, 0] != labels).sum()):
        raise ConfigError(
            f"mnist: {path} must list the training digits in their order, but the classes of "
            f"{wrong} of {len(labels)} rows are not MNIST's: it belongs to other digits"
        )
    return table[:, 2].astype(np.int64)


def _read_idx(name: str, path: Path) -> NDArray[Any]:
    """Return the images, labels or table in an IDX file, packed or not.

    Two zeros, the type, the number of axes, their lengths, the numbers; all with the high byte
    first. By hand, since an import of torchvision takes longer than the training of many clients.
    """
    data, (dims, types) = content(path), _expected(path)
    try:
        zeros, kind, ndim = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{ndim}I", data, 4)
        if zeros or ndim != dims or kind not in types:
            raise ValueError(f"it begins with {data[:4].hex()}")
        numbers = np.frombuffer(data, types[kind], offset=4 + 4 * ndim).reshape(shape)
    except (struct.error, ValueError) as error:
        raise ConfigError(f"{name}: {path} is not a proper IDX file: {error}") from error
    # Labels index tensors; everything else stays as it is, in the order of this machine.
    return numbers.astype(np.int64 if dims == 1 else numbers.dtype.newbyteorder("="), copy=False)


def _expected(path: Path) -> tuple[int, dict[int, str]]:
    """Return how many axes a file of this name has, and which types, by IDX's numbers for them."""
    if "idx2" in path.name:  # the table of writers
        return 2, {12: ">i4"}
    return (3 if "idx3" in path.name else 1), {8: "u1"}


def load_cifar10(request: Request) -> Dataset:
    """Return CIFAR-10, pictures (3, 32, 32) scaled to [0, 1]; a part if there is no more."""
    part = None if request.task.download else _part(request)
    train_x, train_y, test_x, test_y = _read_part(part) if part else _whole(request)
    check_size("cifar10", (len(train_x), len(test_x)), _CIFAR_SIZES)
    labels = [y.astype(np.int64) for y in (train_y, test_y)]
    arrays = _scaled(train_x), labels[0], _scaled(test_x), labels[1]
    return Dataset("cifar10", *arrays, num_classes=10)


def _scaled(pictures: NDArray[np.uint8]) -> Floats:
    """Return pictures (records, 32, 32, 3) as torch wants them, colours first."""
    scaled = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2), np.float32)
    return np.divide(scaled, 255, out=scaled)


def _part(request: Request) -> Path | None:
    """Return the file with a part of the data set, if no folder before it has the whole."""
    for folder in request.folders:
        if os.path.isfile(folder / _CIFAR / _CIFAR_FILES[0]):
            return None
        if found := sorted(folder.glob("cifar10/cifar10*.npz")):
            return found[0]
    return None


def _whole(request: Request) -> Arrays:
    """Return all pictures and labels, read by torchvision, which checks the files' digests.

    The check matters: the files are pickles, and a forged one could run any code.
    """

    def reader(folder: Path, **how: bool) -> Any:
        return torchvision_datasets("cifar10", "cifar").CIFAR10(folder, **how)

    def fetch(folder: Path) -> None:
        reader(folder, download=True)

    paths = locate("cifar10", request, [_CIFAR], _CIFAR_FILES, fetch=fetch)
    folder = paths[0].parents[1]
    try:
        train, test = (reader(folder, train=is_train) for is_train in (True, False))
    except RuntimeError as error:
        raise ConfigError(f"cifar10: {folder / _CIFAR} is damaged: {error}") from error
    return train.data, np.asarray(train.targets), test.data, np.asarray(test.targets)


def _read_part(path: Path) -> Arrays:
    """Return the arrays of an .npz file, if they are pictures and labels."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = tuple(file[key] for key in _KEYS)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        wanted = ", ".join(_KEYS)
        raise ConfigError(
            f"cifar10: {path} must contain {wanted}, cannot be read: {error}"
        ) from error
    for x, y in (arrays[:2], arrays[2:]):
        if x.dtype != np.uint8 or x.shape[1:] != _CIFAR_SHAPE:
            got = f"{x.dtype} {x.shape}"
            raise out_of_range(f"cifar10: {path}", "bytes (records, 32, 32, 3)", got)
        if y.ndim != 1 or y.dtype.kind not in "iu":
            got = f"{y.dtype} {y.shape}"
            raise out_of_range(f"cifar10: {path}", "whole numbers (records,) for labels", got)
    return arrays
