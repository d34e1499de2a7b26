"""Every node of a cluster shows that it can run clients; a stand-in answers for Ray."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.engines import cluster
from leakmeter.fl_app.run.launch import check_nodes


class RayError(Exception):
    """What Ray raises where a task cannot run."""


def node(name: str) -> dict[str, Any]:
    """Return a node as Ray describes it; all of them are on one machine."""
    where = {"NodeManagerHostname": "host", "NodeManagerAddress": "10.0.0.1"}
    return {"NodeID": name, "Alive": True, "Resources": {"CPU": 1}, **where}


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | RayError]:
    """Node id to what it answers: nothing, a reason, or an error of Ray's."""
    answers: dict[str, str | RayError] = {}

    def options(scheduling_strategy: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda _: scheduling_strategy)

    def get(name: str) -> str:
        if isinstance(answer := answers[name], RayError):
            raise answer
        return answer

    ray = SimpleNamespace(
        remote=lambda **_: lambda _: SimpleNamespace(options=options),
        get=get,
        nodes=lambda: [node(name) for name in answers],
        exceptions=SimpleNamespace(RayError=RayError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(cluster, "on_node", lambda name, **_: name)
    return answers


@pytest.mark.parametrize("bad", ["first", "second"])
def test_one_bad_node_is_found_where_two_share_an_address(
    bad: str, reasons: dict[str, Any], tiny_config: Config
) -> None:
    reasons.update({"first": "", "second": ""})
    check_nodes(tiny_config)
    reasons[bad] = "data-dir must contain the data set on every node"
    with pytest.raises(ConfigError, match=r"node host 10\.0\.0\.1: data-dir must contain"):
        check_nodes(tiny_config)


def test_a_node_that_starts_no_worker_is_named(
    reasons: dict[str, Any], tiny_config: Config
) -> None:
    reasons["only"] = RayError("no room")
    with pytest.raises(ConfigError, match=r"node host 10\.0\.0\.1: --ray-address .*got no room"):
        check_nodes(tiny_config)
