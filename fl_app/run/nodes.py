"""Checks that every node of a Ray cluster can run the clients of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.engines import cluster


def check_nodes(config: Config) -> None:
    """Let every node import the client's app and load the data.

    Raises:
        ConfigError: One cannot; the text names the node, the reason and the setting.
    """
    import ray

    check = ray.remote(num_cpus=0, max_retries=0)(_checker())
    nodes = cluster.working_nodes()
    places = [cluster.on_node(node["NodeID"], soft=False) for node in nodes]
    asked = [check.options(scheduling_strategy=p).remote(config.to_mapping()) for p in places]
    for node, future in zip(nodes, asked, strict=True):
        try:
            reason = ray.get(future)
        except ray.exceptions.RayError as error:
            reason = f"--ray-address must be a cluster whose nodes start workers, got {error}"
        if reason:
            name = node["NodeManagerHostname"] + " " + node["NodeManagerAddress"]  # may be shared
            raise ConfigError(f"node {name}: {reason}")


def _checker() -> Callable[[Mapping[str, Any]], str]:
    """Return the function with which a node shows that it can run clients."""

    # A nested function travels by value, so it also arrives on nodes without this file.
    def check(settings: Mapping[str, Any]) -> str:
        try:
            from leakmeter.fl_app import client_app  # noqa: F401
            from leakmeter.fl_app.config.config import Config
            from leakmeter.fl_app.engines import ray_executor  # noqa: F401 - the auditors' workers
            from leakmeter.fl_app.task import load_task
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return f"--ray-address must be a cluster that can import the client app, got {reason}"
        try:
            load_task(Config.from_mapping(settings))
        except Exception as error:
            folder = settings["data-dir"]
            return f"--data-dir must contain the data set on every node, got {folder!r} ({error})"
        return ""

    return check
