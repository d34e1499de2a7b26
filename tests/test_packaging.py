"""What is shipped, which way imports point, and that the tools are content."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shutil
import sys
import tarfile
import tomllib
import warnings
import zipfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from docs.make_site import with_repository
from hatch_build import Metadata, repository
from tests.helpers.flower import BUNDLES
from tests.helpers.installed import build_wheel, checkout
from tests.helpers.processes import bare_python, run, run_python, site_packages
from tests.helpers.project import BIN, PAPERS, PROJECT, ROOMS, ROOT, modules, sources

OWN = {f"leakmeter/{name}.py" for name in ("__init__", "_rooms", "loggers")}
SHIPPED = {f"leakmeter/{name}" for name in sources()} | OWN | {"leakmeter/py.typed"}

ORIGIN = "git@example.org:team/fork.git"
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def contents(archive: Path) -> set[str]:
    """Return the names in a zip archive."""
    with zipfile.ZipFile(archive) as opened:
        return set(opened.namelist())


def test_the_wheel_offers_one_name_and_contains_exactly_the_four_rooms(wheel: Path) -> None:
    about = {name for name in contents(wheel) if ".dist-info/" in name}
    assert contents(wheel) - about == SHIPPED
    assert {name.split("/")[0] for name in contents(wheel) - about} == {"leakmeter"}
    with zipfile.ZipFile(wheel) as opened:
        [entry_points] = [name for name in about if name.endswith("entry_points.txt")]
        assert "leakmeter = leakmeter.fl_app.cli.main:main" in opened.read(entry_points).decode()
        [metadata] = [name for name in about if name.endswith("METADATA")]
        assert "License-Expression: Apache-2.0\n" in opened.read(metadata).decode()


@pytest.mark.slow
def test_a_wheel_made_from_the_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    build = f"from hatchling.build import build_sdist; build_sdist({str(tmp_path)!r})"
    run_python("-c", build)
    [sdist] = tmp_path.glob("leakmeter-*.tar.gz")
    assert sdist.stat().st_size < 3_000_000
    with tarfile.open(sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    again = build_wheel(tmp_path / "wheel", tmp_path / sdist.name.removesuffix(".tar.gz"))
    assert contents(again) == contents(wheel)


LEFT_OUT = sources("fl_app/cli")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle that Flower makes of this checkout."""
    from flwr.cli.build import build  # behind `flwr build`

    folder = tmp_path_factory.mktemp("bundle")
    with chdir(folder), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "GitWildMatchPattern", DeprecationWarning)  # Flower's own
        build(ROOT)
    [made] = folder.glob("*.fab")
    return made


@BUNDLES
@pytest.mark.slow
def test_flowers_bundle_has_the_rooms_but_not_the_command_line(bundle: Path) -> None:
    found = contents(bundle)
    texts = {"LICENSE", "README.md", "pyproject.toml", ".info/CONTENT"}
    assert found == (sources() - LEFT_OUT) | OWN | texts


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
@pytest.mark.slow
def test_the_bundle_could_be_published_on_flower_hub_as_it_is(bundle: Path, tmp_path: Path) -> None:
    formats = pytest.importorskip("flwr.supercore.fab_format_version", reason="an older Flower")
    from flwr.cli.utils import collect_files, filter_paths_for_publish
    from flwr.supercore.constant import MAX_FILE_BYTES, MAX_FILE_COUNT, MAX_TOTAL_BYTES

    metadata = formats.normalize_and_validate_fab_format(PROJECT)
    assert metadata.fab_format_version == 1
    assert metadata.flwr_version_target == PROJECT["tool"]["flwr"]["app"]["flwr-version-target"]
    with zipfile.ZipFile(bundle) as opened:
        opened.extractall(tmp_path / "app")
    sizes = [
        Path(file).stat().st_size  # type: ignore[arg-type]
        for file in filter_paths_for_publish(collect_files(tmp_path / "app")).values()
    ]
    assert len(sources() - LEFT_OUT) < len(sizes) < MAX_FILE_COUNT // 2
    assert max(sizes) < MAX_FILE_BYTES // 2
    assert sum(sizes) < MAX_TOTAL_BYTES // 2


def test_the_pinned_packages_are_those_that_the_project_asks_for() -> None:
    pinned = dict(re.findall(r"^([a-z0-9-]+)(?:\[.*\])?==(\S+)", CONSTRAINTS, re.MULTILINE))
    asked = [
        Requirement(entry)
        for entry in PROJECT["project"]["dependencies"]
        + PROJECT["project"]["optional-dependencies"]["dev"]
    ]
    for entry in asked:
        assert pinned[entry.name] in entry.specifier
    entries = re.split(r"^(?=[a-z0-9-]+(?:\[.*\])?==)", CONSTRAINTS, flags=re.MULTILINE)
    assert all("--hash=sha256:" in entry for entry in entries if entry)
    assert "://" not in CONSTRAINTS


@pytest.mark.slow
def test_every_module_of_flowers_bundle_imports(bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path / "app")
    shipped = sorted(
        "leakmeter." + name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in sources() - LEFT_OUT
    )
    code = (
        "import importlib, leakmeter\n"
        "assert leakmeter.__file__.startswith(__import__('os').getcwd())\n"
        f"for name in {shipped!r}: importlib.import_module(name)"
    )
    run_python("-W", "ignore", "-c", code, cwd=tmp_path / "app")


def test_no_source_has_a_name_that_flower_leaves_out() -> None:
    names = [Path(path).name for path in sources()]
    assert not [n for n in names if n.startswith("test_") or n.endswith("_test.py")]


@pytest.mark.parametrize(
    ("origin", "home"),
    [
        ("git@example.org:team/leakmeter.git", "https://example.org/team/leakmeter"),
        ("ssh://git@example.org:22/team/leakmeter.git", "https://example.org/team/leakmeter"),
        ("https://me:secret@example.org/team/leakmeter/", "https://example.org/team/leakmeter"),
        ("../leakmeter", ""),
        ("/srv/leakmeter.git", ""),
        ("file:///srv/leakmeter", ""),
        ("https://example.org/a b", ""),
        ("", ""),
    ],
)
def test_the_package_links_to_where_its_clone_came_from(origin: str, home: str) -> None:
    assert repository(origin) == home


def test_a_build_writes_the_links_of_its_clone_and_none_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    (tmp_path / ".git").mkdir()
    hook = Metadata(str(tmp_path), {})
    for lines, wanted in (("", None), (f"url = {ORIGIN}", "https://example.org/team/fork")):
        (tmp_path / ".git" / "config").write_text(f'[remote "origin"]\n{lines}\n')
        (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        for folder in ("objects", "refs"):
            (tmp_path / ".git" / folder).mkdir(exist_ok=True)
        found: dict[str, Any] = {}
        hook.update(found)
        assert found["license"] == "Apache-2.0"
        assert found.get("urls", {}).get("Repository") == wanted


def test_the_site_links_to_the_repository_of_the_package() -> None:
    settings = (ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8")
    linked = with_repository(settings, ["Repository, https://example.org/team/fork"])
    nav = tomllib.loads(linked)["project"]["nav"]
    assert nav == tomllib.loads(settings)["project"]["nav"] + [
        {"Repository": "https://example.org/team/fork"}
    ]
    assert with_repository(settings, []) == settings


def test_the_version_is_the_same_everywhere() -> None:
    import leakmeter

    assert leakmeter.__version__ == PROJECT["project"]["version"]
    assert f"\nversion: {leakmeter.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest is not None
    assert newest[1] == PROJECT["project"]["version"]


def test_the_project_asks_for_what_it_imports_and_caps_only_flower() -> None:
    asked = {re.split(r"[\[<>=]", entry)[0]: entry for entry in PROJECT["project"]["dependencies"]}
    assert set(asked) >= {"flwr", "torch", "torchvision", "numpy", "scipy", "ray", "rich"}
    assert set(asked) >= {"scikit-learn", "dp-accounting", "cryptography"}
    assert all(">=" in entry for entry in asked.values())  # the lowest are tested
    assert asked["flwr"] == "flwr[simulation]>=1.26.1,<2"
    assert not [entry for name, entry in asked.items() if name != "flwr" and "<" in entry]


def test_no_federation_is_configured_that_flower_would_rewrite() -> None:
    assert "federations" not in PROJECT["tool"]["flwr"]


# One process, since each has to import all that the one before did.
STAGES = {
    "mathematics": [
        f"leakmeter.auditors.{name}"
        for name in ("bounds", "noise", "information", "likelihood_ratio", "records")
    ],
    "auditors": modules("auditors"),
    "water filling": ["leakmeter.clients.protection.noise_mod"],
    "everything": modules(),
}


def loaded_after_importing(stages: dict[str, list[str]]) -> dict[str, set[str]]:
    """Return what a fresh process has loaded after each stage of imports.

    Of this project the rooms, such as leakmeter.auditors; of others the top-level names.
    """
    code = (
        "import importlib, json, sys\n"
        f"for stage, names in {stages!r}.items():\n"
        "    for name in names: importlib.import_module(name)\n"
        "    print(json.dumps([stage, sorted(sys.modules)]))"
    )
    printed = run_python("-W", "ignore", "-c", code).splitlines()[-len(stages) :]
    return {stage: _tops(names) for stage, names in map(json.loads, printed)}


def _tops(names: list[str]) -> set[str]:
    ours = {".".join(name.split(".")[:2]) for name in names if name.startswith("leakmeter.")}
    return ours | {name.split(".")[0] for name in names}


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    assert [*STAGES] == ["mathematics", "auditors", "water filling", "everything"]
    light = {name: modules for name, modules in STAGES.items() if name != "everything"}
    mathematics, auditors, filling = loaded_after_importing(light).values()
    assert "leakmeter.auditors" in mathematics
    assert not mathematics & {"flwr", "torch", "ray"}
    # The plug-in package stands alone.
    assert "flwr" in auditors
    others = {f"leakmeter.{room}" for room in ROOMS if room != "auditors"}
    assert not auditors & {"torch", "ray", *others}
    assert "torch" not in filling


@pytest.mark.slow
def test_importing_everything_imports_no_optional_library() -> None:
    [everything] = loaded_after_importing({"everything": STAGES["everything"]}).values()
    assert {"torch", "flwr", *(f"leakmeter.{room}" for room in ROOMS)} <= everything
    assert not everything & {"torchvision", "sklearn", "ray", "matplotlib"}


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
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    [layers] = [c for c in contracts if c["type"] == "layers" and {*ROOMS} <= {*c["layers"]}]
    assert layers["layers"] == ["papers", *ROOMS]
    assert layers["containers"] == ["leakmeter"]
    printed = run_python(BIN / "lint-imports", "--no-cache")
    assert f"Contracts: {len(contracts)} kept, 0 broken." in printed


@pytest.mark.slow
def test_an_import_that_points_back_breaks_the_contract(tmp_path: Path) -> None:
    copy = checkout(tmp_path / "copy")
    with (copy / "auditors/rng.py").open("a") as planted:
        planted.write("\nimport leakmeter.fl_app.task\n")
    done = run(BIN / "lint-imports", "--no-cache", cwd=copy)
    assert done.returncode
    assert "leakmeter.auditors.rng -> leakmeter.fl_app.task" in done.stdout


def test_the_examples_in_docstrings_are_true() -> None:
    tried = 0
    for name in modules(*ROOMS, PAPERS):
        module = importlib.import_module(name)
        if ">>>" not in Path(str(module.__file__)).read_text(encoding="utf-8"):
            continue
        failed, attempted = doctest.testmod(module)
        assert not failed, name
        tried += attempted
    assert tried


def test_ruff_is_content() -> None:
    run_python("-m", "ruff", "check", ".")
    run_python("-m", "ruff", "format", "--check", ".")


@pytest.mark.slow
def test_mypy_is_content_and_has_read_every_module() -> None:
    assert PROJECT["tool"]["mypy"]["strict"] is True
    printed = run_python("-m", "mypy", timeout=900)
    checked = len(sources(*ROOMS, PAPERS)) + len(OWN)
    assert f"no issues found in {checked} source files" in printed


@pytest.mark.slow
def test_mypy_finds_a_planted_mistake_in_every_room_and_in_the_papers(tmp_path: Path) -> None:
    copy = checkout(tmp_path / "copy")
    places = (*ROOMS, PAPERS)
    for place in places:
        (copy / place / "planted.py").write_text('MISTAKE: int = "no number"\n')
    cache = ROOT / ".mypy_cache"
    if cache.exists():
        shutil.copytree(cache, copy / ".mypy_cache")
    done = run(sys.executable, "-m", "mypy", cwd=copy, timeout=900)
    found = re.findall(r"^(\S+?):1: error: Incompatible types", done.stdout, flags=re.M)
    names = [f"leakmeter/{Path(place).name}/planted.py" for place in places]
    assert sorted(found) == sorted(names), done.stdout


USER = """
from flwr.serverapp.strategy import FedAvg
from leakmeter import Audited, OneShotCanaries, canary_mod
from leakmeter.clients import mask_mod
from leakmeter.strategies import Masked

audited: Audited = Audited(Masked(FedAvg()), [OneShotCanaries(seats=2)])
mods = [mask_mod, canary_mod]
seats: str = OneShotCanaries(seats=2)  # a mistake
"""


@pytest.mark.slow
def test_a_users_file_is_checked_against_our_types(wheel: Path, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "venv")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site_packages(python))
    (tmp_path / "user.py").write_text(USER)
    # No mypy_path: an installed package is read only if it ships py.typed.
    words = ("-m", "mypy", "--strict", "--python-executable", python, "user.py")
    done = run(sys.executable, *words, cwd=tmp_path, timeout=900)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert [line.split(":")[:2] for line in errors] == [["user.py", "9"]], done.stdout
