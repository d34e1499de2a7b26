"""The first screen in a real browser: what is on it, keys, colours, phone, paper, axe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main
from tests.helpers.browser import BROWSER, DRIVER, Browser, axe, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="no Chromium or chromedriver"),
]
_INSIDE = """
  return [...document.querySelectorAll(arguments[0])].map((one) => {
    const box = one.getBoundingClientRect();
    return [one.textContent, box.top + scrollY, box.bottom + scrollY, box.width];
  });
"""
_AXES = """
  return [...document.querySelectorAll(arguments[0])].map((one) => Math.max(0,
    ...[...one.querySelectorAll(".axis, .scale")].map((a) => a.getBoundingClientRect().width)));
"""


# Pairs of words in one chart that cover each other by more than two pixels in both directions.
_COVERED = """
  const found = [];
  for (const chart of document.querySelectorAll(arguments[0])) {
    const words = [...chart.querySelectorAll("text")].map((t) =>
      [t.textContent, t.getBoundingClientRect()]);
    words.forEach(([one, a], i) => words.slice(i + 1).forEach(([other, b]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 2) found.push([one, other]);
    }));
  }
  return found;
"""
# Parts of commands that take more than one line although one has room for them.
_BROKEN = """
  return [...document.querySelectorAll("pre code span, .actions p code")].filter((one) => {
    const line = parseFloat(getComputedStyle(one).lineHeight);
    const room = one.closest("pre, p").clientWidth - 30;
    return one.getBoundingClientRect().height > 1.5 * line && one.scrollWidth < room;
  }).map((one) => one.textContent);
"""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def pages(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a run, one that compares it with another, and one of a sweep."""
    folder = tmp_path_factory.mktemp("runs")
    settings = [*tiny, "--lrt-every", "2", "--canary-seats", "3"]
    assert main([*settings, "--out", str(folder / "plain")]) == 0
    noise = ["--noise", "central", "--clip-norm", "1"]
    assert main([*settings, *noise, "--out", str(folder / "noised")]) == 0
    both = folder / "both.html"
    runs = [str(folder / name) for name in ("plain", "noised")]
    assert main(["report", *runs, "--out", str(both)]) == 0
    points = ["--over", "noise-multiplier=0.5,1,8", "--over", "lr=0.1,0.3", "--seeds", "2"]
    assert main(["sweep", *settings, *points, "--out", str(folder / "swept")]) == 0
    return {
        "single": folder / "plain/report.html",
        "noised": folder / "noised/report.html",
        "compared": both,
        "swept": folder / "swept/report.html",
    }


@pytest.mark.parametrize("name", ["single", "noised"])
def test_the_first_screen_has_verdict_attackers_facts_and_actions(
    window: Browser, pages: dict[str, Path], name: str
) -> None:
    window.open(pages[name])
    shown = {what: window.run(_INSIDE, what) for what in ("h1", ".row", ".facts dt", ".actions li")}
    for what, found in shown.items():
        assert found, what
        # Attackers begin on the first screen. The first step is whole on it; commands are long.
        assert found[0][2] <= 700, (what, found)
        assert what == ".actions li" or all(top <= 700 for _, top, _, _ in found), (what, found)
    assert len(shown["h1"]) == 1
    said = " ".join(
        words for what in ("h1", ".actions p") for words, *_ in window.run(_INSIDE, what)
    )
    assert not re.search(r"ε [≥≤≈]|[≥≤≈] \d", said)  # no line ends within a claim
    assert [words for words, *_ in shown[".facts dt"]] == [
        *("Accuracy", "Data and model", "Clients per round"),
        *("Rounds", "Protection", "Date (UTC)", "Made with"),
    ]
    assert len(shown[".actions li"]) <= 3
    words = " ".join(words for words, *_ in shown[".actions li"])
    assert re.search(r"--target-epsilon \d", words)  # numbers, no letters in their place
    order = window.run(
        "return [...document.querySelectorAll('li.row .shown')].map(s => s.getAttribute('width'))"
    )
    sizes = [float(width.rstrip("%")) for width in order]
    assert sizes == sorted(sizes, reverse=True)  # the worst first
    ticks = window.run(
        "return [...document.querySelectorAll('.scale')[0].children].map((one) => {"
        "const box = one.getBoundingClientRect(); return [box.left, box.right]})"
    )
    assert all(b[0] - a[1] >= 4 for a, b in pairwise(ticks)), ticks  # "90 %99 %" is no scale
    opened = window.run("return document.querySelectorAll('details[open]').length")
    assert opened == 0


@pytest.mark.parametrize("name", ["single", "compared", "swept"])
def test_every_stop_of_the_tab_key_has_a_name_and_arrows_throw_nothing(
    window: Browser, pages: dict[str, Path], name: str
) -> None:
    window.open(pages[name])
    window.errors()
    window.run("for (const one of document.querySelectorAll('details')) one.open = true;")
    named = """
      const one = document.activeElement;
      return one === document.body ? "body" :
        one.getAttribute("aria-label") || one.textContent.trim();
    """
    stops = 0
    for _ in range(40):
        window.press("Tab")
        words = window.run(named)
        if words == "body":
            break
        assert words, window.run("return document.activeElement.outerHTML.slice(0, 300)")
        stops += 1
        window.press("ArrowRight")
    assert stops > 8
    assert window.errors() == []


def test_a_word_is_explained_at_its_first_use(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["single"])
    # The pointer: a window that earlier keys have left has no focus to give.
    window.run(
        "document.querySelector('.term')"
        ".dispatchEvent(new PointerEvent('pointerover', { bubbles: true }));"
    )
    tip = (
        "return [document.getElementById('tip').hidden, document.getElementById('tip').textContent]"
    )
    hidden, words = window.run(tip)
    assert not hidden
    assert "test records" in words
    terms = window.run("return [...document.querySelectorAll('.term')].map((t) => t.textContent)")
    assert len(terms) == len(set(terms))


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("name", ["single", "compared", "swept"])
def test_no_page_is_wider_than_its_window_and_every_chart_keeps_its_axis(
    window: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    window.open(pages[name], width, 800)
    window.run("for (const one of document.querySelectorAll('details')) one.open = true;")
    assert window.run("return document.documentElement.scrollWidth") <= width
    for what in ("svg.chart", ".forest thead", ".row.axis"):
        wide = window.run(_AXES, what)
        assert all(one > 100 for one in wide), (what, wide)
        if name == "single":
            assert wide, what


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("name", ["single", "compared", "swept"])
def test_no_words_of_a_chart_cover_each_other_and_no_option_is_broken(
    window: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    window.open(pages[name], width, 800)
    assert window.run(_COVERED, "#figures svg.chart, #tradeoff, #frontier") == []
    assert window.run(_BROKEN) == []
    facts = "[...document.querySelectorAll('.facts div:not(:nth-child(2)) dd span')]"
    rects = window.run(f"return {facts}.map((one) => one.getClientRects().length)")
    assert set(rects) <= {1}
    assert rects or name != "single"


@pytest.mark.parametrize("name", ["single", "compared", "swept"])
def test_words_of_drawings_have_one_size_at_every_width(
    window: Browser, pages: dict[str, Path], name: str
) -> None:
    heights = set()
    for width in (360, 690, 1280):
        window.open(pages[name], width, 800)
        window.run("for (const one of document.querySelectorAll('details')) one.open = true;")
        found = window.run(
            "return [...document.querySelectorAll('svg text:not([transform])')]"
            ".map((one) => Math.round(one.getBoundingClientRect().height))"
        )
        assert len(found) > 10
        heights |= set(found)
    assert len(heights) == 1, heights


def test_what_a_comparison_says_is_not_cut_off_on_a_phone(
    window: Browser, pages: dict[str, Path]
) -> None:
    window.open(pages["compared"], 390, 844)
    notes = window.run(_INSIDE, ".compared .note")
    assert any("compare the upper bounds" in words for words, *_ in notes)
    assert all(width <= 390 for *_, width in notes)


def test_a_guarantee_is_named_where_its_attacker_is(
    window: Browser, pages: dict[str, Path]
) -> None:
    window.open(pages["noised"])
    rows = window.run("return [...document.querySelectorAll('li.row .what')].map(w => w.innerText)")
    assert any(re.search(r"guaranteed ε ≤ \d", words) for words in rows)
    assert any("no guarantee" in words for words in rows)  # the server sees the sum before noise


def test_nothing_that_belongs_together_is_torn_apart_on_paper(
    window: Browser, pages: dict[str, Path]
) -> None:
    window.open(pages["single"])
    assert window.run("return matchMedia('print').matches") is False  # only the paper is
    assert len(re.findall(rb"/Type\s*/Page\b", window.paper())) >= 3
    rules = """
      const found = [];
      for (const sheet of document.styleSheets) for (const rule of sheet.cssRules)
        if (rule.media && rule.media.mediaText === "print")
          for (const inner of rule.cssRules) found.push(inner.cssText);
      return found.join(" ");
    """
    words = window.run(rules)
    for whole in ("figure", "tr", r"\.row", r"\.hero", r"\.actions li"):
        assert re.search(rf"(^|[ ,]){whole}\b[^{{}}]*\{{ break-inside: avoid", words), whole
    for head in ("h2", "h3", r"\.card dt"):
        assert re.search(rf"(^|[ ,]){head}\b[^{{}}]*\{{ break-after: avoid", words), head


def test_the_table_of_a_sweep_fits_on_paper(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["swept"], 690, 900, media="print")
    window.run("for (const one of document.querySelectorAll('details')) one.open = true;")
    assert window.run("return document.documentElement.scrollWidth") <= 690


def test_the_table_of_findings_fits_on_paper(window: Browser, pages: dict[str, Path]) -> None:
    wide = 690  # pixels of A4 between its margins
    window.open(pages["single"], wide, 900, media="print")
    window.run("for (const one of document.querySelectorAll('details')) one.open = true;")
    assert window.run("return document.documentElement.scrollWidth") <= wide
    columns = window.run(
        "return [...document.querySelectorAll('td.how')].map(c => c.getBoundingClientRect().width)"
    )
    assert min(columns) > wide / 5  # words, not a column of syllables


@pytest.mark.parametrize("name", ["single", "compared", "swept"])
@pytest.mark.parametrize(
    "look", [{}, {"dark": True}, {"width": 390, "height": 844}], ids=["light", "dark", "phone"]
)
def test_axe_finds_nothing(
    window: Browser, pages: dict[str, Path], look: dict[str, Any], name: str
) -> None:
    script = axe()
    if script is None:
        pytest.skip("no axe-core: npm install -g axe-core, or name axe.min.js in AXE_CORE")
    # What is folded has the same colours and parts in every look.
    for is_open in (False, True) if not look else (False,):
        window.open(pages[name], **look)
        if is_open:
            window.run("for (const one of document.querySelectorAll('details')) one.open = true;")
        # Animations off, so that colours are those that stay.
        window.run(
            "document.head.insertAdjacentHTML('beforeend', "
            "'<style>*{transition:none!important}</style>')"
        )
        window.run(script.read_text())
        found = window.wait_for("axe.run().then(arguments[arguments.length - 1]);")
        wrong = [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]]
        assert wrong == [], json.dumps(wrong, indent=1)
