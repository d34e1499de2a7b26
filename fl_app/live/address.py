"""Where a live page is served: an address of this machine, a free port, names that may ask."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from leakmeter.fl_app.config.errors import ConfigError

HOST, PORT = "127.0.0.1", 8765
_TRIES = 100  # ports after a busy one


@dataclass(frozen=True)
class Address:
    """An address to listen on.

    Attributes:
        host: As the user has named it.
        number: What the name stands for.
        family: Of the number, version 4 or 6.
    """

    host: str
    number: str
    family: socket.AddressFamily

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
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return _is_number(name) or name in {
            "localhost",
            self.host.lower(),
            socket.gethostname().lower(),
        }

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


def _is_number(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
