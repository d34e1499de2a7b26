"""Arrays packed by hand are those that Flower makes."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array

from leakmeter.auditors.hook.layout import to_array


@pytest.mark.parametrize(
    "numbers",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2],
        np.float64(3.0).reshape(()),
        np.zeros((0, 4), dtype=np.float16),
        np.arange(3, dtype="<u4"),
    ],
)
def test_a_packed_array_is_flowers_own(numbers: np.ndarray) -> None:
    assert to_array(numbers) == Array(np.ascontiguousarray(numbers).reshape(numbers.shape))
    assert np.array_equal(to_array(numbers).numpy(), numbers)
