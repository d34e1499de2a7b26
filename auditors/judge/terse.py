"""Findings in the fewest words that keep their meaning: cells of a table, pieces of a line.

`wording` has the full sentences; a cell never says more than they do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Final

from leakmeter.auditors.finding import Finding, Observer, Sees, ThreatModel
from leakmeter.auditors.wording import (
    INFORMATION,
    OBSERVED,
    SIGNS,
    is_epsilon,
    number,
    percent,
    quantity,
    value,
)

_OBSERVERS: Final[Mapping[Observer, str]] = {
    "server": "server",
    "outsider": "outsider",
    "wire": "wiretap",
}
_SUBJECTS: Final[Mapping[Observer, str]] = {
    "server": "A server that",
    "outsider": "Anyone who",
    "wire": "An eavesdropper who",
}
_SEEN: Final[Mapping[Sees, tuple[str, str]]] = {  # in one round, in all rounds
    "updates": ("all updates", "all updates"),
    "round sum": ("a round's sum", "all sums"),
    "noised sum": ("a noised sum", "noised sums"),
    "frozen sums": ("sum, given model", "sums, given models"),
    "all models": ("every model", "every model"),
    "round model": ("one model", "one model"),
    "final model": ("final model", "final model"),
}
_SEES: Final[Mapping[Sees, tuple[str, str]]] = {
    "updates": ("the updates of a round", "every update"),
    "round sum": ("the sum of a round", "the sums of all rounds"),
    "noised sum": ("the noised sum of a round", "the noised sums of all rounds"),
    "frozen sums": (
        "the sum of a round at this run's model",
        "the sums of all rounds at this run's models",
    ),
    "all models": ("every model", "every model"),
    "round model": ("the models before and after a round",) * 2,
    "final model": ("the final model", "the final model"),
}
# What the two worlds differ in: in a cell, and as the end of a sentence. "Given": the attacker
# holds the update or record in question.
_STAKES: Final = {
    ("client", "zero-out"): ("if an update was sent", "whether a client sent a given update"),
    ("client", "add-remove"): ("if a client took part", "whether a given client took part"),
    ("client", "honest-seat"): ("if a canary was there", "whether a canary replaced a client"),
    ("client", "replace"): ("which of two updates", "which of two given updates a client sent"),
    ("record", "zero-out"): ("if a record was used", "whether a given record was used"),
    ("record", "add-remove"): ("if a record was used", "whether a given record was used"),
    ("record", "replace"): ("which of two records", "which of two given records a client held"),
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
_MOST = 24  # columns of a cell whose words are another project's


def who(model: ThreatModel) -> str:
    """Return the attacker as a cell, such as "outsider, every model"."""
    name = _OBSERVERS[model.observer]
    if model.sees is None:
        return name
    return f"{name}, {_SEEN[model.sees][model.participations is not None]}"


def subject(model: ThreatModel) -> str:
    """Return the attacker as the subject of a sentence, such as "Anyone who sees every model"."""
    name = _SUBJECTS[model.observer]
    if model.sees is None:
        return f"{name} attacks"
    return f"{name} sees {_SEES[model.sees][model.participations is not None]}"


def tells(finding: Finding) -> str:
    """Return what the attacker can tell, as a cell."""
    if known := _stakes(finding):
        return known[0]
    if finding.quantity in INFORMATION:
        return _ABOUT.get(finding.quantity, "part of an update")
    return _cut(_ABOUT.get(finding.quantity, quantity(finding.quantity)))


def question(finding: Finding) -> str:
    """Return what the attacker can tell, as the end of a sentence."""
    known = _stakes(finding)
    return known[1] if known else f"something about a {finding.unit}"


def _stakes(finding: Finding) -> tuple[str, str] | None:
    """Return what the two worlds differ in, as a cell and as the end of a sentence."""
    if finding.threat_model.holds == "two data sets":
        return _DATA_SETS
    return _STAKES.get((finding.unit, finding.adjacency or ""))


def amount(finding: Finding) -> str:
    """Return a number with the sign of its kind, such as "ε ≥ 2.15" or "≈ 0.428 bit"."""
    sign = SIGNS.get(finding.kind, "≈")
    if is_epsilon(finding):
        return "no bound" if math.isinf(finding.value) else f"ε {sign} {value(finding)}"
    if finding.quantity in INFORMATION:
        return f"{sign} {number(finding.value, kind=finding.kind)} {_unit(finding)}"
    return value(finding)


def trust(finding: Finding) -> str:
    """Return the confidence of a proof, such as "95 %"."""
    return percent(finding.confidence) if finding.confidence is not None else ""


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
        return f"{name}{sign}{finding.value:,.2f} {_unit(finding)}"
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


def _unit(finding: Finding) -> str:
    return "bit" if abs(finding.value) <= 1 else "bits"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else text[: _MOST - 1].rstrip() + "…"
