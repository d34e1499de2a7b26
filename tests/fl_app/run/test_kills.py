"""A run that dies or cannot write, at any point, is resumed to the same report and counted once."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.progress import Progress
from leakmeter.strategies.accounting.ledger import Entry, Ledger, spent
from tests.helpers.planted import run_and_die
from tests.helpers.project import ROOT
from tests.helpers.reports import comparable

SETTINGS = ["--rounds", "2", "--auditors", "one-shot", "--noise", "central", "--clip-norm", "1"]
SETTINGS += ["--secagg", "off"]  # quicker


def words(tiny: list[str], folder: Path) -> list[str]:
    return [*tiny, *SETTINGS, "--ledger", str(folder / "ledger"), "--out", str(folder / "run")]


def counted(folder: Path) -> list[Entry]:
    """Return what the ledger has, without what differs between two runs."""
    found = Ledger(folder / "ledger").entries("synthetic")
    return [replace(e, run="", place="") for e in found]


@pytest.fixture(scope="module")
def whole(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing has happened to, with its ledger beside it."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(words(tiny, folder)) == 0
    return folder


def check_resumed(folder: Path, tiny: list[str], whole: Path) -> None:
    """Resume what a dead run has left, or begin again where it had not begun."""
    run, planned = folder / "run", Ledger(folder / "ledger").entries("synthetic")
    if (run / "checkpoint.npz").exists():  # what was released is in the ledger, at least as a plan
        assert spent(planned, 1e-5).value >= spent(counted(whole), 1e-5).value * 0.999
    if (run / "report.json").exists():
        assert main(["--resume", str(run)]) == 2
    elif (run / "config.toml").exists():
        assert main(["--resume", str(run)]) == 0
    else:
        assert main(["--resume", str(run)]) == 2
        assert main(words(tiny, folder)) == 0  # the same command, with nothing deleted
    assert comparable(run / "report.json") == comparable(whole / "run" / "report.json")
    assert counted(folder) == counted(whole)


@pytest.mark.parametrize("at", [20, 70])  # in the ledger, and in a later checkpoint
def test_a_run_that_dies_while_it_writes_is_resumed(
    at: int, tiny: list[str], tmp_path: Path, whole: Path
) -> None:
    assert run_and_die(main, words(tiny, tmp_path), at, tmp_path) == -1
    check_resumed(tmp_path, tiny, whole)


@pytest.mark.slow
def test_a_run_that_dies_anywhere_is_resumed(tiny: list[str], tmp_path: Path, whole: Path) -> None:
    run = partial(run_and_die, main)
    points = run(words(tiny, tmp_path / "count"), 0, tmp_path)
    assert points > 80
    for at in range(1, points + 1):
        folder = tmp_path / str(at)
        assert run(words(tiny, folder), at, tmp_path) == -1
        check_resumed(folder, tiny, whole)


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


def check_full(
    folder: Path, after: int, tiny: list[str], whole: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Fill the disk after this many writes, and resume when there is room."""
    with monkeypatch.context() as patch:
        fill_disk(patch, after)
        code = main(words(tiny, folder))
    said = capsys.readouterr()
    assert code in (1, 2)
    assert "Traceback" not in said.out + said.err
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    # A page that cannot be made is said on its own.
    assert len(errors) == 1 or "no page was made" in said.out or "no report" in said.out
    assert not list(folder.rglob("*.partial"))
    check_resumed(folder, tiny, whole)


@pytest.mark.parametrize("after", [0, 10])  # settings, and the working file of an auditor
def test_a_run_on_a_full_disk_is_resumed_when_there_is_room(
    after: int, tiny: list[str], tmp_path: Path, whole: Path, monkeypatch: Any, capsys: Any
) -> None:
    check_full(tmp_path, after, tiny, whole, monkeypatch, capsys)


@pytest.mark.slow
def test_a_disk_may_get_full_at_any_write(
    tiny: list[str], tmp_path: Path, whole: Path, monkeypatch: Any, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        writes = fill_disk(patch, 10**9)
        assert main(words(tiny, tmp_path / "all")) == 0
        count = len(writes)
    # The last one is the sync of the folder, which may fail.
    for after in range(count - 1):
        capsys.readouterr()
        check_full(tmp_path / str(after), after, tiny, whole, monkeypatch, capsys)


def test_a_folder_removed_meanwhile_is_one_sentence(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    shown = Progress.round

    def removing(self: Progress, line: Any) -> None:
        shown(self, line)
        shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(Progress, "round", removing)
    assert main(words(tiny, tmp_path)) == 1
    [said] = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert said.startswith(f"error: {tmp_path / 'run'} was removed while the run wrote to it")
    [entry] = counted(tmp_path)  # what was released counts all the same
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


_DYING = """
import sys
from pathlib import Path
from tests.helpers.planted import Plant
at, below, *words = sys.argv[1:]
plant = Plant(int(at), Path(below))
from leakmeter.fl_app.cli.main import main
plant.install()
code = main(words)
print("points", plant.passed)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("usual_null_draws")  # the process that dies simulates as many
def test_a_run_on_ray_that_dies_while_it_writes_is_resumed(
    tiny: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = tmp_path_factory.mktemp("whole-usual")
    assert main(words(tiny, whole)) == 0

    def run(folder: Path, at: int) -> tuple[int, str]:
        """Run in a session of its own, and end what is left of it."""
        arguments = [str(at), str(tmp_path), *words(tiny, folder), "--engine", "ray"]
        process = subprocess.Popen(
            [sys.executable, "-c", _DYING, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        said = process.communicate(timeout=300)[0]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, said

    code, said = run(tmp_path / "count", 0)
    assert code == 0
    points = int(said.split("points ")[1].split()[0])
    for share in (0.3, 0.6, 0.9):
        folder = tmp_path / str(share)
        assert run(folder, round(share * points))[0] == -signal.SIGKILL
        settings = folder / "run/config.toml"  # the same numbers, and quicker
        settings.write_text(settings.read_text().replace('"ray"', '"inline"'))
        check_resumed(folder, tiny, whole)
