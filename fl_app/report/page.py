"""The page of a run: one file that fetches nothing, the verdict first, details folded.

First the first screen: verdict, attackers on one scale, what ran, and what to do next. Then the
whole page, whose other parts are in `details`.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.reconstruction.inversion import FOLDER
from leakmeter.auditors.run_log import REPORT, write_atomically
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.verdict import Row, Verdict
from leakmeter.auditors.wording import CERTAIN, KINDS, counted, percent, plain_spaces, share
from leakmeter.fl_app.report import NAME
from leakmeter.fl_app.report.curves import figures
from leakmeter.fl_app.report.details import alias_runs, cards, comparison, forest, repeat, tables
from leakmeter.fl_app.report.figure import Figure
from leakmeter.fl_app.report.judge import next_steps, verdict_of
from leakmeter.fl_app.report.read import REPLAY_OF, Run, read_runs
from leakmeter.fl_app.report.template import SCRIPT, STYLE, figure, pictures, render

EPSILON: Final = (
    "Compares two worlds: an event with probability q in one has probability at most "
    f"e^ε·q + δ in the other. ε = δ = 0 is perfect privacy; above ε = {CERTAIN:g} an attacker can "
    "be practically certain."
)
# The page's words with one meaning.
_WORDS: Final = {
    "ε": EPSILON,
    "% sure": "After some outcomes, an attacker that started at 50:50 is at least this sure: "
    "e^ε / (1 + e^ε). 50 % is a guess.",
    "proven": "A lower bound: at least this much leaks, with the stated confidence. More may leak.",
    "conditional": "A lower bound only under a condition that nobody has checked.",
    "estimate": "A point estimate without confidence; compare it with its null band.",
    "model only": "What a model of the sum says. It bounds the leak from neither side.",
    "not shown": "The audit looked and proved nothing. This is not evidence of privacy.",
    "cannot show": "With these settings the audit can prove nothing, whatever leaks.",
    "theorem": "A guarantee: proven from above, if its assumptions hold.",
    "observed": "Seen in this run; it bounds nothing.",
    "not audited": "No auditor looked at this attacker; the page says nothing about it.",
    "Protection": "Secure aggregation hides single updates from the server. Only noise bounds what "
    "their sum gives away.",
    "Accuracy": "Share of test records that the last model gets right.",
}
# Where the scale from guess to certain is named: how sure, as an ε.
_TICKS: Final = (
    (0.0, "guess"),
    (math.log(9), "90"),
    (math.log(99), "99 %"),
    (CERTAIN, "certain"),
)
_MAX_ROWS = 5
_TEMPLATE = """
<section class="first" aria-label="Verdict">
<div class="hero {{ "warn" if is_bad else severity|tone }}">{{ severity|icon }}
<div><p class="level">{{ level }}</p>
<h1>{{ said }}</h1><p>{{ protection }}</p></div></div>
{% for note in notes %}<p class="warn">{{ note|with_code }}</p>{% endfor %}
<dl class="facts">
{% for name, value in facts %}<div><dt>{{ term(name) }}</dt><dd>
{% for word in value.split() %}<span>{{ word }}</span>{{ "" if loop.last else " " }}{% endfor %}
</dd></div>{% endfor %}
</dl>
<div class="columns">
<section class="attackers">
{% if claims %}<h2>What is claimed</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Claims"><table class="tests">
<caption class="hidden">Claims, and whether the audit refutes them</caption>
<thead><tr>{% for head in labels.CLAIM_HEADS %}<th scope="col">{{ head }}</th>{% endfor %}</tr>
</thead><tbody>
{% for cells, _ in claims %}<tr>{% for cell in cells %}<td>
{% if loop.index == 4 %}<strong>{{ cell }}</strong>{% else %}{{ cell }}{% endif %}</td>{% endfor %}
</tr>{% endfor %}</tbody></table></div>
{% for cells, reach in claims if reach %}<p class="note">{{ cells[0] }}: {{ reach }}</p>{% endfor %}
{% endif %}
{% if not rows and not tests %}<h2>Who can tell what</h2><p>
The auditors produced no findings about an attacker; this is not evidence of privacy.</p>
{% elif rows %}<h2>Who can tell what, worst first</h2>
<div class="row axis"><span class="who"></span>
<svg class="scale" aria-hidden="true">
{% for at, name in ticks %}<text x="{{ at }}%" y="1em" text-anchor="
{{ "start" if loop.first else "end" if loop.last else "middle" }}">{{ name }}</text>{% endfor %}
</svg>
<span class="what">{{ term("sure at least", "% sure") }}</span></div>
<ul class="plain">
{% for row in rows %}
<li class="row {{ row.severity|tone }}"><span class="who"><span>{{ row.severity|icon }}
<strong>{{ row.who }}</strong><small>{{ row.tells }}</small></span></span>
<span class="bar" aria-hidden="true">
{% set end = (100 - row.rest)|round(1) %}<svg class="open" width="{{ end }}%"></svg>
{% if row.start %}<svg class="shown{{ " saturated" if row.is_saturated }}"
 width="{{ row.start }}%"></svg>{% endif %}
{% if row.rest %}<svg class="limit" width="{{ end }}%"></svg>{% endif %}</span>
<span class="what"><strong>{{ row.sure }}</strong><small>
{% if row.size %}{{ term("ε") }}{{ row.size[1:] }} · {% endif %}
{{ term(*row.strength) }}{{ row.level }}
{% if row.is_saturated %} · at its limit{% endif %}</small>
<small>{{ row.at_most }}</small></span></li>
{% endfor %}</ul>
<p class="note">Filled: shown. Hatched: may be, up to what is guaranteed.
{% if together %} {{ together }}{% endif %}{% if left %} And {{ left }} below.{% endif %}</p>
{% endif %}
{% if tests %}<table class="tests"><caption>Attacks, each tried against a control</caption>
<thead><tr>{% for head in ("Attacker", "Can tell", "Shown", "At most", "Evidence") %}
<th scope="col">{{ head }}</th>{% endfor %}</tr></thead><tbody>
{% for row in tests %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table>{% endif %}
{% for source, words, caption in pictures %}{% if source %}<figure>
<img src="{{ source }}" alt="{{ words }}"><figcaption>{{ caption }}</figcaption></figure>
{% endif %}{% endfor %}
{% if bits %}<details class="bits" data-print><summary>In bits, never compared with ε:
 {{ bits|length }}
 {{ "figure" if bits|length == 1 else "figures" }}</summary>
<table><caption class="hidden">Figures in bits</caption><thead><tr>
{% for head in ("Attacker", "About", "Found", "At most", "Evidence") %}
<th scope="col">{{ head }}</th>{% endfor %}</tr></thead><tbody>
{% for row in bits %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table></details>{% endif %}</section>
<section class="actions"><h2>What to do next</h2><ol>
{% for text, command in steps %}<li><p>{{ text|with_code }}</p>
{% if command %}<pre tabindex="0" role="group" aria-label="Command of step {{ loop.index }}">
{{ command|command_line }}</pre>{% endif %}</li>{% endfor %}</ol></section>
</div></section>
"""
_TERM = """<button type="button" class="term" data-tip="{{ tip }}">{{ text }}</button>"""


def _glossary() -> Callable[..., str]:
    """Return what explains a word at its first use, so that the tab key stops there once."""
    unused = dict(_WORDS)

    def term(text: str, word: str | None = None) -> str:
        tip = unused.pop(text if word is None else word, None)
        return text if tip is None else render(_TERM, text=text, tip=tip)

    return term


def first_screen(run: Run) -> Markup:
    """Return the part of the page that answers within five seconds."""
    verdict = verdict_of(run)
    left = len(verdict.rows) - _MAX_ROWS
    is_rebuilt = verdict.severity == "rebuilt"
    return render(
        _TEMPLATE,
        is_bad=verdict.is_distorted,
        level=labels.level(verdict),
        severity=verdict.severity,
        said=_unbroken(sentences.headline(verdict)),
        protection=_unbroken(sentences.protection(verdict)),
        notes=notes(run),
        facts=run_facts(run, verdict),
        term=_glossary(),
        claims=[
            (labels.cells_of_claim(one), "" if one.is_refuted else sentences.claim_worth(one))
            for one in verdict.claims
        ],
        rows=_rows(verdict),
        tests=[labels.cells_of_test(test) for test in verdict.tests],
        pictures=[*pictures(run.folder / FOLDER)][:1] if is_rebuilt else [],
        bits=labels.in_bits(verdict),
        together=sentences.together(verdict),
        left=counted(left, "more attacker") if left > 0 else "",
        ticks=[(place(epsilon), name) for epsilon, name in _TICKS],
        steps=[(_unbroken(step.text.rstrip(":")), step.command) for step in next_steps(run)],
    )


def _rows(verdict: Verdict) -> list[dict[str, Any]]:
    """Return the worst attackers. A number that was said, by the headline first, is not repeated.

    The headline names both ends of its row, except what is guaranteed where nothing is.
    """
    case, first = verdict.headline
    said = [] if first is None else [first.shown, first.at_most]
    if (
        case == "interval"
        and first is not None
        and len(sentences.guaranteed_rows(first, verdict)) > 1
    ):
        said = [first.shown]  # of several guarantees, "as above" would not say which
    made = []
    for row in verdict.rows[:_MAX_ROWS]:
        one = _row(row, said)
        if row.alone and row.is_pending:
            one |= {"sure": sentences.so_far(row), "strength": ("not proven",) * 2}
        made.append(one)
        said += [row.shown, row.at_most]
    return made


def _row(row: Row, said: Sequence[Finding | None]) -> dict[str, Any]:
    """Return one attacker on the scale from guess to certain, with how sure it can be."""
    is_proven = row.low > 0
    is_silent = row.is_tried and not is_proven and (row.is_audited or row.conditional is None)
    looked = row.is_tried or row.estimate is not None
    known = "proven" if is_proven else labels.evidence(row)
    is_blank = not looked and not is_proven and math.isinf(row.high)
    return {
        "severity": row.severity,
        "who": labels.who(row.attacker),
        "tells": labels.tells(row),
        "start": place(row.low),
        "rest": round(100 - place(row.high), 1),  # what the guarantee excludes
        "is_saturated": row.is_saturated,
        "at_most": _guaranteed(row, said),
        "sure": "nothing shown" if is_silent else labels.sureness_cell(row),
        "size": labels.shown_cell(row) if is_proven and row.shown not in said else "",
        # Of the evidence, and the word that explains it.
        "strength": ("no evidence", "not audited") if is_blank else (known, known),
        "level": _level(row),
    }


def _level(row: Row) -> str:
    """Return with which confidence something is proven, and about whom if about a weaker one."""
    if row.shown is None or row.low <= 0:
        return ""
    if labels.is_taken_over(row):
        return f" for: {labels.who(row.shown.threat_model)}"
    return f", {percent(row.confidence or 0.0)}"


def _guaranteed(row: Row, said: Sequence[Finding | None]) -> str:
    if math.isinf(row.high):
        return "no guarantee"
    return (
        "guaranteed, as above" if row.at_most in said else f"guaranteed {labels.at_most_cell(row)}"
    )


def place(epsilon: float) -> float:
    """Return where an ε is between guess (0) and certain (100): even near 0, then logarithmic."""
    return round(min(100 * math.log1p(max(epsilon, 0.0)) / math.log1p(CERTAIN), 100.0), 1)


def notes(run: Run) -> Iterator[str]:
    """Yield reasons to read the numbers with care."""
    for warning in run.warnings:
        yield warning.text
    if not run.is_finished:
        planned = run.config.get("rounds")
        of = f" of {planned}" if isinstance(planned, int) else ""
        done = counted(len(run.rounds), "whole round")
        now = "is in progress" if run.is_running else "is not finished"
        yield (
            f"This run {now}: {done}{of}. What is proven holds so far and never shrinks; bounds of "
            "single rounds do not hold together."
        )
    for failure in run.failures:
        yield f"Not audited as planned: {failure.rstrip('.')}. Its findings are missing."
    if (source := run.config.get(REPLAY_OF)) is not None:
        name = str(source).rstrip("/").rpartition("/")[2]
        yield f"A replay: these auditors looked at the recorded rounds of {name}."


def _unbroken(text: str) -> str:
    """Return text whose lines may end anywhere but between a sign and its number, or its ε."""
    return re.sub(r"(?<=ε) (?=[≥≤≈])|(?<=[≥≤≈]) ", "\N{NO-BREAK SPACE}", plain_spaces(text))


def run_facts(run: Run, verdict: Verdict) -> Sequence[tuple[str, str]]:
    """Return what ran, in a few words."""
    # Of any project that names them: these two words mean the same everywhere.
    named = [str(run.config[name]) for name in ("app", "dataset", "model") if run.config.get(name)]
    return (
        ("Accuracy", "not measured" if verdict.accuracy is None else share(verdict.accuracy)),
        ("Data and model", ", ".join(named) or "not stated"),
        ("Clients per round", _clients(run)),
        ("Rounds", str(len(run.rounds))),
        ("Protection", _protection(run)),
        ("Date (UTC)", _date(run.written)),
        *([("Made with", made)] if (made := _made_with(run)) else []),
    )


def page_stamp(run: Run) -> str:
    """Return when the numbers of a run were written, and by which release."""
    return " · ".join(filter(None, (f"{_date(run.written)} UTC", _made_with(run))))


def _made_with(run: Run) -> str:
    """Return the release, which a run that is going on has not noted yet."""
    return f"leakmeter {run.versions['leakmeter']}" if "leakmeter" in run.versions else ""


def _date(seconds: float | None) -> str:
    return "–" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


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
    named = run.settings.get("noise-distribution", "gaussian")
    distribution = "" if named == "gaussian" else f" ({named})"
    return f"{sums}, {'no' if noise == 'none' else noise} noise{distribution}"


GENERATOR = "leakmeter report"
_HEIGHT = 760  # pixels of the first screen
_MAX_NAME = 60  # letters of a run's name at the foot of a sheet
_READING = (
    f"ε {EPSILON[0].lower()}{EPSILON[1:]} Numbers of different attackers, units (client, record) "
    "or adjacencies are not comparable. A null band contains 90 % of what the method says without "
    "a leak."
)
_DOCUMENT = """
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{{ generator }}">
<title>{{ title }}</title><style>{{ style }}</style></head>
<body><a href="#main" class="skip">Skip to the verdict</a>
<header><p class="brand"><strong>Leakmeter</strong> {{ kind }}
{% if name %} <span class="run">{{ name }}</span>{% endif %}</p></header>
{{ bar }}<main id="main">{{ first }}
{% if main %}
<section id="figures" aria-labelledby="figures-head"><h2 id="figures-head">The main figures</h2>
{{ main }}</section>{% endif %}
{% for name, head, about, content in folds %}
<details id="{{ name }}" class="fold" data-print><summary><h2>{{ head }}</h2>
<span class="about">{{ about }}</span></summary>{{ content }}</details>
{% endfor %}</main>
<footer><p>Made by Leakmeter from {{ source }}, which has the exact numbers. This page
 {{ "asks only the machine that serves it" if is_live else "fetches nothing" }}.</p></footer>
<div id="tip" role="tooltip" hidden></div><script>{{ script }}</script></body></html>
"""
_PICTURES = """
<div class="figures">{% for source, words, caption in pictures %}
{% if source %}<figure><img src="{{ source }}" alt="{{ words }}">
<figcaption>{{ caption }}</figcaption></figure>
{% else %}<p>{{ caption }}</p>{% endif %}
{% endfor %}</div>
"""
_KINDS = """
<p class="note">{{ words }}</p>
<table><caption>What each kind of number may be read as</caption><tbody>
{% for name, meaning in kinds %}<tr><th scope="row">{{ name }}</th><td>{{ meaning }}</td></tr>
{% endfor %}</tbody></table>
"""


Fold = tuple[str, str, str, Markup]  # id, heading, what it is about, content


class Live(NamedTuple):
    """What a page has on top of all others."""

    bar: Markup  # before the content
    style: str  # of the bar, or of the content
    script: str  # keeps a page that is served up to date: only such a page may ask its server


def leave_page(folder: Path, say: Callable[[str], None]) -> bool:
    """Write the page of a finished run into its folder, say where, and return whether it is there.

    A page that cannot be made must not cost the run: its numbers are on disk already.
    """
    try:
        path = Page(folder).path
    except Exception as error:
        say(f"no page was made, {type(error).__name__}: {error}; all numbers are in report.json")
        return False
    say(f"page: {path}")
    return True


class Page:
    """Writes the page of a run to `report.html` in its folder.

    At the end of a cell of a notebook it also shows the page.

    Args:
        folder: Folder of a run.

    Attributes:
        path: The file.

    Example:
        Page("runs/mine")
    """

    def __init__(self, folder: str | Path) -> None:
        self._html = page(read_runs([Path(folder)]))
        self.path = Path(folder).expanduser() / NAME
        write_atomically(self.path, self._html)

    def _repr_html_(self) -> str:
        """Return a frame with the page, whose style cannot reach the notebook."""
        frame = f'sandbox="allow-scripts" style="width:100%;height:{_HEIGHT}px;border:0"'
        return f'<iframe title="Leakmeter report" {frame} srcdoc="{escape(self._html)}"></iframe>'

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"


def page(runs: Sequence[Run], galleries: Sequence[Path] = (), live: Live | None = None) -> str:
    """Return the page about one run or several, with the pictures of further folders."""
    if len(runs) > 1:
        runs = alias_runs(runs)
        title, name, first = f"{len(runs)} runs compared", "", comparison(runs)
    else:
        [run] = runs
        title, name, first = f"What {run.name} leaks", run.name, first_screen(run)
    found = sorted(figures(runs), key=lambda one: not one.is_first)
    main = [one for one in found if one.is_first and len(runs) == 1]
    folds = tuple(_folds(runs, found[len(main) :], galleries))
    stamp = page_stamp(max(runs, key=lambda run: run.written or 0.0))
    return document(title, name, first, live, main, folds, stamp=stamp)


def document(
    title: str,
    name: str,
    first: Markup,
    live: Live | None = None,
    main: Sequence[Figure] = (),
    folds: Sequence[Fold] = (),
    source: str = REPORT,
    stamp: str = "",
    kind: str = "report",
) -> str:
    """Return a whole file: the first screen, the main figures, and what is folded below them.

    `source` is the file with the exact numbers; `stamp` is printed on each sheet of paper.
    """
    is_live = bool(live and live.script)
    # A page that is served keeps its style: the browser allows no other in what it fetches.
    style = STYLE + (live.style if live else "") + ("" if is_live else _foot(name, stamp))
    script = SCRIPT + (live.script if live else "")
    text = render(
        _DOCUMENT,
        policy=_policy(style, script, is_live=is_live),
        generator=GENERATOR,
        kind=kind,
        title=title,
        name=name,
        first=first,
        main=_figures(main) if main else "",
        folds=folds,
        style=Markup(style),
        script=Markup(script),
        bar=live.bar if live else "",
        is_live=is_live,
        source=source,
    )
    # A folder may have a name that is not UTF-8, which Python keeps as characters of its own.
    return f"{text}\n".encode(errors="replace").decode()


def _foot(name: str, stamp: str) -> str:
    """Return what is at the foot of each sheet of paper, beside its number."""
    words = " · ".join(filter(None, (f"Leakmeter {shorten(name, _MAX_NAME)}".strip(), stamp)))
    # A run may have any name: in numbers it can end neither the text nor the style.
    text = "".join(f"\\{ord(one):06x}" for one in words)
    return f'@page {{ @bottom-left {{ content: "{text}"; font: 8pt system-ui; }} }}\n'


def _policy(style: str, script: str, *, is_live: bool) -> str:
    """Return what the browser itself enforces: nothing is fetched, and nothing else is run.

    Style and script are allowed by their hashes, so markup that got into the page by a mistake of
    ours could neither run nor change how the page looks.
    """
    allowed = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
    sheet, code = (f"'sha256-{one}'" for one in allowed)
    own = "; connect-src 'self'" if is_live else ""
    return f"default-src 'none'; style-src {sheet}; script-src {code}; img-src data:{own}"


def _figures(found: Sequence[Figure]) -> Markup:
    made = Markup("").join(figure(one) for one in found)
    return Markup('<div class="figures">{}</div>').format(made)


def _folds(
    runs: Sequence[Run], more: Sequence[Figure], galleries: Sequence[Path]
) -> Iterator[Fold]:
    """Yield each folded part that has any content; several runs have one of each."""

    def each(
        name: str, head: str, about: str, make: Callable[[Run], Markup | None]
    ) -> Iterator[Fold]:
        for i, run in enumerate(runs, start=1):
            own, title = (name, head)
            if len(runs) > 1:
                own, title = f"{name}-{i}", f"{head}: {run.name}"
            if (content := make(run)) is not None:
                yield own, title, about, content

    yield from each("verdicts", "Each attacker in detail", "what, how sure, what to do", cards)
    if more:
        yield "more-figures", "More figures", f"{len(more)}", _figures(more)
    own = [place for run in runs for place in (run.folder, run.folder / FOLDER)]
    if shots := [one for folder in (*own, *galleries) for one in pictures(folder)]:
        grid = render(_PICTURES, pictures=shots)
        yield "pictures", "Reconstructions", counted(len(shots), "picture"), grid
    yield from each("epsilon", "All ε on one axis", "guaranteed, shown, estimated", forest)
    yield from each("findings", "All findings", "with assumptions", tables)
    yield from each("repeat", "Settings and how to repeat", "command, releases", repeat)
    kinds = render(_KINDS, words=_READING, kinds=KINDS.values())
    yield "reading", "How to read the numbers", "kinds, ε, null bands", kinds
