"""Runs in this process: what they report, their clients, and one cut off that ends the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors.run_log import RoundLine
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.client_app import client_app_of
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.engines import inline
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.task import load_task


class Dying(Progress):
    """Ends the run when a certain round has been shown, which is after its checkpoint."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def begin(self, *args: Any) -> None:
        """End it here if no round is to be played."""
        super().begin(*args)
        if self._last == 0:
            raise KeyboardInterrupt

    def round(self, line: RoundLine) -> None:
        """End it after the last round."""
        super().round(line)
        if line.server_round == self._last:
            raise KeyboardInterrupt


def report_of(folder: Path) -> dict[str, Any]:
    """Return the report in the folder of a run."""
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def run_of(folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """Make a run by the command line and return its report; no auditor may fail."""
    assert main([*words, "--out", str(folder)]) == code
    report = report_of(folder)
    assert report["failures"] == []
    return report


def run_with(folder: Path, **settings: Any) -> dict[str, Any]:
    """Return the report of a run with these settings, which a file gives to the command line."""
    folder.parent.mkdir(exist_ok=True)
    folder.with_suffix(".toml").write_text(Config(**settings).to_toml())
    return run_of(folder, "--config", str(folder.with_suffix(".toml")))


def cut_off(path: Path, config: Config, last: int) -> None:
    """Leave a run in `path` that ended after round `last`."""
    with pytest.raises(KeyboardInterrupt):
        launch(RunFolder.create(path, config), Dying(last))
    assert not (path / "report.json").exists()


def resumed(path: Path) -> bytes:
    """Return the report of a run that was cut off, after its end."""
    assert main(["--resume", str(path)]) == 0
    return (path / "report.json").read_bytes()


def check_resumed(config: Config, folder: Path, last: int = 1) -> dict[str, Any]:
    """Return the report of a run, if it is also that of the run cut off after round `last`."""
    launch(RunFolder.create(folder / "whole", config), Progress())
    cut_off(folder / "cut", config, last)
    assert resumed(folder / "cut") == (folder / "whole/report.json").read_bytes()
    return report_of(folder / "whole")


def replies_of(
    config: Config, *sent: tuple[int, RecordDict], app: ClientApp | None = None
) -> list[Message]:
    """Return what new clients of the app answer to train messages, in one push.

    Args:
        config: The run.
        sent: Number of a client, and the content of its message.
        app: In place of the one for these settings.
    """
    with inline._identified(inline._task_identity()):
        grid = InlineGrid(app or client_app_of(config), config.clients)
        messages = [Message(content, client + 1, "train") for client, content in sent]
        return list(grid.send_and_receive(messages))


def train_order(config: Config, server_round: int = 1, **more: Any) -> RecordDict:
    """Return the content of a train message with the initial model; `more` are further records."""
    order = ConfigRecord({"server-round": server_round})
    return RecordDict({"arrays": load_task(config).initial_arrays(), "config": order, **more})
