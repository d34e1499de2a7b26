"""Working files of auditors: where they are, when they go, and what a full disk costs."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import Audited, Auditor, Finding, OneShotCanaries, RoundView, canary_mod
from leakmeter.auditors.auditor import DamagedError, Project, UnableError
from leakmeter.auditors.canaries import transcript
from leakmeter.auditors.hook.panel import Panel

ROUNDS = 4
NAME = "one-shot-changes.f32"


class Noting(Auditor):
    """Notes where it may write and when it is closed."""

    def __init__(self, name: str, *, fails: bool = False) -> None:
        self.name, self.fails = name, fails
        self.said: list[Any] = []

    def begin(self, dim: int, num_rounds: int) -> None:
        self.said.append(self.folder)

    def observe(self, view: RoundView) -> Sequence[Finding]:
        if self.fails:
            raise ArithmeticError("made up")
        return ()

    def report(self) -> Sequence[Finding]:
        self.said.append("report")
        return ()

    def close(self) -> None:
        self.said.append("close")
        raise OSError("made up")  # which is no reason to stop


def fedavg() -> FedAvg:
    return FedAvg(min_train_nodes=6, min_available_nodes=6, fraction_evaluate=0.0)


def watched(sizes: list[int], folder: Path) -> Any:
    """Return an evaluation that notes how large the file of changes is after each round."""

    def evaluate(*_: Any) -> None:
        path = folder / NAME
        sizes.append(path.stat().st_size if path.exists() else 0)

    return evaluate


def test_auditors_know_the_folder_of_the_run_and_are_closed_after_the_report(
    federation: Any, tmp_path: Path
) -> None:
    of, one, other = federation(), Noting("one"), Noting("other", fails=True)
    audited = Audited(fedavg(), [one, other], out=tmp_path / "run")
    audited.start(of.grid, of.arrays(), num_rounds=2)
    assert one.said == [tmp_path / "run", "report", "close"]
    assert other.said == [tmp_path / "run", "close"]  # left out after round 1


def test_without_a_folder_files_are_temporary() -> None:
    one = Noting("one")
    one.folder = Path("of another run")
    Panel([one]).begin(5, 1)
    assert one.said == [None]


def test_changes_are_appended_to_the_run_folder_and_removed_after_the_report(
    federation: Any, tmp_path: Path
) -> None:
    of, sizes = federation(mods=[canary_mod]), list[int]()
    audited = Audited(fedavg(), [OneShotCanaries(seats=2)], out=tmp_path)
    audited.start(of.grid, of.arrays(), ROUNDS, evaluate_fn=watched(sizes, tmp_path))
    dim = sum(a.numpy().size for name, a in of.arrays().items() if name != "n")
    assert sizes == [4 * dim * done for done in range(ROUNDS + 1)]
    assert not (tmp_path / NAME).exists()
    assert (tmp_path / "report.json").exists()


def test_changes_stay_when_a_run_is_interrupted_and_without_them_it_is_not_resumed(
    federation: Any, tmp_path: Path
) -> None:
    of = federation(mods=[canary_mod])

    def interrupt(server_round: int, _: Any) -> None:
        if server_round == 2:
            raise KeyboardInterrupt

    first = Audited(fedavg(), [OneShotCanaries(seats=2)], out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        first.start(of.grid, of.arrays(), ROUNDS, evaluate_fn=interrupt)
    state = first.state()["audit"]["panel"]["auditors"]["one-shot"]["transcript"]["changes"]
    assert list(state) == ["lengths"]  # a checkpoint does not repeat the changes
    assert len(state["lengths"]) == 2
    (tmp_path / NAME).unlink()
    line = {"schema": "leakmeter-report/2", "server_round": 1, "findings": []}
    (tmp_path / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    second = Audited(fedavg(), [OneShotCanaries(seats=2)], out=tmp_path, rounds_done=1)
    second.restore(first.state())
    with pytest.raises(DamagedError, match=NAME):
        second.start(of.grid, of.arrays(), ROUNDS)


def same(one: Any, other: Any) -> bool:
    # Flower adds updates in the order in which it has drawn the nodes.
    return all(np.allclose(one[name].numpy(), other[name].numpy()) for name in one)


def test_a_disk_that_fills_up_costs_the_audit_and_not_the_training(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(folder: Path) -> tuple[Any, Audited]:
        of = federation(mods=[canary_mod])
        audited = Audited(fedavg(), [OneShotCanaries(seats=2)], out=folder)
        return audited.start(of.grid, of.arrays(), ROUNDS), audited

    whole, _ = start(tmp_path / "whole")
    calls: list[int] = []

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transcript, "os", type("", (), {"fsync": staticmethod(fsync)}))
    result, audited = start(tmp_path / "full")
    [failure] = audited.failures
    assert failure.startswith("one-shot, round 3: UnableError: the changes of the model cannot")
    assert "No space left on device; free some space" in failure
    assert not (tmp_path / "full" / NAME).exists()  # what it took is given back
    assert len(result.train_metrics_clientapp) == ROUNDS
    assert list(result.arrays) == list(whole.arrays)
    report = json.loads((tmp_path / "full" / "report.json").read_text())
    assert report["failures"] == [failure]


def test_a_disk_without_room_leaves_the_auditor_out_before_anybody_trains(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2_000)
    monkeypatch.setattr(transcript.shutil, "disk_usage", lambda _: usage)
    of, plain = federation(mods=[canary_mod]), federation()
    audited = Audited(fedavg(), [OneShotCanaries(seats=2)], out=tmp_path)
    result = audited.start(of.grid, of.arrays(), ROUNDS)
    [failure] = audited.failures
    assert failure.startswith("one-shot, before round 1: UnableError: the changes of the model")
    assert f"2,112 bytes in {tmp_path}, which has 2,000 bytes free" in failure
    assert same(result.arrays, fedavg().start(plain.grid, plain.arrays(), ROUNDS).arrays)


# What is said of size, before anybody trains.

LARGE = Project(dim=10**7, num_rounds=100, clients=20, seats=10)


def limits(project: Project, **settings: Any) -> list[str]:
    auditor = OneShotCanaries(**{"seats": 10, "kind": "sphere", **settings})
    auditor.begin(project.dim, project.num_rounds)
    return list(auditor.limits(project))


def test_a_large_file_and_long_products_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakmeter.auditors.canaries.one_shot.check_room", lambda *_: None)
    file, products = limits(LARGE)
    assert file == (
        "the changes of the model take up to 4.0 GB of disk until the report is written: 100 "
        "rounds of 10,000,000 parameters in single precision"
    )
    assert products.startswith(
        "the products of 1,000 canaries with the changes of 100 rounds take about 3 minutes of one "
        "core after the last round"
    )
    assert limits(replace(LARGE, dim=10**5)) == []
    # Twice the canaries are looked for where those that stay out are drawn beside the others.
    _, more = limits(LARGE, include="all")
    assert "2,000 canaries" in more
    assert limits(LARGE, kind="signs") == limits(LARGE, kind="auto") == []  # neither is needed


def test_the_name_of_an_auditor_names_its_file(tmp_path: Path) -> None:
    auditor = OneShotCanaries(seats=4)
    auditor.name, auditor.folder = "one/shot", tmp_path
    auditor.begin(200, 5)
    auditor._transcript.add(np.zeros(200), np.ones(200))
    assert [path.name for path in tmp_path.iterdir()] == ["one%2Fshot-changes.f32"]
    auditor.close()
    assert list(tmp_path.iterdir()) == []


def test_an_auditor_that_never_began_can_be_closed() -> None:
    auditor = OneShotCanaries(seats=4)
    with pytest.raises(UnableError):
        auditor.begin(5, 5)
    auditor.close()
