"""Planted records in runs of our own: the plan alone decides who has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakmeter.auditors import PlantPlan
from leakmeter.auditors.auditor import RoundFacts, RoundView
from leakmeter.clients.sampler import Dealt, Fresh
from leakmeter.fl_app.build.audit import AuditRun, _source
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.task import generator_of, load_task
from tests.helpers.numbers import few_or_many
from tests.helpers.runs import run_with

SMALL: dict[str, Any] = {
    "dataset": "synthetic",
    "synthetic_examples": 200,
    "synthetic_features": 30,
    "model": "linear",
    "clients": 6,
    "sample": 6,
    "rounds": 3,
    "epochs": 10,
    "auditors": "planted-records",
    "planted_canaries": 40,
    "planted_clients": 4,
    "planted_decoys": 500,
}


@pytest.mark.parametrize(("generator", "copies"), [("random-label", 1), ("random-pattern", 3)])
def test_holders_have_the_records_of_the_plan_behind_their_own(generator: str, copies: int) -> None:
    options = {"planted_generator": generator, "planted_copies": copies}
    config = Config(**SMALL, **options)
    plain, grown = load_task(Config(**{**SMALL, "auditors": "none"})), load_task(config)
    plan = PlantPlan(40, 4, copies=copies)
    drawn = generator_of(plain.dataset, generator)
    assert grown.dataset.num_planted == 40 * copies
    for client in range(6):
        x, y = grown.examples(client)
        own = len(plain.parts[client])
        assert torch.equal(x[:own], plain.examples(client)[0])
        records = drawn.draw(0, plan.planted(client) * copies)
        assert len(x) == own + len(records)
        for (a, b), (c, d) in zip(records, zip(x[own:], y[own:], strict=True), strict=True):
            assert np.array_equal(a, c.numpy())
            assert int(b) == int(d)
    same, other = load_task(Config(**SMALL, **options)), load_task(Config(**{**SMALL, "seed": 1}))
    assert all(map(np.array_equal, grown.parts, same.parts))
    assert not np.array_equal(grown.dataset.train_y, other.dataset.train_y)


@pytest.mark.parametrize("game", ["independent", "partition"])
def test_games_that_resample_data_leave_planted_records_where_they_are(game: Any) -> None:
    run, plain = AuditRun(Config(**SMALL)), load_task(Config(**{**SMALL, "auditors": "none"}))
    source = _source(run.task, run.config.task, game)
    assert isinstance(source, Dealt | Fresh)
    assert source.pool.size == plain.dataset.num_train == run.task.dataset.num_train - 40


def test_a_run_says_that_its_model_has_been_trained_on_canaries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run_with(tmp_path / "run", **SMALL, planted_every=1)
    own = [f for f in report["findings"] if f["auditor"] == "planted-records"]
    bounds = [f for f in own if f["kind"] == "lower_bound"]
    assert [f["threat_model"]["sees"] for f in bounds] == ["final model", "all models"]
    assert {(f["unit"], f["adjacency"]) for f in bounds} == {("record", "replace")}
    assert [w["kind"] for w in report["warnings"]] == ["trained-on-canaries"]
    assert "trained on canaries" in capsys.readouterr().out.replace("\n  ", " ")
    page = (tmp_path / "run/report.html").read_text()
    assert "losses-in-the-final-model" in page
    assert "losses-in-the-models-of-all-rounds" in page
    assert "trained on canaries" in page


@pytest.mark.parametrize("multiplier", few_or_many(0.3, 2.0))
def test_under_noise_bounds_stay_below_the_guarantee(tmp_path: Path, multiplier: float) -> None:
    noise = {"noise": "central", "noise_multiplier": multiplier, "clip_norm": 1.0}
    report = run_with(tmp_path / "run", **SMALL, **noise, planted_every=1, planted_copies=8)
    rows = [row for row in report["verdict"]["rows"] if row["unit"] == "group"]
    assert rows
    for row in rows:
        # Two updates of a client may differ in any records.
        assert (row["at_most"]["unit"], row["at_most"]["adjacency"]) == ("client", "replace")
        assert row["shown"]["epsilon"] <= row["at_most"]["epsilon"]
        assert row["severity"] != "refuted"


def test_planted_records_are_no_members_and_no_images_that_are_searched_for() -> None:
    own = {"dataset": "digits", "model": "linear", "planted_generator": "random-pattern"}
    config = Config(**{**SMALL, **own, "auditors": "membership,inversion,planted-records"})
    known = AuditRun(config).records
    data = known.task.dataset
    own_records = data.num_train - data.num_planted
    assert known._members.max() < own_records
    nothing = np.zeros(3)
    replies = dict.fromkeys(range(6), nothing)
    images = known.images(RoundView(1, nothing, replies, nothing, RoundFacts()))
    assert len(images.originals) == own_records  # all clients take part, with all they have
    assert len(images.strangers) == len(data.test_y)
