"""One figure of mutual information: nats and bits, its error, and how strong it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import Bound, Kind

NATS_PER_BIT = math.log(2)


@dataclass(frozen=True)
class Information:
    """Mutual information in nats, with what is needed to print it honestly.

    Attributes:
        nats: The value; infinite where the sum gives the update away.
        kind: How strong it is; see `auditors.finding.Kind`.
        rule: How it was computed, for people; in bits, so logarithms are log₂.
        std_error: Standard error in nats; None for a figure that is not estimated from samples.
        rank: Dimension d* in which it was computed, if it has one.
        variance_kept: Share of the variance inside the subspace used; 1 for the whole space.
        sample_sizes: How many samples of what went in.
        cap: The largest value in nats that the method could have shown, if there is one.
        assumptions: What must hold for the kind to be deserved.
        facts: Constants that the assumptions refer to.
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
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def bits(self) -> float:
        """The value in bits."""
        return self.nats / NATS_PER_BIT

    def limited(self, nats: float | None) -> Information:
        """Return the smaller of this figure and the entropy of what is random; None: no limit.

        >>> Information(9.0, "approximation", "by a model").limited(2.0).nats
        2.0
        """
        if nats is None:
            return self
        known = replace(
            self,
            cap=nats if self.cap is None else min(self.cap, nats),
            assumptions=(*self.assumptions, Assumption.NOTHING_ELSE_RANDOM),
        )
        if self.nats < nats:
            return known
        rule = f"{self.rule}; limited to the entropy of the client's records and batches"
        return replace(known, nats=nats, std_error=None, rule=rule)

    def bound(self) -> Bound:
        """Return the value in bits as the number that an auditor reports.

        >>> Information(math.log(8), "estimate", "counting").bound().value
        3.0
        """
        return Bound(
            value=self.bits,
            kind=self.kind,
            rule=self.rule,
            sample_sizes=self.sample_sizes,
            cap=None if self.cap is None else self.cap / NATS_PER_BIT,
            saturated=self.cap is not None and self.nats >= self.cap,
            assumptions=self.assumptions,
        )
