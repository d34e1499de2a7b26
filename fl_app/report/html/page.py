"""Puts the page together: one file that fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from leakmeter.auditors.judge.verdict import overall
from leakmeter.auditors.wording import CERTAIN, KINDS, counted, number
from leakmeter.fl_app.report.draw.figures import figures
from leakmeter.fl_app.report.draw.forest import forest
from leakmeter.fl_app.report.html.cards import cards
from leakmeter.fl_app.report.html.compare import comparison
from leakmeter.fl_app.report.html.pictures import galleries_of, pictures
from leakmeter.fl_app.report.html.repeat import repeat
from leakmeter.fl_app.report.html.script import SCRIPT
from leakmeter.fl_app.report.html.style import STYLE
from leakmeter.fl_app.report.html.table import tables
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.markup import Markup, joined, tag
from leakmeter.fl_app.report.read.run import REPLAY_OF, Run

GENERATOR = "leakmeter report"
_Section = tuple[str, str, list[Markup]]  # identifier, heading, content
# The browser itself refuses to fetch anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(runs: Sequence[Run], galleries: Sequence[Path] = ()) -> str:
    """Return the page about one run or several.

    Args:
        runs: At least one.
        galleries: Folders with further pictures.
    """
    title = f"What {runs[0].name} leaks" if len(runs) == 1 else f"What {len(runs)} runs leak"
    sections = _sections(runs, galleries)
    body = tag(
        "body",
        tag("a", "Skip to the verdicts", href="#main", class_="skip"),
        tag(
            "header",
            tag("p", "Leakmeter report", class_="eyebrow"),
            tag("h1", title),
            *(_lede(run, many=len(runs) > 1) for run in runs),
            _contents(sections),
        ),
        tag("main", *(_section(*one) for one in sections), id="main"),
        tag("footer", _footer()),
        tag("div", id="tip", role="status", hidden=True),
        tag("script", Markup(SCRIPT)),
    )
    return f"<!doctype html>\n{tag('html', _head(title), body, lang='en')}\n"


def _head(title: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=GENERATOR),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )


def _contents(sections: Sequence[_Section]) -> Markup:
    """Return links to the sections, one for those that every run has its own of."""
    firsts = {head.split(": ")[0]: name for name, head, _ in reversed(sections)}
    links = [tag("li", tag("a", h, href=f"#{n}")) for h, n in reversed(firsts.items())]
    return tag("nav", tag("ul", *links), aria_label="On this page")


def _section(name: str, head: str, content: Sequence[Markup]) -> Markup:
    title = tag("h2", head, id=f"{name}-head")
    return tag("section", title, *content, id=name, aria_labelledby=f"{name}-head")


def _sections(runs: Sequence[Run], galleries: Sequence[Path]) -> list[_Section]:
    """Return each part of the page that has any content."""
    many = len(runs) > 1
    sections: list[_Section] = []

    def add(name: str, head: str, content: list[Markup | None]) -> None:
        if kept := [piece for piece in content if piece is not None]:
            sections.append((name, head, kept))

    def each(name: str, head: str, make: list[list[Markup | None]]) -> None:
        for i, (run, content) in enumerate(zip(runs, make, strict=True), start=1):
            suffix = f"-{i}" if many else ""
            add(name + suffix, head + (f": {run.name}" if many else ""), content)

    if many:
        add("comparison", "Side by side", [comparison(runs)])
    each("verdicts", "Verdicts", [[cards(run)] for run in runs])
    each("epsilon", "Guaranteed, shown, estimated", [[forest(run)] for run in runs])
    charts = [figure.html() for figure in figures(runs)]
    add("figures", "Figures", [tag("div", *charts, class_="figures")] if charts else [])
    shots = pictures([*(place for run in runs for place in galleries_of(run.folder)), *galleries])
    add("pictures", "Reconstructions", [tag("div", *shots, class_="figures")] if shots else [])
    each("findings", "All findings", [[tables(run)] for run in runs])
    each("repeat", "How to repeat it", [[repeat(run)] for run in runs])
    add("reading", "How to read the numbers", [_kinds()])
    return sections


def _lede(run: Run, *, many: bool) -> Markup:
    """Return what ran, in a line or two."""
    config = run.settings
    words = (
        [f"{config['dataset']}, {config['model']}"] if {"dataset", "model"} <= set(config) else []
    )
    if {"clients", "sample"} <= set(config):
        words.append(f"{config['sample']} of {config['clients']} clients per round")
    words.append(counted(len(run.rounds), "round"))
    if config.get("noise") not in (None, "none"):
        words.append(f"{config['noise']} noise")
    if config.get("secagg") in ("on", "active"):
        words.append(f"{'signed ' if config['secagg'] == 'active' else ''}secure aggregation")
    if run.accuracy is not None:
        words.append(f"accuracy {number(run.accuracy, 3)}")
    text = (f"{run.name}: " if many else "") + "; ".join(words) + "."
    verdict = overall(verdicts(run), run.warnings)
    pieces = [tag("p", text, class_="lede"), tag("p", tag("strong", verdict))]
    if (source := config.get(REPLAY_OF)) is not None:
        pieces.append(
            tag(
                "p",
                "A replay: these auditors looked at the recorded rounds of ",
                tag("code", str(source)),
            )
        )
    pieces += [tag("p", warning.text, class_="warn") for warning in run.warnings]
    if not run.is_finished:
        planned = run.config.get("rounds")
        of = f" of {planned}" if isinstance(planned, int) else ""
        pieces.append(
            tag(
                "p",
                f"This run is not finished: {counted(len(run.rounds), 'whole round')}{of}. What "
                "follows is what the last audited round shows.",
                class_="warn",
            )
        )
    for failure in run.failures:
        words_of = f"Not audited as planned: {failure.rstrip('.')}. Its findings are missing."
        pieces.append(tag("p", words_of, class_="warn"))
    return joined(*pieces)


def _kinds() -> Markup:
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", words)) for name, words in KINDS.values()
    ]
    words = (
        "ε compares two worlds: whatever has chance q in one has at most e^ε·q + δ in the other. "
        f"0 is perfect privacy; above {CERTAIN:g} an attacker is practically certain. Numbers of "
        "different attackers, units (client, record) or adjacencies are not comparable. A null "
        "band contains 90 % of what the method says without a leak."
    )
    table = tag(
        "table", tag("caption", "What each kind of number may be read as"), tag("tbody", *rows)
    )
    return joined(tag("p", words, class_="note"), table)


def _footer() -> Markup:
    return tag(
        "p",
        "Made by Leakmeter from report.json; the exact numbers, and lists behind the figures, are "
        "in that file. This page fetches nothing.",
    )
