"""Pictures of reconstructions, as a page takes them in."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

from leakmeter.auditors.reconstruction.inversion import FOLDER
from leakmeter.auditors.reconstruction.picture import SIGNATURE, caption_of
from leakmeter.auditors.wording import counted

_MAX_BYTES, _MAX_PICTURES = 400_000, 12  # of a picture, of a folder


def pictures(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield source, name and caption of the PNG files in a folder; large ones are only named."""
    paths = sorted(folder.glob("*.png"))
    where = folder.parent.name if folder.name == FOLDER else folder.name
    for path in paths[:_MAX_PICTURES]:
        content, words = path.read_bytes(), f"{path.stem} ({where})"
        if not content.startswith(SIGNATURE):
            continue
        if len(content) > _MAX_BYTES:
            yield "", words, f"{words} is too large for this page: {path.name}"
            continue
        told = caption_of(content)
        source = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
        yield source, words, f"{where}: {told}" if told else words
    if (left := len(paths) - _MAX_PICTURES) > 0:
        yield "", "", f"{counted(left, 'further picture')} in {folder.name}/"
