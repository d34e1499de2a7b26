"""One figure of mutual information: nats and bits, its error, and how strong it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from leakmeter.auditors.finding import Bound, Kind

NATS_PER_BIT = math.log(2)


@dataclass(frozen=True)
class Information:
    """Mutual information in nats, with what is needed to print it honestly.

    Attributes:
        nats: The value; infinite where the sum gives the update away.
        kind: How strong it is; see `auditors.finding.Kind`.
        rule: How it was computed, in words.
        std_error: Standard error in nats; None for a figure that is not estimated from samples.
        rank: Dimension d* in which it was computed, if it has one.
        variance_kept: Share of the variance inside the subspace used; 1 for the whole space.
        sample_sizes: How many samples of what went in.
        cap: The largest value in nats that the method could have shown, if there is one.
        assumptions: What must hold for the kind to be deserved.
    """

    nats: float
    kind: Kind
    rule: str
    std_error: float | None = None
    rank: int | None = None
    variance_kept: float = 1.0
    sample_sizes: Mapping[str, int] = field(default_factory=dict)
    cap: float | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def bits(self) -> float:
        """The value in bits."""
        return self.nats / NATS_PER_BIT

    def bound(self, scale: Literal["nats", "bits"] = "nats") -> Bound:
        """Return the value, in nats or bits, as the number that an auditor reports.

        >>> Information(math.log(8), "estimate", "counting").bound("bits").value
        3.0
        """
        if scale not in ("nats", "bits"):
            raise ValueError(f"scale must be 'nats' or 'bits', got {scale!r}")
        unit = NATS_PER_BIT if scale == "bits" else 1.0
        return Bound(
            value=self.nats / unit,
            kind=self.kind,
            rule=self.rule,
            sample_sizes=self.sample_sizes,
            cap=None if self.cap is None else self.cap / unit,
            saturated=self.cap is not None and self.nats >= self.cap,
            assumptions=self.assumptions,
        )
