"""How many files one update passes, from a client's training to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.processes import run_python
from tests.helpers.project import ROOMS

# Lowered with every step that shortens the way.
MAX_FILES = 76
ROUND = "--clients 6 --sample 3 --canary-seats 2 --rounds 1"


@pytest.mark.slow
def test_one_update_passes_few_files(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run_python("-m", "tests.helpers.path_length", *ROUND.split(), "--out", str(out))
    files = {line for line in done.splitlines() if line.startswith(ROOMS)}
    assert {"fl_app/client_app.py", "auditors/run_log.py"} <= files
    assert (out / "report.html").exists()
    assert len(files) <= MAX_FILES, sorted(files)
