"""Loads data sets as plain arrays by name, and partitions their records; needs no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from leakmeter.auditors._types import Indices
from leakmeter.fl_app.config.errors import unknown_name
from leakmeter.fl_app.config.field import expanded
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.config.tables import DATASETS
from leakmeter.fl_app.data.dataset import FOLDER_VARIABLE, Dataset, Request
from leakmeter.fl_app.data.partition import partition


def load(name: str, *, data_dir: str | Path | None = None, **settings: Any) -> Dataset:
    """Return a data set by name.

    Args:
        name: One of `fl_app.config.tables.DATASETS`.
        data_dir: Folder with the files of the data set; LEAKMETER_DATA is tried after it.
        settings: More of `TaskConfig`: `download`, `seed` and what the data set itself has.

    Raises:
        ConfigError: The name is unknown, a number is out of range, or files are missing or wrong.
    """
    return _loaded(TaskConfig(dataset=name, data_dir=str(data_dir or ""), **settings))


def _loaded(task: TaskConfig) -> Dataset:
    if task.dataset not in DATASETS:
        raise unknown_name("--dataset", task.dataset, DATASETS)
    given = (task.data_dir, os.environ.get(FOLDER_VARIABLE))
    folders = dict.fromkeys(expanded("--data-dir", folder) for folder in given if folder)
    loader: Callable[[Request], Dataset] = resolve_name(DATASETS[task.dataset])
    return loader(Request(tuple(folders), task))


@lru_cache(maxsize=4)
def dataset_of(task: TaskConfig) -> Dataset:
    """Return the data set of a run, loaded once per process."""
    return _loaded(task)


@lru_cache(maxsize=4)
def dealt(task: TaskConfig) -> tuple[Dataset, tuple[Indices, ...]]:
    """Return the data set and each client's records in it, loaded once per process.

    Raises:
        ConfigError: Files are missing or wrong, or there are too few records for the clients.
    """
    dataset = dataset_of(task)
    parts = partition(
        dataset.train_y,
        clients=task.clients,
        scheme=task.partition,
        concentration=task.dirichlet,
        seed=task.seed,
        users=dataset.known_users() if task.partition == "natural" else None,
    )
    return dataset, parts
