"""A run so small that a test can make several of them."""

from __future__ import annotations

import pytest

from leakmeter.fl_app.config.config import Config

_TINY = {
    "dataset": "synthetic",
    "synthetic-examples": 120,
    "model": "linear",
    "clients": 6,
    "sample": 3,
    "canary-seats": 2,
    "rounds": 4,
    "epochs": 1,
}


@pytest.fixture(autouse=True)
def _no_data_folder_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAKMETER_DATA", raising=False)


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Arguments of a run with six clients and four rounds; d = 210."""
    return [word for name, value in _TINY.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="session")
def tiny_config() -> Config:
    """The same as a configuration."""
    return Config.from_mapping(_TINY)
