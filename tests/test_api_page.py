"""The API reference says what the docstrings say."""

from __future__ import annotations

import sys

from tests.helpers.processes import run
from tests.helpers.project import ROOT


def test_the_reference_is_up_to_date() -> None:
    done = run(sys.executable, "docs/make_api.py", "--check")
    assert done.returncode == 0, "run: python docs/make_api.py"


def test_the_reference_holds_every_public_name() -> None:
    from leakmeter import auditors, clients, strategies

    entries = set((ROOT / "docs/api.md").read_text(encoding="utf-8").splitlines())
    for name in (*auditors.__all__, *clients.__all__, *strategies.__all__):
        assert f"### `{name}`" in entries
