"""How much memory does a whole process take that draws water-filling noise?

A draw needs numpy and scipy only: from the factors of a linear layer's gradients, as a client has
them after training. `--torch` has torch compute the gradients in the same process; its CUDA build
takes about 490 MB for the import alone, whoever imports it.

    python -m benchmarks.filling_memory 1200 [--torch]
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Row, Scale
from benchmarks.memory import peak
from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.gradients import Gradients, LayerFactors
from leakmeter.clients.protection.record_rule import WaterFilling

FAN_IN, CLASSES, BATCH, FLOOR = 784, 10, 32, 1e-3


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the process without torch, and the one with it."""
    count = 50 if scale == "quick" else 1_200
    for with_torch, note in ((False, "numpy and scipy"), (True, "with torch, most of it its own")):
        target = None if with_torch else 500.0
        found = [whole(count, with_torch=with_torch)]
        yield Row(f"{count:,} examples, {note}", found, unit="MB", target=target)


def whole(count: int, *, with_torch: bool) -> float:
    """Return the peak of a fresh process in MB, libraries and all."""
    command = [sys.executable, "-m", __name__, str(count), *(["--torch"] if with_torch else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def factors(count: int) -> Gradients:
    """Return made-up gradients of a linear layer."""
    rng = stream(0, "filling-memory")
    slopes = rng.standard_normal((count, CLASSES)) / 10
    return Gradients((LayerFactors(rng.random((count, FAN_IN)), slopes, True),), 0.0)


def computed(count: int) -> Gradients:
    """Return the same shape of gradients, computed by torch."""
    import torch

    from leakmeter.clients.protection.gradients import per_example_gradients

    torch.set_num_threads(1)
    x = torch.from_numpy(stream(0, "filling-memory").random((count, FAN_IN), np.float32))
    return per_example_gradients(
        torch.nn.Linear(FAN_IN, CLASSES), x, torch.arange(count) % CLASSES, 10.0
    )


if __name__ == "__main__":
    number = int(sys.argv[1])
    gradients = computed(number) if "--torch" in sys.argv[2:] else factors(number)
    WaterFilling(FLOOR).draw(gradients, BATCH, None)
    print(round(peak(), 1))
