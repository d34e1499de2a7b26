"""Puts the page together: one file that fetches nothing, the verdict first, details folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leakmeter.auditors.wording import CERTAIN, KINDS, counted
from leakmeter.fl_app.report.draw.attackers import attackers
from leakmeter.fl_app.report.draw.chart import Figure
from leakmeter.fl_app.report.draw.figures import figures
from leakmeter.fl_app.report.draw.forest import forest
from leakmeter.fl_app.report.html.cards import cards
from leakmeter.fl_app.report.html.compare import comparison
from leakmeter.fl_app.report.html.first import first_screen
from leakmeter.fl_app.report.html.pictures import galleries_of, pictures
from leakmeter.fl_app.report.html.repeat import repeat
from leakmeter.fl_app.report.html.script import SCRIPT
from leakmeter.fl_app.report.html.style import STYLE
from leakmeter.fl_app.report.html.table import tables
from leakmeter.fl_app.report.markup import Markup, joined, tag
from leakmeter.fl_app.report.read.run import Run

GENERATOR = "leakmeter report"
# The browser itself refuses to fetch anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Live:
    """What a page that is served has on top: it may ask its own server.

    Attributes:
        bar: Markup before the content.
        style: Of the bar.
        script: Keeps the page up to date.
    """

    bar: str
    style: str
    script: str


@dataclass(frozen=True)
class _Fold:
    """A part of the page that is folded until somebody asks for it.

    Attributes:
        name: Identifier.
        head: What it is.
        about: What is in it, in a few words.
        content: What it shows.
    """

    name: str
    head: str
    about: str
    content: Markup

    def html(self) -> Markup:
        summary = tag("summary", tag("h2", self.head), tag("span", self.about, class_="about"))
        return tag("details", summary, self.content, id=self.name, class_="fold", data_print=True)


def page(runs: Sequence[Run], galleries: Sequence[Path] = (), live: Live | None = None) -> str:
    """Return the page about one run or several.

    Args:
        runs: At least one.
        galleries: Folders with further pictures.
        live: What a page that is served has on top.
    """
    many = len(runs) > 1
    title = f"{len(runs)} runs compared" if many else f"What {runs[0].name} leaks"
    main = _several(runs, galleries) if many else _single(runs[0], galleries)
    return document(title, "" if many else runs[0].name, main, live)


def document(title: str, name: str, main: Sequence[Markup], live: Live | None = None) -> str:
    """Return a whole file around the content of a page."""
    run = tag("span", name, class_="run") if name else ""
    body = tag(
        "body",
        tag("a", "Skip to the verdict", href="#main", class_="skip"),
        tag("header", tag("p", tag("strong", "Leakmeter"), " report ", run, class_="brand")),
        Markup(live.bar) if live else joined(),
        tag("main", *main, id="main"),
        tag("footer", _footer(live)),
        tag("div", id="tip", role="tooltip", hidden=True),
        tag("script", Markup(SCRIPT + (live.script if live else ""))),
    )
    text = f"<!doctype html>\n{tag('html', _head(title, live), body, lang='en')}\n"
    # A folder may have a name that is not UTF-8, which Python keeps as characters of its own.
    return text.encode(errors="replace").decode()


def _head(title: str, live: Live | None) -> Markup:
    policy = f"{_POLICY}; connect-src 'self'" if live else _POLICY
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=GENERATOR),
        tag("title", title),
        tag("style", Markup(STYLE + (live.style if live else ""))),
    )


def _single(run: Run, galleries: Sequence[Path]) -> list[Markup]:
    """Return the first screen, the main figures, and everything else folded."""
    main, more = _split([run])
    return [
        first_screen(run),
        _section("figures", "The main figures", _grid(main)) if main else joined(),
        *(fold.html() for fold in _folds([run], more, galleries)),
    ]


def _several(runs: Sequence[Run], galleries: Sequence[Path]) -> list[Markup]:
    """Return the comparison first; figures and single runs are folded."""
    main, more = _split(runs)
    return [
        comparison(runs),
        *(fold.html() for fold in _folds(runs, [*main, *more], galleries)),
    ]


def _split(runs: Sequence[Run]) -> tuple[list[Figure], list[Figure]]:
    """Return the figures that everybody should see, and the others."""
    found = figures(runs)
    axis = attackers(runs[0]) if len(runs) == 1 else []
    first = [one for one in found if one.is_first]
    return [*axis, *first], [one for one in found if one not in first]


def _grid(found: Sequence[Figure]) -> Markup:
    return tag("div", *(one.html() for one in found), class_="figures")


def _section(name: str, head: str, content: Markup) -> Markup:
    title = tag("h2", head, id=f"{name}-head")
    return tag("section", title, content, id=name, aria_labelledby=f"{name}-head")


def _folds(runs: Sequence[Run], more: Sequence[Figure], galleries: Sequence[Path]) -> list[_Fold]:
    """Return each folded part that has any content."""
    many = len(runs) > 1
    folds: list[_Fold] = []

    def each(name: str, head: str, about: str, made: Sequence[Markup | None]) -> None:
        for i, (run, content) in enumerate(zip(runs, made, strict=True), start=1):
            if content is not None:
                own, title = (f"{name}-{i}", f"{head}: {run.name}") if many else (name, head)
                folds.append(_Fold(own, title, about, content))

    each("verdicts", "Each attacker in detail", "what, how sure, what to do", [*map(cards, runs)])
    if more:
        folds.append(_Fold("more-figures", "More figures", f"{len(more)}", _grid(more)))
    shots = pictures([*(place for run in runs for place in galleries_of(run.folder)), *galleries])
    if shots:
        grid = tag("div", *shots, class_="figures")
        folds.append(_Fold("pictures", "Reconstructions", counted(len(shots), "picture"), grid))
    each("epsilon", "All ε on one axis", "guaranteed, shown, estimated", [*map(forest, runs)])
    each("findings", "All findings", "with assumptions", [*map(tables, runs)])
    each("repeat", "Settings and how to repeat", "command, releases", [*map(repeat, runs)])
    folds.append(_Fold("reading", "How to read the numbers", "kinds, ε, null bands", _kinds()))
    return folds


def _kinds() -> Markup:
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", words)) for name, words in KINDS.values()
    ]
    words = (
        "ε compares two worlds: an event with probability q in one has probability at most "
        "e^ε·q + δ in the other. 0 is perfect privacy; above "
        f"{CERTAIN:g} an attacker can be practically certain. Numbers of different attackers, "
        "units (client, record) or adjacencies are not comparable. A null band contains 90 % of "
        "what the method says without a leak."
    )
    table = tag(
        "table", tag("caption", "What each kind of number may be read as"), tag("tbody", *rows)
    )
    return joined(tag("p", words, class_="note"), table)


def _footer(live: Live | None) -> Markup:
    asks = "asks only the machine that serves it" if live else "fetches nothing"
    words = "Made by Leakmeter from report.json, which has the exact numbers."
    return tag("p", f"{words} This page {asks}.")
