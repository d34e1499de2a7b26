"""Models of foreign projects: named arrays of many kinds, and how their owners read them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from leakmeter.auditors.rng import stream

Values = dict[str, NDArray[Any]]

BRAIN_FLOAT = "bfloat16"
OWN_BYTES = "raw.little.endian"


@dataclass(frozen=True)
class Model:
    """The arrays that a project starts from.

    Clients read arrays by name and turn them into the types they started with, as torch does when
    it loads a state: Flower's FedAvg turns integers into floats after the first round.

    Attributes:
        start: Name to the first value.
        encode: Turns a value into an array of Flower's.
        decode: Turns an array of Flower's into a value.
    """

    start: Mapping[str, NDArray[Any]]
    encode: Callable[[NDArray[Any]], Array] = lambda value: Array(value)
    decode: Callable[[Array], NDArray[Any]] = lambda array: array.numpy()
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.start))

    def record(self, values: Mapping[str, NDArray[Any]] | None = None) -> ArrayRecord:
        """Return values as a record; the first ones if none are given."""
        given = self.start if values is None else values
        return ArrayRecord({name: self.encode(value) for name, value in given.items()})

    def values(self, record: Mapping[str, Array]) -> Values:
        """Return the values in a record, in their first types."""
        return {
            name: np.asarray(self.decode(record[name])).astype(self.start[name].dtype)
            for name in self.names
        }


RATE = 0.2  # part of the way to its target that a client goes in one training


def moved(value: NDArray[Any], target: NDArray[Any], noise: NDArray[Any]) -> NDArray[Any]:
    """Return what one training makes of an array: a part of the way to the target, with noise."""
    if value.dtype.kind == "b":
        return np.asarray(noise.real > 0)
    if value.dtype.kind in "iu":
        return np.asarray(value + 1).astype(value.dtype)
    with np.errstate(all="ignore"):  # a model may have diverged
        return np.asarray(value + RATE * (target - value) + 0.02 * noise).astype(value.dtype)


def draws(values: Values, *path: int | str) -> Values:
    """Return normal numbers of the shapes of a model."""
    rng = stream(0, *path)
    return {name: _normal(rng, value) for name, value in values.items()}


def targets(values: Values, client: int) -> Values:
    """Return where a client goes; all of them away from zero, so that models are no small steps."""
    return {name: 2 + value for name, value in draws(values, "target", client).items()}


def _normal(rng: np.random.Generator, like: NDArray[Any]) -> NDArray[Any]:
    normal = rng.standard_normal(like.shape)
    if like.dtype.kind == "c":
        return np.asarray(normal + 1j * rng.standard_normal(like.shape))
    return np.asarray(normal)


def weights() -> Values:
    """Return the arrays that all models have: 132 parameters in two types of float."""
    return {
        "w": np.linspace(-1, 1, 120, dtype=np.float32).reshape(10, 12),
        "b": np.ones(12),
    }


def _with(**more: NDArray[Any]) -> Callable[[], Model]:
    return lambda: Model({**weights(), **more})


def _cast(dtype: str) -> Callable[[], Model]:
    return lambda: Model({name: value.astype(dtype) for name, value in weights().items()})


def _to_brain_float(value: NDArray[Any]) -> Array:
    """Return float32 values as bfloat16, which numpy lacks: the upper half of their bits."""
    if value.dtype != np.float32:
        return Array(value)
    upper = (np.ascontiguousarray(value).view(np.uint32) >> 16).astype(np.uint16)
    buffer = io.BytesIO()
    np.save(buffer, upper)
    return Array(BRAIN_FLOAT, tuple(value.shape), "numpy.ndarray", buffer.getvalue())


def _from_brain_float(array: Array) -> NDArray[Any]:
    if array.dtype != BRAIN_FLOAT:
        return array.numpy()
    return (array.numpy().astype(np.uint32) << 16).view(np.float32)


def _to_bytes(value: NDArray[Any]) -> Array:
    """Return an array in a serialisation of the project's own, which Flower cannot read."""
    return Array(str(value.dtype), tuple(value.shape), OWN_BYTES, value.tobytes())


def _from_bytes(array: Array) -> NDArray[Any]:
    return np.frombuffer(array.data, dtype=array.dtype).reshape(array.shape)


def _brain_floats() -> Model:
    start = {name: value.astype(np.float32) for name, value in weights().items()}
    return Model(start, _to_brain_float, _from_brain_float)


def _some_brain_floats() -> Model:
    return Model(weights(), _to_brain_float, _from_brain_float)  # b has 64 bits and stays


def _no_floats() -> Model:
    return Model({"table": np.arange(300, dtype=np.int32)})


MODELS: dict[str, Callable[[], Model]] = {
    "floats": _with(),
    "batchnorm": _with(
        running_mean=np.zeros(10, dtype=np.float32),
        running_var=np.ones(10, dtype=np.float32),
        num_batches_tracked=np.array(3, dtype=np.int64),
    ),
    "integers": _with(steps=np.arange(4, dtype=np.int64)),
    "0-d": _with(temperature=np.array(0.5, dtype=np.float32)),
    "empty": _with(
        nothing=np.zeros(0, dtype=np.float32), no_rows=np.zeros((3, 0), dtype=np.float32)
    ),
    "float16": _cast("float16"),
    "big-endian": _cast(">f4"),
    "bool": _with(mask=np.ones(8, dtype=bool)),
    "complex": _with(phase=np.ones(6, dtype=np.complex64)),
    "bfloat16": _brain_floats,
    "some bfloat16": _some_brain_floats,
    "own bytes": lambda: Model(weights(), _to_bytes, _from_bytes),
    "no floats": _no_floats,
    "few": lambda: Model({"w": np.ones(20, dtype=np.float32)}),
}
