"""Templates of the page, and the small parts that all of them use: numbers, icons, pictures.

Templates are Python strings for Jinja2, each next to what fills it in: Flower's bundle carries no
other files. Text is escaped unless it is `Markup`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from leakmeter.auditors import wording
from leakmeter.auditors.finding import Finding, Kind
from leakmeter.auditors.reconstruction.inversion import FOLDER
from leakmeter.auditors.reconstruction.picture import SIGNATURE, caption_of
from leakmeter.auditors.verdict import labels, meaning
from leakmeter.auditors.verdict.labels import SEVERITIES
from leakmeter.auditors.verdict.verdict import Severity
from leakmeter.fl_app.report.draw.figure import Figure, Marker
from leakmeter.fl_app.report.draw.layout import Drawing, key, layout

Tone = Literal["alarm", "warn", "mild", "calm", "good", "grey"]

_OCTAGON = "M5.300 1.500h5.400l3.800 3.800v5.400l-3.800 3.800h-5.400l-3.800-3.800v-5.400z"
_WARNING = "M8 1.500L15 14H1zM8 6v4M8 11.800v.3"
_DIAMOND = "M8 1.500L14.500 8L8 14.500L1.500 8zM8 5v3.500M8 10.800v.3"
_LENS = "M7 2a5 5 0 1 1 0 10A5 5 0 0 1 7 2zM10.500 10.500L15 15"
# How severity looks: a colour and an icon, always next to the words that say the same.
_LOOKS: Final[dict[Severity, tuple[Tone, str]]] = {
    "refuted": ("alarm", f"{_OCTAGON}M8 4.500v4.200M8 11v.3"),
    "rebuilt": ("alarm", f"{_OCTAGON}M8 4.500v4.200M8 11v.3"),
    "certain": ("alarm", f"{_OCTAGON}M8 4.500v4.200M8 11v.3"),
    "shown": ("warn", _WARNING),
    "suspected": ("mild", _DIAMOND),
    "open": ("grey", _LENS),
    "bounded": ("calm", "M8 1.500l6 2.500v4c0 3.500-2.500 5.500-6 7c-3.500-1.500-6-3.500-6-7v-4z"),
}
_SHAPES: Final[dict[Marker, str]] = {
    "circle": "M-3.400 0a3.400 3.400 0 1 1 6.800 0a3.400 3.400 0 1 1 -6.800 0z",
    "square": "M-3.200 -3.200h6.400v6.400h-6.400z",
    "triangle": "M0 -4.400l4.200 7.400h-8.400z",
    "diamond": "M0 -4.600l4.600 4.600l-4.600 4.600l-4.600 -4.600z",
    "right": "M0 -6l8 6l-8 6z",
    "left": "M0 -6l-8 6l8 6z",
}
_MAX_BYTES, _MAX_PICTURES = 400_000, 12  # of a picture, of a folder
DASH: Final = Markup('<span class="none">–</span>')

# A chart, or a strip in a row of a table, which says the same in words. Only what is in `plot` is
# stretched to the width of the card: see `draw.layout`. Sizes are attributes of SVG elements: the
# page's policy allows no style outside its one sheet.
_DRAWING = """
<svg class="{{ "chart" if f else "strip" }}"{% if f %} id="{{ f.name }}"{% endif %}
 height="{{ d.height }}"{% if not f %} aria-hidden="true"{% endif %}>
{% if f %}<g role="img" aria-labelledby="{{ f.name }}-title {{ f.name }}-desc">
<title id="{{ f.name }}-title">{{ f.title }}</title><desc id="{{ f.name }}-desc">{{ f.text }}</desc>
{% endif %}
<svg class="plot" viewBox="0 0 1000 {{ d.height }}" preserveAspectRatio="none"
 width="100%" height="{{ d.height }}">
{% for one in d.strokes %}
<path d="{{ one.path }}" class="{{ one.look }}"
{% if one.dash %} stroke-dasharray="{{ one.dash }}"{% endif %}/>
{% endfor %}</svg>
{% for one in d.texts %}
<text {% if one.is_upright %}transform="translate({{ one.by }} {{ one.y }}) rotate(-90)"
{% else %}x="{{ one.x / 10 }}%" dx="{{ one.by }}" y="{{ one.y }}"{% endif %}
 text-anchor="{{ one.anchor }}"{% if one.look %} class="{{ one.look }}"{% endif %}>
{{ one.words }}</text>
{% endfor %}
{% if f %}</g><g class="points" role="group"
 aria-label="Points of: {{ f.title }}. Arrow keys go from one to the next.">{% endif %}
{% for one in d.marks %}
<svg x="{{ (one.x / 10)|round(2) }}%" y="{{ one.y }}" class="pt {{ one.look }}"
{% if f %} tabindex="{{ 0 if loop.first else -1 }}" role="img"
 aria-label="{{ one.words }}"><circle r="9" class="hit"/>{% else %}>{% endif %}
<path class="mark" d="{{ shapes[one.marker] }}"/></svg>
{% endfor %}{% if f %}</g>{% endif %}</svg>
"""
_FRAMED = """
<div class="drawn"><svg width="{{ d.left }}" height="1" aria-hidden="true"></svg>{{ drawing }}
<svg width="{{ d.right }}" height="1" aria-hidden="true"></svg></div>
"""
_FIGURE = """
<figure><{{ heading }}>{{ f.title }}</{{ heading }}>
{% if f.question %}<p class="asked">{{ f.question }}</p>{% endif %}
{% if f.sentence %}<p>{{ f.sentence }}</p>{% else %}
{% if f.series|length > 1 %}<ul class="legend">
{% for one in f.series %}<li>{{ one|swatch }}<span>{{ one.label }}</span></li>{% endfor %}</ul>
{% endif %}
{{ f|framed }}<figcaption>{{ f.caption }}</figcaption>
{% if f.series %}<details><summary>Values</summary>
<div class="scroll" tabindex="0" role="group" aria-label="Values of: {{ f.title }}">
<table><caption>Values of: {{ f.title }}</caption>
<thead><tr><th scope="col">line</th><th scope="col">{{ f.x.label }}</th>
<th scope="col">{{ f.y.label }}</th>
{% if has_band %}<th scope="col">band from</th><th scope="col">to</th>{% endif %}</tr></thead>
<tbody>{% for line, x, y, low, high in f.values() %}<tr><th scope="row">{{ line.label }}</th>
<td>{{ x|exact }}</td><td>{{ y|exact(line.kind) }}</td>
{% if has_band %}
<td>{% if low is not none %}{{ low|exact }}{% endif %}</td>
<td>{% if high is not none %}{{ high|exact }}{% endif %}</td>
{% endif %}</tr>{% endfor %}</tbody></table></div></details>{% endif %}
{% endif %}</figure>
"""


def render(template: str, /, **values: Any) -> Markup:
    """Return a template, filled in."""
    return Markup(_compiled(template).render(values))


@cache
def _compiled(template: str) -> Template:
    # A new line in a template is there for its reader; a space on the page is written as one.
    return _environment().from_string(template.replace("\n", ""))


@cache
def _environment() -> Environment:
    made = Environment(autoescape=True, undefined=StrictUndefined)
    parts = (data, exact, exact_claim, command_line, with_code, icon, badge, tone, framed, swatch)
    made.filters.update({one.__name__: one for one in parts})
    made.globals.update(dash=DASH, labels=labels, meaning=meaning, wording=wording)
    return made


def figure(one: Figure, heading: str = "h3") -> Markup:
    """Return a figure with its legend, caption and values, under a heading that fits its place."""
    has_band = any(bool(line.low) for line in one.series)
    return render(_FIGURE, f=one, heading=heading, has_band=has_band)


def framed(one: Figure) -> Markup:
    """Return the drawing of a figure, with room for its words on both sides."""
    return render(_FRAMED, d=layout(one), drawing=chart(one))


def chart(one: Figure) -> Markup:
    """Return the drawing of a figure; its words reach into the margins."""
    return render(_DRAWING, f=one, d=layout(one), shapes=_SHAPES)


def strip(drawing: Drawing) -> Markup:
    """Return a drawing in a row of a table."""
    return render(_DRAWING, f=None, d=drawing, shapes=_SHAPES)


def swatch(series: Any) -> Markup:
    """Return a sample of a line."""
    return strip(key(series))


def tone(severity: Severity) -> Tone:
    """Return the colour of a severity."""
    return _LOOKS[severity][0]


def icon(severity: Severity) -> Markup:
    """Return the icon; the words next to it say the same, so it has no name."""
    shape = _LOOKS[severity][1]
    return Markup(
        '<svg viewBox="0 0 16 16" class="icon" aria-hidden="true"><path d="{}"/></svg>'
    ).format(shape)


def badge(severity: Severity) -> Markup:
    """Return icon and words of a severity."""
    return Markup('<span class="badge {}">{}{}</span>').format(
        tone(severity), icon(severity), SEVERITIES[severity]
    )


def data(number_: float, words: str) -> Markup:
    """Return words, which carry their exact number for programs."""
    # Thousands of times on a page: `Markup.format` would take ten times as long.
    return Markup(f'<data value="{number_!r}">{escape(words)}</data>')


def exact(fact: float | str | bool, kind: Kind | None = None) -> Markup | str:
    """Return a number to read, which carries the exact one for programs; others in words."""
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, str):
        return fact
    words = f"{fact:,}" if isinstance(fact, int) else wording.number(fact, kind=kind)
    return data(fact, words)


def exact_claim(finding: Finding) -> Markup:
    """Return a claim that carries its exact number."""
    return data(finding.value, wording.claim(finding))


def command_line(text: str) -> Markup:
    """Return a command whose lines break only before an option, never within one.

    >>> command_line("leakmeter --lr 1")
    Markup('<code><span>leakmeter</span> <span>--lr 1</span></code>')
    """
    head, *options = text.split(" --")
    spans = [Markup("<span>{}</span>").format(one) for one in (head, *(f"--{o}" for o in options))]
    return Markup("<code>{}</code>").format(Markup(" ").join(spans))


def with_code(words: str) -> Markup:
    """Return a sentence with its options and their values set as code, which does not break."""
    pieces = re.split(r"(--noise [a-z]+|--[a-z0-9-]+(?: \d[\d.e-]*\b)?)", words)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(p) if p.startswith("--") else p for p in pieces)


def pictures(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield source, name and caption of the PNG files in a folder; large ones are only named."""
    paths = sorted(folder.glob("*.png"))
    where = folder.parent.name if folder.name == FOLDER else folder.name
    for path in paths[:_MAX_PICTURES]:
        content, words = path.read_bytes(), f"{path.stem} ({where})"
        if not content.startswith(SIGNATURE):
            continue
        if len(content) > _MAX_BYTES:
            yield "", words, f"{words} is too large for this page: {path.name}"
            continue
        told = caption_of(content)
        source = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
        yield source, words, f"{where}: {told}" if told else words
    if (left := len(paths) - _MAX_PICTURES) > 0:
        yield "", "", f"{wording.counted(left, 'further picture')} in {folder.name}/"
