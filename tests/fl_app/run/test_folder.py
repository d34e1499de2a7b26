"""The run folder: made once, never overwritten, opened only to go on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.run_log import SCHEMA
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.run import checkpoint
from leakmeter.fl_app.run.folder import RunFolder, default_path


def state(server_round: int) -> dict[str, Any]:
    model = {"w": np.ones(2)}
    return {"server_round": server_round, "model": model, "strategy": [], "audit": {}}


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


def test_a_folder_is_made_only_once(folder: RunFolder) -> None:
    before = (folder.path / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match="out must be a new or empty folder"):
        RunFolder.create(folder.path, Config(seed=1))
    assert (folder.path / "config.toml").read_bytes() == before


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
    assert (loaded["server_round"], loaded["config"]) == (2, Config().to_mapping())
    assert np.array_equal(loaded["model"]["w"], np.ones(2))


@pytest.mark.parametrize("rounds", [(), (1,), (1, 3), (2, 1)])
def test_a_record_that_lacks_rounds_is_refused(folder: RunFolder, rounds: tuple[int, ...]) -> None:
    write_rounds(folder, *rounds)
    folder.save(state(2))
    with pytest.raises(ConfigError, match=r"resume needs rounds 1 to 2 in .*rounds\.jsonl, got"):
        folder.load()


@pytest.mark.parametrize("line", ["[]\n", "{}\n", "{\n", '{"server_round": "x"}\n'])
def test_a_record_with_a_broken_line_is_refused(folder: RunFolder, line: str) -> None:
    write_rounds(folder, 1)
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write(line)
    folder.save(state(1))
    with pytest.raises(ConfigError, match=r"resume needs whole lines in .*rounds\.jsonl"):
        folder.load()


@pytest.mark.parametrize("schema", ["leakmeter-report/1", "leakmeter-report/3"])
def test_a_run_of_another_schema_is_refused_and_left_alone(folder: RunFolder, schema: str) -> None:
    write_rounds(folder, 1, 2, schema=schema)
    folder.save(state(2))
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(ConfigError, match=f"resume needs a run of {SCHEMA}, but .* of {schema}: "):
        folder.load()
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_lines_of_the_first_schema_had_no_name(folder: RunFolder) -> None:
    (folder.path / "rounds.jsonl").write_text('{"server_round": 1}\n')
    folder.save(state(1))
    with pytest.raises(ConfigError, match="has rounds of leakmeter-report/1"):
        folder.load()


def test_other_settings_are_refused_and_named(folder: RunFolder) -> None:
    write_rounds(folder, 1)
    folder.save(state(1))
    other = replace(folder, config=replace(Config(), seed=3, clients=70, engine="ray"))
    with pytest.raises(ConfigError, match=r"has other values of clients, seed$"):
        other.load()
    moved = replace(Config(), engine="ray", ray_address="here:1", data_dir="x", download=True)
    assert replace(folder, config=moved).load() is not None


@pytest.mark.parametrize("kept", [[], {"server_round": 1}, 3])
def test_a_checkpoint_of_something_else_is_refused(folder: RunFolder, kept: Any) -> None:
    checkpoint.save(folder.checkpoint, kept)
    with pytest.raises(ConfigError, match=r"resume needs a checkpoint of this run"):
        folder.load()


def test_names_of_new_folders_say_what_runs_and_are_never_taken(tmp_path: Path) -> None:
    seen = set()
    for _ in range(4):
        path = default_path(Config(), tmp_path)
        assert path.name.split("-", 2)[2].startswith("digits-mlp")
        assert path not in seen
        seen.add(path)
        path.mkdir()
