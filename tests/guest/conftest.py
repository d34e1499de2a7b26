"""What the tests of foreign projects share."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from leakmeter.auditors.canaries import auditor


@pytest.fixture(autouse=True)
def _inside_a_task(flower_task: None, flower_draws: None) -> Iterator[None]:  # noqa: ARG001
    """Let messages be made, keep the global generators, and leave Flower's progress unlogged."""
    log = logging.getLogger("flwr")
    log.setLevel(logging.WARNING)  # thousands of lines, and the whole set takes twice as long
    yield
    log.setLevel(logging.DEBUG)


@pytest.fixture(autouse=True)
def _few_null_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate less of what canaries look like without a leak: no test here is about its size."""
    monkeypatch.setattr(auditor, "_NULL_POOL", 2000, raising=False)
    monkeypatch.setattr(auditor, "_NULL_RUNS", 20, raising=False)


@pytest.fixture(autouse=True, scope="module")
def _small_collections() -> None:
    """Keep what is loaded out of garbage collections, which two strategies of Flower's ask for."""
    gc.collect()
    gc.freeze()
