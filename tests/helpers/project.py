"""Where the project is, and what it consists of."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent  # the console scripts of this environment
ROOMS = ("fl_app", "strategies", "clients", "auditors")  # left may import right
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


PAPERS = "examples/papers"  # imported as leakmeter.papers; no part of an installation


def sources(*rooms: str) -> set[str]:
    """Return the Python files of the rooms, or of these folders, relative to the project."""
    folders = [ROOT / room for room in rooms or ROOMS]
    return {str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.py")}


def modules(*rooms: str) -> list[str]:
    """Return the full names of all modules in the rooms, or in these folders."""
    names = (name.removeprefix("examples/") for name in sources(*rooms))
    dotted = (name.removesuffix(".py").replace("/", ".") for name in names)
    return sorted(f"leakmeter.{name.removesuffix('.__init__')}" for name in dotted)


def code_cells(name: str = "notebook") -> list[str]:
    """Return the code of a notebook in docs/, cell by cell."""
    notebook = json.loads((ROOT / f"docs/{name}.ipynb").read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
