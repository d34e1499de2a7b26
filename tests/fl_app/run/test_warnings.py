"""Runs that training has damaged end with a report that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from tests.helpers.runs import report_of


@pytest.fixture
def small(tiny_config: Config) -> Config:
    """A run of two rounds; one batch each, so that huge steps stay finite."""
    return replace(tiny_config, rounds=2, batch_size=0, auditors="one-shot")


def warnings(path: Path, config: Config) -> dict[str, dict[str, Any]]:
    """Return the warnings in the report of a run, which are those of its outcome."""
    outcome = launch(RunFolder.create(path, config), Progress())
    report = report_of(path)
    assert list(outcome.failures) == report["failures"] == []
    assert [w.text for w in outcome.warnings] == [w["text"] for w in report["warnings"]]
    assert [one.text for one in outcome.limitations] == [w["text"] for w in report["limitations"]]
    return {warning["kind"]: warning for warning in report["warnings"]}


def test_a_sound_run_has_no_warning_about_its_training(small: Config, tmp_path: Path) -> None:
    assert set(warnings(tmp_path / "run", small)) <= {"few-canaries"}


@pytest.mark.parametrize(
    ("secagg", "auditors", "is_said"),
    [("on", "one-shot", False), ("off", "one-shot", True), ("off", "single-update", False)],
)
def test_without_secure_aggregation_the_report_says_what_the_server_sees_unless_it_is_audited(
    secagg: str, auditors: str, is_said: bool, small: Config, tmp_path: Path
) -> None:
    warnings(tmp_path / "run", replace(small, secagg=secagg, auditors=auditors))
    listed = report_of(tmp_path / "run")["limitations"]
    said = [one["text"] for one in listed if one["auditor"] == "server"]
    words = "Secure aggregation is off: the server sees every update itself."
    assert [text[: len(words)] for text in said] == [words] * is_said


def test_huge_steps_are_seen_as_clipped_coordinates(small: Config, tmp_path: Path) -> None:
    found = warnings(tmp_path / "run", replace(small, lr=1e30))
    clipped = found["clipped-coordinates"]
    assert clipped["total"] == 2 * 5 * 210
    assert clipped["value"] > 0.3
    assert clipped["text"].startswith(f"{100 * clipped['value']:.2g} % of all coordinates")


@pytest.mark.parametrize("more", [{}, {"noise": "central", "clip_norm": 1.0}])
def test_a_run_that_diverges_at_once_ends_with_the_reason(
    small: Config, tmp_path: Path, more: dict[str, Any]
) -> None:
    # Several steps of this length overflow: no client has an update to send.
    diverging = replace(small, lr=1e30, epochs=4, batch_size=4, model="mlp", **more)
    found = warnings(tmp_path / "run", diverging)
    honest = 6 if more else 10  # canaries that have the clip norm are finite whatever was trained
    assert found["non-finite-updates"]["count"] == honest
    assert found["non-finite-updates"]["total"] == 10
    # Under noise a client sends its share in any case.
    assert ("abandoned-rounds" in found) == (not more)
    assert "dropouts" not in found


def test_a_clip_norm_that_clips_everybody_is_said(small: Config, tmp_path: Path) -> None:
    noisy = replace(small, noise="central", clip_norm=1e-3, secagg="off")
    found = warnings(tmp_path / "run", noisy)["clipped-updates"]
    assert (found["count"], found["total"]) == (6, 6)  # canary seats do not count


# How well two machines agree: the same run with another set of processor instructions.


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
    return report_of(folder)


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
