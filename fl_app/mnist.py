"""MNIST, and the writer of each of its training digits.

LeCun, Cortes and Burges (1998). Writers: Yadav and Bottou (2019), "Cold Case: The Lost MNIST
Digits" (arXiv:1905.10498), who found the record of every digit in NIST's collection. Their file
lists MNIST's training digits in MNIST's order: 539 writers with 19 to 131 digits each.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.dataset import Dataset, Labels, Request, content, locate
from fl_app.errors import ConfigError, out_of_range

_WRITERS = "qmnist-train-labels-idx2-int"
_WRITER_LAYOUTS = ("qmnist-writers", "QMNIST/raw")  # the second one is torchvision's
_WRITERS_HOW = "Get it by hand from https://github.com/facebookresearch/qmnist."


def load_mnist(request: Request) -> Dataset:
    """Return MNIST's 60,000 + 10,000 digits of 28×28, read by torchvision."""
    paths = _files(request)
    train_x, train_y, test_x, test_y = (_read_idx(path) for path in paths)
    for path, x in ((paths[0], train_x), (paths[2], test_x)):
        if x.shape[1:] != (28, 28):
            raise out_of_range(f"mnist: {path}", "images of 28×28", x.shape)
    scaled = [x.astype(np.float32) / np.float32(255) for x in (train_x, test_x)]
    arrays = scaled[0], train_y, scaled[1], test_y
    try:
        found = locate("mnist", request, _WRITER_LAYOUTS, [_WRITERS], _WRITERS_HOW)
    except ConfigError as error:
        lack = str(error).removeprefix("mnist: ")
        return Dataset("mnist", *arrays, num_classes=10, users_lack=lack)
    return Dataset("mnist", *arrays, num_classes=10, users=_read_writers(found[0], train_y))


def _files(request: Request) -> list[Path]:
    """Return the four files, fetched first where that is needed and allowed."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    files = [f"{part}-{kind}" for part in ("train", "t10k") for kind in kinds]
    how = "Allow the download (--download), or put the files there."
    where = ("mnist", request, ["MNIST/raw", "mnist"], files, how)
    try:
        return locate(*where)
    except ConfigError:
        if not (request.download and request.folders):
            raise
        _download(request.folders[0])
        return locate(*where)


def _read_writers(path: Path, labels: Labels) -> NDArray[np.int64]:
    """Return the writer of each training digit, if the file speaks of these digits."""
    table = _read_idx(path)  # (digits, 8): class, NIST's partition, writer, ...
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


def _download(folder: Path) -> None:
    """Let torchvision fetch the files into its own layout under `folder`."""
    try:
        _torchvision_mnist().MNIST(folder, download=True)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"mnist: download into {folder} failed: {error}") from error


def _read_idx(path: Path) -> NDArray[Any]:
    """Return the images, labels or table in an IDX file, packed or not."""
    mnist = _torchvision_mnist()
    readers = {
        "idx3": mnist.read_image_file,
        "idx1": mnist.read_label_file,
        "idx2": mnist.read_sn3_pascalvincent_tensor,
    }
    read = next(read for kind, read in readers.items() if kind in path.name)
    with TemporaryDirectory() as folder:
        # torchvision reads plain files only, and the data folder may be read-only.
        plain = Path(folder) / "idx"
        plain.write_bytes(content(path))
        try:
            return np.asarray(read(str(plain)))
        except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"mnist: {path} is not a proper IDX file: {error}") from error
