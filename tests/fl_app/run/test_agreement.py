"""How well two machines agree: the same run with another set of processor instructions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# Older kernels of torch, MKL and OpenBLAS, as another processor would use them.
OLD_PROCESSOR = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
}
SMALL = ["--rounds", "4", "--lrt-every", "2", "--mi-every", "2"]


def report(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "run_sim.py"), "--out", str(folder), *SMALL]
    subprocess.run(
        command, env={**os.environ, **environment}, check=True, capture_output=True, timeout=600
    )
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.slow
def test_another_processor_gives_the_same_findings_to_one_per_cent(tmp_path: Path) -> None:
    here = report(tmp_path / "here", {})
    there = report(tmp_path / "there", OLD_PROCESSOR)
    assert here["config"] == there["config"]
    assert [r["num_clients"] for r in here["rounds"]] == [r["num_clients"] for r in there["rounds"]]
    for one, other in zip(here["rounds"], there["rounds"], strict=True):
        assert one["metrics"]["loss"] == pytest.approx(other["metrics"]["loss"], rel=1e-5)
    for one, other in zip(here["findings"], there["findings"], strict=True):
        assert one["sample_sizes"] == other["sample_sizes"]
        assert one["threat_model"] == other["threat_model"]
        claim = (one["auditor"], one["quantity"], one["kind"], one["server_round"])
        assert float(one["value"]) == pytest.approx(float(other["value"]), rel=0.01, abs=1e-3), (
            claim
        )
