"""Presets: other defaults under a name, which a settings file and what is typed replace."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.config.settings import AUDITOR_NAMES, PRESETS
from leakmeter.papers.elkordy2023.measure import FEDERATION

TINY = ["--dataset", "synthetic", "--synthetic-examples", "200", "--model", "linear"]
TINY += ["--clients", "6", "--sample", "3", "--canary-seats", "2", "--epochs", "1"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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


def test_an_unknown_preset_is_an_error_with_the_nearest_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--preset", "quik"]) == 2
    expected = "error: --preset must be one of quick, thorough, paper, got 'quik'; did you mean"
    assert capsys.readouterr().err.startswith(expected)


def test_a_run_says_and_saves_what_its_preset_sets_so_that_it_can_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_a_settings_file_wins_over_the_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text('rounds = 4\nauditors = "none"\n')
    words = [*TINY, "--config", "mine.toml", "--preset", "quick", "--out", "run"]
    assert main(words) == 0
    assert "preset quick: your own settings replace all of it\n" in capsys.readouterr().out
    found = Config.from_toml(tmp_path / "run" / "config.toml")
    assert (found.rounds, found.auditors) == (4, "none")


def test_a_resumed_run_takes_no_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--resume", "x", "--preset", "quick"]) == 2
    assert "leave out --preset" in capsys.readouterr().err


def test_a_sweep_takes_a_preset_whose_values_its_axes_replace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", *TINY, "--preset", "quick", "--over", "rounds=2,3", "--noise", "central"]
    assert main([*words, "--clip-norm", "1", "--out", "swept"]) == 0
    assert "preset quick: --auditors one-shot\n" in capsys.readouterr().out
    plan = json.loads(next((tmp_path / "swept").glob("*.json")).read_text())
    assert '"one-shot"' in json.dumps(plan)
