"""A page on paper: what the browser prints, and how much of each sheet is used."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_MARGIN = 0.06  # of the height, at the foot, where only the number of the page is
_WHITE = 250  # of 255


def texts(pdf: Path) -> list[str]:
    """Return the words of each sheet."""
    done = subprocess.run(
        ["pdftotext", "-layout", str(pdf), "-"], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\f")[:-1]


def used(pdf: Path) -> list[float]:
    """Return of each sheet down to which share of its height anything is printed."""
    done = subprocess.run(
        ["pdftoppm", "-gray", "-r", "20", str(pdf)], capture_output=True, check=True
    )
    return [_used(*one) for one in _images(done.stdout)]


def _images(content: bytes) -> list[tuple[int, bytes]]:
    """Return width and pixels of images in the form PGM, one after the other."""
    found = []
    while content:
        head = re.match(rb"P5\s+(\d+)\s+(\d+)\s+255\s", content)
        assert head is not None
        width, size = int(head[1]), int(head[1]) * int(head[2])
        found.append((width, content[head.end() : head.end() + size]))
        content = content[head.end() + size :]
    return found


def _used(width: int, pixels: bytes) -> float:
    rows = [pixels[i : i + width] for i in range(0, len(pixels), width)]
    body = rows[: int(len(rows) * (1 - _MARGIN))]
    return max((i for i, row in enumerate(body) if min(row) < _WHITE), default=0) / len(body)
