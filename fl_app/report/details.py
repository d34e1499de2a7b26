"""What is folded on the page of a run, and several runs side by side.

Folded are attackers in detail, all ε, all findings and the settings. Several runs have accuracy
against ε, their verdicts, and what differs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from leakmeter.auditors import wording
from leakmeter.auditors.finding import Finding, Kind
from leakmeter.auditors.verdict import labels
from leakmeter.auditors.verdict.sentences import numbers_of, parts
from leakmeter.auditors.verdict.verdict import Asked, Row
from leakmeter.auditors.wording import KINDS, capital, sentence_of, size, terms
from leakmeter.fl_app.report.figure import (
    MARKERS,
    REFERENCE,
    Axis,
    Figure,
    Marker,
    Scale,
    Series,
    axis_strip,
    row_drawing,
)
from leakmeter.fl_app.report.judge import (
    DEFAULTS,
    advice,
    repeat_command,
    resume_command,
    verdict_of,
)
from leakmeter.fl_app.report.read import Run
from leakmeter.fl_app.report.template import DASH, figure, render, strip

# Which setting of our command line says when an auditor looks; another project has its own.
_SETTINGS = {
    "likelihood-ratio": "lrt-every",
    "record-likelihood-ratio": "lrt-every",
    "mutual-information": "mi-every",
    "mine": "mine-every",
}
_CARDS = """
{% if claims %}<h3>What is claimed</h3><ul>
{% for one in claims %}<li>{{ sentences.claim_sentence(one.claim) }}
 <strong>{{ sentences.refutation(one) }}</strong></li>{% endfor %}</ul>{% endif %}
{% if not cards %}<p>The auditors produced no findings; this is not evidence of privacy.</p>
{% else %}<p class="note">
Each card is one attacker and what it tries to find out. “No leak shown” is not “private”. A lower
 bound says at least, a guarantee at most. An estimate comes with what it would be without a leak.
</p><div class="cards">
{% for part, todo in cards %}{% set is_row = part.question is defined %}
<article class="card {{ (part.severity if is_row else "open")|tone }}">
<p class="eyebrow">{{ labels.who(part.attacker) }}
{% if is_row %} · unit {{ part.question.unit }}{% endif %}</p>
{% if is_row %}{{ part.severity|badge }}<h3>{{ sentences.ends(part) }}</h3>
{% else %}<h3>{{ "In bits, so not comparable with ε" if part.bits else "Observed" }}</h3>
{% endif %}<dl>
<dt>Who</dt><dd><p>{{ part.attacker.sentence() }}</p></dd>
{% if is_row %}<dt>At stake</dt><dd><p>{{ wording.sentence(labels.question(part)) }}</p></dd>
{% endif %}
<dt>Found</dt><dd>{% for words in sentences.findings_in_words(part) %}
<p>{{ words }}</p>{% endfor %}</dd>
{% if sentences.reliability(part) %}<dt>How sure</dt>
<dd>{% for words in sentences.reliability(part) %}<p>{{ words }}</p>{% endfor %}</dd>{% endif %}
{% if todo %}<dt>What to do</dt><dd><ul>
{% for words in todo %}<li>{{ words|with_code }}</li>{% endfor %}</ul></dd>{% endif %}
</dl></article>
{% endfor %}</div>{% endif %}
{% if limitations %}<h3>Limits of this audit</h3><ul>
{% for one in limitations %}<li><strong>{{ one.auditor }}</strong>: {{ one.text }}</li>
{% endfor %}</ul>{% endif %}
{% if skips %}<h3>Rounds that were skipped</h3><ul>
{% for auditor, words in skips %}<li><strong>{{ auditor }}</strong>: {{ words|with_code }}.</li>
{% endfor %}</ul>{% endif %}
"""


def cards(run: Run) -> Markup:
    """Return a card for each attacker, the worst first, and the limits of the audit."""
    verdict = verdict_of(run)
    return render(
        _CARDS,
        claims=verdict.claims,
        cards=[(part, advice(part, run, verdict)) for part in parts(verdict)],
        limitations=run.limitations,
        skips=list(_skips(run)),
    )


def _skips(run: Run) -> Iterator[tuple[str, str]]:
    """Yield which rounds an auditor skipped, and by which setting."""
    for one in run.schedules:
        if one.skips:
            setting = _SETTINGS.get(one.auditor) if run.settings else None
            ours = wording.assignments(run.spelling, {setting or "": one.every})
            asked = f"every={one.every}" if setting is None else ours
            yield one.auditor, wording.skipped_rounds(one, asked)


# Of each kind of number: its colour, and a marker that points to where the truth may be.
_LOOKS: Mapping[Kind, tuple[int, Marker]] = {
    "lower_bound": (1, "right"),
    "guarantee": (2, "left"),
    "estimate": (0, "diamond"),
    "approximation": (4, "diamond"),
}
_DOTTED = 2
AXIS = "ε (log scale)"
_FOREST = """
<ul class="legend">{% for one in legend %}<li>{{ one|swatch }}<span>{{ one.label }}</span></li>
{% endfor %}</ul><table class="forest">
<caption>ε of the run: what is guaranteed, what is shown, what is estimated</caption>
<thead><tr><th scope="col">number</th><th scope="col" class="wide">{{ name }}{{ axis }}</th>
<th scope="col">how</th></tr></thead>
<tbody>{% for row in rows %}
<tr><th colspan="3" scope="rowgroup">{{ title(row) }}</th></tr>
{% for f in sentences.numbers_of(row) %}
<tr><td><span class="number">{{ f|exact_claim }}</span></td>
<td class="wide">{{ bar(f, scale) }}
{% if not isfinite(f.value) %}
<small>{{ "no upper bound" if f.kind == "guarantee" else "infinite" }}</small>{% endif %}</td>
<td class="how">{{ how(f) }}</td></tr>
{% endfor %}{% endfor %}</tbody></table>
"""


def forest(run: Run) -> Markup | None:
    """Return all ε of a run on one axis, or nothing if it has none."""
    rows, scale = epsilons(run)
    if not rows:
        return None
    return render(
        _FOREST,
        name=AXIS,
        axis=strip(axis_strip(scale)),
        rows=rows,
        scale=scale,
        title=title,
        bar=bar,
        isfinite=math.isfinite,
        how=_how,
        legend=list(_legend([f for row in rows for f in numbers_of(row)])),
    )


def epsilons(run: Run) -> tuple[Sequence[Row], Scale]:
    """Return all ε of a run by attacker, and the scale on which they are drawn."""
    rows = verdict_of(run).rows
    shown = [f for row in rows for f in numbers_of(row)]
    values = [v for f in shown for v in (f.value, *(f.null_band or ()))]
    return rows, Scale.over(filter(math.isfinite, values), "shifted")


def bar(finding: Finding, scale: Scale) -> Markup:
    """Return a number on the axis."""
    return strip(row_drawing(list(_series(finding, scale)), scale))


def title(row: Row) -> str:
    """Return who attacks, and what is at stake."""
    return f"{row.attacker.sentence()} At stake: {labels.question(row)}."


def _legend(findings: Sequence[Finding]) -> Iterator[Series]:
    """Yield what is drawn, and what it means; dots lead to where the truth may be."""
    for kind in (one for one in _LOOKS if any(f.kind == one for f in findings)):
        (color, marker), is_bound = _LOOKS[kind], kind in ("lower_bound", "guarantee")
        yield Series(wording.KINDS[kind][0], (), (), color, _DOTTED, marker, is_line=is_bound)
    if any(f.cap is not None and math.isfinite(f.cap) for f in findings):
        yield Series("most that could be shown", (), (), REFERENCE)
    if any(f.null_band is not None for f in findings):
        words, one = "without a leak, 90 % of audits", (0.0,)
        yield Series(words, one, one, REFERENCE, low=one, high=one, is_line=False)


def _series(finding: Finding, scale: Scale) -> Iterator[Series]:
    """Yield a number, the side on which the truth may be, its cap and its null band."""
    if (band := finding.null_band) is not None:
        yield Series("", band, (0.5, 0.5), REFERENCE, low=(0, 0), high=(1, 1), is_line=False)
    if not math.isfinite(finding.value):
        return
    color, marker = _LOOKS[finding.kind]
    towards = {"lower_bound": scale.high, "guarantee": scale.low}
    if (end := towards.get(finding.kind)) is not None:
        yield Series("", (finding.value, end), (0.5, 0.5), color, _DOTTED)
    if finding.cap is not None and math.isfinite(finding.cap):
        yield Series("", (finding.cap, finding.cap), (0.0, 1.0), REFERENCE)
    yield Series("", (finding.value,), (0.5,), color, marker=marker, is_line=False)


def _how(f: Finding) -> str:
    sized = f", {words}" if (words := wording.size(f)) else ""
    return wording.sentence(f"{wording.KINDS[f.kind][0]}, {f.auditor}{sized}: {f.rule}")


_TABLES = """
{% for summary, table in tables %}
{% if summary %}<details><summary>{{ summary }}</summary>{{ table }}</details>
{% else %}{{ table }}{% endif %}
{% else %}<p>There are no findings.</p>{% endfor %}
"""
# Attackers and assumptions repeat: each text is once below the table.
_TABLE = """
<div class="scroll" tabindex="0" role="group" aria-label="{{ caption }}">
<table class="findings"><caption>{{ caption }}</caption>
<thead><tr>{% if has_rounds %}<th scope="col">round</th>{% endif %}
{% for head in ("finding", "kind", "value", "δ", "confidence", "cap", "90 % null band", "attacker",
 "how and on what samples", "assumptions") %}
<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>{% for f in findings %}<tr>
{% if has_rounds %}<td>{{ (f.server_round or 0)|exact }}</td>{% endif %}
<th scope="row">{{ wording.quantity(f.quantity) }}<small>{{ f.auditor }}</small></th>
<td>{{ wording.KINDS[f.kind][0] }}
{% if wording.condition(f) %}<small>{{ wording.condition(f) }}</small>{% endif %}</td>
<td class="value">{{ f.value|data(wording.value(f)) }}
{% if wording.remark(f) %}<small>{{ wording.remark(f) }}</small>{% endif %}</td>
<td>{{ dash if f.delta is none else f.delta|exact }}</td>
<td>{{ dash if f.confidence is none else f.confidence|data(wording.percent(f.confidence)) }}</td>
<td>{{ dash if f.cap is none else f.cap|exact }}
{% if f.saturated %}<span class="tag">saturated</span>{% endif %}</td>
<td>{% if f.null_band %}{{ f.null_band[0]|exact }} to {{ f.null_band[1]|exact }}
{% else %}{{ dash }}{% endif %}</td>
<td>{{ attackers[attacker(f)] }}</td>
<td class="how">{{ f.rule }}
{% if f.sample_sizes or f.seed is not none %}<small>
{% for name, n in f.sample_sizes.items() %}{{ "; " if not loop.first }}{{ n|exact }} {{ name }}
{% endfor %}
{% if f.seed is not none %}{{ "; " if f.sample_sizes }}seed {{ f.seed|exact }}{% endif %}</small>
{% endif %}
{% for name, fact in f.facts.items() if fact is not none %}{% if loop.first %}<small>{% endif %}
{{ "; " if not loop.first }}{{ name|replace("_", " ") }}: {{ fact|exact }}
{% if loop.last %}</small>{% endif %}{% endfor %}</td>
<td>{% for name in f.assumptions %}{{ ", " if not loop.first }}{{ assumptions[name] }}
{% else %}{{ dash }}{% endfor %}</td>
</tr>{% endfor %}</tbody></table></div>
{% for title, keys in legends if keys %}
<div class="keys"><h3>{{ title }}</h3><dl>
{% for key, words in keys %}<dt>{{ key }}</dt><dd>{{ words }}</dd>{% endfor %}</dl></div>
{% endfor %}
"""


def tables(run: Run) -> Markup:
    """Return the findings of the run, then those of its rounds, folded one auditor at a time."""
    of_rounds: dict[str, list[Finding]] = {}
    for f in run.findings:
        if f.server_round is not None:
            of_rounds.setdefault(f.auditor, []).append(f)
    parts = []
    if run.of_the_run:
        parts.append(("", _table(run.of_the_run, "Findings about the run as a whole")))
    for auditor, found in of_rounds.items():
        rounds = wording.counted(len({f.server_round for f in found}), "round")
        summary = f"{auditor}: {wording.counted(len(found), 'finding')} about {rounds}, each alone"
        parts.append((summary, _table(found, f"{auditor}, round by round")))
    return render(_TABLES, tables=parts)


def _table(findings: Sequence[Finding], caption: str) -> Markup:
    who = {words: f"A{i}" for i, words in enumerate(dict.fromkeys(map(_attacker, findings)), 1)}
    named = dict.fromkeys(name for f in findings for name in f.assumptions)
    assumptions = {name: str(i) for i, name in enumerate(named, start=1)}
    return render(
        _TABLE,
        caption=caption,
        findings=findings,
        has_rounds=any(f.server_round is not None for f in findings),
        attackers=who,
        assumptions=assumptions,
        legends=(
            ("Attackers", [(key, words) for words, key in who.items()]),
            ("Assumptions", [(key, sentence_of(name)) for name, key in assumptions.items()]),
        ),
        attacker=_attacker,
    )


def _attacker(f: Finding) -> str:
    adjacency = f", {f.adjacency}" if f.adjacency else ""
    return f"{f.threat_model.sentence()} [{f.unit}{adjacency}]"


_REPEAT = """
{% if resume %}<p>The run is not finished. To resume it:</p><pre><code>{{ resume }}</code></pre>
{% endif %}
{% if command %}<p>The same seed gives the same findings on the same machine:</p>
<pre>{{ command|command_line }}</pre>
{% else %}<p>This run is of another project: start it again as before, with the same seeds.</p>
{% endif %}
{% for title, caption, rows in pairs %}
{% if rows %}<details data-print><summary>{{ title }} ({{ rows|length }})</summary>
<table class="pairs"><caption>{{ caption }}</caption><tbody>
{% for name, words, is_changed in rows %}<tr><th scope="row">{{ name }}</th>
<td>{% if is_changed %}<strong>{{ words }}</strong>{% else %}{{ words }}{% endif %}</td></tr>
{% endfor %}</tbody></table></details>
{% elif title == "Settings" %}<p>No settings were noted.</p>{% endif %}
{% endfor %}
<p>Folder: <code>{{ folder }}</code></p>
"""


def repeat(run: Run) -> Markup:
    """Return how a run was made and how to make it again: command, settings, releases."""
    command = repeat_command(run)
    is_cut = not (run.is_finished or run.is_running) and command is not None
    here = replace(run, folder=Path(run.folder.name))
    return render(
        _REPEAT,
        command=command,
        resume=resume_command(here) if is_cut else "",
        pairs=(
            ("Settings", "Settings; bold is not the default", _pairs(run.config)),
            ("Releases", "Releases", _pairs(run.versions)),
        ),
        folder=run.folder.name,
    )


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return name, value in words, and whether it is not the default."""
    return [
        (name, _words(value), name in DEFAULTS and value != DEFAULTS[name])
        for name, value in values.items()
    ]


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "–"


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
<tbody>{% for run, folder in runs %}{% set row = worst(run) %}
<tr><th scope="row"><a href="#verdicts-{{ loop.index }}">{{ run.name }}</a>
{% if folder != run.name %}<small>{{ folder }}</small>{% endif %}</th>
{% if row %}<td>{{ row.severity|badge }}<small>{{ labels.who(row.attacker) }}</small></td>
<td>{{ labels.shown_cell(row) }}</td><td>{{ labels.at_most_cell(row) }}</td>
{% else %}<td>{{ dash }}</td><td>{{ dash }}</td><td>{{ dash }}</td>{% endif %}
<td>{{ dash if run.accuracy is none else run.accuracy|data(wording.share(run.accuracy)) }}</td></tr>
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
        runs=list(zip(runs, places, strict=True)),
        worst=lambda run: next(iter(verdict_of(run).rows), None),
        charts=[figure(one, "h2") for one in tradeoff(runs)],
        rows=[*_settings(runs), *_attackers(runs)],
    )


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
    for f in numbers_of(row):
        about = [_about(f)]
        if f not in row.findings:
            than = "stronger" if f.kind == "guarantee" else "weaker"
            about.append(f"for a {than} attacker, so for this one too")
        entries.append((f, about))
    return render(_CELL, entries=entries) if entries else DASH


def _about(f: Finding) -> str:
    sized = f", {words}" if (words := size(f)) else ""
    return f"{KINDS[f.kind][0]}{terms(f)}{sized}{', saturated' if f.saturated else ''}"


def alias_runs(runs: Sequence[Run]) -> list[Run]:
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
