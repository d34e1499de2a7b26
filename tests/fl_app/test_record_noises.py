"""Noise for single records in whole runs: priced by closed forms, filled, audited at its unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app import build
from leakmeter.fl_app.config.config import Config
from leakmeter.papers.zhang2024.prices import (
    full_gradient_epsilon,
    gaussian_sampling_epsilon,
    minibatch_epsilon,
)
from tests.helpers.refusals import refuses
from tests.helpers.runs import run_with

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


WFNA: dict[str, Any] = {
    "sample": 6,
    "noise": "wfna",
    "auditors": "record-likelihood-ratio,one-shot",
    "canary_seats": 2,
}
# Which no theorem covers.
STEPS: dict[str, Any] = {"algorithm": "fedavg", "epochs": 2, "rounds": 1, "auditors": "none"}


def run(folder: Path, **changes: Any) -> dict[str, Any]:
    return run_with(folder / "out", **SETTING | changes)


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


def test_a_run_guarantees_and_audits_a_record(tmp_path: Path) -> None:
    report = run(tmp_path, **WFNA)
    found = report["findings"]
    [priced] = [f for f in found if f["auditor"] == "accountant"]
    assert (priced["unit"], priced["adjacency"]) == ("record", "replace")
    assert priced["threat_model"]["observer"] == "server"
    assert priced["threat_model"]["participations"] == 2
    # Eight clients, two of them seats, which carry no noise; 2·6 − 8 − 1 = 3 may collude.
    assert priced["facts"]["fewest honest"] == 3
    assert priced["threat_model"]["colluders"] == 3
    bounds = [f for f in found if f["auditor"] == "record-likelihood-ratio"]
    # Of the first round and of the run: at the worst data of the others, and with their own.
    games = [(f["server_round"], f["threat_model"]["game"]) for f in bounds]
    worst = "worst-data"
    assert games == [(1, worst), (1, "rerun"), (None, worst), (None, "rerun")]
    for bound in bounds:
        assert (bound["unit"], bound["adjacency"], bound["delta"]) == ("record", "replace", 1e-3)
        assert bound["value"] <= priced["value"]
    assert all(f["unit"] == "client" for f in found if f["auditor"] == "one-shot")
    # No loss: it would carry no noise.
    assert not any("train-loss" in r for r in report["rounds"])


def test_local_steps_without_a_theorem_are_a_warning_before_training(
    tmp_path: Path, capsys: Any
) -> None:
    report = run(tmp_path / "steps", **WFNA | STEPS | {"wfna_blocks": 3})
    [priced] = [f for f in report["findings"] if f["auditor"] == "accountant"]
    assert priced["value"] == "inf"
    words = "no theorem covers more than one: this run guarantees nothing (ε = ∞)"
    said = " ".join(capsys.readouterr().out.split())
    assert (
        f"Warning: The noise wfna with the algorithm fedavg takes 2 local steps, and {words}"
        in said
    )
    assert said.index(words) < said.index("round 1/1")
    [noted] = [one for one in report["limitations"] if one["auditor"] == "accountant"]
    assert words in noted["text"]
    assert words in (tmp_path / "steps/out/report.html").read_text()
    for name, changes in (("one", {"epochs": 1}), ("sgd", {"algorithm": "fedsgd"})):
        sound = run(tmp_path / name, **WFNA | STEPS | changes)
        assert sound["limitations"] == []


def test_a_guarantee_for_a_record_covers_no_finding_about_a_client(tmp_path: Path) -> None:
    names = "likelihood-ratio,record-likelihood-ratio,one-shot"
    few = {"lrt_fit": 60, "lrt_candidates": 10, "lrt_trials": 40}
    report = run(tmp_path, **WFNA | few | {"auditors": names, "rounds": 1})
    units = {f["auditor"]: f["unit"] for f in report["findings"]}
    assert units == {
        "accountant": "record",
        "record-likelihood-ratio": "record",
        "likelihood-ratio": "client",
        "one-shot": "client",
        "secure-sum": "client",
    }
    # The two updates that are distinguished carry the noise of their own client.
    proved = [f for f in report["findings"] if f["auditor"] == "likelihood-ratio"]
    assert any(Assumption.FROZEN_UPDATES in f["assumptions"] for f in proved)
