"""Reconstructions that a run or an experiment has left as pictures next to its numbers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from leakmeter.auditors.inversion import FOLDER
from leakmeter.auditors.picture import SIGNATURE, caption_of
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.report.markup import Markup, tag

_MOST_BYTES, _MOST_PICTURES = 400_000, 12


def pictures(folders: Sequence[Path]) -> list[Markup]:
    """Return figures of the PNG files in these folders; large ones are named, not shown."""
    found = []
    for folder in folders:
        paths = sorted(folder.glob("*.png"))
        for path in paths[:_MOST_PICTURES]:
            content = path.read_bytes()
            if content.startswith(SIGNATURE):
                found.append(_figure(folder, path, content))
        if (left := len(paths) - _MOST_PICTURES) > 0:
            found.append(tag("p", f"{counted(left, 'further picture')} in {folder.name}/"))
    return found


def galleries_of(folder: Path) -> tuple[Path, Path]:
    """Return where a run leaves pictures: in its folder, and in that of the auditor inversion."""
    return folder, folder / FOLDER


def _figure(folder: Path, path: Path, content: bytes) -> Markup:
    where = folder.parent.name if folder.name == FOLDER else folder.name
    words = f"{path.stem} ({where})"
    if len(content) > _MOST_BYTES:
        return tag("p", f"{words} is too large for this page: {path.name}")
    source = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    told = caption_of(content)
    caption = f"{where}: {told}" if told else words
    return tag(
        "figure", tag("img", src=source, alt=words), tag("figcaption", caption), class_="picture"
    )
