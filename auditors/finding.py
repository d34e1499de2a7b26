"""What an audit may say: one number, how strong it is, and about which adversary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, Self, get_args

import numpy as np

# How strong a number is. A weaker kind is never printed as a stronger one.
Kind = Literal["guarantee", "lower_bound", "estimate", "approximation", "diagnostic"]
# What the two worlds that an adversary tells apart differ in.
Adjacency = Literal["add-remove", "zero-out", "replace", "honest-seat"]
# Whose participation is at stake.
Unit = Literal["client", "record"]
# Who looks on: the server inside a round, anyone who gets a model, or someone on the wire.
Observer = Literal["server", "outsider", "wire"]
_WORDS = {"observer": Observer, "adjacency": Adjacency, "unit": Unit}

LIMITATION: Final = "limit"  # the quantity of findings that say what an auditor cannot do
THREAT_MODEL: Final = "nobody in particular: what this audit cannot see or show here"


@dataclass(frozen=True)
class Bound:
    """One number about privacy, with how it was obtained and how far it could have gone.

    Attributes:
        value: The number itself.
        kind: How strong it is; see `Kind`.
        delta: The delta that an epsilon belongs to, if it is one.
        confidence: Coverage of a lower bound; None for everything else.
        rule: How it was computed, in words.
        sample_sizes: How many samples of what went in.
        cap: The largest value this method could have shown with these samples.
        saturated: Whether the value has reached the cap.
        assumptions: What must hold for the kind to be deserved.
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
            raise ValueError(f"value must be a number, got {self.value}")
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, got {self.kind!r}")
        if self.kind == "lower_bound" and self.confidence is None:
            raise ValueError("a lower_bound must state its confidence, got None")
        if self.delta is not None and not 0 <= self.delta < 1:
            raise ValueError(f"delta must be in [0, 1), got {self.delta}")
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be in (0, 1), got {self.confidence}")


@dataclass(frozen=True, kw_only=True)
class Finding(Bound):
    """A `Bound` that an auditor reports: which adversary it speaks of, and about what.

    Attributes:
        auditor: The auditor's name.
        quantity: What the value is, such as "epsilon" or "mutual information".
        threat_model: What the adversary knows and does, in words.
        observer: Who the adversary is; a guarantee for one observer says nothing of another.
        adjacency: What the two worlds differ in.
        unit: Whose participation is at stake.
        server_round: The round it belongs to; None if it speaks of the whole run.
        null_band: 5 % and 95 % quantile of the same method when nothing leaks.
        seed: The seed of the auditor's own randomness.
        details: Further numbers for the report, JSON only (histograms, curves).
    """

    auditor: str
    quantity: str
    threat_model: str
    observer: Observer
    adjacency: Adjacency | None = None
    unit: Unit = "client"
    server_round: int | None = None
    null_band: tuple[float, float] | None = None
    seed: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in _WORDS.items():
            value = getattr(self, name)
            if value not in get_args(allowed) and not (name == "adjacency" and value is None):
                raise ValueError(f"{name} must be one of {get_args(allowed)}, got {value!r}")

    @classmethod
    def of(cls, bound: Bound, **context: Any) -> Self:
        """Return `bound` as a finding of the given auditor, round and threat model."""
        own = {f.name: getattr(bound, f.name) for f in fields(Bound)}
        return cls(**(own | context))

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary; infinities become strings, which JSON lacks."""
        return {name: plain(value) for name, value in asdict(self).items()}


def plain(value: Any) -> Any:
    """Return `value` in types that every JSON reader knows."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
