"""Several runs compared: accuracy against ε, their verdicts, and what differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from leakmeter.auditors import wording
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.verdict import labels
from leakmeter.auditors.verdict.meaning import told
from leakmeter.auditors.verdict.verdict import Asked, Row
from leakmeter.auditors.wording import KINDS, capital, share, size, terms
from leakmeter.fl_app.report.draw.figure import MARKERS, Axis, Figure, Series
from leakmeter.fl_app.report.html.template import DASH, data, figure, render
from leakmeter.fl_app.report.judge.of_run import verdict_of
from leakmeter.fl_app.report.read import Run

_Row = tuple[str, str, Sequence[str]]
# Settings that say most about a run, so that its short name prefers them.
_TELLING = ("noise", "target-epsilon", "clip-norm", "secagg", "algorithm", "model", "dataset")
_MAX_LETTERS = 24  # of a value in a short name

# The first note is outside the box that scrolls: on a phone its end would be out of sight.
_TEMPLATE = """
<section class="compared" aria-label="Comparison"><h1>{{ runs|length }} runs compared</h1>
<div{% if charts %} class="pair"{% endif %}>
{% for one in charts %}{{ one }}{% endfor %}
<div><p class="note">A smaller lower bound proves nothing: compare the upper bounds.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Verdicts"><table>
<caption class="hidden">The worst attacker of each run</caption>
<thead><tr>
{% for head in ("run", "worst attacker", "shown", "at most", "accuracy") %}
<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>{% for run, folder, worst, accuracy in runs %}
<tr><th scope="row"><a href="#verdicts-{{ loop.index }}">{{ run.name }}</a>
{% if folder != run.name %}<small>{{ folder }}</small>{% endif %}</th>
{% if worst %}<td>{{ worst.severity|badge }}<small>{{ labels.who(worst.attacker) }}</small></td>
<td>{{ labels.shown(worst) }}</td><td>{{ labels.at_most(worst) }}</td>
{% else %}<td>{{ dash }}</td><td>{{ dash }}</td><td>{{ dash }}</td>{% endif %}
<td>{{ accuracy }}</td></tr>
{% endfor %}</tbody></table></div></div></div></section>
<section class="compared"><h2>Settings that differ, and each attacker</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Details"><table class="compare">
<caption class="hidden">Runs side by side: settings that differ, and each attacker</caption>
<thead><tr><td></td>{% for one in runs %}<th scope="col">{{ one[0].name }}</th>{% endfor %}</tr>
</thead>
<tbody>{% for head, small, cells in rows %}
<tr><th scope="row">{{ head }}{% if small %}<small>{{ small }}</small>{% endif %}</th>
{% for cell in cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<p class="note">≤ guarantee, ≥ lower bound with confidence, ≈ estimate or approximation.</p>
</section>
"""
_CELL = """
<ul class="plain">{% for f, about in entries %}<li>{{ f|exact_claim }}
{% for words in about %}<small>{{ words }}</small>{% endfor %}</li>{% endfor %}</ul>
"""


def comparison(runs: Sequence[Run]) -> Markup:
    """Return accuracy against ε, the runs with their verdicts, and a table of what differs."""
    places = [run.folder.name for run in runs]
    if len(set(places)) < len(runs):
        places = [f"{run.folder.parent.name}/{run.folder.name}" for run in runs]
    return render(
        _TEMPLATE,
        runs=[_verdict(run, place) for run, place in zip(runs, places, strict=True)],
        charts=[figure(one, "h2") for one in tradeoff(runs)],
        rows=[*_settings(runs), *_attackers(runs)],
    )


def _verdict(run: Run, place: str) -> tuple[Any, ...]:
    """Return one line about a run: itself, its folder, its worst attacker, accuracy."""
    rows = verdict_of(run).rows
    accuracy = DASH if run.accuracy is None else data(run.accuracy, share(run.accuracy))
    return run, place, rows[0] if rows else None, accuracy


def _settings(runs: Sequence[Run]) -> list[_Row]:
    """Return the settings that differ, and the rounds done if settings do not say as much."""
    rows: list[_Row] = []
    done = [len(run.rounds) for run in runs]
    if len(set(done)) > 1 and done != [run.config.get("rounds") for run in runs]:
        rows.append(("rounds done", "", [str(n) for n in done]))
    return [*rows, *((name, "", values) for name, values in _differing(runs).items())]


def _differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the settings that differ, with the value of each run in words."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    values = {name: [run.config.get(name) for run in runs] for name in names}
    return {
        name: [_value(one) for one in of_runs]
        for name, of_runs in values.items()
        if any(one != of_runs[0] for one in of_runs)
    }


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value in (None, "") else str(value)


def _attackers(runs: Sequence[Run]) -> list[_Row]:
    """Return both ends of each attacker and question, next to those of the other runs."""
    asked = _asked(runs)
    made = [{row.asked: row for row in reversed(verdict_of(run, asked).rows)} for run in runs]
    rows: list[_Row] = []
    for key in asked:
        cells = [_cell(of_run[key]) for of_run in made]
        sentence = wording.attacker(key[0], is_sized=False)
        rows.append((sentence, f"{capital(labels.question(made[0][key]))}?", cells))
    return rows


def _asked(runs: Sequence[Run]) -> list[Asked]:
    """Return every attacker and question of the runs."""
    return list(dict.fromkeys(row.asked for run in runs for row in verdict_of(run).rows))


def _cell(row: Row) -> Markup:
    """Return what one run shows and guarantees; no number without its own δ and confidence."""
    entries = []
    for f in told(row):
        about = [_about(f)]
        if f not in row.findings:
            than = "stronger" if f.kind == "guarantee" else "weaker"
            about.append(f"for a {than} attacker, so for this one too")
        entries.append((f, about))
    return render(_CELL, entries=entries) if entries else DASH


def _about(f: Finding) -> str:
    sized = f", {words}" if (words := size(f)) else ""
    return f"{KINDS[f.kind][0]}{terms(f)}{sized}{', saturated' if f.saturated else ''}"


def aliased(runs: Sequence[Run]) -> list[Run]:
    """Return runs with short names: the settings that differ, as few as tell the runs apart.

    Runs that somebody has named keep their names, and so do those with equal settings.
    """
    if any(not run.name.endswith(run.folder.name) for run in runs):
        return list(runs)
    differing, names = _differing(runs), [""] * len(runs)
    for setting in (*filter(differing.__contains__, _TELLING), *differing):
        word = setting.rpartition(".")[2]  # of another project: run-config.lr
        values = (one[:_MAX_LETTERS] for one in differing[setting])
        longer = [f"{n}, {word} {v}".lstrip(", ") for n, v in zip(names, values, strict=True)]
        names = longer if len(set(longer)) > len(set(names)) else names
    return [
        replace(
            run, name=name if names.count(name) == 1 else ", ".join(filter(None, (name, run.name)))
        )
        for run, name in zip(runs, names, strict=True)
    ]


def tradeoff(runs: Sequence[Run]) -> Iterator[Figure]:
    """Yield accuracy against the ε of the attacker that most runs have in common.

    Nothing if no run has an accuracy and an ε that is shown or guaranteed.
    """
    asked = _asked(runs)  # what a run shows of a weaker attacker, it shows of a stronger one
    lines = [{row.asked: row for row in verdict_of(run, asked).rows if _ends(row)} for run in runs]
    key = _common(lines)
    drawn = [
        Series(run.name, ends, (run.accuracy,) * len(ends), i, i // 4, MARKERS[i % 4])
        for i, (run, own) in enumerate(zip(runs, lines, strict=True))
        if key in own and run.accuracy is not None and (ends := _ends(own[key]))
    ]
    if key is None or not drawn:
        return
    example = next(own[key] for own in lines if key in own)
    yield Figure(
        "tradeoff",
        "Accuracy against ε",
        f"Accuracy of {len(drawn)} runs over the ε of one attacker: {labels.who(key[0])}.",
        f"{labels.subject(key[0])}: {labels.tells(example)}? From what "
        "is shown to what is guaranteed; a single point has no upper bound, and more may leak.",
        Axis("ε", "shifted"),
        Axis("accuracy", limits=(0.0, 1.0)),
        tuple(drawn),
        question="What does protection cost?",
    )


def _common(lines: Sequence[Mapping[Asked, Row]]) -> Asked | None:
    """Return the attacker that most runs have; of several the one that shows the most."""
    counts = Counter(key for own in lines for key in own)
    most = {key: max(_ends(own[key])[0] for own in lines if key in own) for key in counts}
    return max(counts, key=lambda key: (counts[key], most[key]), default=None)


def _ends(row: Row) -> tuple[float, ...]:
    """Return the shown and the guaranteed ε of a row; a single one has no guarantee above it."""
    finite = [row.high] if math.isfinite(row.high) else []
    # Where nothing is shown, the truth may be anywhere from 0 to the guarantee.
    return tuple(dict.fromkeys([*([row.low] if row.low > 0 or finite else []), *finite]))
