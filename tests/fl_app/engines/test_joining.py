"""Joining Ray: what is asked of it, and where work is placed; a stand-in answers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leakmeter.fl_app.engines import cluster

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
    monkeypatch.setattr(cluster, "on_node", lambda name, *, soft: (name, soft))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return made


def test_the_code_travels_to_a_cluster_and_not_to_this_machine(ray: Any) -> None:
    assert cluster.join("10.0.0.1:6379")
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
    assert cluster.join("local", workers=2)
    [options] = ray.started
    assert "runtime_env" not in options
    assert options["num_cpus"] == 2


def test_a_ray_that_runs_already_is_kept(ray: Any) -> None:
    cluster.join("local")
    assert not cluster.join("10.0.0.1:6379")
    assert len(ray.started) == 1


def test_the_address_is_as_given_or_as_the_environment_says(
    ray: Any,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cluster.is_local(cluster.address_of(""))
    monkeypatch.setenv("RAY_ADDRESS", "one:1")
    assert cluster.address_of("") == "one:1"
    assert cluster.address_of("two:2") == "two:2"


def test_places_are_one_a_processor_with_the_nodes_in_turn(ray: Any) -> None:
    ray.found = [node("b", 1.0), node("a", 3.0), node("head", 0), node("dead", 9, alive=False)]
    assert [name for name, _ in cluster.places()] == ["a", "b", "a", "a"]
    assert all(soft for _, soft in cluster.places())  # elsewhere, once a node is gone


def test_on_one_machine_ray_may_place_as_it_likes(ray: Any) -> None:
    ray.found = [node("a", 3.0)]
    assert cluster.places() == ["DEFAULT"] * 3
    ray.found = [node("a", 0)]
    assert cluster.places() == ["DEFAULT"]
