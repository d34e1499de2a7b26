"""Locks: one process at a time, named to all others, and gone with the process."""

from __future__ import annotations

import errno
import os
import platform
import signal
import sys
from pathlib import Path
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


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    ready, told = os.pipe()
    if (child := os.fork()) == 0:
        with locked(path):
            os.write(told, b"x")
            signal.pause()
    os.read(ready, 1)
    try:
        with pytest.raises(HeldError, match=f"process {child} on"), locked(path):
            raise AssertionError
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with locked(path):
        pass


def test_a_system_without_locks_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path / ".lock"):
        pass
    assert "cannot be locked (this system has no fcntl)" in caplog.text


def test_a_file_system_without_locks_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path / ".lock", wait=1.0):
        pass
    assert "No locks available" in caplog.text


def test_a_lock_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    ready, told = os.pipe()
    if (child := os.fork()) == 0:
        with locked(path):
            os.write(told, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.read(ready, 1)
    try:
        with pytest.raises(HeldError, match=f"process {child} on"), locked(path, wait=0.2):
            raise AssertionError
        os.kill(child, signal.SIGCONT)
        with locked(path, wait=600.0):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
