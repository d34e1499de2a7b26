"""Where a live page may be served and who may ask for it."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report.live import Address


def test_an_unknown_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look_up(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(ConfigError, match="--host must be an address of this machine, such as 127"):
        Address.of("far.example")
    assert asked == ["far.example"]


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
        ("127.0.0.1:8765", True),
        ("localhost.:1", True),
        ("[::1]:8765", True),
        ("10.0.0.7:8765", True),  # a browser sends a number only if the reader has typed it
        (socket.gethostname().upper(), True),
        ("evil.example:8765", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("[::1", False),
        ("", False),
        ("\0", False),
    ],
)
def test_only_numbers_and_own_names_may_ask(own: str, host: str, may: bool) -> None:
    assert Address.of(own).may_be_called(host) is may


def test_the_name_that_was_asked_for_may_ask() -> None:
    address = Address("Box.lan", "10.0.0.7", socket.AF_INET)
    assert address.may_be_called("box.lan:8765")
    assert not address.may_be_called("other.lan:8765")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "--port 80 is one that only administrators may use; .*: --port 8765"),
        (errno.EADDRNOTAVAIL, "--host must be an address of this machine, .* got '127.0.0.1'"),
    ],
)
def test_what_is_wrong_with_an_address_is_not_blamed_on_the_port(number: int, said: str) -> None:
    error = OSError(number, "what the system says")
    with pytest.raises(ConfigError, match=said):
        raise Address.of("127.0.0.1").explained(error, 80)


def test_without_a_free_port_any_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Address, "_is_free", lambda *_: False)
    busy = OSError(errno.EADDRINUSE, "in use")
    with pytest.raises(ConfigError, match="--port 80 is in use; take any free one: --port 0"):
        raise Address.of("127.0.0.1").explained(busy, 80)
