"""Nested containers of numbers and numpy arrays in one file that is whole or not there."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from leakmeter.auditors.run_log import write_atomically
from leakmeter.fl_app.config.errors import ConfigError

_ARRAY = "__array__"


def save(path: Path, state: Any) -> None:
    """Write `state` (dictionaries, lists, scalars, arrays) to `path`, replacing it at once."""
    arrays: list[np.ndarray[Any, Any]] = []
    skeleton = json.dumps(_strip(state, arrays))
    buffer = io.BytesIO()
    named = {f"a{i}": array for i, array in enumerate(arrays)}
    np.savez(buffer, skeleton=np.array(skeleton), **named)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def load(path: Path) -> Any:
    """Return what `save` wrote; a file that is missing or damaged is a user's mistake."""
    try:
        # From memory: numpy leaves a file open that turns out not to be a whole archive.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _fill(json.loads(str(arrays["skeleton"])), arrays)
    except FileNotFoundError:
        raise ConfigError(f"resume needs a checkpoint, but there is no {path}") from None
    except Exception as error:  # a damaged archive can make numpy and zipfile raise anything
        raise ConfigError(f"resume needs a whole checkpoint, but {path} is broken: {error}") from (
            None
        )


def _strip(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """Return `value` with every array moved to the list and its number in its place."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"a checkpoint keeps arrays of numbers only, got {value.dtype}")
        arrays.append(value)
        return {_ARRAY: f"a{len(arrays) - 1}"}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value) or set(value) == {_ARRAY}:
            raise TypeError(f"a checkpoint keeps names as keys only, got {list(value)}")
        return {key: _strip(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strip(item, arrays) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _fill(value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Put the arrays back where `_strip` took them from."""
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _fill(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, arrays) for item in value]
    return value
