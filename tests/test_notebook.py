"""The notebook in docs/ runs from top to bottom, as in Jupyter: inside a running event loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.launches import report
from tests.helpers.processes import environment, run_python
from tests.helpers.project import ROOT, code_cells

# Runs the cells one by one in the main module while a loop is running, as Jupyter does, and
# prints what the last expression of the last cell shows.
KERNEL = """
import ast, asyncio, json, sys
async def kernel(cells):
    asyncio.get_running_loop()
    names = sys.modules["__main__"].__dict__
    for number, cell in enumerate(cells, start=1):
        tree = ast.parse(cell)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        await asyncio.sleep(0)
    print("SHOWN", shown._repr_html_())
asyncio.run(kernel(json.load(sys.stdin)))
"""

pytestmark = pytest.mark.launch


ENV = environment(RAY_ADDRESS="local", PYTHONPATH=str(ROOT))


def run_cells(name: str, folder: Path) -> str:
    """Run a notebook from top to bottom and return what it prints."""
    cells = json.dumps(code_cells(name))
    return run_python("-c", KERNEL, cwd=folder, env=ENV, given=cells, timeout=900)


def test_the_notebook_leaves_the_findings_of_the_script(tmp_path: Path) -> None:
    printed = run_cells("notebook", tmp_path)
    made = tmp_path / "notebook-run"
    words = ("--config", str(made / "config.toml"), "--engine", "inline")
    run_python(ROOT / "run_sim.py", *words, "--out", "inline", cwd=tmp_path, env=ENV)
    one, other = report(made), report(tmp_path / "inline")
    assert one["failures"] == []
    assert one["findings"] == other["findings"]
    # The last cell prints what the run as a whole has found.
    assert "secure-sum" in printed
    assert "likelihood-ratio epsilon lower_bound" in printed
    assert_shown(printed, made)


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        ("notebook", ["notebook-run", "notebook-run-2"]),
        ("notebook-foreign", ["foreign-run", "foreign-run-2"]),
    ],
)
def test_a_notebook_can_be_run_twice(name: str, folders: list[str], tmp_path: Path) -> None:
    for folder in folders:
        assert_shown(run_cells(name, tmp_path), tmp_path / folder)
        assert report(tmp_path / folder)["failures"] == []


def assert_shown(printed: str, folder: Path) -> None:
    """The last cell shows the page in a frame of its own, and the page is a file too."""
    [shown] = [line for line in printed.splitlines() if line.startswith("SHOWN")]
    assert 'srcdoc="&lt;!doctype html&gt;' in shown
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
