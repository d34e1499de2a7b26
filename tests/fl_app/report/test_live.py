"""The live page: served on this machine only, right at every moment, gone when the run is."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from leakmeter.auditors.run_log import RunProgress
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report.live import (
    FIRST,
    Address,
    LiveFolder,
    LiveServer,
    _words,
    open_server,
    serving,
)
from tests.helpers.browser import BROWSER, DRIVER, Browser, browser
from tests.helpers.files import report_in
from tests.helpers.fixtures import Patch, Printed
from tests.helpers.pages import check_policy
from tests.helpers.project import ROOT


@pytest.fixture(scope="module")
def finished(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small run."""
    path = tmp_path_factory.mktemp("live") / "run"
    assert main([*tiny, "--out", str(path)]) == 0
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
def server(unfinished: Path, monkeypatch: Patch) -> Iterator[LiveServer]:
    with serving(open_server(port=0), unfinished) as server:
        yield server
        monkeypatch.setattr("leakmeter.fl_app.report.live._RECENT", 0.0)  # nobody to wait for


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
    assert _words(RunProgress(3, 3, 0, 100.0, 160.0), 400.0).endswith("; the report is being made")


def test_a_run_that_goes_on_is_not_to_be_resumed(unfinished: Path) -> None:
    path = unfinished / "progress.json"
    dead = LiveFolder(unfinished)  # its last round ended in 1970
    stamp, page = dead.stamp(), dead.html()
    assert "This run is not finished: 1 whole round of 4." in page
    assert "--resume run" in page
    values = {**json.loads(path.read_text()), "started": time.time() - 60, "updated": time.time()}
    path.write_text(json.dumps(values))
    page = LiveFolder(unfinished).html()
    assert "This run is in progress: 1 whole round of 4." in page
    assert "--resume" not in page
    assert LiveFolder(unfinished).stamp().rpartition("-")[2] != stamp.rpartition("-")[2]


def test_time_left_counts_only_rounds_of_this_process_and_a_round_is_overdue_after_five() -> None:
    resumed = RunProgress(20, 12, 10, started=0.0, updated=10.0)  # five seconds each
    assert resumed.seconds_left(10.0) == pytest.approx(40.0)
    assert not resumed.is_overdue(10.0 + 84)
    assert resumed.is_overdue(10.0 + 86)
    assert not RunProgress(20, 20, 10, started=0.0, updated=10.0).is_overdue(1e9)
    begun = RunProgress(20, 10, 10, started=0.0, updated=0.0)
    assert begun.seconds_left(5.0) is None
    assert not begun.is_overdue(1e9)


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
    assert get(server, "/state", "evil.example:8765")[0] == 403
    status, page = get(server, "/", "localhost:1")
    assert status == 200
    assert 'id="live"' in page
    check_policy(page, "connect-src 'self'")  # its own script and style, and no other
    status, state = get(server, "/state")
    assert json.loads(state)["finished"] is False
    for path in ("/config.toml", "/../config.toml", "/state/..", "//etc/passwd", "/%2e%2e/x"):
        status, text = get(server, path)
        assert (status, text) == (404, "there is only one page: /")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rounds.jsonl", "nonsense\n", "must be JSON"),
        ("report.json", '{"schema": "leakmeter-rep', "must be JSON"),  # half of it has arrived
        ("config.toml", "rounds = ", "must be a TOML file"),
    ],
)
def test_a_damaged_file_is_a_sentence_on_a_page_that_asks_again(
    server: LiveServer, unfinished: Path, name: str, text: str, said: str
) -> None:
    (unfinished / name).write_text(text)
    status, page = get(server, "/")
    assert status == 503
    assert said in page
    assert f"{name}" in page
    assert str(unfinished.parent) not in page  # the reader may be on another machine
    assert 'id="live" data-stamp=""' in page
    (unfinished / name).unlink()
    assert get(server, "/")[0] == 200


def test_a_failure_on_the_page_names_no_folder_of_this_machine(
    unfinished: Path, finished: Path
) -> None:
    report = report_in(finished)
    report["failures"] = [f"one-shot: cannot write {unfinished}/changes.f32 in {unfinished}"]
    (unfinished / "report.json").write_text(json.dumps(report))
    page = LiveFolder(unfinished).html()
    assert "cannot write changes.f32 in run" in page
    assert str(unfinished.parent) not in page


def test_no_request_ends_the_server_or_changes_a_file(server: LiveServer, unfinished: Path) -> None:
    local = b" HTTP/1.1\r\nHost: localhost\r\n"
    before = {path.name: path.read_bytes() for path in unfinished.iterdir()}
    for request in (
        b"HEAD /" + local + b"\r\n",
        b"POST /" + local + b"Content-Length: 3\r\n\r\nabc",
        b"PUT /report.json" + local + b"\r\n",
        b"DELETE /report.json" + local + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
        b"GET //[" + local + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",  # somebody tries https
        b"\r\n",
        b"",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as reader:
            reader.sendall(request)
            reader.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):  # it need not read all of a wrong request
                answer = reader.makefile("rb").read()
                is_served = b" 200 " in answer.partition(b"\r\n")[0]
                assert is_served == request.startswith(b"HEAD"), request
                assert b"<main" not in answer
        assert get(server, "/state")[0] == 200
    assert {path.name: path.read_bytes() for path in unfinished.iterdir()} == before


@pytest.mark.parametrize("name", [".", "to/come"])
def test_a_folder_without_a_run_waits_for_one(name: str, finished: Path, tmp_path: Path) -> None:
    """It may even be missing, as before a run begins."""
    empty = LiveFolder(tmp_path / name)
    empty.check()
    assert empty.state()["text"] == "waiting for the first file of a run"
    assert FIRST in empty.html()
    before = empty.stamp()
    empty.path.mkdir(parents=True, exist_ok=True)
    shutil.copy(finished / "report.json", empty.path)
    assert empty.stamp() != before
    assert empty.state()["finished"] is True


def test_what_can_never_be_the_folder_of_a_run_is_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"DIR must be the folder of a run, .*: it is a file$"):
        LiveFolder(tmp_path / "file").check()
    with pytest.raises(ConfigError, match=rf"; the newest run in it is {finished}$"):
        LiveFolder(finished.parent).check()
    assert LiveFolder.at(finished / "rounds.jsonl").path == finished


def test_a_page_that_was_loaded_before_a_change_knows_that_it_is_old(
    server: LiveServer, unfinished: Path, finished: Path
) -> None:
    page = get(server, "/")[1]
    shutil.copy(finished / "report.json", unfinished)
    state = json.loads(get(server, "/state")[1])
    assert state["finished"] is True
    assert f'data-stamp="{state["stamp"]}"' not in page
    assert f'data-stamp="{state["stamp"]}"' in get(server, "/")[1]


def test_a_busy_port_is_named_with_the_next_free_one_and_leaves_no_folder(
    tiny: list[str], tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    with open_server(port=0) as busy:
        port, free = busy.port, busy.address.free_port(busy.port)
        assert free != port
        with pytest.raises(ConfigError, match=rf"--port {port} is in use; .* --port {free}"):
            open_server(port=port)
        assert main([*tiny, "--out", str(tmp_path / "run"), "--live", "--port", str(port)]) == 2
        assert f"--port {port} is in use" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr("leakmeter.fl_app.report.live.PORT", port)
        with open_server() as other:  # the usual port gives way
            assert other.port > port


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("watch nowhere --port 70000", "--port must be from 0 .* to 65535, got 70000"),
        ("watch . --host 192.0.2.1", "--host must be an address"),  # RFC 5737: nobody has it
        ("watch . --host=", "--host must be an address"),  # not every address there is
        ("run --port 9000", "add --live"),
        ("run --host 0.0.0.0", "add --live"),
    ],
)
def test_mistakes_are_one_line(
    words: str, said: str, capsys: Printed, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(said, line)


def test_every_reader_sees_the_end_before_the_server_goes(
    unfinished: Path, finished: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("leakmeter.fl_app.report.live._RECENT", 0.6)
    seen: list[bool] = []

    def read() -> None:
        while not (seen and seen[-1]):
            seen.append(json.loads(get(server, "/state")[1])["finished"])
            time.sleep(0.2)

    readers = [threading.Thread(target=read) for _ in range(2)]
    with serving(open_server(port=0), unfinished) as server:
        for reader in readers:
            reader.start()
        while len(seen) < 2:
            time.sleep(0.01)
        shutil.copy(finished / "report.json", unfinished)
    for reader in readers:
        reader.join()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.url)


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """Start the program in a process of its own; yield it with what it prints."""
    process = subprocess.Popen(
        [sys.executable, "run_sim.py", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        yield process, iter(process.stdout.readline, "")
    finally:
        process.kill()
        process.wait()


def address_in(lines: Iterator[str]) -> str:
    return next(line.split()[2] for line in lines if line.startswith("live page:"))


@pytest.mark.launch
def test_watch_ends_with_an_interrupt(finished: Path) -> None:
    with started("watch", str(finished), "--port", "0") as (process, lines):
        assert b'id="live"' in urllib.request.urlopen(address_in(lines)).read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def wait_for(page: Browser, expression: str) -> None:
    """Ask until the expression is true on the page."""
    until = time.monotonic() + 300  # a busy machine runs the job ten times slower
    while not page.run(f"return {expression}"):
        assert time.monotonic() < until, f"never true: {expression}; {page.errors()}"
        time.sleep(0.1)


@pytest.mark.slow  # starts a browser
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium is installed")
def test_an_update_leaves_folds_boxes_and_focus_as_the_reader_has_them(
    unfinished: Path, finished: Path
) -> None:
    rounds = (finished / "rounds.jsonl").read_text().splitlines(keepends=True)
    with serving(open_server(port=0), unfinished) as server, browser() as page:
        page.open(server.url, 700, 500)
        # Folds within folds have no id; nor have boxes that scroll, nor what has the focus.
        page.run("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
        inner = "document.querySelector('#findings details')"
        box = f"{inner}.querySelector('.scroll')"
        page.run(f"{box}.scrollLeft = 40; {inner}.querySelector('summary').focus()")
        page.run(f"{inner}.scrollIntoView({{behavior: 'instant'}})")
        closed = "document.querySelector('#repeat details')"
        page.run(f"{closed}.open = false")
        left, top = page.run(f"return [{box}.scrollLeft, {inner}.getBoundingClientRect().top]")
        assert left > 0
        with (unfinished / "rounds.jsonl").open("a") as log:
            log.writelines([*rounds[1:3], rounds[3][:50]])  # the last one is half there
        wait_for(page, f"{inner}.textContent.includes('3 rounds')")
        assert page.run(f"return {inner}.open") is True
        assert page.run(f"return {closed}.open") is False
        assert page.run(f"return {box}.scrollLeft") == left
        assert abs(page.run(f"return {inner}.getBoundingClientRect().top") - top) <= 2
        assert page.run(f"return document.activeElement === {inner}.querySelector('summary')")
        # Half of the report has arrived: the page stays as it is, and says why.
        (unfinished / "report.json").write_text("{")
        wait_for(page, "document.getElementById('live-text').textContent.includes('must be JSON')")
        assert page.run(f"return {inner}.open") is True
        shutil.copy(finished / "report.json", unfinished)
        wait_for(page, "document.getElementById('live-text').textContent === 'finished'")
        assert page.run("return document.querySelector('#live progress').value") == 1
        # A page that is opened while files are damaged comes up by itself later.
        (unfinished / "report.json").write_text("{")
        page.open(server.url)
        assert "must be JSON" in page.run("return document.querySelector('main').textContent")
        shutil.copy(finished / "report.json", unfinished)
        wait_for(page, "document.querySelector('main h1') !== null")
        errors = page.errors()
        assert all("503" in error for error in errors), errors  # which the browser itself notes


@pytest.mark.launch
def test_an_interrupted_run_takes_its_page_with_it(tiny: list[str], tmp_path: Path) -> None:
    words = [*tiny, "--rounds", "900", "--out", str(tmp_path / "r"), "--live", "--port", "0"]
    with started(*words) as (job, lines):
        url = address_in(lines)
        assert any(line.startswith("round") for line in lines)
        assert b'id="live"' in urllib.request.urlopen(url).read()
        job.send_signal(signal.SIGINT)
        _, said = job.communicate(timeout=120)
        assert job.returncode == 130
        assert "Traceback" not in said
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url)


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium is installed")
def test_a_running_job_updates_the_page_and_keeps_the_readers_place(
    tiny: list[str], tmp_path: Path
) -> None:
    # Enough rounds that the run still goes on when the browser has started.
    words = [*tiny, "--rounds", "150", "--out", str(tmp_path / "run"), "--live", "--port", "0"]
    with started(*words) as (job, lines):
        url = address_in(lines)
        assert any(line.startswith("round") for line in lines)
        with browser() as page:
            page.open(url)
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
    report = report_in(tmp_path / "run")
    assert len(report["rounds"]) == 150
    assert not (tmp_path / "run" / "progress.json").exists()


def test_an_unknown_name_is_looked_up_once() -> None:
    with (
        patch("socket.getaddrinfo", side_effect=socket.gaierror(-2, "not known")) as look_up,
        pytest.raises(ConfigError, match="--host must be an address of this machine, such as 127"),
    ):
        Address.of("far.example")
    assert look_up.call_count == 1


@pytest.mark.parametrize("host", ["", "a" * 70 + ".example", "two words", "nul\0"])
def test_what_is_no_name_is_no_address(host: str) -> None:
    with pytest.raises(ConfigError, match="--host must be an address of this machine"):
        Address.of(host)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80/"),
        ("localhost", "http://localhost:80/"),
        ("::1", "http://[::1]:80/"),
        ("0.0.0.0", f"http://{socket.gethostname()}:80/"),
    ],
)
def test_the_url_is_one_that_a_browser_can_open(host: str, url: str) -> None:
    assert Address.of(host).url(80) == url


@pytest.mark.parametrize("own", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(
    ("host", "may"),
    [
        *((host, True) for host in ("127.0.0.1:8765", "localhost.:1", "[::1]:8765")),
        ("10.0.0.7:8765", True),  # a browser sends a number only if the reader has typed it
        (socket.gethostname().upper(), True),
        *((host, False) for host in ("evil.example:8765", "127.0.0.1.evil.example", "")),
        *((host, False) for host in ("localhost@evil.example", "[::1", "\0")),
    ],
)
def test_only_numbers_and_own_names_may_ask(own: str, host: str, may: bool) -> None:
    assert Address.of(own).may_be_called(host) is may
    named = Address("Box.lan", "10.0.0.7", socket.AF_INET)
    assert named.may_be_called("box.lan:8765")
    assert not named.may_be_called("other.lan:8765")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "--port 80 is one that only administrators may use; .*: --port 8765"),
        (errno.EADDRNOTAVAIL, "--host must be an address of this machine, .* got '127.0.0.1'"),
        (errno.EADDRINUSE, "--port 80 is in use; take any free one: --port 0"),
    ],
)
def test_what_is_wrong_with_an_address_is_not_blamed_on_the_port(
    number: int, said: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Address, "_is_free", lambda *_: False)
    with pytest.raises(ConfigError, match=said):
        raise Address.of("127.0.0.1").explained(OSError(number, "what the system says"), 80)
