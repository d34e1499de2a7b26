"""Runs whose page nobody looks at."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _page(request: pytest.FixtureRequest) -> None:
    """Leave short pages, except where a test reads one."""
    if request.path.name != "test_stop_above.py":
        request.getfixturevalue("short_page")
