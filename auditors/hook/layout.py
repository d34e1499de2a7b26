"""One fixed order of a model's float arrays, so that an update is a vector; numbers of arrays."""

from __future__ import annotations

import io
import itertools
import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Self, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from leakmeter.auditors.values import Sliceable, Vector

_log = logging.getLogger("flwr")

NPY: Final = "numpy.ndarray"  # Flower's name for numpy's file format
_HEADERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_MAX_HEADER: Final = 2**10  # bytes of a header; those of arrays of numbers have 128
_BLOCK: Final = 2**15  # numbers at a time, which stay in the processor's cache
_SMALL: Final = 2**27  # bytes of an array that may be kept for other seats of a process


Blocks: TypeAlias = Iterator[tuple[slice, Vector]]  # parts of a vector, and where they are


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
        return LazyModel(self, record)[:]

    def weighted_sum(
        self,
        records: Sequence[tuple[Mapping[str, Array], float]],
        base: Sliceable | None = None,
    ) -> Blocks:
        """Yield the weighted sum of some records by blocks, without a vector of it.

        Args:
            records: Each with its weight.
            base: What to subtract; None for zeros.
        """
        for blocks in zip(*(self._blocks(record) for record, _ in records), strict=True):
            part, first = blocks[0]
            total = np.zeros(first.size) if base is None else np.negative(base[part])
            for (_, numbers), (_, weight) in zip(blocks, records, strict=True):
                total += np.multiply(numbers, weight, dtype=np.float64)
            yield part, total

    def distance(
        self,
        record: Mapping[str, Array],
        base: Mapping[str, Array] | None,
        *,
        least: DTypeLike = np.float64,
    ) -> float:
        """Return the length of the difference of two records; it may be NaN.

        Args:
            record: One of them.
            base: The other; None for zeros.
            least: Least precision of the differences; single takes half the time.
        """
        self.check(record)
        bases = itertools.repeat(None) if base is None else self._blocks(base)
        square = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for (_, numbers), other in zip(self._blocks(record), bases, strict=False):
                less = 0.0 if other is None else other[1]
                short = np.subtract(numbers, less, dtype=np.result_type(numbers.dtype, least))
                difference = short.astype(np.float64, copy=False)
                square += float(difference @ difference)
        return math.sqrt(square)

    def is_finite(self, record: Mapping[str, Array]) -> bool:
        """Whether all numbers of the float arrays are finite."""
        return all(map(is_finite, self.arrays_in(record)))

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
        pieces = np.split(vector, np.cumsum(self.sizes)[:-1])
        dtypes = self.dtypes if dtypes is None else dtypes
        return self._with_arrays(
            template,
            (
                to_array(piece.reshape(shape).astype(dtype))
                for shape, dtype, piece in zip(self.shapes, dtypes, pieces, strict=True)
            ),
        )

    def apply_change(
        self,
        base: Mapping[str, Array] | None,
        template: ArrayRecord,
        change: Callable[[NDArray[Any]], None],
        *,
        least: DTypeLike = np.float64,
    ) -> ArrayRecord:
        """Return a record whose float arrays are those of `base` after a change, block by block.

        It makes no vector: at 10⁸ parameters that would take 800 MB in every client.

        Args:
            base: What is changed; None for zeros.
            template: Has names and types, and the arrays that are not in the vector.
            change: Changes the next coordinates in place.
            least: Least precision in which it does so.
        """
        starts = itertools.repeat(None) if base is None else map(values, self.arrays_in(base))
        dtypes = map(np.dtype, self.dtypes_in(template))
        return self._with_arrays(
            template,
            (
                _apply_change(start, dtype, shape, change, least)
                for start, dtype, shape in zip(starts, dtypes, self.shapes, strict=False)
            ),
        )

    def nudge(self, base: Mapping[str, Array] | None, template: ArrayRecord) -> ArrayRecord:
        """Return a record like `base` in which one entry is moved by a rounding step of its type.

        Arrays of the same type as in `template` are those of `base`. Seats of one process that are
        sent the same bytes reply with the same array.

        Args:
            base: What is moved; None for zeros.
            template: Has names and types, and the arrays that are not in the vector.
        """
        first = next(place for place, size in enumerate(self.sizes) if size)
        dtypes = self.dtypes_in(template)
        if base is None or self.dtypes_in(base) != dtypes:
            return self.apply_change(base, template, _mover(dtypes[first]), least=np.float32)
        own = self.arrays_in(base)
        own[first] = _nudge(own[first])
        return self._with_arrays(template, own)

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

    def _with_arrays(self, template: ArrayRecord, arrays: Iterable[Array]) -> ArrayRecord:
        """Return a record with these float arrays and all other arrays as in `template`."""
        found = dict(zip(self._names_in(template), arrays, strict=True))
        return ArrayRecord({name: found.get(name, template[name]) for name in template})

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


class LazyModel:
    """A model that is a vector only when somebody asks for it: at 10⁸ parameters it takes 800 MB.

    Attributes:
        size: Number of parameters.
    """

    def __init__(self, layout: Layout, record: Mapping[str, Array]) -> None:
        layout.check(record)
        self.size = layout.dim
        # What cannot be read is refused before anybody trains.
        self._arrays = list(map(values, layout.arrays_in(record)))
        self._ends = list(itertools.accumulate(numbers.size for numbers in self._arrays))
        if self._ends[-1] != self.size:
            raise LayoutError(f"the bytes must have {self.size} numbers, got {self._ends[-1]}")

    def __getitem__(self, part: slice) -> Vector:
        """Return consecutive coordinates, without a vector of all."""
        start, stop, _ = part.indices(self.size)
        some = slice(bisect_right(self._ends, start), bisect_left(self._ends, stop) + 1)
        pieces = [np.empty(0)]  # without coordinates they are empty
        for numbers, end in zip(self._arrays[some], self._ends[some], strict=True):
            before = end - numbers.size
            pieces.append(numbers[max(start - before, 0) : max(stop - before, 0)])
        return np.concatenate(pieces, dtype=np.float64)

    @cached_property
    def vector(self) -> Vector:
        """The float arrays of the model."""
        return self[:]


# Arrays made fast. `Array(numbers)` copies them three times, and takes longer than most updates.


def to_array(numbers: NDArray[Any]) -> Array:
    """Return what `Array(numbers)` is, after one copy."""
    flat = np.ascontiguousarray(numbers)
    data = b"".join([npy_header(flat.dtype.str, numbers.shape), flat.data])
    return Array(str(numbers.dtype), numbers.shape, NPY, data)


@lru_cache(maxsize=2**10)  # the arrays of a model come again in every update
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what numpy's file format puts before the numbers of an array in C order."""
    head = io.BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(head, about)
    return head.getvalue()


def _apply_change(
    start: NDArray[Any] | None,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    change: Callable[[NDArray[Any]], None],
    least: DTypeLike,
) -> Array:
    """Return an array of numbers after a change, block by block; None starts from zeros."""
    exact = np.result_type(dtype, least)

    def fill(numbers: NDArray[Any]) -> None:
        for first in range(0, numbers.size, _BLOCK):
            room = numbers[first : first + _BLOCK]
            block = room if dtype == exact else np.zeros(room.size, exact)
            if start is not None:
                block[:] = start[first : first + _BLOCK]
            change(block)
            if block is not room:
                room[:] = block

    return _array_of(dtype, shape, fill)


def _mover(dtype: str) -> Callable[[NDArray[Any]], None]:
    """Return what moves the first entry by a rounding step of a type, and leaves all others."""
    is_done = False

    def move(block: NDArray[Any]) -> None:
        nonlocal is_done
        if not is_done:
            start = np.asarray(block[0], dtype=dtype)
            block[0] = float(start) + float(np.spacing(np.abs(start) + np.ones_like(start)))
            is_done = True

    return move


# The last array with a moved entry, behind the bytes that it was made from.
_NUDGED: Final = list[tuple[bytes, Array]]()


def _nudge(array: Array) -> Array:
    """Return an array with its first entry moved; a small one is made once for the same bytes."""
    for made_from, found in _NUDGED:
        if made_from is array.data:
            return found
    about = (np.dtype(array.dtype), tuple(array.shape), _mover(array.dtype), np.float32)
    made = _apply_change(values(array), *about)
    _NUDGED[:] = [(array.data, made)] if len(array.data) <= _SMALL else []
    return made


def _array_of(
    dtype: np.dtype[Any], shape: tuple[int, ...], fill: Callable[[NDArray[Any]], None]
) -> Array:
    """Return an array that a function writes, from zeros: its bytes are written where they are."""
    head, size = npy_header(dtype.str, shape), math.prod(shape)
    # Zeros that are not touched take no memory, and this file is the only one that has them.
    file = io.BytesIO(bytes(len(head) + size * dtype.itemsize))
    file.write(head)
    # Nobody keeps the numbers: while somebody does, `getvalue` makes a copy.
    fill(np.frombuffer(file.getbuffer(), dtype, size, len(head)))
    return Array(str(dtype), shape, NPY, file.getvalue())


# The numbers of an array, read in place. `Array.numpy()` copies them: a round reads every update,
# and at 10⁷ parameters the copies take longer than the work on the numbers.


def values(array: Array) -> NDArray[Any]:
    """Return the numbers of an array in their order, flat; not to be written to."""
    return numbers_in(array).ravel()


def numbers_in(array: Array) -> NDArray[Any]:
    """Return the numbers of an array in the shape that they have; not to be written to.

    They are read in place from the bytes of the array if these are an array of numbers in C order.
    `Array.numpy()` reads all others, and says what is wrong with them. The shape is that of the
    bytes. What the array says about itself may be another one.
    """
    found = _place(array.data[:_MAX_HEADER].partition(b"\n")[0]) if array.stype == NPY else None
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
