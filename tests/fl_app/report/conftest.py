"""Runs whose pages several files of tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main


@pytest.fixture(scope="session")
def plain(panel: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all the default auditors."""
    path = tmp_path_factory.mktemp("runs") / "plain"
    seats = ["--canary-seats", "3", "--canary-repetitions", "1"]
    assert main([*panel, "--lrt-every", "2", *seats, "--out", str(path)]) == 0
    return path
