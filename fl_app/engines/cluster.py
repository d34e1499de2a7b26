"""Ray: joining a cluster, to which the code travels along, its nodes, and workers of a sampler."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from leakmeter.clients.sampler import Array, CohortSampler, Job, Piece, Records
from leakmeter.fl_app.config.errors import RayError

_ROOMS = ("auditors", "clients", "strategies", "fl_app")
_PAPERS = "papers"  # a checkout has them, and workers that sample for `reproduce` import them
# These are copied one by one: a checkout has links to them in the package, a wheel has the rooms.
_NOT_SHIPPED = shutil.ignore_patterns("__pycache__", *_ROOMS, _PAPERS)
_LOCAL = "local"
# Who claims no GPU sees all: the auditors' workers claim none, as Flower's may have claimed all.
# Without it Ray also warns that it will be the default.
_GPUS_SEEN = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    **_GPUS_SEEN,
    "RAY_raylet_start_wait_time_s": "120",  # 30 are too few where others are busy too
}
# On one thread sums have the same last bits on every node.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Workers that a piece of work may lose before the audit is given up.
_TRIES = 4


def address_of(given: str) -> str:
    """Return where Ray is to be found: as given, as RAY_ADDRESS says, or on this machine alone."""
    # Without an address Ray would look for a cluster that was left behind, and hang if it is dead.
    return given or os.environ.get("RAY_ADDRESS", _LOCAL)


def is_local(address: str) -> bool:
    """Whether Ray is to be started on this machine, for this run alone."""
    return address == _LOCAL


def prepare() -> None:
    """Set what Ray reads when it is imported; a user's own settings stay."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def join(address: str, *, workers: int | None = None) -> bool:
    """Start or join Ray, unless this process has; return whether it was done.

    A cluster gets this code for the time of the run, so its nodes need the libraries only.

    Args:
        address: Of the cluster, or "local".
        workers: Processors that a local Ray may use; None takes all.
    """
    prepare()
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        import ray

        if ray.is_initialized():
            return False
        if is_local(address):
            ray.init(address=address, include_dashboard=False, num_cpus=workers, **options)
            return True
        with TemporaryDirectory() as folder:  # Ray has uploaded it when `init` returns
            modules = [str(_collect(Path(folder)))]
            variables = {**_ONE_THREAD, **_GPUS_SEEN}
            options["runtime_env"] = {"py_modules": modules, "env_vars": variables}
            ray.init(address=address, **options)
        return True
    except KeyboardInterrupt:
        raise
    except (Exception, SystemExit) as error:  # Ray ends the process where it cannot connect
        lines = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
        words = f"Ray does not start ({why}). To run in this process: --engine inline"
        if not is_local(address):
            words = (
                f"Ray cannot join the cluster at {address} ({why}). To run without it, leave out "
                "--ray-address, or use --engine inline"
            )
        raise RayError(words) from None


def leave() -> None:
    """Leave the cluster, or end Ray on this machine."""
    import ray

    ray.shutdown()


def _collect(folder: Path) -> Path:
    """Copy the whole package into `folder`, as a wheel has it, and return it there."""
    package = folder / "leakmeter"
    shutil.copytree(_home("leakmeter"), package, ignore=_NOT_SHIPPED)
    has_papers = importlib.util.find_spec(f"leakmeter.{_PAPERS}") is not None
    for name in (*_ROOMS, _PAPERS) if has_papers else _ROOMS:
        shutil.copytree(_home(f"leakmeter.{name}"), package / name, ignore=_NOT_SHIPPED)
    return package


def _home(package: str) -> Path:
    """Return where a package's files are."""
    found = importlib.import_module(package).__file__
    assert found is not None
    return Path(found).parent


def working_nodes() -> list[Mapping[str, Any]]:
    """Return Ray's description of every live node that has a processor to give."""
    import ray

    nodes: list[Mapping[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def gpu_share() -> float:
    """Return the share of a GPU for each of as many clients as there are processors; at most 1."""
    import ray

    have: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    # Rounded down to what Ray counts in, so that the shares of all clients fit.
    share = math.floor(1e4 * have.get("GPU", 0.0) / max(have.get("CPU", 1.0), 1.0)) / 1e4
    return min(share, 1.0)


def on_node(node: str, *, soft: bool) -> Any:
    """Return how Ray is told to run a task on one node; if soft, elsewhere once that is gone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=soft)


def places() -> list[Any]:
    """Return one place a processor of the cluster, those of different nodes in turn.

    What claims no processor would all start on the node of the driver.
    """
    nodes = working_nodes()
    slots = [(i, n["NodeID"]) for n in nodes for i in range(int(n["Resources"]["CPU"]))]
    if len(nodes) < 2:
        return ["DEFAULT"] * max(len(slots), 1)
    return [on_node(node, soft=True) for _, node in sorted(slots)]


@dataclass(frozen=True)
class _Sent:
    """A piece that a worker was given, with all that it takes to give it to another."""

    desk: int
    worker: Any
    given: tuple[object, ...]
    future: Any


class RayExecutor:
    """Ray's workers with the data, for samplers of these data; see `CohortSampler.through`.

    The data travel once. Workers send back rows, their projections or their sums.

    There is one worker a processor of the cluster that this process has joined, or else of a local
    Ray, which is started.

    Args:
        data: The records.

    Example:
        moments = sampler.through(RayExecutor(sampler.data)).moments(model, clients, 25_000, ("a",))
    """

    def __init__(self, data: Records) -> None:
        join("local")
        import ray

        self._data = ray.put(data)
        # Flower's own launches start a Ray that hides GPUs from whoever claims none.
        is_here = data.device.type == "cpu"
        self._options = {} if is_here else {"runtime_env": {"env_vars": _GPUS_SEEN}}
        self._workers = [self._hired(place) for place in places()]

    def __call__(
        self, sampler: CohortSampler, job: Job, pieces: Sequence[Piece]
    ) -> Iterator[Array]:
        """Yield the rows of each piece in order, with a bounded number under way."""
        import ray

        shared = ray.put((sampler.on(None), job))
        under_way: deque[_Sent] = deque()
        try:
            for i, piece in enumerate(pieces):
                under_way.append(self._sent(i % len(self._workers), shared, piece))
                if len(under_way) >= len(self._workers):
                    yield self._got(under_way.popleft())
            while under_way:
                yield self._got(under_way.popleft())
        finally:
            for left in under_way:
                ray.cancel(left.future)

    def _hired(self, place: Any) -> Any:
        """Return a new worker."""
        import ray

        # No processor is claimed: Flower's workers may hold them all while they wait for a round.
        worker = ray.remote(num_cpus=0)(_Worker)
        return worker.options(scheduling_strategy=place, **self._options).remote(self._data)

    def _sent(self, desk: int, *given: object) -> _Sent:
        worker = self._workers[desk]
        return _Sent(desk, worker, given, worker.rows.remote(*given))

    def _got(self, sent: _Sent) -> Array:
        """Return the rows of a piece, from another worker if its own has died.

        With a node also go results that were ready there and not fetched yet. Ray's own retries
        are too hasty: they are used up before it knows that a node is dead.
        """
        import ray

        for attempt in range(_TRIES):
            try:
                # A copy, since Ray's own view cannot be written and keeps the shared memory.
                return np.array(ray.get(sent.future))
            except Exception as error:
                if not ray.is_initialized():
                    # An interrupted run, and no failure of an auditor, which would be recorded.
                    raise SystemExit("interrupted") from None
                lost = ray.exceptions.RayActorError, ray.exceptions.ObjectLostError
                if attempt + 1 == _TRIES or not isinstance(error, lost):
                    raise
                if self._workers[sent.desk] is sent.worker:  # and nobody has replaced it yet
                    # Near the driver, which lives.
                    self._workers[sent.desk] = self._hired("DEFAULT")
                sent = self._sent(sent.desk, *sent.given)
        raise AssertionError("the last try returns or raises")


class _Worker:
    """Lives in Ray for as long as the executor: a new process would import torch every time."""

    def __init__(self, data: Records) -> None:
        # One thread: the last bits of a sum depend on it.
        torch.set_num_threads(1)
        threadpool_limits(limits=1)
        self._data = data

    def rows(self, shared: tuple[CohortSampler, Job], piece: Piece) -> Array:
        """Work on one piece."""
        sampler, job = shared
        sampler = sampler.on(self._data)
        self._data = sampler.data  # on the sampler's device, to which they move once
        return sampler.rows(job, piece)
