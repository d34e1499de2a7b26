"""One fixed order of a model's float arrays, so that an update is a vector; numbers of arrays."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Self

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector

_log = logging.getLogger("flwr")

_STYPE: Final = "numpy.ndarray"
_HEADERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_MAX_HEADER: Final = 2**10  # bytes of a header; those of arrays of numbers have 128
_BLOCK: Final = 2**15  # numbers at a time, which stay in the processor's cache


class LayoutError(ValueError):
    """A record does not have the arrays of a layout."""


class NoFloatsError(ValueError):
    """A record has no float array, so there is no update to audit."""

    def __init__(self, record: Mapping[str, Array]) -> None:
        kinds = sorted({array.dtype for array in record.values()})
        super().__init__(
            "the model must have float arrays (float16, float32 or float64) to be audited, got "
            f"{', '.join(kinds) or 'no arrays'}"
        )


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of the float arrays of the first record that was sent.

    All other arrays (BatchNorm's counters, bytes of trees, bfloat16) are excluded: they are neither
    clipped nor noised nor audited. FedAvg turns integers into floats after the first round, so the
    layout must come from the first record.

    Flower's strategies accept any names in a reply. If a record has other names, the arrays
    correspond by their order.

    Attributes:
        names: Of the float arrays.
        shapes: Their shapes.
        dtypes: Their types.
        left_out: Names of all other arrays.
        order: All names, in the order of the record.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: ArrayRecord, left_out: Collection[str] = ()) -> Self:
        """Return the layout of `record`.

        Args:
            record: The first that was sent, or a later one.
            left_out: For a later one: the arrays that were not floats in the first.

        Raises:
            NoFloatsError: There is nothing to make a vector of.
        """
        inside = {
            name: array
            for name, array in record.items()
            if name not in left_out and is_float(array)
        }
        if not inside:
            raise NoFloatsError(record)
        return cls(
            names=tuple(inside),
            shapes=tuple(tuple(a.shape) for a in inside.values()),
            dtypes=tuple(a.dtype for a in inside.values()),
            left_out=tuple(k for k in record if k not in inside),
            order=tuple(record),
        )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each array."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def dim(self) -> int:
        """Length of the vector."""
        return sum(self.sizes)

    @property
    def left_out_places(self) -> tuple[int, ...]:
        """Where the other arrays are in a record."""
        return tuple(self.order.index(name) for name in self.left_out)

    def flatten(self, record: Mapping[str, Array]) -> Vector:
        """Return the float arrays of `record` as one float64 vector."""
        self.check(record)
        vector = np.empty(self.dim)
        for part, array in zip(self._parts(vector), self.arrays_in(record), strict=True):
            part[:] = values(array)
        return vector

    def add(self, record: Mapping[str, Array], weight: float, to: Vector) -> None:
        """Add `weight` times the float arrays of `record` to a vector."""
        self.check(record)
        scaled = np.empty(_BLOCK)
        for place, numbers in self._blocks(record):
            np.multiply(numbers, weight, out=scaled[: numbers.size], dtype=np.float64)
            to[place] += scaled[: numbers.size]

    def distance(self, record: Mapping[str, Array], vector: Vector) -> float:
        """Return the length of the difference between `record` and a vector; it may be NaN."""
        self.check(record)
        square = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for place, numbers in self._blocks(record):
                difference = numbers - vector[place]
                square += float(difference @ difference)
        return math.sqrt(square)

    def restore(
        self,
        vector: NDArray[np.floating],
        template: ArrayRecord,
        dtypes: Sequence[str] | None = None,
    ) -> ArrayRecord:
        """Return a record with `vector` in it and all other arrays as in `template`.

        Args:
            vector: Of length `dim`.
            template: Has the names, and the arrays that are not in the vector.
            dtypes: Types of the float arrays; None takes those of the first record.
        """
        if vector.shape != (self.dim,):
            raise ValueError(f"vector must have shape ({self.dim},), got {vector.shape}")
        pieces = zip(
            self._names_in(template),
            self.shapes,
            self.dtypes if dtypes is None else dtypes,
            self._parts(vector),
            strict=True,
        )
        restored = {
            name: Array(piece.reshape(shape).astype(dtype)) for name, shape, dtype, piece in pieces
        }
        return ArrayRecord({name: restored.get(name, template[name]) for name in template})

    def fits(self, record: Mapping[str, Array]) -> bool:
        """Whether `record` has all arrays of this layout, by name or by order."""
        try:
            self.check(record)
        except LayoutError:
            return False
        return True

    def check(self, record: Mapping[str, Array]) -> None:
        """Raise if `record` lacks an array of this layout or holds one of another shape.

        Raises:
            LayoutError: It does.
        """
        for name, array, shape in zip(self.names, self.arrays_in(record), self.shapes, strict=True):
            if tuple(array.shape) != shape:
                raise LayoutError(
                    f"array {name!r} must have shape {shape}, got {tuple(array.shape)}"
                )
            if not is_float(array):
                raise LayoutError(f"array {name!r} must contain floats, got {array.dtype}")

    def dtypes_in(self, record: Mapping[str, Array]) -> tuple[str, ...]:
        """Return the types that the float arrays have in `record`."""
        return tuple(array.dtype for array in self.arrays_in(record))

    def announce(self) -> None:
        """Log once which arrays no audit covers.

        Raises:
            ValueError: There is nothing to cover.
        """
        if not self.dim:
            raise ValueError("the float arrays of the model must have entries, got none")
        if self.left_out:
            _log.info("not audited (no float arrays): %s", ", ".join(self.left_out))

    def arrays_in(self, record: Mapping[str, Array]) -> list[Array]:
        """Return the float arrays of `record` in the order of the vector."""
        return [record[name] for name in self._names_in(record)]

    def _names_in(self, record: Mapping[str, Array]) -> list[str]:
        """Return what the float arrays are called in `record`."""
        missing = [name for name in self.names if name not in record]
        if not missing:
            return list(self.names)
        if len(record) != len(self.order):
            raise LayoutError(f"array {missing[0]!r} must be in the record, got {sorted(record)}")
        called = dict(zip(self.order, record, strict=True))
        return [called[name] for name in self.names]

    def _blocks(self, record: Mapping[str, Array]) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the float arrays of `record` by blocks, and where each is in the vector."""
        start = 0
        for array in self.arrays_in(record):
            numbers = values(array)
            for first in range(0, numbers.size, _BLOCK):
                part = numbers[first : first + _BLOCK]
                yield slice(start, start + part.size), part
                start += part.size

    def _parts(self, vector: NDArray[np.floating]) -> list[NDArray[np.floating]]:
        """Return views of the vector, one for each array."""
        return np.split(vector, np.cumsum(self.sizes)[:-1])


# The numbers of an array, read in place. `Array.numpy()` copies them: a round reads every update,
# and at 10⁷ parameters the copies take longer than the work on the numbers.


def values(array: Array) -> NDArray[Any]:
    """Return the numbers of an array in their order, flat; not to be written to."""
    return shaped(array).ravel()


def shaped(array: Array) -> NDArray[Any]:
    """Return the numbers of an array in the shape that they have; not to be written to.

    They are read in place from the bytes of the array if these are an array of numbers in C order.
    `Array.numpy()` reads all others, and says what is wrong with them. The shape is that of the
    bytes. What the array says about itself may be another one.
    """
    found = _place(array.data[:_MAX_HEADER].partition(b"\n")[0]) if array.stype == _STYPE else None
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
