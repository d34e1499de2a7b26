"""The likelihood-ratio audit of a secure sum: can the server distinguish two updates of a client?

Ngo, Östman, Durisi, Graell i Amat (2024), Secure Aggregation is Not Private Against Membership
Inference Attacks, arXiv:2403.17775, section 4.5. Ours differs in five points:
1. Three disjoint sets: one fits the distribution of the others' sum, one chooses pair, test and
   threshold, one tests. A test looks better than it is on the samples that chose it.
2. The limits of the error rates hold for all thresholds together. One threshold, fixed on the
   pilot half way between the two worlds, has tighter limits of its own.
3. What the trials resample is a named game. Where all clients partition one finite data set, the
   others' updates are correlated and the attack is stronger than for independent clients.
4. Noise of the mechanism is part of every trial, exactly, through its component along the test.
5. The attacker guesses about the aggregate that the round really released, where that is known.

The claim is: there are two feasible updates of one client, the worst of those sampled and fixed
before testing, that the sum distinguishes. It is not a statement about a typical update.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from leakmeter.auditors._validate import within
from leakmeter.auditors.audited_round import AuditedRound, ResamplingAuditor, SumObserver
from leakmeter.auditors.auditor import Project, few_clients
from leakmeter.auditors.bounds.anytime import Anytime, AnytimeBound
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.likelihood_ratio.findings import Judge
from leakmeter.auditors.likelihood_ratio.game import ConstantSumError, Duel, Effort, duel
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampler import RoundSampler
from leakmeter.auditors.sampling.row_store import check_room

_log = logging.getLogger("flwr")


class LikelihoodRatio(ResamplingAuditor):
    """Let the server guess which of two updates of a client is in the sum.

    Args:
        sampler: Draws fresh updates, and names the game; a function of the round where the
            clients' mechanism changes.
        target: Client under attack; None draws one of the round's clients. A round without the
            target is not audited.
        every: Rounds between two audits; 0 audits the first only, as the paper does, and -1
            rounds 1, 2, 4, 8, … and the last.
        effort: How many draws go into each stage, and at which further initial models.
        observer: "server" sees the sum before server noise, "outsider" after it. Both know who
            takes part in the round.
        delta: The delta of the bounds.
        confidence: Of each round's bound; over the run it is shared among the audited rounds.
            With `Anytime(0.95)` the rounds share nothing: bets on the trials of all of them prove
            an ε after each, and these bounds hold together.
        seed: Names all draws.
    """

    name = "likelihood-ratio"
    # The server knows the model and who takes part, and sees the sum. The truth makes the
    # candidate of the guess and subtracts what canary seats have sent; it scores nothing.
    reads = frozenset({"sent", "replies", "facts", "truth"})
    optional = MappingProxyType({"truth": "the guess about the sum that was really released"})
    wants_truth = True

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        target: int | None = None,
        every: int = 0,
        effort: Effort = Effort(),  # noqa: B008 - a frozen value
        observer: SumObserver = "server",
        delta: float = 1e-5,
        confidence: float | Anytime = 0.95,
        seed: int = 0,
    ) -> None:
        super().__init__(sampler, every=every, observer=observer)
        within("delta", delta, above=0.0, below=1.0)
        if target is not None and target < 0:
            raise ValueError(f"target must be a client, 0 or more, or None, got {target}")
        self.target, self.effort, self.seed = target, effort, seed
        self.further_audits = len(effort.models)
        self.delta, self.confidence = delta, Anytime.level(confidence)
        self._is_anytime = isinstance(confidence, Anytime)
        self._judge = Judge(self.name, observer, delta, seed, self.confidence)
        self._played: list[dict[str, Any]] = []
        self._bets: AnytimeBound | None = None
        self._repeated: dict[str, Any] | None = None  # the first audited round at other models
        self._constant: dict[str, Any] | None = None  # the first round in which nothing hid anyone

    @property
    def is_anytime(self) -> bool:
        """Whether it bets after every round."""
        return self._is_anytime

    def begin(self, dim: int, num_rounds: int) -> None:
        """Count the rounds that will be audited: they share the run's confidence."""
        if wrong := [np.shape(m) for m in self.effort.models if np.shape(m) != (dim,)]:
            raise ValueError(f"models must have the shape ({dim},), got {wrong[0]}")
        self._played, self._repeated, self._constant = [], None, None
        if self._is_anytime:
            self._bets = AnytimeBound(delta=self.delta, confidence=self.confidence)
        super().begin(dim, num_rounds)

    def limits(self, project: Project) -> Sequence[str]:
        """Say where updates cannot be resampled or stored, or too few clients hide one another."""
        said = list(super().limits(project))
        if few := few_clients(project, 2, "a sum hides a client only among others; not audited"):
            return said + few
        if project.honest is not None:
            check_room(self.effort.file_bytes(project.honest - 1, project.dim))
        then = "its Gaussian approximation is poor for so few; the lower bound holds"
        return said + few_clients(project, 4, then)

    def updates_drawn(self, honest: int, dim: int) -> int:
        """Return how many updates a game samples."""
        return self.effort.updates(honest - 1, dim)

    def truth_of(self, server_round: int, honest: Sequence[int]) -> Collection[int]:
        """Return the target, if the round is audited."""
        if server_round not in self._due:
            return ()
        target = self.target_among(honest, server_round)
        return () if target is None else (target,)

    def target_among(self, honest: Sequence[int], server_round: int) -> int | None:
        """Return the client under attack in this round."""
        if self.target is not None:
            return self.target if self.target in honest else None
        if not honest:
            return None
        return int(stream(self.seed, "likelihood-ratio", "target", server_round).choice(honest))

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Let the server guess which of two updates of the target is in the sum."""
        target, others = audited.target, audited.others
        if target is None or not others:
            _log.warning(
                "round %d: no client to audit among %s", audited.server_round, audited.honest
            )
            return ()
        integers = {"has_integers": True} if audited.has_integers else {}
        judge = self._judge.of_round(
            audited.server_round, audited.game, target, len(others), **integers
        )
        where: dict[str, Any] = {
            "round": audited.server_round,
            "game": audited.game,
            "target": target,
            "others": len(others),
            **integers,
        }
        names = ("likelihood-ratio", self.seed, audited.server_round)
        try:
            played = duel(audited, effort=self.effort, stream=names)
        except ConstantSumError as error:
            if error.moved:
                _log.warning("round %d: %s; not audited", audited.server_round, error)
                return ()
            is_rounded = bool(audited.facts.quantum)
            constant = where | {"draws": error.draws, "is_rounded": is_rounded}
            self._constant = self._constant or constant
            return [judge.constant(error.draws, is_rounded=is_rounded)]
        self._played.append(where | _kept(played))
        seen = audited.seen_sum()
        found = [*self._bet(played, judge), *judge.claims(played), *judge.guess(played, seen)]
        if self.effort.models and self._repeated is None:
            self._repeat(audited, where)
            found += [replace(f, server_round=audited.server_round) for f in self._over_models()]
        return found

    def report(self) -> Sequence[Finding]:
        """Return the largest bound of the audited rounds, or what all bets together prove.

        Rounds in which nothing hid the target have no bound; the first of them is reported too.
        """
        found = () if self._constant is None else (self._judge.constant_of_run(self._constant),)
        if not self._played:
            return found
        # Bonferroni over the planned rounds: the largest of n bounds fails if any of them does. A
        # run that was cut short has looked less often than planned, which costs power only.
        shared = 1 - (1 - self.confidence) / max(len(self._due), len(self._played))
        largest = self._judge.of_run(self._played, shared)
        if self._bets is not None:
            has_integers = any(p.get("has_integers") for p in self._played)
            judge = replace(self._judge, has_integers=has_integers)
            largest = judge.so_far(self._bets.bound(), len(self._played), largest)
        return [largest, *self._over_models(), *found]

    def state(self) -> dict[str, Any]:
        """Return the scores of the audited rounds, and the first round in which nothing varied."""
        return {
            "played": [dict(p) for p in self._played],
            "repeated": self._repeated,
            "constant": self._constant,
            "bets": None if self._bets is None else self._bets.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._played = [_restored(p) for p in state["played"]]
        repeated = state.get("repeated")
        if repeated is not None:
            repeated = {**repeated, "games": [_restored(p) for p in repeated["games"]]}
        self._repeated, self._constant = repeated, state.get("constant")
        if self._bets is not None:
            self._bets.restore(state["bets"])

    def _bet(self, played: Duel, judge: Judge) -> list[Finding]:
        """Bet on the trials of a round, and return what all bets so far prove."""
        if self._bets is None:
            return []
        if played.shift > 0:  # else the pair is no pair, and there is nothing to bet on
            self._bets.add_trials(*played.ratios())
        return [judge.so_far(self._bets.bound(), len(self._played))]

    def _repeat(self, audited: AuditedRound, where: Mapping[str, Any]) -> None:
        """Play the round's game at the further initial models."""
        games, constant = [], 0
        for index, model in enumerate(self.effort.models):
            names = ("likelihood-ratio", self.seed, audited.server_round, "model", index)
            other = audited.at(np.asarray(model, dtype=np.float64))
            try:
                games.append(_kept(duel(other, effort=self.effort, stream=names)))
            except ConstantSumError:
                constant += 1
        self._repeated = {"where": dict(where), "games": games, "constant": constant}

    def _over_models(self) -> list[Finding]:
        """Return the largest bound over the initial models and their spread, if asked for."""
        if self._repeated is None:
            return []
        first = next(p for p in self._played if p["round"] == self._repeated["where"]["round"])
        games = [first, *self._repeated["games"]]
        where, constant = self._repeated["where"], int(self._repeated["constant"])
        return [self._judge.over_models(games, where, constant)]


def _kept(played: Duel) -> dict[str, Any]:
    """Return what a bound needs of a played game."""
    return {"shift": played.shift, "middle": played.middle, "scores": played.scores}


def _restored(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kept game with its scores as an array."""
    return {**kept, "scores": np.asarray(kept["scores"], dtype=np.float64)}
