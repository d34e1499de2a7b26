"""Between training and the sum: the same as the client's own mods do."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.clipping import clip
from leakmeter.clients.sampling.postprocess import Clip

UPDATES = stream(0, "finish").standard_normal((6, 50)) * np.arange(6)[:, None]
WEIGHTS = np.array([1.0, 2, 3, 4, 5, 6])


def rngs(name: str = "a") -> list[np.random.Generator]:
    return [stream(0, name, i) for i in range(6)]


def test_clipping_clips_each_row_by_its_own_norm() -> None:
    found = Clip(5.0)(UPDATES, WEIGHTS, rngs())
    np.testing.assert_array_equal(found, [clip(u, 5.0) for u in UPDATES])
    assert np.linalg.norm(found, axis=1).max() == pytest.approx(5)
    assert not found[0].any()


@pytest.mark.parametrize("norm", [0.0, -1.0, float("inf"), float("nan")])
def test_a_norm_that_clips_nothing_is_refused(norm: float) -> None:
    with pytest.raises(ValueError, match=r"norm must be in \(0, inf\), got"):
        Clip(norm)
