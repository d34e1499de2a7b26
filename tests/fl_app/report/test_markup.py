"""Text never becomes markup."""

from __future__ import annotations

from leakmeter.fl_app.report.markup import Markup, joined, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "<b>", Markup("<i></i>"), title='"x"') == (
        '<p title="&quot;x&quot;">&lt;b&gt;<i></i></p>'
    )
    assert joined("a&b", None, tag("br")) == "a&amp;b<br>"
    assert tag("td", hidden=True, class_=None, data_x=1.25) == '<td hidden data-x="1.25"></td>'
