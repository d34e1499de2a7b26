"""Canary records at the end of a data set, in the data of the clients that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leakmeter.auditors import PlantPlan, RandomLabel, RandomPattern
from leakmeter.auditors.planting.generators import Generator, batch
from leakmeter.auditors.values import Indices
from leakmeter.fl_app.data.dataset import Dataset


def generator_of(dataset: Dataset, name: str) -> Generator:
    """Return what draws canaries for a data set.

    Args:
        dataset: Its test records, which no client has, are the inputs of random-label.
        name: random-label or random-pattern.
    """
    if name == "random-label":
        return RandomLabel(dataset.test_x, dataset.num_classes)
    low, high = float(dataset.test_x.min()), float(dataset.test_x.max())
    return RandomPattern(dataset.input_shape, dataset.num_classes, low=low, high=high)


def with_planted(
    dataset: Dataset, parts: Sequence[Indices], plan: PlantPlan, generator: str
) -> tuple[Dataset, list[Indices]]:
    """Return a data set and each client's records in it, with the records of a plan.

    They are a function of the plan alone, so all processes of a run have the same.
    """
    numbers = [plan.planted(client) * plan.copies for client in range(len(parts))]
    records = generator_of(dataset, generator).draw(plan.seed, [n for own in numbers for n in own])
    if not records:
        return dataset, list(parts)
    x, y = (np.asarray(part) for part in batch(records))
    ends = len(dataset.train_y) + np.cumsum([0, *map(len, numbers)])
    grown = replace(
        dataset,
        train_x=np.concatenate([dataset.train_x, x.astype(dataset.train_x.dtype)]),
        train_y=np.concatenate([dataset.train_y, y.astype(dataset.train_y.dtype)]),
        users=None,
        users_lack="nobody is behind planted records",
        num_planted=len(records),
    )
    own = (np.append(p, np.arange(*ends[i : i + 2])) for i, p in enumerate(parts))
    return grown, [np.asarray(part) for part in own]
