"""Verdicts as cards, one for each attacker, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from leakmeter.auditors.judge.meaning import stake
from leakmeter.auditors.judge.verdict import BADGES, Level, Verdict
from leakmeter.auditors.wording import sentence, skipped
from leakmeter.fl_app.report.judge.advice import advice
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.markup import Markup, joined, tag
from leakmeter.fl_app.report.read.run import Run

_ICONS: dict[Level, str] = {
    "leak": "M8 1.5L15 14H1zM8 6v4M8 11.8v.4",
    "open": "M8 1.5L15 14H1zM8 6v4M8 11.8v.4",
    "conditional": "M8 1.5L15 14H1zM8 6v4M8 11.8v.4",
    "seen": "M8 1.5L15 14H1zM8 6v4M8 11.8v.4",
    "hint": "M8 2a4.5 4.5 0 0 1 2 8.5V13H6v-2.500A4.500 4.500 0 0 1 8 2zM6 15h4",
    "model": "M1 13C5 13 5 3 8 3s3 10 7 10",
    "none": "M7 2a5 5 0 1 1 0 10A5 5 0 0 1 7 2zM10.500 10.500L15 15",
    "unable": "M7 2a5 5 0 1 1 0 10A5 5 0 0 1 7 2zM10.500 10.500L15 15",
    "bounded": "M8 1.500l6 2.500v4c0 3.500-2.500 5.500-6 7c-3.500-1.500-6-3.500-6-7v-4z",
    "count": "M3 5h10M3 8h10M3 11h10",
    "silent": "M3 8h10",
}
# Which setting of our command line says when an auditor looks; another project has its own.
_SETTINGS = {
    "likelihood-ratio": "--lrt-every",
    "record-likelihood-ratio": "--lrt-every",
    "mutual-information": "--mi-every",
    "mine": "--mine-every",
}


def cards(run: Run) -> Markup:
    """Return a card for each attacker, how many there are of each level, and the limits."""
    made = verdicts(run)
    if not made:
        none = "The auditors produced no findings; this is not evidence of privacy."
        return joined(tag("p", none), _limitations(run), _schedules(run))
    note = (
        "Each card is one attacker and what it tries to find out. “No leak shown” is not "
        "“private”. A lower bound says at least, a guarantee at most. An estimate comes with what "
        "it would be without a leak."
    )
    articles = [_card(v, advice(v, run, made)) for v in made]
    levels = [v.level for v in made]
    counts = [
        tag("li", _badge(level), f" {levels.count(level)}") for level in dict.fromkeys(levels)
    ]
    return joined(
        tag("ul", *counts, class_="counts"),
        tag("p", note, class_="note"),
        tag("div", *articles, class_="cards"),
        _limitations(run),
        _schedules(run),
    )


def _limitations(run: Run) -> Markup | None:
    """Return what the audits could not see or show here."""
    if not run.limitations:
        return None
    entries = [tag("li", tag("strong", f.auditor), f": {f.text}") for f in run.limitations]
    return joined(tag("h3", "Limits of this audit"), tag("ul", *entries))


def _schedules(run: Run) -> Markup | None:
    """Return which rounds were skipped, if any, and by which setting."""
    entries = []
    for one in run.schedules:
        if one.skips:
            setting = _SETTINGS.get(one.auditor) if run.settings else None
            asked = f"every={one.every}" if setting is None else f"{setting} {one.every}"
            words = _with_code(f": {skipped(one, asked)}.")
            entries.append(tag("li", tag("strong", one.auditor), words))
    return joined(tag("h3", "Rounds that were skipped"), tag("ul", *entries)) if entries else None


def _badge(level: Level) -> Markup:
    icon = tag("svg", tag("path", d=_ICONS[level]), viewBox="0 0 16 16", aria_hidden="true")
    return tag("span", icon, BADGES[level], class_=f"badge {_tone(level)}")


def _tone(level: Level) -> str:
    return "none-shown" if level == "none" else level


def _card(verdict: Verdict, todo: Sequence[str]) -> Markup:
    at_stake = stake(verdict.lead)
    entries: list[Markup] = [_entry("Who", [verdict.group.adversary.sentence()])]
    if at_stake:
        entries.append(_entry("At stake", [sentence(at_stake)]))
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
