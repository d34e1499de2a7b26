"""Every code block in the pages runs, and every command line is one that our program takes."""

from __future__ import annotations

import difflib
import importlib.util
import pkgutil
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from leakmeter import fl_app
from leakmeter.auditors import canary_mod, tap_mod
from leakmeter.clients import MaskMod
from leakmeter.fl_app.cli import commands as small_commands
from leakmeter.fl_app.cli import run
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, kebab
from leakmeter.papers import command
from tests.docs_blocks import blocks, commands, our_arguments, spans
from tests.helpers.project import ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(p for p in ROOT.glob("docs/**/*.md") if "results" not in p.parts),
        *ROOT.glob("examples/**/*.md"),
    ]
)
# Programs of others that pages may call; their arguments are not ours to check.
OTHERS = {"pip", "pytest", "flwr", "flower-simulation", "flower-superlink", "flower-supernode"}
OTHERS |= {
    "docker",
    "tensorboard",
    "ray",
    "cd",
    "git",
    "ruff",
    "mypy",
    "lint-imports",
    "uv",
    "export",
    "python",
    "kill",
}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def python_pages() -> list[Path]:
    """Return the pages with Python in them."""
    return [p for p in PAGES if any(b.language == "python" for b in blocks(p))]


@pytest.mark.parametrize("page", python_pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run_in_order(
    page: Path, federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`grid` and `initial_arrays` are there, as in a server app: six clients of a small model."""
    monkeypatch.chdir(tmp_path)
    of = federation(mods=[MaskMod(required=False, allow_tap=True, seed=0), tap_mod, canary_mod])
    names: dict[str, Any] = {
        "__name__": "page",
        "grid": of.grid,
        "initial_arrays": of.arrays(),
    }
    for block in blocks(page):
        if block.language == "python" and block.not_run is None:
            # As many lines before it as in the page, so that errors name the line.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)


@pytest.mark.slow
def test_blocks_that_need_a_tool_run_where_it_is(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [(page, b) for page in python_pages() for b in blocks(page) if b.language == "python"]
    needed = [
        (p, b, b.not_run.split()[1]) for p, b in found if (b.not_run or "").startswith("needs ")
    ]
    assert [tool for _, _, tool in needed] == ["tensorboard"]
    for page, block, tool in needed:
        pytest.importorskip(tool)
        of = federation(mods=[canary_mod])
        names = {"grid": of.grid, "initial_arrays": of.arrays()}
        exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
    assert list(tmp_path.glob("tensorboard/mine/events.*"))


class Parsed(Exception):  # noqa: N818 - no error
    """The command line was understood; nothing is run."""


@cache
def import_everything() -> None:
    """Import all modules of the application: none may keep a name that a test has replaced."""
    for module in pkgutil.walk_packages(fl_app.__path__, f"{fl_app.__name__}."):
        importlib.import_module(module.name)


def understood(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand the arguments to the real command line, which stops before anything is done."""

    def stop(*_: Any, **__: Any) -> Any:
        raise Parsed

    def check(parsed: Any) -> Any:
        known = {kebab(name) for name in Config.__dataclass_fields__}
        Config.from_mapping({k: v for k, v in vars(parsed).items() if k in known})
        raise Parsed

    import_everything()
    monkeypatch.setattr(run, "run", check)
    monkeypatch.setattr("leakmeter.fl_app.audit_app.session.AppAudit", stop)
    monkeypatch.setattr(small_commands, "_replay", check)
    monkeypatch.setattr(command, "_run", stop)
    monkeypatch.setattr(command, "_engine", lambda *_: nullcontext())
    monkeypatch.setattr("leakmeter.fl_app.report.read.read_runs", stop)
    monkeypatch.setattr("leakmeter.fl_app.report.read.read_run", stop)
    monkeypatch.setattr("leakmeter.fl_app.report.live.LiveFolder.check", stop)
    monkeypatch.setattr("leakmeter.fl_app.sweep.sweep.check_points", stop)
    monkeypatch.setattr("leakmeter.fl_app.sweep.sweep.SweepFolder.open", stop)
    try:
        assert main(arguments) == 0, f"not understood: {arguments}"
    except Parsed:
        return
    except SystemExit as done:  # --help
        if done.code:
            raise AssertionError(f"not understood: {arguments}") from done


@each_page
def test_commands_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks(page):
        if block.language not in ("bash", "sh") or block.not_run is not None:
            continue
        for words in commands(block.text):
            arguments = our_arguments(words)
            if arguments is None:
                program = next(w for w in words if "=" not in w)
                assert program in OTHERS, f"{page.name}:{block.line}: {program}"
            else:
                understood(arguments, monkeypatch)
    for span in spans(page):
        words = next(commands(span))
        understood(our_arguments(words) or [], monkeypatch)


def test_a_wrong_command_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((AssertionError, ConfigError)):
        understood(["--nonsense", "1"], monkeypatch)
    with pytest.raises((AssertionError, ConfigError)):
        understood(["--dataset", "cifar-11"], monkeypatch)
    with pytest.raises((AssertionError, ConfigError)):
        understood(["reproduce", "nonsense"], monkeypatch)


@pytest.mark.slow
def test_no_module_keeps_what_a_test_replaced() -> None:
    """In a process of its own, where nothing has imported the modules before."""
    code = (
        "import sys, pytest\n"
        "from tests.test_docs import understood\n"
        "with pytest.MonkeyPatch.context() as patch: understood(['report', 'runs/demo'], patch)\n"
        "from leakmeter.fl_app.report.read import read_run\n"
        "from leakmeter.fl_app.report import live\n"
        "assert live.read_run is read_run"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_blocks_are_found_with_their_reasons(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n```python\na = 1\n```\n<!-- not run: needs a network -->\n```bash\npip x \\\n  y && "
        "leakmeter report runs/x  # see\n```\n`python run_sim.py --seed 1` `leakmeter report DIR`\n"
    )
    first, second = blocks(page)
    assert (first.language, first.text, first.line, first.not_run) == ("python", "a = 1\n", 2, None)
    assert second.not_run == "needs a network"
    assert list(commands(second.text)) == [
        ["pip", "x", "y"],
        ["leakmeter", "report", "runs/x"],
    ]
    assert our_arguments(["leakmeter", "report", "runs/x"]) == ["report", "runs/x"]
    assert our_arguments(["pip", "x"]) is None
    assert spans(page) == ["python run_sim.py --seed 1"]


@each_page
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_pages_show_the_examples_as_they_are() -> None:
    """The diff of an example is on the plug-in page or in a README of the example's own."""
    pages = [ROOT / "docs/plug-in.md", *ROOT.glob("examples/*/README.md")]
    shown = [b.text.splitlines() for page in pages for b in blocks(page) if b.language == "diff"]
    examples = sorted(path.parent for path in ROOT.glob("examples/*/before"))
    assert len(shown) == len(examples)
    for example in examples:
        expected = []
        for name in ("pyproject.toml", "client_app.py", "server_app.py"):
            inside = name if name.endswith("toml") else f"{example.name}/{name}"
            old, new = ((example / w / inside).read_text() for w in ("before", "after"))
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
            changed = [line for line in list(lines)[2:] if line[:2] != "@@"]
            expected += [f"# {inside}", *changed] if changed else []
        assert expected in shown


def loaded(name: str) -> Any:
    """Return a program in docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gallery_has_a_picture_of_each_example() -> None:
    """A picture is small, has its command, and colours for light and dark pages."""
    page = ROOT / "docs" / "gallery.md"
    folders = {path.parent.name for path in ROOT.glob("examples/*/before")}
    names = folders | {path.stem for path in ROOT.glob("examples/*.py")}
    names |= {f"{path.parent.name}_planted" for path in ROOT.glob("examples/*/planted")}
    shown = re.findall(r"!\[[^\]]+\]\(gallery/(\w+)\.svg\)", page.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(names)
    assert {path.stem for path in (page.parent / "gallery").iterdir()} == names
    drawn = [words for b in blocks(page) for words in commands(b.text) if b.language == "bash"]
    for name in names:
        assert ["python", "docs/make_gallery.py", name] in drawn
        picture = page.parent / "gallery" / f"{name}.svg"
        assert picture.stat().st_size < 60_000
        root = ElementTree.parse(picture).getroot()
        title, style = (
            root.findtext(f"{{http://www.w3.org/2000/svg}}{t}") for t in ("title", "style")
        )
        assert title
        assert style is not None
        assert "prefers-color-scheme: dark" in style
        assert "var(" not in style  # which few programs but browsers know
        kinds = {(one.get("class") or "").split(" ")[0] for one in root.iter()}
        words = [one.text for one in root.iter() if one.text]
        assert "name" in kinds or "ε (log scale)" in words  # lines, or an axis, say what they are


def test_the_pictures_of_the_page_are_those_that_the_command_makes() -> None:
    pictures = loaded("make_pictures")
    made = {f"report-{name}.png" for name in pictures.PICTURES}
    assert {path.name for path in (ROOT / "docs").glob("*.png")} == made
    shown = set(re.findall(r"\((report-\w+\.png)\)", (ROOT / "docs" / "report.md").read_text()))
    assert shown == made - {"report-live.png"}
    for name in made:
        content = (ROOT / "docs" / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < pictures.MAX_BYTES


@pytest.mark.slow
def test_a_picture_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = loaded("make_pictures")
    if shutil.which("chromium") is None or shutil.which("pdftoppm") is None:
        pytest.skip("no Chromium or no poppler-utils")
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    assert pictures.main(["nonsense"]) == 2
    assert pictures.main(["light", "print", "live"]) == 0
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"report-light.png", "report-print.png", "report-live.png"}
    assert min(sizes.values()) > 20_000


@pytest.mark.slow
def test_the_gallery_can_be_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = loaded("make_gallery")
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert gallery.main(["nonsense"]) == 2
    assert gallery.main([]) == 0
    kept = {path.name for path in (ROOT / "docs" / "gallery").iterdir()}
    assert {path.name for path in tmp_path.glob("*.svg")} == kept


def test_the_longest_example_of_an_auditor_has_at_most_sixty_lines() -> None:
    [first, *_] = [b for b in blocks(ROOT / "docs/writing-an-auditor.md") if b.language == "python"]
    assert "class Linkage(Auditor):" in first.text
    assert len(first.text.splitlines()) <= 60


def test_cheap_commands_run(capsys: Any) -> None:
    assert main(["reproduce", "--list"]) == 0
    assert "secagg-lrt-adult" in capsys.readouterr().out
