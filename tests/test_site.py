"""The documentation site is built without a warning, is complete, and fetches nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from leakmeter import auditors, clients, loggers, strategies
from tests.helpers.browser import BROWSER, DRIVER, browser
from tests.helpers.project import ROOT

# What a page loads while somebody reads it; a link that the reader may click is none.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
# Tells about the page, and is not loaded.
ABOUT = {"canonical", "prev", "next", "alternate"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    out = tmp_path_factory.mktemp("site")
    words = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return out


class Loads(HTMLParser):
    """Collects what a page loads, and what it defines."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.ids.add(values.get("id", ""))
        if tag in LOADED and values.get("rel") not in ABOUT:
            self.urls.append(values.get(LOADED[tag], ""))


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def outside(text: str) -> list[str]:
    """Return what a page loads from elsewhere, by its tags or its style."""
    urls = [*Loads(text).urls, *re.findall(r"url\(\s*['\"]?([^'\")]+)", text)]
    return [url for url in urls if re.match(r"(https?:)?//", url)]


def test_what_comes_from_elsewhere_would_be_noticed() -> None:
    assert outside('<script src="https://x.example/a.js"></script>')
    assert outside("<style>a { background: url( '//x.example/a.png' ) }</style>")
    assert not outside('<a href="https://x.example">x</a><img src="a.png">')


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    assert len(pages(site)) > 30
    for page in pages(site):
        assert outside(page.read_text(encoding="utf-8")) == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.slow  # starts a browser
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium is installed")
@pytest.mark.parametrize("name", ["index", "gallery", "mathematics", "reference/auditors"])
def test_scripts_ask_nobody_else_either(site: Path, name: str) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep the terminal for the tests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}/"
        with browser() as page:
            page.open(f"{home}{name}.html")
            asked = page.run("return performance.getEntriesByType('resource').map((e) => e.name)")
            assert len(asked) >= 3
            assert [url for url in asked if not url.startswith(home)] == []
            assert page.errors() == []
        server.shutdown()


@pytest.mark.slow
def test_the_reference_has_every_public_name(site: Path) -> None:
    rooms = {"auditors": auditors, "clients": clients, "strategies": strategies}
    for name, room in {**rooms, "loggers": loggers}.items():
        found = Loads((site / "reference" / f"{name}.html").read_text(encoding="utf-8")).ids
        missing = [n for n in room.__all__ if f"leakmeter.{name}.{n}" not in found]
        assert missing == [], name


@pytest.mark.slow
def test_the_pictures_of_the_front_page_are_there(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    for source in re.findall(r'<img[^>]* src="([^"]+)"', text):
        assert (site / source).is_file()


@pytest.mark.slow
def test_a_dead_link_would_be_noticed(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(ROOT / "docs", copy / "docs", ignore=shutil.ignore_patterns("results"))
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (copy / "mkdocs.yml").write_text(settings)
    for path in (copy / "docs" / "reference").glob("*.md"):
        path.write_text("# None\n")
    index = copy / "docs" / "index.md"
    index.write_text(index.read_text() + "\n[nowhere](quick-start.md#no-such-part)\n")
    words = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "out")
    done = subprocess.run(words, cwd=copy, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode != 0
    assert "no-such-part" in done.stderr
