"""Small images as one PNG file, with a caption inside it; needs zlib alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.values import AnyFloats

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIDE = 64  # pixels that an image should have on a screen; digits have 8
_MAX_WORDS = 2000  # characters of a caption
_CAPTION = b"Description"


def png(rows: Sequence[AnyFloats], caption: str) -> bytes:
    """Return rows of images as one PNG, white between them.

    Args:
        rows: Each (count, height, width), or (count, channels, height, width) with 1 or 3 channels;
            from 0, black, to 1. All of one shape.
        caption: What the picture shows; kept as text in the file.
    """
    size = max(1, round(_SIDE / max(rows[0].shape[-2:])))
    strips = [_strip(row, size) for row in rows]
    pixels = np.concatenate(strips)  # (height, width, channels)
    height, width, channels = pixels.shape
    kind = {1: 0, 3: 2}[channels]  # grey or colour, as PNG numbers them
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    # Keyword, not compressed, no language, no translation of the keyword.
    words = _CAPTION + b"\0\0\0\0\0" + caption[:_MAX_WORDS].encode()
    return SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
            _chunk(b"iTXt", words),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),  # each line begins with filter 0
            _chunk(b"IEND", b""),
        )
    )


def caption_of(content: bytes) -> str:
    """Return the caption that `png` has put into a file; nothing for any other file."""
    head = _CAPTION + b"\0\0\0\0\0"
    for kind, data in _chunks(content):
        if kind == b"iTXt" and data.startswith(head):
            return data[len(head) :].decode(errors="replace")[:_MAX_WORDS]
    return ""


def _strip(row: AnyFloats, size: int) -> NDArray[np.uint8]:
    """Return a row of images side by side, (height, width, channels), with a white edge."""
    shown = row if row.ndim == 4 else row[:, None]
    large = shown.repeat(size, axis=-2).repeat(size, axis=-1)
    gap = max(2, large.shape[-1] // 16)
    framed = np.pad(large, [(0, 0), (0, 0), (0, gap), (0, gap)], constant_values=1.0)
    pixels = np.rint(255 * np.clip(framed, 0, 1)).astype(np.uint8)
    return np.concatenate(list(np.moveaxis(pixels, 1, -1)), axis=1)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the chunks of a PNG file as far as they are whole."""
    at = len(SIGNATURE) if content.startswith(SIGNATURE) else len(content)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        if at + 12 + length > len(content):
            return
        yield content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        at += 12 + length
