"""A step is taken once, also where two messages are handled at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.steps import StepTakenError, take_once

SESSION = Session(2**63, 4)


def taken(folder: Path, stage: str = "unmask") -> bool:
    """Whether this call was the one that took the step."""
    try:
        take_once(folder, SESSION, stage)
    except StepTakenError:
        return False
    return True


def test_a_step_is_taken_once_per_run_round_and_stage(tmp_path: Path) -> None:
    assert taken(tmp_path)
    assert not taken(tmp_path)
    assert taken(tmp_path, "survivors")
    take_once(tmp_path, Session(1, 4), "unmask")
    take_once(tmp_path, Session(2**63, 5), "unmask")


def test_of_many_threads_one_takes_it(tmp_path: Path) -> None:
    start, wins = threading.Barrier(8), []

    def race() -> None:
        start.wait()
        wins.append(taken(tmp_path))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == [False] * 7 + [True]


def test_of_two_processes_one_takes_it(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert sorted(pool.map(taken, [tmp_path, tmp_path])) == [False, True]


def test_a_step_that_cannot_be_noted_is_not_taken_and_no_path_is_told(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("a file in the way")
    with pytest.raises(StepTakenError, match="cannot be noted here") as caught:
        take_once(tmp_path, SESSION, "unmask")
    assert str(tmp_path) not in str(caught.value)


def test_simulated_clients_note_nothing() -> None:
    take_once(None, SESSION, "unmask")
    take_once(None, SESSION, "unmask")
