"""Saves nested containers of numbers and numpy arrays in one file, atomically."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from leakmeter.auditors.run_log import write_atomically
from leakmeter.fl_app.config.errors import ConfigError

_ARRAY = "__array__"


def save(path: Path, state: Any) -> None:
    """Write `state` (dictionaries, lists, scalars, arrays) to `path`, replacing it atomically."""
    arrays: list[np.ndarray[Any, Any]] = []
    skeleton = json.dumps(_strip(state, arrays))
    buffer = io.BytesIO()
    named = {f"a{i}": array for i, array in enumerate(arrays)}
    np.savez(buffer, skeleton=np.array(skeleton), **named)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def digest(state: Any) -> str:
    """Return a hash of everything in a state, the same before it is saved and after."""
    arrays: list[np.ndarray[Any, Any]] = []
    found = hashlib.sha256(json.dumps(_strip(state, arrays)).encode())
    for array in arrays:
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return found.hexdigest()


def load(path: Path) -> Any:
    """Return what `save` wrote; raise `ConfigError` if the file is missing or damaged."""
    try:
        # From memory: numpy leaves a file open if it is not a complete archive.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _fill(json.loads(str(arrays["skeleton"])), arrays)
    except FileNotFoundError:
        raise ConfigError(f"--resume needs a checkpoint, but there is no {path}") from None
    except Exception as error:  # a damaged archive can make numpy and zipfile raise anything
        raise ConfigError(
            f"--resume needs a whole checkpoint, but {path} is broken: {error}"
        ) from (None)


def difference(kept: Any, form: Any, name: str) -> str | None:
    """Return in words where `kept` has another structure than a run writes; None if nowhere.

    Args:
        kept: What was loaded.
        form: The same part of a new run. A None there may have become anything since; empty lists
            and dictionaries may have been filled with anything.
        name: Its name in the text.
    """
    if form is None:
        return None
    if isinstance(form, dict) and isinstance(kept, dict):
        if missing := [key for key in form if key not in kept]:
            return f"{name} lacks {missing[0]!r}"
        found = (difference(kept[k], item, f"{name}, {k!r}") for k, item in form.items())
        return next((words for words in found if words is not None), None)
    if isinstance(form, np.ndarray) and isinstance(kept, np.ndarray):
        if kept.shape == form.shape and kept.dtype.kind in "fiub":
            return None
        return f"{name} has shape {kept.shape} of {kept.dtype}, not {form.shape} of {form.dtype}"
    number = (int, float)
    wanted = {int: number, float: number, tuple: (list,)}.get(type(form), (type(form),))
    if type(kept) in wanted:
        return None
    return f"{name} is of type {type(kept).__name__}, not {wanted[-1].__name__}"


def _strip(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """Return `value` with every array moved to the list and replaced by its index."""
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
