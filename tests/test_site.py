"""The documentation site is built without a warning, is complete, and fetches nothing.

What the notebooks print is in the launch set: they start Ray.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

from leakmeter import auditors, clients, loggers, strategies
from tests.helpers.browser import BROWSER, DRIVER, Browser, axe, browser
from tests.helpers.project import ROOT

# What a page loads while somebody reads it; a link that the reader may click is none.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
# Tells about the page, and is not loaded.
ABOUT = {"canonical", "prev", "next", "alternate"}
SEEN = ["index", "choosing-an-auditor", "mathematics", "settings", "reference/auditors"]
SEEN += ["reference/mathematics", "RESULTS"]
needs_browser = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium is installed")


@cache
def maker() -> ModuleType:
    """Return docs/make_site.py as a module."""
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with a default job of its own, once for all processes of a test run."""
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    filelock = pytest.importorskip("filelock")
    shared = tmp_path_factory.getbasetemp().parent / "the-site"
    with filelock.FileLock(f"{shared}.lock"):
        if not (shared / "site").exists():
            maker().make_report(shared / "examples")
            words = ("--examples", shared / "examples", "--out", shared / "site", "--no-runs")
            assert maker().main([str(word) for word in words]) == 0
    return shared / "site"


class Parsed(HTMLParser):
    """Collects what a page loads, what it defines, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.tags.add(tag)
        self.ids |= {values.get("id", ""), values.get("name", "")}
        if tag in LOADED and values.get("rel") not in ABOUT:
            self.loads.append(values.get(LOADED[tag], ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])


@cache
def parsed(page: Path) -> Parsed:
    return Parsed(page.read_text(encoding="utf-8"))


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def outside(text: str) -> list[str]:
    """Return what a page loads from elsewhere, by its tags or its style."""
    urls = [*Parsed(text).loads, *re.findall(r"url\(\s*['\"]?([^'\")]+)", text)]
    return [url for url in urls if re.match(r"(https?:)?//", url)]


def dead(page: Path) -> Iterator[str]:
    """Yield the links and sources of a page of the site that lead nowhere in it."""
    for url in (*parsed(page).links, *parsed(page).loads):
        path, _, anchor = unquote(url).partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        to = (page.parent / path).resolve() if path else page
        if not to.is_file() or (anchor and to.suffix == ".html" and anchor not in parsed(to).ids):
            yield url


def test_what_comes_from_elsewhere_would_be_noticed() -> None:
    assert outside('<script src="https://x.example/a.js"></script>')
    assert outside("<style>a { background: url( '//x.example/a.png' ) }</style>")
    assert not outside('<a href="https://x.example">x</a><img src="a.png">')


def test_dead_links_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h1 id="part">B</h1>')
    page = tmp_path / "a.html"
    good = '<a href="b.html#part"></a><a href="#own" id="own"></a><a href="https://x.example"></a>'
    page.write_text(good + '<a href="c.html"></a><a href="b.html#x"></a><img src="d.png">')
    assert list(dead(page)) == ["c.html", "b.html#x", "d.png"]


def changed(text: str, page: str = "page.md") -> str:
    """Return a page as the site gets it, where there are two files."""
    return str(maker().site_text(text, page, {"other.md", "folder/third.md"}))


def test_links_that_leave_the_site_become_paths() -> None:
    assert changed("[a](other.md#x) [b](folder/third.md)") == "[a](other.md#x) [b](folder/third.md)"
    assert changed("[the code](../auditors/a.py)") == "the code (`auditors/a.py`)"
    assert changed("[`a.py`](../../auditors/a.py)", "folder/page.md") == "`auditors/a.py`"
    assert changed("[run](notebook.ipynb)") == "[run](notebook.md)"
    picture = "[![x](a.png)](other.md)"
    assert changed(picture) == picture
    code = "`[a](b.py)`\n\n```text\n[a](b.py) $x$\n```\n\n  ```text\n  $x$\n  ```\n"
    assert changed(code) == code


def test_short_code_is_not_torn_at_a_hyphen() -> None:
    assert changed("`--a-b` and `ab`") == "`--a-b`{.whole} and `ab`"
    assert changed(f"`{'a-' * 20}`") == f"`{'a-' * 20}`"


def test_formulas_become_mathml() -> None:
    pytest.importorskip("math_core")
    assert "<msub><mi>x</mi><mi>i</mi></msub>" in changed("for $x_i$, say")
    assert "<math" not in changed(r"at $5 and \$6$, `$HOME` and US$7$")
    block = changed("Text\n\n```math\n\\frac{a}{b}\n```\n\nMore\n")
    assert '\n\n<span class="formula"><math display="block">' in block
    item = changed("- Item\n\n  ```math\n  a\n  ```\n\n  goes on\n")
    assert "\n\n" not in item  # a blank line would end the item
    made = maker().mathml(r"\lvert a \rvert + [b]_{c^\ast}", is_block=False)
    assert not re.search(r"[*_|\[\]\\`]", made)
    with pytest.raises(Exception, match="nonsense"):
        maker().mathml(r"\nonsense", is_block=False)


def test_a_wrong_formula_is_said_with_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("math_core")
    shutil.copytree(ROOT / "docs" / "site", tmp_path / "docs" / "site")
    (tmp_path / "docs" / "page.md").write_text(r"$\nonsense$")
    monkeypatch.setattr(maker(), "DOCS", tmp_path / "docs")
    with pytest.raises(Exception, match="nonsense") as raised:
        maker().stage(tmp_path / "staged", tmp_path / "none")
    assert raised.value.__notes__ == ["in docs/page.md"]


def test_formulas_in_a_line_are_the_same_on_plain_pages() -> None:
    """Where Markdown reads backslashes and stars first, a formula must not contain them."""
    found = {}
    for page in (ROOT / "docs").rglob("*.md"):
        for token in maker()._TOKEN.finditer(page.read_text(encoding="utf-8")):
            if token["inline"] is not None:
                found[page.name, token["inline"]] = re.search(r"\\[^A-Za-z]|[*<]", token["inline"])
    assert len(found) > 100
    assert {key for key, wrong in found.items() if wrong} == set()


def test_a_notebook_becomes_a_page_with_its_outputs(tmp_path: Path) -> None:
    frame = '<iframe title="Report" srcdoc="&lt;!doctype html&gt;&lt;p&gt;&quot;x&quot;"></iframe>'
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": ["print(1)\n", "Page()"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["1\n"]},
                {"output_type": "stream", "name": "stderr", "text": ["a warning\n"]},
                {"output_type": "stream", "name": "stdout", "text": ["2\n"]},
                {"data": {"text/html": [frame], "text/plain": ["Page()"]}},
            ],
        },
        {"cell_type": "code", "source": ["3"], "outputs": [{"data": {"text/plain": ["3"]}}]},
    ]
    assert list(maker().notebook_text(cells, "run", tmp_path)) == [
        "# Title\ntext",
        "```python\nprint(1)\nPage()\n```",
        "```text\n1\n2\n```",
        '<iframe title="Report" class="report" src="run-1.html"></iframe>',
        "```python\n3\n```",
        "```text\n3\n```",
        "[The notebook as a file](run.ipynb)",
    ]
    assert (tmp_path / "run-1.html").read_text() == '<!doctype html><p>"x"'


def test_only_a_folder_of_its_own_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(SystemExit):
        maker().main(["--no-runs", "--out", str(tmp_path)])
    assert (tmp_path / "mine.txt").exists()


@pytest.mark.launch
def test_the_notebooks_run_for_the_site(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    maker().make_outputs(tmp_path)
    for name in maker().NOTEBOOKS:
        cells = json.loads((tmp_path / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        text = "\n\n".join(maker().notebook_text(cells, name, tmp_path))
        assert 'class="report" src="' in text
        [page] = tmp_path.glob(f"{name}-[0-9]*.html")
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "round 3/3" in (tmp_path / "notebook.ipynb").read_text(encoding="utf-8")


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    assert len(pages(site)) > 60
    for page in pages(site):
        assert outside(page.read_text(encoding="utf-8")) == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_a_part_of_it(site: Path) -> None:
    # The page for addresses that do not exist has absolute links, for a server.
    made = [page for page in pages(site) if page.name != "404.html"]
    assert {page.name: list(dead(page)) for page in made if list(dead(page))} == {}


@pytest.mark.slow
def test_the_reference_has_every_public_name(site: Path) -> None:
    rooms = {"auditors": auditors, "clients": clients, "strategies": strategies}
    for name, room in {**rooms, "loggers": loggers}.items():
        found = parsed(site / "reference" / f"{name}.html").ids
        missing = [n for n in room.__all__ if f"leakmeter.{name}.{n}" not in found]
        assert missing == [], name


@pytest.mark.slow
def test_the_front_page_leads_to_a_real_report(site: Path) -> None:
    index = parsed(site / "index.html")
    assert {"report-light.png#only-light", "report-dark.png#only-dark"} <= set(index.loads)
    assert "example-report.html" in index.links
    example = parsed(site / "example-report.html")
    assert maker().REPORT in example.links
    assert maker().REPORT in example.loads
    report = (site / maker().REPORT).read_text(encoding="utf-8")
    assert "canaries" in report


@pytest.mark.slow
def test_formulas_of_the_site_are_mathml(site: Path) -> None:
    assert "math" in parsed(site / "mathematics.html").tags
    for page in pages(site):
        text = re.sub(r"<(code|script)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
        assert not re.search(r"\\(frac|varepsilon|sqrt|ln|le|ge)\b", text), page.name


@pytest.mark.slow
def test_a_dead_link_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zensical")
    docs = tmp_path / "docs"
    left_out = shutil.ignore_patterns("results", "reference")
    shutil.copytree(ROOT / "docs", docs, ignore=left_out)
    index = docs / "index.md"
    index.write_text(index.read_text() + "\n[nowhere](quick-start.md#no-such-part)\n")
    monkeypatch.setattr(maker(), "DOCS", docs)
    out = tmp_path / "site"
    words = ("--no-runs", "--examples", tmp_path / "none", "--out", out)
    assert maker().main([str(word) for word in words]) != 0
    assert "no-such-part" in re.sub(r"\x1b\[[0-9;]*m", "", "".join(capfd.readouterr()))
    assert not out.exists()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as page:
        yield page


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve the site and return its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep the terminal for the tests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


# Waits until every result is one of the whole word, not of the letters that were typed first.
SEARCH = """
const [word, done, started] = [...arguments, Date.now()];
const look = () => {
  const inside = [...document.querySelectorAll("*")].find((e) => e.shadowRoot)?.shadowRoot;
  const links = [...(inside?.querySelectorAll("[role=listbox] a") ?? [])];
  const typed = inside?.querySelector("input")?.value;
  const marked = (a) => [...a.querySelectorAll("mark u")].some((u) => u.textContent === word);
  if ((typed === word && links.length && links.every(marked)) || Date.now() - started > 60000)
    done([typed, links.map((a) => a.href)]);
  else setTimeout(look, 50);
};
look();
"""
OPENED = """
const [done, started] = [arguments[arguments.length - 1], Date.now()];
document.querySelector(".md-search__button").click();
const look = () => {
  const inside = [...document.querySelectorAll("*")].find((e) => e.shadowRoot)?.shadowRoot;
  if (inside?.activeElement || Date.now() - started > 60000) done(!!inside?.activeElement);
  else setTimeout(look, 50);
};
look();
"""


@pytest.mark.slow  # starts a browser
@needs_browser
def test_the_search_works_in_a_folder_as_on_a_server(site: Path, window: Browser) -> None:
    word, found = "eigenvalues", []
    with served(site) as home:
        for base in (f"{site.as_uri()}/", home):
            window.open(f"{base}index.html")
            assert window.wait_for(OPENED)
            window.press(*word)
            typed, links = window.wait_for(SEARCH, word)
            assert typed == word
            assert window.errors() == []
            found.append([link.removeprefix(base) for link in links])
    assert found[0] == found[1]
    assert any(link.startswith("mathematics.html#water-filling") for link in found[0])
    for link in found[0]:
        assert (site / link.partition("#")[0]).is_file()


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", ["index", "gallery", "notebook", "mathematics", "settings"])
def test_scripts_ask_nobody_else_either(site: Path, window: Browser, name: str) -> None:
    with served(site) as home:
        window.open(f"{home}{name}.html")
        assert window.wait_for(OPENED)  # the search has scripts of its own
        window.press("a")
        asked = window.run("return performance.getEntriesByType('resource').map((e) => e.name)")
        assert len(asked) >= 3
        assert [url for url in asked if not url.startswith(home)] == []
        assert window.errors() == []


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", [*SEEN, "notebook", "example-report"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_screen(
    site: Path, window: Browser, name: str, width: int
) -> None:
    window.open(site / f"{name}.html", width, 844)
    assert window.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_comparison_of_auditors_needs_no_scrolling(
    site: Path, window: Browser, width: int
) -> None:
    window.open(site / "choosing-an-auditor.html", width, 844)
    table = window.run(
        "const t = document.querySelector('.md-typeset__scrollwrap');"
        "return [t.scrollWidth, t.clientWidth, t.querySelectorAll('tbody tr').length]"
    )
    assert table[0] <= table[1]
    assert table[2] > 10


# The ratio of WCAG 2 of each text that can be seen to what is painted below it, if less than
# 4.5 (3 if large). Backgrounds are blended from the root up.
CONTRAST = """
const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const over = ([r, g, b, a = 1], below) =>
  [r, g, b].map((v, i) => v * a + below[i] * (1 - a));
const below = (e) => over(numbers(getComputedStyle(e).backgroundColor),
  e.parentElement ? below(e.parentElement) : [255, 255, 255]);
const opacity = (e) =>
  getComputedStyle(e).opacity * (e.parentElement ? opacity(e.parentElement) : 1);
const SHOWN = { visibilityProperty: true, opacityProperty: true };
const poor = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement, style = getComputedStyle(e);
  if (!walker.currentNode.data.trim() || !e.checkVisibility(SHOWN)) continue;
  if (["SCRIPT", "STYLE"].includes(e.tagName) || !/^rgb/.test(style.color)) continue;
  seen += 1;
  const ground = below(e), [r, g, b, a = 1] = numbers(style.color);
  const ink = over([r, g, b, a * opacity(e)], ground);
  const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  const ratio = (high + 0.05) / (low + 0.05);
  if (ratio < (large ? 3 : 4.5))
    poor.push([e.className, walker.currentNode.data.trim(), style.color, ground.join(), ratio]);
}
return [seen, poor];
"""


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", SEEN)
def test_text_stands_out(site: Path, window: Browser, name: str, dark: bool) -> None:
    window.open(site / f"{name}.html", dark=dark)
    scheme = window.run("return document.body.dataset.mdColorScheme")
    assert scheme == ("slate" if dark else "default")
    seen, poor = window.run(CONTRAST)
    assert seen > 100
    assert poor == []


@pytest.mark.slow
@needs_browser
@pytest.mark.skipif(axe() is None, reason="no axe-core: npm install -g axe-core, or set AXE_CORE")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", SEEN)
def test_axe_finds_nothing(site: Path, window: Browser, name: str, width: int, dark: bool) -> None:
    script = axe()
    assert script is not None
    window.open(site / f"{name}.html", width, 844, dark=dark)
    window.run(script.read_text(encoding="utf-8"))
    found = window.wait_for(
        "const done = arguments[arguments.length - 1]; axe.run(document, { iframes: false })"
        ".then((r) => done(r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)])))"
    )
    assert found == []
