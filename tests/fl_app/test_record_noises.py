"""`--noise record-sgd|record-gd|record-isotropic` in whole runs, priced by their closed forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app import build
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.papers.zhang2024.prices import (
    full_gradient_epsilon,
    gaussian_sampling_epsilon,
    minibatch_epsilon,
)
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.usefixtures("few_sums")

SETTING: dict[str, Any] = {
    "dataset": "synthetic",
    "synthetic_examples": 240,
    "synthetic_features": 40,
    "synthetic_classes": 3,
    "model": "linear",
    "clients": 8,
    "sample": 8,
    "rounds": 2,
    "algorithm": "fedsgd",
    "batch_size": 4,
    "wfna_floor": 0.02,
    "clip_norm": 1.0,
    "auditors": "none",
    "delta": 1e-3,
    "lrt_every": 0,
}
GD = {"noise": "record-gd", "algorithm": "gd", "epochs": 1}
# What 8 clients less 3 colluders, with 30 records each, guarantee in 2 rounds.
PRICED: list[tuple[dict[str, Any], str, Callable[..., float], dict[str, Any]]] = [
    ({"noise": "record-sgd"}, "minibatch", minibatch_epsilon, {"batch": 4}),
    (GD, "full", full_gradient_epsilon, {}),
    ({"noise": "record-isotropic"}, "isotropic", gaussian_sampling_epsilon, {"batch": 4}),
]


def run(folder: Path, **changes: Any) -> dict[str, Any]:
    path = folder / "in.toml"
    path.write_text(Config(**{**SETTING, **changes}).to_toml())
    assert main(["run", "--config", str(path), "--out", str(folder / "out")]) == 0
    report: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())
    assert not report["failures"]
    return report


@pytest.mark.parametrize(("changes", "mechanism", "price", "more"), PRICED)
def test_a_run_guarantees_a_record_what_the_closed_form_says(
    tmp_path: Path,
    changes: dict[str, Any],
    mechanism: str,
    price: Callable[..., float],
    more: dict[str, Any],
) -> None:
    report = run(tmp_path, **changes)
    [priced] = [f for f in report["findings"] if f["auditor"] == "accountant"]
    assert (priced["unit"], priced["adjacency"], priced["kind"]) == (
        *("record", "replace", "guarantee"),
    )
    assert priced["threat_model"]["observer"] == "server"
    assert priced["threat_model"]["colluders"] == 3
    assert priced["facts"]["mechanism"] == mechanism
    setting = {"floor": 0.02, "clip": 1.0, "examples": 30, "delta": 1e-3, "rounds": 2}
    assert priced["value"] == pytest.approx(price(users=5, **setting, **more), rel=1e-9)
    assert (Assumption.SECRET_BATCHES in priced["assumptions"]) == (mechanism == "minibatch")
    # No loss: it would carry no noise.
    assert not any("train-loss" in line["metrics"] for line in report["rounds"])


@pytest.mark.parametrize("changes", [GD, {"noise": "record-isotropic"}])
def test_the_audit_of_a_record_stays_below_its_guarantee(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    small = {"auditors": "record-likelihood-ratio", "rounds": 1, "synthetic_features": 8}
    report = run(tmp_path, **small, **changes)
    [priced] = [f for f in report["findings"] if f["auditor"] == "accountant"]
    bounds = [f for f in report["findings"] if f["auditor"] == "record-likelihood-ratio"]
    games = {f["threat_model"]["game"] for f in bounds}
    assert games == ({"worst-data"} if changes is GD else {"worst-data", "rerun"})
    assert all(0 <= f["value"] <= priced["value"] for f in bounds)


def test_a_batch_larger_than_a_client_is_refused_before_training() -> None:
    config = Config(**{**SETTING, "noise": "record-sgd", "batch_size": 31})
    with refuses("--batch-size"):
        build.server_strategy(config)
