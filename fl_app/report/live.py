"""The page of a run in progress, served on this machine: `--live` and `leakmeter watch`.

The page itself is that of `leakmeter report`, with a bar on top. A short script asks once a second
whether the folder has changed, and then exchanges the content of `main`. Place, open folds and
focus stay. It is served on the loopback address unless another is asked for.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

from markupsafe import Markup

from leakmeter.auditors.codec import CodecError, codec
from leakmeter.auditors.run_log import PROGRESS, REPORT, ROUNDS, RunProgress
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report import HOST, PORT
from leakmeter.fl_app.report.judge import folder_to_type
from leakmeter.fl_app.report.page import Live, document, page
from leakmeter.fl_app.report.read import FILES, Run, read_run, runs_in

_BAR = Markup(  # with the stamp of the folder as the page has it
    '<div id="live" data-stamp="{}" role="status" aria-live="off">'
    '<progress max="1" value="0" aria-label="rounds done"></progress> '
    '<span id="live-text">connecting …</span>'
    '<ul id="live-warnings" aria-label="warnings of the run"></ul></div>'
)
FIRST = "The numbers of the first round will appear here as soon as it has ended."
_STYLE = """
#live { position: sticky; top: 0; z-index: 3; margin-bottom: .7rem;
  padding: .4rem max(1.5rem, (100% - 1160px) / 2 + 1.5rem); background: Canvas;
  color: CanvasText; border-bottom: 1px solid GrayText; font-size: .9rem; }
#live progress { width: 12rem; max-width: 40%; vertical-align: middle; margin-right: .4rem; }
#live ul { margin: .2rem 0 0; padding-left: 1.2rem; }
#live ul:empty { display: none; }
@media print { #live { display: none; } }
"""
# Content is exchanged only when the folder has changed. What the reader has opened stays open,
# boxes stay scrolled, and the place is that of the last heading at the top of the window, since
# figures may grow above it. Most parts have no id: each is known by where it is and what it says,
# without the counts in it.
_SCRIPT = """
(() => {
  const live = document.getElementById("live");
  const bar = live.querySelector("progress");
  const text = document.getElementById("live-text");
  const list = document.getElementById("live-warnings");
  let seen = live.dataset.stamp, ended = false, rested = 0;
  const said = (one) => {
    if (one.matches(".pt")) return one.getAttribute("aria-label");
    const fold = one.matches("summary") ? one.parentElement : one;
    const inner = fold.matches("details, .scroll") ? fold.querySelector("caption") : one;
    return inner ? inner.textContent.replace(/[0-9]+/g, "") : "";
  };
  const key = (one) => {
    const home = one.closest("[id]"), figure = one.closest("figure");
    const head = figure && figure.querySelector("h2, h3");
    const words = one.id ? "" : said(one);
    return [home ? home.id : "", head ? head.textContent : "", one.localName, words].join("|");
  };
  const named = (selector) => {
    const found = new Map();
    for (const one of document.querySelectorAll(selector)) {
      let name = key(one);
      while (found.has(name)) name += "+";
      found.set(name, one);
    }
    return found;
  };
  const top = (one) => one.getBoundingClientRect().top;
  const PARTS = "main section[id], main h2, main h3, main summary, main caption";
  const FOCUS = "main summary, main .pt, main button, main a, main [tabindex]";
  const BOXES = "main .scroll";
  const place = () => [...named(PARTS)].filter(([, one]) => one.checkVisibility())
    .map(([name, one]) => [name, top(one)]).filter(([, height]) => height <= 80).reverse();
  const exchange = (fresh) => {
    const places = place();
    const open = [...named("main details")].map(([name, one]) => [name, one.open]);
    const boxes = [...named(BOXES)].map(([name, one]) => [name, one.scrollLeft, one.scrollTop]);
    const active = document.activeElement;
    const focus = [...named(FOCUS)].find(([, one]) => one === active);
    document.querySelector("main").innerHTML = fresh.querySelector("main").innerHTML;
    document.title = fresh.title;
    document.getElementById("tip").hidden = true;
    const folds = named("main details");
    for (const [name, state] of open) if (folds.has(name)) folds.get(name).open = state;
    const scrolled = named(BOXES);
    for (const [name, left, height] of boxes) {
      if (scrolled.has(name)) scrolled.get(name).scrollTo(left, height);
    }
    const parts = named(PARTS);
    const still = places.find(([name]) => parts.has(name) && parts.get(name).checkVisibility());
    if (still) scrollBy({ top: top(parts.get(still[0])) - still[1], behavior: "instant" });
    const again = focus && named(FOCUS).get(focus[0]);
    if (again) again.focus({ preventScroll: true });
  };
  const show = (state) => {
    bar.value = state.share;
    text.textContent = state.text;
    list.replaceChildren(...(state.warnings || []).map((words) => {
      const item = document.createElement("li");
      item.textContent = words;
      return item;
    }));
  };
  const update = async () => {
    const state = await (await fetch("state", { cache: "no-store" })).json();
    // Making a large page takes time from the run: at most a tenth of it.
    if (state.stamp !== seen && (state.finished || performance.now() > rested)) {
      const began = performance.now();
      const answer = await fetch("./", { cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      // A file that is only half there: the page stays, and the sentence says what is wrong.
      if (!answer.ok) return show({ ...state, text: fresh.querySelector("main").textContent });
      exchange(fresh);
      seen = fresh.getElementById("live").dataset.stamp;
      rested = performance.now() + 10 * (performance.now() - began);
    }
    show(state);
    ended = state.finished;
  };
  const ask = async () => {
    let wait = 1000;
    try {
      await update();
      if (ended) wait = 5000;
    } catch (error) {
      if (ended) return;  // the run has ended, and its server with it
      text.textContent = "no answer: the run has ended (see report.html) or was stopped";
      wait = 5000;
    }
    setTimeout(ask, wait);
  };
  ask();
})();
"""


@dataclass(frozen=True)
class LiveFolder:
    """A run folder that somebody watches."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> LiveFolder:
        """Return the folder that a user has named, perhaps by a file in it."""
        path = path.expanduser().absolute()
        return cls(path.parent if path.name in FILES else path)

    @property
    def is_finished(self) -> bool:
        """Whether the run has its report."""
        return (self.path / REPORT).is_file()

    def stamp(self) -> str:
        """Return a text that changes whenever the page would."""
        changed = [_changed(self.path / name) for name in FILES]
        return "-".join([*changed, "on" if self.is_running else "off"])

    def state(self, now: float | None = None) -> dict[str, Any]:
        """Return what the bar shows: progress, time left and warnings, in words."""
        if self.is_finished:
            return {"stamp": self.stamp(), "finished": True, "share": 1.0, "text": "finished"}
        progress = self._progress()
        if progress is None:
            text = "the rounds so far" if self.has_run else "waiting for the first file of a run"
            share, warnings = 0.0, []
        else:
            share = progress.rounds_done / max(progress.num_rounds, 1)
            text = _words(progress, time.time() if now is None else now)
            warnings = [warning.text for warning in progress.warnings]
        known = {"stamp": self.stamp(), "finished": False, "share": share, "text": text}
        return {**known, "warnings": warnings}

    def html(self) -> str:
        """Return the page with its bar.

        Raises:
            ConfigError: A file is damaged, or only half of it has arrived.
        """
        live = self._live()  # before the files are read: what changes meanwhile is asked for again
        run = self.run()
        if not (run.rounds or run.is_finished):
            return self._saying(FIRST, live)
        told = page([replace(run, is_running=self.is_running)], live=live)
        return self._without_place(told)  # next steps name the folder

    def run(self) -> Run:
        """Return the run as it is now; before its first round, one that has nothing yet."""
        empty = Run(self.path.name, self.path, is_finished=False)
        return read_run(self.path) if self.has_run else empty

    def excuse(self, error: ConfigError) -> str:
        """Return a page that says why there is none yet, and asks again."""
        return self._saying(self._without_place(str(error)), self._live(""))

    def check(self) -> None:
        """Refuse what cannot become the folder of a run.

        Raises:
            ConfigError: It cannot.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"DIR must be the folder of a run, got {self.path}: it is a file")
        if (runs := runs_in(self.path)) and not self.has_run:
            raise ConfigError(
                f"DIR must be the folder of one run, got {self.path}; "
                f"the newest run in it is {runs[0]}"
            )

    @property
    def has_run(self) -> bool:
        """Whether anything of a run has arrived."""
        return any((self.path / name).is_file() for name in (REPORT, ROUNDS))

    @property
    def is_running(self) -> bool:
        """Whether a process seems to add to it: the next round is not long overdue."""
        progress = None if self.is_finished else self._progress()
        return progress is not None and not progress.is_overdue(time.time())

    def _without_place(self, words: str) -> str:
        """Return words without where the folder is: whoever reads the page may be anybody."""
        places = (
            self.path.absolute(),
            self.path.resolve(),
            Path(folder_to_type(self.path, is_whole=True)),
        )
        for place in places:
            words = words.replace(f"{place}{os.sep}", "").replace(str(place), place.name)
        return words

    def _saying(self, words: str, live: Live) -> str:
        return document(self.path.name, self.path.name, Markup("<p>{}</p>").format(words), live)

    def _live(self, stamp: str | None = None) -> Live:
        return Live(_BAR.format(self.stamp() if stamp is None else stamp), _STYLE, _SCRIPT)

    def _progress(self) -> RunProgress | None:
        """Return how far the run is; None if nothing says so, or nothing that can be read."""
        try:
            values = json.loads((self.path / PROGRESS).read_bytes())
            found: RunProgress = codec(RunProgress).read(values)
            return found
        except (OSError, ValueError, RecursionError, CodecError, ConfigError):
            return None


def _changed(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "0"
    return f"{found.st_mtime_ns:x}.{found.st_size:x}"


def _words(progress: RunProgress, now: float) -> str:
    """Return round, time left and how old this is."""
    done = f"round {progress.rounds_done} of {progress.num_rounds}"
    if progress.rounds_done >= progress.num_rounds:
        return f"{done}; the report is being made"
    left = progress.seconds_left(now)
    if left is None:
        return f"{done}; started {_duration(max(now - progress.started, 0))} ago"
    if left <= 0:
        return f"{done}; last round ended {_duration(max(now - progress.updated, 0))} ago"
    return f"{done}; about {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return counted(round(seconds), "second")
    if seconds < 5400:
        return counted(round(seconds / 60), "minute")
    return f"{seconds / 3600:.1f} hours"


_TRIES = 100  # ports after a busy one
_GRACE = 5.0  # seconds in which open pages can ask for the end of a run
_MAX_SECONDS = 60.0  # seconds that making the last page may take
_RECENT = 3.0  # seconds since its last question within which a page counts as open


@dataclass(frozen=True)
class Address:
    """An address to listen on."""

    host: str  # as the user has named it
    number: str  # what the name stands for
    family: socket.AddressFamily  # of the number, version 4 or 6

    @classmethod
    def of(cls, host: str) -> Address:
        """Look a name up, once: where a name server is far or gone, each look-up takes seconds.

        Raises:
            ConfigError: It stands for nothing. An empty one does not stand for every address.
        """
        try:
            family, _, _, _, found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise _not_here(host, error) from None
        return cls(host, str(found[0]), family)

    def url(self, port: int) -> str:
        """Return the address of a page; one that listens everywhere has the machine's name."""
        host = socket.gethostname() if ip_address(self.number).is_unspecified else self.host
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def may_be_called(self, host: str) -> bool:
        """Whether a request may name this host.

        A page of somebody else's could point its own name at this machine and read the answers; the
        browser then sends that name. It cannot make a browser send a number, or a name of ours.
        """
        ours = {"localhost", self.host.lower(), socket.gethostname().lower()}
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            if name not in ours:
                ip_address(name)  # no number either: a foreign name
        except ValueError:
            return False
        return True

    def free_port(self, first: int) -> int | None:
        """Return the first free port from this one on."""
        ports = range(first, min(first + _TRIES, 65536))
        return next((port for port in ports if self._is_free(port)), None)

    def _is_free(self, port: int) -> bool:
        with socket.socket(self.family, socket.SOCK_STREAM) as probe:
            # As the server does: a port whose last reader has just left is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.number, port))
            except OSError:
                return False
        return True

    def explained(self, error: OSError, port: int) -> ConfigError:
        """Return why nothing can listen on this port, and which option to change to what."""
        if error.errno == errno.EACCES:
            words = "is one that only administrators may use; try one above 1023"
            return ConfigError(f"--port {port} {words}: --port {PORT}")
        if error.errno != errno.EADDRINUSE:
            return _not_here(self.host, error)
        if (free := self.free_port(port + 1)) is None:
            return ConfigError(f"--port {port} is in use; take any free one: --port 0")
        return ConfigError(f"--port {port} is in use; the next free one is {free}: --port {free}")


def _not_here(host: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"--host must be an address of this machine, such as {HOST}, got {host!r}: {error}"
    )


class LiveServer(ThreadingHTTPServer):
    """Answers questions about one run folder; nothing else can be read through it.

    It has its port from the beginning, so that a busy one is known before there is a folder.

    Args:
        address: What to listen on.
        port: Port to listen on; 0 lets the system choose.

    Raises:
        ConfigError: The port is busy (the text names the next free one), or the address is not one
            of this machine.
    """

    daemon_threads = True
    folder: LiveFolder

    def __init__(self, address: Address, port: int) -> None:
        self.address = address
        self.last_asked, self._num_answering, self._lock = 0.0, 0, threading.Lock()
        self.address_family = address.family
        try:
            super().__init__((address.number, port), _Handler)
        except OSError as error:
            raise address.explained(error, port) from None

    def server_bind(self) -> None:
        """Bind as any server; HTTPServer would ask a name server what this machine is called."""
        TCPServer.server_bind(self)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Where the page is."""
        return self.address.url(self.port)

    def let_readers_finish(self) -> None:
        """Wait until pages that are open have seen the end of the run, but not for long."""
        end = time.monotonic()
        while (now := time.monotonic()) < min(end + _GRACE, self.last_asked + _RECENT) or (
            self._num_answering and now < end + _MAX_SECONDS
        ):
            time.sleep(0.05)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Note that somebody reads, and for how long."""
        with self._lock:
            self._num_answering += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_answering -= 1
            self.last_asked = time.monotonic()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a reader that goes away is no error of the run."""


@contextmanager
def serving(server: LiveServer, folder: Path) -> Iterator[LiveServer]:
    """Serve the page of a folder in a thread for as long as the block runs."""
    server.folder = LiveFolder(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server
        server.let_readers_finish()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def open_server(host: str = HOST, port: int | None = None) -> LiveServer:
    """Return a server on the port that was asked for, or else on the first free one.

    Raises:
        ConfigError: The port that was asked for is busy, or the host has no address.
    """
    address = Address.of(host)
    usual = address.free_port(PORT) or 0
    return LiveServer(address, usual if port is None else port)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "leakmeter", ""

    timeout = 30  # seconds; for a reader that connects and asks nothing

    def do_HEAD(self) -> None:
        """Answer as to GET, without the content."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer with the page or with its state."""
        if not self.server.address.may_be_called(self.headers.get("Host", "")):
            words = "this host name is not served; open the address that the terminal shows"
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", words)
            return
        with self.server.answering():
            self._read(self.path.partition("?")[0])

    def _read(self, path: str) -> None:
        match path:
            case "/":
                self._page()
            case "/state":
                state = self.server.folder.state()
                self._answer(HTTPStatus.OK, "application/json", json.dumps(state))
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is only one page: /")

    def _page(self) -> None:
        try:
            status, text = HTTPStatus.OK, self.server.folder.html()
        except ConfigError as error:
            status, text = HTTPStatus.SERVICE_UNAVAILABLE, self.server.folder.excuse(error)
        self._answer(status, "text/html", text)

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Keep the terminal for the run."""
