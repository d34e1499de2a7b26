"""Several runs compared: accuracy against ε, their verdicts, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.judge.adversary import Adversary, Group, is_promise
from leakmeter.auditors.judge.meaning import stake
from leakmeter.auditors.judge.standing import smallest_promise, standings
from leakmeter.auditors.judge.terse import amount, who
from leakmeter.auditors.wording import KINDS, capital, size, terms
from leakmeter.fl_app.report.draw.compared import aliases, tradeoff
from leakmeter.fl_app.report.html.tone import badge
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.markup import Markup, exact_claim, exact_share, joined, tag
from leakmeter.fl_app.report.read.run import Run

_NONE = tag("span", "–", class_="none")


def comparison(runs: Sequence[Run]) -> Markup:
    """Return accuracy against ε, the runs with their verdicts, and a table of what differs."""
    names = aliases(runs)
    chart = [figure.html("h2") for figure in tradeoff(runs, names)]
    first = tag(
        "section",
        tag("h1", f"{len(runs)} runs compared"),
        tag("div", *chart, _runs(runs, names), class_="pair" if chart else None),
        class_="compared",
        aria_label="Comparison",
    )
    return joined(first, _side_by_side(runs, names))


def _runs(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Return one line per run: its short name, its worst attacker, accuracy."""
    heads = ("", "run", "worst attacker", "shown", "upper bound", "accuracy")
    rows = []
    for i, (run, name) in enumerate(zip(runs, names, strict=True), start=1):
        lines = [one for one in standings(verdicts(run)) if not one.is_statement]
        worst = lines[0] if lines else None
        accuracy = _NONE if run.accuracy is None else exact_share(run.accuracy)
        cells = [_NONE, _NONE]
        if worst is not None:
            cells = [joined(badge(worst), tag("small", worst.who)), joined(worst.shown)]
        cells.append(_upper(run))
        rows.append(
            tag(
                "tr",
                tag("td", tag("span", name, class_="alias")),
                tag("th", tag("a", run.name, href=f"#verdicts-{i}"), scope="row"),
                *(tag("td", cell) for cell in (*cells, accuracy)),
            )
        )
    table = tag(
        "table",
        tag("caption", "The worst attacker of each run", class_="hidden"),
        tag("thead", tag("tr", *(tag("th", h, scope="col") if h else tag("td") for h in heads))),
        tag("tbody", *rows),
    )
    # The note is outside the box that scrolls: on a phone its end would be out of sight.
    note = "A smaller lower bound proves nothing: compare the upper bounds."
    box = tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="Verdicts")
    return tag("div", tag("p", note, class_="note"), box)


def _upper(run: Run) -> Markup:
    """Return the smallest guarantee of a run, and against whom."""
    best = smallest_promise(run.findings)
    if best is None:
        return joined("none")
    unit = ", a record" if best.unit == "record" else ""
    return joined(amount(best), tag("small", who(best.threat_model) + unit))


def _side_by_side(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Return settings that differ and the numbers of each attacker, with the runs as columns."""
    rows = [*_settings(runs), *_attackers(runs)]
    done = [len(run.rounds) for run in runs]
    if done != [run.config.get("rounds") for run in runs] and len(set(done)) > 1:
        rows.insert(0, _row("rounds done", [str(count) for count in done]))
    short = (tag("span", name, class_="alias") for name in names)
    heads = [tag("td"), *(tag("th", name, scope="col") for name in short)]
    table = tag(
        "table",
        tag(
            "caption", "Runs side by side: settings that differ, and each attacker", class_="hidden"
        ),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="compare",
    )
    region = tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="Details")
    note = "≤ guarantee, ≥ lower bound with confidence, ≈ estimate or approximation."
    return tag(
        "section",
        tag("h2", "Settings that differ, and each attacker"),
        region,
        tag("p", note, class_="note"),
        class_="compared",
    )


def _row(head: str, cells: Sequence[str], small: str | None = None) -> Markup:
    title = tag("th", head, tag("small", small) if small else None, scope="row")
    return tag("tr", title, *(tag("td", cell) for cell in cells))


def _settings(runs: Sequence[Run]) -> list[Markup]:
    """Return the settings that differ."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    rows = []
    for name in names:
        values: list[Any] = [run.config.get(name) for run in runs]
        if any(value != values[0] for value in values):
            rows.append(_row(name, [_value(v) for v in values]))
    return rows


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value in (None, "") else str(value)


def _attackers(runs: Sequence[Run]) -> list[Markup]:
    """Return the first numbers of each attacker, next to those of the other runs."""
    made = [_groups(run) for run in runs]
    rows = []
    for key in dict.fromkeys(key for of_run in made for key in of_run):
        groups = [of_run.get(key) or _elsewhere(key, of_run) for of_run in made]
        what = next(stake(g.findings[0]) for g in groups if g is not None)
        cells = [_NONE if g is None else _cell(g) for g in groups]
        rows.append(_row(key.sentence(), cells, capital(what) + "?" if what else None))
    return rows


def _groups(run: Run) -> dict[Adversary, Group]:
    return {v.group.adversary: v.group for v in verdicts(run)}


def _elsewhere(key: Adversary, groups: dict[Adversary, Group]) -> Group | None:
    """Return guarantees of this run that are about an attacker of another run.

    They may be next to a bound in this run, and alone in the other. Without them, the
    smallest for a stronger attacker covers this one too.
    """
    every = [f for group in groups.values() for f in (*group.findings, *group.guarantees)]
    promised = [f for i, f in enumerate(every) if is_promise(f) and f not in every[:i]]
    if same := tuple(f for f in promised if Adversary.of(f) == key):
        return Group(key, same)
    stronger = [f for f in promised if _covers(f, key)]
    return Group(key, (min(stronger, key=lambda f: f.value),)) if stronger else None


def _covers(guarantee: Finding, key: Adversary) -> bool:
    """Whether a guarantee of the same question is for an attacker that has at least as much."""
    return (
        (guarantee.unit, guarantee.adjacency) == (key.unit, key.adjacency)
        and key.adjacency is not None
        and key.model.is_within(guarantee.threat_model)
    )


def _cell(group: Group) -> Markup:
    """Return the first numbers of one run."""
    entries = []
    for f, upper in group.rows:
        # Runs may have been given different δ and confidences: no number is without its own.
        about = [_about(f), *([] if upper is None else [_about(upper)])]
        if not group.guarantees and is_promise(f) and Adversary.of(f) != group.adversary:
            about.append("for a stronger attacker, so for this one too")
        entries.append(tag("li", exact_claim(f, upper), *(tag("small", words) for words in about)))
    return tag("ul", *entries, class_="plain") if entries else _NONE


def _about(f: Finding) -> str:
    sized = f", {words}" if (words := size(f)) else ""
    return f"{KINDS[f.kind][0]}{terms(f)}{sized}{', saturated' if f.saturated else ''}"
