"""Which tests need a newer Flower than the oldest that the project works with."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version


def flower_from(oldest: str, why: str) -> pytest.MarkDecorator:
    """Return a mark that leaves a test out below a release of Flower."""
    too_old = Version(version("flwr")) < Version(oldest)
    return pytest.mark.skipif(too_old, reason=f"Flower below {oldest}: {why}")


# The models of many tests have one; without our code these strategies and mods fail as well.
NO_DIMENSIONS = flower_from("1.28", "its optimisers and mods fail on arrays without dimensions")
BUNDLES = flower_from("1.28", "bundles have all files of a folder")
