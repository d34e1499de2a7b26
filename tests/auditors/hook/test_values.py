"""The numbers of an array are those that Flower reads."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array

from leakmeter.auditors.hook.layout import is_finite, values

ARRAYS = {
    "a matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a number": np.array(2.5),
    "nothing": np.empty((0, 4), dtype=np.float16),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "the other end first": np.arange(4, dtype=">f4"),
    "whole numbers": np.arange(5),
    "a shape of many digits": np.zeros((1,) * 30, dtype=np.float32),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_values_are_those_that_flower_reads(name: str) -> None:
    array = Array(ARRAYS[name])
    found, known = values(array), array.numpy().ravel()
    assert found.dtype == known.dtype
    assert np.array_equal(found, known)


def test_values_are_not_copied() -> None:
    array = Array(np.ones(1000, dtype=np.float32))
    assert not values(array).flags.writeable
    assert not values(array).flags.owndata


@pytest.mark.parametrize("cut", [3, 200])
def test_bytes_that_are_no_array_raise_as_flower_does(cut: int) -> None:
    whole = Array(np.ones(100, dtype=np.float32))
    broken = Array(dtype="float32", shape=(100,), stype=whole.stype, data=whole.data[:cut])
    with pytest.raises((ValueError, EOFError)):
        values(broken)


def test_another_kind_of_bytes_raises_as_flower_does() -> None:
    with pytest.raises(TypeError, match="Unsupported"):
        values(Array(dtype="float32", shape=(1,), stype="torch", data=b"\x93NUMPY"))


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [
        ([1.0, -2.0], True),
        ([], True),
        ([1.0, np.nan], False),
        ([np.inf, -np.inf], False),
        ([3e38, 3e38], True),  # whose sum is too large for single precision
    ],
)
def test_numbers_are_finite_whatever_their_sum_is(numbers: list[float], finite: bool) -> None:
    assert is_finite(Array(np.array(numbers, dtype=np.float32))) is finite


def test_what_is_no_float_is_finite() -> None:
    assert is_finite(Array(np.array([1, 2])))
    assert is_finite(Array(dtype="bfloat16", shape=(1,), stype="numpy.ndarray", data=b""))
