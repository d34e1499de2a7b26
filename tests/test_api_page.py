"""The API reference says what the docstrings say."""

from __future__ import annotations

import runpy

from tests.helpers.project import ROOT


def test_the_reference_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs/make_api.py"))
    published = made["PAGE"].read_text(encoding="utf-8")
    assert published == made["page"](), "run: python docs/make_api.py"


def test_the_reference_holds_every_public_name() -> None:
    from leakmeter import auditors, clients, strategies

    entries = set((ROOT / "docs/api.md").read_text(encoding="utf-8").splitlines())
    for name in (*auditors.__all__, *clients.__all__, *strategies.__all__):
        assert f"### `{name}`" in entries
