"""A data set as plain arrays: loaded by name, from files that are searched for; needs no torch."""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.values import Indices
from leakmeter.fl_app.config.field import ConfigError, expanded, out_of_range, unknown_name
from leakmeter.fl_app.config.settings import DATASETS, TaskConfig
from leakmeter.fl_app.data.partition import Scheme

if TYPE_CHECKING:
    from leakmeter.fl_app.data.table import Population

FOLDER_VARIABLE = "LEAKMETER_DATA"

_log = logging.getLogger("flwr")

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Training and test records of a classification task.

    Attributes:
        name: The name it was loaded by.
        train_x: Training records, (n, *input_shape); none if a population generates them.
        train_y: Their classes, (n,), from 0 to num_classes - 1.
        test_x: Test records, (m, *input_shape).
        test_y: Their classes, (m,).
        num_classes: Number of classes.
        users: The person behind each training record, (n,), if the data set has it.
        users_lack: Why `users` is None and what to do about it, if anything.
        population: Generates the training records of each client; None if they are listed.
        num_planted: Training records at the end that an auditor has planted.
    """

    name: str
    train_x: Floats
    train_y: Labels
    test_x: Floats
    test_y: Labels
    num_classes: int
    users: NDArray[np.int64] | None = None
    users_lack: str = "it does not say who each record is from"
    population: Population | None = None
    num_planted: int = 0

    def __post_init__(self) -> None:
        listed = [("training", self.train_x, self.train_y)] if self.population is None else []
        for part, x, y in (*listed, ("test", self.test_x, self.test_y)):
            if not 0 < len(x) == len(y):
                raise ConfigError(
                    f"{self.name}: the {part} set must have as many labels as records, and at "
                    f"least one; got {len(x)} records and {len(y)} labels"
                )
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= self.num_classes:
                allowed = f"in 0..{self.num_classes - 1}"
                raise out_of_range(f"{self.name}: {part} labels", allowed, (low, high))
        if self.users is not None and self.users.shape != self.train_y.shape:
            allowed = f"one per training record, {self.train_y.shape}"
            raise out_of_range(f"{self.name}: users", allowed, self.users.shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self.train_x.shape[1:]

    @property
    def num_train(self) -> int:
        """Number of training records."""
        if self.population is not None:
            return self.population.clients * self.population.size
        return len(self.train_x)

    def rows(self, records: Indices) -> tuple[Floats, Labels]:
        """Return training records by their numbers, with their classes."""
        if self.population is not None:
            return self.population.rows(records)
        return self.train_x[records], self.train_y[records]

    def known_users(self) -> NDArray[np.int64]:
        """Return the person behind each training record; raise if the data set lacks them."""
        if self.users is None:
            raise ConfigError(
                f"--partition natural needs the person behind each record of {self.name}: "
                f"{self.users_lack}"
            )
        return self.users


@dataclass(frozen=True)
class Request:
    """What a loader is asked for.

    Attributes:
        folders: Where to look for files, in this order.
        task: The settings; each loader reads those it needs. With `download`, files may be
            downloaded into the first folder if no folder has them.
    """

    folders: tuple[Path, ...]
    task: TaskConfig


def locate(
    name: str,
    request: Request,
    layouts: Sequence[str],
    files: Sequence[str],
    how: str = "Allow the download (--download), or put the files there.",
    fetch: Callable[[Path], object] | None = None,
) -> list[Path]:
    """Return the path of each file, in the first folder and layout that has all of them.

    Args:
        name: The data set's name.
        request: Says where to look, and whether a download is allowed.
        layouts: Folders inside these.
        files: Their names; each may be there as it is or with ".gz".
        how: Tells the user where to get the files.
        fetch: Downloads the files into a folder, in one of the layouts; called if none has them.
    """
    for place in (folder / layout for folder in request.folders for layout in layouts):
        pairs = [(place / file, place / f"{file}.gz") for file in files]
        # os.path.isfile, unlike Path.is_file, returns False for a folder without permission.
        found = [next(filter(os.path.isfile, pair), None) for pair in pairs]
        if None not in found:
            return [path for path in found if path]
    if fetch and request.task.download and request.folders:
        folder = request.folders[0]
        try:
            fetch(folder)
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"{name}: download into {folder} failed: {error}") from error
        return locate(name, request, layouts, files, how)
    wanted = f"{' or '.join(f'{layout}/' for layout in layouts)} with {', '.join(files)}"
    tried = ", ".join(map(str, request.folders)) or "none, as no data folder was named"
    raise ConfigError(
        f"{name}: looked for {wanted} (plain or .gz); folders tried: {tried}. {how} Name the "
        f"folder with --data-dir or the environment variable {FOLDER_VARIABLE}."
    )


def check_size(name: str, sizes: tuple[int, int], published: tuple[int, int]) -> None:
    """Log if there are fewer records than published.

    Raises:
        ConfigError: There are more than published, so it is another data set.
    """
    words = f"{published[0]:,} training and {published[1]:,} test records"
    if any(size > most for size, most in zip(sizes, published, strict=True)):
        raise out_of_range(name, f"at most {words}", sizes)
    if sizes != published:
        _log.warning("%s: a subset: %s and %s of the %s", name, *map("{:,}".format, sizes), words)


def torchvision_datasets(name: str, module: str) -> Any:
    """Return one of torchvision's modules of data sets, which the data set `name` needs."""
    try:
        return getattr(import_module("torchvision.datasets"), module)
    except (ImportError, OSError, RuntimeError) as error:  # the last two: built for another torch
        raise ConfigError(
            f"{name} needs torchvision, which cannot be imported ({error}); install it with: "
            "pip install torchvision (in the version that belongs to your torch)"
        ) from error


def content(path: Path) -> bytes:
    """Return a file's bytes, unpacked where it is a .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def load(name: str, *, data_dir: str | Path | None = None, **settings: Any) -> Dataset:
    """Return a data set by name.

    Args:
        name: One of `fl_app.config.settings.DATASETS`.
        data_dir: Folder with the files of the data set; LEAKMETER_DATA is tried after it.
        settings: More of `TaskConfig`: `download`, `seed` and what the data set itself has.

    Raises:
        ConfigError: The name is unknown, a number is out of range, or files are missing or wrong.
    """
    # Not from the cache: files may have changed between two calls.
    return dataset_of.__wrapped__(
        TaskConfig(dataset=name, data_dir=str(data_dir or ""), **settings)
    )


@lru_cache(maxsize=4)
def dataset_of(task: TaskConfig) -> Dataset:
    """Return the data set of a run, loaded once per process."""
    if task.dataset not in DATASETS:
        raise unknown_name("--dataset", task.dataset, DATASETS)
    given = (task.data_dir, os.environ.get(FOLDER_VARIABLE))
    folders = dict.fromkeys(expanded("--data-dir", folder) for folder in given if folder)
    loader: Callable[[Request], Dataset] = resolve_name(DATASETS[task.dataset])
    return loader(Request(tuple(folders), task))


@lru_cache(maxsize=4)
def dealt(task: TaskConfig) -> tuple[Dataset, Sequence[Indices]]:
    """Return the data set and each client's records in it, loaded once per process.

    Raises:
        ConfigError: Files are missing or wrong, or there are too few records for the clients.
    """
    dataset = dataset_of(task.of_data)
    if dataset.population is not None:
        return dataset, dataset.population.parts
    scheme = Scheme(dataset.train_y, task.partition, task.dirichlet)
    users = dataset.known_users() if task.partition == "natural" else None
    return dataset, scheme.partition(task.clients, task.seed, users)
