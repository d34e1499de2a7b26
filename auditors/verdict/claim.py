"""Who asks what, and the privacy claims that an audit may refute.

Attackers and questions are ordered. Where one attacker can compute everything that another one
sees, a lower bound about the weaker is one about the stronger, and a guarantee against the stronger
is one against the weaker. The same holds for questions: whoever can distinguish any two updates can
distinguish an update from zero.

A claim is what somebody says a run guarantees. It is no guarantee: nothing is derived from it, no
row takes it for its upper end, and an audit that does not refute it has not confirmed it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, Self, get_args

from leakmeter.auditors.codec import plain
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Adjacency, Finding, Observer, Sees, ThreatModel, Unit
from leakmeter.auditors.values import require
from leakmeter.auditors.wording import Assumption

# Seeing the first, one can compute all of the second: models follow from noised sums, noised sums
# from sums, sums from updates. A guarantee about sums holds whatever models were sent, so it holds
# for frozen ones.
_FOLLOWS: Final[Mapping[Sees, frozenset[Sees]]] = {
    "updates": frozenset(get_args(Sees)),
    "round sum": frozenset(get_args(Sees)) - {"updates"},
    "noised sum": frozenset(get_args(Sees)) - {"updates", "round sum"},
    "frozen sums": frozenset({"frozen sums"}),
    "all models": frozenset({"all models", "round model", "final model"}),
    "round model": frozenset({"round model"}),
    "final model": frozenset({"final model"}),
}
# A bound in one of these games is not about this run's own others, so no other row takes it over.
_OWN_GAMES = ("worst-data",)


@dataclass(frozen=True)
class Question:
    """What an attacker wants to know: whose participation, and how the two worlds differ."""

    unit: Unit
    adjacency: Adjacency

    @classmethod
    def of(cls, finding: Finding) -> Question | None:
        """Return the question of a finding; None where it has no two worlds."""
        return None if finding.adjacency is None else cls(finding.unit, finding.adjacency)

    def is_implied_by(self, other: Question) -> bool:
        """Whether ε of this question is at most ε of the other.

        For a client zero is an update, and a record, or all its copies, change one update: cases of
        replacing an update by any other. Nothing else is ordered: removing a client may change the
        denominator, the noise or the count, and a record is no part of "sent it or sent nothing".
        """
        if self == other:
            return True
        replaces_updates = other == Question("client", "replace")
        return replaces_updates and (self.unit != "client" or self.adjacency == "zero-out")


def attacker(finding: Finding) -> ThreatModel:
    """Return who attacks, without what the test at hand brings along.

    Two candidates, a canary and the game of the trials belong to a method, not to the attacker.
    """
    model = finding.threat_model
    game = model.game if model.game in _OWN_GAMES else None
    return replace(model, holds=None, game=game)


def is_same(one: ThreatModel, other: ThreatModel) -> bool:
    """Whether two attackers share a row: they differ in numbers of rounds and colluders only."""
    return unsized(one) == unsized(other)


def strongest(models: Iterable[ThreatModel]) -> ThreatModel:
    """Return the attacker of a row: the most rounds and colluders of those who share it."""
    found = list(models)
    rounds = [m.participations for m in found if m.participations is not None]
    most = max(rounds, default=None)
    return replace(found[0], participations=most, colluders=max(m.colluders for m in found))


def is_weaker(one: ThreatModel, other: ThreatModel) -> bool:
    """Whether `other` sees, knows and may do at least as much as `one`."""
    if one.sees is None or other.sees is None:
        return one == other
    # The server also gets every model; someone on the wire and the server are not compared.
    is_seen_by = one.observer == other.observer or (one.observer, other.observer) == (
        "outsider",
        "server",
    )
    return (
        is_seen_by
        and one.sees in _FOLLOWS[other.sees]
        and other.game in (None, one.game)
        and one.knows_cohort <= other.knows_cohort
        and _rounds(one) <= _rounds(other)
        and one.colluders <= other.colluders
        and (one.conduct == other.conduct or other.conduct == "active")
    )


def carries_bounds(one: ThreatModel, other: ThreatModel) -> bool:
    """Whether a lower bound about `one` is a lower bound about `other`.

    A bound at the models of this run, or with the other clients' data at their worst, is about a
    composition that the run did not play. It stays in its own row.
    """
    is_alone = one.sees == "frozen sums" or one.game is not None
    return is_weaker(one, other) and (is_same(one, other) if is_alone else True)


def covers(guarantee: Finding, bound: Finding) -> bool:
    """Whether a lower bound may be set against a guarantee: every field must allow it.

    A conditional bound may not, since it may be above the truth. A guarantee at a smaller δ is the
    stronger one and holds at every larger δ as well.
    """
    if guarantee.kind != "guarantee" or bound.kind != "lower_bound" or bound.is_conditional:
        return False
    if not (guarantee.quantity == bound.quantity == "epsilon"):
        return False
    if bound.threat_model.sees is None:  # two attackers that see something unknown may differ
        return False
    asked, answered = Question.of(bound), Question.of(guarantee)
    return (
        asked is not None
        and answered is not None
        and asked.is_implied_by(answered)
        and guarantee.server_round in (None, bound.server_round)
        and is_weaker(attacker(bound), attacker(guarantee))
        and (guarantee.delta or 0.0) <= (bound.delta or 0.0)
    )


def unsized(model: ThreatModel) -> ThreatModel:
    """Return an attacker without numbers: in one round or in several, with no colluders."""
    rounds = None if model.participations is None else 1
    return replace(model, participations=rounds, colluders=0)


def _rounds(model: ThreatModel) -> int:
    return 1 if model.participations is None else model.participations


Per = Literal["round", "run"]
USER: Final = "user"  # who makes a claim that no mechanism makes by itself
_EXAMPLE: Final = "10@1e-5 server round"
_APART: Final = ";"  # between claims in one text; Flower's settings are no lists
_HIDDEN: Final = "cohort-hidden"
_USUAL: Final = ("client", "zero-out")  # words that may be left out
_UNITS: Final[tuple[Unit, ...]] = ("client", "record")  # a claim about these covers groups
# What decides how far canaries see, among the facts of a bound, and the least of each.
_POWER: Final[Mapping[str, int]] = {"canaries": 1, "dim": 2, "directions": 1}
# What each word of a text sets.
_WORDS: Final[Mapping[str, tuple[str, Any]]] = {
    **{word: ("against", word) for word in get_args(Observer)},
    **{word: ("per", word) for word in get_args(Per)},
    **{word: ("unit", word) for word in _UNITS},
    **{word: ("adjacency", word) for word in get_args(Adjacency)},
    _HIDDEN: ("knows_cohort", False),
}


@dataclass(frozen=True)
class Claim:
    """(ε, δ)-differential privacy against somebody, as it is claimed.

    Attributes:
        epsilon: At least 0, and finite: a claim of ∞ says nothing.
        delta: In [0, 1).
        against: Who should not be able to tell. The server sees whatever reaches it: single
            updates, or their sum where clients mask them. An outsider sees all released models.
        per: Whether the claim is about each round, or about the run as a whole.
        unit: Whose participation is at stake.
        adjacency: How the two worlds differ.
        knows_cohort: Whether an outsider may know who takes part. False for an ε that counts on
            sampling that nobody sees, which no audit of ours can refute.
        source: Who makes it: "user", or the name of the mod, the strategy or the mechanism that it
            was read from.
        clip_norm: Norm that updates are clipped to, where the source says it.
        delivered: ε that the source's own parameters give by the exact formula; None if they are
            not known, or are not enough.
        rule: How `delivered` was computed, or why it is not known, for people; nothing reads it.

    >>> Claim.parse("10@1e-5 server round")
    Claim(epsilon=10.0, delta=1e-05, against='server', per='round')
    """

    epsilon: float
    delta: float = 1e-5
    against: Observer = "server"
    per: Per = "run"
    unit: Unit = field(default="client", repr=False)
    adjacency: Adjacency = field(default="zero-out", repr=False)
    knows_cohort: bool = field(default=True, repr=False)
    source: str = field(default=USER, repr=False)
    clip_norm: float | None = field(default=None, repr=False)
    delivered: float | None = field(default=None, repr=False)
    rule: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        require("[0, inf)", epsilon=self.epsilon)
        require("[0, 1)", delta=self.delta)
        require("(0, inf)", is_optional=True, clip_norm=self.clip_norm)
        require("at least 0", is_optional=True, delivered=self.delivered)
        for name, allowed in (
            ("against", get_args(Observer)),
            ("per", get_args(Per)),
            ("unit", _UNITS),
            ("adjacency", get_args(Adjacency)),
        ):
            if (value := getattr(self, name)) not in allowed:
                raise BadValueError(name, f"one of {allowed}", value)
        if not self.knows_cohort and self.against != "outsider":
            hint = ": whoever gets the replies sees who sends them"
            raise BadValueError(
                "knows_cohort", "True unless against is 'outsider'", False, hint=hint
            )

    @classmethod
    def parse(cls, text: str, name: str = "claim") -> Self:
        """Return the claim that a text states, such as "10@1e-5 server round".

        Args:
            text: ε, "@" and δ (1e-5); then, in any order, against whom (server), per what (run),
                the unit (client), the adjacency (zero-out) and cohort-hidden, if that is meant.
            name: What the user calls it, for an error.

        Raises:
            ValueError: The text is no claim. The error says what is.

        >>> Claim.parse("8 outsider").text
        '8@1e-05 outsider run'
        """
        amount, *words = text.split() or [""]
        epsilon, has_delta, delta = amount.partition("@")
        stated = [_WORDS[word] for word in words if word in _WORDS]
        try:
            if len(dict(stated)) < len(words):
                raise ValueError("a word is unknown, or says what another one has said")
            return cls(_number(epsilon), _number(delta) if has_delta else cls.delta, **dict(stated))
        except ValueError as error:
            observers, pers = ", ".join(get_args(Observer)), " or ".join(get_args(Per))
            allowed, fix = f"ε@δ with one of {observers} and {pers}", f'Try "{_EXAMPLE}"'
            raise BadValueError(name, allowed, text, hint=f": {error}", fix=fix) from None

    @property
    def text(self) -> str:
        """The claim as `parse` takes it: its source and what it delivers are not part of it."""
        usual = {"unit": "client", "adjacency": "zero-out"}
        words: list[str] = [self.against, self.per]
        words += [
            getattr(self, name) for name, word in usual.items() if getattr(self, name) != word
        ]
        words += [] if self.knows_cohort else [_HIDDEN]
        epsilon, delta = (repr(float(n)).removesuffix(".0") for n in (self.epsilon, self.delta))
        return " ".join([f"{epsilon}@{delta}", *words])

    def __str__(self) -> str:
        return self.text

    def attacker(self, *, is_masked: bool = False, rounds: int | None = None) -> ThreatModel:
        """Return who should not be able to tell.

        Args:
            is_masked: Whether the server of the run sees no single updates, but their sums.
            rounds: In how many rounds the unit takes part; None for a single round.
        """
        inside: Sees = "round sum" if is_masked and self.against == "server" else "updates"
        return ThreatModel(
            observer=self.against,
            sees="all models" if self.against == "outsider" else inside,
            knows_cohort=self.knows_cohort,
            participations=rounds,
        )

    def over(self, rounds: int, copies: int = 1) -> tuple[float, float]:
        """Return the ε and the δ that the claim allows a unit that takes part this often.

        Those of a run are for any number of rounds. Those of a round add up: by basic composition,
        R rounds that are (ε, δ)-DP each are (R·ε, R·δ)-DP together, whatever they are. For m copies
        of a record at once, they are (m·ε, δ·(e^(m·ε) − 1)/(e^ε − 1)): group privacy.

        >>> Claim(1.0, 0.0).over(5, copies=3)
        (3.0, 0.0)
        """
        times = rounds if self.per == "round" else 1
        epsilon, delta = times * self.epsilon, times * self.delta
        # One step for each copy: the sum of e^(j·ε) for j below m.
        steps = sum(_exp(j * epsilon) for j in range(copies))
        return copies * epsilon, delta * steps if delta else 0.0

    def allows(self, bound: Finding) -> tuple[float, float]:
        """Return the ε and the δ that the claim allows the unit of a bound."""
        return self.over(rounds_of(bound), copies_of(bound))

    def is_tested_by(self, bound: Finding) -> bool:
        """Whether a lower bound above what the claim allows would refute it.

        The bound must need no condition, be about an attacker no stronger than that of the claim
        and about a question that the claim answers, at a δ no smaller than the claim's. A user's
        claim is about the whole app, so canaries must not bypass a part that may protect.
        """
        return self._is_about(bound) and (bound.delta or 0.0) >= self.allows(bound)[1]

    def _is_about(self, bound: Finding) -> bool:
        """Whether a bound is about this claim, at whatever δ."""
        asked = _asked(bound)
        if self.source == USER and Assumption.BYPASSED_TRAINING in bound.assumptions:
            return False
        if bound.kind != "lower_bound" or bound.is_conditional or bound.quantity != "epsilon":
            return False
        # What a claim allows grows with the rounds, so the bound's own number of them is compared.
        return (
            asked is not None
            and (bound.server_round is None or bound.is_anytime)
            and carries_bounds(attacker(bound), self.attacker(rounds=rounds_of(bound)))
            and asked.is_implied_by(Question(self.unit, self.adjacency))
        )


def rounds_of(bound: Finding) -> int:
    """Return in how many rounds the unit of a bound takes part."""
    return bound.threat_model.participations or 1


def copies_of(bound: Finding) -> int:
    """Return of how many copies of a record a bound is about."""
    copies = bound.facts.get("copies")
    return copies if bound.unit == "group" and isinstance(copies, int) else 1


def _asked(bound: Finding) -> Question | None:
    """Return the question of a bound as a claim sees it, which says what copies of a record cost.

    A group whose size is not stated is no number of records.
    """
    asked = Question.of(bound)
    is_counted = asked is not None and asked.unit == "group" and copies_of(bound) > 1
    return Question("record", asked.adjacency) if asked is not None and is_counted else asked


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


@dataclass(frozen=True)
class ClaimResult:
    """What the audit of a run makes of a claim.

    Attributes:
        claim: The claim.
        bound: Of the lower bounds that test it, the one that goes furthest beyond what the claim
            allows, or comes nearest to it; it may be about a weaker attacker. None if there is no
            such bound.
        audit: Of the bounds that test it and are about the very attacker and question of the
            claim, the one that could have shown the most; None if there is none.
        confidence: All bounds of the verdict hold together at least at this confidence.
        smaller_delta: The largest δ of bounds about this claim where all are at a smaller δ than
            the claim's, and so say nothing about it.
    """

    claim: Claim
    bound: Finding | None = None
    audit: Finding | None = None
    confidence: float | None = None
    smaller_delta: float | None = None

    @classmethod
    def of(
        cls, claim: Claim, findings: Sequence[Finding], confidence: float | None = None
    ) -> ClaimResult:
        """Return what the findings of a run make of a claim."""
        tests = [f for f in findings if claim.is_tested_by(f)]
        own = [f for f in tests if _is_of(f, claim, is_masked=not _are_open(findings))]
        about = [f.delta or 0.0 for f in findings if not tests and claim._is_about(f)]
        return cls(
            claim,
            max(tests, key=lambda f: f.value - claim.allows(f)[0], default=None),
            max(own, key=lambda f: (f.cap or 0.0) - claim.allows(f)[0], default=None),
            confidence,
            max(about, default=None),
        )

    @property
    def rounds(self) -> int:
        """In how many rounds the unit of the bound takes part."""
        return 1 if self.bound is None else rounds_of(self.bound)

    @property
    def allowed(self) -> float:
        """The ε that the claim allows in that many rounds."""
        return self.claim.epsilon if self.bound is None else self.claim.allows(self.bound)[0]

    @property
    def low(self) -> float:
        """At least this ε is shown."""
        return 0.0 if self.bound is None else max(self.bound.value, 0.0)

    @property
    def is_refuted(self) -> bool:
        """Whether more is shown than the claim allows."""
        return self.low > self.allowed

    @property
    def is_testable(self) -> bool:
        """Whether an audit of this attacker could have refuted the claim.

        One that does not state its cap is not known to be able to show anything.
        """
        if self.audit is None or self.detectable == math.inf:
            return self.is_refuted
        return (self.audit.cap or 0.0) > self.claim.allows(self.audit)[0]

    @cached_property
    def detectable(self) -> float | None:
        """The ε that a Gaussian mechanism must deliver for the audit to refute it in 80 % of runs.

        Infinite if no mechanism would be refuted; None where the claim is refuted, or where that is
        not known, as for audits without canaries.
        """
        if self.audit is None or self.is_refuted:
            return None
        facts = {name: self.audit.facts.get(name) for name in _POWER}
        known: Any = {k: v for k, v in facts.items() if isinstance(v, int) and v >= _POWER[k]}
        if len(known) < len(facts):
            return None
        factor = self.audit.facts.get("tail_factor", 1.0)
        if isinstance(factor, float) and factor > 1:
            known["tail_factor"] = factor
        from leakmeter.auditors.bounds.one_run import detectable_epsilon

        return detectable_epsilon(
            self.claim.allows(self.audit)[0],
            delta=self.audit.delta or 0.0,
            confidence=self.audit.confidence or 0.0,
            has_coins=Assumption.ALL_CANARIES_PLAY not in self.audit.assumptions,
            **known,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        bound, audit = self.bound, self.audit
        return {
            **plain(self.claim),
            "refuted": self.is_refuted,
            "shown": plain(None if bound is None else self.low),
            "shown_delta": None if bound is None else bound.delta,
            "rounds": self.rounds,
            "allowed": plain(self.allowed),
            "confidence": self.confidence,
            "auditor": None if bound is None else bound.auditor,
            "testable": self.is_testable,
            "cap": plain(None if audit is None else audit.cap),
            "detectable": plain(self.detectable),
        }


def _are_open(findings: Iterable[Finding]) -> bool:
    """Whether the server of a run sees single updates: then a finding says so."""
    return any(f.observer == "server" and f.threat_model.sees == "updates" for f in findings)


def _is_of(bound: Finding, claim: Claim, *, is_masked: bool) -> bool:
    """Whether a bound is about an attacker and a question no weaker than those of a claim."""
    meant, asked = claim.attacker(is_masked=is_masked, rounds=rounds_of(bound)), _asked(bound)
    answered = asked is not None and Question(claim.unit, claim.adjacency).is_implied_by(asked)
    return answered and is_weaker(meant, attacker(bound))


def claims_of(given: str | Iterable[Claim | str], name: str = "claims") -> tuple[Claim, ...]:
    """Return claims that are given as values or texts, each once.

    Args:
        given: Claims or texts; one text may state several, with ";" between them.
        name: What the user calls them, for an error.

    Raises:
        TypeError: Something else is given.
        ValueError: A text is no claim.

    >>> claims_of("8; 2 outsider round")
    (Claim(epsilon=8.0, delta=1e-05, against='server', per='run'), \
Claim(epsilon=2.0, delta=1e-05, against='outsider', per='round'))
    """
    listed = [given] if isinstance(given, str) and given else list(given)
    found: list[Claim] = []
    for one in listed:
        if isinstance(one, Claim):
            found.append(one)
        elif isinstance(one, str):
            texts = [text for text in one.split(_APART) if text.strip()]
            found += [Claim.parse(text.strip(), name) for text in texts or [one]]
        else:
            raise TypeError(
                f"{name} must be a list of Claim objects or texts, got {one!r}; for example "
                f'{name}=[Claim(10, per="round")] or {name}=["{_EXAMPLE}"]'
            )
    return tuple(dict.fromkeys(found))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None
