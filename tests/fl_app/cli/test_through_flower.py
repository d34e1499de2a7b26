"""`leakmeter audit --engine flwr`: the copy of an app, and one run through Flower's processes."""

from __future__ import annotations

import json
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from flwr.clientapp import ClientApp

from leakmeter.auditors import canary_mod
from leakmeter.fl_app.audit_app import through_flower
from leakmeter.fl_app.audit_app.project import AppProject
from leakmeter.fl_app.audit_app.session import AppAudit, importing
from leakmeter.fl_app.cli.main import main
from tests.helpers.apps import PYPROJECT, app_in


def planned(app: Path, out: Path) -> AppAudit:
    return AppAudit(AppProject.read(app), out, clients=4, seats=1)


def test_the_copy_differs_from_the_app_in_two_lines_and_a_package(tmp_path: Path) -> None:
    app = app_in(tmp_path / "app")
    copy = through_flower.copied(planned(app, tmp_path / "out"), tmp_path / "copy")
    theirs = {path.relative_to(app) for path in app.rglob("*") if path.is_file()}
    ours = {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()}
    assert {path.parts[0] for path in ours - theirs} == {through_flower.PACKAGE}
    assert theirs <= ours
    before, after = ((one / "pyproject.toml").read_text().splitlines() for one in (app, copy))
    assert len([None for a, b in zip(before, after, strict=True) if a != b]) == 2
    components = tomllib.loads("\n".join(after))["tool"]["flwr"]["app"]["components"]
    assert components == {
        "serverapp": "leakmeter_audit.server_app:app",
        "clientapp": "leakmeter_audit.client_app:app",
    }


def test_results_in_the_apps_own_folder_are_not_copied(tmp_path: Path) -> None:
    app = app_in(tmp_path / "app")
    (app / "runs").mkdir()
    (app / "runs" / "report.json").write_text("{}")
    copy = through_flower.copied(planned(app, app / "runs"), tmp_path / "copy")
    assert not (copy / "runs").exists()


def test_a_list_of_files_to_bundle_gets_our_package(tmp_path: Path) -> None:
    toml = PYPROJECT.replace("[tool.flwr.app]", '[tool.flwr.app]\nfab-include = ["tiny/*.py"]')
    app = app_in(tmp_path / "app", toml=toml)
    copy = through_flower.copied(planned(app, tmp_path / "out"), tmp_path / "copy")
    found = tomllib.loads((copy / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert found["fab-include"] == ["leakmeter_audit/*.py", "tiny/*.py"]


def test_flowers_processes_get_the_whole_audit(tmp_path: Path) -> None:
    audit = planned(app_in(tmp_path / "app"), tmp_path / "out")
    assert through_flower._unpacked(through_flower._packed(audit)) == audit


@pytest.mark.parametrize("order", [("client", "server"), ("server", "client")])
def test_clients_have_our_mod_whichever_module_comes_first(
    order: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_in(tmp_path / "app")
    copy = through_flower.copied(planned(app, tmp_path / "out"), tmp_path / "copy")
    listed: list[Any] = []

    def train(*_: Any, mods: list[Any]) -> Any:
        listed.append(mods)
        return lambda function: function

    monkeypatch.setattr(ClientApp, "train", train)
    with importing(copy, {"tiny", through_flower.PACKAGE}):
        for kind in order:  # Flower's simulation imports both in one process
            found = import_module(f"{through_flower.PACKAGE}.{kind}_app").app
            assert type(found).__name__ == f"{kind.capitalize()}App"
    assert listed == [[canary_mod]]


@pytest.mark.launch
def test_an_app_is_audited_through_flwr_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app, out = app_in(tmp_path / "app"), tmp_path / "out"
    words = ["--engine", "flwr", "--clients", "5", "--seats", "1", "--out", str(out)]
    more = ["--run-config", "num-server-rounds=4"]
    assert main(["audit", str(app), *words, *more]) == 0
    said = capsys.readouterr().out
    assert "VERDICT" in said
    assert "app: unchanged" in said
    report = json.loads((out / "report.json").read_text())
    assert [one["num_clients"] for one in report["rounds"]] == [5, 5, 5, 5]
