"""Where the clients of a run live: in this process, or in Flower's Ray simulation."""

from __future__ import annotations

import logging
import os

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_app import build
from fl_app.conduct import Outcome, conduct
from fl_app.folder import RunFolder
from fl_app.inline import run_inline
from fl_app.progress import Progress


def launch(folder: RunFolder, progress: Progress) -> Outcome:
    """Run the folder's configuration in its engine and return what came of it."""
    outcomes: list[Outcome] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, _: Context) -> None:
        outcomes.append(conduct(folder, grid, progress))

    config = folder.config
    client_app = build.client_app(lambda _: config)
    if config.engine == "inline":
        run_inline(server_app, client_app, config.clients)
    else:
        _run_ray(server_app, client_app, config.clients, config.ray_address)
    if not outcomes:
        raise RuntimeError("the simulation ended before the run did")
    return outcomes[0]


def _run_ray(server_app: ServerApp, client_app: object, num_nodes: int, address: str) -> None:
    """Run both apps in Flower's simulation; the one place that knows this deprecated call."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change
    from flwr.simulation import run_simulation

    # Without an address Ray would look for a cluster that was left behind, and hang if it is dead.
    address = address or os.environ.get("RAY_ADDRESS", "local")
    init_args: dict[str, object] = {"address": address}
    if address == "local":
        init_args["include_dashboard"] = False
    backend = {
        "init_args": {**init_args, "logging_level": logging.ERROR, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    log = logging.getLogger("flwr")
    log.addFilter(_concerns_users)
    try:
        run_simulation(
            server_app=server_app,
            client_app=client_app,  # type: ignore[arg-type]
            num_supernodes=num_nodes,
            backend_config=backend,  # type: ignore[arg-type]
        )
    finally:
        log.removeFilter(_concerns_users)


def _concerns_users(record: logging.LogRecord) -> bool:
    """Whether a line of Flower's log is not about how we call Flower."""
    return "DEPRECATED FEATURE" not in record.getMessage()
