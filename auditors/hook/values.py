"""The numbers of an array in a message, read in place.

`Array.numpy()` copies them. A round reads every update, and at 10⁷ parameters the copies take
longer than the work on the numbers.
"""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
from flwr.app import Array
from numpy.lib import format as npy
from numpy.typing import NDArray

_STYPE: Final = "numpy.ndarray"
_HEADERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_MOST: Final = 2**10  # bytes of a header; those of arrays of numbers have 128


def values(array: Array) -> NDArray[Any]:
    """Return the numbers of an array in their order, flat; not to be written to."""
    return shaped(array).ravel()


def shaped(array: Array) -> NDArray[Any]:
    """Return the numbers of an array in the shape that they have; not to be written to.

    They are read in place from the bytes of the array if these are an array of numbers in C order.
    `Array.numpy()` reads all others, and says what is wrong with them. The shape is that of the
    bytes. What the array says about itself may be another one.
    """
    found = _place(array.data[:_MOST].partition(b"\n")[0]) if array.stype == _STYPE else None
    if found is None:
        return array.numpy()
    dtype, shape, start = found
    count = math.prod(shape)
    if len(array.data) != start + count * dtype.itemsize:
        return array.numpy()
    flat = np.frombuffer(array.data, dtype, count, start) if count else np.empty(0, dtype)
    return flat.reshape(shape)


def is_finite(array: Array) -> bool:
    """Whether all numbers of an array are finite; True if they are not numpy floats."""
    return not is_float(array) or all_finite(values(array))


def all_finite(numbers: NDArray[Any]) -> bool:
    """Whether all numbers are finite; True for types that have no infinity."""
    if numbers.dtype.kind != "f":
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        # One that is not finite makes the sum so. A sum of finite ones may be too large.
        return bool(np.isfinite(numbers.sum()) or np.isfinite(numbers).all())


def is_float(array: Array) -> bool:
    """Whether an array has a numpy float type; bfloat16 and complex numbers do not count."""
    try:
        return bool(np.issubdtype(np.dtype(array.dtype), np.floating))
    except TypeError:  # a name that numpy does not know
        return False


@lru_cache(maxsize=2**12)  # for the arrays of a model come again in every update
def _place(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int] | None:
    """Return type, shape and start of the numbers behind a header; None if it is another."""
    file = io.BytesIO(header + b"\n")
    try:
        shape, is_fortran, dtype = _HEADERS[npy.read_magic(file)](file)
    except (KeyError, ValueError):
        return None
    if is_fortran or dtype.hasobject:
        return None
    return dtype, shape, file.tell()
