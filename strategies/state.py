"""The state of a chain of strategies, by name, so that an interrupted run can be resumed.

Flower's strategies keep momentum and their own copy of the model in attributes. Which ones is
listed here for each class; a strategy that is not listed cannot be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Strategy,
)
from numpy.typing import NDArray

from leakmeter.auditors.codec import CodecError, codec, plain
from leakmeter.auditors.hook.chain import Foreign, chain
from leakmeter.auditors.hook.wrapper import Wrapper

_ADAPTIVE = ("current_arrays", "m_t", "v_t")
_ATTRIBUTES: dict[type[Strategy], tuple[str, ...]] = {
    FedAvg: (),
    FedProx: (),
    FedAvgM: ("current_arrays", "momentum_vector"),
    FedAdam: _ADAPTIVE,
    FedYogi: _ADAPTIVE,
    FedAdagrad: _ADAPTIVE,
}


def check_resumable(strategy: Strategy) -> None:
    """Raise with the reason if a strategy in the chain keeps state that is not listed here."""
    for held in chain(strategy):
        if not isinstance(held, Wrapper) and type(held) not in _ATTRIBUTES:
            known = ", ".join(sorted(cls.__name__ for cls in _ATTRIBUTES))
            raise TypeError(
                f"a run can be resumed only with a strategy among {known}, "
                f"got {type(held).__name__}: what it remembers between rounds is unknown"
            )


def strategy_state(strategy: Strategy) -> list[dict[str, Any]]:
    """Return the state of every strategy in the chain, outermost first."""
    check_resumable(strategy)
    return [
        held.state()
        if isinstance(held, Wrapper)
        else {name: plain(_Arrays.of(kept), np.copy) for name, kept in _attributes(held).items()}
        for held in chain(strategy)
    ]


def restore_strategy(strategy: Strategy, states: Sequence[Mapping[str, Any]]) -> None:
    """Restore the state of every strategy in the chain.

    Raises:
        CodecError: A state is not one that its strategy has written.
    """
    check_resumable(strategy)
    held = list(chain(strategy))
    if len(states) != len(held):
        raise CodecError(f"there must be {len(held)} strategies, got {len(states)}")
    for one, state in zip(held, states, strict=True):
        if isinstance(one, Wrapper):
            one.restore(state)
            continue
        read = codec(_Arrays | None)
        found = {name: read.read(state.get(name, "nothing"), name) for name in _attributes(one)}
        kept = {name: None if value is None else value.unpacked() for name, value in found.items()}
        Foreign(one).set_attributes(kept)


def _attributes(strategy: Strategy) -> dict[str, Any]:
    """Return what one of Flower's strategies keeps."""
    return Foreign(strategy).attributes(_ATTRIBUTES[type(strategy)])


@dataclass(frozen=True, eq=False)
class _Arrays:
    """Arrays that a strategy of Flower's keeps in one attribute.

    Attributes:
        kind: In which container.
        items: By name, or by number in a list.
    """

    kind: Literal["record", "dict", "list"]
    items: dict[str, NDArray[Any]]

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Return the arrays of an attribute; None if it is not set yet."""
        match value:
            case None:
                return None
            case ArrayRecord():
                return cls("record", {name: array.numpy() for name, array in value.items()})
            case dict():
                return cls("dict", {name: np.asarray(array) for name, array in value.items()})
            case list():
                return cls("list", {str(i): np.asarray(array) for i, array in enumerate(value)})
        raise TypeError(f"cannot keep a {type(value).__name__}")

    def unpacked(self) -> Any:
        """Return what `of` was given."""
        if self.kind == "record":
            return ArrayRecord({name: Array(array) for name, array in self.items.items()})
        return self.items if self.kind == "dict" else list(self.items.values())
