"""Secrets planted in the example's language model: found the better the more copies there are."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leakmeter
from leakmeter import PlantedRecords, PlantPlan, Secrets, TorchScores
from leakmeter.auditors.auditor import RoundFacts, RoundView
from tests.docs_blocks import blocks
from tests.foreign_app import loaded, run_here
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
    from leakmeter.auditors.hook import mods

    monkeypatch.setattr(mods.Planted, "__iter__", lambda _: iter(()))
    report = audit(tmp_path, 1, copies=16, **{"num-server-rounds": 6})
    # Each bound is above 0 in at most 2.5 % of runs in which nothing is planted.
    assert bounds(report)["all models"]["value"] == 0
    [found] = [f for f in report["findings"] if f["quantity"] == "secrets extracted"]
    assert found["facts"]["extracted"] == 0


def shown(seed: int, *, is_planted: bool) -> float:
    """Return the bound for the final adapters after a small training of two clients or of one.

    Two have texts of their own alone; one has planted secrets alone.
    """
    import torch

    with loaded(APP):
        task = importlib.import_module("lora_transformer.task")
        get_adapters = importlib.import_module("lora_transformer.model").get_adapters
        config = {"pretraining-steps": 20, "rank": 16 if is_planted else 4, "freeze-a": False}
        torch.manual_seed(seed)
        secrets, clients = Secrets("my code is {letters:9}"), 1 if is_planted else 2
        plan = PlantPlan(canaries=50, clients=clients, seed=seed)
        models = [task.create_model(config) for _ in range(clients + 1)]
        for client, model in enumerate(models[1:]):
            texts = secrets.draw(seed, plan.planted(client))
            rows = torch.stack([task.encode(text) for text in texts])
            rows = rows if is_planted else task.encode_all(task.load_texts(client))
            steps = 200 if is_planted else 10
            task.train(model, rows, steps=steps, batch_size=8, lr=0.01)
        adapters = [
            np.concatenate([part.double().numpy().ravel() for part in get_adapters(one).values()])
            for one in models
        ]
        score = TorchScores(models[0], task.encode)
        auditor = PlantedRecords(secrets, score, plan, decoys=200)
        auditor.begin(adapters[0].size, 1)
        released = np.mean(adapters[1:], axis=0)
        auditor.observe(RoundView(1, adapters[0], {}, released, RoundFacts()))
        return auditor.report()[0].value


def test_without_planting_few_of_two_hundred_small_runs_show_a_leak() -> None:
    """5 % of 200 are 10; 20 or more would happen by chance once in 300."""
    assert sum(shown(seed, is_planted=False) > 0 for seed in range(200)) <= 19
    # The control that these runs could show one.
    assert sum(shown(seed, is_planted=True) > 0 for seed in range(3)) >= 2


@pytest.mark.parametrize("multiplier", [0.001, 20.0])
def test_under_noise_bounds_stay_below_the_accountant(
    multiplier: float, tmp_path: Path, monkeypatch: Any
) -> None:
    import flwr.serverapp.strategy as flower

    from leakmeter.clients import noise_mod
    from leakmeter.strategies import Central, Noised
    from leakmeter.strategies.protection.mechanism import FixedClip

    plain, plant = flower.FedAvg, leakmeter.plant_mod

    def noised(**options: Any) -> Noised:
        return Noised(plain(**options), noise=Central(multiplier), clipping=FixedClip(1.0), seed=0)

    monkeypatch.setattr(flower, "FedAvg", noised)
    monkeypatch.setattr(
        leakmeter, "plant_mod", lambda m, c, app: noise_mod(m, c, lambda *own: plant(*own, app))
    )
    report = audit(tmp_path, 1, copies=16)
    assert report["failures"] == []
    rows = [row for row in report["verdict"]["rows"] if row["unit"] == "group"]
    assert len(rows) == 2
    for row in rows:
        assert (row["at_most"]["unit"], row["at_most"]["adjacency"]) == ("client", "replace")
        # A client takes part in some of the 20 rounds, and the accountant has counted them.
        assert row["shown"]["attacker"]["participations"] < 20
        assert row["shown"]["epsilon"] <= row["at_most"]["epsilon"] < math.inf
        assert row["severity"] != "refuted"
    largest = max(row["shown"]["epsilon"] for row in rows)
    # The run without noise shows more than the guarantee under much noise.
    assert largest > 0.5 if multiplier < 1 else rows[0]["at_most"]["epsilon"] < 1.5


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
