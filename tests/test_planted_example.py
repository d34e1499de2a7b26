"""Secrets planted in the example's language model: found the better the more copies there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs_blocks import blocks
from tests.foreign_app import run_here
from tests.helpers.project import ROOT

APP = ROOT / "examples" / "lora_transformer" / "planted"
PAGE = ROOT / "docs" / "language-models.md"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("flower_task")]


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any, tmp_path: Path) -> None:
    """Keep base models and audits out of the folders of whoever runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))


def audit(home: Path, run_id: int, **changes: Any) -> dict[str, Any]:
    """Return the report of a run of the app."""
    run_here(APP, run_id=run_id, **changes)
    report: dict[str, Any] = json.loads((home / "audits" / str(run_id) / "report.json").read_text())
    return report


def bounds(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the bounds of a run by what the attacker sees."""
    found = (f for f in report["findings"] if f["kind"] == "lower_bound")
    return {f["threat_model"]["sees"]: f for f in found}


def test_bounds_grow_with_copies(tmp_path: Path) -> None:
    seen = {}
    for copies in (1, 4, 16):
        report = audit(tmp_path, copies, copies=copies)
        assert report["failures"] == []
        assert [w["kind"] for w in report["warnings"]] == ["trained-on-canaries"]
        seen[copies] = bounds(report)["all models"]
        assert seen[copies]["unit"] == ("record" if copies == 1 else "group")
    # Three runs showed 0, 1.8 and 3.4. Clients sample without a seed.
    assert seen[1]["value"] < seen[4]["value"] < seen[16]["value"]
    assert seen[16]["value"] > 1.5


def test_secrets_that_the_app_does_not_take_are_not_found(tmp_path: Path, monkeypatch: Any) -> None:
    from leakmeter.auditors.hook import planting

    monkeypatch.setattr(planting.Planted, "__iter__", lambda _: iter(()))
    report = audit(tmp_path, 1, copies=16, **{"num-server-rounds": 6})
    # Each bound is above 0 in at most 2.5 % of runs in which nothing is planted.
    assert bounds(report)["all models"]["value"] == 0
    [found] = [f for f in report["findings"] if f["quantity"] == "secrets extracted"]
    assert found["facts"]["extracted"] == 0


def test_the_page_shows_lines_of_the_app() -> None:
    client = (APP / "lora_transformer" / "client_app.py").read_text()
    server = (APP / "lora_transformer" / "server_app.py").read_text()
    code = "\n".join(block.text for block in blocks(PAGE) if block.language == "python")
    for line in (
        "from leakmeter import plant_mod, planted",
        "app = ClientApp(mods=[plant_mod])",
        "with planted(msg, context) as canaries:",
    ):
        assert line in code
        assert line in client
    for line in (
        "from leakmeter import Audited, PlantedRecords, PlantPlan, Secrets, TorchScores",
        'secrets = Secrets("my code is {letters:9}")',
        "prefix=secrets.prefix)",
    ):
        assert line in code
        assert line in server
