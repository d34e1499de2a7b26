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
from unittest.mock import patch

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.engines import inline
from leakmeter.fl_app.report.read import read_run
from tests.helpers.files import report_in
from tests.helpers.fixtures import Call, Patch, Printed
from tests.helpers.project import ROOT


@pytest.fixture(scope="module")
def finished(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    assert main([*tiny, "--out", str(path)]) == 0
    return path


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """A folder with three runs: old, whole and unfinished, from the oldest to the newest."""
    return copies(finished, tmp_path / "runs")


def copies(finished: Path, folder: Path) -> Path:
    for age, name in ((300, "old"), (200, "whole"), (100, "cut")):
        shutil.copytree(finished, folder / name)
        if name == "cut":
            (folder / name / "report.json").unlink()
        for file in (folder / name).iterdir():
            os.utime(file, (time.time() - age,) * 2)
    return folder


def test_a_list_has_the_newest_run_first_and_how_to_resume(runs: Path, call: Call) -> None:
    head, *lines = call("list", "runs").splitlines()
    assert head.split() == ["RUN", "DATE", "ROUNDS", "SHOWN", "AT", "MOST"]
    assert [line.split()[0] for line in lines] == ["cut", "interrupted:", "whole", "old"]
    assert lines[0].split()[3] == "4/4"
    assert lines[1] == f"  interrupted: python run_sim.py --resume {runs / 'cut'}"
    assert lines[2].split()[3] == "4/4"
    assert lines[2].split(", outsider")[1].strip() == "no bound"
    assert "ε ≥ " in lines[2]
    assert all(len(line) <= 80 for line in (lines[0], *lines[2:]))
    assert "whole" in call("list", "runs/whole")
    cut, whole, _ = json.loads(call("list", "--json", "runs"))
    assert (cut["name"], cut["state"]) == ("cut", "interrupted")
    assert cut["resume"] == f"python run_sim.py --resume {runs / 'cut'}"
    assert [whole[name] for name in ("state", "rounds", "planned", "resume")] == [
        *("finished", 4, 4, None)
    ]
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


def test_a_list_says_no_more_of_a_run_than_its_files_do(runs: Path, call: Call) -> None:
    (runs / "whole" / "config.toml").unlink()
    report = runs / "whole" / "report.json"
    known = json.loads(report.read_text())
    del known["config"]["rounds"]
    report.write_text(json.dumps(known))
    (runs / "refused").mkdir()
    (runs / "refused" / "rounds.jsonl").touch()  # made by `Audited`, whose app then failed
    found = {words[0]: words for words in map(str.split, call("list", "runs").splitlines())}
    assert found["whole"][3] == "4"  # of how many, nobody knows
    assert "refused" not in found


def test_a_folder_without_runs_says_so_and_what_to_do_next(call: Call) -> None:
    assert call("list").endswith("Start one: python run_sim.py --out runs/demo\n")
    assert json.loads(call("list", "--json")) == []


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        *((f"{words} empty", "start a run with: leakmeter --out") for words in ("report", "open")),
        ("open", "start a run with: leakmeter --out"),
        ("report --json empty", "start a run with: leakmeter --out"),
        ("--resume empty", "nothing has run there: start with --out"),
        ("--resume nowhere", "start with --out"),
        ("--resume other", "leakmeter list"),
        ("list nope", "must be a folder of runs, got no folder"),
        ("list file", "must be a folder of runs, got a file"),
        ("report --json copies/cut", "after round 4. Finish it: python run_sim.py --resume "),
        ("gate copies --max-epsilon 1", "the newest run in it is "),
        *(
            (f"report --json copies/whole {more} x", "writes no file; leave out --")
            for more in ("--out", "--csv", "--pictures")
        ),
        ("report --json copies/whole --text", "--text writes no file; leave out --json"),
        ("report --summary copies/whole --csv x", "writes summary.html alone; leave out --csv"),
        ("report --text --summary copies/whole", "--text writes no file; leave out --summary"),
    ],
)
def test_what_a_command_cannot_do_is_one_line_with_the_next_step(
    words: str, advice: str, finished: Path, tmp_path: Path, capsys: Printed
) -> None:
    Path("empty").mkdir()
    Path("file").touch()
    (tmp_path / "other" / "thing").mkdir(parents=True)
    if "copies" in words:
        copies(finished, tmp_path / "copies")
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert advice in printed.err


def test_open_shows_the_newest_page_and_makes_it_where_it_is_missing_or_old(
    runs: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    page = runs / "cut" / "report.html"
    page.unlink()
    with patch.object(webbrowser, "open", return_value=True) as opened:
        assert main(["open"]) == 0
        whole = page.read_text(encoding="utf-8")
        assert "<!doctype html" in whole.lower()
        assert main(["open", "runs/whole"]) == 0
    shown = [page.as_uri(), (runs / "whole" / "report.html").as_uri()]
    assert [one.args[0] for one in opened.call_args_list] == shown
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == f"page: {page}"
    assert f"the newest run in {runs}: {runs / 'cut'}" in printed.err
    page.write_text(f"{whole}<!-- old -->", encoding="utf-8")
    os.utime(page, (1, 1))
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    assert main(["open", "runs/cut"]) == 0
    assert page.read_text(encoding="utf-8") == whole
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"page: {page}"
    assert second.startswith("no browser was found here")


def test_report_json_prints_the_report_and_nothing_else(runs: Path, call: Call) -> None:
    printed = call("report", "--json", "runs/whole")
    assert json.loads(printed) == report_in(runs / "whole")
    assert printed.isascii()
    assert len(json.loads(call("report", "--json", "runs/whole", "runs/old"))) == 2


def test_report_of_a_folder_of_runs_is_about_the_newest(runs: Path, capsys: Printed) -> None:
    shutil.rmtree(runs / "cut")
    capsys.readouterr()
    assert main(["report", "--json", "runs"]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"the newest run in {runs}: {runs / 'whole'}\n"
    assert json.loads(printed.out)["name"] == report_in(runs / "whole")["name"]
    assert main(["report", "--json"]) == 0
    assert capsys.readouterr() == printed  # the folder runs is where they go by default
    assert main(["report", "runs"]) == 0
    assert capsys.readouterr().out == f"page: {runs / 'whole' / 'report.html'}\n"


def interrupted(tiny: list[str], out: str, monkeypatch: Patch, number: signal.Signals) -> int:
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
    runs: Path, tiny: list[str], monkeypatch: Patch, capsys: Printed
) -> None:
    shutil.rmtree(runs / "cut")
    assert interrupted(tiny, "runs/cut", monkeypatch, signal.SIGTERM) == 143
    os.utime(runs / "whole" / "report.json")  # newer, and finished
    assert main(["--resume", "runs"]) == 0
    assert (runs / "cut" / "report.json").is_file()
    expected = f"the newest unfinished run in {runs}: {runs / 'cut'}\n"
    assert expected in capsys.readouterr().err
    assert main(["--resume", "runs"]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"got {runs}; all runs in it are finished, the newest is {runs / 'cut'}\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_terminated_run_says_how_to_resume_and_loses_nothing(
    number: signal.Signals,
    code: int,
    tiny: list[str],
    finished: Path,
    monkeypatch: Patch,
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
    found = [report_in(one)["findings"] for one in (folder, finished)]
    assert found[0] == found[1]


def test_a_run_that_is_terminated_while_its_page_is_made_is_finished(
    tiny: list[str], monkeypatch: Patch, capsys: Printed
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
