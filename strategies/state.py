"""The state of a chain of strategies, by name, so that an interrupted run can be resumed.

Flower's strategies keep momentum and their own copy of the model in attributes. Which ones is
listed here for each class; a strategy that is not listed cannot be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        else {k: _pack(v) for k, v in Foreign(held).attributes(_ATTRIBUTES[type(held)]).items()}
        for held in chain(strategy)
    ]


def restore_strategy(strategy: Strategy, states: list[Mapping[str, Any]]) -> None:
    """Restore the state of every strategy in the chain."""
    check_resumable(strategy)
    pairs = list(zip(chain(strategy), states, strict=True))  # all or nothing
    for held, state in pairs:
        if isinstance(held, Wrapper):
            held.restore(state)
        else:
            Foreign(held).set_attributes({k: _unpack(v) for k, v in state.items()})


def _pack(value: Any) -> Any:
    """Return an attribute as plain containers of numpy arrays, with a tag of its type."""
    match value:
        case None:
            return None
        case ArrayRecord():
            return {"kind": "record", "items": {k: a.numpy() for k, a in value.items()}}
        case dict():
            return {"kind": "dict", "items": {k: np.asarray(v) for k, v in value.items()}}
        case list():
            return {"kind": "list", "items": [np.asarray(v) for v in value]}
    raise TypeError(f"cannot keep a {type(value).__name__}")


def _unpack(value: Any) -> Any:
    """Return what `_pack` was given."""
    if value is None:
        return None
    if value["kind"] == "record":
        return ArrayRecord({k: Array(np.asarray(a)) for k, a in value["items"].items()})
    return value["items"]
