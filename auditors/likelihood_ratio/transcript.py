"""The transcript audit: can the server distinguish two data sets of a client from all rounds?

Ngo, Östman, Durisi, Graell i Amat (2024), Secure Aggregation is Not Private Against Membership
Inference Attacks, arXiv:2403.17775, audit one round and leave the combination of rounds open
(section 6). Ours plays one likelihood ratio over all rounds in which a client takes part:
1. Two worlds: the target holds one of two data sets, the same in all its rounds. `LikelihoodRatio`
   distinguishes two updates in one round, with the client's own randomness frozen; here batches
   are part of every trial.
2. A trial is a transcript. The data of the other clients are drawn once per transcript and kept
   over its rounds, so rounds are dependent, and the test has the covariance of their scores.
3. Fit, choice and test use disjoint draws: updates fit each round's directions, pilot transcripts
   fix how rounds are combined and the threshold, further transcripts are judged.
4. All rounds have one bound at the full confidence; nothing is shared out among rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from leakmeter.auditors.audited_round import (
    SEES,
    AuditedRound,
    Claims,
    ResamplingAuditor,
    SumObserver,
    no_watch,
)
from leakmeter.auditors.auditor import (
    DamagedError,
    Project,
    RoundFacts,
    RoundView,
    UnableError,
    few_clients,
)
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Finding, Game, ThreatModel
from leakmeter.auditors.likelihood_ratio.sum_distribution import NothingMovesError
from leakmeter.auditors.likelihood_ratio.transcript_runs import (
    Case,
    HiddenCohorts,
    RoundPlan,
    TranscriptBudget,
    TranscriptCohort,
    Transcripts,
    WholeRuns,
    choose,
    prove,
    round_scores,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import RoundSampler, UpdateSampler
from leakmeter.auditors.values import Vector, within
from leakmeter.auditors.wording import Assumption

_log = logging.getLogger("flwr")
_NAME: Final = "transcript"


class TranscriptLikelihoodRatio(ResamplingAuditor):
    """Let the server guess which of two data sets a client holds, from all its rounds together.

    Args:
        sampler: Draws fresh updates, and names the game: partition, independent or
            independent-held-out; a function of the round where the mechanism changes.
        target: Client under attack; None draws one of the first round's clients.
        hidden: How cohorts are drawn, for an attacker who does not know them; None for one who
            knows in which rounds the target takes part.
        budget: How transcripts are played, and how many draws go into each stage.
        observer: "server" sees the sums before server noise, "outsider" after it.
        delta: The delta of the bound.
        confidence: Of the bound; rounds do not share it.
        seed: Names all draws.
    """

    name = _NAME
    num_bounds = 1
    reads = frozenset({"sent", "replies", "facts"})

    _case: Kept[Case | None]
    _game: Kept[Game | None]
    _has_integers: Kept[bool]  # whether the noise of some round was over integers
    _start: Kept[Vector | None]
    _rounds: Kept[list[Transcripts]]  # scores of the sums
    _models: Kept[list[Transcripts]]  # scores of the models, of whole runs only
    _plans: Kept[list[RoundPlan]]
    _last: Kept[tuple[int, RoundFacts] | None]  # what the runner of whole runs is for

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        target: int | None = None,
        hidden: HiddenCohorts | None = None,
        budget: TranscriptBudget = TranscriptBudget(),  # noqa: B008 - a frozen value
        observer: SumObserver = "server",
        delta: float = 1e-5,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        super().__init__(sampler, every=1, observer=observer)
        within("delta", delta, above=0.0, below=1.0)
        within("confidence", confidence, above=0.0, below=1.0)
        if target is not None and target < 0:
            raise BadValueError("target", "a client, 0 or more, or None", target)
        self.target, self.hidden = target, hidden
        self.budget, self.delta, self.confidence, self.seed = budget, delta, confidence, seed
        self._reset()

    def _reset(self) -> None:
        self._case, self._game, self._has_integers = None, None, False
        self._start, self._rounds, self._models, self._plans, self._last = None, [], [], [], None
        self._runner: UpdateSampler | None = None

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._reset()

    def limits(self, project: Project) -> Sequence[str]:
        """Say where data sets cannot be drawn, or too few clients hide one another."""
        said = list(super().limits(project))
        if self.asks_clients:
            raise UnableError(
                "the transcript audit gives a client other data, and clients of a foreign app "
                "train on their own: it needs a simulation whose data the server knows"
            )
        return said + few_clients(project, 2, "a sum hides a client only among others")

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Play this round of every transcript, if the target takes part or might."""
        found = super().observe(view)
        # Now, so that the state after the last round has them, even if that round was abandoned.
        if view.server_round == self._due.num_rounds:
            self._run_all()
        return found

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Return what the rounds up to this one show; nothing in whole runs, which come last."""
        honest, target, server_round = audited.honest, audited.target, audited.server_round
        if target is None or len(honest) < 2:
            _log.warning("round %d: no client to audit among %s", server_round, honest)
            return ()
        rng = stream(self.seed, _NAME, "stand-in", server_round)
        cohort = TranscriptCohort.of(honest, target, self.hidden, rng)
        self._runner = audited.sampler
        self._last = server_round, replace(audited.facts, aggregate=None, noised=None)
        self._game = audited.game
        self._has_integers |= audited.has_integers
        try:
            if self._case is None:
                self._case = choose(
                    audited, cohort.others, budget=self.budget, stream=(_NAME, self.seed)
                )
            is_played = self._play(audited, cohort)
        except NothingMovesError:
            _log.warning("round %d: no update of the others varies; left out", server_round)
            return ()
        if not is_played:
            return ()
        return [self._proven(server_round)]

    def report(self) -> Sequence[Finding]:
        """Return what all rounds together prove."""
        self._run_all()  # of a run that has ended early
        return [self._proven()] if self._rounds else []

    def target_among(self, honest: Sequence[int], server_round: int) -> int | None:
        """Return the client under attack, the same in all rounds."""
        if self._case is not None:
            return self._case.target
        if self.target is not None:
            return self.target
        return int(stream(self.seed, _NAME, "target").choice(honest)) if honest else None

    def _play(self, audited: AuditedRound, cohort: TranscriptCohort) -> bool:
        """Score this round of all transcripts, or note it for whole runs; whether it was scored."""
        assert self._case is not None
        if self.budget.mode == "whole-runs":
            divisor = audited.facts.divisor
            divisor = None if divisor is None else divisor / audited.sampler.scale
            self._start = audited.model.copy() if self._start is None else self._start
            self._plans.append(RoundPlan(cohort, audited.seen_std, audited.added_std, divisor))
        elif cohort.rate:
            self._rounds.append(round_scores(audited, cohort, self._case, budget=self.budget))
            return True
        return False

    def _run_all(self) -> None:
        """Play all whole runs, once; nothing if models are frozen."""
        if self._rounds or not self._plans or self._case is None or self._start is None:
            return
        if self._runner is None and self._last is not None:
            # A run that stopped early may be resumed only for its report, and see no round.
            server_round, facts = self._last
            view = RoundView(server_round, self._start, {}, self._start, facts)
            self._runner = AuditedRound(view, self.sampler).sampler
        if self._runner is None:
            return
        self._rounds, self._models = WholeRuns(
            self._runner,
            self._start,
            tuple(self._plans),
            self._case,
            self.budget,
            self.watch or no_watch,
        ).play()

    def _proven(self, server_round: int | None = None) -> Finding:
        """Return what the rounds so far prove together."""
        if self._case is None or self._game is None:  # every round that was played has both
            raise DamagedError(
                "the checkpoint has rounds of the transcript audit, but not which client they are "
                "about: restore it, or start again"
            )
        is_frozen = self.budget.mode == "frozen-models"
        claims = Claims(
            self.name,
            ThreatModel(
                observer=self.observer,
                sees="frozen sums" if is_frozen else SEES[self.observer],
                holds="two data sets",
                knows_cohort=self.hidden is None,
                game=self._game,
            ),
            self.delta,
            self.confidence,
            server_round=server_round,
            seed=self.seed,
            assumptions=(
                Assumption.KNOWN_SEATS,
                Assumption.GAUSSIAN_ROUNDING,
                *((Assumption.MODELS_AS_SENT,) if is_frozen else ()),
                *((Assumption.GAUSSIAN_TRIALS,) if self._has_integers else ()),
            ),
        )
        models = self._models if server_round is None else ()
        about = {"target": self._case.target, "pilot": self.budget.pilot}
        return prove(claims, self._rounds, models, **about)
