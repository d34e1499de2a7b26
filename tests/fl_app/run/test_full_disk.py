"""A full disk and a removed folder end a run in one sentence, and lose nothing."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.progress import Progress
from leakmeter.strategies.accounting.ledger import Ledger
from tests.helpers.reports import comparable

SETTINGS = ["--rounds", "2", "--auditors", "one-shot", "--noise", "central", "--clip-norm", "1"]
SETTINGS += ["--secagg", "off"]  # quicker


@pytest.fixture(scope="module")
def arguments(tiny: list[str]) -> list[str]:
    return [*tiny, *SETTINGS]


@pytest.fixture(scope="module")
def whole(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run that nothing has happened to."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*arguments, "--ledger", str(folder / "l"), "--out", str(folder / "run")]) == 0
    return comparable(folder / "run/report.json")


def fill_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Let the disk be full after this many writes; return a list that grows with each of them."""
    sync, done = os.fsync, list[int]()

    def full(number: int) -> None:
        done.append(number)
        if len(done) > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    monkeypatch.setattr("os.fsync", full)
    return done


def fails_and_is_resumed(
    after: int,
    arguments: list[str],
    folder: Path,
    whole: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = folder / "run"
    words = [*arguments, "--ledger", str(folder / "l"), "--out", str(run)]
    with monkeypatch.context() as patch:
        fill_disk(patch, after)
        code = main(words)
    said = capsys.readouterr()
    assert code in (1, 2)
    assert "Traceback" not in said.out + said.err
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    # A page that cannot be made is said on its own.
    assert len(errors) == 1 or "no page was made" in said.out or "no report" in said.out
    assert not list(folder.rglob("*.partial"))
    if not (run / "config.toml").exists():
        assert main(words) == 0
    elif not (run / "report.json").exists():
        assert main(["--resume", str(run)]) == 0
    assert comparable(run / "report.json") == whole
    assert not any(e.is_planned for e in Ledger(folder / "l").entries("synthetic"))


@pytest.mark.parametrize("after", [0, 10])  # settings, and the working file of an auditor
def test_a_run_on_a_full_disk_is_resumed_when_there_is_room(
    after: int,
    arguments: list[str],
    tmp_path: Path,
    whole: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fails_and_is_resumed(after, arguments, tmp_path, whole, monkeypatch, capsys)


@pytest.mark.slow
def test_a_disk_may_get_full_at_any_write(
    arguments: list[str],
    tmp_path: Path,
    whole: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        writes = fill_disk(patch, 10**9)
        assert (
            main([*arguments, "--ledger", str(tmp_path / "l"), "--out", str(tmp_path / "r")]) == 0
        )
        count = len(writes)
    # The last one is the sync of the folder, which may fail.
    for after in range(count - 1):
        capsys.readouterr()
        folder = tmp_path / str(after)
        fails_and_is_resumed(after, arguments, folder, whole, monkeypatch, capsys)


def test_a_folder_removed_meanwhile_is_one_sentence(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = Progress.round

    def removing(self: Progress, line: Any) -> None:
        shown(self, line)
        shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(Progress, "round", removing)
    ledger = ["--ledger", str(tmp_path / "l")]
    assert main([*arguments, *ledger, "--out", str(tmp_path / "run")]) == 1
    [said] = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert said.startswith(f"error: {tmp_path / 'run'} was removed while the run wrote to it")
    [entry] = Ledger(tmp_path / "l").entries("synthetic")  # what was released counts all the same
    assert (entry.is_planned, len(entry.releases)) == (False, 2)


def test_a_folder_in_place_of_a_file_of_the_run_is_said_in_one_line(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    where = tmp_path / "run" / "checkpoint.npz.partial"
    monkeypatch.setattr(RunFolder, "load", lambda _: where.mkdir())
    assert main([*tiny, "--auditors", "none", "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {where} must be a file, got: Is a directory; remove it; resume")
    assert said.count("\n") == 1
