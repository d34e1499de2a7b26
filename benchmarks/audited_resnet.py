"""Does an audit with canaries add less than 15 % of CPU time to ten rounds of a ResNet-18?

Torchvision's, untrained, of 11 million parameters. Ten clients a round train one epoch on 100
images of 32 × 32, batch 32; two of them play canaries. The peer is the same run without the audit.
Both are processes of their own and take turns; the time is that of server and clients together,
the report included. A ratio of 0.87 is 15 % more. Needs `torchvision`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from benchmarks.audited_run import spent
from benchmarks.measure import Row, Scale, interleave

UNAUDITED, LIMIT = "unaudited", 0.15
# Images, rounds, clients, seats, repetitions.
SIZES = {"quick": (2, 3, 3, 1, 1), "full": (100, 3, 5, 1, 1), "long": (100, 10, 10, 2, 3)}


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the row of one size."""
    images, rounds, clients, seats, repetitions = SIZES[scale]
    name = f"{rounds} rounds, {clients} clients, {seats} canary seats, {images} images each"
    if find_spec("torchvision") is None:
        yield Row(name, [], note="not measured: torchvision is not installed")
        return

    def seconds(seats: int) -> float:
        return spent("resnet", images, rounds=rounds, clients=clients, seats=seats).cpu

    times = interleave(
        {"audited": lambda: seconds(seats), UNAUDITED: lambda: seconds(0)},
        repetitions,
        warm_up=False,
    )
    yield Row(
        name,
        times["audited"],
        times[UNAUDITED],
        peer=UNAUDITED,
        target=1 / (1 + LIMIT) if scale == "long" else None,
    )
