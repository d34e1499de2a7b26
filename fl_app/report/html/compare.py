"""Several runs beside each other: settings that differ, the first numbers of each adversary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakmeter.auditors.wording import KINDS, SIGNS, capital, terms
from leakmeter.fl_app.report.judge.verdict import Verdict, leads, stake, verdicts
from leakmeter.fl_app.report.markup import Markup, exact, joined, tag
from leakmeter.fl_app.report.read.run import Run

_NONE = tag("span", "–", class_="none")


def comparison(runs: Sequence[Run]) -> Markup:
    """Return the table, with the runs as columns."""
    rows = [*_settings(runs), _row("rounds done", [str(len(run.rounds)) for run in runs])]
    if any(run.accuracy is not None for run in runs):
        shown = [_NONE if run.accuracy is None else exact(run.accuracy) for run in runs]
        rows.append(_row("accuracy at the end", shown))
    rows += _adversaries(runs)
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
    return joined(region, tag("p", note, class_="note"))


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


def _adversaries(runs: Sequence[Run]) -> list[Markup]:
    """Return the first numbers of each adversary, beside those of the other runs."""
    made = [{v.key: v for v in verdicts(run)} for run in runs]
    keys = dict.fromkeys(key for of_run in made for key in of_run)
    rows = []
    for key in keys:
        found = [of_run.get(key) for of_run in made]
        first = next(v for v in found if v is not None)
        what = stake(first.lead)
        rows.append(
            _row(first.who, [_cell(v) for v in found], capital(what) + "?" if what else None)
        )
    return rows


def _cell(verdict: Verdict | None) -> Markup:
    """Return the first numbers of one run."""
    if verdict is None:
        return _NONE
    entries = []
    for f in leads(verdict.findings):
        sign = SIGNS.get(f.kind, "≈") + " "
        if f.quantity != "epsilon" and f.kind == "guarantee":
            sign = ""  # which side is safe depends on the quantity
        unit = "" if f.quantity == "epsilon" else f" {f.quantity}"
        # Runs may have been given different δ and confidences: no number stands without its own.
        about = f"{KINDS[f.kind][0]}{terms(f)}{', saturated' if f.saturated else ''}"
        entries.append(tag("li", sign, exact(f.value, f.kind), unit, tag("small", about)))
    return tag("ul", *entries, class_="plain") if entries else _NONE
