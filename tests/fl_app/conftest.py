"""Runs so small that a test can make several of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from unittest.mock import patch

import pytest

from leakmeter.auditors.records.game import RecordBudget, RecordLikelihoodRatio
from leakmeter.fl_app.cli import main
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
    "auditors": "one-shot",
}
# The default panel with little budget: for tests that need findings of every kind.
_PANEL = {
    **_TINY,
    "auditors": "one-shot,likelihood-ratio,mutual-information,mine",
    "lrt-fit": 20,
    "lrt-candidates": 10,
    "lrt-trials": 20,
    "mine-critics": 2,
    "mine-steps": 2,
}


def _words(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


@pytest.fixture(autouse=True)
def _no_data_folder_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAKMETER_DATA", raising=False)


@cache
def _parser_of(program: str, make: Callable[[], object] = main._parser) -> object:  # noqa: ARG001
    return make()


@pytest.fixture(autouse=True, scope="module")
def _one_parser() -> Iterator[None]:
    """Set up the parser once for each name of the program: it has hundreds of options.

    In these modules only: elsewhere tests replace what the commands call, before it is set up.
    """
    with patch.object(main, "_parser", lambda: _parser_of(sys.argv[0])):
        yield


@pytest.fixture(scope="module")
def short_page() -> Iterator[None]:
    """Leave a page of one word: a whole one takes as long as the rounds of a tiny run."""
    with patch("leakmeter.fl_app.report.page.page", lambda _: "<title>short</title>"):
        yield


@pytest.fixture(scope="module")
def without_masks() -> Iterator[None]:
    """Sum without masks wherever the report is the same to the last bit, in a third of the time."""
    from leakmeter.fl_app.run import launch  # imports torch

    with patch.object(launch, "launch", partial(launch.launch, without_masks=True)):
        yield


@pytest.fixture(scope="module")
def few_sums() -> Iterator[None]:
    """Draw a tenth of the sums that the audit of records draws by default, thousands of them."""
    budget = RecordBudget(pairs=3, pilot=20, trials=100)
    with patch.dict(RecordLikelihoodRatio.__init__.__kwdefaults__, budget=budget):
        yield


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Arguments of a run with six clients, four rounds and one auditor; d = 210."""
    return _words(_TINY)


@pytest.fixture(scope="session")
def tiny_config() -> Config:
    """The same as a configuration."""
    return Config.from_mapping(_TINY)


@pytest.fixture(scope="session")
def panel() -> list[str]:
    """Arguments of the same run with all auditors of the default panel."""
    return _words(_PANEL)


@pytest.fixture(scope="session")
def panel_config() -> Config:
    """The same as a configuration."""
    return Config.from_mapping(_PANEL)
