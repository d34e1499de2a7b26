"""--lrt-models: the likelihood-ratio test at several initial models, with their spread."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leakmeter.auditors import LikelihoodRatio, SampleBudget
from leakmeter.fl_app import build
from leakmeter.fl_app.build.audit import AuditRun
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from tests.helpers.refusals import refuses
from tests.helpers.runs import cut_off, resumed

QUANTITY = "epsilon over initial models"
SMALL = {
    "auditors": "likelihood-ratio",
    "lrt_models": 3,
    "rounds": 2,
    "lrt_fit": 20,
    "lrt_candidates": 4,
    "lrt_trials": 30,
    "sample": 4,
}


@pytest.fixture(scope="module")
def run(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = replace(tiny_config, **SMALL)
    folder = RunFolder.create(tmp_path_factory.mktemp("models") / "run", config)
    launch(folder, Progress())
    return folder.path


def test_the_spread_is_a_finding_of_the_run_and_never_a_mean(run: Path) -> None:
    findings = json.loads((run / "report.json").read_text())["findings"]
    own, over = (
        next(f for f in findings if f["quantity"] == q and f["kind"] == "lower_bound")
        for q in ("epsilon", QUANTITY)
    )
    facts = over["facts"]
    each = [facts[f"model {i}"] for i in (1, 2, 3)]
    assert (facts["models"], facts["constant models"]) == (3, 0)
    assert (facts["smallest"], facts["largest"]) == (min(each), max(each))
    assert facts["median"] == pytest.approx(np.median(each))
    # The models share the confidence, so the bound is below the largest of them by itself.
    assert over["value"] <= max(each)
    assert over["confidence"] == own["confidence"] == 0.95
    first = json.loads((run / "rounds.jsonl").read_text().splitlines()[0])["findings"]
    bound = next(f for f in first if f["kind"] == "lower_bound" and f["quantity"] == "epsilon")
    assert bound["value"] == each[0]  # the first model is that of the run
    assert [f["quantity"] for f in first].count(QUANTITY) == 1
    second = json.loads((run / "rounds.jsonl").read_text().splitlines()[1])["findings"]
    assert QUANTITY not in [f["quantity"] for f in second]


def test_the_page_shows_the_spread(run: Path) -> None:
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "largest ε over initial models" in page
    assert "largest of 3 initial models, which share the confidence" in page


def test_a_resumed_run_keeps_the_other_models(run: Path, tmp_path: Path, tiny_config) -> None:
    cut_off(tmp_path / "run", replace(tiny_config, **SMALL), 1)
    assert resumed(tmp_path / "run") == (run / "report.json").read_bytes()


def test_other_models_come_from_the_same_initialiser_with_other_seeds(tiny_config: Config) -> None:
    config = replace(tiny_config, **SMALL)
    (auditor,) = build.auditors(config, 210)
    assert isinstance(auditor, LikelihoodRatio)
    one, other = auditor.budget.models
    assert one.shape == (210,)
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(one, AuditRun(config).other_initial(1))
    assert one.std() == pytest.approx(other.std(), rel=0.2)


def test_models_of_another_shape_are_refused(tiny_config: Config) -> None:
    sampler = AuditRun(tiny_config).sampler("rerun")
    auditor = LikelihoodRatio(sampler, budget=SampleBudget(models=(np.zeros(3),)))
    with refuses("models"):
        auditor.begin(210, 1)
