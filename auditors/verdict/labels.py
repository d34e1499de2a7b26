"""Rows and findings in the fewest words that keep their meaning: cells and pieces of a line.

The one table of words for terminal, page, CSV and advice. `wording` has the full sentences; a cell
never says more than they do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Final, Literal, get_args

from leakmeter.auditors.finding import Adjacency, Finding, ThreatModel
from leakmeter.auditors.verdict.claim import Claim, ClaimResult, Question, attacker
from leakmeter.auditors.verdict.verdict import Block, Row, Severity, Verdict
from leakmeter.auditors.wording import (
    CERTAIN,
    INFORMATION,
    OBSERVED,
    OBSERVERS,
    SEEN,
    SIGNS,
    counted,
    digits_of,
    is_epsilon,
    number,
    percent,
    quantity,
    rounds_of_bits,
    sureness,
    value,
)

Tone = Literal["alarm", "warn", "mild", "calm", "grey"]  # colours, next to the words
SEVERITIES: Final[Mapping[Severity, tuple[str, Tone]]] = {
    "refuted": ("refuted", "alarm"),
    "rebuilt": ("data rebuilt", "alarm"),
    "certain": ("practically certain", "alarm"),
    "shown": ("leak shown", "warn"),
    "suspected": ("leak suspected", "mild"),
    "open": ("nothing shown, nothing guaranteed", "grey"),
    "bounded": ("bounded by a guarantee", "calm"),
}
LEAKS: Final = tuple(one for one in SEVERITIES if one not in ("open", "bounded"))
# What the two worlds differ in: in a cell, and as the end of a sentence. "Given": the attacker
# holds the update or record in question.
_STAKES: Final[Mapping[Question, tuple[str, str]]] = {
    Question("client", "zero-out"): (
        "if an update was sent",
        "whether a client sent a given update",
    ),
    Question("client", "add-remove"): ("if a client took part", "whether a given client took part"),
    Question("client", "honest-seat"): (
        "if a canary was there",
        "whether a canary replaced a client",
    ),
    Question("client", "replace"): (
        "which of two updates",
        "which of two given updates a client sent",
    ),
    Question("record", "zero-out"): ("if a record was used", "whether a given record was used"),
    Question("record", "add-remove"): ("if a record was used", "whether a given record was used"),
    Question("record", "replace"): (
        "which of two records",
        "which of two given records a client held",
    ),
    Question("record", "honest-seat"): ("if a record was used", "whether a given record was used"),
    **{
        Question("group", one): ("if copies were used", "whether copies of a record were used")
        for one in get_args(Adjacency)
    },
    Question("group", "replace"): (
        "which of two, copied",
        "copies of which of two given records a client held",
    ),
}
# What a test that is no ε is about: as a cell, and the unit of its number.
_TESTS: Final[Mapping[str, tuple[str, str]]] = {
    "originals recovered": ("what records are", "record"),
    "tokens recovered": ("what texts contain", "token"),
    "membership advantage": ("if a record was used", "point"),
    "clients that stand out": ("who a client is", "client"),
}
_DATA_SETS: Final = ("which of two data sets", "which of two given data sets a client holds")
_ABOUT: Final = {
    "information about the data over all rounds": "part of the data",
    "mutual information of all coordinates": "all of an update",
    "honest clients in the smallest sum": "size of the sum",
    "share outside the span": "part of an update",
    "reconstruction PSNR in dB": "what records look like",
}
_NAMES: Final = {
    "likelihood-ratio": "LRT",
    "record-likelihood-ratio": "record LRT",
    "mutual-information": "MI",
    "mine": "MINE",
}
NOT_YET: Final = "not known yet"  # of a run that is not finished
_MAX_LETTERS = 24  # columns of a cell whose words are another project's
CLAIM_HEADS: Final = ("Claim", "Delivered", "Shown", "Verdict", "Claimed by")
_FLOWERS: Final = "DifferentialPrivacy"  # all of Flower's wrappers begin with it
_MAX_SOURCE = 12


def who(model: ThreatModel) -> str:
    """Return the attacker as a cell, such as "outsider, every model"."""
    words = [OBSERVERS[model.observer].cell]
    if model.sees is not None:
        words.append(SEEN[model.sees].cell[model.participations is not None])
    if not model.knows_cohort and model.sees not in (None, "final model"):
        words.append("cohort hidden")
    if model.conduct == "active":
        words.append("active")
    if model.game == "worst-data":
        words.append("worst data")
    return ", ".join(words)


def subject(model: ThreatModel) -> str:
    """Return the attacker as the subject of a sentence, such as "Anyone who sees every model"."""
    name = OBSERVERS[model.observer].subject
    if model.sees is None:
        return f"{name} attacks"
    return f"{name} sees {SEEN[model.sees].clause[model.participations is not None]}"


def tells(row: Row) -> str:
    """Return what the attacker of a row can tell, as a cell."""
    return _stakes(row)[0]


def level(verdict: Verdict) -> str:
    """Return how severe a verdict is, as the line above its headline."""
    if verdict.is_distorted:
        return "distorted run"
    if verdict.is_pending:
        return "unfinished run"
    case, row = verdict.headline
    if case == "interval" and row is not None and 0 < row.low <= row.high <= CERTAIN:
        return f"{SEVERITIES['shown'][0]}, limited by a guarantee"  # a lower bound has no size
    return SEVERITIES[verdict.severity][0]


def at_stake(question: Question) -> str:
    """Return what a question is about, as the end of a sentence."""
    return _STAKES[question][1]


def proven_question(bound: Finding) -> str:
    """Return what a bound is about, as the end of a sentence."""
    assert bound.adjacency is not None
    if bound.threat_model.holds == "two data sets":
        return _DATA_SETS[1]
    return at_stake(Question(bound.unit, bound.adjacency))


def question(row: Row) -> str:
    """Return what the attacker of a row can tell, as the end of a sentence."""
    return _stakes(row)[1]


def about(finding: Finding) -> str:
    """Return what a figure in bits, or another quantity, is about, as a cell."""
    if finding.quantity in INFORMATION and finding.kind == "guarantee":
        return "all of an update"  # whatever directions a figure was measured along
    if finding.quantity in INFORMATION:
        return _ABOUT.get(finding.quantity, "part of an update")
    return _cut(_ABOUT.get(finding.quantity, quantity(finding.quantity)))


def _stakes(row: Row) -> tuple[str, str]:
    """Return what the two worlds differ in, as a cell and as the end of a sentence."""
    held = {f.threat_model.holds for f in row.findings if f.kind != "guarantee"}
    cell, words = _DATA_SETS if held == {"two data sets"} else _STAKES[row.question]
    if not row.is_priced:
        return cell, words
    rounds = counted(row.attacker.participations or 1, "round")
    return f"{cell}, {rounds}", f"{words} (in {rounds})"


def shown_cell(row: Row) -> str:
    """Return what is shown, as a cell; a bound under a condition is no number without it."""
    if row.shown is not None and row.low > 0:
        return amount(row.shown)
    if row.is_pending:
        return NOT_YET
    if row.is_audited:
        return "nothing"
    if row.conditional is not None:
        return "see details"
    if row.is_tried:
        return "nothing"
    if row.estimate is not None:
        return amount(row.estimate)
    return "not audited"


def cells_of_test(test: Finding) -> tuple[str, ...]:
    """Return a test that is no ε as a row, with the cells of `cells`."""
    about, unit = _TESTS[test.quantity]
    if test.value <= 0:
        found, how = "nothing", "cannot show" if test.cap == 0 else "not shown"
    elif test.is_conditional:
        found, how = "see details", "conditional"
    else:
        size = number(100 * test.value if unit == "point" else test.value, kind="lower_bound")
        total = f" of {test.facts['originals']}" if "originals" in test.facts else ""
        noun = unit if size == "1" and not total else f"{unit}s"
        found, how = f"≥ {size}{total} {noun}", f"proven {percent(test.confidence or 0.0)}"
    return who(attacker(test)), about, found, "no bound", how


def at_most_cell(row: Row) -> str:
    """Return what is guaranteed, as a cell."""
    return "no bound" if row.at_most is None else amount(row.at_most)


def evidence(row: Row) -> str:
    """Return how strong the evidence of a row is, as a cell."""
    if row.low > 0:
        return f"proven {percent(row.confidence or 0.0)}"
    if row.alone and row.is_pending:
        return "single rounds"
    if row.conditional is not None:
        return "conditional"
    if row.is_tried:
        return "cannot show" if row.cap == 0 else "not shown"
    if row.estimate is not None:
        return "model only" if row.estimate.kind == "approximation" else "estimate"
    return "theorem" if math.isfinite(row.high) else "–"


def is_taken_over(row: Row) -> bool:
    """Whether what is shown is a bound about a weaker attacker."""
    return row.low > 0 and row.shown not in row.findings


def cells(row: Row) -> tuple[str, ...]:
    """Return a row: who, what it can tell, what is shown, what is guaranteed, the evidence."""
    return who(row.attacker), tells(row), shown_cell(row), at_most_cell(row), evidence(row)


def cells_of_claim(result: ClaimResult) -> tuple[str, ...]:
    """Return a claim as a row: what, what it delivers, what is shown, the verdict, by whom."""
    bound, claim = result.bound, result.claim
    found = amount(bound) if bound is not None and result.low > 0 else "nothing"
    shown = "not audited" if bound is None else found
    what = f"{upper(claim.epsilon)} per {claim.per}, {OBSERVERS[claim.against].cell}"
    unshaken = "NOT TESTED" if bound is None else "NOT REFUTED"
    verdict = "REFUTED" if result.is_refuted else unshaken
    source = "DP wrapper" if claim.source.startswith(_FLOWERS) else claim.source
    return what, delivered_cell(claim), shown, verdict, _cut(source, _MAX_SOURCE)


def delivered_cell(claim: Claim) -> str:
    """Return the ε that a claim's own parameters give, as a cell."""
    return "not known" if claim.delivered is None else exactly(claim.delivered)


def exactly(epsilon: float) -> str:
    """Return an ε that is neither shown nor guaranteed: "ε = 10.4"."""
    return f"ε = {number(epsilon, digits_of(epsilon))}"


def upper(epsilon: float) -> str:
    """Return an ε that somebody claims, as it is typed: "ε ≤ 10"."""
    return f"ε ≤ {number(epsilon)}"


def in_bits(verdict: Verdict) -> list[tuple[str, ...]]:
    """Return the figures in bits as rows: who, about what, what was found, at most, the evidence.

    An attacker about whom nothing was measured has a row if its bits are bounded.
    """
    found = [(b, f) for b in verdict.others for f in b.bits if f.kind != "guarantee"]
    measured = {id(block) for block, _ in found}
    only = [(b, b.at_most) for b in verdict.others if b.at_most in b.bits]
    found += [(b, f) for b, f in only if f is not None and id(b) not in measured]
    return [
        (who(b.attacker), about(f), *_bits(b, f), f"{_kind(f)}, {rounds_of_bits(f)}")
        for b, f in found
    ]


def _bits(block: Block, finding: Finding) -> tuple[str, str]:
    """Return what was found and the most that it can be, as cells."""
    most = f"≤ {number(block.at_most.value, kind='guarantee')}" if block.at_most else "no bound"
    if finding.kind == "guarantee":
        return "not measured", most
    sign, size = SIGNS.get(finding.kind, "≈"), number(finding.value, kind=finding.kind)
    return f"{sign} {size}", most if block.ceiling(finding) else "no bound"


def _kind(finding: Finding) -> str:
    return {"approximation": "model", "guarantee": "theorem"}.get(finding.kind, finding.kind)


def sureness_cell(row: Row) -> str:
    """Return how sure a proven ε makes the attacker, as a label."""
    if row.low > CERTAIN:
        return "practically certain"
    return f"at least {sureness(row.low)} sure" if row.low > 0 else shown_cell(row)


def amount(finding: Finding) -> str:
    """Return a number with the sign of its kind, such as "ε ≥ 2.15"."""
    sign = SIGNS.get(finding.kind, "≈")
    if is_epsilon(finding):
        return "no bound" if math.isinf(finding.value) else f"ε {sign} {value(finding)}"
    return value(finding)


def glimpse(finding: Finding) -> str:
    """Return a finding of a round in a few characters, such as "LRT ε≥2.15"; "" for a remark.

    Bits and an ε below 10 have two decimals, as many as a line of 80 columns has room for; the
    report has them all.
    """
    name = _NAMES.get(finding.auditor, finding.auditor)
    sign = SIGNS.get(finding.kind, "≈")
    if finding.kind == "diagnostic":
        if finding.quantity not in OBSERVED:
            return ""
        unit = " dB" if finding.quantity == "reconstruction PSNR in dB" else ""
        return f"{name} {number(finding.value, 2)}{unit}"
    if finding.quantity in INFORMATION:
        unit = "bit" if abs(finding.value) <= 1 else "bits"
        return f"{name}{sign}{finding.value:,.2f} {unit}"
    if not is_epsilon(finding):
        return f"{name} {_cut(value(finding))}"
    doubt = " if assumed" if finding.is_conditional else ""
    until = " so far" if finding.is_anytime else ""
    return f"{name} ε{sign}{_small(finding)}{until}{doubt}"


def _small(finding: Finding) -> str:
    """Return an ε with two decimals, as rounds below each other have, rounded to the safe side."""
    if not 0 < finding.value < 10:
        return value(finding)
    modes = {"lower_bound": ROUND_FLOOR, "guarantee": ROUND_CEILING}
    mode = modes.get(finding.kind, ROUND_HALF_EVEN)
    # In decimals: 100 · 0.29 is below 29 in binary, and would be cut to 0.28.
    return str(Decimal(repr(finding.value)).quantize(Decimal("0.01"), rounding=mode))


def short_name(auditor: str) -> str:
    """Return the name that fits into a line."""
    return _NAMES.get(auditor, auditor)


def _cut(text: str, most: int = _MAX_LETTERS) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
