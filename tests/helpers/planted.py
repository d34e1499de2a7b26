"""Kills a process at a chosen point of its writing: before, in and after each write and rename."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Plant:
    """Counts the points at which a process may die, and kills it at one of them.

    Args:
        at: The point, counted from 1; 0 for none.
        below: Only files below this folder count.
    """

    def __init__(self, at: int, below: Path) -> None:
        self._at, self._below = at, below
        self.passed = 0

    def point(self) -> None:
        """Die here, if this is the point."""
        self.passed += 1
        if self.passed == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Put points around every write and rename of this process, which ends soon."""
        plain_open, plain_replace, plain_sync = Path.open, Path.replace, os.fsync

        def opened(path: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
            file = plain_open(path, mode, *args, **more)
            writes = set(mode) & set("wax+")
            return _File(file, self.point) if writes and self._below in path.parents else file

        def replace(path: Path, target: Path) -> Path:
            self.point()
            found = plain_replace(path, target)
            self.point()
            return found

        def sync(number: int) -> None:
            self.point()
            plain_sync(number)

        Path.open = opened  # type: ignore[method-assign, assignment]
        Path.replace = replace  # type: ignore[method-assign, assignment]
        os.fsync = sync


class _File:
    """A file that is written in two halves, with a point before, between and after them."""

    def __init__(self, file: Any, point: Callable[[], None]) -> None:
        self._file, self._point = file, point

    def write(self, data: Any) -> int:
        self._point()
        half = len(data) // 2
        first = self._file.write(data[:half])
        self._file.flush()
        self._point()
        count: int = first + self._file.write(data[half:])
        self._file.flush()
        self._point()
        return count

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def run_and_die(main: Callable[[list[str]], int], words: list[str], at: int, below: Path) -> int:
    """Run a command in a copy of this process that dies at a point.

    Returns:
        How many points it has passed if it has ended by itself, -1 if it has died.
    """
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        plant = Plant(at, below)
        plant.install()
        try:
            main(words)
            os.write(writer, str(plant.passed).encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 100)
    os.close(reader)
    os.waitpid(child, 0)
    return int(said) if said else -1
