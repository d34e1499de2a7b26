"""Reconstructions that a run or an experiment has left as pictures beside its numbers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from leakmeter.fl_app.report.markup import Markup, tag

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES, _MOST_PICTURES = 400_000, 12


def pictures(folders: Sequence[Path]) -> list[Markup]:
    """Return figures of the PNG files in these folders; large ones are named, not shown."""
    found = []
    for folder in folders:
        for path in sorted(folder.glob("*.png"))[:_MOST_PICTURES]:
            content = path.read_bytes()
            if content.startswith(_SIGNATURE):
                found.append(_figure(folder, path, content))
    return found


def _figure(folder: Path, path: Path, content: bytes) -> Markup:
    words = f"{path.stem} ({folder.name})"
    if len(content) > _MOST_BYTES:
        return tag("p", f"{words} is too large to stand here: {path.name}")
    source = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return tag(
        "figure", tag("img", src=source, alt=words), tag("figcaption", words), class_="picture"
    )
