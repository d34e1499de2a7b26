"""What can be found wrong before torch is imported, which takes seconds.

Each setting has its own upper limit. Settings within their limits can be too large together: these
are refused here, with an estimate of memory and work and the settings to lower.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

from leakmeter.fl_app.config.audits import AUDITORS, OneShotSettings
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, out_of_range
from leakmeter.fl_app.config.settings import MODELS

_SECONDS = 5.0  # to wait for a cluster
# The first bytes of an HTTP/2 connection with an empty frame of settings: Ray speaks gRPC, which
# answers with a frame of settings of its own, type 4.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


def check_early(config: Config) -> None:
    """Raise ConfigError for what cannot work: sizes, model, cluster, data files."""
    for name in config.loggers:  # each is the name of its package, too
        if find_spec(name) is None:
            fix = f'Install it: pip install "leakmeter[{name}]"'
            raise config.refused("log", "tools that are installed", fix)
    if config.engine == "ray":
        _check_cluster(config.ray_address)
    # After the cheap checks: these import numpy and read files.
    check_size(config)
    from leakmeter.fl_app.data.dataset import dealt

    dataset, _ = dealt(config.task)
    is_image = len(dataset.input_shape) in (2, 3)
    for name in config.auditor_names:
        if AUDITORS[name].needs_images and not is_image:
            allowed = f"an image data set for the auditor {name}"
            raise config.refused("dataset", allowed, "Try --dataset digits")


def _check_cluster(given: str) -> None:
    """Raise unless Ray answers where a cluster should be: Ray itself would wait for minutes."""
    address = given or os.environ.get("RAY_ADDRESS", "")
    name = "--ray-address" if given else "RAY_ADDRESS"
    if address in ("", "local"):
        return
    if address == "auto":
        noted = Path(os.environ.get("RAY_TMPDIR") or gettempdir()) / "ray" / "ray_current_cluster"
        address = noted.read_text().strip() if noted.is_file() else ""
        if not address:  # Ray looks for processes itself, and answers at once
            return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise out_of_range(name, "HOST:PORT or auto", address)
    if (wrong := _silence(host, int(port))) is not None:
        raise ConfigError(
            f"{name} must be where a Ray cluster listens, got {address}: {wrong}. Start one with "
            "`ray start --head`, or leave out --ray-address to use this machine"
        )


def _silence(host: str, port: int) -> str | None:
    """Return why nothing that could be Ray answers; None if something does."""
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            connection.sendall(_HELLO)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        return f"{error.strerror if isinstance(error, OSError) and error.strerror else error}"
    is_ray = len(answer) > 3 and answer[3] == _SETTINGS
    return None if is_ray else "something else answers there"


_BOX = 500  # bytes that two sealed shares take at the server and their receiver, with their names
_UNKNOWN = 64 * 2**30  # bytes, where the system does not say how many it has
_MAX_STEPS = 10**9  # draws of the plans that are made before the first round


class Need(NamedTuple):
    """Memory that one part of a run takes: how many bytes, what for, and what to lower."""

    bytes: int
    purpose: str
    settings: str


def check_size(config: Config) -> None:
    """Raise if a run needs more memory than the machine has, or far too long before round 1."""
    _check_work("clients per round x rounds", "--sample or --rounds", _asked(config))
    if config.partition.startswith("dirichlet") and not config.generates_clients:
        shares = config.clients * _shape(config)[1]
        _check_work("clients x classes", "--clients or --synthetic-classes", shares)
    if config.seats:
        canaries = OneShotSettings.planned(config)
        _check_work("canaries x rounds", "--canaries or --rounds", canaries * config.rounds)
    needs = list(estimate(config))
    total, room = sum(need.bytes for need in needs), memory()
    if total > room:
        worst = max(needs)
        raise ConfigError(
            f"the run needs about {_gigabytes(total)} of memory, {_gigabytes(worst.bytes)} of it "
            f"for {worst.purpose}, but this machine has {_gigabytes(room)}; lower {worst.settings}"
        )


def estimate(config: Config) -> Iterator[Need]:
    """Yield the memory of the largest parts of a run, to within about a factor of two."""
    shape, classes = _shape(config)
    features = math.prod(shape)
    dim = MODELS[config.model].parameters(config.model, shape, classes)
    if config.dataset == "synthetic":
        # While they are drawn: three arrays in double precision and one in single.
        records = config.synthetic_per_client or config.synthetic_examples
        size = 28 * features * records + 8 * features * classes
        option = "per-client" if config.synthetic_per_client else "examples"
        yield Need(size, "the records", f"--synthetic-{option} or --synthetic-features")
    # In this process a client takes room while it keeps a state, on Ray all the time.
    at_once = config.clients if config.engine == "ray" else min(_asked(config), config.clients)
    yield Need(4096 * at_once, "the clients", "--clients")
    # The reply, the update as the audit sees it, and the masked one.
    round_size = (16 + 40 * config.cohort) * dim
    yield Need(round_size, "the updates of a round", "--sample, or use a smaller --model")
    if config.secagg == "on":
        peers = config.secagg_neighbours or config.cohort - 1
        boxes = _BOX * config.cohort * peers
        yield Need(boxes, "the shares of a secure sum", "--sample or --secagg-neighbours")
    for name in config.auditor_names:
        size, settings = AUDITORS[name].memory(config, dim, features)
        yield Need(size, name, settings)


def _asked(config: Config) -> int:
    """Return how many clients all rounds ask, those in several of them as often."""
    return config.cohort * config.rounds


def _shape(config: Config) -> tuple[tuple[int, ...], int]:
    """Return the shape of a record and the number of classes, as the loader gives them."""
    if config.dataset == "synthetic":  # known from the settings, before they fill the memory
        return (config.synthetic_features,), config.synthetic_classes
    from leakmeter.fl_app.data.dataset import dataset_of  # imports numpy

    dataset = dataset_of(config.task.of_data)
    return dataset.input_shape, dataset.num_classes


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
    if steps > _MAX_STEPS:
        raise ConfigError(
            f"{what} must be at most {_MAX_STEPS:,}, got {steps:,}: planning the rounds would "
            f"take hours; lower {settings}"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GB" if size < 2**50 else f"{size / 2**50:,.0f} million GB"
