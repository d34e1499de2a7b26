"""Starts a run in its engine: in this process, or in Flower's Ray simulation.

Before a run on a Ray cluster, every node shows that it can run the clients.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from leakmeter.auditors import Auditor
from leakmeter.clients import MaskMod
from leakmeter.fl_app.client_app import client_app_of
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.engines import cluster
from leakmeter.fl_app.engines.inline import cheapest_sums, run_inline
from leakmeter.fl_app.report.read import Run
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.run.run import run_on
from leakmeter.fl_app.task import device_of
from leakmeter.strategies import Masked
from leakmeter.strategies.flower import InterruptibleGrid


def launch(
    folder: RunFolder,
    progress: Progress,
    auditors: Sequence[Auditor] | None = None,
    *,
    without_masks: bool = False,
) -> Run:
    """Run the folder's configuration in its engine and return it.

    Args:
        folder: Of the run.
        progress: Shows it.
        auditors: Replace those that the configuration names.
        without_masks: Whether to leave out the masks of secure sums where the report is the same
            without them: see `cheapest_sums`.
    """
    # Clients elsewhere take the device that this machine has chosen, or say that they lack it.
    config = replace(folder.config, device=device_of(folder.config.device).type)
    sums, masks = cheapest_sums(config) if without_masks else (Masked, MaskMod)
    done: list[Run] = []
    stop, threads = threading.Event(), set[threading.Thread]()
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, _: Context) -> None:
        threads.add(threading.current_thread())
        own = grid if config.engine == "inline" else InterruptibleGrid(grid, stop)
        done.append(run_on(own, folder, progress, auditors, sums=sums))

    client_app = client_app_of(config, masks=masks)
    if config.engine == "inline":
        run_inline(server_app, client_app, config.clients)
    else:
        try:
            _run_ray(server_app, client_app, config)
        finally:
            # Flower leaves the server's thread waiting for replies when the main thread is
            # interrupted. Once it has ended, nothing writes to the folder any more.
            stop.set()
            for thread in threads:
                thread.join()
    if not done:
        raise RuntimeError("the simulation ended before the run did")
    return done[0]


def _run_ray(server_app: ServerApp, client_app: object, config: Config) -> None:
    """Run both apps in Flower's simulation; only this function uses the deprecated call."""
    cluster.prepare()
    from flwr.simulation import run_simulation

    from leakmeter.fl_app.engines.cluster import use_steady_pool

    use_steady_pool()
    log = logging.getLogger("flwr")
    log.addFilter(_concerns_users)
    try:
        # Flower uses a Ray that is there already, in place of one of its own.
        address = cluster.address_of(config.ray_address)
        cluster.join(address)
        if not cluster.is_local(address):
            try:
                check_nodes(config)
            except BaseException:
                cluster.leave()
                raise
        share = cluster.gpu_share() if config.device == "cuda" else 0.0
        backend = {
            "init_args": {
                "address": "local",
                "include_dashboard": False,
                "logging_level": logging.ERROR,
                "log_to_driver": False,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": share},
        }
        run_simulation(
            server_app=server_app,
            client_app=client_app,  # type: ignore[arg-type]
            num_supernodes=config.clients,
            backend_config=backend,  # type: ignore[arg-type]
        )
    finally:
        log.removeFilter(_concerns_users)


def _concerns_users(record: logging.LogRecord) -> bool:
    """Whether a line of Flower's log is not about how we call Flower."""
    return "DEPRECATED FEATURE" not in record.getMessage()


def check_nodes(config: Config) -> None:
    """Let every node import the client's app, find the device and load the data.

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
            from leakmeter.fl_app.config.field import ConfigError
            from leakmeter.fl_app.engines import cluster  # noqa: F401 - the auditors' workers
            from leakmeter.fl_app.task import device_of, load_task
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return f"--ray-address must be a cluster that can import the client app, got {reason}"
        try:
            device_of(settings["device"])
        except ConfigError as error:
            return str(error)
        try:
            load_task(Config.from_mapping(settings))
        except Exception as error:
            folder = settings["data-dir"]
            return f"--data-dir must contain the data set on every node, got {folder!r} ({error})"
        return ""

    return check
