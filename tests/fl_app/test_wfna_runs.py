"""`--noise wfna` in whole runs: masked, filled, accounted for and audited at its own unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config

pytestmark = pytest.mark.usefixtures("few_sums")

SETTING: dict[str, Any] = {
    "dataset": "synthetic",
    "synthetic_examples": 240,
    "synthetic_features": 40,
    "synthetic_classes": 3,
    "model": "linear",
    "clients": 8,
    "sample": 6,
    "rounds": 2,
    "algorithm": "fedsgd",
    "batch_size": 4,
    "noise": "wfna",
    "wfna_floor": 0.02,
    "clip_norm": 1.0,
    "auditors": "record-likelihood-ratio,one-shot",
    "canary_seats": 2,
    "delta": 1e-3,
    "lrt_every": 0,
}


def run(folder: Path, **changes: Any) -> dict[str, Any]:
    path = folder / "in.toml"
    path.write_text(Config(**{**SETTING, **changes}).to_toml())
    assert main(["run", "--config", str(path), "--out", str(folder / "out")]) == 0
    report: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())
    return report


def test_a_run_guarantees_and_audits_a_record(tmp_path: Path) -> None:
    report = run(tmp_path)
    assert not report["failures"]
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


def test_blocks_and_local_steps_go_through_and_steps_are_not_covered(tmp_path: Path) -> None:
    report = run(tmp_path, wfna_blocks=3, algorithm="fedavg", epochs=2, rounds=1, auditors="none")
    [priced] = [f for f in report["findings"] if f["auditor"] == "accountant"]
    assert priced["value"] == "inf"


def test_local_steps_without_a_theorem_are_a_warning_before_training(
    tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "steps").mkdir()
    report = run(tmp_path / "steps", algorithm="fedavg", epochs=2, rounds=1, auditors="none")
    words = "no theorem covers more than one: this run guarantees nothing (ε = ∞)"
    said = " ".join(capsys.readouterr().out.split())
    assert (
        f"Warning: The noise wfna with the algorithm fedavg takes 2 local steps, and {words}"
        in said
    )
    assert said.index(words) < said.index("round 1/1")
    [noted] = [one for one in report["limitations"] if one["auditor"] == "accountant"]
    assert words in noted["text"]
    assert words in (tmp_path / "steps" / "out" / "report.html").read_text()
    for name, changes in (("one", {"algorithm": "fedavg", "epochs": 1}), ("sgd", {})):
        (tmp_path / name).mkdir()
        sound = run(tmp_path / name, rounds=1, auditors="none", **changes)
        assert sound["limitations"] == []


def test_a_guarantee_for_a_record_covers_no_finding_about_a_client(tmp_path: Path) -> None:
    names = "likelihood-ratio,record-likelihood-ratio,one-shot"
    few = {"lrt_fit": 60, "lrt_candidates": 10, "lrt_trials": 40}
    report = run(tmp_path, auditors=names, rounds=1, **few)
    assert not report["failures"]
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
