"""A pool of workers of which some die; Ray is played by a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leakmeter.fl_app.engines import cluster as pools
from leakmeter.fl_app.engines.cluster import SteadyPool


class RayError(Exception):
    """As Ray's."""


class RayActorError(RayError):
    """As Ray's."""


class ObjectLostError(RayError):
    """As Ray's, where a reply was on a node that has died."""


class Worker:
    """Answers a job with its own name, unless it is dead or the job is to kill or to fail."""

    def __init__(self, cluster: Cluster, name: int) -> None:
        self.cluster, self.name, self.is_dead = cluster, name, False
        self.__ray_ready__ = SimpleNamespace(remote=lambda: (self, "ready"))
        self.terminate = SimpleNamespace(remote=lambda: None)


class Cluster(SimpleNamespace):
    """What of Ray the pool uses. A future is a worker and what it was asked for."""

    def __init__(self, room: int) -> None:
        known = (RayError, RayActorError, ObjectLostError)
        exceptions = SimpleNamespace(**{error.__name__: error for error in known})
        super().__init__(exceptions=exceptions, room=room, made=[], killed=[])
        self.death: type[RayError] = RayActorError

    def options(self, **resources: float) -> Cluster:
        assert resources == {"num_cpus": 1}
        return self

    def remote(self, **_: Any) -> Worker:
        self.made.append(Worker(self, len(self.made)))
        return self.made[-1]

    def get(self, future: tuple[Worker, str]) -> Any:
        worker, asked = future
        if asked == "kill":
            worker.is_dead = True
        if worker.is_dead:
            raise self.death(f"worker {worker.name} has died")
        if asked == "fail":
            raise ValueError("the app's own")
        return "cid", worker.name, "context"

    def wait(self, signs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        living = [w for w in self.made if not w.is_dead and w not in self.killed]
        # A worker for which there is no room gives no sign at all.
        come = [s for s in signs if s[0].is_dead or s[0] in living[: self.room]]
        return come, [s for s in signs if s not in come]

    def kill(self, worker: Worker) -> None:
        worker.is_dead = True
        self.killed.append(worker)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    ray = Cluster(room=3)
    transport = SimpleNamespace(pool_size_from_resources=lambda _: ray.room)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    name = "flwr.simulation.ray_transport.ray_actor"
    monkeypatch.setitem(sys.modules, name, transport)  # type: ignore[arg-type]
    monkeypatch.setattr(pools, "_PATIENCE", 0.0)
    return ray


@pytest.fixture
def pool(cluster: Cluster) -> SteadyPool:
    made = SteadyPool(cluster, {"num_cpus": 1}, {})
    made.add_actors_to_pool(made.actors_capacity)
    return made


def run(pool: SteadyPool, asked: str = "train") -> Any:
    """Do what Flower's backend does with a message."""
    future = pool.submit(lambda worker, what: (worker, what), (asked,))
    try:
        return pool.fetch_result_and_return_actor_to_pool(future)[0]
    except Exception:
        pool.add_actor_back_to_pool(future)
        raise


@pytest.mark.parametrize("death", [RayActorError, ObjectLostError])
def test_a_message_whose_worker_has_died_goes_to_another(
    pool: SteadyPool, cluster: Any, death: type[RayError]
) -> None:
    cluster.death = death
    cluster.made[2].is_dead = True  # the one that is asked first
    assert run(pool) != 2
    assert pool.num_actors == 2
    assert [worker.name for worker in cluster.killed] == [2]


def test_workers_that_died_together_are_all_forgotten_at_once(
    pool: SteadyPool, cluster: Any
) -> None:
    cluster.room = 1
    for worker in cluster.made[1:]:
        worker.is_dead = True
    assert [run(pool) for _ in range(5)] == [0] * 5
    assert pool.num_actors == 1
    assert len(cluster.killed) == 2  # and none of them was tried five times


def test_new_workers_take_the_place_of_the_dead_where_there_is_room(
    pool: SteadyPool, cluster: Any
) -> None:
    for worker in cluster.made:
        worker.is_dead = True
    assert run(pool) in (3, 4, 5)
    assert pool.num_actors == 3


def test_a_client_that_kills_its_workers_is_given_up(pool: SteadyPool, cluster: Any) -> None:
    with pytest.raises(RayActorError):
        run(pool, "kill")
    assert len(cluster.killed) == 3
    assert run(pool) >= 3  # the others continue with new workers


def test_a_failure_of_the_apps_own_costs_no_worker(pool: SteadyPool, cluster: Any) -> None:
    for _ in range(9):
        with pytest.raises(ValueError, match="the app's own"):
            run(pool, "fail")
    assert not cluster.killed
    assert pool.is_actor_available()
    assert len({run(pool) for _ in range(3)}) == 1  # given back once each, not twice


def test_a_cluster_without_workers_is_an_error_and_no_endless_wait(
    pool: SteadyPool, cluster: Any
) -> None:
    cluster.room = 0
    for worker in cluster.made:
        worker.is_dead = True
    with pytest.raises(RuntimeError, match="no node of the Ray cluster is left to run clients"):
        run(pool)


# Joining Ray: what is asked of it, and where work is placed; a stand-in answers.


ROOMS = ("auditors", "clients", "strategies", "fl_app")


def node(name: str, cpus: float, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus} if cpus else {}}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A Ray with no nodes that remembers how it was started."""
    made = SimpleNamespace(started=[], found=[], sent=[])
    made.is_initialized = lambda: bool(made.started)

    def init(**options: Any) -> None:
        made.started.append(options)
        for module in map(Path, options.get("runtime_env", {}).get("py_modules", ())):
            made.sent += [str(p.relative_to(module.parent)) for p in module.rglob("*")]

    made.init = init
    made.nodes = lambda: made.found
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setattr(pools, "on_node", lambda name, *, soft: (name, soft))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return made


def test_the_code_travels_to_a_cluster_and_not_to_this_machine(ray: Any) -> None:
    assert pools.join("10.0.0.1:6379")
    [options] = ray.started
    assert [Path(m).name for m in options["runtime_env"]["py_modules"]] == ["leakmeter"]
    sent = set(ray.sent)
    assert {"leakmeter/__init__.py", "leakmeter/py.typed", "leakmeter/auditors/rng.py"} <= sent
    assert {f"leakmeter/{room}/__init__.py" for room in ROOMS} <= sent
    # What `reproduce` samples with, which an installation lacks.
    assert "leakmeter/papers/elkordy2023/measure.py" in sent
    assert not [name for name in sent if "__pycache__" in name]
    assert options["address"] == "10.0.0.1:6379"
    variables = options["runtime_env"]["env_vars"]
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "0"  # who claims no GPU sees them all
    assert "num_cpus" not in options  # which an existing cluster refuses
    ray.started.clear()
    assert pools.join("local", workers=2)
    [options] = ray.started
    assert "runtime_env" not in options
    assert options["num_cpus"] == 2


def test_a_ray_that_runs_already_is_kept(ray: Any) -> None:
    pools.join("local")
    assert not pools.join("10.0.0.1:6379")
    assert len(ray.started) == 1


def test_the_address_is_as_given_or_as_the_environment_says(
    ray: Any,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pools.is_local(pools.address_of(""))
    monkeypatch.setenv("RAY_ADDRESS", "one:1")
    assert pools.address_of("") == "one:1"
    assert pools.address_of("two:2") == "two:2"


def test_places_are_one_a_processor_with_the_nodes_in_turn(ray: Any) -> None:
    ray.found = [node("b", 1.0), node("a", 3.0), node("head", 0), node("dead", 9, alive=False)]
    assert [name for name, _ in pools.places()] == ["a", "b", "a", "a"]
    assert all(soft for _, soft in pools.places())  # elsewhere, once a node is gone


def test_on_one_machine_ray_may_place_as_it_likes(ray: Any) -> None:
    ray.found = [node("a", 3.0)]
    assert pools.places() == ["DEFAULT"] * 3
    ray.found = [node("a", 0)]
    assert pools.places() == ["DEFAULT"]
