"""The numbers of an array are those that Flower reads."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array

from leakmeter.auditors.hook.values import values

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
