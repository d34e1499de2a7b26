"""One page about a run for data-protection readers, which prints on one sheet of A4.

It has risks, limits, and what was not audited. The risks are the three of Opinion 05/2014 of the
Article 29 Working Party (WP 216), and reconstruction. The questions are those of Near, Darais,
Lefkovitz and Howarth, "Guidelines for Evaluating Differential Privacy Guarantees", NIST SP 800-226
(2025), doi 10.6028/NIST.SP.800-226: the levels of its pyramid, and hazards on each. Answers come
from fields of the report; where no field has one, the answer says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import shorten
from typing import Final, Literal, NamedTuple

from markupsafe import Markup

from leakmeter.auditors.finding import Finding, ThreatModel, Unit
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.claim import USER, Question, times_of
from leakmeter.auditors.verdict.verdict import REBUILT, Row, Verdict, is_shown
from leakmeter.auditors.wording import (
    OBSERVERS,
    Assumption,
    capital,
    counted,
    is_certain,
    is_epsilon,
    number,
    sentence,
    sentence_of,
    signed_number,
)
from leakmeter.fl_app.report.judge import verdict_of
from leakmeter.fl_app.report.page import EPSILON, Live, document, notes, page_stamp, run_facts
from leakmeter.fl_app.report.read import DEPLOYMENT, LAUNCH, Run
from leakmeter.fl_app.report.template import render

State = Literal["shown", "suspected", "nothing shown", "not known yet", "not audited"]
NOT_SHOWN: Final = "Not shown"
_WORTHLESS: Final = "Above 20, ε promises practically nothing."
_REFUTED: Final = "The audit refutes the guarantee: an assumption does not hold."
_TRUSTED: Final = "Must be trusted, because nothing is guaranteed{about} against them: {named}."
_RISKS: Final = (
    ("Singling out", "Can somebody tell whether, or with what, a given client took part?"),
    ("Linkability", "Can somebody link data of one person across rounds or with other sources?"),
    ("Inference", "Can somebody deduce that a record was used, or an unknown value?"),
    ("Reconstruction", "Can somebody rebuild records from what is sent or released?"),
)
_UNITS: Final[dict[Unit, str]] = {
    "client": "a client: one participant, with all its records",
    "record": "a record: one entry in the data of one client",
    "group": "a group: all copies of one record at one client",
}
_ABOUT_RUN: Final = ("Clients per round", "Protection", "Date (UTC)", "Made with")
_STANDS_OUT: Final = ("certain separation", "share outside the span")
_MAX_WHO, _MAX_BITS, _MAX_NOTES, _MAX_LETTERS = 3, 3, 3, 130  # the report has all
# What a guarantee assumes about numbers in its code, and about other releases.
_DRAWN: Final = (Assumption.REAL_GAUSSIAN, Assumption.UNIFORM_BITS, Assumption.COARSE_ROUNDING)
_RELEASED: Final = (Assumption.MODELS_ONLY, Assumption.FRESH_RUNS, Assumption.PUBLIC_CLIP_NORM)


class RiskEvidence(NamedTuple):
    """One risk, and what the run says about it."""

    name: str
    question: str  # what it means
    state: State  # of the evidence
    evidence: str  # in sentences
    is_limited: bool  # by a guarantee, against some attacker at least


@dataclass(frozen=True)
class _Facts:
    """What answers are made of."""

    run: Run
    verdict: Verdict

    @property
    def bounded(self) -> list[Row]:
        return [row for row in self.verdict.rows if math.isfinite(row.high)]

    @property
    def useful(self) -> list[Row]:
        """Rows with a guarantee that says something."""
        return [row for row in self.bounded if row.at_most and not is_certain(row.at_most)]

    @property
    def is_refuted(self) -> bool:
        return any(row.low > row.high for row in self.verdict.rows)

    @property
    def promises(self) -> list[Finding]:
        every = (f for f in self.run.findings if f.kind == "guarantee" and is_epsilon(f))
        return [f for f in every if math.isfinite(f.value)]

    def assumed(self, names: Iterable[Assumption]) -> str:
        needed = {name for f in self.promises for name in f.assumptions}
        return " ".join(f"Assumed: {sentence_of(one)}." for one in names if one in needed)


def data_subjects(run: Run) -> list[str]:
    """Return whose data the run is about."""
    data = next((run.config[name] for name in ("dataset", "app") if run.config.get(name)), "")
    facts = {"clients": run.config.get("clients", "not stated"), "rounds": len(run.rounds)}
    told = dict(run_facts(run, verdict_of(run)))
    about = {"Model": run.config.get("model", "not stated")}
    about |= {name: told[name] for name in _ABOUT_RUN if name in told}
    is_simulated = run.settings and run.settings.get(LAUNCH) != DEPLOYMENT
    return [
        f"Data: {shorten(str(data), 40) or 'not stated'}. "
        + " ".join(f"{capital(name)}: {words}." for name, words in facts.items()),
        "The run is a simulation: its clients are parts of one data set."
        if is_simulated
        else "A client is a device or an organisation that trains on its own records.",
        " ".join(f"{name}: {words}." for name, words in about.items()),
        "The report does not know who receives the models, nor which persons are behind clients.",
    ]


def guarantee(run: Run) -> list[str]:
    """Return what is guaranteed to whom, and what that is worth."""
    facts = _Facts(run, verdict_of(run))
    if not facts.bounded:
        return [_nothing(run)]
    given = sentences.limits(facts.verdict)
    if facts.is_refuted:
        return [given, f"{_REFUTED} So nothing is limited for certain."]
    means = sentences.promised_sureness(facts.verdict)
    said = [given if facts.useful else f"{given} {_WORTHLESS}", means]
    if any(f.assumptions for f in facts.promises):
        said[-1] += " The report lists the assumptions, below “All findings”."
    if units := dict.fromkeys(row.question.unit for row in facts.useful):
        said += [
            f"It limits what one {_or(units)} adds to any conclusion, whatever the attack.",
            "It does not limit what follows about a person from what is true of many.",
        ]
    return said + sentences.open_attackers(facts.verdict, _few)


def risks(run: Run) -> list[RiskEvidence]:
    """Return the four risks."""
    verdict = verdict_of(run)
    client = [row for row in verdict.rows if row.question.unit == "client"]
    record = [row for row in verdict.rows if row.question.unit != "client"]
    used, words = _evidence(verdict, record, ("membership advantage",))
    if used == "not audited":
        words = "No attack on records was tried."
    told: tuple[tuple[State, str], ...] = (
        _evidence(verdict, client, ("clients that stand out", *_STANDS_OUT)),
        ("not audited", "No audit links data. Whether a record was used comes closest: see below."),
        (used, f"{words} {_bits(verdict)}Nobody looked for unknown values of a person."),
        _evidence(verdict, [], (*REBUILT, "reconstruction PSNR in dB")),
    )
    # A guarantee for records leaves clients open; one for clients limits what a record adds.
    facts = _Facts(run, verdict)
    limited = [] if facts.is_refuted else facts.useful
    limits = (any(row in client for row in limited), *[bool(limited)] * 3)
    return [
        RiskEvidence(*asked, *found, is_limited)
        for asked, found, is_limited in zip(_RISKS, told, limits, strict=True)
    ]


def _evidence(verdict: Verdict, rows: list[Row], quantities: Iterable[str]) -> tuple[State, str]:
    """Return the state, and what was found, from rows and from what is no ε."""
    others = [f for block in verdict.others for f in block.findings if f.quantity in quantities]
    others = [f for f in others if f.kind != "lower_bound"]  # those are claims
    played = [f for f in verdict.tests if f.quantity in quantities]
    tried, proven = [r for r in rows if r.is_tried], [r for r in rows if r.low > 0]
    # Of equal rows, that of whoever was audited: the others take its bound over.
    proven.sort(key=lambda row: (-row.low, row.shown not in row.findings))
    said = [sentences.proven_sentence(row, verdict.confidence) for row in proven[:1]]
    if len(proven) > 1:
        said.append(f"And {counted(len(proven) - 1, 'more attacker')}: see the report.")
    said += [_tested(f) for f in played if is_shown(f)][:1]
    said += [sentences.certain_sentence(f) for f in others if f in verdict.certainties][:1]
    others = [f for f in others if f not in verdict.certainties]
    seen = " ".join(f"Observed, no claim: {signed_number(f)}." for f in others[:1])
    if said:
        return "shown", " ".join([*said, seen]).strip()
    if pending := [sentences.so_far(row) for row in rows if row.alone]:
        return "not known yet", f"{capital(pending[0])}. {seen}".strip()
    beyond = (f.null_band is not None and f.value > f.null_band[1] for f in others)
    if any(row.severity == "suspected" for row in rows) or any(beyond):
        hint = "An estimate or a bound under a condition points to it; nothing is proven."
        return "suspected", f"{hint} {seen}".strip()
    if tried or played or others:
        nothing = f"Attacks were tried and showed nothing. {sentences.NOT_EVIDENCE}."
        return "nothing shown", f"{nothing}{_reach(tried)} {seen}".strip()
    return "not audited", "No attack of this kind was tried."


def _reach(tried: Iterable[Row]) -> str:
    """Return how much the audits of these rows could have shown, as a further sentence."""
    caps = sorted(row.cap for row in tried if row.cap is not None)
    if not caps or not math.isfinite(caps[-1]):
        return ""
    ends = dict.fromkeys(number(cap, kind="lower_bound") for cap in (caps[0], caps[-1]))
    several = ", depending on the attacker" if len(ends) > 1 else ""
    return f" They could have shown at most ε = {' to '.join(ends)}{several}."


def _tested(test: Finding) -> str:
    who, about, found, _, how = labels.cells_of_test(test)
    return f"{capital(who)} tells {about}: {found} ({how})."


def _bits(verdict: Verdict) -> str:
    """Return the first figures in bits, since one is about a part of what another is about."""
    told = [
        f"{about} {found} ({who}; {how}; "
        f"{f'{most} guaranteed' if most.startswith('≤') else 'nothing guaranteed'})"
        for who, about, found, most, how in labels.in_bits(verdict)[:_MAX_BITS]
    ]
    return f"Measured in bits: {', '.join(told)}. " if told else ""


def unaudited(run: Run) -> list[str]:
    """Return what was not audited: attackers, units and rounds."""
    verdict = verdict_of(run)
    tried = [f for f in run.findings if f.kind in ("lower_bound", "estimate")]
    missing = [OBSERVERS[one].reader for one in OBSERVERS if all(f.observer != one for f in tried)]
    units = {row.question.unit for row in verdict.rows if row.is_tried}
    left = [
        one for one in ("client", "record") if one not in units | {f.unit for f in verdict.tests}
    ]
    skips = (
        f"{one.auditor}: {one.num_rounds - len(one.audited)} of {one.num_rounds} rounds"
        for one in run.schedules
        if one.skips
    )
    is_curious = all(f.threat_model.conduct != "active" for f in tried)
    return [
        *([f"Attacks by {_or(missing)}."] if missing else []),
        *(["Attackers that break the protocol."] if is_curious else []),
        *([f"What can be told about {_or(f'a {unit}' for unit in left)}."] if left else []),
        *map(_cut, skips),
    ]


def remarks(run: Run) -> list[str]:
    """Return what the auditors said themselves: why they were left out, what they cannot see."""
    notes = [*run.failures, *(f"{one.auditor}: {one.text}" for one in run.limitations)]
    more = len(notes) - _MAX_NOTES
    left = [f"{capital(counted(more, 'more remark'))} in the report."] if more > 0 else []
    return [*map(_cut, notes[:_MAX_NOTES]), *left]


def limits(run: Run) -> list[str]:
    """Return what the numbers do not show; where a claim was tested, how far it was."""
    tested = any(one.source == USER and one.unit == "client" for one in run.claims)
    longest = max(run.findings, key=times_of, default=None)
    size = "" if longest is None else sentences.longer(longest)
    told = [f"To test the claim: {size}. For shorter ones ε may be smaller."] if size else []
    return [*_LIMITS, *told, *([_CLAIMED] if tested else [])]


def answers(run: Run) -> list[tuple[str, str, str]]:
    """Return the questions of NIST SP 800-226: topic, question, and what the report answers."""
    facts = _Facts(run, verdict_of(run))
    return [(topic, question, answer(facts)) for topic, question, answer in _QUESTIONS]


def _parameters(facts: _Facts) -> str:
    clients, delta = facts.run.config.get("clients"), facts.verdict.delta
    said = [sentences.limits(facts.verdict) if facts.bounded else _nothing(facts.run)]
    units = {row.question.unit for row in facts.bounded}
    if "client" in units and isinstance(clients, int) and delta:
        said.append(f"δ should be far below 1 / {clients} clients = {number(1 / clients)}.")
    if units - {"client"}:
        said.append("δ should be far below 1 / records; their number is not in the report.")
    if len(facts.useful) < len(facts.bounded):
        said.append(_WORTHLESS)
    for what, _, _, verdict, by in map(labels.cells_of_claim, facts.verdict.claims[:1]):
        said.append(f"Claimed by {by}: {what}; {verdict.lower()} by this audit.")
    return " ".join(said)


def _unit(facts: _Facts) -> str:
    if units := dict.fromkeys(_UNITS[f.unit] for f in facts.promises):
        return f"{capital(_or(units))}. A person with data in several is protected less."
    tried = dict.fromkeys(_UNITS[row.question.unit] for row in facts.verdict.rows if row.is_tried)
    looked = f" Attacks were about {_or(tried)}." if tried else ""
    return f"{NOT_SHOWN}: no guarantee protects any unit.{looked}"


def _neighbours(facts: _Facts) -> str:
    asked = dict.fromkeys(Question.of(f) for f in facts.promises)
    told = [f"{labels.at_stake(one)} ({one.adjacency})" for one in asked if one is not None]
    if not told:
        return f"{NOT_SHOWN}: no guarantee compares two data sets."
    return f"An attacker should not learn {_or(told)}."


def _trust(facts: _Facts) -> str:
    said = []
    if facts.bounded:
        against = _who(row.attacker for row in facts.bounded)
        said.append(_REFUTED * facts.is_refuted or f"Guaranteed against: {against}.")
        if colluders := max(f.threat_model.colluders for f in facts.promises):
            said.append(f"Up to {counted(colluders, 'client')} may collude.")
        if all(f.threat_model.conduct == "curious" for f in facts.promises):
            said.append("All are trusted to follow the protocol.")
    said += sentences.open_attackers(facts.verdict, _who, _TRUSTED)
    return " ".join(said) or f"{NOT_SHOWN}: the report names no attacker."


def _mechanism(facts: _Facts) -> str:
    if not facts.promises:
        return f"{NOT_SHOWN}: no mechanism is accounted for."
    noise = dict.fromkeys(str(f.facts["noise"]) for f in facts.promises if f.facts.get("noise"))
    unrefuted = "The audit does not refute it, which does not confirm the code."
    is_tried = any(row.is_tried for row in facts.bounded)
    checked = _REFUTED if facts.is_refuted else unrefuted if is_tried else "No attack tested it."
    added = f" Noise: {_or(noise)}." if noise else ""
    return f"{sentence(facts.promises[0].rule)}{added} {checked}"


def _composition(facts: _Facts) -> str:
    rounds = (f.threat_model.participations for f in facts.promises)
    most = max((one for one in rounds if one is not None), default=None)
    said = "" if facts.promises else f"{NOT_SHOWN}: nothing is guaranteed that could add up."
    if most is not None:
        said = f"Added up over at most {counted(most, 'round')} of a client."
    other = f"{NOT_SHOWN}: other releases from the same data."
    if facts.run.settings.get("ledger"):
        other = "A ledger adds up runs on the same data."
    return " ".join(filter(None, (said, facts.assumed(_RELEASED), other)))


def _utility(facts: _Facts) -> str:
    bias = f"{NOT_SHOWN}: whether the loss of accuracy falls on small groups."
    return " ".join(filter(None, (sentences.utility(facts.verdict), bias)))


def _implementation(facts: _Facts) -> str:
    blank = f"{NOT_SHOWN}: no noise is accounted for, so its code was not judged."
    drawn = facts.assumed(_DRAWN) if facts.promises else blank
    return f"{drawn} {NOT_SHOWN}: timing and other side channels.".strip()


def _collection(facts: _Facts) -> str:
    before, found = f"{NOT_SHOWN}: how data are collected and kept before training.", facts.run
    hidden = [f for f in found.findings if f.quantity == "honest clients in the smallest sum"]
    fewest = min(hidden, key=lambda f: f.value, default=None)
    if fewest is not None and fewest.value > 1:
        attacker = fewest.threat_model
        is_active = attacker.conduct == "active"
        server = "even if the server breaks" if is_active else "if the server follows"
        return (
            f"A secure sum hides single updates among at least {fewest.value:,.0f} honest clients, "
            f"{server} the protocol and at most {counted(attacker.colluders, 'client')} collude. "
            f"It does not bound what the sum reveals. {before}"
        )
    seen = (f.observer == "server" and f.threat_model.sees == "updates" for f in found.findings)
    own = "Records stay with clients; the server sees every single update. "
    return f"{own * any(seen)}{before}"


_QUESTIONS: Final[tuple[tuple[str, str, Callable[[_Facts], str]], ...]] = (
    ("Privacy parameters", "Which ε and δ are guaranteed?", _parameters),
    ("Unit of privacy", "Whose contribution is protected?", _unit),
    ("Neighbouring data", "Which two data sets are compared?", _neighbours),
    ("Trust and threats", "Who is trusted, who may attack?", _trust),
    ("Mechanism", "What protects, and is its code right?", _mechanism),
    ("Composition", "How do several releases add up?", _composition),
    ("Utility and bias", "What does protection cost, and whom?", _utility),
    ("Implementation", "Do floating-point numbers or timing leak?", _implementation),
    ("Data collection", "What is exposed before noise protects?", _collection),
    (
        "Access control",
        "Who can get at the data themselves?",
        lambda _: f"{NOT_SHOWN}: who may read the data, the models, the logs and this page.",
    ),
)


def _nothing(run: Run) -> str:
    if not run.is_finished and run.settings.get("noise") != "none":
        return f"{NOT_SHOWN}: guarantees are known at the end of the run."
    why = " The run adds no noise." if run.settings.get("noise") == "none" else ""
    return f"{NOT_SHOWN}: nothing is guaranteed.{why}"


def _who(models: Iterable[ThreatModel]) -> str:
    named = dict.fromkeys(map(labels.subject, models))
    return "; ".join(f"{one[:1].lower()}{one[1:]}" for one in named)


def _few(models: Iterable[ThreatModel]) -> str:
    """Return the first attackers, where the question about trust below names all."""
    named = _who(models).split("; ")
    left = [f"{len(named) - _MAX_WHO} more, see below"] if len(named) > _MAX_WHO else []
    return "; ".join([*named[:_MAX_WHO], *left])


def _or(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _cut(text: str) -> str:
    short = shorten(text, _MAX_LETTERS, placeholder=" …")
    if not short.endswith(" …"):
        return sentence(short)
    whole, ends, _ = short.rpartition(". ")  # half a sentence may have lost its condition
    return capital(f"{whole}. …" if ends else short)


NAME: Final = "summary.html"
_MAX_WARNINGS, _MAX_LETTERS = 2, 130  # of warnings about the run; the report has all
_LOOKS: Final = {"shown": "warn", "suspected": "mild"}
_LIMITS: Final = (
    "A lower bound (“at least”) is what attacks of this run proved. More may leak.",
    "“Nothing shown” is not “private”: another attack or more samples may show a leak.",
    "A guarantee (“at most”) holds only for its attackers and under its assumptions.",
    "Numbers about a client say nothing about a person whose data several clients hold.",
    "No number decides whether data are anonymous or processing is lawful.",
)
_CLAIMED: Final = (
    "Test updates miss noise that an app adds inside its training function: a claim that counts on "
    "such noise would be refuted wrongly."
)
_WORDS: Final = {
    "ε (epsilon), δ (delta)": EPSILON,
    "x % sure": "After some outcomes, an attacker who started at 50:50 is at least this sure.",
    "update": "What a client sends: the change of the model by its training.",
    "test update, canary": "An artificial update in place of a client's own, to measure leaks. "
    "The same one may be sent in several rounds, as a client takes part in several.",
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
  .brief :is(p, ul, table, small, .badge, thead th) { font-size: 6.8pt; line-height: 1.13; }
  .brief p.warn { padding: .1rem .6rem; } .brief table { margin: .1rem 0 0; }
  .brief tbody th { width: 15rem; } .brief :is(th, td) { padding-block: .06rem; }
  .brief :is(p, ul) { margin-top: .06rem; } .brief ul { padding-left: .9rem; }
  footer { margin-top: .2rem; } footer p { font-size: 6.6pt; margin: 0; } }
"""
_LOOK: Final = Live(Markup(), _STYLE, "")
_TEMPLATE = """
<div class="brief"><div class="hero {{ "warn" if is_bad else severity|tone }}">{{ severity|icon }}
<div><p class="level">{{ level }}</p><h1>{{ said }}</h1>
<p>{{ protection }} {{ together }}</p></div></div>
{% for note in notes %}<p class="warn">{{ note|with_code }}</p>{% endfor %}
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
{% if remarks %}<p>Remarks of the audit:</p><ul>
{% for one in remarks %}<li>{{ one }}</li>{% endfor %}</ul>{% endif %}</section></div>
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
        notes=[shorten(one, _MAX_LETTERS, placeholder=" …") for one in notes(run)][:_MAX_WARNINGS],
        whose=data_subjects(run),
        guarantee=guarantee(run),
        risks=found,
        looks=_LOOKS,
        limited="limited against some attackers" if has_open else "limited, as above",
        unlimited="none up to ε = 20" if is_worthless else "none",
        limits=limits(run),
        unaudited=unaudited(run),
        remarks=remarks(run),
        together=sentences.together(verdict),
        answers=answers(run),
        words=_WORDS.items(),
    )
    name = shorten(run.name, _MAX_LETTERS // 2, placeholder=" …")
    title, about = f"Privacy summary of {name}", "privacy summary"
    return document(title, name, first, _LOOK, stamp=page_stamp(run), kind=about)
