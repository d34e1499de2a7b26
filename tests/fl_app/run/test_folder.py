"""The run folder: made once, never overwritten, opened only to go on."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.codec import pack, unpack
from leakmeter.auditors.run_log import SCHEMA, write_atomically
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.run.folder import Checkpoint, RunFolder, default_path


def state(server_round: int) -> Checkpoint:
    return Checkpoint(server_round, {"w": np.ones(2)}, [], {})


def write_rounds(folder: RunFolder, *rounds: int, schema: str = SCHEMA) -> None:
    (folder.path / "rounds.jsonl").write_text(
        "".join(
            f'{{"schema": "{schema}", "server_round": {r}, "metrics": {{}}, "findings": []}}\n'
            for r in rounds
        )
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "deep" / "run", Config())


def test_a_new_folder_holds_the_whole_configuration(folder: RunFolder) -> None:
    assert {path.name for path in folder.path.iterdir()} == {".lock", "config.toml"}
    assert RunFolder.open(folder.path) == folder


def test_a_relative_folder_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert RunFolder.create(Path("run"), Config()).path == tmp_path / "run"
    assert RunFolder.open(Path("run")).path == tmp_path / "run"


def test_a_folder_that_another_run_fills_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("another run's")
    monkeypatch.setattr("leakmeter.fl_app.run.folder.check_free", lambda _: None)  # it looked empty
    with pytest.raises(ConfigError, match="out must be a new or empty folder"):
        RunFolder.create(tmp_path, Config())
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


class Killed(BaseException):
    """Ends a run as a signal does: nothing after it is cleaned up."""


@pytest.mark.parametrize(
    ("at", "config"),
    [
        ("config.toml", Config()),
        ("config.toml", Config(noise="central", clip_norm=1.0, target_epsilon=5.0)),
        ("calibrated.toml", Config(noise="central", clip_norm=1.0, target_epsilon=5.0)),
    ],
)
def test_a_run_killed_before_its_settings_were_whole_leaves_a_folder_to_use_again(
    at: str, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, data: str) -> None:
        if path.name == at:
            path.with_name(f"{path.name}.partial").write_text(data[: len(data) // 2])
            raise Killed
        write_atomically(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("leakmeter.fl_app.run.folder.write_atomically", killed)
        with pytest.raises(Killed):
            RunFolder.create(tmp_path / "run", config)
    assert (tmp_path / "run" / f"{at}.partial").exists()
    with pytest.raises(ConfigError, match=f"start with --out {tmp_path}/run"):
        RunFolder.open(tmp_path / "run")
    again = RunFolder.create(tmp_path / "run", Config(seed=3))
    assert {path.name for path in again.path.iterdir()} == {".lock", "config.toml"}
    assert RunFolder.open(again.path) == again


@pytest.mark.parametrize("found", [["config.toml"], ["config.toml.partial", "notes.txt"]])
def test_what_is_in_a_folder_is_left_alone(found: list[str], tmp_path: Path) -> None:
    for name in found:
        (tmp_path / name).write_text("half")
    with pytest.raises(ConfigError, match="out must be a new or empty folder"):
        RunFolder.create(tmp_path, Config(seed=1))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        found, "half"
    )


def test_a_link_leads_to_an_empty_folder_or_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for name, target in {"good": "real", "dangling": "nothing", "loop": "loop"}.items():
        (tmp_path / name).symlink_to(tmp_path / target)
    RunFolder.create(tmp_path / "good", Config())
    assert (tmp_path / "real" / "config.toml").exists()
    for name in ("good", "dangling", "loop"):
        with pytest.raises(ConfigError, match=f"out must be a new or empty folder, got .*/{name};"):
            RunFolder.create(tmp_path / name, Config())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"out must be writable, got .*: Permission denied"):
        RunFolder.create(tmp_path / "run", Config())


def test_a_new_run_has_nothing_to_go_on_with(folder: RunFolder) -> None:
    assert folder.load() is None
    write_rounds(folder)
    assert folder.load() is None


def test_the_first_line_may_stand_before_its_checkpoint_but_no_second(folder: RunFolder) -> None:
    write_rounds(folder, 1)
    assert folder.load() is None
    folder.start_over()
    assert not (folder.path / "rounds.jsonl").exists()
    folder.start_over()
    write_rounds(folder, 1, 2)
    with pytest.raises(ConfigError, match="resume needs a checkpoint, but there is no"):
        folder.load()


def test_the_state_comes_back_with_its_settings(folder: RunFolder) -> None:
    write_rounds(folder, 1, 2, 3)
    folder.save(state(2))
    loaded = folder.load()
    assert loaded is not None
    assert (loaded.server_round, loaded.config) == (2, Config().to_mapping())
    assert np.array_equal(loaded.model["w"], np.ones(2))


@pytest.mark.parametrize("schema", ["leakmeter-report/1", "leakmeter-report/3"])
def test_a_run_of_another_schema_is_refused_and_left_alone(folder: RunFolder, schema: str) -> None:
    write_rounds(folder, 1, 2, schema=schema)
    folder.save(state(2))
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(ConfigError, match=f"resume needs a run of {SCHEMA}, but .* of {schema}: "):
        folder.load()
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


ROUND = {"schema": SCHEMA, "server_round": 1, "metrics": {}, "findings": []}
HALF = {name: value for name, value in ROUND.items() if name != "findings"}
LINE = "line 1 is not that of a round"
WHOLE = r"resume needs whole lines in .*rounds\.jsonl"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], r"resume needs rounds 1 to 1 in .*rounds\.jsonl, got"),
        ([{**ROUND, "server_round": 2}], r"resume needs rounds 1 to 1 in .*rounds\.jsonl, got"),
        ([ROUND, []], WHOLE),
        ([ROUND, {}], WHOLE),
        ([ROUND, "{"], WHOLE),
        ([{"server_round": 1}], "has rounds of no schema"),
        ([HALF], "findings must be a list"),
        (["[" * 100_000], LINE),
        (["\xff"], LINE),
        ([{**ROUND, "findings": None}], f"{LINE}: findings must be a list"),
        ([{**ROUND, "findings": [3]}], f"{LINE}: each finding must be an object with a list of"),
        (
            [{**ROUND, "findings": [{"assumptions": [1]}]}],
            f"{LINE}: each finding must be an object",
        ),
        ([{**ROUND, "metrics": []}], f"{LINE}: metrics must be an object"),
        ([{**ROUND, "server_round": 1.0}], f"{LINE}: server_round must be a whole number"),
        ([{**ROUND, "server_round": True}], f"{LINE}: server_round must be a whole number"),
        ([{**ROUND, "server_round": math.inf}], f"{LINE}: server_round must be a whole number"),
    ],
)
def test_lines_that_are_not_those_of_the_rounds_are_refused(
    folder: RunFolder, lines: list[Any], words: str
) -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder.path / "rounds.jsonl").write_bytes("".join(f"{t}\n" for t in texts).encode("latin-1"))
    folder.save(state(1))
    with pytest.raises(ConfigError, match=words):
        folder.load()


@pytest.mark.parametrize(
    "change",
    [
        [],
        3,
        {"server_round": "1"},
        {"server_round": 0},
        {"server_round": 31},
        {"model": []},
        {"model": {"w": "x"}},
        {"strategy": {}},
        {"strategy": [3]},
        {"audit": None},
        {"config": 3},
    ],
    ids=str,
)
def test_a_checkpoint_of_something_else_is_refused(folder: RunFolder, change: Any) -> None:
    write_rounds(folder, 1)
    folder.save(state(1))
    kept = unpack(folder.checkpoint.read_bytes())
    folder.checkpoint.write_bytes(pack({**kept, **change} if isinstance(change, dict) else change))
    with pytest.raises(ConfigError, match=r"resume needs a (whole )?checkpoint"):
        folder.load()


def test_other_settings_are_refused_and_named(folder: RunFolder) -> None:
    write_rounds(folder, 1)
    folder.save(state(1))
    other = replace(folder, config=replace(Config(), seed=3, clients=70, engine="ray"))
    with pytest.raises(ConfigError, match=r"has other values of clients, seed$"):
        other.load()
    moved = replace(Config(), engine="ray", ray_address="here:1", device="cuda", download=True)
    moved = replace(moved, data_dir="x")
    assert replace(folder, config=moved).load() is not None


def test_a_folder_in_use_is_refused_and_its_user_named(folder: RunFolder) -> None:
    with (
        folder.locked(),
        pytest.raises(ConfigError, match=rf"is in use by process {os.getpid()} on .*: wait until"),
        RunFolder.open(folder.path).locked(),
    ):
        raise AssertionError
    with folder.locked():
        pass


def test_a_lock_that_is_no_file_is_named_with_what_to_do(folder: RunFolder) -> None:
    (folder.path / ".lock").unlink()
    (folder.path / ".lock").mkdir()
    words = r"/\.lock must be a file that can be written, got: Is a directory; remove it"
    with pytest.raises(ConfigError, match=words), RunFolder.open(folder.path).locked():
        raise AssertionError


def test_two_runs_that_want_the_same_folder_do_not_write_over_each_other(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    with RunFolder(path, Config()).locked(), pytest.raises(ConfigError, match="is in use by"):
        RunFolder.create(path, Config(seed=1))
    assert RunFolder.create(path, Config(seed=2)).config.seed == 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_settings_that_were_cut_off_are_refused_and_not_filled_with_defaults(
    folder: RunFolder, share: float
) -> None:
    path = folder.path / "config.toml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: round(share * len(lines))]))
    with pytest.raises(ConfigError, match=r"resume needs all settings of the run, but .* lacks "):
        RunFolder.open(folder.path)


def test_names_of_new_folders_say_what_runs_and_are_never_taken(tmp_path: Path) -> None:
    paths = [default_path(Config(), tmp_path)]
    for _ in range(3):
        paths[-1].mkdir()
        paths.append(default_path(Config(), tmp_path))
    assert len(set(paths)) == 4
    assert all(path.name.split("-", 2)[2].startswith("digits-mlp") for path in paths)


def test_a_full_disk_leaves_what_was_there(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder.save(state(1))
    before = folder.checkpoint.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(ConfigError, match=r"out must be writable, .*: No space left on device"):
            RunFolder.create(tmp_path / "run", Config())
        with pytest.raises(OSError, match="No space"):
            folder.save(state(2))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    assert folder.checkpoint.read_bytes() == before
    RunFolder.create(tmp_path / "run", Config())
