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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors._validate import within
from leakmeter.auditors.audited_round import (
    AuditedRound,
    ResamplingAuditor,
    SumObserver,
    unwatched,
)
from leakmeter.auditors.auditor import (
    Project,
    RoundFacts,
    RoundView,
    UnableError,
    few_clients,
)
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.likelihood_ratio.sum_law import NothingMovesError
from leakmeter.auditors.likelihood_ratio.transcript.case import (
    Case,
    Cohort,
    HiddenCohorts,
    TranscriptEffort,
    choose,
)
from leakmeter.auditors.likelihood_ratio.transcript.combination import Transcripts
from leakmeter.auditors.likelihood_ratio.transcript.findings import Verdicts
from leakmeter.auditors.likelihood_ratio.transcript.frozen import round_scores
from leakmeter.auditors.likelihood_ratio.transcript.whole import RoundPlan, WholeRuns
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampler import RoundSampler, UpdateSampler

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
        effort: How transcripts are played, and how many draws go into each stage.
        observer: "server" sees the sums before server noise, "outsider" after it.
        delta: The delta of the bound.
        confidence: Of the bound; rounds do not share it.
        seed: Names all draws.
    """

    name = _NAME
    reads = frozenset({"sent", "replies", "facts"})

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        target: int | None = None,
        hidden: HiddenCohorts | None = None,
        effort: TranscriptEffort = TranscriptEffort(),  # noqa: B008 - a frozen value
        observer: SumObserver = "server",
        delta: float = 1e-5,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        super().__init__(sampler, every=1, observer=observer)
        within("delta", delta, above=0.0, below=1.0)
        within("confidence", confidence, above=0.0, below=1.0)
        if target is not None and target < 0:
            raise ValueError(f"target must be a client, 0 or more, or None, got {target}")
        self.target, self.hidden = target, hidden
        self.effort, self.delta, self.confidence, self.seed = effort, delta, confidence, seed
        self._reset()

    def _reset(self) -> None:
        self._case: Case | None = None
        self._game: Any = None
        self._has_integers = False  # whether the noise of some round was of integers
        self._start: Vector | None = None
        self._rounds: list[Transcripts] = []  # scores of the sums
        self._models: list[Transcripts] = []  # scores of the models, of whole runs only
        self._plans: list[RoundPlan] = []
        self._runner: UpdateSampler | None = None
        self._last: tuple[int, RoundFacts] | None = None  # what the runner of whole runs is for

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
        cohort = Cohort.of(honest, target, self.hidden, rng)
        self._runner = audited.sampler
        self._last = server_round, replace(audited.facts, aggregate=None, noised=None)
        self._game = audited.game
        self._has_integers |= audited.has_integers
        try:
            if self._case is None:
                self._case = choose(audited, cohort.others, effort=self.effort, stream=self._stream)
            is_played = self._play(audited, cohort)
        except NothingMovesError:
            _log.warning("round %d: no update of the others varies; left out", server_round)
            return ()
        if not is_played:
            return ()
        return [self._verdicts().bound(self._rounds, server_round=server_round)]

    def report(self) -> Sequence[Finding]:
        """Return what all rounds together prove."""
        self._run_all()  # of a run that has ended early
        return [self._verdicts().bound(self._rounds, self._models)] if self._rounds else []

    def state(self) -> dict[str, Any]:
        """Return target, pair, and the scores or plans of the rounds so far."""
        return {
            "target": None if self._case is None else self._case.target,
            "pair": None if self._case is None else list(self._case.pair),
            "game": self._game,
            "has_integers": self._has_integers,
            "start": self._start,
            "rounds": [vars(one) for one in self._rounds],
            "models": [vars(one) for one in self._models],
            "plans": [_plain(plan) for plan in self._plans],
            "last": None if self._last is None else [self._last[0], vars(self._last[1])],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._reset()
        if state["pair"] is not None:
            first, second = state["pair"]
            self._case = Case(int(state["target"]), self._stream, (int(first), int(second)))
        self._game, self._has_integers = state["game"], bool(state["has_integers"])
        if state["start"] is not None:
            self._start = np.asarray(state["start"], dtype=np.float64)
        self._rounds = [_transcripts(one) for one in state["rounds"]]
        self._models = [_transcripts(one) for one in state["models"]]
        self._plans = [_plan(one) for one in state["plans"]]
        if (last := state.get("last")) is not None:  # checkpoints of older releases lack it
            self._last = int(last[0]), RoundFacts(**last[1])

    @property
    def _stream(self) -> tuple[str | int, ...]:
        return (_NAME, self.seed)

    def target_among(self, honest: Sequence[int], server_round: int) -> int | None:
        """Return the client under attack, the same in all rounds."""
        if self._case is not None:
            return self._case.target
        if self.target is not None:
            return self.target
        return int(stream(self.seed, _NAME, "target").choice(honest)) if honest else None

    def _play(self, audited: AuditedRound, cohort: Cohort) -> bool:
        """Score this round of all transcripts, or note it for whole runs; whether it was scored."""
        assert self._case is not None
        if self.effort.mode == "whole-runs":
            divisor = audited.facts.divisor
            divisor = None if divisor is None else divisor / audited.sampler.scale
            self._start = audited.model.copy() if self._start is None else self._start
            self._plans.append(RoundPlan(cohort, audited.seen_std, audited.added_std, divisor))
        elif cohort.rate:
            self._rounds.append(round_scores(audited, cohort, self._case, effort=self.effort))
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
            self.effort,
            self.watch or unwatched,
        ).play()

    def _verdicts(self) -> Verdicts:
        assert self._case is not None
        return Verdicts(
            name=self.name,
            mode=self.effort.mode,
            observer=self.observer,
            knows_cohort=self.hidden is None,
            game=self._game,
            target=self._case.target,
            delta=self.delta,
            confidence=self.confidence,
            seed=self.seed,
            pilot=self.effort.pilot,
            has_integers=self._has_integers,
        )


def _plain(plan: RoundPlan) -> dict[str, Any]:
    """Return a plan in JSON types."""
    return {
        "others": list(plan.cohort.others),
        "stand_in": plan.cohort.stand_in,
        "rate": plan.cohort.rate,
        "seen_std": plan.seen_std,
        "added_std": plan.added_std,
        "divisor": plan.divisor,
    }


def _plan(plain: Mapping[str, Any]) -> RoundPlan:
    """Return the plan that `_plain` wrote."""
    others = tuple(int(c) for c in plain["others"])
    cohort = Cohort(others, plain["stand_in"], plain["rate"])
    return RoundPlan(cohort, plain["seen_std"], plain["added_std"], plain["divisor"])


def _transcripts(plain: Mapping[str, Any]) -> Transcripts:
    return Transcripts(np.asarray(plain["first"], float), np.asarray(plain["second"], float))
