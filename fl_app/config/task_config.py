"""The settings that decide about data, partition and model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskConfig:
    """What is learnt, and by how many. Two runs that agree here share one loaded task.

    The fields are those of `Settings`, which describes them. Loading the task checks them.
    """

    dataset: str = "digits"
    data_dir: str = ""
    download: bool = False
    synthetic_examples: int = 6000
    synthetic_features: int = 20
    synthetic_classes: int = 10
    model: str = "mlp"
    partition: str = "iid"
    dirichlet: float = 1.0
    clients: int = 60
    seed: int = 0
