"""Text never becomes markup, and a template that misses a value is no page."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from leakmeter.fl_app.report.template import render, with_code


def test_text_is_escaped_and_markup_is_not() -> None:
    made = render('<p title="{{ a }}">{{ b }}{{ c }}</p>', a='"x"', b="<b>", c=Markup("<i></i>"))
    assert made == '<p title="&#34;x&#34;">&lt;b&gt;<i></i></p>'
    assert with_code("<b> with --lr 0.5 & more") == (
        "&lt;b&gt; with <code>--lr 0.5</code> &amp; more"
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
