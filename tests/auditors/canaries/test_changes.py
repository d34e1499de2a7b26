"""The file of changes: what was written comes back, and damage is said."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import tracemalloc
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.auditor import DamagedError, UnableError
from leakmeter.auditors.canaries import transcript as module
from leakmeter.auditors.canaries.single_update import KeptRows
from leakmeter.auditors.canaries.transcript import Changes, RowFile, check_room
from leakmeter.auditors.rng import stream

DIM, ROUNDS = 40, 3
ROWS = stream(0, "rows").standard_normal((ROUNDS, DIM)).astype(np.float32)


def put(rows: Any, row: np.ndarray, *name: str) -> None:
    """Write a row in parts, and let it count, for rows by name under its name."""
    for start in range(0, len(row), 16):
        rows.write(*name, start, row[start : start + 16])
    rows.note(*name, float(np.linalg.norm(row.astype(np.float64))))


def filled(path: Path | None) -> Changes:
    changes = Changes(DIM, path)
    for row in ROWS:
        put(changes, row)
    return changes


def read(changes: Changes, columns: int = DIM) -> np.ndarray:
    return np.concatenate([block.copy() for block in changes.blocks(columns)], axis=1)


@pytest.mark.parametrize("columns", [1, 7, DIM, 1000])
@pytest.mark.parametrize("has_folder", [True, False])
def test_rows_come_back_in_blocks_of_any_width(
    columns: int, has_folder: bool, tmp_path: Path
) -> None:
    changes = filled(tmp_path / "rows" if has_folder else None)
    assert np.array_equal(read(changes, columns), ROWS)


def test_a_row_that_was_broken_off_is_overwritten(tmp_path: Path) -> None:
    changes = filled(tmp_path / "rows")
    changes.write(0, np.ones(16, dtype=np.float32))
    put(changes, ROWS[0])
    assert np.array_equal(read(changes), [*ROWS, ROWS[0]])


def test_the_state_of_a_temporary_file_has_the_rows_and_that_of_a_named_one_has_not(
    tmp_path: Path,
) -> None:
    named = filled(tmp_path / "rows").state()
    assert (set(named), len(named["lengths"])) == ({"lengths"}, ROUNDS)
    assert np.array_equal(filled(None).state()["rows"], ROWS)
    rows, again = KeptRows(DIM, None), KeptRows(DIM, None)
    for row in ROWS:
        rows.begin_round()
        put(rows, row, "a")
    again.restore(rows.state())
    assert same(got(again), {"a": ROWS[2]})


@pytest.mark.parametrize("extra", [0, 5, 4 * DIM, 1000])
def test_a_resumed_run_drops_what_is_beyond_its_checkpoint(tmp_path: Path, extra: int) -> None:
    path = tmp_path / "rows"
    lengths = filled(path).state()["lengths"][:2]
    with path.open("ab") as file:
        file.write(bytes(extra))
    resumed = Changes(DIM, path)
    resumed.restore({"lengths": lengths})
    assert path.stat().st_size == 2 * DIM * 4
    put(resumed, ROWS[2])
    assert np.array_equal(read(resumed), ROWS)


def missing(path: Path) -> None:
    path.unlink()


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def test_rows_of_a_file_cannot_be_resumed_without_it() -> None:
    with pytest.raises(DamagedError, match="a file in the folder of the run"):
        Changes(DIM, None).restore({"lengths": [1.0]})


def test_a_run_without_a_row_needs_no_file(tmp_path: Path) -> None:
    changes = Changes(DIM, tmp_path / "rows")
    changes.restore({"lengths": []})
    assert list(changes.blocks(10)) == []


def test_a_file_that_shrinks_later_is_noticed(tmp_path: Path) -> None:
    changes = filled(tmp_path / "rows")
    shorter(tmp_path / "rows")
    with pytest.raises(DamagedError, match="ends too early"):
        read(changes)


def test_the_file_goes_when_it_is_closed_and_the_handle_with_the_object(tmp_path: Path) -> None:
    changes = filled(tmp_path / "rows")
    file = changes._file
    assert file is not None
    changes.close()
    assert not (tmp_path / "rows").exists()
    assert file.closed
    kept = filled(None)
    file = kept._file
    assert file is not None
    del kept
    gc.collect()
    assert file.closed  # without a warning about an unclosed file


def test_a_full_disk_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda path, mode, **_: Full(path, mode))
    with pytest.raises(UnableError, match=r"rows: No space left on device; free some space"):
        filled(tmp_path / "rows")


def test_a_system_that_takes_a_part_at_a_time_is_given_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(FileIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[:5])

        def readinto(self, buffer: Any) -> int:
            return super().readinto(memoryview(buffer)[:5]) or 0

    monkeypatch.setattr(Path, "open", lambda path, mode, **_: Slow(path, mode))
    assert np.array_equal(read(filled(tmp_path / "rows")), ROWS)


def test_room_is_checked_beforehand_and_a_tenth_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    check_room(tmp_path / "rows", 900)
    with pytest.raises(UnableError) as raised:
        check_room(tmp_path / "rows", 901)
    for part in ("901 bytes", str(tmp_path), "1,000 bytes free", "fewer rounds", "`out`"):
        assert part in str(raised.value)
    with pytest.raises(UnableError, match="901 bytes"):
        check_room(None, 901)
    monkeypatch.undo()
    with pytest.raises(UnableError, match="need a folder"):
        check_room(tmp_path / "none" / "rows", 1)


def test_reading_holds_one_block_at_a_time(tmp_path: Path) -> None:
    dim, rounds, columns = 200_000, 8, 1_000  # 6.4 MB in the file
    changes = Changes(dim, tmp_path / "rows")
    row = np.ones(dim, dtype=np.float32)
    for _ in range(rounds):
        changes.write(0, row)
        changes.note(dim**0.5)
    tracemalloc.start()
    try:
        total = sum(float(block.sum()) for block in changes.blocks(columns))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == rounds * dim
    assert peak < 3 * 4 * rounds * columns


# Rows by name.


def got(rows: KeptRows) -> dict[str, np.ndarray]:
    found = {}
    for name in rows.names:
        rows.read(name, 0, row := np.empty(DIM, dtype=np.float32))
        found[name] = row
    return found


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("has_folder", [True, False])
def test_the_last_row_of_a_name_counts_and_the_oldest_name_is_first(
    has_folder: bool, tmp_path: Path
) -> None:
    rows = KeptRows(DIM, tmp_path / "rows" if has_folder else None)
    for server_round in range(5):
        rows.begin_round()
        put(rows, ROWS[server_round % ROUNDS], "same")
        put(rows, ROWS[2], f"new-{server_round}")
        if server_round > 1:
            rows.drop(f"new-{server_round - 1}")
        rows.end_round()
    assert same(got(rows), {"new-0": ROWS[2], "same": ROWS[1], "new-4": ROWS[2]})
    if has_folder:  # places are used again
        assert (tmp_path / "rows").stat().st_size <= 4 * DIM * 5


def test_an_interrupted_round_leaves_the_rows_of_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    rows = KeptRows(DIM, path)
    for row in ROWS[:2]:
        rows.begin_round()
        put(rows, row, "a")
        put(rows, -row, "b")
    state, before = rows.state(), got(rows)
    rows.begin_round()
    put(rows, ROWS[2], "b")
    rows.write("a", 0, ROWS[2][:7])  # and no more
    again = KeptRows(DIM, path)
    again.restore(state)
    assert same(got(again), before)


@pytest.mark.parametrize(
    ("make", "damage", "words"),
    [
        (Changes, missing, "must have the changes of 1 round, but there is none; put it back"),
        (Changes, shorter, "1 round, 160 bytes, but it has 159; put it back"),
        (Changes, zeroed, "1 round, but number 1 in it has been altered; put it back"),
        (KeptRows, missing, "must have 1 kept row, but there is none"),
        (KeptRows, zeroed, "number 1 in it has been altered"),
    ],
)
def test_a_damaged_file_is_refused_in_words(
    make: type[RowFile], damage: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows"
    rows = make(DIM, path)
    put(rows, ROWS[0], *["a"] * (make is KeptRows))
    damage(path)
    with pytest.raises(DamagedError, match=words) as raised:
        make(DIM, path).restore(rows.state())
    assert str(path) in str(raised.value)
