"""The verdict on a run: a theorem about its findings, as data.

For each attacker a and question q of a run:

- shown, L(a, q): the largest lower bound without a condition about any attacker at most as strong
  as a and any question that q implies;
- at most, U(a, q): the smallest guarantee against any attacker at least as strong as a, for any
  question that implies q.

Hence neither decreases when the attacker gets stronger, an added finding changes no stronger row
unless its bound is larger, and there is one number for each attacker and question. ε, bits, dB and
shares are never ordered against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from scipy.special import ndtri

from leakmeter.auditors.codec import plain
from leakmeter.auditors.finding import Finding, RunWarning, ThreatModel
from leakmeter.auditors.verdict.claim import (
    Claim,
    ClaimResult,
    Question,
    attacker,
    carries_bounds,
    is_weaker,
    rounds_of,
    strongest,
    unsized,
)
from leakmeter.auditors.wording import CERTAIN, INFORMATION, OBSERVED, is_epsilon

# refuted: a lower bound is above a guarantee or a claim. rebuilt: data were reconstructed beyond
# chance. certain: more than ε = 20 is proven. shown: some ε is proven. suspected: an estimate
# beyond its band, or a bound under a condition. open: audited or not, nothing is shown and nothing
# guaranteed. bounded: nothing is shown, and a guarantee is finite.
Severity = Literal["refuted", "rebuilt", "certain", "shown", "suspected", "open", "bounded"]
# Who wants to know what.
Asked = tuple[ThreatModel, Question]
# Which of these the headline is about, the first that applies.
Headline = Literal[
    "claim",
    "refuted",
    "rebuilt",
    "leak",
    "seen",
    "told",
    "interval",
    "suspected",
    "observed",
    "nothing",
]
WITHOUT_NOISE: Final = "accuracy_without_noise"  # in a report, where an app knows it
_RUINED: Final = 0.1  # of accuracy
# Shares beyond which a run is distorted. A single client can send values that are not finite, and
# must not be able to discredit the audit.
_DISTORTING: Final = {
    "clipped-coordinates": 0.01,
    "abandoned-rounds": 0.5,
    "rejected-sums": 0.5,
    "non-finite-updates": 0.01,
    "blank-updates": 0.01,
}
# Claims that are no ε: each is a test against a control of its own, with a chance to be wrong.
# Tests whose number counts data that were recovered, and what they count.
REBUILT: Final = {"originals recovered": "original", "tokens recovered": "token"}
TESTS: Final = (*REBUILT, "membership advantage", "clients that stand out")
_Z_90: Final = float(ndtri(0.95))  # half the width of a 90 % band, in standard deviations


@dataclass(frozen=True)
class Row:
    """One attacker and one question.

    Attributes:
        attacker: Who, with the most rounds and colluders that a finding of this row has. Where
            guarantees are priced for several numbers of rounds, such as those of clients and those
            of canaries, each price has its row.
        question: What it wants to know.
        findings: All that is about exactly this attacker and question.
        shown: The bound behind what is shown; it may be about a weaker attacker. None if no audit
            without a condition says anything here.
        at_most: The guarantee behind the other end; it may be about a stronger attacker.
        confidence: All bounds of the verdict hold together at least at this confidence.
        cap: The largest ε that any audit behind this row could have shown; None if there is none.
        num_estimates: Estimates of the run, for whose number a band is corrected.
        is_priced: Whether another row differs in the rounds of a client alone.
        alone: In an unfinished run, bounds of single rounds, each at its own confidence; they do
            not hold together, so none of them is `shown`. None in a finished run.
    """

    attacker: ThreatModel
    question: Question
    findings: tuple[Finding, ...]
    shown: Finding | None = None
    at_most: Finding | None = None
    confidence: float | None = None
    cap: float | None = None
    num_estimates: int = 1
    is_priced: bool = False
    alone: tuple[Finding, ...] | None = None

    @property
    def low(self) -> float:
        """At least this ε, with the confidence of `shown`."""
        return 0.0 if self.shown is None else max(self.shown.value, 0.0)

    @property
    def high(self) -> float:
        """At most this ε; infinite where nothing is guaranteed."""
        return math.inf if self.at_most is None else self.at_most.value

    @property
    def is_audited(self) -> bool:
        """Whether an audit without a condition looked at exactly this attacker."""
        return any(_is_bound(f) for f in self.findings)

    @property
    def is_pending(self) -> bool:
        """Whether the run must end before anything is known here."""
        if self.alone is None or self.low > 0:
            return False
        return bool(self.alone) or (self.conditional is None and self.estimate is None)

    @property
    def is_tried(self) -> bool:
        """Whether any audit tried to prove something, be it under a condition."""
        return bool(self.alone) or any(f.kind == "lower_bound" for f in self.findings)

    @property
    def is_saturated(self) -> bool:
        """Whether the audit has shown all that it could, so that the truth may be far above."""
        return self.shown is not None and self.shown.saturated and self.low > 0

    @property
    def conditional(self) -> Finding | None:
        """The largest bound that needs a condition; it never leads, and never without it."""
        found = [f for f in self.findings if f.is_conditional and f.value > 0]
        return max(found, key=lambda f: f.value, default=None)

    @property
    def estimate(self) -> Finding | None:
        """The first estimate or model of this ε."""
        kinds = ("estimate", "approximation")
        return next((f for f in self.findings if f.kind in kinds), None)

    @property
    def severity(self) -> Severity:
        """How much this row asks for something to be done."""
        if self.low > self.high:
            return "refuted"
        if self.low > CERTAIN:
            return "certain"
        if self.low > 0:
            return "shown"
        if self.conditional is not None or self._is_suspected:
            return "suspected"
        return "bounded" if math.isfinite(self.high) else "open"

    @property
    def _is_suspected(self) -> bool:
        return any(is_beyond(f, self.num_estimates) for f in self.findings)

    @property
    def asked(self) -> Asked:
        """Who wants to know what, without the numbers of a run, so that runs line up."""
        return unsized(self.attacker), self.question

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        shown, upper, guess = self.shown, self.at_most, self.estimate
        return {
            "attacker": plain(self.attacker),
            "unit": self.question.unit,
            "adjacency": self.question.adjacency,
            "severity": self.severity,
            "audited": self.is_audited,
            "cap": plain(self.cap),
            "shown": None if shown is None else _shown(shown),
            "saturated": self.is_saturated,
            "at_most": None if upper is None else _at_most(upper),
            "conditional": self.conditional is not None,
            "estimate": None if guess is None else _estimate(guess, self.num_estimates),
        }


@dataclass(frozen=True)
class Block:
    """What was found about one attacker that is no ε.

    Attributes:
        attacker: Who.
        findings: Figures in bits first, then counts and observations.
        at_most: The smallest guarantee in bits against this attacker or a stronger one.
    """

    attacker: ThreatModel
    findings: tuple[Finding, ...]
    at_most: Finding | None = None

    @property
    def bits(self) -> tuple[Finding, ...]:
        """The figures in bits."""
        return tuple(f for f in self.findings if f.quantity in INFORMATION)

    def ceiling(self, finding: Finding) -> Finding | None:
        """Return the guarantee above a figure; None where it says nothing about this figure.

        It bounds what a sum reveals to those who know the other updates. Where the clients' data
        depend on each other, as in a partition of known records, more may follow from the sum.
        """
        is_own = finding.kind == "guarantee" or finding.threat_model.game == "partition"
        return None if is_own else self.at_most


class RoundsDone(NamedTuple):
    """How far an unfinished run is; `planned` is None where nobody knows."""

    done: int
    planned: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What a run says.

    Attributes:
        rows: One per attacker and question, the worst first.
        delta: The δ of all rows; None where no ε has one.
        confidence: All bounds in the rows hold together at least at this confidence.
        tests: Claims that are no ε, each against a control of its own: reconstructions, then
            membership, then clients that stand out. Never ordered against the rows.
        others: What is no ε, by attacker: figures in bits, counts, observations. Never ordered
            against the rows.
        warnings: Reasons to doubt the run itself.
        accuracy: Of the last model, where anybody measured it.
        without_noise: Of the model that the same rounds give without noise, where that is known.
        claims: What was claimed, with what the audit makes of it; those that are refuted first.
        progress: How far the run is; None if it is finished.
    """

    rows: tuple[Row, ...]
    delta: float | None = None
    confidence: float | None = None
    tests: tuple[Finding, ...] = ()
    others: tuple[Block, ...] = ()
    warnings: tuple[RunWarning, ...] = field(default=())
    accuracy: float | None = None
    without_noise: float | None = None
    claims: tuple[ClaimResult, ...] = ()
    progress: RoundsDone | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the run must end before its verdict is known."""
        cases = ("suspected", "observed", "nothing")
        return self.progress is not None and self.headline[0] in cases

    @property
    def false_claims(self) -> list[ClaimResult]:
        """The claims that are refuted."""
        return [one for one in self.claims if one.is_refuted]

    @property
    def headline(self) -> tuple[Headline, Row | None]:
        """What leads, and the row that it is about: the first case that applies."""
        if self.false_claims:
            return "claim", None
        if refuted := [row for row in self.rows if row.low > row.high]:
            return "refuted", refuted[0]
        if any(is_rebuilt(f) for f in self.tests):
            return "rebuilt", None
        if open_ := [row for row in self.rows if row.low > 0 and math.isinf(row.high)]:
            return "leak", open_[0]
        if self.certainties:
            return "seen", None
        if self.told:
            return "told", None
        if bounded := [row for row in self.rows if math.isfinite(row.high)]:
            # The largest guarantee: against whom it is given is part of the sentence.
            return "interval", max(bounded, key=lambda r: (r.high, r.low, r.at_most in r.findings))
        if suspected := [row for row in self.rows if row.severity == "suspected"]:
            return "suspected", suspected[0]
        return ("observed", None) if self.observations else ("nothing", None)

    @property
    def severity(self) -> Severity:
        """That of the headline."""
        case, row = self.headline
        if case == "claim":
            return "refuted"
        if case == "rebuilt":
            return "rebuilt"
        if case in ("seen", "told"):
            return "shown"
        if case == "observed":
            return "suspected"
        return "open" if row is None else row.severity

    @property
    def certainties(self) -> list[Finding]:
        """What separated the two worlds in every draw: no bound on ε, but no mere remark."""
        found = (f for block in self.others for f in block.findings)
        return [f for f in found if f.quantity == "certain separation" and f.value > 0]

    @property
    def told(self) -> list[Finding]:
        """Tests beyond their control, against whose attacker nothing is guaranteed."""
        return [
            test for test in self.tests if is_shown(test) and not self.is_limited(attacker(test))
        ]

    def is_limited(self, one: ThreatModel) -> bool:
        """Whether something is guaranteed against this attacker, be it about another question."""
        return any(math.isfinite(row.high) and is_weaker(one, row.attacker) for row in self.rows)

    @property
    def observations(self) -> list[Finding]:
        """Observed numbers beyond what the same method says in 95 % of runs without a leak."""
        found = (f for block in self.others for f in block.findings if f.quantity in OBSERVED)
        return [f for f in found if f.null_band is not None and f.value > f.null_band[1]]

    @property
    def is_distorted(self) -> bool:
        """Whether so much went wrong that the numbers are not those of a sound run."""
        return is_distorted(self.warnings)

    @property
    def is_costly(self) -> bool:
        """Whether noise has taken more of the accuracy than a guarantee is worth."""
        return costs_too_much(self.accuracy, self.without_noise)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain data, without its sentences."""
        case, row = self.headline
        return {
            "headline": case,
            "severity": self.severity,
            "row": None if row is None else self.rows.index(row),
            "delta": self.delta,
            "confidence": self.confidence,
            "distorted": self.is_distorted,
            "accuracy": plain(self.accuracy),
            WITHOUT_NOISE: plain(self.without_noise),
            "claims": [one.to_json() for one in self.claims],
            "rows": [one.to_json() for one in self.rows],
            "tests": [_test(one) for one in self.tests],
        }


def judge(
    findings: Sequence[Finding],
    warnings: Sequence[RunWarning] = (),
    *,
    accuracy: float | None = None,
    without_noise: float | None = None,
    also: Sequence[Asked] = (),
    claims: Sequence[Claim] = (),
) -> Verdict:
    """Return what the findings of a run, or of one round, say together.

    Args:
        findings: Of the run.
        warnings: Reasons to doubt the run itself.
        accuracy: Of the last model.
        without_noise: Of the model that the same rounds give without noise.
        also: Attackers and questions that get a row whether or not a finding is about them.
        claims: What was claimed. No row takes a claim for a guarantee.
    """
    of_rows = [f for f in findings if is_epsilon(f) and f.adjacency is not None]
    delta = _delta(of_rows)
    bounds = [f for f in of_rows if _is_bound(f) and _holds_at(f, delta)]
    # A claim has a δ of its own, so bounds that no row uses may test it.
    testing = [f for f in of_rows if f not in bounds and any(c.is_tested_by(f) for c in claims)]
    promises = [f for f in of_rows if f.kind == "guarantee" and _holds_at(f, delta)]
    num_estimates = sum(f.null_band is not None for f in findings if f.kind == "estimate")
    tests = [f for f in findings if f.quantity in TESTS and f.kind == "lower_bound"]
    # The largest is chosen after all are seen, so all must hold: their chances to miss add up.
    used = (*bounds, *testing, *filter(_is_bound, tests))
    misses = sum(1 - (f.confidence or 0.0) for f in used)
    confidence = max(1 - misses, 0.0) if misses else None
    judged = [ClaimResult.of(claim, of_rows, confidence) for claim in claims]
    rows = []
    for model, question, own, is_priced in _grouped(of_rows, also):
        # Bounds about this attacker and question or weaker ones, guarantees against stronger ones.
        below = [
            f
            for f in bounds
            if carries_bounds(attacker(f), model) and _question(f).is_implied_by(question)
        ]
        above = [
            f
            for f in promises
            if is_weaker(model, attacker(f)) and question.is_implied_by(_question(f))
        ]
        row = Row(
            model,
            question,
            own,
            shown=max(below, key=lambda f: f.value, default=None),
            at_most=min(above, key=lambda f: f.value, default=None),
            confidence=confidence,
            cap=max((math.inf if f.cap is None else f.cap for f in below), default=None),
            num_estimates=max(num_estimates, 1),
            is_priced=is_priced,
        )
        rows.append(row)
    return Verdict(
        rows=tuple(sorted(rows, key=_rank)),
        delta=delta,
        confidence=confidence,
        tests=tuple(sorted(tests, key=lambda f: (TESTS.index(f.quantity), not is_shown(f)))),
        others=_blocks([f for f in findings if f not in of_rows]),
        warnings=tuple(warnings),
        accuracy=accuracy,
        without_noise=without_noise,
        claims=tuple(sorted(judged, key=_weight)),
    )


def _blocks(findings: Sequence[Finding]) -> tuple[Block, ...]:
    """Return what is no ε, by attacker, those with figures in bits first."""
    groups: dict[ThreatModel, list[Finding]] = {}
    for f in findings:
        groups.setdefault(unsized(attacker(f)), []).append(f)
    promises = [f for f in findings if f.kind == "guarantee" and f.quantity in INFORMATION]
    made = []
    for own in groups.values():
        model = strongest(attacker(f) for f in own)
        above = [f for f in promises if is_weaker(model, attacker(f))]
        least = min(above, key=lambda f: f.value, default=None)
        ordered = sorted(own, key=lambda f: f.quantity not in INFORMATION)
        made.append(Block(model, tuple(ordered), least))
    return tuple(sorted(made, key=lambda block: not block.bits))


def is_beyond(finding: Finding, num_estimates: int) -> bool:
    """Whether an estimate is beyond what its method says in 95 % of runs without a leak.

    The band of one estimate is widened for the number of estimates that were looked at
    (Bonferroni), as if the null were normal: only its quantiles of 5 % and 95 % are known.
    """
    if finding.kind != "estimate" or finding.null_band is None:
        return False
    low, high = finding.null_band
    spread = (high - low) / 2 / _Z_90
    limit = (low + high) / 2 + spread * float(ndtri(1 - 0.05 / num_estimates))
    return finding.value > max(limit, high)


def is_shown(test: Finding) -> bool:
    """Whether a test says more than chance explains, without a condition."""
    return _is_bound(test) and test.value > 0


def is_rebuilt(test: Finding) -> bool:
    """Whether data were recovered beyond what chance explains, without a condition."""
    return test.quantity in REBUILT and is_shown(test)


def costs_too_much(accuracy: float | None, without_noise: float | None) -> bool:
    """Whether a model lost so much of its accuracy to noise that it is hardly worth having."""
    if accuracy is None or without_noise is None:
        return False
    return without_noise - accuracy > _RUINED


def is_distorted(warnings: Iterable[RunWarning]) -> bool:
    """Whether so much went wrong that the numbers are not those of a sound run."""
    return any(w.value > _DISTORTING.get(w.kind, math.inf) for w in warnings)


def _is_bound(finding: Finding) -> bool:
    return finding.kind == "lower_bound" and not finding.is_conditional


def _delta(findings: Sequence[Finding]) -> float | None:
    """Return the δ at which the most bounds and guarantees can be used; of several the smallest."""
    usable = [
        f for f in findings if f.kind in ("lower_bound", "guarantee") and math.isfinite(f.value)
    ]
    deltas = sorted({f.delta or 0.0 for f in usable})
    best = max(deltas, key=lambda d: sum(_holds_at(f, d) for f in usable), default=None)
    return best or None


def _holds_at(finding: Finding, delta: float | None) -> bool:
    """Whether a number says something at δ: ε falls with δ, from either side."""
    own, at = finding.delta or 0.0, delta or 0.0
    return own <= at if finding.kind == "guarantee" else own >= at


def _grouped(
    findings: Sequence[Finding], also: Sequence[Asked]
) -> Iterator[tuple[ThreatModel, Question, tuple[Finding, ...], bool]]:
    """Yield each attacker and question with what is about them, and whether prices differ."""
    groups: dict[Asked, list[Finding]] = {}
    for f in findings:
        groups.setdefault((unsized(attacker(f)), _question(f)), []).append(f)
    for model, question in also:
        groups.setdefault((unsized(model), question), [])
    for (model, question), own in groups.items():
        # A bound is compared with the price for at least as many rounds as its canaries play.
        prices = sorted({rounds_of(f) for f in own if f.kind == "guarantee"}) or [1]
        for above, most in zip([0, *prices], [*prices[:-1], math.inf], strict=False):
            part = tuple(f for f in own if above < rounds_of(f) <= most)
            found = strongest(map(attacker, part)) if part else model
            yield found, question, part, len(prices) > 1


def _question(finding: Finding) -> Question:
    assert finding.adjacency is not None
    return Question(finding.unit, finding.adjacency)


def _rank(row: Row) -> tuple[float, float, bool]:
    """Return the order of rows: by what is shown, then no guarantee before a large one.

    Of equal rows, that of whoever was audited comes before those that take its bound over.
    """
    return -row.low, -row.high, row.shown not in row.findings


def _weight(result: ClaimResult) -> tuple[bool, bool]:
    """Return the order of claims: refuted ones first, and of these those that say why."""
    return not result.is_refuted, result.claim.delivered is None


def _shown(bound: Finding) -> dict[str, Any]:
    return {
        "epsilon": plain(bound.value),
        **_fields(bound, "delta", "confidence", "auditor"),
        "attacker": plain(bound.threat_model),
        **_fields(bound, "adjacency", "unit", "cap"),
        "share": bound.facts.get("share_at_threshold"),
    }


def _at_most(promise: Finding) -> dict[str, Any]:
    return {
        "epsilon": plain(promise.value),
        **_fields(promise, "delta", "auditor"),
        "attacker": plain(promise.threat_model),
        **_fields(promise, "adjacency", "unit", "assumptions"),
    }


def _test(test: Finding) -> dict[str, Any]:
    return {
        **_fields(test, "quantity", "value"),
        "shown": is_shown(test),
        "conditional": test.is_conditional,
        **_fields(test, "confidence", "cap", "auditor"),
        "attacker": plain(attacker(test)),
        "unit": test.unit,
    }


def _fields(finding: Finding, *names: str) -> dict[str, Any]:
    return {name: plain(getattr(finding, name)) for name in names}


def _estimate(guess: Finding, num_estimates: int) -> dict[str, Any]:
    return {
        "epsilon": plain(guess.value),
        "kind": guess.kind,
        "auditor": guess.auditor,
        "null_band": plain(guess.null_band),
        "beyond": is_beyond(guess, num_estimates),
    }
