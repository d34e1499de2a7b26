"""Rows in a file are those in memory, to single precision, and leave nothing behind."""

from __future__ import annotations

import gc
import tempfile
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from leakmeter.auditors.auditor import UnableError
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling import sampler
from leakmeter.auditors.sampling.sampler import RowStore, check_room, file_bytes, taken
from tests.helpers.processes import open_files

ROWS = stream(0, "rows").standard_normal((7, 50))


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let nothing stay in memory, in blocks of eleven columns; return the folder of the files."""
    monkeypatch.setattr(sampler, "_MAX_IN_MEMORY", 0)
    monkeypatch.setattr(sampler, "_MAX_IN_BLOCK", 11 * 7 * 4)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def filled(rows: np.ndarray = ROWS) -> RowStore:
    """Return a store of these rows."""
    store = RowStore(*rows.shape)
    for row in rows:
        store.add(row)
    return store


def test_rows_in_memory_are_one_block_in_their_own_precision() -> None:
    store = filled()
    [(at, block)] = store.blocks()
    assert at == slice(0, 50)
    assert store.is_in_memory
    np.testing.assert_array_equal(block, ROWS)
    np.testing.assert_array_equal(store.mean(), ROWS.mean(axis=0))
    assert RowStore.of(store) is store
    assert RowStore.of(ROWS).row(3) is not None
    assert filled(ROWS.astype(np.float32)).row(0).dtype == np.float32


@pytest.mark.usefixtures("on_disk")
def test_rows_in_a_file_are_read_by_blocks_of_columns() -> None:
    single = ROWS.astype(np.float32)
    store = filled()
    assert not store.is_in_memory
    assert [(at.start, at.stop) for at, _ in store.blocks()] == [
        *((first, first + 11) for first in (0, 11, 22, 33)),
        (44, 50),
    ]
    np.testing.assert_array_equal(np.concatenate([b for _, b in store.blocks()], axis=1), single)
    np.testing.assert_array_equal(store.row(5), single[5])
    np.testing.assert_array_equal(store.columns(slice(9, 30)), single[:, 9:30])
    np.testing.assert_array_equal(store.mean(), single.mean(axis=0))
    some = np.array([3, 4, 30, 49])
    np.testing.assert_array_equal(store.take(some), single[:, some])


@pytest.mark.usefixtures("on_disk")
def test_blocks_may_be_changed_and_lose_columns_in_place() -> None:
    kept = np.flatnonzero(stream(1, "kept").random(50) < 0.6)

    def change(at: slice, block: np.ndarray) -> np.ndarray:
        here = kept[(kept >= at.start) & (kept < at.stop)]
        return 2 * block[:, here - at.start]

    expected = 2 * ROWS.astype(np.float32)[:, kept]
    store = filled().changed(change).changed(lambda _, block: block)
    assert store.shape == expected.shape
    np.testing.assert_array_equal(store.columns(slice(0, kept.size)), expected)
    np.testing.assert_array_equal(store.row(6), expected[6])


def test_no_file_has_a_name_and_none_stays_open(on_disk: Path) -> None:
    store = filled()
    assert list(on_disk.iterdir()) == []
    if Path("/proc/self/fd").exists():
        assert open_files(on_disk) == 1
    del store
    gc.collect()
    assert open_files(on_disk) == 0


def test_only_many_wide_rows_go_to_a_file() -> None:
    assert file_bytes(64, 2**18) == 0  # 64 MB
    assert file_bytes(65, 2**18) == 65 * 2**20
    assert file_bytes(20_000, 7_850) == 0  # as many rows as columns


def test_a_folder_without_room_is_named_with_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sampler.shutil, "disk_usage", lambda _: usage(9, 9, 1_500_000_000))
    check_room(1_500_000_000)
    words = rf"need 5.3 GB in the temporary folder {tmp_path}, which has 1.5 GB free: .*TMPDIR"
    with pytest.raises(UnableError, match=words):
        check_room(5_320_000_000)


@pytest.mark.parametrize("columns", [[0, 1, 2, 7, 8, 49], [3], range(0, 50, 2), range(50)])
@pytest.mark.parametrize("most", [0, 50])
def test_columns_are_copied_one_by_one_or_as_neighbours(
    monkeypatch: pytest.MonkeyPatch, columns: Sequence[int], most: int
) -> None:
    monkeypatch.setattr(sampler, "_MAX_RUNS", most)
    rows, places = ROWS.reshape(7, 1, 50), np.asarray(columns)
    found = taken(rows, places)
    np.testing.assert_array_equal(found, rows[..., places])
    assert not np.shares_memory(found, rows)
    room = np.zeros((9, 50))
    again = taken(rows, places, room)
    np.testing.assert_array_equal(again, found)
    assert np.shares_memory(again, room)
