"""The notebook in docs/ runs from top to bottom, as in Jupyter: inside a running event loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.launches import report
from tests.helpers.processes import environment, run_python
from tests.helpers.project import ROOT, code_cells

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


def test_the_notebook_leaves_the_findings_of_the_script(tmp_path: Path) -> None:
    # This project may be installed, or only lie there.
    env = environment(RAY_ADDRESS="local", PYTHONPATH=str(ROOT))
    cells = json.dumps(code_cells())
    printed = run_python("-c", KERNEL, cwd=tmp_path, env=env, given=cells, timeout=900)
    made = tmp_path / "notebook-run"
    words = ("--config", str(made / "config.toml"), "--engine", "inline")
    run_python(ROOT / "run_sim.py", *words, "--out", "inline", cwd=tmp_path, env=env)
    one, other = report(made), report(tmp_path / "inline")
    assert one["failures"] == []
    assert one["findings"] == other["findings"]
    # The last cell prints what the run as a whole has found.
    assert "secure-sum" in printed
    assert "likelihood-ratio epsilon lower_bound" in printed
