"""A device that needs no hardware: its tensors compute on the CPU and refuse plain tensors.

Code that makes every tensor where the model is runs on it and gets the numbers of the CPU, bit for
bit. Code that leaves one behind fails where the two meet, as on a GPU. It is stricter than a GPU:
CUDA takes indices and single numbers from the CPU, and has double precision, which Apple's GPUs
lack. Here both are errors.

Torch's own fake tensors report "cuda", whose backward pass needs a driver. Of the devices that
torch knows, "lazy" runs its backward pass like the CPU, and nothing else uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy")
_DOUBLE = (torch.float64, torch.complex128)
_MOVES = torch.ops.aten._to_copy.default
_COPIES = torch.ops.aten.copy_.default


class MixedError(RuntimeError):
    """An operation got tensors of both devices."""


class DoubleError(TypeError):
    """The device was asked for double precision."""


class Elsewhere(Tensor):
    """A tensor of the stand-in device; `inner` has its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        if inner.dtype in _DOUBLE:
            raise DoubleError(f"{DEVICE} has no {inner.dtype}: use the CPU")
        made: Elsewhere = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
            requires_grad=inner.requires_grad,
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _done(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], *_: Any) -> Elsewhere:
        return Elsewhere(parts["inner"])

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.inner!r})"

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        about = self.requires_grad, isinstance(self, nn.Parameter)
        return _unpickled, (self.inner.detach(), *about)

    @property
    def data(self) -> Tensor:
        """The same numbers without a graph; what is set takes their place."""
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        if not isinstance(other, Elsewhere) or other.stride() != self.stride():
            raise MixedError(f"data of {DEVICE} was set to a tensor of {other.device}")
        self.inner = other.inner

    def data_ptr(self) -> int:
        """Return where the numbers are."""
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        """Return the numbers, which torch does not give of a subclass."""
        return self.inner.tolist()


def _unpickled(inner: Tensor, requires_grad: bool, is_parameter: bool) -> Tensor:
    made = Elsewhere(inner)
    return nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


class StandIn(TorchDispatchMode):
    """Offers the device to the code of a `with` block, in this thread.

    Attributes:
        operations: How often each operation of torch ran on the device.

    Example:
        with StandIn() as device:
            model.to(DEVICE)
        assert device.operations
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = _done(func, args, kwargs or {})
        if any(isinstance(one, Elsewhere) for one in tree_leaves((args, out))):
            self.operations[func.name().removeprefix("aten::")] += 1
        return out


def _done(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what an operation of torch gives, on the device that it is for."""
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    here = [one for one in tensors if isinstance(one, Elsewhere)]
    target = kwargs.get("device")
    target = (DEVICE if here else torch.device("cpu")) if target is None else torch.device(target)
    if not here and target != DEVICE:
        return func(*args, **kwargs)
    if 0 < len(here) < len(tensors) and func is not _COPIES:
        shapes = ", ".join(f"{one.device} {tuple(one.shape)}" for one in tensors)
        raise MixedError(f"{func.name()} got tensors of two devices: {shapes}")
    if func is _MOVES and kwargs.get("dtype") in _DOUBLE and here:
        raise DoubleError(f"{DEVICE} has no {kwargs['dtype']}: move first, then convert")
    plain = {**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs
    out = func(*tree_map(_inner, args), **tree_map(_inner, plain))
    if target == DEVICE:
        out = tree_map(lambda one: Elsewhere(one) if isinstance(one, Tensor) else one, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if here else out


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Elsewhere) else value
