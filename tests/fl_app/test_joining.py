"""Joining Ray: what is asked of it, and where work is placed; a stand-in answers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl_app import cluster


def node(name: str, cpus: float, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus} if cpus else {}}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A Ray with no nodes that remembers how it was started."""
    made = SimpleNamespace(started=[], found=[])
    made.is_initialized = lambda: bool(made.started)
    made.init = lambda **options: made.started.append(options)
    made.nodes = lambda: made.found
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setattr(cluster, "on_node", lambda name, *, soft: (name, soft))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return made


def test_the_code_travels_to_a_cluster_and_not_to_this_machine(ray: Any) -> None:
    assert cluster.join("10.0.0.1:6379")
    [options] = ray.started
    folders = [Path(folder) for folder in options["runtime_env"]["py_modules"]]
    assert [folder.name for folder in folders] == ["auditors", "clients", "strategies", "fl_app"]
    assert all((folder / "__init__.py").exists() for folder in folders)
    assert options["address"] == "10.0.0.1:6379"
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
