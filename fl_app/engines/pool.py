"""Ray workers for Flower's simulation, in a pool that outlives a node.

Flower puts a worker that has died back among the idle ones, where it fails whatever it is given at
once and so draws most of a round's messages (flwr 1.26.1 and 1.41.0). Here a message whose worker
has died goes to another worker, the dead are not asked again, and new ones are started where there
is room. A client's state stays with the driver, so the second try gives what the first would have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Workers that one message may cost: a client that kills its worker must not kill all of them.
_TRIES = 3
# Seconds to wait for a new worker once all have died, and for an idle one to say that it lives.
_PATIENCE, _SIGN_OF_LIFE = 120.0, 5.0


@dataclass(frozen=True)
class _Job:
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
        self._jobs: dict[Any, _Job] = {}  # by future
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
            self._jobs[future] = _Job(worker, actor_fn, job)
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

        for attempt in range(1, _TRIES + 1):
            try:
                _, message, context = ray.get(future)
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
                lost = self._lost(future)
                if attempt == _TRIES:
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

    def _lost(self, future: Any) -> _Job:
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
