"""Runs the Flower apps of a folder, as Flower would: in this process, or in its simulation."""

from __future__ import annotations

import copy
import importlib
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def loaded(folder: Path) -> Iterator[dict[str, Any]]:
    """Import the apps that a folder's pyproject.toml names, and forget them afterwards."""
    components = settings(folder)["components"]
    packages = {reference.split(".")[0] for reference in components.values()}
    sys.path.insert(0, str(folder))
    try:
        apps = {}
        for name, reference in components.items():
            module, _, attribute = reference.partition(":")
            apps[name] = getattr(importlib.import_module(module), attribute)
        yield apps
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.split(".")[0] in packages]:
            del sys.modules[name]


def settings(folder: Path) -> dict[str, Any]:
    """Return what Flower reads in a folder's pyproject.toml."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    found: dict[str, Any] = project["tool"]["flwr"]["app"]
    return found


def run_here(folder: Path, run_id: int = 1, **changes: Any) -> Any:
    """Run both apps in this process with the folder's configuration and return the grid."""
    from flwr.app import Context, RecordDict

    from leakmeter.fl_app.engines.inline import InlineGrid

    config = settings(folder)["config"] | changes
    with loaded(folder) as apps:
        grid = InlineGrid(apps["clientapp"], config["min-nodes"], config)
        about = {"node_id": 0, "node_config": {}, "state": RecordDict(), "run_config": config}
        apps["serverapp"](grid, Context(run_id=run_id, **about))
    return grid


@contextmanager
def configured(folder: Path, **changes: Any) -> Iterator[tuple[Any, Any]]:
    """Import both apps and give them the folder's configuration, where an engine leaves it empty.

    Args:
        folder: With pyproject.toml.
        changes: Settings that are changed.

    Yields:
        The server app and the client app.
    """
    from flwr.serverapp import ServerApp

    config = settings(folder)["config"] | changes
    with loaded(folder) as apps:
        server, client, outer = apps["serverapp"], apps["clientapp"], ServerApp()

        @outer.main()
        def main(grid: Any, context: Any) -> None:
            context.run_config.update(config)
            server(grid, context)

        def inner(message: Any, context: Any) -> Any:
            inside = copy.copy(context)  # Flower does not let its own be changed
            inside.run_config = config
            return client(message, inside)

        yield outer, inner


def simulate(folder: Path) -> None:
    """Run both apps in Flower's simulation."""
    from flwr.simulation import run_simulation

    with configured(folder) as (server, client):
        run_simulation(
            server_app=server,
            client_app=client,
            num_supernodes=settings(folder)["config"]["min-nodes"],
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )


if __name__ == "__main__":
    simulate(Path(sys.argv[1]))
