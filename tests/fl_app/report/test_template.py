"""Text never becomes markup, and a template that misses a value is no page."""

from __future__ import annotations

import re

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from leakmeter.fl_app.report.page import document
from leakmeter.fl_app.report.template import STYLE, render, with_code
from tests.helpers.project import ROOT


def test_text_is_escaped_and_markup_is_not() -> None:
    made = render('<p title="{{ a }}">{{ b }}{{ c }}</p>', a='"x"', b="<b>", c=Markup("<i></i>"))
    assert made == '<p title="&#34;x&#34;">&lt;b&gt;<i></i></p>'
    assert with_code("<b> with --lr 0.5 & more") == (
        "&lt;b&gt; with <code>--lr 0.5</code> &amp; more"
    )
    assert with_code("with --model linear --sample 50:") == (
        "with <code>--model linear</code> <code>--sample 50</code>:"
    )


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("{{ nobody_gave_this }}")


def test_lines_of_a_template_are_joined_without_a_space() -> None:
    template = """
<b>
{{ one }}</b>
 <i>
</i>
"""
    assert render(template, one=1) == "<b>1</b> <i></i>"


TONES = ("alarm", "warn", "mild", "calm", "grey")


def colors(scheme: str) -> dict[str, str]:
    """Return the colours of the light page, the dark one, or paper."""
    light, dark, on_paper = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#\w+);", light))
    more = {"light": "", "dark": dark, "paper": on_paper}[scheme]
    return found | dict(re.findall(r"--([\w-]+): (#\w+);", more))


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2."""
    code = color[1:] if len(color) == 7 else "".join(c + c for c in color[1:])
    parts = [int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark", "paper"])
def test_words_and_lines_have_contrast_with_what_is_behind_them(scheme: str) -> None:
    known = colors(scheme)
    words = ("ink", "soft", "link", *TONES)
    behind = ("paper", "sheet", "shade")
    pairs = [(one, other) for one in words for other in behind]
    pairs += [(one, f"{one}-wash") for one in TONES] + [("ink", f"{one}-wash") for one in TONES]
    assert [p for p in pairs if contrast(known[p[0]], known[p[1]]) < 4.5] == []
    lines = ("c0", "c1", "c2", "c3", "c4", "c5", "ref")
    assert [one for one in lines if contrast(known[one], known["sheet"]) < 3] == []


def test_classes_of_templates_have_a_look() -> None:
    folders = (ROOT / "fl_app/report", ROOT / "fl_app/sweep")
    texts = [path.read_text(encoding="utf-8") for one in folders for path in one.glob("*.py")]
    used = {
        name
        for text in texts
        for names in re.findall(r'class="([a-z -]+)"', text)
        for name in names.split()
    }
    assert "alias" in used
    known = "".join(texts)  # the sheet for data protection has some of its own
    assert [n for n in sorted(used) if not re.search(rf"\.{n}\b", STYLE + known)] == []


def test_the_name_of_a_run_ends_neither_the_foot_of_a_sheet_nor_the_style() -> None:
    name = """a"; } * { display: none } </style><script>é"""
    page = document("title", name, Markup("<p>first</p>"), stamp="today")
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    [foot] = re.findall(r'@bottom-left \{ content: "([^"]*)"', style)
    said = re.sub(r"\\([0-9a-f]{6})", lambda found: chr(int(found[1], 16)), foot)
    assert said == f"Leakmeter {name} · today"
    assert "display: none } <" not in style
