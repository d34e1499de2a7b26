"""Which estimators of information find the Gaussian truth, and at what price?

K = 1,000 pairs of an update and the sum over N users, all Gaussian in d dimensions. "trained" is
what the paper reports, "held out" the NWJ value on other samples, "shuffled" what "trained" says
of pairs without information; ln K is 6.9. Neural figures are means over 3 seeds. A neural estimate
takes up to half a minute, so it is timed once a task; InfoNCE and SMILE at one task only.

Beyond ten dimensions the neural estimates find a part of the information, and held out less than
they say; log-det and the joint Gaussian find all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.measure import Row, Scale, compare, timer
from leakmeter.auditors.information.theory import (
    gaussian_information,
    joint_information,
    logdet_information,
)
from leakmeter.auditors.rng import stream
from leakmeter.papers.elkordy2023.mine_estimator.estimator import NeuralEstimate, Rows, estimate
from leakmeter.papers.elkordy2023.mine_estimator.training import Training

# Dimension and users, and which critics are trained there.
TASKS: dict[tuple[int, int], tuple[str, ...]] = {
    (1, 2): ("mine",),
    (10, 2): ("mine", "infonce", "smile"),
    (50, 2): ("mine",),
    (200, 2): ("mine",),
}
QUICK: dict[tuple[int, int], tuple[str, ...]] = {(5, 2): ("mine",)}


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a task and estimator; ours is log-det."""
    quick = scale == "quick"
    pairs, steps = (200, 20) if quick else (1000, 1000)
    for (dim, users), objectives in (QUICK if quick else TASKS).items():
        rng = stream(0, "task", dim, users)
        x = rng.standard_normal((pairs, dim))
        y = math.sqrt(users - 1) * rng.standard_normal((pairs, dim))
        case = f"d = {dim}, N = {users}, truth {gaussian_information(dim, users).nats:.2f} nats"
        yield gaussian(case, x, y)
        for objective in objectives:
            yield neural(case, x, y, Training(objective=objective, steps=steps))  # type: ignore[arg-type]


def gaussian(case: str, x: Rows, y: Rows) -> Row:
    """Return the row of log-det beside the joint Gaussian."""
    found = logdet_information(x + y, y), joint_information(x, x + y)
    nats = [f"{value.nats:.2f} ± {value.std_error:.2f}" for value in found]
    return compare(
        case,
        timer(lambda: logdet_information(x + y, y)),
        timer(lambda: joint_information(x, x + y)),
        peer="joint Gaussian",
        note="nats: ours {}, joint Gaussian {}".format(*nats),
    )


def neural(case: str, x: Rows, y: Rows, training: Training) -> Row:
    """Return the row of log-det beside critics, which are trained once."""
    found: list[NeuralEstimate] = []

    def trained() -> None:
        found.append(estimate(x, x + y, seed=0, training=training, seeds=3, nulls=2))

    ours = timer(lambda: logdet_information(x + y, y), calls=5)
    row = compare(case, ours, timer(trained), peer=training.objective, repetitions=1, warm_up=False)
    told = found[0]
    note = (
        f"nats: trained {told.trained.mean:.2f}, held out {told.nwj.mean:.2f} ± "
        f"{told.nwj.std_error:.2f}, shuffled {told.null_trained.mean:.2f}"
    )
    return replace(row, note=note)
