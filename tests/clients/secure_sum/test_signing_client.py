"""A step is taken once, also where two messages are handled at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import pytest

from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.signing import STAGES, StepTakenError, take_once

SESSION = Session(2**63, 4)


def taken(folder: Path, stage: str = "unmask") -> bool:
    """Whether this call was the one that took the step."""
    try:
        take_once(folder, SESSION, stage)
    except StepTakenError:
        return False
    return True


def test_a_step_is_taken_once_per_run_round_and_stage(tmp_path: Path) -> None:
    assert taken(tmp_path, "survivors")
    assert taken(tmp_path)
    assert not taken(tmp_path)
    for _ in range(2):
        take_once(None, SESSION, "unmask")  # simulated clients note nothing
    take_once(tmp_path, Session(1, 4), "unmask")
    take_once(tmp_path, Session(2**63, 5), "unmask")


def test_rounds_and_stages_only_go_forward(tmp_path: Path) -> None:
    assert taken(tmp_path, "train")
    with pytest.raises(StepTakenError, match="stage 'shares' comes before 'train', which has come"):
        take_once(tmp_path, SESSION, "shares")
    with pytest.raises(StepTakenError, match="round must be 4 or later, got 3"):
        take_once(tmp_path, Session(SESSION.run, 3), "unmask")
    with pytest.raises(StepTakenError, match=r"stage must be keys, .*, got 'open'"):
        take_once(tmp_path, SESSION, "open")
    assert taken(tmp_path, "survivors")


def test_a_run_keeps_one_file_however_many_rounds_it_has(tmp_path: Path) -> None:
    for server_round in range(1, 21):
        for stage in STAGES:
            take_once(tmp_path, Session(7, server_round), stage)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["20-unmask"]
    assert [path.name for path in (tmp_path / "steps").iterdir()] == ["7"]


def test_two_nodes_that_race_through_all_stages_take_each_once(tmp_path: Path) -> None:
    wins: list[tuple[int, str]] = []
    start = threading.Barrier(4)

    def race() -> None:
        start.wait()
        for server_round, stage in product(range(1, 11), STAGES):
            try:
                take_once(tmp_path, Session(7, server_round), stage)
            except StepTakenError:
                continue
            wins.append((server_round, stage))

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == len(set(wins))
    assert (10, "unmask") in wins


def test_a_folder_with_more_than_one_last_step_takes_none(tmp_path: Path) -> None:
    assert taken(tmp_path, "keys")
    (tmp_path / "steps" / str(SESSION.run) / "3-unmask").touch()
    with pytest.raises(StepTakenError, match="the last step is not clear"):
        take_once(tmp_path, SESSION, "unmask")


@pytest.mark.slow  # two interpreters; two threads race above
def test_of_two_processes_one_takes_it(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert sorted(pool.map(taken, [tmp_path, tmp_path])) == [False, True]


def test_a_step_that_cannot_be_noted_is_not_taken_and_no_path_is_told(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("a file in the way")
    with pytest.raises(StepTakenError, match="cannot be noted here") as caught:
        take_once(tmp_path, SESSION, "unmask")
    assert str(tmp_path) not in str(caught.value)
