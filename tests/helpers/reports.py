"""Makes a report that has every field and every detail once, and compares reports of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

from leakmeter.auditors import Finding
from leakmeter.auditors.finding import (
    ErrorCurve,
    Histogram,
    Limitation,
    PerClient,
    RunWarning,
    Spectrum,
)
from leakmeter.auditors.run_log import RoundLine, RunLog
from tests.helpers.findings import finding

DETAILS = (
    ErrorCurve((0.1,), (2.0,), (3.0,), (0.1, 0.5), (0.5, 0.1), (0.0,), (1.0,), 0.2, 1),
    Histogram((0.0, 1.0, 2.0), (1, 2), (3, 4), (0.5, 0.5), True),
    Spectrum((1, 2), (2.0, 1.0), (0.0, 0.5), 2, 1.5, 0.25),
    PerClient((0, 3), (1.0, math.inf), (2, 4)),
)


def full(**stated: object) -> Finding:
    """Return a conditional lower bound with every field and detail, changed as stated."""
    plain: dict[str, object] = {
        "value": math.inf,
        "kind": "lower_bound",
        "confidence": 0.95,
        "delta": 1e-5,
        "cap": 7.0,
        "sees": "all models",
        "holds": "canary",
        "participations": 2,
        "adjacency": "zero-out",
        "null_band": (0.0, math.inf),
        "sample_sizes": {"in": 3},
        "assumptions": ("independent-scores", "a sentence of my own"),
        "seed": 5,
        "facts": {"share": 0.5, "form": "fitted", "none": None},
        "details": DETAILS,
    }
    return finding(**plain | stated)


def write_report(folder: Path) -> Path:
    """Write the log and the report of a run of one round; return the folder."""
    log = RunLog(folder, {"seed": 3})
    log.add(RoundLine(1, 5, {"accuracy": 0.5, "loss": math.nan}, (full(server_round=1),)))
    log.finish(
        [full(), finding()],
        ["x failed"],
        [Limitation("mine", "cannot see it")],
        [RunWarning.of("dropouts", 1, 4)],
    )
    return folder


def comparable(report: Path) -> str:
    """Return a report without what differs between equal runs: their folder, the ledger's hash.

    Lines of a ledger name runs and folders, so no two ledgers have one hash.
    """
    values = json.loads(report.read_text().replace(str(report.parent.parent), ""))
    if values["config"].get("ledger"):
        assert values.pop("ledger")["lines"] >= 1
    return json.dumps(values, indent=1)
