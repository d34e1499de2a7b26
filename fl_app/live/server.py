"""Serves the live page of one run folder, on the loopback address unless another is asked for."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.live import HOST, PORT
from leakmeter.fl_app.live.page import LiveFolder

_TRIES = 100  # ports after a busy one
_GRACE = 5.0  # seconds in which open pages can ask for the end of a run
_LONGEST = 60.0  # seconds that making the last page may take
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
            self._num_answering and now < end + _LONGEST
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
