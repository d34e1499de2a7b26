"""Each experiment is run once at each scale, when a test first asks for it."""

from __future__ import annotations

import fcntl
import os
import pickle
from pathlib import Path

import pytest

from tests.papers.small import Reproduced, Small, reproduce


@pytest.fixture(scope="session", params=["tiny", pytest.param("small", marks=pytest.mark.slow)])
def reproduced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Reproduced:
    """Return what gives an experiment by its name."""
    base = tmp_path_factory.getbasetemp()
    is_worker = "PYTEST_XDIST_WORKER" in os.environ  # whose folder is below that of all
    common = (base.parent if is_worker else base) / f"reproduced-{request.param}"
    common.mkdir(exist_ok=True)

    def get(name: str, is_tiny: bool) -> Small:
        return _kept(name, common, is_tiny)

    return Reproduced(get, request.param == "tiny")


def _kept(name: str, common: Path, is_tiny: bool) -> Small:
    """Return an experiment, run by whichever process asks for it first."""
    folder, kept = common / name, common / f"{name}.pickle"
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not kept.exists():
            kept.write_bytes(pickle.dumps(reproduce(name, folder, is_tiny=is_tiny).table))
    return Small(folder, pickle.loads(kept.read_bytes()))
