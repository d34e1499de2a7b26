"""A run that was cut off anywhere goes on to the report it would have had, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors import OneShotCanaries
from leakmeter.auditors.codec import pack, unpack
from leakmeter.auditors.run_log import RoundLine
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.run.folder import Checkpoint, RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from tests.helpers.numbers import few_or_many, first_fast
from tests.helpers.runs import Dying, check_resumed, cut_off, report_of, resumed

SERVERS = ("fedavg", "fedavgm")
CHANGES = "one-shot-changes.f32"
NOISED = {"noise": "distributed", "clip_norm": 0.5, "noise_distribution": "skellam", "rounds": 2}
BETS = {"bounds": "anytime", "lrt_fit": 20, "lrt_candidates": 10, "lrt_trials": 20}
SEEN = {"noise": "local", "clip_norm": 1.0, "secagg": "off", "canary_seats": 3}
# Beside the default auditors: how the run differs, and the round after which it is cut off.
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "a server with two moments": ({"server": "fedadam", "rounds": 3}, 2),
    "integer noise of the clients": (NOISED, 1),
    "integer noise of the server": ({**NOISED, "noise": "central"}, 1),
    "bounds at every round": ({**BETS, "auditors": "one-shot,likelihood-ratio", "rounds": 3}, 2),
    "bounds that end the run": ({**BETS, "stop_above": 0.5, "rounds": 6}, 1),
    "planted records": ({"auditors": "planted-records", "planted_every": 1, "rounds": 2}, 1),
    "single updates": ({**SEEN, "auditors": "single-update"}, 2),
    "single updates and models": ({**SEEN, "auditors": "single-update,one-shot"}, 2),
}


@pytest.fixture(scope="module")
def settings(tiny_config: Config, panel_config: Config) -> dict[str, Config]:
    """The run by server; the one with momentum has every auditor, whose states it resumes."""
    return {"fedavg": tiny_config, "fedavgm": replace(panel_config, server="fedavgm")}


@pytest.fixture(scope="module")
def whole(
    settings: dict[str, Config], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], bytes]:
    """The report of the uninterrupted run, by server."""
    reports = {}
    for server in SERVERS:
        path = tmp_path_factory.mktemp("whole") / server
        launch(RunFolder.create(path, settings[server]), Progress())
        reports[server] = (path / "report.json").read_bytes()
        # Every bound without a condition is counted.
        assert report_of(path)["verdict"]["confidence"] >= 0.95 - 1e-9
    assert reports["fedavg"] != reports["fedavgm"]
    return reports.__getitem__


# At both ends, and with every auditor in the middle; the other rounds are slow.
FAST = {("fedavg", 0), ("fedavg", 4), ("fedavgm", 2)}
CUTS = [
    pytest.param(server, last, marks=() if (server, last) in FAST else pytest.mark.slow)
    for server in ("fedavg", "fedavgm")
    for last in range(5)
]


@pytest.mark.parametrize(("server", "last"), CUTS)
def test_a_run_cut_off_after_any_round_goes_on_to_the_same_report(
    server: str,
    last: int,
    settings: dict[str, Config],
    tmp_path: Path,
    whole: Callable[[str], bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut_off(tmp_path / "run", settings[server], last)
    capsys.readouterr()
    assert resumed(tmp_path / "run") == whole(server)
    said = capsys.readouterr().out
    assert (f"resuming after round {last} of 4" in said) == (last > 0)
    shown = [line.split()[1] for line in said.splitlines() if line.startswith("round ")]
    assert shown == [f"{r}/4" for r in range(last + 1, 5)]


def test_a_run_may_be_cut_off_many_times(
    settings: dict[str, Config], tmp_path: Path, whole: Callable[[str], bytes]
) -> None:
    cut_off(tmp_path / "run", settings["fedavgm"], 0)
    for last in (1, 2, 3, 4):
        with pytest.raises(KeyboardInterrupt):
            launch(RunFolder.open(tmp_path / "run"), Dying(last))
    assert resumed(tmp_path / "run") == whole("fedavgm")


@pytest.mark.parametrize(
    ("server", "last"),
    [
        ("fedavg", 3),
        ("fedavgm", 1),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in [("fedavg", 1), ("fedavgm", 3)]),
    ],
)
def test_a_line_beyond_the_checkpoint_is_written_again(
    server: str,
    last: int,
    settings: dict[str, Config],
    tmp_path: Path,
    whole: Callable[[str], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save = RunFolder.save

    def failing(folder: RunFolder, kept: Checkpoint) -> None:
        if kept.server_round == last:
            raise KeyboardInterrupt
        save(folder, kept)

    folder = RunFolder.create(tmp_path / "run", settings[server])
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", failing)
        with pytest.raises(KeyboardInterrupt):
            launch(folder, Progress())
    assert (tmp_path / "run/rounds.jsonl").read_text().count("\n") == last
    assert resumed(tmp_path / "run") == whole(server)


@pytest.mark.parametrize("last", [0, 3])
def test_what_a_dying_run_has_half_written_does_no_harm(
    last: int, tiny_config: Config, tmp_path: Path, whole: Callable[[str], bytes]
) -> None:
    run = tmp_path / "run"
    cut_off(run, tiny_config, last)
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"server_round": ')
    with (run / CHANGES).open("ab") as changes:
        changes.write(b"a round and a half" * 500)
    for name in ("report.json", "checkpoint.npz", "rounds.jsonl"):
        (run / f"{name}.partial").write_bytes(b"half")
    assert resumed(run) == whole("fedavg")
    assert not (run / CHANGES).exists()


@pytest.mark.parametrize("kind", first_fast(4, KINDS))
def test_a_run_of_every_kind_is_resumed(kind: str, tiny_config: Config, tmp_path: Path) -> None:
    changes, last = KINDS[kind]
    usual = {"planted_canaries": 40, "planted_clients": 4, "planted_decoys": 500}
    report = check_resumed(replace(tiny_config, **{**usual, **changes}), tmp_path, last)
    assert report["failures"] == []
    assert len(report["rounds"]) >= last
    assert not list((tmp_path / "cut").glob("*.f32"))


def test_damaged_changes_are_a_mistake_that_is_said(
    tiny_config: Config,
    tmp_path: Path,
    whole: Callable[[str], bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut_off(tmp_path / "run", tiny_config, 2)
    path = tmp_path / "run" / CHANGES
    data = path.read_bytes()
    for left in (None, data[:-1], bytes(len(data))):
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        assert main(["--resume", str(tmp_path / "run")]) == 2
        said = capsys.readouterr().err
        assert "resume needs the files of the run" in said
        assert str(path) in said
        path.write_bytes(data)  # what the message asks for
    assert resumed(tmp_path / "run") == whole("fedavg")


def test_where_the_data_is_and_who_computes_may_change(
    tiny_config: Config, tmp_path: Path, whole: Callable[[str], bytes]
) -> None:
    cut_off(tmp_path / "run", tiny_config, 2)
    moved = replace(tiny_config, data_dir="/elsewhere", download=True)
    (tmp_path / "run/config.toml").write_text(moved.to_toml())
    expected = whole("fedavg").replace(b'"data-dir": ""', b'"data-dir": "/elsewhere"')
    assert resumed(tmp_path / "run") == expected.replace(b'load": false', b'load": true')


def test_an_auditor_that_failed_stays_out(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = OneShotCanaries.observe

    def failing(self: OneShotCanaries, view: Any) -> Any:
        if view.server_round == 2:
            raise ArithmeticError("made up")
        return observe(self, view)

    with monkeypatch.context() as patch:
        patch.setattr(OneShotCanaries, "observe", failing)
        assert launch(RunFolder.create(tmp_path / "whole", tiny_config), Progress()).failures
        cut_off(tmp_path / "run", tiny_config, 3)
    assert main(["--resume", str(tmp_path / "run")]) == 1
    reports = [(tmp_path / name / "report.json").read_bytes() for name in ("run", "whole")]
    assert reports[0] == reports[1]


def test_a_second_process_cannot_resume_the_same_run(
    tiny_config: Config, tmp_path: Path, whole: Callable[[str], bytes], capsys: Any
) -> None:
    cut_off(tmp_path / "run", tiny_config, 2)
    codes = []

    class Meddling(Progress):
        """Resumes the run that is going on once more."""

        def round(self, line: RoundLine) -> None:
            super().round(line)
            codes.append(main(["--resume", str(tmp_path / "run")]))

    launch(RunFolder.open(tmp_path / "run"), Meddling())
    assert codes == [2, 2]
    assert f"is in use by process {os.getpid()} on" in capsys.readouterr().err
    assert (tmp_path / "run/report.json").read_bytes() == whole("fedavg")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in nested containers."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, item in items for leaf in leaves(item, (*path, key))]
    return [path]


@pytest.mark.parametrize("step", few_or_many(4, 1))
def test_a_checkpoint_with_any_value_of_another_kind_is_refused(
    step: int, tiny_config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(tiny_config, noise="central", clip_norm=1.0, server="fedavgm", rounds=2)
    cut_off(tmp_path / "run", replace(small, auditors="one-shot"), 1)
    file = RunFolder.open(tmp_path / "run").checkpoint
    before = file.read_bytes()
    places = [place for place in leaves(unpack(before)) if place[0] != "config"]
    assert len(places) > 40
    for place in places[::step]:
        # The hash is right: a run may have written it, but not this one.
        foreign = inside = unpack(before)
        for key in place[:-1]:
            inside = inside[key]
        if isinstance(inside[place[-1]], dict):  # an empty state, to which others may add
            continue
        inside[place[-1]] = {"foreign": "x"}
        file.write_bytes(pack(foreign))
        capsys.readouterr()
        assert main(["--resume", str(tmp_path / "run")]) == 2, place
        assert "resume needs" in capsys.readouterr().err
    for name, wrong in {"model": {}, "strategy": [{}], "audit": {"auditors": {}}}.items():
        file.write_bytes(pack({**unpack(before), name: wrong}))
        assert main(["--resume", str(tmp_path / "run")]) == 2
        assert "resume needs a checkpoint of this run, but in" in capsys.readouterr().err
    file.write_bytes(before)
    assert main(["--resume", str(tmp_path / "run")]) == 0


def test_the_state_of_another_auditor_is_refused(
    tiny_config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off(tmp_path / "run", tiny_config, 1)
    file = RunFolder.open(tmp_path / "run").checkpoint
    kept = unpack(file.read_bytes())
    panel = kept["audit"]["audit"]["panel"]
    auditors = panel["auditors"]
    panel["auditors"] = {name: {"foreign": 1} for name in auditors}
    file.write_bytes(pack(kept))
    assert main(["--resume", str(tmp_path / "run")]) == 2
    assert "is not one that it has written" in capsys.readouterr().err
