"""What came of the points of a sweep, which are on the frontier, and the page that says so.

Points are ordered by what is guaranteed. What an audit shows is a lower bound: a smaller one proves
nothing, so it orders nothing.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from leakmeter.auditors.codec import plain
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.verdict import labels
from leakmeter.auditors.verdict.claim import Question
from leakmeter.auditors.verdict.gate import attacker_name
from leakmeter.auditors.verdict.lines import Ending, columns
from leakmeter.auditors.verdict.verdict import Asked, Row, judge
from leakmeter.auditors.wording import counted, number, plain_spaces, share
from leakmeter.fl_app.config.field import program
from leakmeter.fl_app.report import NAME
from leakmeter.fl_app.report.export import csv_cell
from leakmeter.fl_app.report.figure import MARKERS, REFERENCE, Axis, Figure, Series
from leakmeter.fl_app.report.judge import command_of, verdict_of
from leakmeter.fl_app.report.page import EPSILON, document
from leakmeter.fl_app.report.read import Rehearsal, Run
from leakmeter.fl_app.report.template import figure, render
from leakmeter.fl_app.run.rehearsal import alone
from leakmeter.fl_app.sweep.points import Point, SweepPlan, typed_value

SCHEMA: Final = "leakmeter-sweep/1"
AUDIT: Final = "audit"  # the folder of a point's audited run, in that of the point
POINTS, TABLE = "points.json", "points.csv"  # all numbers
COST: Final = (
    "Choosing a setting by its accuracy on private data costs privacy that no ε here covers: each "
    "is about one run with that setting alone. Choose on public data where you can."
)
ACCURACY: Final = (
    "Accuracy is that of rehearsals, the same runs without auditors: no canary changes the model."
)
_REFUTED: Final = (
    "The audit shows more than is guaranteed at {}: a guarantee is wrong, so do not rely on this "
    "frontier. The page of the audit says which."
)
_MEASURED: Final = (
    "Clip norms were measured on the clients' data (--clip-norm auto), which no ε here covers."
)
_NO_GUARANTEE: Final = (
    "No point guarantees anything, so there is no frontier and nothing was audited. Add --noise "
    "distributed, or name other attackers with --against."
)
# The question that a target is about comes first.
_ORDER: Final = ("zero-out", "add-remove", "replace", "honest-seat")


class Cell(NamedTuple):
    """What is printed of a point, the number behind it, and between which ends it varies."""

    text: str
    number: float | None = None
    ends: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.ends})" if self.ends else self.text


@dataclass(frozen=True)
class Result:
    """What came of one point.

    Attributes:
        point: The point.
        rehearsals: One for each seed.
        audit: The audited run with the first seed; None if there is none.
    """

    point: Point
    rehearsals: tuple[Rehearsal, ...]
    audit: Run | None = None

    @property
    def accuracies(self) -> list[float]:
        """Accuracy of the last model for each seed."""
        return [one.accuracy for one in self.rehearsals]

    @property
    def accuracy(self) -> float:
        """Their mean."""
        return fmean(self.accuracies)

    @property
    def commands(self) -> dict[str, str]:
        """Commands that make the point again with the first seed: audited, and as a rehearsal."""
        config = self.point.configs[0]
        runs = {"audit": config, "rehearsal": alone(config)}
        return {name: command_of([program()], one.to_mapping()) for name, one in runs.items()}


@dataclass(frozen=True)
class Results:
    """All points of a sweep, and what orders them.

    Attributes:
        plan: What was asked for.
        points: Those that have run.
        refused: Why others could not, in words.
    """

    plan: SweepPlan
    points: tuple[Result, ...]
    refused: tuple[str, ...] = ()

    @cached_property
    def asked(self) -> tuple[Asked, ...]:
        """Attackers and questions for which some point guarantees something."""
        rows = (row for one in self.points for row in _guarantees(one))
        against = self.plan.against
        return tuple(
            dict.fromkeys(
                row.asked
                for row in rows
                if math.isfinite(row.high)
                and against in ("", row.attacker.observer, attacker_name(row.attacker))
            )
        )

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """What ε is about: the question that orders the points first, as a rule the target's."""
        configs = (one.point.configs[0] for one in self.points)
        aimed = {config.target_adjacency for config in configs if config.target_epsilon}
        found = dict.fromkeys(question for _, question in self.asked)
        answered = {
            q: sum(self.guaranteed(one, q) is not None for one in self.points) for q in found
        }

        def place(q: Question) -> tuple[int, bool, int, str]:
            return -answered[q], q.adjacency not in aimed, _ORDER.index(q.adjacency), q.unit

        return tuple(sorted(found, key=place))

    def guaranteed(self, result: Result, question: Question) -> Finding | None:
        """Return the largest guarantee over attackers and seeds; None if one of them lacks any."""
        rows = (row for row in self._rows[result.point.name] if self._is_about(row, question))
        worst = max(rows, key=lambda row: row.high, default=None)
        return None if worst is None or math.isinf(worst.high) else worst.at_most

    def shown(self, result: Result, question: Question) -> Row | None:
        """Return the row of the audit that shows the most to these attackers; None without one."""
        if result.audit is None:
            return None
        rows = verdict_of(result.audit, self.asked).rows
        own = [row for row in rows if self._is_about(row, question)]
        return max(own, key=lambda row: row.low, default=None)

    def _is_about(self, row: Row, question: Question) -> bool:
        return row.question == question and row.asked in self.asked

    @cached_property
    def _rows(self) -> Mapping[str, list[Row]]:
        """What is guaranteed to the attackers of all points, by the name of each point."""
        return {one.point.name: list(_guarantees(one, self.asked)) for one in self.points}

    @cached_property
    def frontier(self) -> tuple[Result, ...]:
        """The points that no other one beats, from the smallest guarantee to the largest."""
        ends = [self.end(one) for one in self.points]
        keeps = frontier([one.accuracy for one in self.points], ends)
        kept = [one for one, is_kept in zip(self.points, keeps, strict=True) if is_kept]
        return tuple(sorted(kept, key=lambda one: (self.end(one), one.accuracy)))

    def end(self, result: Result) -> float:
        """Return the guaranteed ε that orders a point; infinite where nothing is guaranteed."""
        return self._end(result, self.questions[0]) if self.questions else math.inf

    def _end(self, result: Result, question: Question) -> float:
        found = self.guaranteed(result, question)
        return math.inf if found is None else found.value

    @property
    def headline(self) -> str:
        """Where the frontier goes, in a sentence."""
        if not self.frontier:
            return _NO_GUARANTEE
        ends = dict.fromkeys(self._described(self.frontier[i]) for i in (0, -1))
        count = f"{len(self.frontier)} of {counted(len(self.points), 'point')}"
        are = "is" if len(self.frontier) == 1 else "are"
        said = f": {next(iter(ends))}" if len(ends) == 1 else f", from {' to '.join(ends)}"
        return f"{count} {are} on the frontier{said}."

    def _described(self, one: Result) -> str:
        asked = f" ({self.questions[0].adjacency})" if len(self.questions) > 1 else ""
        return f"{self.ends(one)[0]}{asked} with accuracy {share(one.accuracy)} ({one.point.name})"

    @property
    def about(self) -> str:
        """What the frontier is, in sentences."""
        if not self.frontier:
            return ""
        who = "; ".join(dict.fromkeys(labels.who(attacker) for attacker, _ in self.asked))
        return (
            "On the frontier: no other point is as accurate with a smaller guaranteed ε. It limits "
            f"what can be told: {' and '.join(map(_asks, self.questions))}, at δ = "
            f"{self.points[0].point.configs[0].delta:g}, against: {who}."
        )

    @property
    def notes(self) -> list[str]:
        """What everybody who reads the numbers must know, the most important first."""
        is_measured = any(
            config.clipping == "measured" for one in self.points for config in one.point.configs
        )
        refuted = [
            one.point.name
            for one in self.points
            if one.audit is not None and verdict_of(one.audit).headline[0] == "refuted"
        ]
        return [
            *([_REFUTED.format(", ".join(refuted))] if refuted else []),
            COST,
            ACCURACY,
            *([_MEASURED] if is_measured else []),
            *(f"Left out, since it cannot run: {reason}" for reason in self.refused),
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return the points as rows with all digits, for CSV."""
        return [
            {
                "point": one.point.name,
                **one.point.values,
                "accuracy": one.accuracy,
                "accuracy_low": min(one.accuracies),
                "accuracy_high": max(one.accuracies),
                "seeds": len(one.rehearsals),
                **{f"guaranteed_{_id(q)}": self._end(one, q) for q in self.questions},
                **{f"shown_{_id(q)}": _low(self.shown(one, q)) for q in self.questions},
                "frontier": one in self.frontier,
                "without_noise": one.rehearsals[0].without_noise,
                "audited_accuracy": None if one.audit is None else one.audit.accuracy,
                "clip_norm": one.rehearsals[0].clip_norm,
                "clipped_share": one.rehearsals[0].clipped_share,
                "signal_to_noise": one.rehearsals[0].signal_to_noise,
                "command": one.commands["audit"],
                "rehearsal_command": one.commands["rehearsal"],
            }
            for one in self.points
        ]

    def to_csv(self) -> str:
        """Return the table of all points."""
        text, rows = io.StringIO(), self.rows()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
        return text.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        rows = self.rows()
        for row, one in zip(rows, self.points, strict=True):
            row["settings"] = {name: row.pop(name) for name in one.point.values}
            row["adapted"] = one.point.adapted
            row["rehearsals"] = one.rehearsals
            row["folder"] = one.point.folder
        return {
            "schema": SCHEMA,
            "delta": self.points[0].point.configs[0].delta,
            "attackers": sorted({attacker_name(attacker) for attacker, _ in self.asked}),
            "questions": plain(self.questions),
            "frontier": [one.point.name for one in self.frontier],
            "about": plain_spaces(self.about),
            "notes": self.notes,
            "points": plain(rows),
        }

    @property
    def heads(self) -> list[str]:
        """Names of the cells of a point."""
        heads = [*(axis.name for axis in self.plan.axes), "accuracy", *map(_short, self.questions)]
        return [*heads, "shown"] if self.questions else heads

    def cells(self, one: Result) -> list[Cell]:
        """Return a point as terminal and page show it."""
        values = [Cell(typed_value(one.point.values[axis.name])) for axis in self.plan.axes]
        return [*values, _spread(one.accuracies), *self.ends(one), *self._seen(one)]

    def ends(self, one: Result) -> list[Cell]:
        """Return what is guaranteed for each question."""
        found = [self.guaranteed(one, question) for question in self.questions]
        return [Cell("no bound") if f is None else Cell(labels.amount(f), f.value) for f in found]

    def _seen(self, one: Result) -> Iterator[Cell]:
        """Yield what the audit shows for the first question."""
        row = self.shown(one, self.questions[0]) if self.questions else None
        if row is not None:
            is_shown = row.shown is not None and row.low > 0
            yield Cell(labels.amount(row.shown) if row.shown and is_shown else "nothing", row.low)
        elif self.questions:
            yield Cell("not audited")

    def lines(self, ending: Ending) -> list[str]:
        """Return the table and its notes for a terminal, then the commands of the frontier."""
        rows = [
            [one.point.name + " *" * (one in self.frontier), *map(str, self.cells(one))]
            for one in self.points
        ]
        said = ending.wrapped(f"FRONTIER  {self.headline}", " " * len("FRONTIER  "))
        said += ["", *columns([head.upper() for head in ("point", *self.heads)], rows, ending)]
        said += ending.wrapped(f"* {self.about}", "  ") if self.about else []
        said += [line for note in self.notes for line in ending.wrapped(note)]
        for one in self.frontier:
            said += ["", *ending.wrapped(f"{one.point.name}  {one.point.label}:")]
            said += [ending.spelled(f"   {one.commands['audit']}")]
        return [plain_spaces(line) for line in said]


def _guarantees(result: Result, also: Sequence[Asked] = ()) -> Iterator[Row]:
    """Yield what is guaranteed to each attacker, for each seed."""
    for rehearsal in result.rehearsals:
        yield from judge(rehearsal.guarantees, also=also).rows


def frontier(accuracies: Sequence[float], ends: Sequence[float]) -> list[bool]:
    """Return for each point whether no other one beats it: as accurate, with a smaller ε.

    Guarantees that are equal in their printed digits count as equal: noise that is calibrated for
    one target misses it by a little, and by another little elsewhere. A point without a guarantee
    is on no frontier. Of points that are equal in everything, all are.

    Args:
        accuracies: Of the points.
        ends: What is guaranteed, an ε each; infinite for nothing.

    >>> frontier([0.9, 0.8, 0.7, 0.1, 0.95], [4.0, 2.0, 3.0, 1.99999, math.inf])
    [True, True, False, False, False]
    """
    points = [(a, _printed(e), e) for a, e in zip(accuracies, ends, strict=True)]
    return [
        math.isfinite(end)
        and not any(
            other >= accuracy
            and near <= printed
            and (other > accuracy or near < printed or e < end)
            for other, near, e in points
        )
        for accuracy, printed, end in points
    ]


def _printed(epsilon: float) -> float:
    """Return an ε as a guarantee is printed, rounded up."""
    return float(number(epsilon, kind="guarantee").replace(",", "").replace("∞", "inf"))


def _spread(found: Sequence[float]) -> Cell:
    """Return the mean accuracy of several seeds, and its ends."""
    ends = f"{share(min(found))} to {share(max(found))}" if len(found) > 1 else ""
    return Cell(share(fmean(found)), fmean(found), ends)


def _asks(question: Question) -> str:
    """Return what an ε limits, in words."""
    return f"{labels.at_stake(question)} ({_short(question)})"


def _short(question: Question) -> str:
    unit = "" if question.unit == "client" else f"{question.unit} "
    return f"{unit}{question.adjacency}"


def _id(question: Question) -> str:
    return _short(question).replace(" ", "_").replace("-", "_")


def _low(row: Row | None) -> float | None:
    return None if row is None else row.low


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
