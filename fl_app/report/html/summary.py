"""One page about a run for data-protection readers, which prints on one sheet of A4."""

from __future__ import annotations

from textwrap import shorten
from typing import Final

from markupsafe import Markup

from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.wording import is_certain
from leakmeter.fl_app.report.html import Live, document
from leakmeter.fl_app.report.html.first_screen import EPSILON, notes, stamped
from leakmeter.fl_app.report.html.template import render
from leakmeter.fl_app.report.judge.of_run import verdict_of
from leakmeter.fl_app.report.judge.summary import answers, guarantee, risks, unaudited, whose
from leakmeter.fl_app.report.read import Run

NAME: Final = "summary.html"
_MAX_NOTES, _MAX_LETTERS = 2, 130  # of warnings about the run; the report has all
_LOOKS: Final = {"shown": "warn", "suspected": "mild"}
_LIMITS: Final = (
    "A lower bound (“at least”) is what attacks of this run proved. More may leak.",
    "“Nothing shown” is not “private”: another attack or more samples may show a leak.",
    "A guarantee (“at most”) holds only for its attackers and under its assumptions.",
    "Numbers about a client say nothing about a person whose data several clients hold.",
    "No number decides whether data are anonymous or processing is lawful.",
)
_WORDS: Final = {
    "ε (epsilon), δ (delta)": EPSILON,
    "x % sure": "After some outcomes, an attacker who started at 50:50 is at least this sure.",
    "update": "What a client sends: the change of the model by its training.",
    "test update, canary": "An artificial update in place of a client's own, to measure leaks.",
    "noise": "Random numbers that hide a contribution. Only noise gives a guarantee.",
    "sum": "The server adds the updates of a round; a secure sum hides single ones from it.",
    "bit": "The answer to one question of yes or no.",
}
_STYLE: Final = """
.brief h2 { margin-top: .8rem; } .brief h1 { font-size: 1.05rem; }
.brief p, .brief ul { margin: .2rem 0 0; font-size: .86rem; } .brief ul { padding-left: 1.1rem; }
.brief table { margin-top: .3rem; font-size: .84rem; } .brief .badge { margin: 0; }
.brief :is(th, td) { padding-block: .3rem; } .brief tbody th { width: 16rem; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.4rem; } .limits { width: 7.5rem; }
@media (max-width: 640px) { .two { grid-template-columns: 1fr; }
  .brief thead { display: none; } td.limits::before { content: "guarantee: "; }
  .brief :is(tr, th, td) { display: block; } .brief :is(tbody th, .limits) { width: auto; }
  .brief :is(th, td):not(:last-child) { border: 0; padding-bottom: 0; } }
@media print { @page { margin: 8mm 12mm 11mm; }
  body { line-height: 1.24; } .brand { padding: 0 0 .2rem; font-size: 8pt; }
  .brief h1 { font-size: 10pt; } .brief h2 { font-size: 8.4pt; margin-top: .4rem; }
  .brief .hero { padding: .25rem .7rem; } .brief .hero h1 + p { font-size: 7.6pt; margin: 0; }
  .brief :is(p, ul, table, small, .badge, thead th) { font-size: 7pt; line-height: 1.24; }
  .brief p.warn { padding: .1rem .6rem; } .brief table { margin: .1rem 0 0; }
  .brief tbody th { width: 15rem; } .brief :is(th, td) { padding-block: .1rem; }
  .brief :is(p, ul) { margin-top: .1rem; } .brief ul { padding-left: .9rem; }
  footer { margin-top: .2rem; } footer p { font-size: 6.6pt; margin: 0; } }
"""
_LOOK: Final = Live(Markup(), _STYLE, "")
_TEMPLATE = """
<div class="brief"><div class="hero {{ "warn" if is_bad else severity|tone }}">{{ severity|icon }}
<div><p class="level">{{ level }}</p><h1>{{ said }}</h1>
<p>{{ protection }}</p></div></div>
{% for note in notes %}<p class="warn">{{ note }}</p>{% endfor %}
<div class="two"><section><h2>Whose data</h2>{% for one in whose %}<p>{{ one }}</p>{% endfor %}
</section><section><h2>Guarantee</h2>{% for one in guarantee %}<p>{{ one }}</p>{% endfor %}
</section></div>
<h2>Which risk, with which evidence</h2>
<table><caption class="hidden">Risks of WP 216 and reconstruction, with the evidence</caption>
<thead><tr><th scope="col">risk</th><th scope="col">evidence of this run</th>
<th scope="col" class="limits">guarantee</th></tr></thead><tbody>
{% for risk in risks %}<tr><th scope="row">{{ risk.name }}<small>{{ risk.question }}</small></th>
<td><span class="badge {{ looks.get(risk.state, "grey") }}">{{ risk.state }}</span>
 {{ risk.evidence }}</td>
<td class="limits">{{ limited if risk.is_limited else unlimited }}</td></tr>{% endfor %}
</tbody></table>
<div class="two"><section><h2>What these numbers do not show</h2><ul>
{% for one in limits %}<li>{{ one }}</li>{% endfor %}</ul></section>
<section><h2>Not audited</h2><ul>{% for one in unaudited %}<li>{{ one }}</li>{% endfor %}</ul>
</section></div>
<h2>Questions of NIST SP 800-226 about a differential privacy guarantee</h2>
<table><caption class="hidden">Questions with answers of this report</caption>
<tbody>{% for topic, question, words in answers %}<tr>
<th scope="row">{{ topic }}<small>{{ question }}</small></th><td>{{ words }}</td></tr>
{% endfor %}</tbody></table>
<h2>Words and sources</h2>
<p>{% for word, meaning in words %}<strong>{{ word }}</strong>: {{ meaning }} {% endfor %}</p>
<p>WP 216: Article 29 Working Party, Opinion 05/2014 on Anonymisation Techniques. NIST SP 800-226:
 Near, Darais, Lefkovitz and Howarth, Guidelines for Evaluating Differential Privacy Guarantees,
 2025, doi 10.6028/NIST.SP.800-226.</p></div>
"""


def summary(run: Run) -> str:
    """Return the page as one file that fetches nothing."""
    verdict, found = verdict_of(run), risks(run)
    has_open = any(row.at_most is None or row.high == float("inf") for row in verdict.rows)
    is_worthless = any(row.at_most and is_certain(row.at_most) for row in verdict.rows)
    first = render(
        _TEMPLATE,
        severity=verdict.severity,
        level=labels.level(verdict),
        is_bad=verdict.is_distorted,
        said=sentences.headline(verdict),
        protection=sentences.protection(verdict),
        notes=[shorten(one, _MAX_LETTERS, placeholder=" …") for one in notes(run)][:_MAX_NOTES],
        whose=whose(run),
        guarantee=guarantee(run),
        risks=found,
        looks=_LOOKS,
        limited="limited against some attackers" if has_open else "limited, as above",
        unlimited="none up to ε = 20" if is_worthless else "none",
        limits=_LIMITS,
        unaudited=unaudited(run),
        answers=answers(run),
        words=_WORDS.items(),
    )
    name = shorten(run.name, _MAX_LETTERS // 2, placeholder=" …")
    title, about = f"Privacy summary of {name}", "privacy summary"
    return document(title, name, first, _LOOK, stamp=stamped(run), kind=about)
