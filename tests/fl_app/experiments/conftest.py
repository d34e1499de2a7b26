"""Each experiment is run at the small scale once, when a test first asks for it."""

from __future__ import annotations

import pytest

from tests.fl_app.experiments.small import Reproduced, Small, reproduce


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """Return what gives an experiment's small scale by its name."""
    kept: dict[str, Small] = {}

    def get(name: str) -> Small:
        if name not in kept:
            kept[name] = reproduce(name, tmp_path_factory.mktemp(name))
        return kept[name]

    return get
