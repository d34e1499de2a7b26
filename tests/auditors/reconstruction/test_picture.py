"""Pictures are PNG files that others can read, and keep their captions."""

from __future__ import annotations

import io

import numpy as np
import pytest

from leakmeter.auditors.reconstruction.inversion import SIGNATURE, caption_of, png


@pytest.mark.parametrize("shape", [(4, 8, 8), (2, 1, 5, 7), (3, 3, 32, 32)])
def test_pixels_come_back(shape: tuple[int, ...]) -> None:
    image = pytest.importorskip("PIL.Image")
    rows = [np.random.default_rng(i).random(shape) for i in (0, 1)]
    content = png(rows, "ε ≥ 1, two rows")
    seen = np.asarray(image.open(io.BytesIO(content)))
    size = round(64 / max(shape[-2:]))
    first = rows[1][0, :, 0, 0] if len(shape) == 4 else rows[1][0, 0, 0]
    at = seen[seen.shape[0] // 2, 0]  # the top left pixel of the second row
    assert np.allclose(at, np.rint(255 * first))
    assert seen.shape[0] > 2 * size * shape[-2]


def test_captions_come_back_and_other_files_have_none() -> None:
    content = png([np.zeros((1, 8, 8))], "ε ≥ 1")
    assert content.startswith(SIGNATURE)
    assert caption_of(content) == "ε ≥ 1"
    for other in (b"", b"text", SIGNATURE, content[:40], SIGNATURE + b"\xff" * 20):
        assert caption_of(other) == ""


def test_the_same_images_give_the_same_bytes() -> None:
    rows = [np.linspace(0, 1, 64).reshape(1, 8, 8)]
    assert png(rows, "x") == png(rows, "x")
