"""Every command runs in an empty folder, and what it refuses leaves nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main
from tests.helpers.fixtures import Call, Patch, Printed


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys: Printed) -> Call:
    """Call a command that must end with a code; return what it prints."""

    def printed(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        return capsys.readouterr().out

    return printed
