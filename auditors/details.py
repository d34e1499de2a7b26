"""The data behind a finding's figures: a few small types with a `type` tag.

Every list is checked when it is created, so figures need no checks. Single numbers are in
`Finding.facts`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


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
        for name in ("deltas", "fpr", "fnr", "observed_fpr", "observed_fnr"):
            _shares(name, getattr(self, name))
        if 1 in self.deltas:
            raise ValueError("deltas must be below 1, got 1")
        _shares("balanced_error", (self.balanced_error,))


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
        _shares("null", self.null)


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


Detail = ErrorCurve | Histogram | Spectrum | PerClient


def _equal(**rows: tuple[float, ...]) -> None:
    """Raise unless all rows have one length."""
    lengths = {name: len(row) for name, row in rows.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{', '.join(rows)} must have equal lengths, got {lengths}")


def _shares(name: str, row: tuple[float, ...]) -> None:
    """Raise unless all are shares."""
    for value in row:
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {value}")
