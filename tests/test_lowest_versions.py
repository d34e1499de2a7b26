"""The oldest packages that the project allows do all that the fast tests ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.project import ROOT

UV = shutil.which("uv")


def uv(*arguments: str | Path, folder: Path) -> None:
    """Run uv in a folder, with the environment that is there."""
    assert UV is not None
    variables = {**os.environ, "VIRTUAL_ENV": str(folder / ".venv")}
    subprocess.run([UV, *map(str, arguments)], cwd=folder, env=variables, check=True, timeout=1800)


@pytest.mark.slow
@pytest.mark.skipif(UV is None, reason="pip finds no oldest versions; pip install uv does")
def test_the_fast_tests_pass_with_the_oldest_packages_that_are_allowed(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    uv("venv", "--seed", "--python", "3.11", folder=clone)
    oldest = ("--resolution", "lowest-direct", "--python-version", "3.11")
    uv("pip", "compile", *oldest, "pyproject.toml", "--output-file", "lowest.txt", folder=clone)
    uv("pip", "install", "--constraint", "lowest.txt", "--editable", ".[dev]", folder=clone)
    tests = subprocess.run(
        [clone / ".venv" / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=clone,
        stdout=subprocess.PIPE,
        text=True,
        timeout=3600,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout[-5000:]
