"""How long does it take to score 200 canaries and 20,000 decoys of a small transformer?

The transformer of `examples/lora_transformer` (110,000 parameters and adapters) reads texts of 20
characters, each with its own loss, as `PlantedRecords` does for every model that it looks at. There
is no peer: the limit is 120 CPU seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Row, Scale, seconds
from leakmeter.auditors import PlantedRecords, PlantPlan, Secrets, TorchScores

APP_NAME = "lora_transformer"
APP = Path(__file__).parents[1] / "examples" / APP_NAME / "planted"
LIMIT = 120.0


def transformer() -> tuple[Any, Any, Any]:
    """Return the example's model, its encoder of texts and its adapters, and forget its app.

    Other folders have packages of the same name.
    """
    sys.path.insert(0, str(APP))
    try:
        made, task = import_module(f"{APP_NAME}.model"), import_module(f"{APP_NAME}.task")
        model = made.Transformer(len(task.CHARACTERS))
        made.add_adapters(model, rank=4, freeze_a=False)
        return model, task.encode, made.get_adapters(model)
    finally:
        sys.path.remove(str(APP))
        for name in [name for name in sys.modules if name.split(".")[0] == APP_NAME]:
            del sys.modules[name]


def measure(scale: Scale) -> Iterator[Row]:
    """Yield one row: all losses at one model."""
    canaries, decoys, repetitions = (20, 300, 1) if scale == "quick" else (200, 20_000, 3)
    torch.set_num_threads(1)
    model, encode, adapters = transformer()
    plan = PlantPlan(canaries, clients=20)
    secrets = Secrets("my code is {letters:9}")
    auditor = PlantedRecords(secrets, TorchScores(model, encode), plan, decoys=decoys)
    flat = np.concatenate([np.ravel(one.numpy()) for one in adapters.values()], dtype=np.float64)
    times = [seconds(lambda: auditor._losses(flat)) for _ in range(repetitions)]
    yield Row(f"{canaries} canaries and {decoys:,} decoys", times, target=LIMIT)
