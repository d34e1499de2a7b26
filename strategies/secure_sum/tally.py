"""What a run of secure sums has hidden, round by round, and what may be said of it at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from leakmeter.auditors.finding import Finding
from leakmeter.strategies.secure_sum.topology import Plan, Risks

_ASSUMPTIONS = (
    "the server relays keys, draws the graph and names dropouts honestly: keys and lists of "
    "survivors are not signed, so a server that swaps keys, invents clients or lies about "
    "dropouts is out of scope",
    "computational, for X25519, HKDF-SHA256 and AES",
    "nothing is said of whether inputs are valid, nor of what the sum itself gives away",
)


@dataclass(frozen=True)
class Tally:
    """Counts over the rounds so far.

    Attributes:
        rounds: Rounds that gave a sum.
        abandoned: Rounds that gave none.
        survivors: Clients in the smallest sum.
        colluders: Most colluding clients of a neighbourhood that every round could bear.
        exposure: Chance that sparse graphs have exposed some client, added up over the rounds;
            None while all graphs were complete.
    """

    rounds: int = 0
    abandoned: int = 0
    survivors: int = 0
    colluders: int = 0
    exposure: float | None = None

    def with_round(self, survivors: int, plan: Plan) -> Self:
        """Return the tally with one more sum."""
        # Both secrets of one client stay shut while 2·threshold > holders + colluders, and the
        # sum over the honest survivors hides one of them only among others.
        bearable = max(min(2 * plan.threshold - plan.holders - 1, survivors - 2), 0)
        if self.rounds:
            survivors, bearable = min(survivors, self.survivors), min(bearable, self.colluders)
        return replace(
            self,
            rounds=self.rounds + 1,
            survivors=survivors,
            colluders=bearable,
            exposure=(self.exposure or 0.0) + plan.risk.exposure if plan.risk else self.exposure,
        )

    def with_abandoned(self) -> Self:
        """Return the tally with one more round that gave no sum."""
        return replace(self, abandoned=self.abandoned + 1)

    def findings(self, risks: Risks) -> Sequence[Finding]:
        """Say what was hidden from whom; nothing if there was no sum."""
        if not self.rounds:
            return ()
        chance: tuple[str, ...] = ()
        if self.exposure is not None:
            chance = (
                f"at most {risks.dropout_rate:.0%} of the clients drop out and "
                f"{risks.collusion_rate:.0%} collude, fixed before the graphs are drawn; even "
                f"so some client was exposed with probability at most {self.exposure:.2g}",
            )
        return [
            Finding(
                value=float(self.survivors),
                kind="guarantee",
                quantity="clients in the smallest secure sum",
                rule="secure sum: pairwise and self masks, shared secrets",
                auditor="secure-sum",
                threat_model=(
                    f"honest-but-curious server colluding with at most {self.colluders} of the "
                    "clients in a neighbourhood: it learns the sum over the surviving honest "
                    "clients and no single update"
                ),
                observer="server",
                assumptions=(*_ASSUMPTIONS, *chance),
                details={"rounds": self.rounds, "abandoned": self.abandoned},
            )
        ]
