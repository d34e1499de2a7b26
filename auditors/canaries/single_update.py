"""What a server learns that sees every single update: canaries searched for in their own replies.

Local noise, and every app without secure aggregation, releases each client's reply to the server.
A seat plays its canary by a fair coin, through the client's own mods, and the server looks at what
it gets. Ours, after Andrew et al. 2024 (arXiv:2302.03098), who look at released models:

1. The score of a canary is the largest of three cosines, with directions that come from the
   transcript alone and are fixed beforehand: the reply of its seat, that less the client's previous
   one, that less the reply of another seat. Noise that repeats over rounds or clients hides a
   canary in the first and is gone in a difference. The union bound pays for the choice.
2. The null is that of a canary against any fixed direction. It is exact whatever mods do to a
   reply: noise, clipping, rounding. An undefined cosine has p = 1.
3. Over several rounds, the sum of a canary's cosines has the null of one canary against the sum of
   its replies of unit length.

Someone on the wire sees the same replies, unless the connection is encrypted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import Auditor, Canary, Project, RoundView
from leakmeter.auditors.bounds.one_run import FEW, SHARES, headline
from leakmeter.auditors.canaries.canary_auditor import CanaryAuditor
from leakmeter.auditors.canaries.changes import KeptRows, check_room, file_size
from leakmeter.auditors.canaries.plan import (
    CanaryPlan,
    Excluded,
    Include,
    Repetitions,
    Seats,
    seat_limitations,
)
from leakmeter.auditors.canaries.replies import DIRECTIONS, KEPT_CLIENTS, Lean, Replies, Seat
from leakmeter.auditors.canaries.scores import (
    CanaryScores,
    Scores,
    histogram,
    without_refuted,
)
from leakmeter.auditors.canary_draws import CanaryBlocks, DrawnCanaries, Kind
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Detail, Finding, ThreatModel
from leakmeter.auditors.verdict.claim import Question
from leakmeter.auditors.wording import Assumption

_DELTA_PAYS: Final = 4  # δ may take a quarter of a bound's failures, or a half without coins
_MASKED: Final = (
    "clients mask their updates, so the server sees none of them alone and there is nothing to "
    "measure here; one-shot and likelihood-ratio look at what it sees"
)
_HIDDEN: Final = (
    "the replies of all seats are no plain updates, so there was nothing to see: a mod masks or "
    "packs them; one-shot looks at the models that come of them"
)
_NORMALISED: Final = (
    "seats that were told to send nothing send a full update along the rounding step that stands "
    "for nothing: a mod scales every update to one norm. So the numbers are about two updates "
    "(adjacency replace), not about an update and none; use excluded='full', where the second is "
    "random as well"
)


class _Asked(NamedTuple):
    """A bound that is planned: from all rounds of a canary or from its first, and at which δ."""

    all_rounds: bool
    delta: float


class SingleUpdates(CanaryAuditor):
    """Searches for canaries in the single updates that the server receives.

    Where `OneShotCanaries` is among the auditors, it looks for the canaries that are played for
    that one: there are no further seats, and the settings of the plan (seats, canaries,
    repetitions, include, excluded, seed, kind) are those of the other.

    Args:
        seats: Clients per round that play a canary in place of their update. "auto" takes one in
            five of the first cohort that has three clients or more, so that most stay honest.
        canaries: How many canaries; None fills all seats of all rounds.
        repetitions: In how many rounds each canary plays, "auto" as for `OneShotCanaries`. With
            several there is a second bound, on what all of them show together.
        delta: The delta of every epsilon. Claims about the server with a larger one get bounds of
            their own, at their delta.
        confidence: Confidence of each single lower bound.
        include: "coin" leaves each canary out with probability 1/2; "all" plays all of them; "auto"
            plays all if there are fewer than ten, else takes coins.
        excluded: What the seat of a canary that is out sends: "zero" (zero-out adjacency), its own
            "honest" update, or a "full" one, which is another random vector of the same norm
            (replace adjacency), for clients whose mods scale every update to one norm.
        seed: Seed of canaries, coins and seats.
        client_rounds: Rounds that a client takes part in, which findings set canaries against; None
            takes what the first cohort shows, with seats="auto".
        kind: How canaries are drawn: uniform on the "sphere", or of random "signs"; "auto" as for
            `OneShotCanaries`.
    """

    name = "single-update"
    reads = frozenset({"replies", "sent", "instructed"})
    wants_mean = False

    _first: Kept[NDArray[np.int64]]  # first round with an order for each canary, 0 before
    _log_p: Kept[Scores]  # ln of its p-value in that round
    _cosines: Kept[Scores]  # with the reply itself in that round; NaN where that is undefined
    _together: Kept[Scores]  # with the sum of its replies of unit length; NaN before the first
    _replies: Kept[Replies]
    _lean: Kept[Lean]
    _is_masked: Kept[bool]

    def __init__(
        self,
        *,
        seats: Seats = "auto",
        canaries: int | None = None,
        repetitions: Repetitions = "auto",
        delta: float = 1e-5,
        confidence: float = 0.95,
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
        super().__init__(plan, delta=delta, confidence=confidence)
        self._own_plan, self._num_rounds = plan, 0
        self._replies = Replies(0, None)
        self.num_bounds = len(self._planned)

    def join(self, others: Sequence[Auditor]) -> None:
        """Look for the canaries of another auditor, if one plays some."""
        players = (one for one in others if isinstance(one, CanaryAuditor))
        plans = (one.plan for one in players if not isinstance(one, SingleUpdates))
        self._plan = next(plans, self._own_plan)
        if self._is_guest:
            self._plan.drawn = self._plan.drawn or DrawnCanaries()
        self.num_bounds = len(self._planned)

    @property
    def _is_guest(self) -> bool:
        """Whether the canaries are another auditor's."""
        return self._plan is not self._own_plan

    @property
    def _planned(self) -> list[_Asked]:
        """The bounds without a condition that share the confidence: known before the run begins."""
        ours = Question("client", self._plan.world[0])
        tested = [
            claim
            for claim in self.claims
            if claim.against == "server"
            and claim.delta > self.delta
            and ours.is_implied_by(Question(claim.unit, claim.adjacency))
        ]
        first = [self.delta, *sorted({claim.delta for claim in tested})]
        every = [self.delta, *sorted({claim.delta for claim in tested if claim.per == "run"})]
        found = [_Asked(False, delta) for delta in first]
        return found + [_Asked(True, delta) for delta in every if self._plan.repeats]

    def begin(self, dim: int, num_rounds: int) -> None:
        """Plan which canary plays in which round, whatever node will play it."""
        self._num_rounds = num_rounds
        self._replies = Replies(dim, self._file("replies"))
        self._lean, self._is_masked = Lean(), False
        super().begin(dim, num_rounds)

    def _settle(self) -> None:
        """Know nothing of any canary."""
        super()._settle()
        self._first, self._log_p = np.zeros(self._k, dtype=np.int64), np.zeros(self._k)
        self._cosines, self._together = np.full(self._k, np.nan), np.full(self._k, np.nan)

    def limits(self, project: Project) -> Sequence[str]:
        """Return that masks leave nothing to see, or where there are too few canaries or clients.

        Raises:
            UnableError: The disk has no room for the replies of seats.
        """
        self._is_masked |= project.is_masked
        if self._is_masked:
            return [_MASKED]
        sums = self._k if self._plan.repeats else 0
        rows = KEPT_CLIENTS + 2 * self._plan.seated + sums
        check_room(self._file("replies"), file_size(project.dim, rows), KeptRows.what)
        if self._is_guest:
            return []
        said, plan = self._plan.limits(project), self._plan
        if not plan.seated:
            return said
        included = self._k // 2 if plan.has_coins else self._k
        counts = {"canaries": self._k, "included": included, "seats": plan.seated}
        return said + seat_limitations(project, **counts, has_fits=False)

    @property
    def canaries_played(self) -> tuple[int, int] | None:
        """Canaries that took part, of how many planned; None if they are another auditor's."""
        return None if self._is_guest or self._is_masked else super().canaries_played

    @property
    def unplayed(self) -> str | None:
        """Why no canary has taken part; None if one has, or if another auditor says it."""
        if self.canaries_played is None or self._played.any():
            return None
        return self._plan.unplayed or (
            "no seat delivered one: its clients failed, refused, lack canary_mod or could not tell "
            "what they send"
        )

    @property
    def noticed(self) -> Sequence[str]:
        """What replies have shown: that they are no plain updates, or all of one norm."""
        said = [_HIDDEN] if self._replies.has_hidden and not self._has_seen else []
        return [*said, *([_NORMALISED] if self._is_normalised else [])]

    @property
    def _has_seen(self) -> bool:
        """Whether the reply of any canary's seat could be looked at."""
        return bool(np.isfinite(self._cosines).any())

    @property
    def _is_normalised(self) -> bool:
        return self._plan.excluded == "zero" and self._lean.is_along(self._dim)

    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        """Give this round's canaries to clients, unless another auditor has done so."""
        if self._is_masked:
            return {}
        orders = super().instruct(server_round, chosen)
        # A seat that fails now has p = 1 for good: otherwise a run could choose its samples.
        now = list(self._plan.seating(server_round).values())
        self._first[now] = np.where(self._first[now] > 0, self._first[now], server_round)
        return orders

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Look for the canaries of this round in the replies of their seats."""
        if self._is_masked:
            return ()
        self._played[self._plan.played(view)] += 1
        seating = self._plan.seating(view.server_round)
        with np.errstate(over="ignore", invalid="ignore"):  # a client may send anything
            for seat in self._replies.seats(view, sorted(seating)):
                canary = seating[seat.client]
                is_in = bool(self._plan.included[canary])
                if seat.client in view.instructed:
                    self._lean.add(seat, is_in=is_in)
                if is_in:
                    self._look(canary, seat, view.server_round)
                if view.server_round < self._num_rounds:
                    self._replies.keep(seat)
        return ()

    def _look(self, canary: int, seat: Seat, server_round: int) -> None:
        """Compute the cosines of a canary that is in with the directions of this round."""
        plan = self._plan
        drawn = CanaryBlocks(plan.canary_seed, [canary], plan.drawn, self._dim, plan.drawn_as)
        total = f"canary-{canary}" if plan.repetitions > 1 else None
        cosines = self._replies.cosines(drawn, seat, total)
        if total is not None:
            self._together[canary] = cosines[DIRECTIONS]
            if self._played[canary] == plan.repetitions:
                self._replies.forget(total)
        if self._first[canary] == server_round:
            self._cosines[canary] = cosines[0]
            found = cosines[:DIRECTIONS]
            tails = plan.null.logsf(found[np.isfinite(found)], self._dim)
            self._log_p[canary] = min(math.log(DIRECTIONS) + tails.min(initial=0.0), 0.0)

    def report(self) -> Sequence[Finding]:
        """Return what one round of a client shows, and what all its rounds show together."""
        if self._is_masked or not self._k:
            return []
        if not self._has_seen:  # "at least 0" would sound as if the audit had searched
            is_said = self._is_guest or self._replies.has_hidden
            return [] if is_said else [self._nobody(self._claims(1))]
        seen = self._cosines[np.isfinite(self._cosines)]
        together = np.isfinite(self._together)
        log_p_all = np.zeros(self._k)
        log_p_all[together] = self._plan.null.logsf(self._together[together], self._dim)
        drawn = {
            False: (self._drawn(seen),),
            True: (self._drawn(self._together[together]),) if together.any() else (),
        }
        found = []
        for asked in self._planned:
            log_p = log_p_all if asked.all_rounds else self._log_p
            details = drawn[asked.all_rounds] if asked.delta == self.delta else ()
            found.append(self._proven(asked, log_p, details))
        first, *others = found
        estimates = self._from_cosines(seen, self._claims(1), ("known",))
        return [*without_refuted([*first, *estimates]), *itertools.chain(*others)]

    def close(self) -> None:
        """Delete the file with replies of seats."""
        self._replies.close()

    def _drawn(self, cosines: Scores) -> Detail:
        """Return the cosines of canaries that took part for a figure, beside their null."""
        return histogram(CanaryScores(cosines, np.empty(0)), self._dim)

    def _proven(self, asked: _Asked, log_p: Scores, details: tuple[Detail, ...]) -> list[Finding]:
        """Return the ε that p-values prove; nothing if no coin let a canary take part."""
        used, has_coins = self._used(asked.delta)
        is_in, log_p = self._plan.included[used], log_p[used]
        if not is_in.any():
            return []
        # The bound does not need scores of canaries that are out. They count as the best, so that
        # no guess of a coin is right because of them.
        scores = np.where(is_in, -log_p, np.inf)
        bound, facts = headline(
            scores,
            is_in,
            log_p,
            delta=asked.delta,
            confidence=self.confidence,
            guesses=1 if has_coins else None,
        )
        rounds = self._plan.repetitions if asked.all_rounds else 1
        how = "replies of all its rounds added" if asked.all_rounds else "best of 3 directions"
        claims = self._claims(rounds, asked.delta)
        bound = replace(self._assuming(claims, bound), rule=f"{bound.rule}, {how}")
        facts |= self._power(is_in.size, 1 if asked.all_rounds else DIRECTIONS)
        return [claims.finding(bound, facts, details)]

    def _used(self, delta: float) -> tuple[NDArray[np.intp], bool]:
        """Return which canaries a bound at δ is made from, and whether by their coins.

        It pays δ for every coin, or for every share of canaries that it tests. So at a large δ it
        takes the first few canaries, which does not depend on what they show.
        """
        affordable = int((1 - self.confidence) / (_DELTA_PAYS * delta))
        if self._plan.has_coins and affordable >= FEW:
            return np.arange(min(affordable, self._k)), True
        inside = np.flatnonzero(self._plan.included)
        if affordable >= len(SHARES):
            return inside, False
        shares = {n: len({math.ceil(share * n) for share in SHARES}) for n in range(1, FEW)}
        return inside[: max((n for n in shares if shares[n] <= affordable), default=1)], False

    def _claims(self, rounds: int, delta: float | None = None) -> Claims:
        """Return what makes findings about a server that sees a canary's seat so many times."""
        adjacency, assumed = self._plan.world
        if self._is_normalised:
            adjacency, assumed = "replace", Assumption.SEAT_SENDS_OTHER
        attacker = ThreatModel(
            observer="server",
            sees="updates",
            holds="canary",
            knows_cohort=True,
            participations=rounds,
        )
        return Claims(
            self.name,
            attacker,
            self.delta if delta is None else delta,
            self.confidence,
            adjacency,
            seed=self._plan.seed,
            assumptions=(assumed,),
        )
