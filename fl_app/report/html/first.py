"""The first screen: verdict, attackers on one scale, what ran, and what to do next."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from leakmeter.auditors.judge.standing import (
    SEVERITIES,
    Standing,
    headline,
    smallest_promise,
    standings,
    sure_words,
)
from leakmeter.auditors.judge.steps import Step
from leakmeter.auditors.judge.terse import amount, who
from leakmeter.auditors.judge.verdict import is_distorted
from leakmeter.auditors.wording import CERTAIN, counted, is_epsilon, plain_spaces, share
from leakmeter.fl_app.report.html.glossary import Glossary
from leakmeter.fl_app.report.html.tone import Tone, icon, tone
from leakmeter.fl_app.report.judge.next_steps import next_steps
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.markup import Markup, command_line, joined, tag
from leakmeter.fl_app.report.read.run import REPLAY_OF, Run

# Where the scale from guess to certain is named: how sure, as an ε.
_TICKS: Final = (
    (0.0, "guess"),
    (math.log(9), "90 %"),
    (math.log(99), "99 %"),
    (CERTAIN, "certain"),
)
_MOST_ROWS = 5


def first_screen(run: Run) -> Markup:
    """Return the part of the page that answers within five seconds."""
    lines, words = standings(verdicts(run)), Glossary()
    attackers = [one for one in lines if not one.is_statement]
    return tag(
        "section",
        _hero(run, lines),
        *(tag("p", note, class_="warn") for note in notes(run)),
        _facts(run, words),
        tag(
            "div",
            _attackers(attackers, words) if attackers else _nobody(),
            _actions(next_steps(run, is_public=True)),
            class_="columns",
        ),
        class_="first",
        aria_label="Verdict",
    )


def verdict_tone(lines: Sequence[Standing], run: Run) -> Tone:
    """Return the colour of a run: that of its worst attacker; a damaged run has none."""
    attackers = [one for one in lines if not one.is_statement]
    if is_distorted(run.warnings) or not attackers:
        return "warn" if is_distorted(run.warnings) else "grey"
    return tone(attackers[0])


def notes(run: Run) -> Iterator[str]:
    """Yield reasons to read the numbers with care."""
    for warning in run.warnings:
        yield warning.text
    if not run.is_finished:
        planned = run.config.get("rounds")
        of = f" of {planned}" if isinstance(planned, int) else ""
        done = counted(len(run.rounds), "whole round")
        now = "is in progress" if run.is_running else "is not finished"
        yield f"This run {now}: {done}{of}. The numbers are those of its last round."
    for failure in run.failures:
        yield f"Not audited as planned: {failure.rstrip('.')}. Its findings are missing."
    if (source := run.config.get(REPLAY_OF)) is not None:
        name = str(source).rstrip("/").rpartition("/")[2]
        yield f"A replay: these auditors looked at the recorded rounds of {name}."


def _hero(run: Run, lines: Sequence[Standing]) -> Markup:
    attackers = [one for one in lines if not one.is_statement]
    severity = attackers[0].severity if attackers else "observed"
    label = "distorted run" if is_distorted(run.warnings) else SEVERITIES[severity]
    said = headline(lines, run.warnings)
    return tag(
        "div",
        icon(severity),
        tag("div", tag("p", label, class_="level"), tag("h1", _unbroken(said))),
        class_=f"hero {verdict_tone(lines, run)}",
    )


def _unbroken(text: str) -> str:
    """Return text whose lines may end anywhere but between a sign and its number, or its ε."""
    return re.sub(r"(?<=ε) (?=[≥≤≈])|(?<=[≥≤≈]) ", "\N{NO-BREAK SPACE}", plain_spaces(text))


def _nobody() -> Markup:
    none = "The auditors produced no findings about an attacker; this is not evidence of privacy."
    return tag("section", tag("h2", "Who can tell what"), tag("p", none), class_="attackers")


def _facts(run: Run, words: Glossary) -> Markup:
    """Return what ran, in five numbers."""
    accuracy = "not measured" if run.accuracy is None else share(run.accuracy)
    entries = (
        (words.term("Accuracy"), accuracy),
        (joined("Clients per round"), _clients(run)),
        (joined("Rounds"), str(len(run.rounds))),
        (words.term("Protection"), _protection(run)),
        (words.term("Upper bound"), _upper(run)),
    )
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in entries]
    return tag("dl", *pairs, class_="facts")


def _clients(run: Run) -> str:
    sample, clients = run.settings.get("sample"), run.settings.get("clients")
    if sample is not None and clients is not None:
        return f"{sample} of {clients}"
    seen = sorted({one.num_clients for one in run.rounds})
    if not seen:
        return "–"
    return str(seen[0]) if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"


def _protection(run: Run) -> str:
    noise = run.settings.get("noise")
    if noise is None:
        return "not stated"
    sums = "secure sum" if run.settings.get("secagg") in ("on", "active") else "no secure sum"
    named = run.settings.get("noise-law", "gaussian")
    law = "" if named == "gaussian" else f" ({named})"
    return f"{sums}, {'no' if noise == 'none' else noise} noise{law}"


def _upper(run: Run) -> str:
    """Return the guarantee that the terminal names too, with the attacker it is against."""
    best = smallest_promise(run.findings)
    if best is None:
        return "none"
    unit = ", a record" if best.unit == "record" else ""
    return f"{amount(best)} ({who(best.threat_model)}{unit})"


def _attackers(attackers: Sequence[Standing], words: Glossary) -> Markup:
    """Return the attackers, worst first, on one scale."""
    shown = attackers[:_MOST_ROWS]
    left = len(attackers) - len(shown)
    more = tag("p", f"And {counted(left, 'more attacker')} below.", class_="note") if left else None
    return tag(
        "section",
        tag("h2", "Who can tell what, worst first"),
        tag(
            "div",
            tag("span", class_="who"),
            _axis(),
            tag("span", words.term("sure at least", "% sure"), class_="what"),
            class_="row axis",
        ),
        tag("ul", *(_row(one, words) for one in shown), class_="plain"),
        more,
        class_="attackers",
    )


def _axis() -> Markup:
    """Return the scale from guess to certain."""
    names = [
        tag("span", name, style=f"left:{100 * place(epsilon):.1f}%") for epsilon, name in _TICKS
    ]
    return tag("span", *names, class_="scale", aria_hidden="true")


def _row(one: Standing, words: Glossary) -> Markup:
    strength, _, level = one.evidence.partition(" ")
    known = words.term(strength) if level.endswith("%") else words.term(one.evidence)
    rest = f", {level}" if level.endswith("%") else ""
    if one.evidence == "–":
        known = joined("no guarantee")
    if one.severity in ("none", "unable"):
        known = words.term("not evidence of privacy", one.evidence)
    sure = sure_words(one.lead) or ("nothing shown" if one.shown == "nothing" else one.shown)
    has_size = one.shown.startswith("ε")
    size = joined(words.term("ε"), one.shown.removeprefix("ε")) if has_size else None
    aside = [size, " · ", known, rest] if size is not None and sure != one.shown else [known, rest]
    name = tag("span", icon(one.severity), tag("strong", one.who), tag("small", one.tells))
    has_upper = one.upper is not None and math.isfinite(one.upper.value)
    upper = tag("small", f"guaranteed {one.at_most}") if has_upper else None
    return tag(
        "li",
        tag("span", name, class_="who"),
        _bar(one),
        tag("span", tag("strong", sure), tag("small", *aside), upper, class_="what"),
        class_=f"row {tone(one)}",
    )


def _bar(one: Standing) -> Markup:
    """Return what is shown as a bar, what is open above it, and the guarantee as its end."""
    lead, upper = one.lead, one.upper
    if not is_epsilon(lead):
        return tag("span", "in bits, so not on this scale", class_="bar off")
    is_shown = lead.kind == "lower_bound" and not lead.is_conditional
    start = place(lead.value) if is_shown else 0.0
    end = 1.0 if upper is None or math.isinf(upper.value) else place(upper.value)
    pieces = [
        tag("span", class_="open", style=f"left:{100 * start:.1f}%;right:{100 - 100 * end:.1f}%"),
        *([tag("span", class_="shown", style=f"width:{100 * start:.1f}%")] if start else []),
    ]
    if lead.kind == "estimate":
        pieces.append(tag("span", class_="guess", style=f"left:{100 * place(lead.value):.1f}%"))
    if end < 1:
        pieces.append(tag("span", class_="limit", style=f"left:{100 * end:.1f}%"))
    return tag("span", *pieces, class_="bar", aria_hidden="true")


def place(epsilon: float) -> float:
    """Return where an ε is between guess (0) and certain (1): even near 0, then logarithmic."""
    return min(math.log1p(max(epsilon, 0.0)) / math.log1p(CERTAIN), 1.0)


def _actions(steps: Sequence[Step]) -> Markup:
    """Return the next steps with commands to copy."""
    entries = [
        tag(
            "li",
            tag("p", _unbroken(step.text.rstrip(":"))),
            _command(step.command, i) if step.command else None,
        )
        for i, step in enumerate(steps, start=1)
    ]
    return tag("section", tag("h2", "What to do next"), tag("ol", *entries), class_="actions")


def _command(text: str, number_: int) -> Markup:
    """Return a command in a box that a long one scrolls in, so the tab key must reach it."""
    label = f"Command of step {number_}"
    return tag("pre", command_line(text), tabindex=0, role="group", aria_label=label)
