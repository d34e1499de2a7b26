"""The same seed gives the same findings wherever the clients live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main


def report(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((path / "report.json").read_text())
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("server", ["fedavg", "fedavgm"])
def test_both_engines_give_the_same_report(
    server: str, tmp_path: Path, panel: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*panel, "--server", server]
    for engine in ("inline", "ray"):
        out = str(tmp_path / engine)
        assert main([*arguments, "--engine", engine, "--out", out]) == 0
    assert "DEPRECATED" not in capsys.readouterr().err
    one, other = (report(tmp_path / engine) for engine in ("inline", "ray"))
    assert (one["config"].pop("engine"), other["config"].pop("engine")) == ("inline", "ray")
    assert one == other
    assert len(one["findings"]) >= 4


@pytest.mark.slow
def test_a_run_cut_off_in_one_engine_goes_on_in_the_other(
    tmp_path: Path, panel: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leakmeter.fl_app.run.progress import Progress

    def dying(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "round", dying)
        assert main([*panel, "--out", str(tmp_path / "run")]) == 130
    config = tmp_path / "run/config.toml"
    config.write_text(config.read_text().replace('"inline"', '"ray"'))
    assert main(["--resume", str(tmp_path / "run")]) == 0
    assert main([*panel, "--out", str(tmp_path / "whole")]) == 0
    assert report(tmp_path / "run")["findings"] == report(tmp_path / "whole")["findings"]


@pytest.mark.slow
def test_a_mistake_found_by_the_server_reaches_the_command_line_through_ray(
    tmp_path: Path,
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from leakmeter.fl_app.config.field import ConfigError

    def broken(*_: Any, **__: Any) -> None:
        raise ConfigError("made up")

    monkeypatch.setattr("leakmeter.fl_app.run.launch.run_on", broken)
    assert main([*tiny, "--engine", "ray", "--out", str(tmp_path / "run")]) == 2
    assert "error: made up" in capsys.readouterr().err
