"""The notebook in docs/ runs from top to bottom, as in Jupyter: inside a running event loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs/notebook.ipynb"
# Runs the cells one by one in the main module while a loop is running, as Jupyter's kernel does.
KERNEL = """
import asyncio, json, sys
async def kernel(cells):
    asyncio.get_running_loop()
    for number, cell in enumerate(cells, start=1):
        exec(compile(cell, f"cell {number}", "exec"), sys.modules["__main__"].__dict__)
        await asyncio.sleep(0)
asyncio.run(kernel(json.load(sys.stdin)))
"""

pytestmark = pytest.mark.launch


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(cwd: Path, *command: str, given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *command],
        input=given,
        cwd=cwd,
        # This project may be installed, or only lie there.
        env={**os.environ, "RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def report(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((path / "report.json").read_text())
    return loaded


def test_the_notebook_leaves_the_findings_of_the_script(tmp_path: Path) -> None:
    printed = run(tmp_path, "-c", KERNEL, given=json.dumps(code_cells()))
    made = tmp_path / "notebook-run"
    words = ("--config", str(made / "config.toml"), "--engine", "inline")
    run(tmp_path, str(ROOT / "run_sim.py"), *words, "--out", "inline")
    one, other = report(made), report(tmp_path / "inline")
    assert one["failures"] == []
    assert one["findings"] == other["findings"]
    # The last cell prints what the run as a whole has found.
    assert "secure-sum" in printed
    assert "likelihood-ratio epsilon lower_bound" in printed
