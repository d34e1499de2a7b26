"""A lock on a file that lasts as long as the process that has it, and says who that is."""

from __future__ import annotations

import errno
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

_log = logging.getLogger("flwr")

# What a file system without locks answers, such as NFS without a lock service.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}


class HeldError(Exception):
    """Another process has the lock. The text says which."""


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of `path`, a file that is made if missing and stays.

    The system frees the lock when the process ends, however it ends: nothing is left to clean up.
    Where the system or the file system has no locks, a warning says so and the block runs without.

    Args:
        path: The file. Its text names the last process that had the lock.
        wait: Whether to wait for the lock.

    Raises:
        HeldError: Another process has it, and `wait` is false.
    """
    # Not truncated yet: the text is that of the process that has the lock.
    with path.open("a+b", buffering=0) as file:
        if _is_taken(file, path, wait=wait):
            raise HeldError(_holder(file))
        with suppress(OSError):  # a name for others to read; the lock holds without it
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}".encode())
        yield


def _is_taken(file: FileIO, path: Path, *, wait: bool) -> bool:
    """Take the lock and return whether another process has it."""
    try:
        import fcntl
    except ImportError:
        _warn(path, "this system has no fcntl")
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
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
