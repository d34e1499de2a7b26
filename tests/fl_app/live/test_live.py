"""The live page: served on this machine only, right at every moment, gone when the run is."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors.callback import RunProgress
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.live.page import LiveFolder
from leakmeter.fl_app.live.server import LiveServer, next_free, open_server, serving
from tests.helpers.browser import BROWSER, DRIVER, Browser, browser
from tests.helpers.project import ROOT


@pytest.fixture(scope="module")
def finished(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small run."""
    path = tmp_path_factory.mktemp("live") / "run"
    only = ("--auditors", "one-shot")
    assert main([*tiny, *only, "--out", str(path)]) == 0
    return path


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> Path:
    """Return a folder of which the report is still missing, after its first round."""
    path = tmp_path / "run"
    path.mkdir()
    shutil.copy(finished / "config.toml", path)
    first = (finished / "rounds.jsonl").read_text().splitlines(keepends=True)[0]
    (path / "rounds.jsonl").write_text(first)
    progress = {"num_rounds": 3, "rounds_done": 1, "rounds_before": 0, "started": 100.0}
    warning = {"kind": "dropouts", "value": 0.25, "count": 1, "total": 4, "text": "One of 4 left."}
    values = {**progress, "updated": 160.0, "warnings": [warning]}
    (path / "progress.json").write_text(json.dumps(values))
    return path


@pytest.fixture
def server(unfinished: Path) -> Iterator[LiveServer]:
    with serving(LiveServer(unfinished, port=0)) as server:
        yield server


def get(server: LiveServer, path: str, host: str | None = None) -> tuple[int, str]:
    address, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(address), int(port), timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_state_has_progress_time_left_and_warnings(unfinished: Path) -> None:
    state = LiveFolder(unfinished).state(now=170.0)
    assert state["text"] == "round 1 of 3; about 2 minutes left"  # 60 s a round, 10 of them gone
    assert state["share"] == pytest.approx(1 / 3)
    assert state["warnings"] == ["One of 4 left."]
    assert state["finished"] is False
    late = LiveFolder(unfinished).state(now=160.0 + 3600)
    assert late["text"] == "round 1 of 3; last round ended 60 minutes ago"


def test_time_left_counts_only_rounds_of_this_process() -> None:
    resumed = RunProgress(20, 12, 10, started=0.0, updated=10.0)
    assert resumed.seconds_left(10.0) == pytest.approx(40.0)
    assert RunProgress(20, 10, 10, started=0.0, updated=0.0).seconds_left(5.0) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"num_rounds": "many"}', "[" * 100_000, "\xff"])
def test_a_damaged_progress_file_is_no_progress(unfinished: Path, text: str) -> None:
    (unfinished / "progress.json").write_bytes(text.encode("latin-1"))
    state = LiveFolder(unfinished).state()
    assert (state["share"], state["finished"]) == (0.0, False)
    assert "<main" in LiveFolder(unfinished).html()


def test_the_stamp_changes_with_each_file(unfinished: Path, finished: Path) -> None:
    folder, stamps = LiveFolder(unfinished), []
    for name in ("rounds.jsonl", "progress.json", "report.json"):
        stamps.append(folder.stamp())
        text = (finished / name).read_text() if (finished / name).exists() else "{}"
        (unfinished / name).write_text(text)
    stamps.append(folder.stamp())
    assert len(set(stamps)) == len(stamps)
    assert folder.state()["finished"] is True


def test_one_page_is_served_and_nothing_else(server: LiveServer) -> None:
    status, page = get(server, "/")
    assert status == 200
    assert 'id="live"' in page
    status, state = get(server, "/state")
    assert json.loads(state)["finished"] is False
    for path in ("/config.toml", "/../config.toml", "/state/..", "//etc/passwd", "/%2e%2e/x"):
        status, text = get(server, path)
        assert (status, text) == (404, "there is only one page: /")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("127.0.0.1", 200), ("evil.example:8765", 403), ("[::1]:8765", 200)],
)
def test_a_foreign_name_for_this_machine_is_refused(
    server: LiveServer, host: str, status: int
) -> None:
    assert get(server, "/state", host)[0] == status


def test_a_damaged_run_is_one_sentence_and_the_server_stays(
    server: LiveServer, unfinished: Path
) -> None:
    (unfinished / "rounds.jsonl").write_text("nonsense\n")
    status, text = get(server, "/")
    assert status == 503
    assert "must be JSON" in text
    assert get(server, "/state")[0] == 200


def test_a_busy_port_is_named_with_the_next_free_one(unfinished: Path) -> None:
    with LiveServer(unfinished, port=0) as busy:
        port = int(busy.server_address[1])
        free = next_free("127.0.0.1", port)
        with pytest.raises(ConfigError, match=rf"--port {port} is in use; .* --port {free}"):
            open_server(unfinished, "127.0.0.1", port)


def test_a_busy_usual_port_gives_way(unfinished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LiveServer(unfinished, port=0) as busy:
        port = int(busy.server_address[1])
        monkeypatch.setattr("leakmeter.fl_app.live.server.PORT", port)
        with open_server(unfinished, "127.0.0.1", None) as other:
            assert int(other.server_address[1]) > port


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "must be the folder of a run"),
        (["nowhere", "--port", "70000"], "--port must be from 0 .* to 65535, got 70000"),
        (["nowhere", "--host", "192.0.2.1"], "--host must be an address"),  # RFC 5737: nobody's
        (["nowhere", "--host", "x" * 70], "--host must be an address"),
        (["nowhere", "--host", ""], "--host must be an address"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, capsys: Any) -> None:
    assert main(["watch", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(said, line)


def test_an_unknown_host_is_looked_up_once(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def unknown(host: str, *_: Any) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "unknown name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert main(["watch", "nowhere", "--host", "no.such.host"]) == 2
    assert "--host must be an address of this machine" in capsys.readouterr().err
    assert asked == ["no.such.host"]


def test_readers_see_the_end_before_the_server_goes(unfinished: Path, finished: Path) -> None:
    began = time.monotonic()
    with serving(LiveServer(unfinished, port=0)) as server:
        get(server, "/state")
        shutil.copy(finished / "report.json", unfinished)
        get(server, "/")
    assert server.has_shown_end
    assert time.monotonic() - began < 60  # it waits for readers, but not for those who have read
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.url)


@pytest.mark.launch
def test_watch_ends_with_an_interrupt(finished: Path) -> None:
    words = [sys.executable, "run_sim.py", "watch", str(finished), "--port", "0"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    url = line.split()[2]
    assert b'id="live"' in urllib.request.urlopen(url).read()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0


def wait_for(page: Browser, expression: str) -> None:
    """Ask until the expression is true on the page."""
    until = time.monotonic() + 120
    while not page.run(f"return {expression}"):
        assert time.monotonic() < until, f"never true: {expression}; {page.errors()}"
        time.sleep(0.1)


@pytest.mark.launch
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium is installed")
def test_a_running_job_updates_the_page_and_keeps_the_readers_place(
    tiny: list[str], tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "run_sim.py", *tiny, "--rounds", "8", "--out", str(tmp_path / "run")]
    job = subprocess.Popen(
        [*words, "--live", "--port", str(port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert job.stdout is not None
        lines = iter(job.stdout.readline, "")
        assert any(line.startswith("live page:") for line in lines)
        assert any(line.startswith("round") for line in lines)
        with browser() as page:
            page.open(f"http://127.0.0.1:{port}/")
            bar = "document.querySelector('#live progress').value"
            wait_for(page, f"{bar} > 0")
            # The reader opens a fold and goes down to it.
            fold = "document.querySelector('main details.fold')"
            there = "{behavior: 'instant'}"
            page.run(f"{fold}.open = true; {fold}.scrollIntoView({there}); window.mark = 1")
            top = page.run(f"return {fold}.getBoundingClientRect().top")
            before = page.run(f"return {bar}")
            wait_for(page, f"{bar} > {before}")
            assert page.run("return window.mark") == 1  # not loaded again
            assert page.run(f"return {fold}.open") is True
            assert abs(page.run(f"return {fold}.getBoundingClientRect().top") - top) <= 2
            wait_for(page, "document.getElementById('live-text').textContent === 'finished'")
            assert page.run(f"return {bar}") == 1
            assert page.errors() == []
        assert job.wait(timeout=120) == 0
    finally:
        job.kill()
        job.wait()
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert len(report["rounds"]) == 8
    assert not (tmp_path / "run" / "progress.json").exists()
