"""What `--help` shows: the settings that people use, and with `all` every one."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from leakmeter.fl_app.cli import main as command_line
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.cli.run import COMMON
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import kebab
from leakmeter.fl_app.config.settings import PRESETS
from leakmeter.fl_app.sweep.points import REFUSED
from tests.helpers.project import ROOT, sources

SETTINGS = {kebab(spec.name) for spec in fields(Config)}
OPTION = re.compile(r"^  (?:-h[^,]*, )?--([\w-]+)", re.MULTILINE)


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_the_short_help_has_about_twenty_settings_and_says_how_to_see_the_rest(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = helped(capsys, command, "--help")
    options = set(OPTION.findall(text))
    assert options & SETTINGS == COMMON - ({"fail-above"} if command == "sweep" else set())
    assert 18 <= len(COMMON) <= 25
    assert len(text.splitlines()) <= 125
    assert "or with all every setting" in " ".join(text.split())


def test_a_setting_that_is_called_common_exists_and_keeps_its_default_in_the_short_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert COMMON <= SETTINGS
    text = " ".join(helped(capsys, "--help").split())
    assert "records per gradient step (default: 8)" in text  # of two clauses the first
    assert "noise standard deviation on the sum, divided by the clip norm (default: 1)" in text


def test_help_all_has_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(OPTION.findall(helped(capsys, "--help", "all"))) >= SETTINGS | {"port", "verbose"}
    swept = set(OPTION.findall(helped(capsys, "sweep", "--help", "all")))
    assert SETTINGS - swept == {name for name in REFUSED if name in SETTINGS and name != "against"}


def test_the_short_help_leaves_the_long_one_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """One parser may show both, as in a notebook."""
    parser = command_line._parser()
    for words in (["run", "--help"], ["run", "--help", "all"]):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
    short, long = capsys.readouterr().out.split("usage:")[1:]
    assert set(OPTION.findall(long)) >= SETTINGS
    assert len(short) < len(long) / 2


def test_every_help_fits_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in command_line._COMMANDS:
        for more in ([], ["all"]):
            for line in helped(capsys, command, "--help", *more).splitlines():
                assert len(line) <= 80, (command, line)


def test_help_lists_every_command_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "--help").partition("\ncommands:")[2].partition("\n\n")[0]
    listed = re.findall(r"^  ([a-z-]+)  +[a-z]", text, re.MULTILINE)
    assert listed == list(command_line._COMMANDS)


def test_another_word_after_help_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "al"]) == 2
    assert (
        capsys.readouterr().err == "error: --help must be one of all, got 'al'; did you mean all?\n"
    )


def test_help_names_the_presets_and_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(helped(capsys, "--help", "all").split())
    assert f"--preset {'|'.join(PRESETS)} " in text
    for name, preset in PRESETS.items():
        assert f"{name} = {preset.about}" in text


def test_no_text_names_a_flag_that_nobody_can_type() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for path in (*pages, *(ROOT / name for name in sources())):
        found = re.findall(r"--[a-z-]*(?:…|\.\.\.)-?[a-z]+", path.read_text(encoding="utf-8"))
        assert found == [], path
