"""The base of auditors that play canaries: whose plan they follow, and what cosines estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import Auditor, Canary, UnableError
from leakmeter.auditors.canaries.plan import CanaryPlan
from leakmeter.auditors.canaries.scores import Scores, Std, band, normality, one_fit
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Bound, Finding
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import within
from leakmeter.auditors.wording import Assumption

NULL_RUNS = 400  # simulated no-leak repetitions behind a null band
_LEAST_DIM = 100
_SPREAD: dict[Std, Assumption] = {
    "known": Assumption.GAUSSIAN_COSINES_NULL_STD,
    "fitted": Assumption.GAUSSIAN_COSINES,
}


class CanaryAuditor(Auditor):
    """Plays the canaries of a plan; a subclass looks for them.

    Args:
        plan: Which canaries play when.
        delta: The delta of every epsilon.
        confidence: Of each single lower bound.
    """

    _plan: Kept[CanaryPlan]
    _played: Kept[NDArray[np.int64]]  # rounds that each canary took part in, (canaries,)

    def __init__(self, plan: CanaryPlan, *, delta: float, confidence: float) -> None:
        within("delta", delta, above=0.0, below=1.0)
        self.seats, self.canaries = plan.seats, plan.canaries
        self.include, self.excluded, self.seed = plan.include, plan.excluded, plan.seed
        self.delta, self.confidence = delta, confidence
        self._plan, self._dim = plan, 0
        self._played = np.zeros(0, dtype=np.int64)

    @property
    def repetitions(self) -> int:
        """In how many rounds each canary plays; 1 until that is known."""
        return self._plan.repetitions

    @property
    def plan(self) -> CanaryPlan:
        """The plan, which another auditor may follow too."""
        return self._plan

    def begin(self, dim: int, num_rounds: int) -> None:
        """Plan which canary plays in which round, whatever node will play it."""
        if dim < _LEAST_DIM:
            raise UnableError(
                f"the model must have at least {_LEAST_DIM} parameters for canaries, got {dim}"
            )
        self._dim = dim
        self._plan.plays_once |= any(claim.per == "round" for claim in self.claims)
        self._plan.begin(dim, num_rounds, self.first_round)
        self._settle()

    def _settle(self) -> None:
        """Prepare for the canaries of the plan, of which there are none before it is made."""
        self._played = np.zeros(self._k, dtype=np.int64)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; what depends on the plan is prepared first."""
        self._plan.restore(state["plan"])
        self._settle()
        super().restore(state)

    @property
    def _k(self) -> int:
        """Canaries of the whole run; 0 until the plan is made."""
        return self._plan.num_canaries

    @property
    def canaries_played(self) -> tuple[int, int] | None:
        """Canaries that have taken part so far, and those that the plan includes.

        Where coins leave all of them out, the second number is that of the plan.
        """
        return int((self._played > 0).sum()), int(self._plan.included.sum()) or self._k

    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        """Give this round's canaries to clients drawn among the chosen."""
        orders = self._plan.orders(self.name, server_round, chosen, self.population)
        if self._played.size != self._k:  # the first cohort has made the plan
            self._settle()
        return orders

    def _power(self, canaries: int, directions: int) -> dict[str, float]:
        """Return what decides how small an ε a bound can show, as facts of a finding.

        How often clients take part is among them, since canaries may do so less often.

        Args:
            canaries: Those whose coins or scores are used.
            directions: Among which the largest cosine of each was taken.
        """
        rounds = self._plan.client_rounds
        often = {} if rounds is None else {"client_rounds": rounds}
        times = self._plan.null.tail_factor
        factor = {"tail_factor": times} if times > 1 else {}
        return {"canaries": canaries, "dim": self._dim, "directions": directions, **factor, **often}

    def _assuming(self, claims: Claims, bound: Bound) -> Bound:
        """Return a bound with what it assumes of this kind of canaries, and all claims do."""
        assumed = self._plan.null.assumed
        own = tuple(assumed.get(Assumption(one), one) for one in bound.assumptions)
        return claims.assuming(replace(bound, assumptions=own))

    def _file(self, what: str) -> Path | None:
        """Return a working file in the folder of the run; None for a temporary one."""
        if self.folder is None:
            return None
        return self.folder.absolute() / f"{quote(self.name, safe='')}-{what}.f32"

    def _from_cosines(self, cosines: Scores, claims: Claims, stds: Sequence[Std]) -> list[Finding]:
        """Estimate from cosines (Algorithm 2), with the test of what that assumes."""
        if not len(cosines):
            return [self._nobody(claims)]
        sizes = {"included": len(cosines)}
        check = normality(claims, sizes, cosines)
        if check is not None and check.facts["rejected"]:
            return [check]
        found = [self._from_known_null(cosines, std, claims) for std in stds]
        return found if check is None else [*found, check]

    @staticmethod
    def _nobody(claims: Claims) -> Finding:
        """Return that no canary took part; this claims nothing about ε."""
        rule = "no canary took part, so there is no estimate"
        nobody = Bound(0.0, "diagnostic", rule, sample_sizes={"included": 0})
        return claims.finding(nobody, quantity="canaries")

    def _from_known_null(self, cosines: Scores, std: Std, claims: Claims) -> Finding:
        """Compare cosines with N(0, 1/dim), the distribution of a canary that stayed out."""
        z = cosines * np.sqrt(self._dim)
        rng = stream(self.seed, "null", std, claims.server_round or 0)
        null = one_fit(rng.standard_normal((NULL_RUNS, len(z))), std, self.delta)
        value = float(one_fit(z[None], std, self.delta)[0])
        rule = f"Gaussian fit of canary cosines against N(0, 1/d), {std} std"
        return self._estimate(value, null, rule, _SPREAD[std], {"included": len(z)}, claims)

    def _estimate(
        self,
        value: float,
        null: Scores,
        rule: str,
        assumed: Assumption,
        sizes: Mapping[str, int],
        claims: Claims,
    ) -> Finding:
        """Return an estimate of ε with the band of what it says when nothing leaks."""
        bound = Bound(
            value, "estimate", rule, self.delta, sample_sizes=sizes, assumptions=(assumed,)
        )
        return replace(claims.finding(self._assuming(claims, bound)), null_band=band(null))
