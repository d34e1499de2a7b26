"""Commands about runs that are there: list, open, report, resume, and how a run is ended."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.engines import inline
from leakmeter.fl_app.report.read import read_run
from tests.helpers.project import ROOT

Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    assert main([*tiny, "--out", str(path)]) == 0
    return path


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """A folder with three runs: old, whole and unfinished, from the oldest to the newest."""
    folder = tmp_path / "runs"
    for age, name in ((300, "old"), (200, "whole"), (100, "cut")):
        shutil.copytree(finished, folder / name)
        if name == "cut":
            (folder / name / "report.json").unlink()
        for file in (folder / name).iterdir():
            os.utime(file, (time.time() - age,) * 2)
    return folder


def refused(capsys: Printed, *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_a_list_has_the_newest_run_first_and_how_to_resume(runs: Path, capsys: Printed) -> None:
    assert main(["list", "runs"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["RUN", "DATE", "ROUNDS", "SHOWN", "AT", "MOST"]
    assert [line.split()[0] for line in lines] == ["cut", "interrupted:", "whole", "old"]
    assert lines[0].split()[3] == "4/4"
    assert lines[1] == f"  interrupted: python run_sim.py --resume {runs / 'cut'}"
    assert lines[2].split()[3] == "4/4"
    assert lines[2].split(", outsider")[1].strip() == "no bound"
    assert "ε ≥ " in lines[2]
    assert all(len(line) <= 80 for line in (lines[0], *lines[2:]))


def test_a_list_of_one_run_is_that_run_and_a_file_is_refused(runs: Path, capsys: Printed) -> None:
    assert main(["list", "runs/whole"]) == 0
    assert "whole" in capsys.readouterr().out
    (runs.parent / "notes.txt").touch()
    assert main(["list", "notes.txt"]) == 2
    assert "must be a folder of runs, got a file" in capsys.readouterr().err


def test_nothing_to_resume_says_what_to_do(runs: Path, capsys: Printed) -> None:
    (runs.parent / "other" / "thing").mkdir(parents=True)
    for folder, advice in (("other", "leakmeter list"), ("nowhere", "start with --out")):
        assert main(["--resume", folder]) == 2
        assert advice in capsys.readouterr().err


def test_a_finished_run_of_unknown_length_has_no_question_mark(runs: Path, capsys: Printed) -> None:
    report = runs / "whole" / "report.json"
    (runs / "whole" / "config.toml").unlink()
    known = json.loads(report.read_text())
    del known["config"]["rounds"]
    report.write_text(json.dumps(known))
    assert main(["list", "runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert next(line[3] for line in lines if line[0] == "whole") == "4"


def test_a_run_that_has_not_begun_is_in_no_list(runs: Path, capsys: Printed) -> None:
    (runs / "refused").mkdir()
    (runs / "refused" / "rounds.jsonl").touch()  # made by `Audited`, whose app then failed
    assert main(["list", "runs"]) == 0
    assert "refused" not in capsys.readouterr().out


def test_a_list_for_programs_says_the_same(runs: Path, capsys: Printed) -> None:
    assert main(["list", "--json", "runs"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in listed] == ["interrupted", "finished", "finished"]
    assert [one["name"] for one in listed] == ["cut", "whole", "old"]
    assert listed[0]["resume"] == f"python run_sim.py --resume {runs / 'cut'}"
    whole = listed[1]
    assert (whole["rounds"], whole["planned"], whole["resume"]) == (4, 4, None)
    assert whole["accuracy"] == read_run(runs / "whole").accuracy
    assert whole["headline"].startswith("Anyone who sees")


def test_a_run_of_another_process_is_running_and_a_damaged_one_spoils_no_list(
    runs: Path, capsys: Printed
) -> None:
    (runs / "old" / "report.json").write_text("{")
    (runs / "fresh").mkdir()
    (runs / "fresh" / "progress.json").write_text("{}")
    holds = (
        "import fcntl, sys, time\n"
        f"file = open({str(runs / 'cut' / '.lock')!r}, 'a')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert main(["list", "--json", "runs"]) == 0
        other.kill()
    states = {one["name"]: one["state"] for one in json.loads(capsys.readouterr().out)}
    assert states == {
        "cut": "running",
        "whole": "finished",
        "old": "damaged",
        "fresh": "interrupted",
    }
    assert main(["list", "runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [fresh] = [i for i, line in enumerate(lines) if line.endswith("no round yet")]
    assert lines[fresh + 1] == "  interrupted"  # it has no settings that could be resumed
    damage = f"  damaged: {runs / 'old' / 'report.json'} must be JSON"
    assert sum(line.startswith(damage) for line in lines) == 1


def test_a_folder_without_runs_says_so_and_what_to_do_next(capsys: Printed) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out.endswith("Start one: python run_sim.py --out runs/demo\n")
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    Path("empty").mkdir()
    for words in (["report", "empty"], ["open", "empty"], ["open"], ["report", "--json", "empty"]):
        assert "start a run with: leakmeter --out runs/demo" in refused(capsys, *words)
    assert "nothing has run there: start with --out" in refused(capsys, "--resume", "empty")


def test_open_shows_the_newest_page_and_makes_it_where_it_is_missing(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    opened: list[str] = []

    def open_(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", open_)
    page = runs / "cut" / "report.html"
    page.unlink()
    assert main(["open"]) == 0
    assert "<!doctype html" in page.read_text(encoding="utf-8").lower()
    assert main(["open", "runs/whole"]) == 0
    assert opened == [page.as_uri(), (runs / "whole" / "report.html").as_uri()]
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == f"page: {page}"
    assert f"the newest run in {runs}: {runs / 'cut'}" in printed.err


def test_open_makes_the_page_again_where_the_run_is_newer(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: True)
    page = runs / "cut" / "report.html"
    page.write_text(page.read_text(encoding="utf-8") + "<!-- old -->", encoding="utf-8")
    os.utime(page, (1, 1))
    assert main(["open", "runs/cut"]) == 0
    assert "<!-- old -->" not in page.read_text(encoding="utf-8")


def test_open_prints_where_the_page_is_if_there_is_no_browser(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    assert main(["open", "runs/whole"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"page: {runs / 'whole' / 'report.html'}"
    assert second.startswith("no browser was found here")


def test_report_json_prints_the_report_and_nothing_else(runs: Path, capsys: Printed) -> None:
    capsys.readouterr()
    assert main(["report", "--json", "runs/whole"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((runs / "whole" / "report.json").read_text())
    assert printed.out.isascii()
    assert printed.err == ""
    assert main(["report", "--json", "runs/whole", "runs/old"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.mark.parametrize("more", [["--text"], ["--out", "x"], ["--csv", "x"], ["--pictures", "x"]])
def test_report_json_goes_with_nothing_that_writes(
    more: list[str], runs: Path, capsys: Printed
) -> None:
    assert "writes no file; leave out --" in refused(
        capsys, "report", "--json", str(runs / "whole"), *more
    )


def test_report_json_of_an_unfinished_run_says_how_to_finish_it(
    runs: Path, capsys: Printed
) -> None:
    said = refused(capsys, "report", "--json", "runs/cut")
    assert "after round 4" in said
    assert f"python run_sim.py --resume {runs / 'cut'}" in said


def test_report_of_a_folder_of_runs_is_about_the_newest(runs: Path, capsys: Printed) -> None:
    shutil.rmtree(runs / "cut")
    capsys.readouterr()
    assert main(["report", "--json", "runs"]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"the newest run in {runs}: {runs / 'whole'}\n"
    assert (
        json.loads(printed.out)["name"]
        == json.loads((runs / "whole" / "report.json").read_text())["name"]
    )
    assert main(["report", "runs"]) == 0
    assert capsys.readouterr().out == f"page: {runs / 'whole' / 'report.html'}\n"


def test_other_commands_name_the_newest_run_of_a_folder(runs: Path, capsys: Printed) -> None:
    said = refused(capsys, "gate", "runs", "--max-epsilon", "1")
    assert said.endswith(f"got {runs}; the newest run in it is {runs / 'cut'}\n")


def interrupted(
    tiny: list[str], out: str, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> int:
    """Run, and send this process a signal within a round; return the exit code."""
    seen = 0
    deliver = inline.InlineGrid._deliver

    def counted(self: Any, message: Any) -> Any:
        nonlocal seen
        seen += message.metadata.message_type.startswith("train")
        if seen == 50:  # of 80
            signal.raise_signal(number)
        return deliver(self, message)

    with monkeypatch.context() as patched:
        patched.setattr(inline.InlineGrid, "_deliver", counted)
        return main([*tiny, "--out", out])


def test_resume_takes_the_newest_run_that_is_unfinished(
    runs: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    shutil.rmtree(runs / "cut")
    assert interrupted(tiny, "runs/cut", monkeypatch, signal.SIGTERM) == 143
    os.utime(runs / "whole" / "report.json")  # newer, and finished
    assert main(["--resume", "runs"]) == 0
    assert (runs / "cut" / "report.json").is_file()
    expected = f"the newest unfinished run in {runs}: {runs / 'cut'}\n"
    assert expected in capsys.readouterr().err
    said = refused(capsys, "--resume", "runs")
    assert said.endswith(f"got {runs}; all runs in it are finished, the newest is {runs / 'cut'}\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_terminated_run_says_how_to_resume_and_loses_nothing(
    number: signal.Signals,
    code: int,
    tiny: list[str],
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Printed,
) -> None:
    before = signal.getsignal(number)
    assert interrupted(tiny, "cut off", monkeypatch, number) == code
    assert signal.getsignal(number) == before
    folder = Path.cwd() / "cut off"
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"interrupted; resume with: python run_sim.py --resume '{folder}'"
    done = len((folder / "rounds.jsonl").read_text().splitlines())
    assert 1 <= done < 4
    assert main(["--resume", str(folder)]) == 0
    assert f"resuming after round {done} of 4" in capsys.readouterr().out
    found = [
        json.loads((one / "report.json").read_text())["findings"] for one in (folder, finished)
    ]
    assert found[0] == found[1]


def test_a_run_that_is_terminated_while_its_page_is_made_is_finished(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    def terminated(*_: Any) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return True

    monkeypatch.setattr("leakmeter.fl_app.run.run.leave_page", terminated)
    assert main([*tiny, "--out", "run"]) == 143
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"write its page with: python run_sim.py report {Path.cwd() / 'run'}")


@pytest.mark.slow
def test_a_process_that_is_terminated_exits_with_143(tiny: list[str], tmp_path: Path) -> None:
    words = [*tiny, "--rounds", "5000", "--out", "run"]
    with subprocess.Popen(
        [sys.executable, str(ROOT / "run_sim.py"), *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if re.match(r"round +3/", line):
                break
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read().splitlines()[-1]
    assert process.returncode == 143
    assert said.startswith("interrupted; resume with: ")
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) >= 3
