"""Builds the project and copies it, for tests of what an installation offers."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.helpers.processes import run_python
from tests.helpers.project import PAPERS, ROOMS, ROOT

# All that building, importing and checking needs.
_FILES = ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", "run_sim.py")
_FOLDERS = ("leakmeter", "benchmarks", PAPERS, *ROOMS)


def build_wheel(folder: Path, project: Path = ROOT) -> Path:
    """Build the wheel of a project into a folder."""
    folder.mkdir(exist_ok=True)
    build = f"from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    run_python("-c", build, cwd=project)
    [wheel] = folder.glob("leakmeter-*.whl")
    return wheel


def checkout(folder: Path) -> Path:
    """Copy the project, links as links, as a clone would have it."""
    folder.mkdir()
    for name in _FILES:
        shutil.copy(ROOT / name, folder)
    for name in _FOLDERS:
        no_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=no_caches)
    for name in ("tests", "docs"):  # to be there is all that they are needed for
        (folder / name).mkdir()
        (folder / name / "anything.py").touch()
    return folder
