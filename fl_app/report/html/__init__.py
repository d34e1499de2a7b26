"""The page of a run: one file that fetches nothing, the verdict first, details folded.

This module puts it together; the others write one part each.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from markupsafe import Markup

from leakmeter.auditors.reconstruction.inversion import FOLDER
from leakmeter.auditors.run_log import REPORT, write_atomically
from leakmeter.auditors.wording import KINDS, counted
from leakmeter.fl_app.report import NAME
from leakmeter.fl_app.report.draw import figures
from leakmeter.fl_app.report.draw.figure import Figure
from leakmeter.fl_app.report.html.assets import SCRIPT, STYLE
from leakmeter.fl_app.report.html.compare import aliased, comparison
from leakmeter.fl_app.report.html.details import cards, forest, repeat, tables
from leakmeter.fl_app.report.html.first_screen import EPSILON, first_screen, stamped
from leakmeter.fl_app.report.html.template import figure, pictures, render
from leakmeter.fl_app.report.read import Run, read_runs

GENERATOR = "leakmeter report"
_HEIGHT = 760  # pixels of the first screen
_MAX_NAME = 60  # letters of a run's name at the foot of a sheet
_READING = (
    f"ε {EPSILON[0].lower()}{EPSILON[1:]} Numbers of different attackers, units (client, record) "
    "or adjacencies are not comparable. A null band contains 90 % of what the method says without "
    "a leak."
)
_DOCUMENT = """
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{{ generator }}">
<title>{{ title }}</title><style>{{ style }}</style></head>
<body><a href="#main" class="skip">Skip to the verdict</a>
<header><p class="brand"><strong>Leakmeter</strong> {{ kind }}
{% if name %} <span class="run">{{ name }}</span>{% endif %}</p></header>
{{ bar }}<main id="main">{{ first }}
{% if main %}
<section id="figures" aria-labelledby="figures-head"><h2 id="figures-head">The main figures</h2>
{{ main }}</section>{% endif %}
{% for name, head, about, content in folds %}
<details id="{{ name }}" class="fold" data-print><summary><h2>{{ head }}</h2>
<span class="about">{{ about }}</span></summary>{{ content }}</details>
{% endfor %}</main>
<footer><p>Made by Leakmeter from {{ source }}, which has the exact numbers. This page
 {{ "asks only the machine that serves it" if is_live else "fetches nothing" }}.</p></footer>
<div id="tip" role="tooltip" hidden></div><script>{{ script }}</script></body></html>
"""
_FIGURES = """
<div class="figures">{% for one in figures %}{{ figure(one) }}{% endfor %}</div>
"""
_PICTURES = """
<div class="figures">{% for source, words, caption in pictures %}
{% if source %}<figure class="picture"><img src="{{ source }}" alt="{{ words }}">
<figcaption>{{ caption }}</figcaption></figure>
{% else %}<p>{{ caption }}</p>{% endif %}
{% endfor %}</div>
"""
_KINDS = """
<p class="note">{{ words }}</p>
<table><caption>What each kind of number may be read as</caption><tbody>
{% for name, meaning in kinds %}<tr><th scope="row">{{ name }}</th><td>{{ meaning }}</td></tr>
{% endfor %}</tbody></table>
"""


Fold = tuple[str, str, str, Markup]  # id, heading, what it is about, content


class Live(NamedTuple):
    """What a page has on top of all others."""

    bar: Markup  # before the content
    style: str  # of the bar, or of the content
    script: str  # keeps a page that is served up to date: only such a page may ask its server


def leave_page(folder: Path, say: Callable[[str], None]) -> bool:
    """Write the page of a finished run into its folder, say where, and return whether it is there.

    A page that cannot be made must not cost the run: its numbers are on disk already.
    """
    try:
        path = Page(folder).path
    except Exception as error:
        say(f"no page was made, {type(error).__name__}: {error}; all numbers are in report.json")
        return False
    say(f"page: {path}")
    return True


class Page:
    """Writes the page of a run to `report.html` in its folder.

    At the end of a cell of a notebook it also shows the page.

    Args:
        folder: Folder of a run.

    Attributes:
        path: The file.

    Example:
        Page("runs/mine")
    """

    def __init__(self, folder: str | Path) -> None:
        self._html = page(read_runs([Path(folder)]))
        self.path = Path(folder).expanduser() / NAME
        write_atomically(self.path, self._html)

    def _repr_html_(self) -> str:
        """Return a frame with the page, whose style cannot reach the notebook."""
        frame = f'sandbox="allow-scripts" style="width:100%;height:{_HEIGHT}px;border:0"'
        return f'<iframe title="Leakmeter report" {frame} srcdoc="{escape(self._html)}"></iframe>'

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"


def page(runs: Sequence[Run], galleries: Sequence[Path] = (), live: Live | None = None) -> str:
    """Return the page about one run or several, with the pictures of further folders."""
    if len(runs) > 1:
        runs = aliased(runs)
        title, name, first = f"{len(runs)} runs compared", "", comparison(runs)
    else:
        [run] = runs
        title, name, first = f"What {run.name} leaks", run.name, first_screen(run)
    found = sorted(figures(runs), key=lambda one: not one.is_first)
    main = [one for one in found if one.is_first and len(runs) == 1]
    folds = tuple(_folds(runs, found[len(main) :], galleries))
    stamp = stamped(max(runs, key=lambda run: run.written or 0.0))
    return document(title, name, first, live, main, folds, stamp=stamp)


def document(
    title: str,
    name: str,
    first: Markup,
    live: Live | None = None,
    main: Sequence[Figure] = (),
    folds: Sequence[Fold] = (),
    source: str = REPORT,
    stamp: str = "",
    kind: str = "report",
) -> str:
    """Return a whole file: the first screen, the main figures, and what is folded below them.

    `source` is the file with the exact numbers; `stamp` is printed on each sheet of paper.
    """
    is_live = bool(live and live.script)
    # A page that is served keeps its style: the browser allows no other in what it fetches.
    style = STYLE + (live.style if live else "") + ("" if is_live else _foot(name, stamp))
    script = SCRIPT + (live.script if live else "")
    text = render(
        _DOCUMENT,
        policy=_policy(style, script, is_live=is_live),
        generator=GENERATOR,
        kind=kind,
        title=title,
        name=name,
        first=first,
        main=_figures(main) if main else "",
        folds=folds,
        style=Markup(style),
        script=Markup(script),
        bar=live.bar if live else "",
        is_live=is_live,
        source=source,
    )
    # A folder may have a name that is not UTF-8, which Python keeps as characters of its own.
    return f"{text}\n".encode(errors="replace").decode()


def _foot(name: str, stamp: str) -> str:
    """Return what is at the foot of each sheet of paper, beside its number."""
    words = " · ".join(filter(None, (f"Leakmeter {shorten(name, _MAX_NAME)}".strip(), stamp)))
    # A run may have any name: in numbers it can end neither the text nor the style.
    text = "".join(f"\\{ord(one):06x}" for one in words)
    return f'@page {{ @bottom-left {{ content: "{text}"; font: 8pt system-ui; }} }}\n'


def _policy(style: str, script: str, *, is_live: bool) -> str:
    """Return what the browser itself enforces: nothing is fetched, and nothing else is run.

    Style and script are allowed by their hashes, so markup that got into the page by a mistake of
    ours could neither run nor change how the page looks.
    """
    allowed = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
    sheet, code = (f"'sha256-{one}'" for one in allowed)
    own = "; connect-src 'self'" if is_live else ""
    return f"default-src 'none'; style-src {sheet}; script-src {code}; img-src data:{own}"


def _figures(found: Sequence[Figure]) -> Markup:
    made = Markup("").join(figure(one) for one in found)
    return Markup('<div class="figures">{}</div>').format(made)


def _folds(
    runs: Sequence[Run], more: Sequence[Figure], galleries: Sequence[Path]
) -> Iterator[Fold]:
    """Yield each folded part that has any content; several runs have one of each."""

    def each(
        name: str, head: str, about: str, make: Callable[[Run], Markup | None]
    ) -> Iterator[Fold]:
        for i, run in enumerate(runs, start=1):
            own, title = (name, head)
            if len(runs) > 1:
                own, title = f"{name}-{i}", f"{head}: {run.name}"
            if (content := make(run)) is not None:
                yield own, title, about, content

    yield from each("verdicts", "Each attacker in detail", "what, how sure, what to do", cards)
    if more:
        yield "more-figures", "More figures", f"{len(more)}", _figures(more)
    own = [place for run in runs for place in (run.folder, run.folder / FOLDER)]
    if shots := [one for folder in (*own, *galleries) for one in pictures(folder)]:
        grid = render(_PICTURES, pictures=shots)
        yield "pictures", "Reconstructions", counted(len(shots), "picture"), grid
    yield from each("epsilon", "All ε on one axis", "guaranteed, shown, estimated", forest)
    yield from each("findings", "All findings", "with assumptions", tables)
    yield from each("repeat", "Settings and how to repeat", "command, releases", repeat)
    kinds = render(_KINDS, words=_READING, kinds=KINDS.values())
    yield "reading", "How to read the numbers", "kinds, ε, null bands", kinds
