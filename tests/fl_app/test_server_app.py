"""The two apps as Flower's launches find them: configured by the run's own configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from leakmeter.fl_app import client_app, server_app
from leakmeter.fl_app.config.config import Config, from_context
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.engines import inline
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.run.rehearsal import with_clip_norm
from tests.helpers.refusals import refuses
from tests.helpers.runs import report_of


def context(**settings: str | int | float | bool) -> Context:
    run_config = {name.replace("_", "-"): value for name, value in settings.items()}
    return Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config)


def flower_settings(config: Config) -> dict[str, str | int | float | bool]:
    given = config.to_mapping()
    del given["engine"], given["ray-address"]
    return {name.replace("-", "_"): value for name, value in given.items()}


def run(config: Config, **more: str) -> None:
    """Run both apps in this process, the clients with the server's run configuration."""
    run_context = context(**{**flower_settings(config), **more})
    with inline._identified(inline._task_identity()):
        grid = InlineGrid(client_app.app, config.clients, run_context.run_config)
        server_app.app(grid, run_context)


def test_settings_come_from_the_run_configuration_and_are_read_once() -> None:
    config = from_context(context(out="/x", resume="", clients=50, lr=1, dataset="synthetic"))
    assert config == Config(clients=50, lr=1.0, dataset="synthetic", engine="ray")
    assert from_context(context(clients=50)) is from_context(context(clients=50))
    assert from_context(context(lr=1)) == from_context(context(lr=1.0))
    with refuses("--clients"):
        from_context(context(clients=50.0))
    with pytest.raises(ConfigError, match="unknown setting cliens"):
        from_context(context(cliens=3))


def test_the_apps_leave_the_report_that_the_inline_engine_leaves(
    tiny_config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tiny_config, out=str(tmp_path / "apps"))
    said = capsys.readouterr().out
    assert said.startswith(f"run folder: {tmp_path / 'apps'}\n")
    assert "\nVERDICT  " in said
    assert f"\npage: {tmp_path / 'apps/report.html'}\n" in said
    assert (tmp_path / "apps/report.html").exists()
    launch(RunFolder.create(tmp_path / "inline", tiny_config), Progress())
    report = (tmp_path / "inline/report.json").read_text()
    expected = report.replace('"engine": "inline"', '"engine": "ray"').replace("(--", "(")
    noted = ',\n  "launch": "flwr run"'
    assert (tmp_path / "apps/report.json").read_text().replace(noted, "") == expected
    assert f"python run_sim.py {'--'}" not in said  # what to do next is in Flower's words
    assert "flwr run . --federation-config 'num-supernodes=" in said


def test_an_automatic_clip_norm_is_measured_under_flowers_apps_too(
    tiny_config: Config, tmp_path: Path
) -> None:
    run(tiny_config, out=str(tmp_path / "apps"), noise="distributed", clip_norm="auto")
    asked = {**tiny_config.to_mapping(), "noise": "distributed", "clip-norm": "auto"}
    expected, _ = with_clip_norm(Config.from_mapping(asked))
    report = report_of(tmp_path / "apps")
    assert report["config"]["clip-norm"] == expected.clip_norm > 0
    assert report["rehearsal"][0]["settings"]["noise"] == "none"


def test_a_deployment_with_the_usual_settings_plays_canaries_and_says_so_before_round_1(
    tiny_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LEAKMETER_RUNS", str(tmp_path))
    monkeypatch.setattr("leakmeter.fl_app.deployment.is_deployed", lambda: True)
    monkeypatch.setattr("leakmeter.fl_app.server_app.is_deployed", lambda: True)
    run(replace(tiny_config, auditors=Config.auditors), out=str(tmp_path / "run"))
    before, _, _ = capsys.readouterr().out.partition("round 1/")
    assert "this is a deployment: auditors = 'one-shot'" in before
    report = report_of(tmp_path / "run")
    assert report["config"]["auditors"] == "one-shot"
    assert report["config"]["launch"] == "deployment"
    assert "one-shot" in {finding["auditor"] for finding in report["findings"]}


def test_a_run_without_a_folder_goes_to_the_environments(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKMETER_RUNS", str(tmp_path / "runs"))
    run(replace(tiny_config, rounds=1))
    [folder] = (tmp_path / "runs").iterdir()
    assert (folder / "report.json").exists()


def test_a_relative_folder_is_refused(tiny_config: Config) -> None:
    for name in ("out", "resume"):
        with refuses(name):
            run(tiny_config, **{name: "runs/here"})


def test_a_mistake_is_found_before_a_folder_is_made(tiny_config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adult: looked for"):
        run(replace(tiny_config, dataset="adult"), out=str(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_can_be_resumed_through_the_apps(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tiny_config, out=str(tmp_path / "whole"))
    show = Progress.round

    def dying(self: Progress, line: object) -> None:
        show(self, line)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "round", dying)
        with pytest.raises(KeyboardInterrupt):
            run(tiny_config, out=str(tmp_path / "run"))
    run(tiny_config, resume=str(tmp_path / "run"))
    reports = [(tmp_path / name / "report.json").read_bytes() for name in ("run", "whole")]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("way", ["/elsewhere/run", "{home}/../run", "{home}/link/run", "{home}"])
@pytest.mark.parametrize("name", ["out", "resume", "ledger"])
def test_a_deployed_run_writes_only_where_the_servers_owner_allows(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    home = tmp_path / "runs"
    home.mkdir()
    (home / "link").symlink_to(tmp_path)
    monkeypatch.setenv("LEAKMETER_RUNS", str(home))
    monkeypatch.setattr(server_app, "is_deployed", lambda: True)
    path = way.format(home=home)
    folder = tmp_path / "run"
    if name == "resume":  # a run that is there, outside
        RunFolder.create(folder, tiny_config)
    settings = {name: path}
    config = tiny_config
    if name == "ledger":
        config = replace(tiny_config, noise="central", clip_norm=1.0, ledger=path)
        settings = {"out": str(home / "run")}
    with refuses(name):
        run(config, **settings)
    assert not (home / "run").exists()


def test_a_deployed_run_may_write_below_the_allowed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKMETER_RUNS", str(tmp_path))
    monkeypatch.setattr(server_app, "is_deployed", lambda: True)
    assert server_app._allowed(str(tmp_path / "a/../b"), "out") == tmp_path / "b"
    monkeypatch.setattr(server_app, "is_deployed", lambda: False)
    assert server_app._allowed("/anywhere", "out") == Path("/anywhere")
