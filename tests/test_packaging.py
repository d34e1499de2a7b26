"""What is shipped, which way imports point, and that the tools are content."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.helpers.project import ROOT

ROOMS = ("fl_app", "strategies", "clients", "auditors")
OWN = {"leakmeter/__init__.py", "leakmeter/_rooms.py", "leakmeter/py.typed"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def sources() -> set[str]:
    """Return the Python files of the four packages, relative to the project."""
    return {str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py")}


def modules(*rooms: str) -> list[str]:
    """Return the names of all modules in the given packages."""
    return sorted(
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in sources()
        if name.split("/")[0] in rooms
    )


def call(*command: str, cwd: Path = ROOT) -> str:
    """Run a Python module or script of this environment and return what it prints."""
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def script(name: str) -> str:
    """Return the path of a console script of this environment."""
    return str(Path(sys.executable).parent / name)


def test_the_wheel_contains_exactly_the_four_packages(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    call("-c", f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})")
    [wheel] = tmp_path.glob("leakmeter-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        [entry_points] = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        assert "leakmeter = leakmeter.fl_app.cli.main:main" in archive.read(entry_points).decode()
    assert names == {f"leakmeter/{name}" for name in sources()} | OWN


def test_flowers_bundle_contains_exactly_the_four_packages(tmp_path: Path) -> None:
    call(script("flwr"), "build", "--app", str(ROOT), cwd=tmp_path)
    [bundle] = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    own = {name for name in OWN if name.endswith(".py")}
    assert names == sources() | own | {"pyproject.toml", ".info/CONTENT"}


def test_no_source_has_a_name_that_flower_leaves_out() -> None:
    names = [Path(path).name for path in sources()]
    assert not [n for n in names if n.startswith("test_") or n.endswith("_test.py")]


def test_the_project_asks_for_what_it_imports_and_caps_only_flower() -> None:
    asked = {re.split(r"[\[<>=]", entry)[0]: entry for entry in PROJECT["project"]["dependencies"]}
    assert set(asked) >= {"flwr", "torch", "torchvision", "numpy", "scipy", "ray", "rich"}
    assert set(asked) >= {"scikit-learn", "dp-accounting", "cryptography"}
    assert asked["flwr"] == "flwr[simulation]>=1.26.1,<2"
    assert not [entry for name, entry in asked.items() if name != "flwr" and "<" in entry]


def test_no_federation_is_configured_that_flower_would_rewrite() -> None:
    assert "federations" not in PROJECT["tool"]["flwr"]


def loaded_after_importing(names: list[str]) -> set[str]:
    """Return the top-level modules in a fresh process that has imported `names`."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    return set(json.loads(call("-W", "ignore", "-c", code).splitlines()[-1]))


def test_no_module_imports_torchvision_sklearn_or_ray_before_it_is_needed() -> None:
    loaded = loaded_after_importing(modules(*ROOMS))
    assert {"torch", "flwr", *ROOMS} <= loaded
    assert not loaded & {"torchvision", "sklearn", "ray", "matplotlib"}


def test_the_plug_in_package_stands_alone_and_needs_no_torch() -> None:
    loaded = loaded_after_importing(modules("auditors"))
    assert "auditors" in loaded
    assert not loaded & {"torch", "clients", "strategies", "fl_app"}


def test_the_names_that_others_call_are_there() -> None:
    from leakmeter import auditors, strategies

    plug_in = "Audited Auditor Finding RoundView OneShotCanaries canary_mod tap_mod check_auditor"
    assert set(plug_in.split()) <= set(auditors.__all__)
    assert "Chosen" in strategies.__all__
    components = PROJECT["tool"]["flwr"]["app"]["components"]
    for reference in components.values():
        module, _, name = reference.partition(":")
        assert hasattr(importlib.import_module(module), name)


def test_imports_point_from_left_to_right() -> None:
    [contract] = PROJECT["tool"]["importlinter"]["contracts"]
    assert (contract["type"], tuple(contract["layers"])) == ("layers", ROOMS)
    call(script("lint-imports"), "--no-cache")


def test_the_examples_in_docstrings_are_true() -> None:
    tried = 0
    for name in modules(*ROOMS):
        failed, attempted = doctest.testmod(importlib.import_module(name))
        assert not failed, name
        tried += attempted
    assert tried


def test_ruff_is_content() -> None:
    call("-m", "ruff", "check", ".")
    call("-m", "ruff", "format", "--check", ".")


@pytest.mark.slow
def test_mypy_is_content() -> None:
    assert PROJECT["tool"]["mypy"]["strict"] is True
    assert set(PROJECT["tool"]["mypy"]["packages"]) == set(ROOMS)
    call("-m", "mypy")
