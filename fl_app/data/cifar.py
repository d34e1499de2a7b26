"""CIFAR-10, whole as torchvision keeps it or a part of it in one file of arrays.

Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images: 50,000 + 10,000 colour
pictures of 32×32 in ten classes. The part is a file `cifar10/cifar10*.npz` with x_train, y_train,
x_test and y_test, pictures as bytes (records, 32, 32, 3). With a download allowed it is not used.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.fl_app.config.errors import ConfigError, out_of_range
from leakmeter.fl_app.data.dataset import (
    Dataset,
    Floats,
    Request,
    check_size,
    locate,
    torchvision_datasets,
)

_LAYOUT = "cifar-10-batches-py"  # torchvision's
_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
_SIZES = (50_000, 10_000)
_KEYS = ("x_train", "y_train", "x_test", "y_test")
_SHAPE = (32, 32, 3)

Arrays = tuple[NDArray[Any], ...]


def load_cifar10(request: Request) -> Dataset:
    """Return CIFAR-10, pictures (3, 32, 32) scaled to [0, 1]; a part if there is no more."""
    part = None if request.task.download else _part(request)
    train_x, train_y, test_x, test_y = _read_part(part) if part else _whole(request)
    check_size("cifar10", (len(train_x), len(test_x)), _SIZES)
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
        if os.path.isfile(folder / _LAYOUT / _FILES[0]):
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

    paths = locate("cifar10", request, [_LAYOUT], _FILES, fetch=fetch)
    folder = paths[0].parents[1]
    try:
        train, test = (reader(folder, train=is_train) for is_train in (True, False))
    except RuntimeError as error:
        raise ConfigError(f"cifar10: {folder / _LAYOUT} is damaged: {error}") from error
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
        if x.dtype != np.uint8 or x.shape[1:] != _SHAPE:
            got = f"{x.dtype} {x.shape}"
            raise out_of_range(f"cifar10: {path}", "bytes (records, 32, 32, 3)", got)
        if y.ndim != 1 or y.dtype.kind not in "iu":
            got = f"{y.dtype} {y.shape}"
            raise out_of_range(f"cifar10: {path}", "whole numbers (records,) for labels", got)
    return arrays
