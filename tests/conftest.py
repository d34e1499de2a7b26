"""What all tests share: no telemetry, one thread, no stray settings, and a federation."""

from __future__ import annotations

import ast
import gc
import logging
import os
import random
import signal
import sys
import zipfile
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

# Before anything imports numpy, flwr, ray or torch: on one thread sums have the same last bits in
# this process and in those that tests start.
os.environ.update(
    {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
)

# A shell starts background jobs with Ctrl-C ignored, and so would be all that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
from hypothesis import settings

from tests.helpers.project import ROOT

if TYPE_CHECKING:
    from tests.helpers.federation import Federation
    from tests.helpers.stand_in import StandIn


# More examples of every property: pytest --hypothesis-profile=thorough
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.register_profile("fast", max_examples=20, deadline=None)
settings.load_profile("fast")


def pytest_configure() -> None:
    """Import less: compile each module once, collect no garbage, and do without triton.

    torch's optimisers import its compiler, and that imports triton where it is installed: a second
    in every worker, and pages of its own at the end.
    """
    gc.disable()  # until all tests are collected: imports leave little to free, and much to search
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
    os.fsync = lambda _: None  # no test outlives a power failure; those about fsync plant their own
    _parse_array_headers_once()


def _parse_array_headers_once() -> None:
    """Remember how `numpy.load` reads headers: Flower's arrays have few kinds of them.

    Each would go through Python's compiler, which takes longer than the small arrays of tests.
    """
    evaluate = ast.literal_eval
    remembered = lru_cache(4096)(evaluate)

    def literal_eval(source: Any) -> Any:
        is_header = isinstance(source, str) and source.startswith("{'descr'")
        return dict(remembered(source)) if is_header else evaluate(source)

    ast.literal_eval = literal_eval


def pytest_collection_finish() -> None:
    """Spare each test what grows with all that was imported."""
    # Six times a test pytest looks through all loggers and attaches a handler to each that does not
    # propagate. Most are torch's, which stay with those who have them.
    loggers = logging.root.manager.loggerDict
    for name in [name for name in loggers if name.startswith("torch")]:
        logging.getLogger(name).propagate = True
        del loggers[name]
    # Collections are fewer, and leave out what is there already.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def _flowers_log(request: pytest.FixtureRequest) -> None:
    """Let Flower log everything, as it does by itself, where a test looks at what is said.

    The command line, which many tests call in this process, changes the level too.
    """
    looks = {"caplog", "capsys", "capfd"} & set(request.fixturenames)
    logging.getLogger("flwr").setLevel(logging.DEBUG if looks else logging.WARNING)


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_in_the_tree() -> Iterator[None]:
    """Fail if a test writes where it was started: tools such as MLflow do so unasked."""
    before = _shown_names()
    yield
    left = sorted(_shown_names() - before)
    assert left == [], f"a test has left {left} in {ROOT}; give it tmp_path"


@pytest.fixture(autouse=True, scope="module")
def _opacus_is_unloaded() -> Iterator[None]:
    """Unload Opacus after a benchmark: canary_mod takes an app for private where it is loaded."""
    yield
    if "opacus" in sys.modules:
        for name in [name for name in sys.modules if name.partition(".")[0] == "opacus"]:
            del sys.modules[name]


def _shown_names() -> set[str]:
    """Return what `ls` shows of the project, without what Git ignores."""
    ignored = {"__pycache__", "build", "dist", "runs"}
    return {name for name in os.listdir(ROOT) if name[0] != "." and name not in ignored}


@pytest.fixture(autouse=True, scope="session")
def _few_null_draws() -> Iterator[tuple[int, int]]:
    """Simulate less of what canaries look like without a leak, where no test is about that."""
    from leakmeter.auditors.canaries import canary_auditor, one_shot

    usual = one_shot._NULL_POOL, canary_auditor.NULL_RUNS
    with patch.object(one_shot, "_NULL_POOL", 2000), patch.object(canary_auditor, "NULL_RUNS", 20):
        yield usual


@pytest.fixture(autouse=True, scope="session")
def _few_orders() -> Iterator[None]:
    """Price sampling without replacement at small whole orders, among them the best of small runs.

    The usual 156 orders, up to 1024, take six times as long.
    """
    from dp_accounting.rdp import rdp_privacy_accountant as accountant

    with patch.object(accountant, "DEFAULT_RDP_ORDERS", [*range(2, 33), 48, 63]):
        yield


@pytest.fixture(autouse=True, scope="session")
def _libraries_found_once() -> Iterator[None]:
    """Look once for libraries with threads: every run does, among all that are loaded."""
    import threadpoolctl

    once = cache(threadpoolctl.ThreadpoolController)
    with patch.object(threadpoolctl, "ThreadpoolController", once):
        yield


@pytest.fixture(scope="module")
def usual_null_draws(_few_null_draws: tuple[int, int]) -> Iterator[None]:
    """Simulate as much as other processes do, for tests that compare findings with theirs."""
    from leakmeter.auditors.canaries import canary_auditor, one_shot

    pool, runs = _few_null_draws
    with (
        patch.object(one_shot, "_NULL_POOL", pool),
        patch.object(canary_auditor, "NULL_RUNS", runs),
    ):
        yield


@pytest.fixture
def flower_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages be made outside a run, which Flower refuses from release 1.38 on."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name, value in {"_run_id": 1, "_node_id": 0, "_task_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture
def flower_draws() -> Iterator[None]:
    """Seed the global generators: Flower draws its noise and its order of nodes from them."""
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    yield
    random.setstate(kept[0])
    np.random.set_state(kept[1])  # noqa: NPY002


@pytest.fixture
def federation(flower_task: None) -> type[Federation]:  # noqa: ARG001
    """Return the maker of federations, inside a task of Flower's."""
    from tests.helpers.federation import Federation  # here, since it imports Flower

    return Federation


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    from tests.helpers.installed import build_wheel

    pytest.importorskip("hatchling")
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel puts into site-packages."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The device of `tests.helpers.stand_in`, which needs no hardware.

    The CPU computes as it does: without oneDNN, which is for CPUs alone.
    """
    from leakmeter.clients import update
    from tests.helpers.stand_in import StandIn

    monkeypatch.setattr(update, "_HAS_ONEDNN", False)
    with StandIn() as made:
        yield made
