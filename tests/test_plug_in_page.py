"""The shell lines of docs/plug-in.md, word for word, in a fresh home.

The package index must be reachable: pip fetches the build system, and Flower's `uv sync` about
200 MB of what the app depends on (UV_CACHE_DIR, where it is set, saves the downloads).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs_blocks import blocks
from tests.helpers.processes import (
    add_programs,
    bare_python,
    end_superlinks,
    environment,
    own_ports,
    run,
    superlinks,
    wait_until,
)
from tests.helpers.project import ROOT

PAGE = ROOT / "docs/plug-in.md"
COMPLETED = '"status": "finished:completed"'

pytestmark = pytest.mark.launch


def shell(section: str) -> list[str]:
    """Return the shell blocks of a section of the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    headings = [n for n, line in enumerate(lines) if line[:3] == "## "]
    start = lines.index(f"## {section}")
    end = min(n for n in headings if n > start)
    return [b.text for b in blocks(PAGE) if b.language == "bash" and start < b.line <= end]


@dataclass(frozen=True)
class User:
    """Somebody with a fresh home, an activated environment and an app like Flower's template."""

    home: Path
    app: Path
    variables: dict[str, str]

    def types(self, lines: str, folder: Path) -> str:
        """Run lines of the page in a shell, which must end well; return what is printed."""
        done = run("bash", "-e", "-c", lines, cwd=folder, env=self.variables, timeout=600)
        assert done.returncode == 0, f"{lines}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def reports(self) -> list[Path]:
        """Return the records in the home."""
        return sorted(self.home.glob("audits/*/report.json"))


def like_the_template(app: Path) -> None:
    """Let an app, which is built by hatchling, allow Python 3.10; three rounds are enough."""
    project = app / "pyproject.toml"
    text = project.read_text()
    assert 'build-backend = "hatchling.build"' in text
    for old, new in (
        ("dependencies = [", 'requires-python = ">=3.10"\ndependencies = ['),
        ("num-server-rounds = 10", "num-server-rounds = 3"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    project.write_text(text)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user with the environment of a Flower project, in which we are not installed."""
    python = bare_python(tmp_path / "venv", pip=True)
    add_programs(python, "flwr")
    # Flower brings uv and runs `python -m uv`, which searches for its program beside Python.
    if (program := Path(sys.executable).with_name("uv")).is_file():
        (python.parent / "uv").symlink_to(program)
    probe = ("-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, "hatchling")
    if run(python, *probe).returncode:
        pytest.skip("no package index can be reached")
    assert run(python, "-c", "import leakmeter", cwd=tmp_path).returncode == 1
    app = shutil.copytree(ROOT / "examples/logistic_sklearn/after", tmp_path / "app")
    like_the_template(app)
    home = tmp_path / "home"
    home.mkdir()
    own = {
        "HOME": str(home),
        "FLWR_HOME": str(home / ".flwr"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "0",  # as if the user had not set it
        "RAY_ADDRESS": "local",  # otherwise Ray searches for a cluster that was left behind
    }
    variables = environment(**own, **own_ports())
    variables["PATH"] = f"{python.parent}:{variables['PATH']}"
    yield User(home, app, variables)
    end_superlinks(home)


def test_the_lines_of_the_page_work_word_for_word_in_a_fresh_home(user: User) -> None:
    [install] = shell("1. Install")
    start, status, end, _ = shell("3. Run")
    [read] = shell("4. Read")
    user.types(install, ROOT)
    printed = user.types(start, user.app)
    assert "Installing application dependencies" in printed  # no variable was needed
    assert "Audit written to" in printed, printed
    said = user.types(status, user.app)
    # The page says so: on a busy disk Flower reports a completed run as lost.
    assert COMPLETED in said or "No heartbeat received from the task" in said, said
    [record] = user.reports()
    assert json.loads(record.read_text())["failures"] == []
    user.types(read, user.app)
    assert record.with_name("report.html").stat().st_size > 10_000
    assert len(superlinks(user.home)) == 1
    user.types(end, user.app)
    wait_until(lambda: not superlinks(user.home), seconds=30)


def test_a_failed_first_try_is_seen_and_the_page_says_how_to_go_on(user: User) -> None:
    [install] = shell("1. Install")
    start, status, end, without_downloads = shell("3. Run")
    user.types(install, ROOT)
    project = user.app / "pyproject.toml"
    right = project.read_text()
    project.write_text(right.replace("dependencies = [", 'dependencies = [\n    "leakmeter",'))
    # No exit code says so: pip finds us installed, and Flower ends with 0.
    assert "Exit Code: 608" in user.types(start, user.app)
    said = user.types(status, user.app)
    assert '"status": "finished:failed"' in said
    assert "leakmeter was not found in the package registry" in said
    assert not user.reports()
    project.write_text(right)
    user.types(end, user.app)
    wait_until(lambda: not superlinks(user.home), seconds=30)
    printed = user.types(without_downloads, user.app)
    assert "Installing application dependencies" not in printed
    assert COMPLETED in user.types(status, user.app), printed
    assert len(user.reports()) == 1
