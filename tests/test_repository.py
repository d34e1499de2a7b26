"""What lies at the root of the repository, and how large its files are."""

from __future__ import annotations

import subprocess

import pytest

from tests.helpers.project import ROOT

FOLDERS = {".ci", ".github", "docs", "examples", "benchmarks", "tests"}
ROOMS = {"leakmeter", "auditors", "clients", "strategies", "fl_app"}
FILES = {
    ".dockerignore",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Dockerfile",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "hatch_build.py",
    "pyproject.toml",
    "run_sim.py",
}
MAX_BYTES = 1_000_000


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Return the files that git tracks; an unpacked archive has no such list."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [name for name in listed.stdout.decode().split("\0") if name]


def test_only_what_a_stranger_expects_lies_at_the_root(tracked: list[str]) -> None:
    assert {name.split("/")[0] for name in tracked} <= FOLDERS | ROOMS | FILES


def test_no_tracked_file_is_above_a_megabyte(tracked: list[str]) -> None:
    large = {name: (ROOT / name).lstat().st_size for name in tracked if (ROOT / name).exists()}
    assert not {name: size for name, size in large.items() if size > MAX_BYTES}


def test_no_binary_but_pictures_is_tracked(tracked: list[str]) -> None:
    endings = {name.rpartition(".")[2] for name in tracked}
    assert not endings & {"whl", "so", "pyc", "gz", "zip", "npz", "npy", "pt", "exe", "bin"}
