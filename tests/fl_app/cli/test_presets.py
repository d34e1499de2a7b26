"""Presets: other defaults under a name, which a settings file and what is typed replace."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli import main as command_line
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.cli.run import COMMON
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, kebab
from leakmeter.fl_app.config.settings import AUDITOR_NAMES, PRESETS
from leakmeter.fl_app.sweep.points import REFUSED
from leakmeter.papers.elkordy2023.measure import FEDERATION
from tests.helpers.fixtures import Patch, Printed
from tests.helpers.project import ROOT, sources

TINY = ["--dataset", "synthetic", "--synthetic-examples", "200", "--model", "linear"]
TINY += ["--clients", "6", "--sample", "3", "--canary-seats", "2", "--epochs", "1"]


def differs(config: Config) -> dict[str, Any]:
    usual = Config().to_mapping()
    return {name: value for name, value in config.to_mapping().items() if value != usual[name]}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_what_it_says_and_nothing_else(name: str) -> None:
    config, words = Config.adapted({}, name)
    assert differs(config) == dict(PRESETS[name].settings)
    assert words.splitlines()[0].startswith(f"preset {name}: --")
    for setting, value in PRESETS[name].settings.items():
        assert f"--{setting} {value}" in words


def test_the_preset_paper_is_the_federation_of_the_repeated_figures() -> None:
    names = ("dataset", "model", "clients", "algorithm", "batch_size", "epochs", "lr")
    config, _ = Config.adapted({}, "paper")
    assert [getattr(config, n) for n in names] == [getattr(FEDERATION, n) for n in names]


def test_what_is_given_wins_over_the_preset() -> None:
    config, words = Config.adapted({"rounds": 7}, "quick")
    assert (config.rounds, config.auditors) == (7, "one-shot")
    assert words == "preset quick: --auditors one-shot"
    _, words = Config.adapted({"rounds": 7, "auditors": "mine"}, "quick")
    assert words == "preset quick: your own settings replace all of it"


# What people may add; a preset's own values give way to all of it, as defaults do.
GIVEN: list[dict[str, Any]] = [
    {},
    {"clients": 10},
    {"sample": 5},
    {"secagg": "off"},
    {"participation": "once"},
    {"noise": "central", "clip-norm": 1.0},
    {"clients": 12, "sample": 11},
    *({"auditors": name} for name in AUDITOR_NAMES if name not in ("inversion", "single-update")),
]
ONLY_IN = {"record-likelihood-ratio", "transcript"}


@pytest.mark.parametrize(("name", "given"), list(product(PRESETS, GIVEN)))
def test_no_preset_is_in_the_way_of_what_is_given(name: str, given: dict[str, Any]) -> None:
    """An error would be about a value that nobody has typed."""
    try:
        Config.adapted(given)
    except ConfigError:
        pytest.skip("refused without a preset as well")
    config, _ = Config.adapted(given, name)
    for setting, value in given.items():
        assert config.to_mapping()[setting] == value


def test_a_run_says_and_saves_what_its_preset_sets_so_that_it_can_be_repeated(
    tmp_path: Path, capsys: Printed
) -> None:
    assert main([*TINY, "--preset", "quick", "--rounds", "4", "--out", "first"]) == 0
    assert "preset quick: --auditors one-shot\n" in capsys.readouterr().out
    saved = tmp_path / "first" / "config.toml"
    assert Config.from_toml(saved).auditors == "one-shot"
    assert main(["--config", str(saved), "--out", "again"]) == 0
    reports = [
        json.loads((tmp_path / one / "report.json").read_text()) for one in ("first", "again")
    ]
    assert reports[0]["findings"] == reports[1]["findings"]


def test_a_settings_file_wins_over_the_preset(tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "mine.toml").write_text('rounds = 4\nauditors = "none"\n')
    words = [*TINY, "--config", "mine.toml", "--preset", "quick", "--out", "run"]
    assert main(words) == 0
    assert "preset quick: your own settings replace all of it\n" in capsys.readouterr().out
    found = Config.from_toml(tmp_path / "run" / "config.toml")
    assert (found.rounds, found.auditors) == (4, "none")


def test_a_sweep_takes_a_preset_whose_values_its_axes_replace(
    tmp_path: Path, capsys: Printed
) -> None:
    words = ["sweep", *TINY, "--preset", "quick", "--over", "rounds=2,3", "--noise", "central"]
    assert main([*words, "--clip-norm", "1", "--out", "swept"]) == 0
    assert "preset quick: --auditors one-shot\n" in capsys.readouterr().out
    plan = json.loads(next((tmp_path / "swept").glob("*.json")).read_text())
    assert '"one-shot"' in json.dumps(plan)


# What `--help` shows: the settings that people use, and with `all` every one.


SETTINGS = {kebab(spec.name) for spec in fields(Config)}
OPTION = re.compile(r"^  (?:-h[^,]*, )?--([\w-]+)", re.MULTILINE)


def helped(capsys: Printed, *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_the_short_help_has_about_twenty_settings_and_says_how_to_see_the_rest(
    command: str, capsys: Printed
) -> None:
    text = helped(capsys, command, "--help")
    options = set(OPTION.findall(text))
    assert options & SETTINGS == COMMON - ({"fail-above"} if command == "sweep" else set())
    assert 18 <= len(COMMON) <= 25
    assert len(text.splitlines()) <= 125
    assert "or with all every setting" in " ".join(text.split())


def test_a_setting_that_is_called_common_exists_and_keeps_its_default_in_the_short_help(
    capsys: Printed,
) -> None:
    assert COMMON <= SETTINGS
    text = " ".join(helped(capsys, "--help").split())
    assert "records per gradient step (default: 8)" in text  # of two clauses the first
    assert "noise standard deviation on the sum, divided by the clip norm (default: 1)" in text


def test_the_short_help_leaves_the_long_one_whole(capsys: Printed) -> None:
    """One parser may show both, as in a notebook."""
    parser = command_line._parser()
    for command in ("run", "sweep"):
        for words in ([command, "--help"], [command, "--help", "all"]):
            with pytest.raises(SystemExit):
                parser.parse_args(words)
    short, long, _, swept = capsys.readouterr().out.split("usage:")[1:]
    assert set(OPTION.findall(long)) >= SETTINGS | {"port", "verbose"}
    assert len(short) < len(long) / 2
    left_out = SETTINGS - set(OPTION.findall(swept))
    assert left_out == {name for name in REFUSED if name in SETTINGS and name != "against"}


def test_every_help_fits_eighty_columns(monkeypatch: Patch, capsys: Printed) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in command_line._COMMANDS:
        for more in ([], ["all"]):
            for line in helped(capsys, command, "--help", *more).splitlines():
                assert len(line) <= 80, (command, line)
                assert not line.endswith("-"), (command, line)  # no name is broken


def test_help_lists_every_command_with_what_it_does(capsys: Printed) -> None:
    text = helped(capsys, "--help").partition("\ncommands:")[2].partition("\n\n")[0]
    listed = re.findall(r"^  ([a-z-]+)  +[a-z]", text, re.MULTILINE)
    assert listed == list(command_line._COMMANDS)


def test_help_names_the_presets_and_what_they_are_for(capsys: Printed) -> None:
    text = " ".join(helped(capsys, "--help", "all").split())
    assert f"--preset {'|'.join(PRESETS)} " in text
    for name, preset in PRESETS.items():
        assert f"{name} = {preset.about}" in text


def test_no_text_names_a_flag_that_nobody_can_type() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for path in (*pages, *(ROOT / name for name in sources())):
        found = re.findall(r"--[a-z-]*(?:…|\.\.\.)-?[a-z]+", path.read_text(encoding="utf-8"))
        assert found == [], path
