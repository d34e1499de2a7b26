"""Serves the live page of one run folder, on the loopback address unless another is asked for."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.live.page import LiveFolder

HOST, PORT = "127.0.0.1", 8765
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TRIES = 100  # ports after a busy one
_GRACE = 5.0  # seconds in which open pages can fetch the end of a run
_RECENT = 3.0  # seconds since its last question within which a page counts as open


class LiveServer(ThreadingHTTPServer):
    """Answers questions about one run folder; nothing else can be read through it.

    Args:
        folder: The run folder.
        host: Address to listen on.
        port: Port to listen on; 0 lets the system choose.

    Raises:
        ConfigError: The port is busy (the text names the next free one), or the address is not one
            of this machine.
    """

    daemon_threads = True

    def __init__(self, folder: Path, host: str = HOST, port: int = PORT) -> None:
        self.folder = LiveFolder(folder)
        self.last_asked, self.has_shown_end = 0.0, False
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise _explained(error, host, port) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = map(str, self.server_address[:2])
        return f"http://{host}:{port}/"

    def allows(self, host: str) -> bool:
        """Whether a request may name this host.

        A page of somebody else's could point its own name at this machine and read the answers; the
        browser then sends that name.
        """
        name = urlsplit(f"//{host}").hostname
        own = str(self.server_address[0])
        return own not in _LOOPBACK or name in _LOOPBACK

    def let_readers_finish(self) -> None:
        """Wait until pages that are open have seen the end of the run, but not for long."""
        until = time.monotonic() + _GRACE
        while time.monotonic() < min(until, self.last_asked + _RECENT) and not self.has_shown_end:
            time.sleep(0.05)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a reader that goes away is no error of the run."""


@contextmanager
def serving(server: LiveServer) -> Iterator[LiveServer]:
    """Serve in a thread for as long as the block runs."""
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server
        server.let_readers_finish()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def open_server(folder: Path, host: str, port: int | None) -> LiveServer:
    """Return a server on the port that was asked for, or else on the first free one.

    Raises:
        ConfigError: The port that was asked for is busy, or the host has no address.
    """
    host = _address(host)
    if port is not None:
        return LiveServer(folder, host, port)
    try:
        return LiveServer(folder, host, PORT)
    except ConfigError:
        return LiveServer(folder, host, next_free(host, PORT) or 0)


def _address(host: str) -> str:
    # Looked up once: binding a name would look it up for every port that is tried.
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except (OSError, UnicodeError) as error:  # the latter for a label of more than 63 characters
        raise _no_address(error, host) from None


def next_free(host: str, port: int) -> int | None:
    """Return the first free port after this one."""
    for other in range(port + 1, min(port + 1 + _TRIES, 65536)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, other))
            except OSError:
                continue
            return other
    return None


def _explained(error: OSError, host: str, port: int) -> ConfigError:
    free = next_free(host, port)
    if free is None:
        return _no_address(error, host)
    return ConfigError(f"--port {port} is in use; the next free one is {free}: --port {free}")


def _no_address(error: Exception, host: str) -> ConfigError:
    return ConfigError(
        f"--host must be an address of this machine, such as {HOST}, got {host!r}: {error}"
    )


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "leakmeter", ""

    def do_GET(self) -> None:
        """Answer with the page or with its state."""
        if not self.server.allows(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "this host name is not served")
            return
        self.server.last_asked = time.monotonic()
        match urlsplit(self.path).path:
            case "/":
                self._page()
            case "/state":
                state = self.server.folder.state()
                self._answer(HTTPStatus.OK, "application/json", json.dumps(state))
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is only one page: /")

    def _page(self) -> None:
        is_end = self.server.folder.is_finished
        try:
            text = self.server.folder.html()
        except ConfigError as error:  # a line that is just being written, or a damaged file
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))
            return
        self._answer(HTTPStatus.OK, "text/html", text)
        self.server.has_shown_end |= is_end

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Keep the terminal for the run."""
