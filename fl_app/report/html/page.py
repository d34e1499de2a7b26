"""Puts the page together: one file that fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from leakmeter.fl_app.report.draw.figures import figures
from leakmeter.fl_app.report.draw.forest import forest
from leakmeter.fl_app.report.html.compare import comparison
from leakmeter.fl_app.report.html.pictures import pictures
from leakmeter.fl_app.report.html.repeat import repeat
from leakmeter.fl_app.report.html.script import SCRIPT
from leakmeter.fl_app.report.html.style import STYLE
from leakmeter.fl_app.report.html.table import tables
from leakmeter.fl_app.report.judge.advice import advice
from leakmeter.fl_app.report.judge.verdict import BADGES, Level, Verdict, stake, verdicts
from leakmeter.fl_app.report.markup import Markup, joined, tag
from leakmeter.fl_app.report.read.run import Run
from leakmeter.fl_app.report.wording import KINDS, counted, number, sentence

GENERATOR = "leakmeter report"
# The browser itself refuses to fetch anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_ICONS: dict[Level, str] = {
    "leak": "M8 1.5L15 14H1zM8 6v4M8 11.8v.4",
    "open": "M8 1.5L15 14H1zM8 6v4M8 11.8v.4",
    "hint": "M8 2a4.5 4.5 0 0 1 2 8.5V13H6v-2.500A4.500 4.500 0 0 1 8 2zM6 15h4",
    "model": "M1 13C5 13 5 3 8 3s3 10 7 10",
    "none": "M7 2a5 5 0 1 1 0 10A5 5 0 0 1 7 2zM10.500 10.500L15 15",
    "bounded": "M8 1.500l6 2.500v4c0 3.500-2.500 5.500-6 7c-3.500-1.500-6-3.500-6-7v-4z",
    "silent": "M3 8h10",
}


def page(runs: Sequence[Run], galleries: Sequence[Path] = ()) -> str:
    """Return the page about one run or several.

    Args:
        runs: At least one.
        galleries: Folders with further pictures.
    """
    sections = _sections(runs, galleries)
    title = f"What {runs[0].name} leaks" if len(runs) == 1 else f"What {len(runs)} runs leak"
    firsts = {head.split(": ")[0]: name for name, head, _ in reversed(sections)}
    links = [tag("li", tag("a", h, href=f"#{n}")) for h, n in reversed(firsts.items())]
    body = [
        tag(
            "section",
            tag("h2", head, id=f"{name}-head"),
            *content,
            id=name,
            aria_labelledby=f"{name}-head",
        )
        for name, head, content in sections
    ]
    document = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="generator", content=GENERATOR),
            tag("title", title),
            tag("style", Markup(STYLE)),
        ),
        tag(
            "body",
            tag("a", "Skip to the verdicts", href="#main", class_="skip"),
            tag(
                "header",
                tag("p", "Leakmeter report", class_="eyebrow"),
                tag("h1", title),
                *(_lede(run, many=len(runs) > 1) for run in runs),
                tag("nav", tag("ul", *links), aria_label="On this page"),
            ),
            tag("main", *body, id="main"),
            tag("footer", _footer()),
            tag("div", id="tip", role="status", hidden=True),
            tag("script", Markup(SCRIPT)),
        ),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


def _sections(
    runs: Sequence[Run], galleries: Sequence[Path]
) -> list[tuple[str, str, list[Markup]]]:
    """Return identifier, heading and content of each part that has any."""
    many = len(runs) > 1
    sections: list[tuple[str, str, list[Markup]]] = []

    def add(name: str, head: str, content: list[Markup | None]) -> None:
        if kept := [piece for piece in content if piece is not None]:
            sections.append((name, head, kept))

    def each(name: str, head: str, make: list[list[Markup | None]]) -> None:
        for i, (run, content) in enumerate(zip(runs, make, strict=True), start=1):
            suffix = f"-{i}" if many else ""
            add(name + suffix, head + (f": {run.name}" if many else ""), content)

    if many:
        add("comparison", "Side by side", [comparison(runs)])
    each("verdicts", "Verdicts", [[_verdicts(run)] for run in runs])
    each("epsilon", "Guaranteed, shown, estimated", [[forest(run)] for run in runs])
    charts = [figure.html() for figure in figures(runs)]
    add("figures", "Figures", [tag("div", *charts, class_="figures")] if charts else [])
    shots = pictures([*(run.folder for run in runs), *galleries])
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
        words.append(f"{config['sample']} of {config['clients']} clients a round")
    words.append(counted(len(run.rounds), "round"))
    if config.get("noise") not in (None, "none"):
        words.append(f"{config['noise']} noise")
    if config.get("secagg") == "on":
        words.append("secure aggregation")
    if run.accuracy is not None:
        words.append(f"accuracy {number(run.accuracy, 3)}")
    text = (f"{run.name}: " if many else "") + "; ".join(words) + "."
    pieces = [tag("p", text, class_="lede")]
    if not run.is_finished:
        planned = run.config.get("rounds")
        of = f" of {planned}" if isinstance(planned, int) else ""
        pieces.append(
            tag(
                "p",
                f"This run is not finished: {counted(len(run.rounds), 'whole round')}{of}. What "
                "follows is what single rounds show; verdicts on the run come at its end.",
                class_="warn",
            )
        )
    for failure in run.failures:
        words_of = f"Not audited as planned: {failure}. What it would have shown is missing."
        pieces.append(tag("p", words_of, class_="warn"))
    return joined(*pieces)


def _verdicts(run: Run) -> Markup:
    made = verdicts(run)
    if not made:
        none = "No auditor has said anything: nothing is known about what this run leaks."
        return joined(tag("p", none), _limits(run))
    note = (
        "Each card is one adversary. “No leak shown” is not “private”. A lower bound says at "
        "least, a guarantee at most; an estimate stands beside what it would be without a leak."
    )
    cards = [_card(v, advice(v, run, made)) for v in made]
    levels = [v.level for v in made]
    counts = [
        tag("li", _badge(level), f" {levels.count(level)}") for level in dict.fromkeys(levels)
    ]
    return joined(
        tag("ul", *counts, class_="counts"),
        tag("p", note, class_="note"),
        tag("div", *cards, class_="cards"),
        _limits(run),
    )


def _limits(run: Run) -> Markup | None:
    """Return what the audits could not see or show here."""
    if not run.limits:
        return None
    entries = [tag("li", tag("strong", f.auditor), f": {f.rule}") for f in run.limits]
    return joined(tag("h3", "What the audits cannot see or show here"), tag("ul", *entries))


def _badge(level: Level) -> Markup:
    icon = tag("svg", tag("path", d=_ICONS[level]), viewBox="0 0 16 16", aria_hidden="true")
    return tag("span", icon, BADGES[level], class_=f"badge {_tone(level)}")


def _tone(level: Level) -> str:
    return "none-shown" if level == "none" else level


def _card(verdict: Verdict, todo: Sequence[str]) -> Markup:
    at_stake = stake(verdict.lead)
    entries: list[Markup] = [_entry("Who", [sentence(verdict.who)])]
    if at_stake:
        entries.append(_entry("At stake", [sentence(at_stake)]))
    if verdict.game:
        entries.append(_entry("Game", [sentence(verdict.game)]))
    entries.append(_entry("Found", verdict.found))
    if verdict.sure:
        entries.append(_entry("How sure", verdict.sure))
    if todo:
        listed = tag("ul", *(tag("li", _with_code(words)) for words in todo))
        entries.append(joined(tag("dt", "What to do"), tag("dd", listed)))
    observer = verdict.lead.observer
    return tag(
        "article",
        tag("p", f"{observer} · unit {verdict.lead.unit}", class_="eyebrow"),
        _badge(verdict.level),
        tag("h3", verdict.headline),
        tag("dl", *entries),
        class_=f"card {_tone(verdict.level)}",
    )


def _entry(name: str, sentences: Sequence[str]) -> Markup:
    return joined(tag("dt", name), tag("dd", *(tag("p", words) for words in sentences)))


def _with_code(words: str) -> Markup:
    """Return a sentence with its settings set as code, which does not break."""
    pieces = re.split(r"(--[a-z-]+)", words)
    return joined(*(tag("code", p) if p.startswith("--") else p for p in pieces))


def _kinds() -> Markup:
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", words)) for name, words in KINDS.values()
    ]
    words = (
        "ε compares two worlds: no outcome is more than e^ε times as likely in one as in the "
        "other, but for a chance of δ. 0 is perfect privacy. Numbers of different adversaries, "
        "units (client, record) or adjacencies are not comparable."
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
