"""One-shot estimation of epsilon with random canaries.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation
for Federated Learning, arXiv:2302.03098, Algorithms 1-3. Ours differs in five points:
1. A fair coin decides whether each canary takes part; those that stay out serve as the null. Fewer
   than ten all take part, and are judged by a bound that needs no coins.
2. The final model's statistic uses the change since the start, which the adversary knows.
3. Both stds are offered: fitted, as the algorithm is printed, and known, as its table needs.
4. Every estimate has its null band, the 90 % band of what the method says when nothing leaks. It
   is left out where the cosines are clearly not Gaussian, or where a lower bound refutes it.
5. The first lower bound for each attacker does not need independent scores; the others do, and say
   so. One that holds at all rounds together is an option.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import within
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import Auditor, Canary, Project, RoundView, UnableError
from leakmeter.auditors.bounds.anytime import Anytime
from leakmeter.auditors.bounds.one_run import FEW
from leakmeter.auditors.canaries.changes import check_room, file_size
from leakmeter.auditors.canaries.plan import affordable, canary_limitations, schedule, seats_of
from leakmeter.auditors.canaries.scores import (
    LEAST_FITTED,
    CanaryScores,
    Interference,
    Scores,
    Std,
    band,
    headline,
    histogram,
    interfered,
    normality,
    one_fit,
    prove,
    two_fits,
    without_refuted,
)
from leakmeter.auditors.canaries.transcript import Betting, Transcript
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Adjacency, Bound, Finding, Histogram, Sees, ThreatModel
from leakmeter.auditors.rng import derive, stream

_log = logging.getLogger("flwr")

_NULL_RUNS = 400  # simulated no-leak repetitions behind a null band
_NULL_POOL = 100_000  # canaries drawn for the null of the maxima
_SPENT = 0.1  # share of a bound's failure probability that limits from these draws may use
_GUESSED = 5  # one-run bounds guess every fifth canary
_FINAL: Sees = "final model"
_ALL: Sees = "all models"
_ROUND: Sees = "round model"

_NO_SEATS = (
    "seats='auto' needs three clients in a round, so that most of them stay honest: use more "
    "clients per round, or seats=1"
)
_SPREAD: dict[Std, Assumption] = {
    "known": Assumption.GAUSSIAN_COSINES_NULL_STD,
    "fitted": Assumption.GAUSSIAN_COSINES,
}


class OneShotCanaries(Auditor):
    """Plays canaries in a few seats per round and searches for them in the released models.

    Args:
        seats: Clients per round that play a canary in place of their update. "auto" takes one in
            five of the first cohort that has three clients or more, so that most stay honest.
        canaries: How many canaries; None fills all seats of all rounds.
        repetitions: In how many rounds each canary plays.
        delta: The delta of every epsilon.
        confidence: Confidence of each single lower bound. `Anytime(0.95)` also proves an ε after
            every round, and these bounds hold together; it needs coins.
        include: "coin" leaves each canary out with probability 1/2; "all" plays all of them, as
            in the paper, and draws as many unobserved ones for the null. "auto" plays all if there
            are fewer than ten, else takes coins.
        excluded: What the seat of a canary that is out sends: "zero" (zero-out adjacency), or
            its own "honest" update, a weaker test that the findings name.
        seed: Seed of canaries, coins and seats.

    Attributes:
        scores: Cosines behind the report, by what the attacker sees; empty before `report`.
    """

    name = "one-shot"
    num_bounds = 2  # of the final model, of all models
    # The adversary sees only models. The noise in the facts shows how good the estimates are.
    reads = frozenset({"sent", "released", "facts"})
    wants_mean = False

    _played: Kept[NDArray[np.int64]]  # rounds that each canary took part in, (canaries,)
    _begun: Kept[int | None]  # first round of the plan
    _seated: Kept[int]  # seats per round; 0 until the first cohort is known
    _transcript: Kept[Transcript]
    _interference: Kept[Interference]
    _betting: Kept[Betting | None]

    def __init__(
        self,
        *,
        seats: int | Literal["auto"] = "auto",
        canaries: int | None = None,
        repetitions: int = 1,
        delta: float = 1e-5,
        confidence: float | Anytime = 0.95,
        include: Literal["auto", "coin", "all"] = "auto",
        excluded: Literal["zero", "honest"] = "zero",
        seed: int = 0,
    ) -> None:
        if isinstance(seats, str) and seats != "auto":
            raise ValueError(f"seats must be a number or 'auto', got {seats!r}")
        for name, number in (("seats", seats), ("repetitions", repetitions)):
            if number != "auto" and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if include not in ("auto", "coin", "all"):
            raise ValueError(f"include must be 'auto', 'coin' or 'all', got {include!r}")
        if canaries is not None and canaries < (least := 2 if include == "coin" else 1):
            allowed = f"at least {least}, or None for all seats"
            raise ValueError(f"canaries must be {allowed}, got {canaries}")
        if excluded not in ("zero", "honest"):
            raise ValueError(f"excluded must be 'zero' or 'honest', got {excluded!r}")
        within("delta", delta, above=0.0, below=1.0)
        self._is_anytime = isinstance(confidence, Anytime)
        if self._is_anytime and include == "all":
            allowed = "'coin' or 'auto' with confidence=Anytime(…), which bets on coins"
            raise ValueError(f"include must be {allowed}, got {include!r}")
        self.seats, self.canaries, self.repetitions = seats, canaries, repetitions
        self.delta, self.include, self.excluded, self.seed = delta, include, excluded, seed
        self.confidence = Anytime.level(confidence)
        self.scores: Mapping[Sees, CanaryScores] = {}
        self._canary_seed = derive(seed, "one-shot")  # of 128 bits
        self._dim = self._num_rounds = 0
        self._forget_plan()

    def begin(self, dim: int, num_rounds: int) -> None:
        """Plan which canary plays in which round, whatever node will play it."""
        if dim < 100:
            raise UnableError(
                f"the model must have at least 100 parameters for canaries, got {dim}"
            )
        self._dim, self._num_rounds = dim, num_rounds
        self._forget_plan()
        self._transcript = Transcript(self._canary_seed, (), dim, self._changes_file, self.watch)
        self._interference = Interference()
        if self.seats != "auto":
            self._make_plan(self.seats, self.first_round)

    def _forget_plan(self) -> None:
        """Plan no canary at all."""
        self._begun, self._seated, self._k = None, 0, 0
        self._plan: Mapping[int, Sequence[int]] = {}
        self._ids, self._has_coins = range(0), self.include == "coin"
        self._included = np.zeros(0, dtype=bool)
        self._played = np.zeros(0, dtype=np.int64)
        self._betting = None

    def _make_plan(self, seats: int, first_round: int) -> None:
        """Plan the canaries of this many seats in the rounds from the given one on."""
        rounds = max(self._num_rounds - first_round + 1, 0)
        needs_coins = self._is_anytime or self.include == "coin"
        least = 2 if needs_coins else 1
        k = affordable(self.canaries, self.repetitions, seats, rounds, least=least)
        self._seated, self._k = seats, k
        # Of few canaries, fair coins would leave nothing to see.
        self._has_coins = needs_coins or (self.include == "auto" and k >= FEW)
        self._plan = schedule(k, self.repetitions, rounds, self.seed)
        coins = stream(self.seed, "coins").random(k) < 0.5
        self._included = coins if self._has_coins else np.ones(k, dtype=bool)
        # Unobserved canaries follow the played ones, so that nobody has ever sent them.
        self._ids = self._transcript.canaries = range(k if self._has_coins else 2 * k)
        self._played = np.zeros(k, dtype=np.int64)
        if self._is_anytime:
            self._check_delta()
            self._betting = Betting(
                self._plan, self._included, self._dim, delta=self.delta, confidence=self.confidence
            )
            for _ in range(self._transcript.num_rounds):  # before the first cohort with seats
                self._betting.after(0, self._transcript)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; seats that came from a cohort are planned again first."""
        state = {"seated": self._seated, **state}  # earlier releases had no such seats
        if self.seats == "auto" and state["seated"]:
            self._make_plan(state["seated"], state["begun"])
        super().restore(state)

    def _check_delta(self) -> None:
        """Raise if bets on all canaries together would pay more than may fail."""
        if self.delta * self._k >= 1 - self.confidence:
            limit = (1 - self.confidence) / self._k
            raise ValueError(
                f"delta must be below {limit:.2g} with bounds at every round, which pay δ for each "
                f"of {self._k} canaries, got {self.delta:g}; try {limit / 100:.1g}"
            )

    def limits(self, project: Project) -> Sequence[str]:
        """Return where there are too few canaries, clients or parameters to see much.

        Raises:
            UnableError: The disk has no room for the changes of all rounds.
        """
        check_room(self._changes_file, file_size(project.dim, project.num_rounds))
        if not self._seated:
            is_small = project.clients is not None and not seats_of(project.clients)
            return [f"no canary is played in rounds like the first: {_NO_SEATS}"] * is_small
        said = [] if self._included.any() else [f"no canary will be played: {self._all_out}"]
        return said + canary_limitations(
            project,
            canaries=self._k,
            included=self._k // 2 if self._has_coins else self._k,
            seats=self._seated,
            watched=len(self._ids),
        )

    @property
    def _all_out(self) -> str:
        return (
            f"the coins of all {self._k} planned canaries say out; use more seats or rounds, or "
            "include='all'"
        )

    @property
    def _changes_file(self) -> Path | None:
        """File with the changes of the model; None for a temporary one."""
        if self.folder is None:
            return None
        return self.folder.absolute() / f"{quote(self.name, safe='')}-changes.f32"

    @property
    def canaries_played(self) -> tuple[int, int]:
        """Canaries that have taken part so far, and those that the plan includes.

        Where coins leave all of them out, the second number is that of the plan.
        """
        return int((self._played > 0).sum()), int(self._included.sum()) or self._k

    @property
    def unplayed(self) -> str | None:
        """Why no canary has taken part, in words; None if one has."""
        if self._played.any():
            return None
        if not self._seated:
            return _NO_SEATS
        if not self._included.any():
            return self._all_out
        return (
            "no seat delivered one that reached a model. Either its clients failed, refused, lack "
            "canary_mod or could not tell what they send, or no round gave a model"
        )

    @property
    def is_anytime(self) -> bool:
        """Whether it bets after every round."""
        return self._is_anytime

    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        """Give this round's canaries to clients drawn among the chosen."""
        most = len(chosen)
        if self.seats == "auto":
            most = seats_of(len(chosen))
            if not self._seated and most:
                self._make_plan(most, server_round)
                self._begun = server_round
                about = (self.name, most, len(chosen), self._k)
                _log.info("%s: %d of %d clients per round play canaries, %d in all", *about)
        if self._begun is None:  # recordings of earlier releases may begin in round 2
            self._begun = server_round if self.first_round > 1 else 1
        # A strategy's own loop may run longer than planned.
        ids = self._plan.get(server_round - self._begun + 1, [])
        if len(ids) > most:  # with Poisson sampling, or fewer clients than seats
            _log.warning(
                "round %d has %d clients for %d canaries: some stay out, bounds will be lower",
                *(server_round, len(chosen), len(ids)),
            )
            ids = ids[:most]  # the plan's order is random and knows no coins
        rng = stream(self.seed, "seats", server_round)
        clients = sorted(rng.choice(np.asarray(chosen), len(ids), replace=False).tolist())
        return {
            client: Canary(id=i, seed=self._canary_seed, included=bool(self._included[i]))
            for client, i in zip(clients, ids, strict=True)
            if self._included[i] or self.excluded == "zero"
        }

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Compute the cosines of this round, and estimate epsilon from this round alone."""
        ours = (o for o in view.instructed.values() if o.seed == self._canary_seed)
        now = sorted(o.id for o in ours if o.included)
        if now and not self._seated:
            raise ValueError("seats must be the number of the recorded run, got 'auto'")
        cosines = self._transcript.add(*view.step, now)
        if not cosines.any():  # an abandoned round: whatever was sent has not reached the model
            now, cosines = [], cosines[:0]
        self._played[now] += 1
        if view.facts.noised is not None and view.facts.noise_std:
            self._interference.add(view.facts.noised, view.facts.noise_std)
        return [*self._bet(view), *self._from_round(cosines, view.server_round)]

    def report(self) -> Sequence[Finding]:
        """Return what the final model and all models show, and tests of what that assumes."""
        if not self._k:
            return [self._nobody(self._claims(_FINAL))]
        inside, outside = self._observed()
        cosines, log_p = self._transcript.final()
        spent = _SPENT * (1 - self.confidence)
        rng = stream(self.seed, "null", "maxima")
        maxima, log_p_all, pool = self._transcript.largest(_NULL_POOL, spent, rng)
        last = CanaryScores(cosines[inside], cosines[outside])
        most = CanaryScores(maxima[inside], maxima[outside], pool)
        self.scores = {_FINAL: last, _ALL: most}
        bins, bins_all = histogram(last, self._dim), histogram(most, self._dim)
        proofs = self._proofs(cosines, log_p, _FINAL, bins)
        proofs_all = self._proofs(maxima, log_p_all, _ALL, bins_all, spent)
        # A fitted standard deviation needs many canaries.
        stds: Sequence[Std] = ("known", "fitted") if len(inside) >= LEAST_FITTED else ("known",)
        estimates = self._from_cosines(last.included, self._claims(_FINAL), stds)
        final = without_refuted([*proofs, *estimates])
        every = without_refuted([*proofs_all, *self._from_maxima(most)])
        sizes = {"included": len(inside)}
        return [*final, *every, *interfered(self._interference, self._claims(_FINAL), sizes)]

    def close(self) -> None:
        """Delete the file with the changes of the model."""
        if self._dim:
            self._transcript.close()

    def _observed(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the canaries that took part and those that never did."""
        took_part = np.zeros(len(self._ids), dtype=bool)
        took_part[: len(self._played)] = self._played > 0
        return np.flatnonzero(took_part), np.flatnonzero(~took_part)

    def _bet(self, view: RoundView) -> list[Finding]:
        """Bet on canaries that have played for the last time; return the bound so far."""
        if self._betting is None:
            return []
        if self._begun is None and (self.first_round == 1 or view.instructed):
            self._begun = view.server_round  # in a replay, where nobody is instructed
        planned = 0 if self._begun is None else view.server_round - self._begun + 1
        self._betting.after(planned, self._transcript)
        claims = self._claims(_ALL, view.server_round)
        return [claims.finding(claims.assuming(bound)) for bound in self._betting.bounds()]

    def _from_round(self, cosines: Scores, server_round: int) -> list[Finding]:
        """Return the estimate of one round, or a note that its cosines are not Gaussian."""
        found = self._from_cosines(cosines, self._claims(_ROUND, server_round), ("known",))
        return found[:1]  # a round's test is told only where there is no estimate

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
        null = one_fit(rng.standard_normal((_NULL_RUNS, len(z))), std, self.delta)
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
        return replace(claims.finding(claims.assuming(bound)), null_band=band(null))

    def _from_maxima(self, scores: CanaryScores) -> list[Finding]:
        """Compare the largest cosines over rounds of both groups (Algorithm 3).

        Both standard deviations are fitted, so both groups must be large.
        """
        inside, outside = scores.included, scores.excluded
        sizes = {"included": len(inside), "unobserved": len(outside)}
        if min(sizes.values()) < LEAST_FITTED:
            return []
        claims = self._claims(_ALL)
        check = normality(claims, sizes, inside, outside)
        if check is not None and check.facts["rejected"]:
            return [check]
        rng = stream(self.seed, "null", "maxima", "runs")
        assert scores.null is not None  # maxima have no closed form
        draws = rng.choice(scores.null, (_NULL_RUNS, len(inside) + len(outside)))
        null = two_fits(draws[:, : len(inside)], draws[:, len(inside) :], self.delta)
        value = float(two_fits(inside[None], outside[None], self.delta)[0])
        rule = "Gaussian fits of the largest cosine over rounds, included against unobserved"
        assumed = Assumption.GAUSSIAN_MAXIMA
        estimate = self._estimate(value, null, rule, assumed, sizes, claims)
        return [estimate] if check is None else [estimate, check]

    def _proofs(
        self, scores: Scores, log_p: Scores, sees: Sees, bins: Histogram, spent: float = 0.0
    ) -> list[Finding]:
        """Return the headline bound and the conditional ones, from all canaries by their coins."""
        if not self._played.any():  # "at least 0" would sound as if the audit had searched
            return []
        is_in = np.zeros(len(scores), dtype=bool)
        is_in[: self._k] = self._included
        settings: dict[str, Any] = {
            "delta": self.delta,
            "confidence": self.confidence,
            "guesses": max(self._k // _GUESSED, 1) if self._has_coins else None,
            "spent": spent,
        }
        claims, details = self._claims(sees), (bins,)
        others = [
            claims.finding(claims.assuming(b)) for b in prove(scores, is_in, log_p, **settings)
        ]
        if self._betting is not None and sees == _ALL:
            bets = self._betting.bounds()
            return [*(claims.finding(claims.assuming(b), None, details) for b in bets), *others]
        first, facts = headline(scores, is_in, log_p, **settings)
        return [claims.finding(claims.assuming(first), facts, details), *others]

    def _claims(self, sees: Sees, server_round: int | None = None) -> Claims:
        """Return what makes findings about who sees this, in a round or in the run.

        They assume how canaries were drawn, and what seats send.
        """
        is_zero = self.excluded == "zero"
        adjacency: Adjacency = "zero-out" if is_zero else "honest-seat"
        assumed = Assumption.SEAT_SENDS_ZERO if is_zero else Assumption.SEAT_STAYS_HONEST
        if not self._has_coins:
            assumed = Assumption.ALL_CANARIES_PLAY
        if self.include == "all":
            adjacency = "add-remove"
        attacker = ThreatModel(
            observer="outsider",
            sees=sees,
            holds="canary",
            knows_cohort=True,
            participations=None if sees == _ROUND else self.repetitions,
        )
        return Claims(
            self.name,
            attacker,
            self.delta,
            self.confidence,
            adjacency,
            server_round=server_round,
            seed=self.seed,
            assumptions=(assumed,),
        )
