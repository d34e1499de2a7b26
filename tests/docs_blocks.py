"""Finds the code in Markdown pages, and what a page says must not be run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\s*$")
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
_SPAN = re.compile(r"`((?:python run_sim\.py|leakmeter)(?: [^`]*)?)`")
_PROGRAMS = (["python", "run_sim.py"], ["leakmeter"])


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it begins at, and why it is not run."""

    language: str
    text: str
    line: int
    not_run: str | None = None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order.

    A comment `<!-- not run: reason -->` on the line before a fence leaves that block out.
    """
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    opened: tuple[str, int] | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if opened is None:
            opened = (fence[1], number)
            continue
        language, start = opened
        before = _NOT_RUN.search(lines[start - 1]) if start else None
        text = "\n".join(lines[start + 1 : number]) + "\n"
        found.append(Block(language, text, start + 1, before[1] if before else None))
        opened = None
    assert opened is None, f"{page}: the block at line {opened[1] + 1} is not closed"
    return found


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block; lines may be joined by `&&` or `\\`."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while "&&" in words:
            at = words.index("&&")
            yield words[:at]
            words = words[at + 1 :]
        if words:
            yield words


def our_arguments(words: list[str]) -> list[str] | None:
    """Return the arguments of a call of our own program; None for any other program."""
    for program in _PROGRAMS:
        if words[: len(program)] == program:
            return words[len(program) :]
    return None


def spans(page: Path) -> list[str]:
    """Return calls of our program inside a line of text that hold no placeholder."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = (" ".join(span.split()) for span in _SPAN.findall(text))
    return [s for s in found if not re.search(r"\b[A-Z]{2,}\w*\b|\b[A-Z]\b|…|\.\.\.|\||<", s)]
