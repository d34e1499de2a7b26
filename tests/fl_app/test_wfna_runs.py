"""`--noise wfna` in whole runs: masked, filled, accounted for and audited at its own unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from leakmeter.auditors.not_covered import WORDS

from leakmeter.auditors.finding import LIMITATION
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError

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
    assert (priced["unit"], priced["observer"], priced["adjacency"]) == (
        "record",
        "server",
        "replace",
    )
    assert priced["details"]["honest"] == [6, 6]  # canary seats carry no noise
    bounds = [f for f in found if f["auditor"] == "record-likelihood-ratio"]
    assert len(bounds) == 2  # of the first round, and of the run
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


def test_findings_about_clients_say_that_the_guarantee_does_not_cover_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "likelihood-ratio,record-likelihood-ratio,one-shot"
    few = {"lrt_fit": 150, "lrt_candidates": 20, "lrt_trials": 40}
    report = run(tmp_path, auditors=names, rounds=1, **few)
    assert not report["failures"]
    found = [f for f in report["findings"] if f["quantity"] != LIMITATION]  # which claims nothing
    of_clients = [f for f in found if f["auditor"] in ("likelihood-ratio", "one-shot")]
    of_records = [f for f in found if f["unit"] == "record"]
    assert {f["auditor"] for f in of_clients} == {"likelihood-ratio", "one-shot"}
    assert {f["auditor"] for f in of_records} == {"accountant", "record-likelihood-ratio"}
    assert all(f["unit"] == "client" for f in of_clients)
    assert all(f["threat_model"].endswith(WORDS) for f in of_clients)
    assert not any(WORDS in f["threat_model"] for f in of_records)
    # The two updates that are told apart carry the noise of their own client.
    frozen = [f for f in of_clients if any("drawn once" in text for text in f["assumptions"])]
    assert {f["auditor"] for f in frozen} == {"likelihood-ratio"}
    # What is proved of clients may be above the guarantee, and says that it contradicts nothing.
    proved = [f for f in of_clients if f["kind"] == "lower_bound" and f["server_round"] is None]
    assert {f["auditor"] for f in proved} >= {"likelihood-ratio"}
    assert all("does not contradict" in " ".join(f["assumptions"]) for f in proved)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count(WORDS) >= 2  # the summary has a block for each adversary


def test_other_noise_leaves_findings_as_they_are(tmp_path: Path) -> None:
    report = run(
        tmp_path, noise="central", wfna_floor=0.0, auditors="one-shot", rounds=1, algorithm="fedavg"
    )
    assert not any(WORDS in f["threat_model"] for f in report["findings"])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"wfna_floor": 0.0}, "wfna-floor"),
        ({"wfna_floor": -1.0}, "wfna-floor"),
        ({"wfna_blocks": 0}, "wfna-blocks"),
        ({"secagg": "off"}, "secagg"),
        ({"algorithm": "gd"}, "algorithm"),
        ({"batch_size": 0}, "batch-size"),
        ({"clip_norm": 0.0}, "clip-norm"),
        ({"ledger": "somewhere"}, "ledger"),
        ({"clipping": "adaptive"}, "clipping"),
        ({"noise": "central"}, "wfna-floor"),
        ({"noise": "central", "wfna_floor": 0.0}, "noise"),
    ],
)
def test_what_has_no_guarantee_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Config(**{**SETTING, **changes})
