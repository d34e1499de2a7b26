"""Several runs compared: accuracy against ε, their verdicts, and what differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import ascii_uppercase
from typing import Any

from markupsafe import Markup

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.judge import terse
from leakmeter.auditors.judge.adversary import Adversary, Group, is_promise
from leakmeter.auditors.judge.meaning import stake
from leakmeter.auditors.judge.standing import Standing, standings
from leakmeter.auditors.wording import KINDS, capital, is_epsilon, share, size, terms
from leakmeter.fl_app.report.draw.figure import MARKERS, Axis, Figure, Series
from leakmeter.fl_app.report.html.first_screen import upper_bound
from leakmeter.fl_app.report.html.template import DASH, data, figure, render
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.read import Run

_Row = tuple[str, str, Sequence[str]]

# The first note is outside the box that scrolls: on a phone its end would be out of sight.
_TEMPLATE = """
<section class="compared" aria-label="Comparison"><h1>{{ runs|length }} runs compared</h1>
<div{% if charts %} class="pair"{% endif %}>
{% for one in charts %}{{ one }}{% endfor %}
<div><p class="note">A smaller lower bound proves nothing: compare the upper bounds.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Verdicts"><table>
<caption class="hidden">The worst attacker of each run</caption>
<thead><tr><td></td>
{% for head in ("run", "worst attacker", "shown", "upper bound", "accuracy") %}
<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>{% for alias, name, worst, upper, accuracy in runs %}
<tr><td><span class="alias">{{ alias }}</span></td>
<th scope="row"><a href="#verdicts-{{ loop.index }}">{{ name }}</a></th>
{% if worst %}<td>{{ worst|badge }}<small>{{ worst.who }}</small></td><td>{{ worst.shown }}</td>
{% else %}<td>{{ dash }}</td><td>{{ dash }}</td>{% endif %}
<td>{% if upper %}{{ upper[0] }}<small>{{ upper[1] }}</small>{% else %}none{% endif %}</td>
<td>{{ accuracy }}</td></tr>
{% endfor %}</tbody></table></div></div></div></section>
<section class="compared"><h2>Settings that differ, and each attacker</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Details"><table class="compare">
<caption class="hidden">Runs side by side: settings that differ, and each attacker</caption>
<thead><tr><td></td>{% for alias in aliases %}
<th scope="col"><span class="alias">{{ alias }}</span></th>{% endfor %}</tr></thead>
<tbody>{% for head, small, cells in rows %}
<tr><th scope="row">{{ head }}{% if small %}<small>{{ small }}</small>{% endif %}</th>
{% for cell in cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<p class="note">≤ guarantee, ≥ lower bound with confidence, ≈ estimate or approximation.</p>
</section>
"""
_CELL = """
<ul class="plain">{% for f, upper, about in entries %}<li>{{ f|exact_claim(upper) }}
{% for words in about %}<small>{{ words }}</small>{% endfor %}</li>{% endfor %}</ul>
"""


def comparison(runs: Sequence[Run]) -> Markup:
    """Return accuracy against ε, the runs with their verdicts, and a table of what differs."""
    names = aliases(runs)
    return render(
        _TEMPLATE,
        runs=[_verdict(run, name) for run, name in zip(runs, names, strict=True)],
        aliases=names,
        charts=[figure(one, "h2") for one in tradeoff(runs, names)],
        rows=[*_settings(runs), *_attackers(runs)],
    )


def _verdict(run: Run, alias: str) -> tuple[Any, ...]:
    """Return one line about a run: its short name, its worst attacker, accuracy."""
    lines = [one for one in standings(verdicts(run)) if not one.is_statement]
    accuracy = DASH if run.accuracy is None else data(run.accuracy, share(run.accuracy))
    return alias, run.name, lines[0] if lines else None, upper_bound(run), accuracy


def _settings(runs: Sequence[Run]) -> list[_Row]:
    """Return the settings that differ, and the rounds done if settings do not say as much."""
    rows: list[_Row] = []
    done = [len(run.rounds) for run in runs]
    if len(set(done)) > 1 and done != [run.config.get("rounds") for run in runs]:
        rows.append(("rounds done", "", [str(n) for n in done]))
    for name in dict.fromkeys(name for run in runs for name in run.config):
        values = [run.config.get(name) for run in runs]
        if any(value != values[0] for value in values):
            rows.append((name, "", [_value(v) for v in values]))
    return rows


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value in (None, "") else str(value)


def _attackers(runs: Sequence[Run]) -> list[_Row]:
    """Return the first numbers of each attacker, next to those of the other runs."""
    made = [{v.group.adversary: v.group for v in verdicts(run)} for run in runs]
    rows: list[_Row] = []
    for key in dict.fromkeys(key for of_run in made for key in of_run):
        groups = [of_run.get(key) or _elsewhere(key, of_run) for of_run in made]
        what = next(stake(g.findings[0]) for g in groups if g is not None)
        cells = [DASH if g is None else _cell(g) for g in groups]
        rows.append((key.sentence(), capital(what) + "?" if what else "", cells))
    return rows


def _elsewhere(key: Adversary, groups: dict[Adversary, Group]) -> Group | None:
    """Return guarantees of this run that are about an attacker of another run.

    They may be next to a bound in this run, and alone in the other. Without them, the
    smallest for a stronger attacker covers this one too.
    """
    every = [f for group in groups.values() for f in (*group.findings, *group.guarantees)]
    promised = [f for i, f in enumerate(every) if is_promise(f) and f not in every[:i]]
    if same := tuple(f for f in promised if Adversary.of(f) == key):
        return Group(key, same)
    # Of the same question, for an attacker that has at least as much.
    about = (key.unit, key.adjacency)
    stronger = [f for f in promised if (f.unit, f.adjacency) == about]
    stronger = [f for f in stronger if key.adjacency and key.model.is_within(f.threat_model)]
    return Group(key, (min(stronger, key=lambda f: f.value),)) if stronger else None


def _cell(group: Group) -> Markup:
    """Return the first numbers of one run."""
    entries = []
    for f, upper in group.rows:
        # Runs may have been given different δ and confidences: no number is without its own.
        about = [_about(one) for one in (f, upper) if one is not None]
        if not group.guarantees and is_promise(f) and Adversary.of(f) != group.adversary:
            about.append("for a stronger attacker, so for this one too")
        entries.append((f, upper, about))
    return render(_CELL, entries=entries) if entries else DASH


def _about(f: Finding) -> str:
    sized = f", {words}" if (words := size(f)) else ""
    return f"{KINDS[f.kind][0]}{terms(f)}{sized}{', saturated' if f.saturated else ''}"


def aliases(runs: Sequence[Run]) -> list[str]:
    """Return a short name for each run: A to Z, then numbers."""
    is_few = len(runs) <= len(ascii_uppercase)
    return [ascii_uppercase[i] if is_few else str(i + 1) for i in range(len(runs))]


def tradeoff(runs: Sequence[Run], names: Sequence[str]) -> Iterator[Figure]:
    """Yield accuracy against the ε of the attacker that most runs, named so, have in common.

    Nothing if no run has an accuracy and an ε that is shown or guaranteed.
    """
    lines = [_by_attacker(run) for run in runs]
    key = _common(lines)
    drawn = [
        Series(name, ends, (run.accuracy,) * len(ends), i, i // 4, MARKERS[i % 4])
        for i, (run, name, own) in enumerate(zip(runs, names, lines, strict=True))
        if key in own and run.accuracy is not None and (ends := _ends(own[key]))
    ]
    if key is None or not drawn:
        return
    example = next(own[key] for own in lines if key in own)
    yield Figure(
        "tradeoff",
        "Accuracy against ε",
        f"Accuracy of {len(drawn)} runs over the ε of one attacker: {example.who}.",
        f"{terse.subject(example.lead.threat_model)}: {terse.tells(example.lead)}? From what "
        "is shown to what is guaranteed; a single point has no upper bound, and more may leak.",
        Axis("ε", "shifted"),
        Axis("accuracy", limits=(0.0, 1.0)),
        tuple(drawn),
    )


def _by_attacker(run: Run) -> Mapping[Adversary | None, Standing]:
    """Return the lines of a run that have an ε, by attacker and question."""
    lines = [one for one in reversed(standings(verdicts(run))) if _ends(one)]
    return {replace(one.verdict.group.adversary, is_measured=True): one for one in lines}


def _common(lines: Sequence[Mapping[Adversary | None, Standing]]) -> Adversary | None:
    """Return the attacker that most runs have; of several the one that shows the most."""
    counts = Counter(key for own in lines for key in own)
    most = {key: max(_ends(own[key])[0] for own in lines if key in own) for key in counts}
    return max(counts, key=lambda key: (counts[key], most[key]), default=None)


def _ends(one: Standing) -> tuple[float, ...]:
    """Return the shown and the guaranteed ε of a line; a single one has no guarantee above it."""
    lead, upper = one.lead, one.upper
    is_shown = is_epsilon(lead) and lead.kind == "lower_bound" and not lead.is_conditional
    low = [lead.value] if is_shown else []
    high = [upper.value] if upper is not None and is_promise(upper) else []
    finite = [value for value in high if math.isfinite(value)]
    # Where nothing is shown, the truth may be anywhere from 0 to the guarantee.
    return tuple(dict.fromkeys([*(low or ([0.0] if finite else [])), *finite]))
