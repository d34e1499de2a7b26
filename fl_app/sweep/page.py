"""The page of a sweep: accuracy against ε, the frontier, and a command for every point."""

from __future__ import annotations

import math

from markupsafe import Markup

from leakmeter.auditors.wording import counted
from leakmeter.fl_app.report import NAME
from leakmeter.fl_app.report.draw.figure import MARKERS, REFERENCE, Axis, Figure, Series
from leakmeter.fl_app.report.html import document
from leakmeter.fl_app.report.html.first_screen import EPSILON
from leakmeter.fl_app.report.html.template import figure, render
from leakmeter.fl_app.sweep.folder import AUDIT, POINTS
from leakmeter.fl_app.sweep.results import Result, Results

_TEMPLATE = """
<section class="compared" aria-label="Frontier"><h1>{{ results.headline }}</h1>
<div{% if chart %} class="pair"{% endif %}>{{ chart }}
<div><p class="warn">{{ notes[0] }}</p>
{% if results.about %}<p>{{ results.about }}</p>{% endif %}
{% for note in notes[1:] %}<p class="note">{{ note|with_code }}</p>{% endfor %}
<p class="note">ε {{ epsilon }}</p></div></div></section>
<section class="compared" aria-labelledby="points"><h2 id="points">All points</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Table of points"><table>
<caption>{{ "* on the frontier" if results.frontier else "No point is on a frontier." }}</caption>
<thead><tr><td></td>{% for head in heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>{% for one in results.points %}{% set first = one.rehearsals[0] %}<tr>
<th scope="row"><data value="{{ one.point.name }}"><span class="alias">{{ one.point.name }}</span>
{% if one in results.frontier %} *{% endif %}</data></th>
{% for cell in results.cells(one) %}<td>
{{ cell.text if cell.number is none else cell.number|data(cell.text) }}
{% if cell.ends %}<small>{{ cell.ends }}</small>{% endif %}
{% if loop.first and one.point.adapted %}<small>{{ one.point.adapted|with_code }}</small>{% endif %}
</td>{% endfor %}
<td>{{ dash if first.without_noise is none
 else first.without_noise|data(wording.share(first.without_noise)) }}</td>
<td>{{ dash if first.clipped_share is none
 else first.clipped_share|data(wording.percent(first.clipped_share|round(2))) }}</td>
<td>{{ dash if first.signal_to_noise is none else first.signal_to_noise|exact }}</td>
<td>{% if one.audit %}<a href="{{ one.point.folder }}/{{ audit }}/{{ page }}">page of
 {{ one.point.name }}</a>{% else %}{{ dash }}{% endif %}</td>
</tr>{% endfor %}</tbody></table></div>
<p class="note">Without noise: accuracy of the same rehearsal, where that was run. Clipped: share
 of updates longer than the clip norm. Update / noise: norm of the mean update of a round over the
 norm of the noise on it, median over rounds.</p></section>
"""
_COMMANDS = """
<p class="note">The first command of a point trains and audits it. The second one repeats its
 rehearsal, whose accuracy is shown above{% if seeds > 1 %} for the first of {{ seeds }} seeds
{% endif %}.</p><div class="keys">
{% for one in points %}
<h3><span class="alias">{{ one.point.name }}</span>{{ " *" if one in frontier }}
 {{ one.point.label }}</h3>
{% for name, command in one.commands.items() %}
<pre tabindex="0" role="group" aria-label="Command of {{ one.point.name }}, {{ name }}">
{{ command|command_line }}</pre>{% endfor %}{% endfor %}</div>
"""


def page(results: Results) -> str:
    """Return the page as one file that fetches nothing."""
    drawn = tradeoff(results)
    first = render(
        _TEMPLATE,
        results=results,
        notes=results.notes,
        epsilon=f"{EPSILON[0].lower()}{EPSILON[1:]}",
        chart=Markup() if drawn is None else figure(drawn, "h2"),
        heads=[*results.heads, "without noise", "clipped", "update / noise", "audit"],
        audit=AUDIT,
        page=NAME,
    )
    about = {"points": results.points, "frontier": results.frontier, "seeds": results.plan.seeds}
    commands = render(_COMMANDS, **about)
    folds = [("commands", "Commands", "to audit a point, and to repeat its rehearsal", commands)]
    title = f"{counted(len(results.points), 'setting')} compared"
    return document(title, "sweep", first, folds=folds, source=POINTS)


def tradeoff(results: Results) -> Figure | None:
    """Return accuracy against what is shown and guaranteed; None where nothing is guaranteed."""
    if not results.frontier:
        return None
    drawn = [one for one in results.points if math.isfinite(results.end(one))]
    points = [_interval(results, one, i) for i, one in enumerate(drawn)]
    kept = results.frontier
    line = Series(
        "frontier",
        [results.end(one) for one in kept],
        [one.accuracy for one in kept],
        color=2,
        kind="guarantee",
    )
    several = results.plan.seeds > 1
    return Figure(
        "frontier",
        "Accuracy against ε",
        f"Accuracy of {counted(len(drawn), 'point')} over ε. The frontier joins those that no "
        "other point beats.",
        "Each point reaches from what its audit shows to what is guaranteed; a single marker is "
        "what is guaranteed, without an audit."
        + " Shaded: from the lowest to the highest accuracy of its seeds."
        * several,
        Axis("ε", "shifted"),
        Axis("accuracy", limits=(0.0, 1.0)),
        (*points, line),
    )


def _interval(results: Results, one: Result, index: int) -> Series:
    """Return a point: from what is shown to what is guaranteed, with the spread over seeds."""
    row = results.shown(one, results.questions[0])
    ends = (*(() if row is None else (row.low,)), results.end(one))
    several = len(one.rehearsals) > 1
    return Series(
        one.point.name,
        ends,
        (one.accuracy,) * len(ends),
        index if one in results.frontier else REFERENCE,
        index // len(MARKERS),
        MARKERS[index % len(MARKERS)],
        low=(min(one.accuracies),) * len(ends) if several else (),
        high=(max(one.accuracies),) * len(ends) if several else (),
    )
