"""Estimates the memory and work of a run before anything is allocated.

Each setting has its own upper limit. Settings within their limits can be too large together: these
are refused here, with the estimate and the settings to lower.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.audits.canaries import OneShotSettings
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError

# Features of a record and classes; those of synthetic are settings.
_SHAPES = {
    "digits": (64, 10),
    "adult": (104, 2),
    "mnist": (784, 10),
    "fashion-mnist": (784, 10),
    "emnist-digits": (784, 10),
    "cifar10": (3072, 10),
}
_CNN = 82_554  # parameters for 32×32 images, the largest of our data sets
_BOX = 500  # bytes that two sealed shares take at the server and their receiver, with their names
_UNKNOWN = 64 * 2**30  # bytes, where the system does not say how many it has
_MOST_STEPS = 10**9  # draws of the plans that are made before the first round


@dataclass(frozen=True)
class Need:
    """Memory that one part of a run takes.

    Attributes:
        bytes: How many.
        purpose: What for.
        settings: What to lower.
    """

    bytes: int
    purpose: str
    settings: str


def check_size(config: Config) -> None:
    """Raise if a run needs more memory than the machine has, or far too long before round 1."""
    _check_work("clients x rounds", "--clients or --rounds", config.clients * config.rounds)
    if config.partition.startswith("dirichlet"):
        shares = config.clients * _shape(config)[1]
        _check_work("clients x classes", "--clients or --synthetic-classes", shares)
    if "one-shot" in config.auditor_names:
        canaries = OneShotSettings.planned(config)
        _check_work("canaries x rounds", "--canaries or --rounds", canaries * config.rounds)
    needs = list(estimate(config))
    total, room = sum(need.bytes for need in needs), memory()
    if total > room:
        worst = max(needs, key=lambda need: need.bytes)
        raise ConfigError(
            f"the run needs about {_gigabytes(total)} of memory, {_gigabytes(worst.bytes)} of it "
            f"for {worst.purpose}, but this machine has {_gigabytes(room)}; lower {worst.settings}"
        )


def estimate(config: Config) -> Iterator[Need]:
    """Yield the memory of the largest parts of a run, to within about a factor of two."""
    features, classes = _shape(config)
    dim = parameters(config.model, features, classes)
    if config.dataset == "synthetic":
        # While they are drawn: three arrays in double precision and one in single.
        size = 28 * features * config.synthetic_examples + 8 * features * classes
        yield Need(size, "the records", "--synthetic-examples or --synthetic-features")
    yield Need(4096 * config.clients, "the clients", "--clients")
    # The reply, the update as the audit sees it, and the masked one.
    round_size = (16 + 40 * config.cohort) * dim
    yield Need(round_size, "the updates of a round", "--sample, or use a smaller --model")
    if config.secagg == "on":
        peers = config.secagg_neighbours or config.cohort - 1
        boxes = _BOX * config.cohort * peers
        yield Need(boxes, "the shares of a secure sum", "--sample or --secagg-neighbours")
    yield from _of_auditors(config, features, dim)


def _shape(config: Config) -> tuple[int, int]:
    """Return features of a record and classes."""
    synthetic = (config.synthetic_features, config.synthetic_classes)
    return _SHAPES.get(config.dataset, synthetic)


def _of_auditors(config: Config, features: int, dim: int) -> Iterator[Need]:
    """Yield the memory of each auditor, in addition to the updates of a round."""
    for name in config.auditor_names:
        size, settings = AUDITORS[name].memory(config, dim, features)
        yield Need(size, name, settings)


def parameters(model: str, features: int, classes: int) -> int:
    """Return the size of a model.

    >>> parameters("linear", 20, 10), parameters("mlp", 64, 10)
    (210, 17610)
    """
    if model == "cnn":
        return _CNN
    if model == "mlp":
        return (features + 1) * 100 + 101 * 100 + 101 * classes
    return (features + 1) * classes


def memory() -> int:
    """Return the memory of this machine, or the limit of this container, in bytes."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return _UNKNOWN
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        return min(found, int(limit.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return found


def _check_work(what: str, settings: str, steps: int) -> None:
    if steps > _MOST_STEPS:
        raise ConfigError(
            f"{what} must be at most {_MOST_STEPS:,}, got {steps:,}: planning the rounds would "
            f"take hours; lower {settings}"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GB" if size < 2**50 else f"{size / 2**50:,.0f} million GB"
