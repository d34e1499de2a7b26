"""A finding: one number, how strong it is, and which attacker it is about.

Fields carry the meaning, never prose: `ThreatModel` says who attacks, `Quantity` what the number
is, `assumptions` names what it depends on. `wording` makes sentences from the fields, except that
a `RunWarning` has its own.

The data behind a finding's figures are a few small types with a `type` tag. Every list is checked
when it is created, so figures need no checks. Single numbers are in `Finding.facts`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, Self, get_args

from leakmeter.auditors import wording
from leakmeter.auditors.codec import plain
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.values import require, require_one_of, within
from leakmeter.auditors.wording import Assumption, conditions


@dataclass(frozen=True)
class ErrorCurve:
    """Error rates of a test over all thresholds, and the ε they prove at each δ.

    Attributes:
        deltas: The δ of `epsilons` and `caps`.
        epsilons: Largest ε refuted at each δ.
        caps: The most that a test without errors would have shown at each δ.
        fpr: Upper limits of the false positive rate, ascending.
        fnr: Upper limits of the false negative rate at the same thresholds.
        observed_fpr: Observed false positive rates, without confidence limits.
        observed_fnr: The same for false negatives.
        balanced_error: Smallest rate that both errors stay below at one threshold.
        server_round: The round of these trials; None where trials do not belong to a round.
    """

    deltas: tuple[float, ...]
    epsilons: tuple[float, ...]
    caps: tuple[float, ...]
    fpr: tuple[float, ...]
    fnr: tuple[float, ...]
    observed_fpr: tuple[float, ...]
    observed_fnr: tuple[float, ...]
    balanced_error: float
    server_round: int | None = None
    type: Literal["error-curve"] = "error-curve"

    def __post_init__(self) -> None:
        _equal(deltas=self.deltas, epsilons=self.epsilons, caps=self.caps)
        _equal(fpr=self.fpr, fnr=self.fnr)
        _equal(observed_fpr=self.observed_fpr, observed_fnr=self.observed_fnr)
        for name in ("fpr", "fnr", "observed_fpr", "observed_fnr"):
            within(name, getattr(self, name), lowest=0.0, highest=1.0)
        within("deltas", self.deltas, lowest=0.0, below=1.0)
        require("[0, 1]", balanced_error=self.balanced_error)


@dataclass(frozen=True)
class Histogram:
    """Counts of canary cosines, in standard deviations of the null.

    Attributes:
        edges: Of the bins, one more than there are bins.
        included: Counts of canaries that took part.
        excluded: Counts of canaries that did not.
        null: Share of each bin when nothing leaks.
        is_exact: Whether `null` is the normal distribution; else it is drawn from the exact null.
    """

    edges: tuple[float, ...]
    included: tuple[int, ...]
    excluded: tuple[int, ...]
    null: tuple[float, ...]
    is_exact: bool
    type: Literal["histogram"] = "histogram"

    def __post_init__(self) -> None:
        _equal(bins=self.edges[1:], included=self.included, excluded=self.excluded, null=self.null)
        if not all(map(math.isfinite, self.edges)) or sorted(self.edges) != list(self.edges):
            raise ValueError("edges must be finite and ascending")
        if min((*self.included, *self.excluded), default=0) < 0:
            raise ValueError("included and excluded must be at least 0")
        within("null", self.null, lowest=0.0, highest=1.0)


LossUnit = Literal["nats", "standard deviations"]


@dataclass(frozen=True)
class Losses:
    """Counts of planted records over how far training has lowered their loss.

    Attributes:
        unit: Of the falls. The largest of several is in standard deviations of each.
        edges: Of the bins, one more than there are bins.
        included: Counts of canaries that were planted.
        excluded: Counts of canaries that were left out.
        null: Share of the decoys, which nobody trains on, in each bin.
    """

    unit: LossUnit
    edges: tuple[float, ...]
    included: tuple[int, ...]
    excluded: tuple[int, ...]
    null: tuple[float, ...]
    type: Literal["losses"] = "losses"

    def __post_init__(self) -> None:
        Histogram(self.edges, self.included, self.excluded, self.null, is_exact=False)


@dataclass(frozen=True)
class Spectrum:
    """Variance of a client's own randomness along each direction, largest first.

    Attributes:
        index: Which directions, from 1.
        variance: By sampling alone.
        added: What the noise floor adds.
        dim: Number of directions.
        floor: Least variance after filling; 0 without filling.
        share_saved: Share of isotropic noise of the same floor that is not needed.
    """

    index: tuple[int, ...]
    variance: tuple[float, ...]
    added: tuple[float, ...]
    dim: int
    floor: float
    share_saved: float
    type: Literal["spectrum"] = "spectrum"

    def __post_init__(self) -> None:
        _equal(index=self.index, variance=self.variance, added=self.added)
        if not all(map(math.isfinite, (*self.variance, *self.added, self.floor))):
            raise ValueError("variance, added and floor must be finite")


@dataclass(frozen=True)
class PerClient:
    """One number for each client.

    Attributes:
        clients: Client indices.
        values: In the unit of the finding.
        audited: Audited rounds of each client.
    """

    clients: tuple[int, ...]
    values: tuple[float, ...]
    audited: tuple[int, ...]
    type: Literal["per-client"] = "per-client"

    def __post_init__(self) -> None:
        _equal(clients=self.clients, values=self.values, audited=self.audited)


Detail = ErrorCurve | Histogram | Losses | Spectrum | PerClient


def _equal(**rows: tuple[float, ...]) -> None:
    """Raise unless all rows have one length."""
    lengths = {name: len(row) for name, row in rows.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{', '.join(rows)} must have equal lengths, got {lengths}")


# How strong a number is. A weaker kind is never printed as a stronger one.
Kind = Literal["guarantee", "lower_bound", "estimate", "approximation", "diagnostic"]
# How the two worlds that an attacker distinguishes differ.
Adjacency = Literal["add-remove", "zero-out", "replace", "honest-seat"]
# Whose participation is at stake. "group": all copies of one record, at one client.
Unit = Literal["client", "record", "group"]
# Who attacks: the server inside a round, anyone who gets a model, or someone on the wire.
Observer = Literal["server", "outsider", "wire"]
# What the observer does: follow the protocol and look at everything, or whatever it likes.
Conduct = Literal["curious", "active"]
# What the observer sees. "round sum": before server noise; "noised sum": after all noise;
# "frozen sums": sums with all noise, of rounds that start from given models whatever was sent
# before; "round model": the model before and after one round.
Sees = Literal[
    "updates",
    "round sum",
    "noised sum",
    "frozen sums",
    "all models",
    "round model",
    "final model",
]
# What the attacker brings along.
Holds = Literal["canary", "two updates", "two data sets", "record"]
# Which randomness each trial resamples. "independent-held-out" keeps the candidates' records
# away from the other clients, which "independent" does not.
# "worst-data" draws noise only, with the other clients' data at their worst.
Game = Literal["rerun", "partition", "independent", "independent-held-out", "worst-data"]
# What a number is. An auditor of your own may use other words, which are printed as they are.
Quantity = Literal[
    "epsilon",
    "epsilon over initial models",
    "mutual information",
    "mutual information of all coordinates",
    "mutual information by critics",
    "information about the data over all rounds",
    "honest clients in the smallest sum",
    "separation",
    "certain separation",
    "normality",
    "guess",
    "share outside the span",
    "reconstruction PSNR in dB",
    "originals recovered",
    "tokens recovered",
    "membership advantage",
    "clients that stand out",
    "interference",
    "canaries",
    "exposure in bits",
    "secrets extracted",
    "rounds recorded",
]
WarningKind = Literal[
    "clipped-coordinates",
    "clipped-updates",
    "abandoned-rounds",
    "dropouts",
    "non-finite-updates",
    "blank-updates",
    "few-canaries",
    "trained-on-canaries",
    "untaken-canaries",
    "rejected-sums",
    "ended-early",
    "stopped-above",
]


@dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """Who attacks, and with what.

    Attributes:
        observer: Who the attacker is; a guarantee against one observer says nothing about another.
        sees: What it sees; None if a report does not say, and then nothing compares with it.
        holds: What it brings along; None for anything (guarantees).
        knows_cohort: Whether it knows who takes part in which round, or that its canary does.
        participations: Rounds that the unit at stake takes part in; None where a single round is
            attacked. A guarantee is priced for at most this many.
        game: Which randomness each trial resamples; None where only noise is random.
        colluders: Clients that tell the attacker everything they know.
        conduct: Whether the attacker follows the protocol ("curious") or does what it likes.
    """

    observer: Observer
    sees: Sees | None
    holds: Holds | None = None
    knows_cohort: bool = False
    participations: int | None = None
    game: Game | None = None
    colluders: int = 0
    conduct: Conduct = "curious"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("observer", Observer),
            ("sees", Sees),
            ("holds", Holds),
            ("game", Game),
            ("conduct", Conduct),
        ):
            value, is_needed = getattr(self, name), name in ("observer", "conduct")
            if value is not None or is_needed:
                require_one_of(get_args(allowed), **{name: value})
        require("at least 0", is_optional=True, participations=self.participations)
        require("at least 0", colluders=self.colluders)

    def sentence(self) -> str:
        """Return who attacks, with what, in one sentence."""
        return wording.attacker(self)


@dataclass(frozen=True)
class Limitation:
    """What an audit cannot measure in this project; a sentence, never a number.

    Attributes:
        auditor: Which one says so.
        text: What it cannot measure, and what to do.
    """

    auditor: str
    text: str


# Settings are in braces; each becomes an aside such as " (--lr)", or nothing.
_WARNINGS: Final[Mapping[WarningKind, str]] = {
    "clipped-coordinates": (
        "{share} of all coordinates ({count} of {total}) were clipped to fit the secure sum, so "
        "the model is distorted. Lower the clients' learning rate{lr} or raise the clip range."
    ),
    "clipped-updates": (
        "{count} of the {total} updates that the audit saw in clear were clipped to the clip norm. "
        "Raise the clip norm{clip-norm}, or lower the clients' learning rate{lr}."
    ),
    "abandoned-rounds": (
        "{count} of {total} rounds gave no aggregate; the model did not change. The log has the "
        "reason."
    ),
    "dropouts": (
        "{share} of the requested updates ({count} of {total}) did not arrive. Bounds hold for "
        "those that did; look for client errors in the log."
    ),
    "non-finite-updates": (
        "{count} of {total} updates contained values that are not finite. Training diverged: "
        "lower the clients' learning rate{lr}."
    ),
    "blank-updates": (
        "{count} of {total} clients had no update to send: their training failed or diverged, or "
        "their weight was too large for the secure sum. Their own logs say which; lower the "
        "learning rate{lr} if it diverged."
    ),
    "few-canaries": (
        "Canaries that took part: {count} ({total} were to play, after any coins). Results "
        "from so few vary widely: use "
        "more canary seats{canary-seats}, or more rounds{rounds} if each plays once."
    ),
    "trained-on-canaries": (
        "The model has been trained on canaries: {count} of {total} records that nobody has were "
        "planted in the clients' data. Train again without them before you use the model."
    ),
    "untaken-canaries": (
        "{count} of {total} clients that hold canaries never took them, so bounds are lower than "
        "they could be. List plant_mod in the client app, and let its training function take them: "
        "with leakmeter.planted(message, context) as canaries."
    ),
    "rejected-sums": (
        "{count} of {total} rounds opened a secure sum that honest clients cannot produce, and "
        "rejected it. The server has seen these sums, so they are charged like any other. Some "
        "client lies or has other settings: the log has the reason."
    ),
    "stopped-above": (
        "The run stopped {count} of {total} rounds early, as asked: the proven ε has passed the "
        "limit{stop-above}. Model and report are those of the rounds played."
    ),
    "ended-early": (
        "The run ended {count} of {total} rounds early: three secure sums in a row were opened and "
        "rejected, and each further one would cost privacy. Masks hide whose update was wrong: "
        "check that all clients list the same mods, then start again with other clients."
    ),
}


@dataclass(frozen=True)
class RunWarning:
    """A reason to doubt the run itself, with how much of it is affected.

    Attributes:
        kind: What happened.
        value: `count` / `total`.
        count: How many were affected; for "few-canaries", how many took part.
        total: Out of how many; never 0.
        text: The same as a sentence, with what to do.
    """

    kind: WarningKind
    value: float
    count: int
    total: int
    text: str

    def __post_init__(self) -> None:
        require("at least 1", total=self.total)
        require(f"[0, {self.total}]", count=self.count)
        if not math.isclose(self.value, self.count / self.total, rel_tol=1e-9):
            share = f"{self.count}/{self.total}"
            raise BadValueError("value", f"count / total = {share}", self.value)

    @classmethod
    def of(cls, kind: WarningKind, count: int, total: int) -> Self:
        """Return the warning about `count` of `total`, with its sentence."""
        return cls(kind, count / total, count, total, _warning(kind, count, total, "python"))

    def spelled(self, spelling: wording.Spelling) -> RunWarning:
        """Return the same, with what to do in the language of another reader."""
        return replace(self, text=_warning(self.kind, self.count, self.total, spelling))


def _warning(kind: WarningKind, count: int, total: int, spelling: wording.Spelling) -> str:
    """Return what happened, to how much of a run, and what to do, in the reader's language."""
    share = f"{wording.number(100 * count / total, 2)} %"
    numbers = {"share": share, "count": f"{count:,}", "total": f"{total:,}"}
    return _WARNINGS[kind].format_map({**numbers, **wording.asides(spelling)})


@dataclass(frozen=True)
class Bound:
    """One number about privacy, how it was obtained, and the largest value it could have shown.

    Attributes:
        value: The number itself.
        kind: How strong it is; see `Kind`.
        rule: How it was computed, for people; nothing reads it.
        delta: The delta that an epsilon belongs to, if it is one.
        confidence: Coverage of a lower bound; None for everything else.
        sample_sizes: How many samples of what went in.
        cap: The largest value this method could have shown with these samples.
        saturated: Whether the value has reached the cap.
        assumptions: Names of what must be true for the kind to be deserved; see `Assumption`.
    """

    value: float
    kind: Kind
    rule: str
    delta: float | None = None
    confidence: float | None = None
    sample_sizes: Mapping[str, int] = field(default_factory=dict)
    cap: float | None = None
    saturated: bool = False
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if math.isnan(self.value):
            raise BadValueError("value", "a number", self.value)
        require_one_of(get_args(Kind), kind=self.kind)
        if self.kind == "lower_bound" and self.confidence is None:
            raise ValueError("a lower_bound must state its confidence, got None")
        require("[0, 1)", is_optional=True, delta=self.delta)
        require("(0, 1)", is_optional=True, confidence=self.confidence)

    @property
    def is_conditional(self) -> bool:
        """Whether it is a lower bound only under an assumption that nobody has checked."""
        return self.kind == "lower_bound" and bool(conditions(self.assumptions))

    @property
    def is_anytime(self) -> bool:
        """Whether it holds at all rounds together, so that a run may stop because of it."""
        return self.kind == "lower_bound" and Assumption.ALL_ROUNDS_TOGETHER in self.assumptions


@dataclass(frozen=True, kw_only=True)
class Finding(Bound):
    """A `Bound` that an auditor reports: which attacker it is about, and what.

    Attributes:
        auditor: The auditor's name.
        quantity: What the value is; see `Quantity`.
        threat_model: Who attacks, and with what.
        adjacency: How the two worlds differ.
        unit: Whose participation is at stake.
        server_round: The round it belongs to; None if it is about the whole run.
        null_band: 5 % and 95 % quantile of the same method when nothing leaks.
        seed: The seed of the auditor's own randomness.
        facts: Further single numbers and words for the table.
        details: What figures draw; see `details`.
    """

    auditor: str
    quantity: Quantity | str
    threat_model: ThreatModel
    adjacency: Adjacency | None = None
    unit: Unit = "client"
    server_round: int | None = None
    null_band: tuple[float, float] | None = None
    seed: int | None = None
    facts: Mapping[str, float | int | bool | str | None] = field(default_factory=dict)
    details: tuple[Detail, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.threat_model, ThreatModel):
            raise BadValueError("threat_model", "a ThreatModel", self.threat_model)
        require_one_of((None, *get_args(Adjacency)), adjacency=self.adjacency)
        require_one_of(get_args(Unit), unit=self.unit)
        require("at least 1", is_optional=True, server_round=self.server_round)

    def __repr__(self) -> str:
        """Return in one line what is found, by whom, how certain it is and about which attacker."""
        when = "the run" if self.server_round is None else f"round {self.server_round}"
        sign = {"lower_bound": "≥", "guarantee": "≤"}.get(self.kind, "≈")
        sure = "" if self.confidence is None else f", confidence {self.confidence:g}"
        delta = "" if self.delta is None else f" at δ = {self.delta:g}"
        seen = f"{self.observer}, {self.threat_model.sees or 'unknown view'}"
        return (
            f"Finding({self.auditor}: {self.quantity} {sign} "
            f"{wording.number(self.value, kind=self.kind)}{delta} ({self.kind}{sure}), {seen}, "
            f"{when})"
        )

    @property
    def observer(self) -> Observer:
        """Who the attacker is."""
        return self.threat_model.observer

    @classmethod
    def of(cls, bound: Bound, **context: Any) -> Self:
        """Return `bound` as a finding of the given auditor, round and threat model."""
        own = {f.name: getattr(bound, f.name) for f in fields(Bound)}
        return cls(**(own | context))

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary; infinities become strings, which JSON lacks."""
        return {**plain(self), "conditional": self.is_conditional}
