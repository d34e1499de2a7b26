"""The page in a real browser: it runs without an error and shows what the record holds."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import paper
from tests.helpers.files import report_in

BROWSER = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
]
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--hide-scrollbars", "--virtual-time-budget=2000"),
)


def browse(page: Path, profile: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Open a page; the browser's own complaints are on its error stream."""
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={profile}", *more, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def console(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the page has logged, which includes errors of its script and its policy."""
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_runs_without_an_error_and_shows_all_findings(plain: Path, tmp_path: Path) -> None:
    done = browse(plain / "report.html", tmp_path / "profile", "--dump-dom")
    assert console(done) == []
    assert re.search(r'<html[^>]* class="ready"', done.stdout)  # its script went to the end
    values = r'<td class="value"><data value="([^"]+)"'
    wanted = sorted(float(f["value"]) for f in report_in(plain)["findings"])
    assert sorted(map(float, re.findall(values, done.stdout))) == wanted
    charts = re.findall(r'<svg[^>]*class="chart"[^>]*>', done.stdout)
    assert len(charts) == (plain / "report.html").read_text().count('class="chart"') >= 6


def test_an_error_on_a_page_would_be_seen(plain: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    text = (plain / "report.html").read_text()
    text = re.sub("script-src [^;]+", "script-src &#39;unsafe-inline&#39;", text)
    broken.write_text(text.replace('getElementById("tip")', "missing()"))
    done = browse(broken, tmp_path / "profile", "--dump-dom")
    assert any("missing is not a function" in line for line in console(done))
    assert not re.search(r'<html[^>]* class="ready"', done.stdout)


def test_markup_that_got_into_a_page_neither_runs_nor_changes_its_look(
    plain: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign.html"
    markup = (
        '<script>document.title = "ran";</script><style>main { display: none; }</style>'
        '<img src="x" onerror="document.title = \'ran\'"><p id="p" style="color: red">x</p>'
    )
    text = (plain / "report.html").read_text()
    foreign.write_text(text.replace("</main>", f"{markup}</main>"))
    done = browse(foreign, tmp_path / "profile", "--dump-dom")
    assert "<title>ran</title>" not in done.stdout
    refused = [line for line in console(done) if "Content Security Policy" in line]
    assert len(refused) >= 4
    assert re.search(r'<html[^>]* class="ready"', done.stdout)  # our own script does run


@pytest.fixture(scope="module")
def framed(
    plain: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], subprocess.CompletedProcess[str]]:
    """Show the page in a frame of some width, with a picture from elsewhere.

    The title is the width that the page takes. A headless window cannot be as narrow as a frame.
    """

    @cache
    def show(width: int) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("framed")
        text = (plain / "report.html").read_text()
        text = text.replace("</main>", '<img src="http://127.0.0.1:9/x.png"></main>')
        page = text.replace("&", "&amp;").replace('"', "&quot;")
        (folder / "probe.html").write_text(
            f'<iframe id="f" style="width:{width}px;height:700px;border:0" srcdoc="{page}">'
            "</iframe><script>onload = () => { document.title = "
            "document.getElementById('f').contentDocument.documentElement.scrollWidth; };</script>"
        )
        size = "--window-size=1400,900"
        return browse(folder / "probe.html", folder / "profile", "--dump-dom", size)

    return show


def test_nothing_can_be_fetched(framed: Callable[[int], subprocess.CompletedProcess[str]]) -> None:
    assert any("Content Security Policy" in line for line in console(framed(360)))


# Looks at a page within a frame: its title is what the page answers to keys and to the pointer.
_PROBE = """
<iframe id="f" style="width:1200px;height:900px;border:0" srcdoc="{page}"></iframe><script>
onload = () => {{
  const page = document.getElementById("f").contentDocument, said = [];
  const tip = page.getElementById("tip");
  const chart = page.querySelector(".chart"), [first, second] = chart.querySelectorAll(".pt");
  const press = (key) => page.activeElement.dispatchEvent(
    new KeyboardEvent("keydown", {{ key, bubbles: true, cancelable: true }}));
  const label = (one) => one.getAttribute("aria-label");
  first.focus();
  said.push(tip.textContent.startsWith(label(first)));
  press("ArrowRight");
  said.push(page.activeElement === second && tip.textContent.startsWith(label(second)));
  press("Escape");
  said.push(tip.hidden);
  const box = first.getBoundingClientRect(), lines = page.querySelectorAll(".chart .pt").length;
  const at = {{ clientX: box.left + box.width / 2, clientY: box.top - 40, bubbles: true }};
  chart.dispatchEvent(new PointerEvent("pointermove", at));
  said.push(!tip.hidden && tip.textContent.includes(label(first)));
  said.push(tip.textContent.split("\\n").length > 1);
  chart.dispatchEvent(new PointerEvent("pointerout", at));
  said.push(tip.hidden && lines > 1);
  document.title = said.join(" ");
}};</script>
"""


def test_values_answer_to_the_keyboard_and_to_the_pointer(plain: Path, tmp_path: Path) -> None:
    text = (plain / "report.html").read_text().replace("&", "&amp;").replace('"', "&quot;")
    (tmp_path / "probe.html").write_text(_PROBE.format(page=text))
    size = "--window-size=1400,1000"
    done = browse(tmp_path / "probe.html", tmp_path / "profile", "--dump-dom", size)
    assert re.search(r"<title>([a-z ]*)</title>", done.stdout) is not None, console(done)
    [said] = re.findall(r"<title>([a-z ]*)</title>", done.stdout)
    assert said.split() == ["true"] * 6


def printed(page: Path, folder: Path) -> Path:
    """Return what the browser prints."""
    browse(page, folder / "profile", "--no-pdf-header-footer", f"--print-to-pdf={folder}/page.pdf")
    return folder / "page.pdf"


@pytest.mark.skipif(shutil.which("pdftoppm") is None, reason="poppler-utils are not installed")
def test_sheets_have_numbers_a_date_and_a_release_and_none_is_nearly_empty(
    plain: Path, tmp_path: Path
) -> None:
    pdf = printed(plain / "report.html", tmp_path)
    sheets = paper.texts(pdf)
    stamp = r"Leakmeter plain · \d{4}-\d\d-\d\d \d\d:\d\d UTC · leakmeter \S+"
    for i, words in enumerate(sheets, start=1):
        foot = words.rstrip().splitlines()[-1]
        assert re.fullmatch(rf"\s*{stamp}\s+{i} ?/ ?{len(sheets)}", foot)
    assert min(paper.used(pdf)[:-1]) > 1 / 3


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_is_no_wider_than_the_window(
    framed: Callable[[int], subprocess.CompletedProcess[str]], width: int
) -> None:
    done = framed(width)
    found = re.search(r"<title>(\d+)</title>", done.stdout)
    assert found is not None, done.stdout[:500]
    assert int(found[1]) <= width
