"""A lock on a file that lasts as long as the process that has it, and says who that is."""

from __future__ import annotations

import errno
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

_log = logging.getLogger("flwr")

# What a file system without locks answers, such as NFS without a lock service.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
_PAUSE = 0.05  # seconds between two attempts


class HeldError(Exception):
    """Another process has the lock. The text says which."""


class NoLockFileError(OSError):
    """The file of a lock cannot be opened. The text says which and why."""


@contextmanager
def locked(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of `path`, a file that is made if missing and stays.

    The system frees the lock when the process ends, however it ends: nothing is left to clean up.
    Where the system or the file system has no locks, a warning says so and the block runs without.

    Args:
        path: The file. Its text names the last process that had the lock.
        wait: Seconds to wait for the lock. A process that was stopped keeps its lock.

    Raises:
        HeldError: Another process has it all the time.
        NoLockFileError: The file cannot be opened, for example because a folder has its name.
    """
    with _opened(path) as file:
        until = time.monotonic() + wait
        while _is_taken(file, path):
            if time.monotonic() >= until:
                raise HeldError(_holder(file))
            time.sleep(_PAUSE)
        with suppress(OSError):  # a name for others to read; the lock holds without it
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}".encode())
        yield


def _opened(path: Path) -> FileIO:
    try:
        # Not truncated yet: the text is that of the process that has the lock.
        return path.open("a+b", buffering=0)
    except OSError as error:
        # Of its own type: whoever holds the lock may raise an OSError too.
        raise NoLockFileError(error.errno, error.strerror, str(path)) from None


def _is_taken(file: FileIO, path: Path) -> bool:
    """Take the lock and return whether another process has it."""
    try:
        import fcntl
    except ImportError:
        _warn(path, "this system has no fcntl")
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn(path, str(error.strerror))
    return False


def _warn(path: Path, reason: str) -> None:
    _log.warning(
        "%s cannot be locked (%s): make sure yourself that no second process writes there",
        *(path, reason),
    )


def _holder(file: FileIO) -> str:
    file.seek(0)
    return file.read(200).decode(errors="replace") or "another process"
