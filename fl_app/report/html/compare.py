"""Several runs beside each other: settings that differ, the first numbers of each attacker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.judge.adversary import Adversary, Group, is_promise
from leakmeter.auditors.judge.meaning import stake
from leakmeter.auditors.wording import KINDS, capital, size, terms
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.markup import Markup, exact, exact_claim, joined, tag
from leakmeter.fl_app.report.read.run import Run

_NONE = tag("span", "–", class_="none")
_UNTYPED = "an earlier format, whose findings are shown but not compared"


def comparison(runs: Sequence[Run]) -> Markup:
    """Return the table, with the runs as columns."""
    rows = [*_settings(runs), _row("rounds done", [str(len(run.rounds)) for run in runs])]
    if any(run.accuracy is not None for run in runs):
        shown = [_NONE if run.accuracy is None else exact(run.accuracy) for run in runs]
        rows.append(_row("accuracy at the end", shown))
    rows += _attackers(runs)
    links = [tag("a", run.name, href=f"#verdicts-{i}") for i, run in enumerate(runs, start=1)]
    heads = [tag("td"), *(tag("th", link, scope="col") for link in links)]
    table = tag(
        "table",
        tag("caption", "Runs side by side", class_="hidden"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="compare",
    )
    region = tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="Runs")
    note = "≤ guarantee, ≥ lower bound with confidence, ≈ estimate or approximation."
    left_out = [
        tag("p", f"{run.name} has {_UNTYPED}.", class_="note") for run in runs if not run.is_typed
    ]
    return joined(region, tag("p", note, class_="note"), *left_out)


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
            rows.append(_row(name, ["–" if v in (None, "") else str(v) for v in values]))
    return rows


def _attackers(runs: Sequence[Run]) -> list[Markup]:
    """Return the first numbers of each attacker, beside those of the other runs."""
    made = [_groups(run) for run in runs]
    rows = []
    for key in dict.fromkeys(key for of_run in made for key in of_run):
        groups = [of_run.get(key) or _elsewhere(key, of_run) for of_run in made]
        what = next(stake(g.findings[0]) for g in groups if g is not None)
        cells = [_NONE if g is None else _cell(g) for g in groups]
        rows.append(_row(key.sentence(), cells, capital(what) + "?" if what else None))
    return rows


def _groups(run: Run) -> dict[Adversary, Group]:
    return {v.group.adversary: v.group for v in verdicts(run)} if run.is_typed else {}


def _elsewhere(key: Adversary, groups: dict[Adversary, Group]) -> Group | None:
    """Return guarantees of this run that are about an attacker of another run.

    They may be beside a bound in this run, and by themselves in the other. Without them, the
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
