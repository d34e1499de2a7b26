"""A verdict for each attacker in plain words, never stronger than its findings allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from leakmeter.auditors.finding import Finding, RunWarning
from leakmeter.auditors.judge.adversary import Group, by_adversary
from leakmeter.auditors.judge.meaning import (
    certainties,
    draws_of,
    found,
    is_beyond,
    stake,
    sure,
)
from leakmeter.auditors.wording import (
    INFORMATION,
    both_ends,
    capital,
    claim,
    condition,
    is_certain,
    is_epsilon,
    is_nothing,
    observation,
    remarked,
    sentence,
)

# leak: proven with confidence; seen: certain in all draws; conditional: proven if something holds;
# hint: beyond its null band; unable: could have shown nothing; none: looked and shown nothing;
# open: no guarantee, or one above 20; model: what a model says; bounded: an upper bound; count:
# guaranteed, but no bound on leakage; silent: diagnostics only.
Level = Literal[
    "leak",
    "seen",
    "conditional",
    "hint",
    "unable",
    "none",
    "open",
    "model",
    "bounded",
    "count",
    "silent",
]

# What asks for something to be done comes first.
BADGES: dict[Level, str] = {
    "leak": "leak shown",
    "seen": "leak seen",
    "conditional": "leak shown, if …",
    "hint": "leak suggested",
    "unable": "audit cannot show anything",
    "none": "no leak shown",
    "open": "no useful guarantee",
    "model": "by a model only",
    "bounded": "bounded from above",
    "count": "no bound on leakage",
    "silent": "observations only",
}
# Shares beyond which a run is distorted. A single client can send values that are not finite, and
# must not be able to discredit the audit.
_MOST_CLIPPED, _MOST_ABANDONED, _MOST_NON_FINITE = 0.01, 0.5, 0.01


@dataclass(frozen=True)
class Verdict:
    """What the run says of one attacker.

    Attributes:
        group: All that was found about this attacker.
        lead: The number that the headline is about.
        level: How strong the statement is.
        headline: The statement.
        found: What was found, in words.
        sure: How sure that is.
    """

    group: Group
    lead: Finding
    level: Level
    headline: str
    found: tuple[str, ...]
    sure: tuple[str, ...]


def judged(findings: Sequence[Finding]) -> list[Verdict]:
    """Return one verdict per attacker, what asks for something to be done first."""
    made = [_verdict(group) for group in by_adversary(findings)]
    return sorted(made, key=lambda v: list(BADGES).index(v.level))


def is_distorted(warnings: Iterable[RunWarning]) -> bool:
    """Whether so much went wrong that the numbers are not those of a sound run."""
    return any(_distorts(w) for w in warnings)


def _distorts(warning: RunWarning) -> bool:
    match warning.kind:
        case "clipped-coordinates":
            return warning.value > _MOST_CLIPPED
        case "abandoned-rounds" | "rejected-sums":
            return warning.value > _MOST_ABANDONED
        case "non-finite-updates":
            return warning.value > _MOST_NON_FINITE
        case _:
            return False


def _verdict(group: Group) -> Verdict:
    level, lead = _level(group)
    if level == "silent":
        rules = tuple(dict.fromkeys(sentence(observation(f)) for f in group.findings))
        words = "Observations only; this is not evidence of privacy"
        return Verdict(group, lead, level, words, rules, ())
    return Verdict(group, lead, level, _headline(level, lead, group), found(group), sure(group))


def _level(group: Group) -> tuple[Level, Finding]:
    """Return the strongest level and the finding behind it."""
    leads = group.leads
    bounds = [f for f in leads if f.kind == "lower_bound"]
    proven = [f for f in bounds if not f.is_conditional]
    if shown := [f for f in proven if f.value > 0]:
        return "leak", shown[0]
    if certain := certainties(group):
        return "seen", certain[0]
    if (shown := [f for f in bounds if f.value > 0]) and not proven:
        return "conditional", shown[0]
    measured = [f for f in leads if f.kind == "estimate"]
    if beyond := [f for f in measured if is_beyond(f)]:
        return "hint", beyond[0]
    if bounds and all(f.cap == 0 for f in bounds):
        return "unable", bounds[0]
    if proven or bounds or measured:
        return "none", (proven or bounds or measured)[0]
    if modelled := [f for f in leads if f.kind == "approximation"]:
        return "model", modelled[0]
    if leads:
        return _promised(leads[0]), leads[0]
    return "silent", group.findings[0]


def _promised(guarantee: Finding) -> Level:
    """Return what a guarantee is worth: one of a count bounds no leakage."""
    if guarantee.quantity not in ("epsilon", *INFORMATION):
        return "count"
    return "open" if math.isinf(guarantee.value) or is_certain(guarantee) else "bounded"


def _headline(level: Level, lead: Finding, group: Group) -> str:
    what = stake(lead) or f"something about a {lead.unit}"
    upper = group.above(lead)
    number_ = claim(lead) if upper is None else both_ends(lead, upper)
    match level:
        case "leak":
            return f"Gives away {what}: {number_}"
        case "seen":
            return f"Gave away {what} in {draws_of(lead)}"
        case "conditional":
            return f"{capital(condition(lead))}, it gives away {what}: {remarked(lead)}"
        case "hint":
            return f"Seems to give away {what}: {number_}"
        case "unable":
            return "This audit cannot show anything" + _promise(upper)
        case "none" if is_nothing(lead):
            return "No leak shown" + _promise(upper)
        case "none":
            return f"No leak shown: {number_}"
        case "model":
            return f"A model says {number_}"
        case "bounded" if is_epsilon(lead):
            return f"{capital(number_)}, guaranteed"
        case _:
            return capital(number_)


def _promise(upper: Finding | None) -> str:
    """Return the guarantee against the same attacker as the end of a headline."""
    if upper is None:
        return ""
    return f"; {claim(upper)}{' guaranteed' if math.isfinite(upper.value) else ''}"
