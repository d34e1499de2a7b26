"""HTML from Python calls: text is escaped unless it is markup already."""

from __future__ import annotations

import math
from html import escape

from leakmeter.auditors.finding import Finding, Kind
from leakmeter.auditors.wording import claim, is_nothing, number, share, value

_VOID = {"meta", "img", "br"}


class Markup(str):
    """Text that is HTML already, and goes into a page unchanged."""

    __slots__ = ()


_Content = str | Markup | None
_Attribute = str | int | float | bool | None


def tag(name: str, /, *content: _Content, **attributes: _Attribute) -> Markup:
    """Return an element; None in the content or as an attribute is left out.

    Attributes are written with underscores for hyphens; one underscore at the end is dropped, as
    in `class_`. True writes the name alone.

    >>> tag("td", "a < b", class_="x", data_value=1)
    '<td class="x" data-value="1">a &lt; b</td>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(*content)}</{name}>")


def joined(*content: _Content) -> Markup:
    """Return pieces one after the other."""
    return Markup("".join(_escaped(piece) for piece in content if piece is not None))


def command_line(text: str) -> Markup:
    """Return a command whose lines break only before an option, never within one.

    >>> command_line("leakmeter --lr 1")
    '<code><span>leakmeter</span> <span>--lr 1</span></code>'
    """
    head, *options = text.split(" --")
    words = [head, *(f"--{option}" for option in options)]
    spans = [tag("span", one) for one in words]
    return tag("code", spans[0], *(piece for one in spans[1:] for piece in (" ", one)))


def exact(count: float | int, kind: Kind | None = None) -> Markup:
    """Return a number to read, which carries the exact one for programs."""
    words = f"{count:,}" if isinstance(count, int) else number(count, kind=kind)
    return tag("data", words, value=repr(count))


def exact_share(share_: float) -> Markup:
    """Return a share such as an accuracy, which carries the exact one."""
    return tag("data", share(share_), value=repr(share_))


def exact_value(finding: Finding) -> Markup:
    """Return the value of a finding as it is printed everywhere, which carries the exact one."""
    return tag("data", value(finding), value=repr(finding.value))


def exact_claim(bound: Finding, upper: Finding | None = None) -> Markup:
    """Return a claim that carries its exact number; with a guarantee, both ends in one row."""
    if upper is None:
        return tag("data", claim(bound), value=repr(bound.value))
    words = "nothing" if is_nothing(bound) else claim(bound)
    shown = tag("data", words, value=repr(bound.value))
    done = " guaranteed" if math.isfinite(upper.value) else None
    return joined(shown, " shown … ", exact_claim(upper), done)


def _escaped(piece: str) -> str:
    return str(piece) if isinstance(piece, Markup) else escape(piece, quote=True)


def _attribute(key: str, value: _Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(text, quote=True)}"'
