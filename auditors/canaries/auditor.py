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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import Project, RoundView
from leakmeter.auditors.bounds.anytime import Anytime
from leakmeter.auditors.bounds.one_run import headline
from leakmeter.auditors.canaries import canary_auditor
from leakmeter.auditors.canaries.canary_auditor import CanaryAuditor
from leakmeter.auditors.canaries.changes import check_room, file_size
from leakmeter.auditors.canaries.plan import (
    CanaryPlan,
    Excluded,
    Include,
    Repetitions,
    Seats,
    canary_limitations,
)
from leakmeter.auditors.canaries.scores import (
    LEAST_FITTED,
    CanaryScores,
    Interference,
    Largest,
    Scores,
    Std,
    histogram,
    interfered,
    normality,
    prove,
    two_fits,
    without_refuted,
)
from leakmeter.auditors.canaries.sign_transcript import SignTranscript
from leakmeter.auditors.canaries.transcript import Betting, Transcript
from leakmeter.auditors.canary_draws import Kind, KindName
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Bound, Finding, Sees, ThreatModel
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption

_NULL_POOL = 100_000  # canaries drawn for the null of the maxima
_SPENT = 0.1  # share of a bound's failure probability that limits from these draws may use
_GUESSED = 5  # one-run bounds guess every fifth canary
_FINAL: Sees = "final model"
_ALL: Sees = "all models"
_ROUND: Sees = "round model"


class OneShotCanaries(CanaryAuditor):
    """Plays canaries in a few seats per round and searches for them in the released models.

    Args:
        seats: Clients per round that play a canary in place of their update. "auto" takes one in
            five of the first cohort that has three clients or more, so that most stay honest.
        canaries: How many canaries; None fills all seats of all rounds.
        repetitions: In how many rounds each canary plays. "auto" takes as many as a client can
            expect to take part in, so that canaries show what clients do, or 1 where a claim about
            each round is tested. With a number of seats it is 1.
        delta: The delta of every epsilon.
        confidence: Confidence of each single lower bound. `Anytime(0.95)` also proves an ε after
            every round, and these bounds hold together; it needs coins.
        include: "coin" leaves each canary out with probability 1/2; "all" plays all of them, as
            in the paper, and draws as many unobserved ones for the null. "auto" plays all if there
            are fewer than ten, else takes coins.
        excluded: What the seat of a canary that is out sends: "zero" (zero-out adjacency), its own
            "honest" update, a weaker test that the findings name, or a "full" one, which is another
            random vector of the same norm (replace adjacency).
        seed: Seed of canaries, coins and seats.
        client_rounds: Rounds that a client takes part in, which findings set canaries against; None
            takes what the first cohort shows, with seats="auto".
        kind: How canaries are drawn: uniform on the "sphere", as in the paper, or of random
            "signs", which take a thirtieth of the time, need no disk and show 1.2 less. "auto"
            takes signs above a million parameters.

    Attributes:
        scores: Cosines behind the report, by what the attacker sees; empty before `report`.
    """

    name = "one-shot"
    num_bounds = 2  # of the final model, of all models
    # The adversary sees only models. The noise in the facts shows how good the estimates are.
    reads = frozenset({"sent", "released", "facts"})
    wants_mean = False

    _transcript: Kept[Transcript | SignTranscript]
    _interference: Kept[Interference]
    _betting: Kept[Betting | None]

    def __init__(
        self,
        *,
        seats: Seats = "auto",
        canaries: int | None = None,
        repetitions: Repetitions = "auto",
        delta: float = 1e-5,
        confidence: float | Anytime = 0.95,
        include: Include = "auto",
        excluded: Excluded = "zero",
        seed: int = 0,
        client_rounds: int | None = None,
        kind: Kind = "auto",
    ) -> None:
        plan = CanaryPlan(
            self.name,
            seats=seats,
            canaries=canaries,
            repetitions=repetitions,
            include=include,
            excluded=excluded,
            seed=seed,
            client_rounds=client_rounds,
            kind=kind,
        )
        super().__init__(plan, delta=delta, confidence=Anytime.level(confidence))
        self._is_anytime = isinstance(confidence, Anytime)
        if self._is_anytime and include == "all":
            allowed = "'coin' or 'auto' with confidence=Anytime(…), which bets on coins"
            raise ValueError(f"include must be {allowed}, got {include!r}")
        plan.needs_coins |= self._is_anytime
        plan.plays_once = (
            self._is_anytime
        )  # a canary is bet on when it has played for the last time
        self.scores: Mapping[Sees, CanaryScores] = {}
        self._betting = None

    def begin(self, dim: int, num_rounds: int) -> None:
        """Plan which canary plays in which round, whatever node will play it."""
        self._betting = None
        self._transcript = self._new_transcript(self._plan.kind_at(dim), dim)
        self._interference = Interference()
        super().begin(dim, num_rounds)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with canaries of the kind that it has."""
        self._plan.restore(state["plan"])
        self._transcript = self._new_transcript(self._plan.drawn_as, self._dim)
        super().restore(state)

    def _new_transcript(self, kind: KindName, dim: int) -> Transcript | SignTranscript:
        """Return what looks for canaries of a kind."""
        seed = self._plan.canary_seed
        if kind == "signs":
            return SignTranscript(seed, dim, self.watch)
        return Transcript(seed, (), dim, self._changes_file, self.watch)

    def _settle(self) -> None:
        """Look for the canaries of the plan, and bet on them if asked to."""
        super()._settle()
        included = self._plan.included
        if isinstance(self._transcript, SignTranscript):
            self._transcript.look_for(included)
            self._watched = included
        else:
            # Unobserved canaries follow the played ones, so that nobody has ever sent them.
            self._watched = np.ones(self._k if self._plan.has_coins else 2 * self._k, dtype=bool)
            self._transcript.canaries = range(self._watched.size)
        if self._is_anytime and self._k:
            self._check_delta()
            about = (self._plan.by_round, self._plan.included)
            self._betting = Betting(*about, delta=self.delta, confidence=self.confidence)
            for _ in range(self._transcript.num_rounds):  # before the first cohort with seats
                self._betting.after(0, self._transcript)

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
        said, plan = self._plan.limits(project), self._plan
        if plan.drawn_as == "sphere":
            check_room(self._changes_file, file_size(project.dim, project.num_rounds))
        if not plan.seated:
            return said
        return said + canary_limitations(
            project,
            canaries=self._k,
            included=self._k // 2 if plan.has_coins else self._k,
            seats=plan.seated,
            watched=int(self._watched.sum()),
            kind=plan.drawn_as,
        )

    @property
    def _changes_file(self) -> Path | None:
        """File with the changes of the model; None for a temporary one."""
        return self._file("changes")

    @property
    def unplayed(self) -> str | None:
        """Why no canary has taken part, in words; None if one has."""
        if self._played.any():
            return None
        return self._plan.unplayed or (
            "no seat delivered one that reached a model. Either its clients failed, refused, lack "
            "canary_mod or could not tell what they send, or no round gave a model"
        )

    @property
    def is_anytime(self) -> bool:
        """Whether it bets after every round."""
        return self._is_anytime

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Compute the cosines of this round, and estimate epsilon from this round alone."""
        now, planned = self._plan.played(view), self._planned_round(view)
        scheduled = self._plan.by_round.get(planned, ())
        cosines = self._transcript.add(*view.step, now, self._plan.drawn, scheduled)
        if not cosines.any():  # an abandoned round: whatever was sent has not reached the model
            now, cosines = [], cosines[:0]
        self._played[now] += 1
        if view.facts.noised is not None and view.facts.noise_std:
            self._interference.add(view.facts.noised, view.facts.noise_std)
        return [*self._bet(view, planned), *self._from_round(cosines, view.server_round)]

    def report(self) -> Sequence[Finding]:
        """Return what the final model and all models show, and tests of what that assumes."""
        if not self._k:
            return [self._nobody(self._claims(_FINAL))]
        inside, outside = self._observed()
        cosines, log_p = self._transcript.final()
        spent = _SPENT * (1 - self.confidence)
        rng = stream(self.seed, "null", "maxima")
        found = self._transcript.largest(_NULL_POOL, spent, rng)
        last = CanaryScores(cosines[inside], cosines[outside])
        most = CanaryScores(found.cosines[inside], found.cosines[outside], found.null)
        self.scores = {_FINAL: last, _ALL: most}
        proofs = self._proofs(Largest(cosines, log_p, 1), _FINAL, last)
        proofs_all = self._proofs(found, _ALL, most)
        # A fitted standard deviation needs many canaries.
        stds: Sequence[Std] = ("known", "fitted") if len(inside) >= LEAST_FITTED else ("known",)
        estimates = self._from_cosines(last.included, self._claims(_FINAL), stds)
        final = without_refuted([*proofs, *estimates])
        every = without_refuted([*proofs_all, *self._from_maxima(most, found.directions, stds)])
        sizes = {"included": len(inside)}
        return [*final, *every, *interfered(self._interference, self._claims(_FINAL), sizes)]

    def close(self) -> None:
        """Delete the file with the changes of the model."""
        if self._dim:
            self._transcript.close()

    def _observed(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the canaries that took part and those that never did, of those looked for."""
        took_part = np.zeros(self._watched.size, dtype=bool)
        took_part[: len(self._played)] = self._played > 0
        return np.flatnonzero(took_part), np.flatnonzero(self._watched & ~took_part)

    def _planned_round(self, view: RoundView) -> int:
        """Return which round of the plan this is, 0 before its first."""
        plan = self._plan
        if plan.begun is None and plan.seated and (self.first_round == 1 or view.instructed):
            plan.begun = view.server_round  # in a replay, where nobody is instructed
        return 0 if plan.begun is None else view.server_round - plan.begun + 1

    def _bet(self, view: RoundView, planned: int) -> list[Finding]:
        """Bet on canaries that have played for the last time; return the bound so far."""
        if self._betting is None:
            return []
        self._betting.after(planned, self._transcript)
        claims = self._claims(_ALL, view.server_round)
        return [claims.finding(self._assuming(claims, bound)) for bound in self._betting.bounds()]

    def _from_round(self, cosines: Scores, server_round: int) -> list[Finding]:
        """Return the estimate of one round, or a note that its cosines are not Gaussian."""
        found = self._from_cosines(cosines, self._claims(_ROUND, server_round), ("known",))
        return found[:1]  # a round's test is told only where there is no estimate

    def _from_maxima(
        self, scores: CanaryScores, directions: int, stds: Sequence[Std]
    ) -> list[Finding]:
        """Compare the largest cosines over rounds of both groups (Algorithm 3).

        Both standard deviations are fitted, so both groups must be large. Where the largest is of
        one cosine, its null is known. Of several cosines of signs it is not.
        """
        inside, outside = scores.included, scores.excluded
        if scores.null is None:
            one = directions == 1
            return self._from_cosines(inside, self._claims(_ALL), stds) if one else []
        sizes = {"included": len(inside), "unobserved": len(outside)}
        if min(sizes.values()) < LEAST_FITTED:
            return []
        claims = self._claims(_ALL)
        check = normality(claims, sizes, inside, outside)
        if check is not None and check.facts["rejected"]:
            return [check]
        rng = stream(self.seed, "null", "maxima", "runs")
        draws = rng.choice(scores.null, (canary_auditor.NULL_RUNS, len(inside) + len(outside)))
        null = two_fits(draws[:, : len(inside)], draws[:, len(inside) :], self.delta)
        value = float(two_fits(inside[None], outside[None], self.delta)[0])
        rule = "Gaussian fits of the largest cosine over rounds, included against unobserved"
        assumed = Assumption.GAUSSIAN_MAXIMA
        estimate = self._estimate(value, null, rule, assumed, sizes, claims)
        return [estimate] if check is None else [estimate, check]

    def _proofs(self, found: Largest, sees: Sees, shown: CanaryScores) -> list[Finding]:
        """Return the headline bound and the conditional ones, from all canaries by their coins."""
        if not self._played.any():  # "at least 0" would sound as if the audit had searched
            return []
        scores, log_p = found.cosines, found.log_p
        is_in = np.zeros(len(scores), dtype=bool)
        is_in[: self._k] = self._plan.included
        settings: dict[str, Any] = {
            "delta": self.delta,
            "confidence": self.confidence,
            "guesses": max(self._k // _GUESSED, 1) if self._plan.has_coins else None,
            "spent": found.spent,
        }
        claims = self._claims(sees)
        # The largest of several cosines of signs has no null to be drawn beside it.
        has_null = found.directions == 1 or found.null is not None
        details = (histogram(shown, self._dim),) if has_null else ()
        others = [
            claims.finding(self._assuming(claims, b))
            for b in self._conditional(found, is_in, settings)
        ]
        if self._betting is not None and sees == _ALL:
            bets = self._betting.bounds()
            bound = (claims.finding(self._assuming(claims, b), None, details) for b in bets)
            return [*bound, *others]
        first, facts = headline(scores, is_in, log_p, **settings)
        facts |= self._power(self._k, found.directions)
        return [claims.finding(self._assuming(claims, first), facts, details), *others]

    def _conditional(
        self, found: Largest, is_in: NDArray[np.bool_], settings: Mapping[str, Any]
    ) -> list[Bound]:
        """Return the bounds with a condition; scores of canaries that are out may be missing."""
        if self._watched.all():
            return prove(found.cosines, is_in, found.log_p, **settings)
        some = (found.cosines[is_in], is_in[is_in], found.log_p[is_in])
        return prove(*some, **{**settings, "guesses": None})

    def _claims(self, sees: Sees, server_round: int | None = None) -> Claims:
        """Return what makes findings about who sees this, in a round or in the run.

        They assume how canaries were drawn, and what seats send.
        """
        adjacency, assumed = self._plan.world
        if self.include == "all":
            adjacency = "add-remove"
        attacker = ThreatModel(
            observer="outsider",
            sees=sees,
            holds="canary",
            knows_cohort=True,
            participations=None if sees == _ROUND else self._plan.repetitions,
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
