"""Locks: one process at a time, named to all others, and gone with the process."""

from __future__ import annotations

import errno
import os
import platform
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leakmeter.auditors.run_log import HeldError, locked


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    words = rf"process {os.getpid()} on {platform.node()}"
    with locked(path), pytest.raises(HeldError, match=words), locked(path):
        raise AssertionError
    with locked(path):
        pass


def refuse(*_: Any) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize(
    ("fcntl", "words"),
    [
        (None, "cannot be locked (this system has no fcntl)"),
        (SimpleNamespace(flock=refuse, LOCK_EX=2, LOCK_NB=4), "No locks available"),
    ],
)
def test_a_system_without_locks_says_so(
    fcntl: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", fcntl)
    with locked(tmp_path / ".lock", wait=1.0):
        pass
    assert words in caplog.text


def test_a_lock_is_waited_for_and_not_for_ever_and_a_killed_process_has_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / ".lock"
    ready, told = os.pipe()
    children = []
    for _ in range(2):
        if (child := os.fork()) == 0:
            with locked(path, wait=600.0):
                os.write(told, b"x")
                os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        children.append(child)
        os.read(ready, 1)
        try:
            with pytest.raises(HeldError, match=f"process {child} on"), locked(path, wait=0.1):
                raise AssertionError
        finally:  # the first goes on and ends, the second is killed
            os.kill(child, signal.SIGCONT if len(children) == 1 else signal.SIGKILL)
        with locked(path, wait=600.0):
            pass
        os.waitpid(child, 0)
