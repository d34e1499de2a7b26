"""Files of earlier releases: a value that meant something else is refused, never reinterpreted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.meaning import STAMP, in_todays_words
from leakmeter.fl_app.run.folder import RunFolder


def old_toml(config: Config) -> str:
    """Return the file as releases without a version have written it."""
    stamp, _, rest = config.to_toml().partition("\n\n")
    assert stamp == "settings-version = 2"
    return rest


@pytest.fixture
def old_folder(tmp_path: Path, tiny_config: Config) -> Path:
    folder = RunFolder.create(tmp_path / "old", replace(tiny_config, partition="dirichlet")).path
    file = folder / "config.toml"
    file.write_text(old_toml(Config.from_toml(file)))
    return folder


def test_a_run_of_the_old_dirichlet_partition_is_not_resumed(old_folder: Path, capsys) -> None:
    assert main(["--resume", str(old_folder)]) == 2
    said = capsys.readouterr().err
    assert 'partition = "dirichlet" in ' in said
    assert f"--config {old_folder / 'config.toml'} --partition dirichlet-labels" in said
    assert {path.name for path in old_folder.iterdir()} == {".lock", "config.toml"}


def test_its_file_is_not_taken_for_the_new_partition(old_folder: Path, capsys) -> None:
    file = str(old_folder / "config.toml")
    assert main(["--config", file, "--out", str(old_folder / "new")]) == 2
    assert "dirichlet-labels" in capsys.readouterr().err
    # As the message says: with the partition typed, the file can be used.
    out, more = old_folder.parent / "new", ["--auditors", "none", "--rounds", "1"]
    command = ["--config", file, "--partition", "dirichlet-labels", "--dirichlet", "5"]
    assert main([*command, *more, "--out", str(out)]) == 0
    assert Config.from_toml(out / "config.toml").partition == "dirichlet-labels"


def test_other_partitions_of_earlier_releases_mean_what_they_meant(
    tmp_path: Path, tiny_config: Config
) -> None:
    file = tmp_path / "config.toml"
    for partition in ("iid", "dirichlet-labels"):
        config = replace(tiny_config, partition=partition)
        file.write_text(old_toml(config))
        assert Config.from_toml(file) == config


def test_a_file_of_this_release_has_the_new_meaning(tmp_path: Path, tiny_config: Config) -> None:
    config = replace(tiny_config, partition="dirichlet")
    folder = RunFolder.create(tmp_path / "run", config)
    assert RunFolder.open(folder.path).config == config


def test_a_few_lines_by_hand_have_the_meaning_of_today(tmp_path: Path, tiny: list[str]) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "run"
    file.write_text('partition = "dirichlet"\nseed = 3\n')
    more = ["--auditors", "none", "--rounds", "1", "--out", str(out)]
    assert main(["--config", str(file), *tiny, *more]) == 0
    assert Config.from_toml(out / "config.toml").partition == "dirichlet"


@pytest.mark.parametrize("version", [0, 3, "2", 2.0, True])
def test_an_unknown_version_is_refused(version: object) -> None:
    with pytest.raises(ConfigError, match="settings-version must be from 1 to 2"):
        Config.from_mapping({"settings-version": version})


def test_a_report_is_repeated_by_todays_name() -> None:
    old = Config(partition="dirichlet").to_mapping()
    assert in_todays_words(old)["partition"] == "dirichlet-labels"
    assert in_todays_words({**STAMP, **old})["partition"] == "dirichlet"
