"""The numbers of small runs stay the same, bit for bit, whatever is moved or renamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.runs import HASHES, RUNS, compared, hashes, machine
from tests.helpers.processes import run_python

RECORDED = json.loads(HASHES.read_text(encoding="utf-8"))


def test_every_golden_run_has_its_hashes() -> None:
    assert RECORDED
    for found in RECORDED.values():
        assert sorted(found) == sorted(RUNS)


def test_a_last_bit_changes_the_hash_and_a_rename_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"findings": [{"law": 0.1}], "rounds": [], "schedules": [], "config": {"seed": 3}}
    other = {**report, "findings": [{"law": 0.1 + 2**-56}], "config": {}}
    assert hashes(report)["findings"] != hashes(other)["findings"]
    assert hashes(report)["rounds"] == hashes(other)["rounds"]
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: '{"distribution": "law"}')
    renamed = {**report, "findings": [{"distribution": 0.1}]}
    assert compared(renamed) == compared(report)


@pytest.mark.slow
def test_golden_runs_have_the_same_numbers(tmp_path: Path) -> None:
    if machine() not in RECORDED:
        pytest.skip(f"recorded on {' and '.join(RECORDED)}, this is {machine()}")
    # In a process of its own: these tests draw fewer null scores than a run does.
    run_python("-m", "tests.golden", str(tmp_path))
    reports = {name: tmp_path / name / "report.json" for name in RUNS}
    found = {name: hashes(json.loads(path.read_text("utf-8"))) for name, path in reports.items()}
    different = [name for name in RUNS if found[name] != RECORDED[machine()][name]]
    assert not different, "see `python -m tests.golden FOLDER`, before and after"
