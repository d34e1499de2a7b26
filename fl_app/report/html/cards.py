"""Verdicts as cards, one for each attacker, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from leakmeter.auditors.judge.meaning import stake
from leakmeter.auditors.judge.standing import Standing, standings
from leakmeter.auditors.wording import sentence, skipped
from leakmeter.fl_app.report.html.tone import badge, tone
from leakmeter.fl_app.report.judge.advice import advice
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.markup import Markup, joined, tag
from leakmeter.fl_app.report.read.run import Run

# Which setting of our command line says when an auditor looks; another project has its own.
_SETTINGS = {
    "likelihood-ratio": "--lrt-every",
    "record-likelihood-ratio": "--lrt-every",
    "mutual-information": "--mi-every",
    "mine": "--mine-every",
}


def cards(run: Run) -> Markup:
    """Return a card for each attacker, the worst first, and the limits of the audit."""
    made = verdicts(run)
    if not made:
        none = "The auditors produced no findings; this is not evidence of privacy."
        return joined(tag("p", none), _limitations(run), _schedules(run))
    note = (
        "Each card is one attacker and what it tries to find out. “No leak shown” is not "
        "“private”. A lower bound says at least, a guarantee at most. An estimate comes with what "
        "it would be without a leak."
    )
    articles = [_card(one, advice(one.verdict, run, made)) for one in standings(made)]
    return joined(
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


def _card(one: Standing, todo: Sequence[str]) -> Markup:
    verdict = one.verdict
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
    return tag(
        "article",
        tag("p", f"{one.who} · unit {verdict.lead.unit}", class_="eyebrow"),
        badge(one),
        tag("h3", verdict.headline),
        tag("dl", *entries),
        class_=f"card {tone(one)}",
    )


def _entry(name: str, sentences: Sequence[str]) -> Markup:
    return joined(tag("dt", name), tag("dd", *(tag("p", words) for words in sentences)))


def _with_code(words: str) -> Markup:
    """Return a sentence with its options and their values set as code, which does not break."""
    pieces = re.split(r"(--noise [a-z]+|--[a-z0-9-]+(?: \d[\d.e-]*\b)?)", words)
    return joined(*(tag("code", p) if p.startswith("--") else p for p in pieces))
