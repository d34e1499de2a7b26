"""The records of a run and who holds which; needs no torch."""

from __future__ import annotations

from functools import lru_cache

from leakmeter.auditors._types import Indices
from leakmeter.fl_app.config.task_config import TaskConfig
from leakmeter.fl_app.data import load as data
from leakmeter.fl_app.data.dataset import Dataset
from leakmeter.fl_app.data.partition import partition


@lru_cache(maxsize=4)
def dealt(config: TaskConfig) -> tuple[Dataset, tuple[Indices, ...]]:
    """Return the data set and each client's records in it, loaded once per process.

    Raises:
        ConfigError: Files are missing or wrong, or there are too few records for the clients.
    """
    dataset = data.load(
        config.dataset,
        data_dir=config.data_dir or None,
        download=config.download,
        seed=config.seed,
        synthetic_examples=config.synthetic_examples,
        synthetic_features=config.synthetic_features,
        synthetic_classes=config.synthetic_classes,
    )
    parts = partition(
        dataset.train_y,
        clients=config.clients,
        scheme=config.partition,
        concentration=config.dirichlet,
        seed=config.seed,
        users=dataset.known_users() if config.partition == "natural" else None,
    )
    return dataset, parts
