"""What a run of secure sums has hidden, round by round, and what may be said of it at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from leakmeter.auditors.finding import Conduct, Finding, ThreatModel
from leakmeter.auditors.wording import Assumption
from leakmeter.strategies.secure_sum.topology import Plan, Risks

# What a sum depends on, by what the server may do.
_RELAY: Mapping[Conduct, tuple[str, ...]] = {
    "curious": (Assumption.HONEST_RELAY,),
    "active": (Assumption.TRUSTED_KEYS, Assumption.OWN_APP, Assumption.OWN_THRESHOLD),
}
_ALWAYS = (Assumption.COMPUTATIONAL, Assumption.SUM_NOT_JUDGED)
_RULES: Mapping[Conduct, str] = {
    "curious": "secure sum: pairwise and self masks, shared secrets",
    "active": "secure sum: pairwise and self masks, shared secrets, signed keys and survivors",
}


@dataclass(frozen=True)
class Tally:
    """Counts over the rounds so far.

    Attributes:
        rounds: Rounds that gave a sum.
        abandoned: Rounds that gave none.
        survivors: Clients in the smallest sum, canary seats among them.
        uninstructed: Fewest clients in a sum that have an update of their own: they play no canary,
            and their training has not failed. What a canary seat sends is known to whoever ordered
            it, and an update that is not there hides nobody. Of a server that may do anything it is
            the fewest that clients would have accepted.
        blank: Updates, over all rounds, that their clients could not send.
        colluders: Most clients that could collude with the server in every round.
        exposure: Chance that sparse graphs have exposed some client, added up over the rounds;
            None while all graphs were complete.
        dropped: Stage to the clients that dropped out in it, abandoned rounds included. Who drops
            out while masks are taken off is in the sum nevertheless.
    """

    rounds: int = 0
    abandoned: int = 0
    survivors: int = 0
    uninstructed: int = 0
    colluders: int = 0
    blank: int = 0
    exposure: float | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)

    def with_round(self, survivors: int, plan: Plan, *, idle: int, blank: int = 0) -> Self:
        """Return the tally with one more sum.

        Args:
            survivors: Clients in it.
            plan: Graph and threshold of the round.
            idle: Survivors that hide nobody: they play a canary, or have sent no update.
            blank: Those that have sent no update.
        """
        others = plan.with_update(survivors, idle)
        bearable = plan.bearable(others)
        if plan.server == "active" and idle > blank:
            # Clients that list canary_mod accept all but two of a sum as seats.
            others = min(others, bearable + 2)
        if self.rounds:
            survivors, bearable = min(survivors, self.survivors), min(bearable, self.colluders)
            others = min(others, self.uninstructed)
        return replace(
            self,
            rounds=self.rounds + 1,
            survivors=survivors,
            uninstructed=others,
            colluders=bearable,
            blank=self.blank + blank,
            exposure=(self.exposure or 0.0) + plan.risk.exposure if plan.risk else self.exposure,
        )

    def with_dropouts(self, dropped: Mapping[str, int]) -> Self:
        """Return the tally with the dropouts of one more round, by stage."""
        stages = [*self.dropped, *(stage for stage in dropped if stage not in self.dropped)]
        counts = {s: self.dropped.get(s, 0) + dropped.get(s, 0) for s in stages}
        return replace(self, dropped=counts)

    def with_abandoned(self) -> Self:
        """Return the tally with one more round that gave no sum."""
        return replace(self, abandoned=self.abandoned + 1)

    def findings(self, risks: Risks) -> Sequence[Finding]:
        """Say what was hidden from whom; nothing if there was no sum."""
        server = risks.server
        if not self.rounds:
            return ()
        chance: tuple[str, ...] = ()
        facts: dict[str, float] = {
            "rounds": self.rounds,
            "abandoned": self.abandoned,
            "clients in the smallest sum": self.survivors,
        }
        facts |= {"updates that clients could not send": self.blank} if self.blank else {}
        facts |= {f"dropouts in stage {s}": count for s, count in self.dropped.items() if count}
        if self.exposure is not None:
            is_drawn = server == "active"
            chance = (
                Assumption.COLLUDERS_FIXED_BEFOREHAND
                if is_drawn
                else Assumption.RATES_FIXED_BEFOREHAND,
            )
            if not is_drawn:  # drawn neighbours bear any dropouts
                facts["largest dropout rate"] = risks.dropout_rate
            facts["largest collusion rate"] = risks.collusion_rate
            facts["chance that a client was exposed"] = self.exposure
        return [
            Finding(
                value=float(max(self.uninstructed - self.colluders, 0)),
                kind="guarantee",
                quantity="honest clients in the smallest sum",
                rule=_RULES[server],
                auditor="secure-sum",
                threat_model=ThreatModel(
                    observer="server",
                    sees="round sum",
                    knows_cohort=True,
                    colluders=self.colluders,
                    conduct=server,
                ),
                assumptions=(*_RELAY[server], *_ALWAYS, *chance),
                facts=facts,
            )
        ]
