"""What the tests of foreign projects share."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _inside_a_task(flower_task: None, flower_draws: None) -> Iterator[None]:  # noqa: ARG001
    """Let messages be made, keep the global generators, and leave Flower's progress unlogged."""
    log = logging.getLogger("flwr")
    log.setLevel(logging.WARNING)  # thousands of lines, and the whole set takes twice as long
    yield
    log.setLevel(logging.DEBUG)


@pytest.fixture(autouse=True, scope="module")
def _small_collections() -> None:
    """Keep what is loaded out of garbage collections, which two strategies of Flower's ask for."""
    gc.collect()
    gc.freeze()
