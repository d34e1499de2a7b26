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
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from leakmeter.auditors.audited_round import (
    SEES,
    AuditedRound,
    Claims,
    ResamplingAuditor,
    SumObserver,
    Trials,
)
from leakmeter.auditors.auditor import Project, few_clients
from leakmeter.auditors.bounds.anytime import Anytime, AnytimeBound
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.likelihood_ratio.findings import (
    AttackedRound,
    ConstantRound,
    guess,
    of_round,
    over_models,
)
from leakmeter.auditors.likelihood_ratio.game import (
    ConstantSumError,
    PlayedGame,
    SampleBudget,
    play_game,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import RoundSampler, check_room
from leakmeter.auditors.values import within
from leakmeter.auditors.wording import Assumption

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
        budget: How many draws go into each stage, and at which further initial models.
        observer: "server" sees the sum before server noise, "outsider" after it. Both know who
            takes part in the round.
        delta: The delta of the bounds.
        confidence: Of each round's bound; over the run it is shared among the audited rounds.
            With `Anytime(0.95)` the rounds share nothing: bets on the trials of all of them prove
            an ε after each, and these bounds hold together.
        seed: Names all draws.
    """

    name = "likelihood-ratio"
    num_bounds = 1
    # The server knows the model and who takes part, and sees the sum. The truth makes the
    # candidate of the guess and subtracts what canary seats have sent; it scores nothing.
    reads = frozenset({"sent", "replies", "facts", "truth"})
    optional = MappingProxyType({"truth": "the guess about the sum that was really released"})
    wants_truth = True

    _played: Kept[list[tuple[AttackedRound, Trials]]]
    _bets: Kept[AnytimeBound | None]
    # The first audited round at other models, and at how many of them nothing varied.
    _repeated: Kept[tuple[list[Trials], int] | None]
    _constant: Kept[ConstantRound | None]  # the first round in which nothing hid the target

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        target: int | None = None,
        every: int = 0,
        budget: SampleBudget = SampleBudget(),  # noqa: B008 - a frozen value
        observer: SumObserver = "server",
        delta: float = 1e-5,
        confidence: float | Anytime = 0.95,
        seed: int = 0,
    ) -> None:
        super().__init__(sampler, every=every, observer=observer)
        within("delta", delta, above=0.0, below=1.0)
        if target is not None and target < 0:
            raise ValueError(f"target must be a client, 0 or more, or None, got {target}")
        self.target, self.budget, self.seed = target, budget, seed
        self.further_audits = len(budget.models)
        self.delta, self.confidence = delta, Anytime.level(confidence)
        self._is_anytime = isinstance(confidence, Anytime)
        self._played, self._bets, self._repeated, self._constant = [], None, None, None

    @property
    def is_anytime(self) -> bool:
        """Whether it bets after every round."""
        return self._is_anytime

    def begin(self, dim: int, num_rounds: int) -> None:
        """Count the rounds that will be audited: they share the run's confidence."""
        if wrong := [np.shape(m) for m in self.budget.models if np.shape(m) != (dim,)]:
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
            check_room(self.budget.file_bytes(project.honest - 1, project.dim))
        then = "its Gaussian approximation is poor for so few; the lower bound holds"
        return said + few_clients(project, 4, then)

    def updates_drawn(self, honest: int, dim: int) -> int:
        """Return how many updates a game samples."""
        return self.budget.updates(honest - 1, dim)

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
        server_round = audited.server_round
        if audited.target is None or not audited.others:
            _log.warning("round %d: no client to audit among %s", server_round, audited.honest)
            return ()
        where = AttackedRound.of(audited)
        claims, names = self._claims(where, server_round), (self.name, self.seed, server_round)
        try:
            played = play_game(audited, budget=self.budget, stream=names)
        except ConstantSumError as error:
            if error.moved:
                _log.warning("round %d: %s; not audited", server_round, error)
                return ()
            constant = ConstantRound(where, error.draws, bool(audited.facts.quantum))
            self._constant = self._constant or constant
            return [constant.finding(claims)]
        self._played.append((where, played.trials))
        found = [
            *self._bet(claims, where, played),
            *of_round(claims, where, played),
            *guess(claims, where, played, audited.seen_sum()),
        ]
        if self.budget.models and self._repeated is None:
            self._repeated = self._repeat(audited)
            found += self._over_models(server_round)
        return found

    def report(self) -> Sequence[Finding]:
        """Return the largest bound of the audited rounds, or what all bets together prove.

        Rounds in which nothing hid the target have no bound; the first of them is reported too.
        """
        constant = self._constant
        found = [] if constant is None else [constant.finding(self._claims(constant.where))]
        if not self._played:
            return found
        return [self._of_run(), *self._over_models(), *found]

    def _claims(self, where: AttackedRound, server_round: int | None = None) -> Claims:
        """Return what makes findings about a round, or about the run if no round is given."""
        return Claims(
            self.name,
            ThreatModel(
                observer=self.observer,
                sees=SEES[self.observer],
                holds="two updates",
                knows_cohort=True,
                game=where.game,
            ),
            self.delta,
            self.confidence,
            server_round=server_round,
            seed=self.seed,
            assumptions=_assumed(where.has_integers),
        )

    def _of_run(self) -> Finding:
        """Return the largest bound of all audited rounds, or what bets on all of them prove."""
        played, claims = [one for _, one in self._played], self._claims(self._played[0][0])
        # A run that was cut short has looked less often than planned, which costs power only.
        looks = max(len(self._due), len(played))
        best, bound = claims.largest(played, looks)
        where, trials = self._played[best]
        claims = self._claims(where)
        curve = trials.curve(claims.shared(looks), where.server_round)
        audited = {"audited rounds": len(played)}
        if self._bets is not None:
            assumed = _assumed(any(one.has_integers for one, _ in self._played))
            claims = replace(claims, assumptions=assumed)
            return claims.finding(claims.assuming(self._bets.bound()), audited, (curve,))
        if len(played) > 1:
            rule = (
                f"{bound.rule}; largest of {len(played)} audited rounds, which share the confidence"
            )
            bound = replace(bound, rule=rule)
        facts = {**where.facts, "audited round": where.server_round, **audited}
        return claims.finding(bound, facts, (curve,))

    def _bet(self, claims: Claims, where: AttackedRound, played: PlayedGame) -> list[Finding]:
        """Bet on the trials of a round, and return what all bets so far prove.

        If every audited round is (ε, δ)-DP, the bets gain nothing. So the bound says that the sum
        of some audited round distinguishes its two updates.
        """
        if self._bets is None:
            return []
        if played.shift > 0:  # else the pair is no pair, and there is nothing to bet on
            self._bets.add_trials(*played.ratios())
        facts = {**where.facts, "audited rounds": len(self._played)}
        return [claims.finding(claims.assuming(self._bets.bound()), facts)]

    def _repeat(self, audited: AuditedRound) -> tuple[list[Trials], int]:
        """Return the round's game at the further initial models, and where nothing varied."""
        games, constant = [], 0
        for index, model in enumerate(self.budget.models):
            names = (self.name, self.seed, audited.server_round, "model", index)
            other = audited.at(np.asarray(model, dtype=np.float64))
            try:
                games.append(play_game(other, budget=self.budget, stream=names).trials)
            except ConstantSumError:
                constant += 1
        return games, constant

    def _over_models(self, server_round: int | None = None) -> list[Finding]:
        """Return the largest bound over the initial models and their spread, if asked for."""
        if self._repeated is None:
            return []
        # The first game is the one that was repeated: in earlier rounds nothing varied.
        (where, first), (games, constant) = self._played[0], self._repeated
        return [over_models(self._claims(where, server_round), where, [first, *games], constant)]


def _assumed(has_integers: bool) -> tuple[Assumption, ...]:
    """Return what all bounds take for granted."""
    more = (Assumption.GAUSSIAN_TRIALS,) if has_integers else ()
    return (
        Assumption.FROZEN_UPDATES,
        Assumption.KNOWN_SEATS,
        Assumption.GAUSSIAN_ROUNDING,
        *more,
    )
