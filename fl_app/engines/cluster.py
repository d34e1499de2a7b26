"""Ray: joining a cluster, to which the code travels along, its nodes, and workers.

`RayExecutor` has workers for samplers. `SteadyPool` has those for Flower's simulation, in a pool
that outlives a node. Flower puts a worker that has died back among the idle ones, where it fails
whatever it is given at once and so draws most of a round's messages (flwr 1.26.1 and 1.41.0). Here
a message whose worker has died goes to another worker, the dead are not asked again, and new ones
are started where there is room. A client's state stays with the driver, so the second try gives
what the first would have.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from leakmeter._rooms import ROOMS
from leakmeter.clients.sampler import Array, CohortSampler, Job, Piece, Records
from leakmeter.fl_app.config.field import RayError

_PAPERS = "papers"  # a checkout has them, and workers that sample for `reproduce` import them
# These are copied one by one: a checkout has links to them in the package, a wheel has the rooms.
_NOT_SHIPPED = shutil.ignore_patterns("__pycache__", *ROOMS, _PAPERS)
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
_PIECE_TRIES = 4


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
    for name in (*ROOMS, _PAPERS) if has_papers else ROOMS:
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
class _GivenPiece:
    """A piece that a worker was given, with all that it takes to give it to another."""

    desk: int
    worker: Any
    given: tuple[object, ...]
    future: Any


def _lost_with_a_worker() -> tuple[type[Exception], ...]:
    """Return Ray's errors for what was lost when a worker died."""
    import ray

    return ray.exceptions.RayActorError, ray.exceptions.ObjectLostError


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
        under_way: deque[_GivenPiece] = deque()
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

    def _sent(self, desk: int, *given: object) -> _GivenPiece:
        worker = self._workers[desk]
        return _GivenPiece(desk, worker, given, worker.rows.remote(*given))

    def _got(self, sent: _GivenPiece) -> Array:
        """Return the rows of a piece, from another worker if its own has died.

        With a node also go results that were ready there and not fetched yet. Ray's own retries
        are too hasty: they are used up before it knows that a node is dead.
        """
        import ray

        for attempt in range(_PIECE_TRIES):
            try:
                # A copy, since Ray's own view cannot be written and keeps the shared memory.
                return np.array(ray.get(sent.future))
            except Exception as error:
                if not ray.is_initialized():
                    # An interrupted run, and no failure of an auditor, which would be recorded.
                    raise SystemExit("interrupted") from None
                if attempt + 1 == _PIECE_TRIES or not isinstance(error, _lost_with_a_worker()):
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


# Workers that one message may cost: a client that kills its worker must not kill all of them.
_MESSAGE_TRIES = 3
# Seconds to wait for a new worker once all have died, and for an idle one to say that it lives.
_PATIENCE, _SIGN_OF_LIFE = 120.0, 5.0


@dataclass(frozen=True)
class _GivenMessage:
    """What a worker was asked to do."""

    worker: Any
    ask: Callable[..., Any]
    given: tuple[Any, ...]


class SteadyPool:
    """Hands messages to live workers; names and arguments are those of Flower's `BasicActorPool`.

    Args:
        actor_type: Flower's actor.
        client_resources: What Ray is to set aside for each.
        actor_kwargs: What it is made with.
    """

    def __init__(
        self,
        actor_type: Any,
        client_resources: Mapping[str, int | float],
        actor_kwargs: Mapping[str, Any] | None,
    ) -> None:
        from flwr.simulation.ray_transport.ray_actor import pool_size_from_resources

        self.num_actors = 0
        self.actors_capacity: int = pool_size_from_resources(dict(client_resources))
        options = actor_type.options(**client_resources)
        self._make: Callable[[], Any] = lambda: options.remote(**(actor_kwargs or {}))
        self._idle: list[Any] = []
        self._jobs: dict[Any, _GivenMessage] = {}  # by future
        self._coming: dict[Any, Any] = {}  # sign of life to the worker that will give it
        self._changed = threading.Condition()

    def is_actor_available(self) -> bool:
        """Whether a worker is idle."""
        return bool(self._idle)

    def add_actors_to_pool(self, num_actors: int) -> None:
        """Start this many workers."""
        with self._changed:
            self._idle += [self._make() for _ in range(num_actors)]
            self.num_actors += num_actors

    def terminate_all_actors(self) -> None:
        """End the workers."""
        for worker in self._idle:
            worker.terminate.remote()

    def submit(self, actor_fn: Callable[..., Any], job: tuple[Any, ...]) -> Any:
        """Give the job to an idle worker, once there is one, and return the future."""
        worker = self._taken()
        future = actor_fn(worker, *job)
        with self._changed:
            self._jobs[future] = _GivenMessage(worker, actor_fn, job)
        return future

    def add_actor_back_to_pool(self, future: Any) -> None:
        """Let the worker of a job that is done take others; a second call changes nothing."""
        with self._changed:
            job = self._jobs.pop(future, None)
            if job is not None:
                self._idle.append(job.worker)
                self._changed.notify()

    def fetch_result_and_return_actor_to_pool(self, future: Any) -> tuple[Any, Any]:
        """Return message and context that came of a job, from another worker if one has died."""
        import ray

        for attempt in range(1, _MESSAGE_TRIES + 1):
            try:
                _, message, context = ray.get(future)
            except _lost_with_a_worker():
                lost = self._lost(future)
                if attempt == _MESSAGE_TRIES:
                    raise
                future = self.submit(lost.ask, lost.given)
            except Exception:
                self.add_actor_back_to_pool(future)
                raise
            else:
                self.add_actor_back_to_pool(future)
                return message, context
        raise AssertionError("the last try returns or raises")

    def _taken(self) -> Any:
        """Return an idle worker; raise if all have died and nothing replaces them."""
        with self._changed:
            deadline = time.monotonic() + _PATIENCE
            while not self._idle:
                self._welcome()
                if self._idle:
                    break
                if not self.num_actors and time.monotonic() > deadline:
                    raise RuntimeError("no node of the Ray cluster is left to run clients")
                self._changed.wait(0.5)
            return self._idle.pop()

    def _lost(self, future: Any) -> _GivenMessage:
        """Forget the worker of this job and the idle ones that died with it; return the job."""
        with self._changed:
            job = self._jobs.pop(future)
            self._replace(job.worker)
            signs = {worker.__ray_ready__.remote(): worker for worker in self._idle}
            for sign, lives in _signs_of_life(signs, _SIGN_OF_LIFE):
                if not lives:
                    self._idle.remove(signs[sign])
                    self._replace(signs[sign])
            return job

    def _replace(self, worker: Any) -> None:
        """Start a worker in place of a lost one; it counts when it gives a sign of life."""
        import ray

        ray.kill(worker)
        self.num_actors -= 1
        new = self._make()
        self._coming[new.__ray_ready__.remote()] = new

    def _welcome(self) -> None:
        """Take in the new workers that have come up."""
        for sign, lives in _signs_of_life(self._coming, 0.0):
            worker = self._coming.pop(sign)
            if lives:
                self._idle.append(worker)
                self.num_actors += 1


def _signs_of_life(signs: Iterable[Any], seconds: float) -> list[tuple[Any, bool]]:
    """Return the signs that have come, each with whether it tells of a live worker."""
    import ray

    waited, found = list(signs), []
    for sign in ray.wait(waited, num_returns=len(waited), timeout=seconds)[0] if waited else ():
        try:
            ray.get(sign)
            found.append((sign, True))
        except ray.exceptions.RayError:
            found.append((sign, False))
    return found


def use_steady_pool() -> None:
    """Let Flower's simulation in this process use this pool from now on."""
    from flwr.server.superlink.fleet.vce.backend import raybackend

    raybackend.BasicActorPool = SteadyPool  # type: ignore[assignment, attr-defined]
