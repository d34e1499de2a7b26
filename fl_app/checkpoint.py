"""Nested containers of numbers and numpy arrays in one file that is whole or not there."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from auditors.record import write_atomically
from fl_app.errors import ConfigError

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
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _fill(json.loads(str(arrays["skeleton"])), arrays)
    except FileNotFoundError:
        raise ConfigError(f"resume needs a checkpoint, but there is no {path}") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"resume needs a whole checkpoint, but {path} is broken: {error}") from (
            None
        )


def _strip(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """Return `value` with every array moved to the list and its number in its place."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {_ARRAY: f"a{len(arrays) - 1}"}
    if isinstance(value, dict):
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
