"""The log of a run: complete, valid JSON, and never half written."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import platform
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors import Assumption
from leakmeter.auditors.finding import Limitation, RunWarning
from leakmeter.auditors.run_log import (
    SCHEMA,
    HeldError,
    RoundLine,
    RunLog,
    locked,
    read_rounds,
    versions,
    write_atomically,
)
from leakmeter.auditors.verdict.sentences import headline
from leakmeter.auditors.verdict.verdict import judge
from leakmeter.auditors.wording import plain_spaces
from tests.helpers.findings import finding


def line(server_round: int, **metrics: float) -> RoundLine:
    return RoundLine(server_round, 5, metrics, (finding(server_round=server_round),))


def strict(text: str) -> Any:
    """Read JSON as other readers do: without NaN and infinities."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_rounds_are_on_disk_as_soon_as_they_are_added(tmp_path: Path) -> None:
    record = RunLog(tmp_path / "run", {})
    record.add(line(1, accuracy=0.5))
    first = strict((tmp_path / "run" / "rounds.jsonl").read_text())
    assert (first["server_round"], first["accuracy"], first["num_clients"]) == (1, 0.5, 5)
    record.add(line(2))
    assert [x["server_round"] for x in read_rounds(tmp_path / "run")] == [1, 2]
    assert read_rounds(tmp_path / "run")[1]["accuracy"] is None


def test_the_report_has_the_verdict_as_data_with_its_sentences(tmp_path: Path) -> None:
    record = RunLog(tmp_path, {})
    record.add(line(1, accuracy=0.5))
    record.add(line(2))
    shown = finding(value=2.0, kind="lower_bound", confidence=0.95, adjacency="zero-out")
    damage = RunWarning.of("abandoned-rounds", 9, 9)
    verdict = strict(record.finish([shown], [], [], [damage]).read_text())["verdict"]
    expected = judge([shown], [damage], accuracy=0.5)
    assert {name: verdict[name] for name in expected.to_json()} == expected.to_json()
    assert verdict["sentence"] == plain_spaces(headline(expected))
    assert verdict["sentence"].startswith("The run is distorted")
    assert verdict["protection"].startswith("In data-protection terms: ")
    assert [row["shown"]["epsilon"] for row in verdict["rows"]] == [2.0]  # of no single round


def test_the_report_holds_all_rounds_and_findings_and_explains_what_they_assume(
    tmp_path: Path,
) -> None:
    assert read_rounds(tmp_path) == []
    record = RunLog(tmp_path, {"seed": 3}, name="night run")
    record.add(line(1, accuracy=0.5, loss=2.0))
    assumed = finding(assumptions=("fair-coins",), server_round=2)
    record.add(RoundLine(2, 5, {"accuracy": 0.6}, (assumed,)))
    path = record.finish(
        [finding(value=4.0, assumptions=("my own words",))],
        ["other, round 1: ValueError: no"],
        [Limitation("mine", "cannot see it")],
        [RunWarning.of("abandoned-rounds", 1, 4)],
    )
    report = strict(path.read_text())
    assert (report["schema"], report["name"]) == (SCHEMA, "night run")
    assert report["config"] == {"seed": 3}
    assert [(r["server_round"], r["accuracy"]) for r in report["rounds"]] == [(1, 0.5), (2, 0.6)]
    assert report["rounds"][0]["metrics"] == {"accuracy": 0.5, "loss": 2.0}
    assert [f["server_round"] for f in report["findings"]] == [1, 2, None]
    assert report["failures"] == ["other, round 1: ValueError: no"]
    coins = Assumption.FAIR_COINS.sentence
    assert report["glossary"] == {"fair-coins": coins, "my own words": "my own words"}
    assert report["limitations"] == [{"auditor": "mine", "text": "cannot see it"}]
    [warning] = report["warnings"]
    assert warning | {"kind": "abandoned-rounds", "value": 0.25, "count": 1, "total": 4} == warning
    assert report["versions"]["numpy"] == np.__version__
    assert report["versions"]["python"].startswith("3.")


def test_a_diverged_run_is_still_valid_json(tmp_path: Path) -> None:
    record = RunLog(tmp_path, {"limit": math.inf})
    metrics = {"loss": math.nan, "accuracy": math.inf}
    record.add(RoundLine(1, 5, metrics, (finding(server_round=1, value=math.inf),)))
    report = strict(record.finish([], []).read_text())
    assert report["rounds"][0]["metrics"] == {"loss": "nan", "accuracy": "inf"}
    assert report["findings"][0]["value"] == "inf"
    assert (report["config"], report["name"]) == ({"limit": "inf"}, None)


def test_a_configuration_that_is_no_json_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        RunLog(tmp_path / "run", {"model": object()})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["rounds.jsonl", "report.json"])
def test_a_record_that_is_already_there_is_not_overwritten(tmp_path: Path, name: str) -> None:
    taken = tmp_path / "run"
    for folder in (taken, tmp_path / "run-2"):
        folder.mkdir()
        (folder / name).write_text("precious")
    log = RunLog(taken, {})
    assert log.folder == tmp_path / "run-3"  # the next free name
    log.add(line(1))
    assert log.finish([], []).parent == tmp_path / "run-3"
    for folder in (taken, tmp_path / "run-2"):
        assert (folder / name).read_text() == "precious"
        assert len(list(folder.iterdir())) == 1


def test_a_resumed_record_drops_what_comes_after_the_checkpoint(tmp_path: Path) -> None:
    record = RunLog(tmp_path, {})
    for server_round in (1, 2, 3):
        record.add(line(server_round))
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"server_round": 4, "accu')  # killed in the middle of a line
    resumed = RunLog(tmp_path, {}, keep=2)
    resumed.add(line(3, accuracy=0.9))
    kept = read_rounds(tmp_path)
    assert [x["server_round"] for x in kept] == [1, 2, 3]
    assert kept[2]["accuracy"] == 0.9


def test_a_resumed_record_equals_one_that_was_not_interrupted(tmp_path: Path) -> None:
    for name in ("whole", "resumed"):
        record = RunLog(tmp_path / name, {"seed": 1})
        record.add(line(1, accuracy=0.1))
        record.add(line(2, loss=math.nan))
        if name == "resumed":
            record = RunLog(tmp_path / name, {"seed": 1}, keep=1)
            record.add(line(2, loss=math.nan))
        record.finish([finding()], [])
    for file in ("rounds.jsonl", "report.json"):
        whole, resumed = (tmp_path / name / file for name in ("whole", "resumed"))
        assert whole.read_bytes() == resumed.read_bytes()


def test_a_record_with_rounds_missing_cannot_be_resumed(tmp_path: Path) -> None:
    record = RunLog(tmp_path, {})
    record.add(line(1))
    with pytest.raises(ValueError, match="must contain rounds 1 to 2, got 1"):
        RunLog(tmp_path, {}, keep=2)


def fails_in_between() -> Iterator[str]:
    """Yield half of a text."""
    yield "half of it"
    raise OSError("no more")


@pytest.mark.parametrize("data", ["new and longer", "\ud800", fails_in_between()])
def test_a_write_that_fails_leaves_the_old_file(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    write_atomically(path, "old")

    def no_space(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises((OSError, UnicodeEncodeError)):
        write_atomically(path, data)
    monkeypatch.undo()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("report.json", "old")]
    write_atomically(path, b"new")
    assert path.read_text() == "new"


def test_packages_that_are_not_there_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakmeter.auditors.run_log._PACKAGES", ("numpy", "no-such-package"))
    assert set(versions()) == {"python", "numpy"}


def test_rounds_of_another_schema_are_neither_resumed_nor_changed(tmp_path: Path) -> None:
    log = RunLog(tmp_path, {})
    log.add(line(1))
    path = tmp_path / "rounds.jsonl"
    old = path.read_text().replace(f'"schema": "{SCHEMA}", ', "")
    assert old != path.read_text()
    path.write_text(old)
    with pytest.raises(
        ValueError, match="must contain rounds of leakmeter-report/2, got no schema"
    ):
        RunLog(tmp_path, {}, keep=1)
    assert path.read_text() == old


def test_the_text_of_a_report_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    log = RunLog(tmp_path, {})
    log.add(line(1))
    findings = [finding() for _ in range(500)]
    tracemalloc.start()
    try:
        path = log.finish(findings, [])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = path.read_text()
    assert text == json.dumps(strict(text), indent=1) + "\n"
    assert peak < 4 * len(text)


def test_pieces_are_written_as_few_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()

    class Counting(io.FileIO):
        def write(self, data: Any) -> int:
            made.append(len(data))
            return super().write(data)

    def opened(path: Path, mode: str, buffering: int) -> io.BufferedWriter:
        return io.BufferedWriter(Counting(path, mode), buffering)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        write_atomically(tmp_path / "page", ("ε" for _ in range(2**17 + 5)))
    assert (tmp_path / "page").read_text() == "ε" * (2**17 + 5)
    assert made == [*[2**16] * 4, 10]


# Locks: one process at a time, named to all others, and gone with the process.


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    words = rf"process {os.getpid()} on {platform.node()}"
    with locked(path), pytest.raises(HeldError, match=words), locked(path):
        raise AssertionError
    with locked(path):
        pass


def refuse(*_: Any) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize(
    ("fcntl", "words"),
    [
        (None, "cannot be locked (this system has no fcntl)"),
        (SimpleNamespace(flock=refuse, LOCK_EX=2, LOCK_NB=4), "No locks available"),
    ],
)
def test_a_system_without_locks_says_so(
    fcntl: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", fcntl)
    with locked(tmp_path / ".lock", wait=1.0):
        pass
    assert words in caplog.text


def test_a_lock_is_waited_for_and_not_for_ever_and_a_killed_process_has_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / ".lock"
    ready, told = os.pipe()
    children = []
    for _ in range(2):
        if (child := os.fork()) == 0:
            with locked(path, wait=600.0):
                os.write(told, b"x")
                os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        children.append(child)
        os.read(ready, 1)
        try:
            with pytest.raises(HeldError, match=f"process {child} on"), locked(path, wait=0.1):
                raise AssertionError
        finally:  # the first goes on and ends, the second is killed
            os.kill(child, signal.SIGCONT if len(children) == 1 else signal.SIGKILL)
        with locked(path, wait=600.0):
            pass
        os.waitpid(child, 0)
