"""One fixed order of a model's float arrays, so that an update is a vector."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.hook.values import values

_log = logging.getLogger("flwr")

_BLOCK: Final = 2**15  # numbers that are added at a time


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of the float arrays of the first record that was sent.

    Integer arrays (BatchNorm's counters) are outside: nobody clips, noises or audits them, and
    `restore` takes them from the model that was sent. FedAvg turns them into floats after the
    first round, so the layout must come from the first record and no later one.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: ArrayRecord, left_out: Collection[str] = ()) -> Self:
        """Return the layout of `record`; a record without float arrays is an error.

        For a record after the first, `left_out` names the arrays that were no floats then.
        """
        inside = {
            name: array
            for name, array in record.items()
            if name not in left_out and np.issubdtype(np.dtype(array.dtype), np.floating)
        }
        if not inside:
            raise ValueError(f"record must hold at least one float array, got {list(record)}")
        return cls(
            names=tuple(inside),
            shapes=tuple(tuple(a.shape) for a in inside.values()),
            dtypes=tuple(a.dtype for a in inside.values()),
            left_out=tuple(k for k in record if k not in inside),
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the layout whose fields JSON has turned into lists."""
        return cls(
            names=tuple(values["names"]),
            shapes=tuple(tuple(shape) for shape in values["shapes"]),
            dtypes=tuple(values["dtypes"]),
            left_out=tuple(values["left_out"]),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each array."""
        return tuple(int(np.prod(shape)) for shape in self.shapes)

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return sum(self.sizes)

    def flatten(self, record: Mapping[str, Array]) -> Vector:
        """Return the float arrays of `record` as one float64 vector."""
        self.check(record)
        parts = [values(record[name]) for name in self.names]
        return np.concatenate(parts, dtype=np.float64)

    def add(self, record: Mapping[str, Array], weight: float, to: Vector) -> None:
        """Add `weight` times the float arrays of `record` to a vector."""
        self.check(record)
        scaled, start = np.empty(_BLOCK), 0
        for name in self.names:
            numbers = values(record[name])
            for first in range(0, numbers.size, _BLOCK):  # which stay in the processor's cache
                part = numbers[first : first + _BLOCK]
                np.multiply(part, weight, out=scaled[: part.size], dtype=np.float64)
                to[start + first : start + first + part.size] += scaled[: part.size]
            start += numbers.size

    def restore(self, vector: NDArray[np.floating], template: ArrayRecord) -> ArrayRecord:
        """Return a record with `vector` in it and all other arrays as in `template`."""
        if vector.shape != (self.dim,):
            raise ValueError(f"vector must have shape ({self.dim},), got {vector.shape}")
        pieces = np.split(vector, np.cumsum(self.sizes)[:-1])
        restored = {
            name: Array(piece.reshape(shape).astype(dtype))
            for name, shape, dtype, piece in zip(
                self.names, self.shapes, self.dtypes, pieces, strict=True
            )
        }
        return ArrayRecord({name: restored.get(name, template[name]) for name in template})

    def check(self, record: Mapping[str, Array]) -> None:
        """Raise if `record` lacks an array of this layout or holds one of another shape."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in record:
                raise ValueError(f"array {name!r} must be in the record, got {sorted(record)}")
            if tuple(record[name].shape) != shape:
                raise ValueError(
                    f"array {name!r} must have shape {shape}, got {tuple(record[name].shape)}"
                )

    def announce(self) -> None:
        """Log once which arrays no audit covers."""
        if self.left_out:
            _log.info("not audited (integer arrays, kept as sent): %s", ", ".join(self.left_out))
