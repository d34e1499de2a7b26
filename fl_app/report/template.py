"""Templates of the page and the small parts that all of them use; its look, and its script.

Templates are Python strings for Jinja2, each next to what fills it in: Flower's bundle carries no
other files. Text is escaped unless it is `Markup`.

The look is light and dark, for screen and paper. Series colours are Okabe and Ito's (2008), which
colour-blind people can distinguish, darkened or lightened for contrast with the page. Without the
script the page loses only tips and arrow keys: values are also in tables, and nothing is fetched.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from leakmeter.auditors import wording
from leakmeter.auditors.finding import Finding, Kind
from leakmeter.auditors.reconstruction.inversion import FOLDER, SIGNATURE, caption_of
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.labels import SEVERITIES, Tone
from leakmeter.auditors.verdict.verdict import Severity
from leakmeter.fl_app.report.figure import Canvas, Figure, Marker, key, layout

_OCTAGON = "M5.300 1.500h5.400l3.800 3.800v5.400l-3.800 3.800h-5.400l-3.800-3.800v-5.400z"
_WARNING = "M8 1.500L15 14H1zM8 6v4M8 11.800v.3"
_DIAMOND = "M8 1.500L14.500 8L8 14.500L1.500 8zM8 5v3.500M8 10.800v.3"
_LENS = "M7 2a5 5 0 1 1 0 10A5 5 0 0 1 7 2zM10.500 10.500L15 15"
# The icon of a severity, always next to the words that say the same.
_ICONS: Final[dict[Tone, str]] = {
    "alarm": f"{_OCTAGON}M8 4.500v4.200M8 11v.3",
    "warn": _WARNING,
    "mild": _DIAMOND,
    "grey": _LENS,
    "calm": "M8 1.500l6 2.500v4c0 3.500-2.500 5.500-6 7c-3.500-1.500-6-3.500-6-7v-4z",
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
{{ f|frame }}<figcaption>{{ f.caption }}</figcaption>
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
    parts = (data, exact, exact_claim, command_line, with_code, icon, badge, tone, frame, swatch)
    made.filters.update({one.__name__: one for one in parts})
    made.globals.update(dash=DASH, labels=labels, sentences=sentences, wording=wording)
    return made


def figure(one: Figure, heading: str = "h3") -> Markup:
    """Return a figure with its legend, caption and values, under a heading that fits its place."""
    has_band = any(bool(line.low) for line in one.series)
    return render(_FIGURE, f=one, heading=heading, has_band=has_band)


def frame(one: Figure) -> Markup:
    """Return the drawing of a figure, with room for its words on both sides."""
    return render(_FRAMED, d=layout(one), drawing=chart(one))


def chart(one: Figure) -> Markup:
    """Return the drawing of a figure; its words reach into the margins."""
    return render(_DRAWING, f=one, d=layout(one), shapes=_SHAPES)


def strip(drawing: Canvas) -> Markup:
    """Return a drawing in a row of a table."""
    return render(_DRAWING, f=None, d=drawing, shapes=_SHAPES)


def swatch(series: Any) -> Markup:
    """Return a sample of a line."""
    return strip(key(series))


def tone(severity: Severity) -> Tone:
    """Return the colour of a severity."""
    return SEVERITIES[severity][1]


def icon(severity: Severity) -> Markup:
    """Return the icon; the words next to it say the same, so it has no name."""
    shape = _ICONS[tone(severity)]
    return Markup(
        '<svg viewBox="0 0 16 16" class="icon" aria-hidden="true"><path d="{}"/></svg>'
    ).format(shape)


def badge(severity: Severity) -> Markup:
    """Return icon and words of a severity."""
    return Markup('<span class="badge {}">{}{}</span>').format(
        tone(severity), icon(severity), SEVERITIES[severity][0]
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


_WORDED = "--(?:noise|clip-norm|model|target-adjacency|auditors)"  # options whose values are words


def with_code(words: str) -> Markup:
    """Return a sentence with its options and their values set as code, which does not break."""
    pieces = re.split(rf"({_WORDED} [a-z][a-z-]*|--[a-z0-9-]+(?: \d[\d.e-]*\b)?)", words)
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


STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --sheet: #ffffff; --ink: #14181f; --soft: #525c69; --rule: #dfe3e8;
  --link: #0b5cad; --shade: #eef1f5;
  --c0: #0072b2; --c1: #c2500a; --c2: #00795a; --c3: #a8497f; --c4: #6a51a3; --c5: #8a6d00;
  --ref: #6b7580;
  --alarm: #b3261e; --warn: #a8470a; --mild: #7a5900; --calm: #3d5a80; --grey: #525c69;
  --alarm-wash: #fdecea; --warn-wash: #fdf0e4; --mild-wash: #fbf4dc; --calm-wash: #e9eff7;
  --grey-wash: #eef1f5;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #0f1216; --sheet: #171b21; --ink: #e9ecf0; --soft: #a3adb9; --rule: #2b323b;
    --link: #7ab8f5; --shade: #1f252d;
    --c0: #56b4e9; --c1: #f28e4b; --c2: #2fc39c; --c3: #e29bc4; --c4: #b5a3e6; --c5: #e2c14d;
    --ref: #8d979f;
    --alarm: #ff9d94; --warn: #ffb27a; --mild: #e8c95a; --calm: #9dc0ea; --grey: #a3adb9;
    --alarm-wash: #341a1a; --warn-wash: #32210f; --mild-wash: #2c2610; --calm-wash: #1a2533;
    --grey-wash: #1f252d;
  }
}
.alarm { --tone: var(--alarm); --wash: var(--alarm-wash); }
.warn { --tone: var(--warn); --wash: var(--warn-wash); }
.mild { --tone: var(--mild); --wash: var(--mild-wash); }
.calm { --tone: var(--calm); --wash: var(--calm-wash); }
.grey { --tone: var(--grey); --wash: var(--grey-wash); }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: break-word;
}
a { color: var(--link); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 4px; }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 1rem; top: .5rem; background: var(--sheet); padding: .4rem .8rem; z-index: 3; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
header, main, footer { max-width: 1160px; margin: 0 auto; padding: 0 1.5rem; }
.brand { margin: 0; padding: .8rem 0 .7rem; font-size: .82rem; color: var(--soft); }
.brand strong { color: var(--ink); font-weight: 650; }
.brand .run::before { content: "·"; margin-right: .4em; }
h1 { font-size: 1.3rem; line-height: 1.25; margin: 0; letter-spacing: -.014em; font-weight: 640;
  text-wrap: balance; }
h2 { font-size: .95rem; line-height: 1.3; margin: 0; font-weight: 640; }
h3 { font-size: .95rem; line-height: 1.35; margin: 0; font-weight: 620; }
.keys h3 { font-size: .82rem; margin: 1.2rem 0 .3rem; }
.eyebrow { font-size: .76rem; color: var(--soft); margin: 0 0 .35rem; }
.note, figcaption, .how, small { color: var(--soft); }
.note { font-size: .86rem; max-width: 46rem; margin: .6rem 0 0; }
.icon { width: 1.05em; height: 1.05em; flex: none; fill: none; stroke: currentColor;
  stroke-width: 1.7; stroke-linecap: round; stroke-linejoin: round; }

.hero { display: flex; gap: .95rem; align-items: flex-start; padding: .7rem 1.2rem .75rem;
  background: var(--wash); border-radius: 12px; }
.hero > .icon { width: 2.1rem; height: 2.1rem; color: var(--tone); stroke-width: 1.3;
  margin-top: .15rem; }
.level { margin: 0 0 .1rem; font-size: .78rem; font-weight: 650; color: var(--tone); }
.hero h1 + p { margin: .25rem 0 0; font-size: .88rem; }
.level::first-letter { text-transform: uppercase; }
p.warn { margin: .5rem 0 0; padding: .45rem .8rem; font-size: .86rem; background: var(--warn-wash);
  border-left: 3px solid var(--tone); border-radius: 4px; }
.facts { display: grid; grid-template-columns: repeat(7, auto); gap: 0; margin: .55rem 0 0;
  background: var(--sheet); border: 1px solid var(--rule); border-radius: 12px; }
.facts div { padding: .45rem .75rem .5rem; border-left: 1px solid var(--rule); min-width: 0; }
.facts div:first-child { border-left: 0; }
.facts dt { font-size: .76rem; color: var(--soft); }
.facts dd { margin: 0; font-weight: 620; font-size: .95rem; line-height: 1.35; }
.facts div:not(:nth-child(2)) { min-width: min-content; }
.facts div:not(:nth-child(2)) span { white-space: nowrap; }
.columns { display: grid; grid-template-columns: minmax(0, 1.6fr) minmax(0, 1.1fr); gap: .7rem;
  margin-top: .55rem; }
.attackers, .actions { background: var(--sheet); border: 1px solid var(--rule);
  border-radius: 12px; padding: .8rem 1.1rem .6rem; min-width: 0; }
.row { display: grid; grid-template-columns: 12.6rem minmax(0, 1fr) 13.6rem; gap: .8rem;
  align-items: center; padding: .26rem 0; border-top: 1px solid var(--rule); }
.row.axis { border: 0; padding: .5rem 0 .25rem; font-size: .74rem; color: var(--soft); }
.row small { display: block; font-size: .78rem; line-height: 1.35; }
.row strong { font-weight: 620; font-size: .9rem; line-height: 1.35; }
.who > span { display: grid; grid-template-columns: auto 1fr; column-gap: .5rem; }
.who .icon { color: var(--tone); margin-top: .2rem; } .who small { grid-column: 2; }
.what strong { color: var(--tone); display: block; }
.scale { width: 100%; height: 1.1rem; }
.bar { position: relative; height: .72rem; border-radius: 99px; background: var(--shade);
  overflow: hidden; display: block; }
.bar svg { position: absolute; left: 0; top: 0; height: 100%; }
.bar .shown { background: var(--tone); border-radius: 99px; min-width: .3rem; }
.bar .open { opacity: .3; background: repeating-linear-gradient(115deg, var(--tone) 0 2px,
  transparent 2px 6px); }
.bar .limit { border-right: 3px solid var(--ink); }
.actions ol { margin: .35rem 0 0; padding: 0; list-style: none; counter-reset: step; }
.actions li { counter-increment: step; padding: .4rem 0 .4rem 1.9rem; position: relative;
  font-size: .88rem; line-height: 1.4; }
.actions li + li { border-top: 1px solid var(--rule); }
.actions li::before { content: counter(step); position: absolute; left: 0; top: .4rem;
  width: 1.3rem; height: 1.3rem; border-radius: 99px; background: var(--shade); text-align: center;
  font-size: .76rem; line-height: 1.3rem; font-weight: 650; }
.actions p { margin: 0; }
.actions pre { margin: .35rem 0 0; padding: .4rem .6rem; font-size: .76rem; line-height: 1.45; }
.term { font: inherit; color: inherit; background: none; border: 0; padding: 0; margin: 0;
  cursor: help; text-decoration: underline dotted; text-underline-offset: .2em; text-align: left; }

#figures { margin-top: 1.6rem; }
.fold { margin-top: .7rem; background: var(--sheet); border: 1px solid var(--rule);
  border-radius: 12px; padding: 0 1.1rem; }
.fold > summary { list-style: none; display: flex; align-items: baseline; gap: .7rem; width: auto;
  padding: .75rem 0; color: var(--ink); }
.fold > summary::-webkit-details-marker { display: none; }
.fold > summary::before { content: ""; width: .42rem; height: .42rem; flex: none;
  border: solid var(--soft); border-width: 0 2px 2px 0;
  transform: translateY(-.1rem) rotate(-45deg); transition: transform .12s; }
.fold[open] > summary::before { transform: translateY(-.15rem) rotate(45deg); }
.fold > :last-child { margin-bottom: 1.1rem; } .fold > summary:last-child { margin-bottom: 0; }
#figures + .fold, .first + .fold, .compared + .fold { margin-top: 1.6rem; }
.about { font-size: .82rem; color: var(--soft); }
.cards { display: grid; gap: .9rem; margin-top: .9rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); }
.card { border: 1px solid var(--rule); border-left: 4px solid var(--tone);
  border-radius: 8px; padding: .9rem 1.1rem 1rem; min-width: 0; }
.badge { display: inline-flex; align-items: center; gap: .4em; font-size: .8rem; font-weight: 640;
  color: var(--tone); margin-bottom: .35rem; }
.badge::first-letter { text-transform: uppercase; }
.card dl { margin: .6rem 0 0; font-size: .88rem; }
.card dt { font-size: .76rem; color: var(--soft); margin-top: .6rem; }
.card dd { margin: .1rem 0 0; }
.card dd p { margin: 0 0 .4rem; }
.card ul { margin: .1rem 0 0; padding-left: 1.1rem; }
.card code, .actions p code { white-space: nowrap; }
.figures { display: grid; gap: .7rem; margin-top: .6rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }
.figures:has(> :only-child) { grid-template-columns: minmax(0, 35rem); }
figure { margin: 0; background: var(--sheet); border: 1px solid var(--rule); border-radius: 12px;
  padding: .9rem 1.1rem; min-width: 0; }
figure > p { font-size: .9rem; margin: .5rem 0 0; }
.asked, figure > .asked { color: var(--soft); font-size: .86rem; margin: .1rem 0 0; }
figcaption { font-size: .82rem; line-height: 1.45; margin-top: .5rem; }
figure img { max-width: 100%; height: auto; image-rendering: pixelated; background: #fff; }
svg { display: block; overflow: visible; }
svg text { font-size: 12px; fill: var(--soft); }  /* drawings are not scaled: see draw/layout.py */
svg .label { fill: var(--ink); }
.drawn { display: flex; margin-top: .6rem; } .drawn > svg { flex: none; }
.drawn > .chart { flex: 1 1 0; min-width: 0; max-width: 32rem; }
.strip { margin-left: 12px; width: calc(100% - 24px); }
.plot path { vector-effect: non-scaling-stroke; }
.grid { stroke: var(--rule); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; fill: none; }
.row.axis { stroke: none; }
.c0 { --ink-of: var(--c0); } .c1 { --ink-of: var(--c1); } .c2 { --ink-of: var(--c2); }
.c3 { --ink-of: var(--c3); } .c4 { --ink-of: var(--c4); } .c5 { --ink-of: var(--c5); }
.ref { --ink-of: var(--ref); }
.line { fill: none; stroke: var(--ink-of); stroke-width: 2; stroke-linejoin: round; }
.line.ref { stroke-width: 1.6; }
.area { fill: var(--ink-of); fill-opacity: .16; stroke: none; }
.area.ref { fill-opacity: .26; }
.mark { fill: var(--sheet); stroke: var(--ink-of); stroke-width: 2; }
.hit { fill: transparent; }
.pt { outline: none; }
.quiet .mark { opacity: 0; }
.pt.at .mark, .pt:focus .mark { opacity: 1; fill: var(--ink-of); }
.pt:focus-visible .hit { stroke: var(--link); stroke-width: 2; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; padding: 0;
  margin: .5rem 0 0; font-size: .82rem; }
.legend li { display: flex; align-items: center; gap: .45rem; }
.legend svg { width: 30px; margin: 0; flex: none; }
#tip { position: fixed; pointer-events: none; z-index: 2; background: var(--ink);
  color: var(--paper); font-size: .82rem; line-height: 1.4; padding: .4rem .65rem;
  border-radius: 6px; max-width: 24rem; white-space: pre-line; }
details { margin-top: .7rem; }
summary { cursor: pointer; font-size: .86rem; color: var(--link); width: fit-content; }
figure details { font-size: .84rem; margin-top: .6rem; }
.scroll { overflow-x: auto; max-width: 100%; }
figure .scroll { max-height: 18rem; overflow-y: auto; }
table { border-collapse: collapse; font-size: .86rem; line-height: 1.4; width: 100%;
  margin-top: .6rem; }
caption { text-align: left; font-size: .84rem; color: var(--soft); padding-bottom: .4rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .8rem .45rem 0;
  border-bottom: 1px solid var(--rule); font-weight: 400; }
thead th { font-size: .78rem; color: var(--soft); vertical-align: bottom; white-space: nowrap; }
figure thead th { white-space: normal; } tbody th { font-weight: 600; }
tbody tr:last-child > * { border-bottom: 0; }
th small, td small { display: block; font-weight: 400; font-size: .8rem; }
.findings .how { min-width: 15rem; } .findings thead th { white-space: normal; }
  .findings td { font-size: .84rem; }
.findings .value { font-weight: 640; } .none { color: var(--soft); }
.tag { display: block; font-size: .76rem; color: var(--warn); font-weight: 600; }
.forest td { border-bottom: 0; padding-block: .28rem; } .forest tbody th { padding-top: 1.1rem; }
.forest .wide { width: 44%; } .forest .how { font-size: .82rem; } .number { font-weight: 640; }
.compared { background: var(--sheet); border: 1px solid var(--rule); border-radius: 12px;
  padding: 1rem 1.2rem; }
.compared h1 { margin-bottom: .9rem; }
.compared + .compared { margin-top: .7rem; }
.pair { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1.15fr); gap: 1.6rem;
  align-items: start; }
.pair figure { border: 0; padding: 0; } .pair > * { min-width: 0; }
.alias { padding: 0 .35rem; border-radius: 6px; background: var(--shade); font-weight: 650; }
.compare th, .compare td { min-width: 7.5rem; } .compare tbody th { max-width: 20rem; }
.compare thead th { font-size: .86rem; color: var(--ink); }
.compare data { white-space: normal; } .pair td:nth-child(n+3) { white-space: nowrap; }
.pair td small { white-space: normal; }
.cards + h3 { margin-top: 1.4rem; }
data { white-space: nowrap; }
.plain { list-style: none; margin: 0; padding: 0; }
.keys dl { display: grid; grid-template-columns: auto 1fr; gap: .2rem .8rem; margin: 0;
  font-size: .82rem; color: var(--soft); }
.keys dt { font-weight: 600; color: var(--ink); } .keys dd { margin: 0; }
.pairs { width: auto; } .pairs th { font-weight: 400; color: var(--soft); }
pre { background: var(--shade); border-radius: 6px; margin: .5rem 0 0;
  padding: .6rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .82rem; }
pre code span { display: inline-block; max-width: 100%; white-space: pre-wrap; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; font-size: .94em; }
footer { margin-top: 2rem; padding-block: .8rem 2rem; font-size: .82rem; color: var(--soft); }
@media (max-width: 900px) {
  .columns, .pair { grid-template-columns: minmax(0, 1fr); }
}
@media (max-width: 640px) {
  header, main, footer { padding-inline: .8rem; }
  .brand { padding: .6rem 0; } h1 { font-size: 1.16rem; }
  .hero { padding: .8rem .9rem .9rem; gap: .7rem; } .hero > .icon { width: 1.6rem; height: 1.6rem; }
  .facts { grid-template-columns: 1fr 1fr; padding: .25rem 0; }
  .facts div { border: 0; padding: .25rem .9rem; } .facts dd { font-size: .9rem; }
  .attackers, .actions, .fold, .compared { padding-inline: .9rem; }
  .row { grid-template-columns: minmax(0, 1fr) auto; gap: .3rem .8rem; }
  .row .bar, .row .scale { grid-column: 1 / -1; grid-row: 2; }
  .row.axis { grid-template-columns: minmax(0, 1fr); padding-bottom: .1rem; }
  .row.axis .what { display: none; } .row .what { text-align: right; }
  figure { padding: .8rem .7rem; } .card { padding-inline: .8rem; }
  .forest thead { display: block; } .forest thead th { display: none; }
  .forest thead th.wide { display: block; }
  .forest tr { display: block; padding: .35rem 0; border-bottom: 1px solid var(--rule); }
  .forest thead tr { border: 0; }
  .forest td, .forest th { display: block; border: 0; padding: .1rem 0; }
  .forest .wide { width: 100%; }
}
@media print {
  @page { size: A4; margin: 13mm 13mm 16mm;
    @bottom-right { content: counter(page) " / " counter(pages); font: 8pt system-ui; } }
  :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --rule: #bbb; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 9pt; line-height: 1.4; orphans: 3; widows: 3; }
  .skip, #tip, .drawn + figcaption + details, .fold > summary::before { display: none; }
  header, main, footer { max-width: none; padding-inline: 0; }
  h1 { font-size: 13pt; text-wrap: wrap; } .hero > .icon { width: 1.6rem; height: 1.6rem; }
  .facts { grid-template-columns: repeat(7, auto); } .facts div { padding: .3rem .5rem; }
  .facts dd { font-size: 8.5pt; } .columns { grid-template-columns: minmax(0, 1fr); gap: .5rem; }
  .row { grid-template-columns: 14rem minmax(0, 1fr) 13rem; }
  .attackers, .actions { padding: .5rem .9rem; }
  .fold { border: 0; padding: 0; margin-top: 1.1rem; } .fold > :last-child { margin-bottom: 0; }
  #figures { margin-top: 1rem; } .term { text-decoration: none; }
  figure, tr, .row, .actions li, .keys dd, .hero { break-inside: avoid; }
  h2, h3, .eyebrow, .badge, summary, caption, thead, .card dt { break-after: avoid; }
  .note { break-inside: avoid; } .note:has(+ .cards) { break-after: avoid; }
  .cards, .figures { display: block; columns: 2; column-gap: .8rem; }
  .card, figure { padding: .5rem .7rem; margin-bottom: .7rem; } figcaption { font-size: 7.8pt; }
  .card { box-decoration-break: clone; -webkit-box-decoration-break: clone; }
  .card, .card dl { font-size: 8.2pt; } .card dt { margin-top: .3rem; }
  .card .badge { display: flex; margin: 0; }
  .scroll { overflow: visible; } table { font-size: 7.6pt; } .findings td { font-size: 7.2pt; }
  th small, td small { font-size: 6.8pt; } a { color: inherit; }
  th, td { padding: .25rem .4rem .25rem 0; }
  .findings .how { min-width: 0; width: 42%; } .findings :is(thead th, .tag) { font-size: 6.4pt; }
  tr:has([scope="rowgroup"]) { break-after: avoid; }
  .legend { break-inside: avoid; break-after: avoid; }
  .forest thead { display: table-row-group; }  /* repeated, its axis would be drawn too wide */
  .forest td:first-child { width: 17%; } .forest .wide { width: 33%; }
  .forest .how, .keys dl { font-size: 7.4pt; } .forest tbody th { padding-top: .7rem; }
  .pairs, .pairs :is(caption, tbody) { display: block; }
  .pairs tbody { columns: 3; column-gap: 1.2rem; }
  .pairs tr { display: flex; justify-content: space-between; gap: .6rem; font-size: 7pt;
    border-bottom: 1px solid var(--rule); }
  .pairs :is(th, td) { border: 0; padding: .08rem 0; overflow-wrap: anywhere; text-align: right; }
  .compared { border: 0; padding: 0; } .pair { grid-template-columns: 1fr; gap: .6rem; }
  .compare th, .compare td { min-width: 0; } .pair td:nth-child(n+3) { white-space: normal; }
  footer { margin-top: 1rem; padding-block: .3rem 0; }
}
"""
SCRIPT = """
(() => {
  const tip = document.getElementById("tip");
  // Every line of a drawing at the place of a point, its own first.
  const beside = (one) => [one, ...one.parentNode.querySelectorAll(".pt")]
    .filter((other) => other.getAttribute("x") === one.getAttribute("x")).slice(0, 8);
  const words = (one) => one.dataset.tip ||
    [...new Set(beside(one).map((other) => other.getAttribute("aria-label")))].join("\\n");
  const show = (one) => {
    if (!one) return;
    tip.textContent = words(one);
    tip.hidden = false;
    const box = one.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const left = Math.min(Math.max(box.left + box.width / 2 - own.width / 2, 8),
      document.documentElement.clientWidth - own.width - 8);
    const above = box.top - own.height - 6;
    tip.style.left = left + "px";
    tip.style.top = (above > 4 ? above : box.bottom + 6) + "px";
    if (one.dataset.tip) one.setAttribute("aria-describedby", "tip");
    mark(one.closest(".points") ? beside(one) : []);
  };
  const mark = (points) => {
    for (const one of document.querySelectorAll(".pt.at")) one.classList.remove("at");
    for (const one of points) one.classList.add("at");
  };
  const hide = () => { tip.hidden = true; mark([]); };
  // Anywhere in a drawing the nearest point answers; what is above or below it counts less.
  const nearest = (drawing, e) => {
    const far = (one) => {
      const box = one.querySelector(".hit").getBoundingClientRect();
      const down = (box.top + box.bottom) / 2 - e.clientY;
      return Math.hypot((box.left + box.right) / 2 - e.clientX, down / 4);
    };
    const points = [...drawing.querySelectorAll(".pt")].map((one) => [far(one), one]);
    return points.reduce((best, one) => one[0] < best[0] ? one : best, [Infinity, null])[1];
  };
  const move = (group, from, step) => {
    const points = [...group.querySelectorAll(".pt")];
    const next = points[Math.min(Math.max(points.indexOf(from) + step, 0), points.length - 1)];
    if (!from || !next) return;
    from.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  };
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -1e9, End: 1e9 };
  // On the document: a browser makes a drawing that listens to keys itself a stop without a name,
  // and a live page exchanges its content.
  const at = (e) => e.target instanceof Element ? e.target.closest(".pt, [data-tip]") : null;
  const told = (e) => { const one = at(e); return one && words(one) ? one : null; };
  const drawn = (e) => e.target instanceof Element ? e.target.closest(".drawn") : null;
  document.addEventListener("pointerover", (e) => { if (told(e)) show(told(e)); });
  document.addEventListener("pointermove", (e) => { if (drawn(e)) show(nearest(drawn(e), e)); });
  document.addEventListener("pointerout", (e) => { if (told(e) || drawn(e)) hide(); });
  document.addEventListener("focusin", (e) => show(told(e)));
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (e) => {
    if (e.key === "Escape") hide();
    const from = at(e), group = from && from.closest(".points");
    if (!group || !(e.key in steps)) return;
    e.preventDefault();
    move(group, from, steps[e.key]);
  });
  // The tab key scrolls to what it reaches: the words of that stay, next to it.
  addEventListener("scroll", () => {
    const one = document.activeElement;
    if (!tip.hidden && one && one.matches(".pt, [data-tip]")) show(one); else hide();
  }, { passive: true });
  const reveal = () => {
    const one = document.getElementById(location.hash.slice(1));
    if (one instanceof HTMLDetailsElement) one.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
  document.documentElement.classList.add("ready");
})();
"""
