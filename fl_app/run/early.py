"""What can be found wrong before torch is imported, which takes seconds."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from tempfile import gettempdir

from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError, out_of_range
from leakmeter.fl_app.config.names import IMAGES
from leakmeter.fl_app.run.size import check_size

_SECONDS = 5.0  # to wait for a cluster
# The first bytes of an HTTP/2 connection with an empty frame of settings: Ray speaks gRPC, which
# answers with a frame of settings of its own, type 4.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4
_LARGE_IMAGES = tuple(name for name in IMAGES if name != "digits")


def check_early(config: Config) -> None:
    """Raise ConfigError for what cannot work: sizes, model, cluster, data files."""
    check_size(config)
    if config.model == "cnn" and config.dataset not in _LARGE_IMAGES:
        has = "digits are 8×8" if config.dataset == "digits" else f"{config.dataset} has no images"
        raise ConfigError(
            f"--model cnn needs images of at least 15×15; {has}. Try --model mlp or --dataset mnist"
        )
    if config.engine == "ray":
        _check_cluster(config.ray_address)
    # After the cheap checks: these import numpy and read files.
    from leakmeter.fl_app.data.dealt import dealt

    dealt(config.task)


def _check_cluster(given: str) -> None:
    """Raise unless Ray answers where a cluster should be: Ray itself would wait for minutes."""
    address = given or os.environ.get("RAY_ADDRESS", "")
    name = "--ray-address" if given else "RAY_ADDRESS"
    if address in ("", "local"):
        return
    if address == "auto":
        noted = Path(os.environ.get("RAY_TMPDIR") or gettempdir()) / "ray" / "ray_current_cluster"
        address = noted.read_text().strip() if noted.is_file() else ""
        if not address:  # Ray looks for processes itself, and answers at once
            return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise out_of_range(name, "HOST:PORT or auto", address)
    if (wrong := _silence(host, int(port))) is not None:
        raise ConfigError(
            f"{name} must be where a Ray cluster listens, got {address}: {wrong}. Start one with "
            "`ray start --head`, or leave out --ray-address to use this machine"
        )


def _silence(host: str, port: int) -> str | None:
    """Return why nothing that could be Ray answers; None if something does."""
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            connection.sendall(_HELLO)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        return f"{error.strerror if isinstance(error, OSError) and error.strerror else error}"
    is_ray = len(answer) > 3 and answer[3] == _SETTINGS
    return None if is_ray else "something else answers there"
