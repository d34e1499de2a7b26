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

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import Project, RoundView
from leakmeter.auditors.bounds.anytime import AnytimeBound
from leakmeter.auditors.bounds.gaussian import epsilon_between_gaussians
from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.bounds.one_run import (
    guess_by_rank,
    headline,
    one_run_gaussian_epsilon,
    p_value_note,
    surprise,
    with_cap,
)
from leakmeter.auditors.canaries import canary_auditor
from leakmeter.auditors.canaries.canary_auditor import (
    MIN_FITTED,
    CanaryAuditor,
    CanaryPlan,
    CanaryScores,
    Std,
    _log,
    histogram,
    normality,
    without_refuted,
)
from leakmeter.auditors.canaries.transcript import (
    Largest,
    Scores,
    SignTranscript,
    Transcript,
    check_room,
    file_size,
)
from leakmeter.auditors.canary_draws import KindName
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, Finding, Sees, ThreatModel
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Vector
from leakmeter.auditors.wording import Assumption

_NULL_POOL = 100_000  # canaries drawn for the null of the maxima
_SPENT = 0.1  # share of a bound's failure probability that limits from these draws may use
_GUESSED = 5  # one-run bounds guess every fifth canary
_FINAL: Sees = "final model"
_ALL: Sees = "all models"
_ROUND: Sees = "round model"
_MUCH = 0.01  # interference above this is worth a warning


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
    can_bet = True
    # The adversary sees only models. The noise in the facts shows how good the estimates are.
    reads = frozenset({"sent", "released", "facts"})
    wants_mean = False

    _transcript: Kept[Transcript | SignTranscript]
    _interference: Kept[Interference]
    _betting: Kept[Betting | None]
    scores: Mapping[Sees, CanaryScores] = MappingProxyType({})

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
            allowed = (
                f"below {limit:.2g} with bounds at every round, which pay δ for each of {self._k}"
            )
            fix = f"Try {limit / 100:.1g}"
            raise BadValueError("delta", f"{allowed} canaries", self.delta, fix=fix)

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
        return said + canary_limitations(project, plan, int(self._watched.sum()))

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
        stds: Sequence[Std] = ("known", "fitted") if len(inside) >= MIN_FITTED else ("known",)
        estimates = self._from_cosines(last.included, self._claims(_FINAL), stds)
        final = without_refuted([*proofs, *estimates])
        every = without_refuted([*proofs_all, *self._from_maxima(most, found.directions, stds)])
        sizes = {"included": len(inside)}
        return [
            *final,
            *every,
            *self._interference.findings(self._claims(_FINAL), sizes),
        ]

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
        if min(sizes.values()) < MIN_FITTED:
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


class Betting(Resumable):
    """Bets on every coin once: when its canary has played for the last time.

    A canary on the sphere is scored by its cosine with the sum of the normalised changes of the
    rounds that the plan gives it. Given these changes, the null of that cosine is exact. One of
    signs is scored by the largest cosine with one of them. The plan does not know the coins, so a
    seat that failed to deliver weakens the bound and never breaks it.

    Args:
        plan: The canaries of each round, rounds counted from 1.
        included: What the coin of each canary says, (canaries,).
        delta: The delta of the bound.
        confidence: Of the bounds of all rounds together.
    """

    _bound: Kept[AnytimeBound]
    _rows: Kept[list[int]]  # the planned round of each change in the transcript
    _done: Kept[int]  # planned rounds whose canaries have been bet on

    def __init__(
        self,
        plan: Mapping[int, Sequence[int]],
        included: NDArray[np.bool_],
        *,
        delta: float,
        confidence: float,
    ) -> None:
        self._included = included
        self._rounds_of: list[list[int]] = [[] for _ in included]
        for planned in sorted(plan):
            for canary in plan[planned]:
                self._rounds_of[canary].append(planned)
        self._last = np.array([max(rounds, default=0) for rounds in self._rounds_of])
        self._bound = AnytimeBound(delta=delta, confidence=confidence, planned=included.size)
        self._rows, self._done = [], 0

    def after(self, planned: int, transcript: Transcript | SignTranscript) -> None:
        """Bet on the canaries that have played for the last time.

        Args:
            planned: The round of the plan that was added to the transcript, 0 for one before it.
            transcript: All changes so far.
        """
        self._rows.append(planned)
        due = np.flatnonzero((self._last > self._done) & (self._last <= planned))
        self._done = max(planned, self._done)
        is_in = self._included[due]
        log_p = np.zeros(due.size)
        log_p[is_in] = -surprise(self._log_p(due[is_in], transcript))
        self._bound.add_canaries(log_p, is_in)

    def bounds(self) -> list[Bound]:
        """Return the bound so far; none before the first bet, since it would not have searched."""
        found = self._bound.bound()
        return [replace(found, rule=found.rule + p_value_note())] if found.sample_sizes else []

    def _log_p(
        self, canaries: NDArray[np.intp], transcript: Transcript | SignTranscript
    ) -> NDArray[np.float64]:
        """Return ln p of each canary, from what changed in its rounds."""
        row_of = {planned: row for row, planned in enumerate(self._rows)}
        rows = [[row_of[r] for r in self._rounds_of[c] if r in row_of] for c in canaries]
        return transcript.log_p(canaries.tolist(), rows)


def two_fits(inside: Scores, outside: Scores, delta: float) -> Scores:
    """Return ε between Gaussians fitted to each row of both groups."""
    fits = (outside.mean(axis=1), outside.std(axis=1), inside.mean(axis=1), inside.std(axis=1))
    return np.asarray(epsilon_between_gaussians(*fits, delta))


class Interference(Resumable):
    """How much other updates in the noised means hide a canary, as a share of the noise.

    Cosines shrink to 1/√(σ² + k/d + ‖X‖²/d), in units of the clip norm, with k canaries and X the
    sum of the honest updates: (k + ‖X‖²)/(d·σ²) is the squared norm of the noised mean beyond its
    noise, relative to the noise. The norm of the noise itself is random, which gives the share a
    standard deviation of √(2/d). Honest updates are correlated between rounds and noise is not, so
    the share grows in the sum of all rounds.
    """

    rounds: Kept[list[float]]
    _variance: Kept[float]
    _total: Kept[Vector]

    def __init__(self) -> None:
        self.rounds, self._variance, self._total = [], 0.0, np.empty(0)

    def add(self, noised: Vector, std: float) -> None:
        """Add the noised mean of a round, with the noise per coordinate on it."""
        self.rounds.append(_beyond(noised, std**2))
        if self._total.size == 0:
            self._total = np.zeros(noised.size)
        self._total += noised
        self._variance += std**2

    def of_the_run(self) -> float:
        """Return the share in the sum of all rounds."""
        return _beyond(self._total, self._variance)

    def findings(self, claims: Claims, sizes: Mapping[str, int]) -> list[Finding]:
        """Return the share in the sum of all rounds, where the noise of a round is known."""
        if not self.rounds:
            return []
        share = self.of_the_run()
        unsure = math.sqrt(2 / self._total.size)  # one standard deviation of any share
        if share > _MUCH + 2 * unsure:
            _log.warning(
                "canaries and clients add %.0f %% to the noise: the estimate of ε is too low",
                100 * share,
            )
        rule = "length of the noised means beyond their noise, squared, as a share of the noise"
        bound = Bound(share, "diagnostic", rule, sample_sizes=sizes)
        return [claims.finding(bound, {"standard_deviation": unsure}, quantity="interference")]


def _beyond(vector: Vector, variance: float) -> float:
    """Return ‖vector‖² / (d·variance) - 1, at least 0: the expected ratio of pure noise is 1."""
    return max(float(vector @ vector) / (vector.size * variance) - 1, 0.0)


def prove(
    scores: Scores,
    is_in: NDArray[np.bool_],
    log_p: Scores,
    *,
    delta: float,
    confidence: float,
    guesses: int | None,
    spent: float = 0.0,
) -> list[Bound]:
    """Return every conditional bound that the scores of one run allow, the known null first.

    Each assumes independent scores or a Gaussian mechanism; `bounds.headline` assumes neither.

    Args:
        scores: Scores of all canaries; larger means more likely in.
        is_in: Whether the coin said in, also if the seat failed to deliver. That weakens a bound,
            but dropping such canaries would let the run choose its samples.
        log_p: ln of each score's p-value if the canary is out, or upper limits on it.
        delta: The delta of every ε.
        confidence: Confidence of each single bound.
        guesses: How many canaries the one-run bound guesses, fixed beforehand; None leaves this
            bound out, for canaries that were not included by fair coins.
        spent: Probability that any of `log_p` is too small; subtracted from the level of the bound
            with the known null.
    """
    if not is_in.any():
        return []
    inside, outside = scores[is_in], scores[~is_in]
    # Upper limits on p-values only lower the scores, and so the bound: if they hold, −ln of the
    # true p-values reaches every threshold at least as often, and these have the null e^−s.
    known = with_cap(
        surprise(log_p[is_in]),
        lambda s: epsilon_lower_bound(
            s, null_logsf=np.negative, delta=delta, confidence=confidence + spent, same_run=True
        ),
    )
    assumed = (known.assumptions[0], Assumption.UNIFORM_CANARIES)
    rule = known.rule + p_value_note(spent)
    found = [replace(known, confidence=confidence, rule=rule, assumptions=assumed)]
    if outside.size:
        found.append(
            epsilon_lower_bound(inside, outside, delta=delta, confidence=confidence, same_run=True)
        )
    if guesses:
        correct = guess_by_rank(inside, outside, guesses)
        found.append(one_run_gaussian_epsilon(scores.size, guesses, correct, delta, confidence))
    return found


_VISIBLE: Final = 3.0  # standard deviations
_LARGE: Final = 1e9  # bytes of a working file that are worth a line
_LONG: Final = 60.0  # seconds
# Seconds of one core per coordinate of a canary, and per multiply-add of a matrix product, as
# benchmarks/transcript_report.py measured them on one kind of machine.
_DRAW: Final = 15e-9
_ADD: Final = 0.055e-9


def canary_limitations(project: Project, plan: CanaryPlan, watched: int) -> list[str]:
    """Return in words where there are too few canaries, clients or parameters, or too many.

    Args:
        project: The run.
        plan: Its canaries. Those of signs are searched for in each round, without a file.
        watched: Canaries that are searched for at the end, including those that nobody plays.
    """
    rounds, clients, dim = project.num_rounds, project.clients, project.dim
    said, has_file = [], plan.drawn_as == "sphere"
    if has_file and (size := file_size(dim, rounds)) > _LARGE:
        said.append(
            f"the changes of the model take up to {size / 1e9:.1f} GB of disk until the report is "
            f"written: {rounds} rounds of {dim:,} parameters in single precision"
        )
    if has_file and (seconds := product_seconds(watched, rounds, dim)) > _LONG:
        said.append(
            f"the products of {watched:,} canaries with the changes of {rounds:,} rounds take "
            f"about {_coarse(seconds / 60)} minutes of one core after the last round; use fewer "
            "canaries to save time"
        )
    said += plan.seat_limits(project)
    # Among n updates of equal norm without a common direction, a canary has the cosine 1/√n with
    # their sum. The cosine of a canary that is out has mean 0 and standard deviation 1/√d.
    if clients and (seen := math.sqrt(dim / clients)) < _VISIBLE:
        said.append(
            f"{dim} parameters for {clients} clients per round: a canary stands out by only about "
            f"{seen:.1f} standard deviations, so the audit may find little even if much leaks; "
            "fewer clients per round or a larger model show more"
        )
    said += [
        f"{name} scales every coordinate of the mean separately: an outsider who undoes that sees "
        "canaries more clearly than this audit does"
        for name in project.bent_by
    ]
    said += [
        f"{name} drops or trims updates that differ from the rest. A canary is a random vector, so "
        "it may be dropped where a client's own update is not: a low result says little about "
        "clients"
        for name in project.selected_by
    ]
    return said


def product_seconds(canaries: int, rounds: int, dim: int) -> float:
    """Return about how many seconds of one core the products of canaries and changes take.

    Every canary is drawn once. The products take k·T·d multiply-adds, the Gram matrix T²·d/2.
    """
    return dim * (canaries * _DRAW + (canaries * rounds + rounds**2 / 2) * _ADD)


def _coarse(minutes: float) -> str:
    """Return an estimate with two digits at most."""
    return f"{round(minutes, min(2 - len(str(int(minutes))), 0)):,.0f}"
