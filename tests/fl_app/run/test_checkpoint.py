"""Checkpoints: what goes in comes out, and a damaged one is never taken for a whole one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.run import checkpoint

STATE = {"round": 3, "model": {"w": np.arange(6.0).reshape(2, 3)}, "list": [1.5, None, "x", True]}

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
states = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def same(one: Any, other: Any) -> bool:
    """Whether both are equal in every number, type and shape."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype != bool)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(state=states)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_saved_is_loaded(state: Any, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c.npz", state)
    assert same(checkpoint.load(tmp_path / "c.npz"), state)


def test_numpy_scalars_tuples_and_infinities_come_back_as_plain_values(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c.npz", {"a": np.float64(0.1), "b": (1, 2), "c": -math.inf})
    assert checkpoint.load(tmp_path / "c.npz") == {"a": 0.1, "b": [1, 2], "c": -math.inf}


@pytest.mark.parametrize(
    "state", [{1: "a number as a key"}, {"x": np.array([object()])}, {"__array__": 1}, {"x": {1}}]
)
def test_what_could_not_be_loaded_is_not_saved(state: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        checkpoint.save(tmp_path / "c.npz", state)
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.npz"
    checkpoint.save(path, STATE)

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(path, {"round": 4})
    assert same(checkpoint.load(path), STATE)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"resume needs a checkpoint, but there is no .*c\.npz"):
        checkpoint.load(tmp_path / "c.npz")


def test_a_checkpoint_cut_off_anywhere_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    checkpoint.save(path, STATE)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ConfigError, match=r"whole checkpoint, but .*c\.npz is broken"):
            checkpoint.load(path)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_changed_byte_changes_what_is_loaded(step: int, tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    checkpoint.save(path, STATE)
    content = path.read_bytes()
    rejected = 0
    for position in range(0, len(content), step):
        for bit in (0, 3, 7):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                loaded = checkpoint.load(path)
            except ConfigError:
                rejected += 1
            else:  # a date or an attribute that nobody reads
                assert same(loaded, STATE)
    assert rejected > len(content) / step


def test_an_archive_of_something_else_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    np.savez(path, a=np.ones(3))
    with pytest.raises(ConfigError, match="is broken"):
        checkpoint.load(path)
    np.save(tmp_path / "plain.npy", np.ones(3))
    with pytest.raises(ConfigError, match="is broken"):
        checkpoint.load(tmp_path / "plain.npy")
    path.write_text("not even an archive")
    with pytest.raises(ConfigError, match="is broken"):
        checkpoint.load(path)


def test_a_checkpoint_never_runs_code(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", skeleton=np.array({"a": 1}, dtype=object))
    with pytest.raises(ConfigError, match="is broken"):
        checkpoint.load(tmp_path / "c.npz")
