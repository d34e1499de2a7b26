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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import Auditor, Canary, Project, RoundView
from leakmeter.auditors.bounds.one_run import FEW, SHARES, headline
from leakmeter.auditors.canaries.canary_auditor import (
    CanaryAuditor,
    CanaryScores,
    histogram,
    without_refuted,
)
from leakmeter.auditors.canaries.transcript import RowFile, Rows, Scores, check_room, file_size
from leakmeter.auditors.canary_draws import BLOCK, CanaryBlocks, DrawnCanaries
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Detail, Finding, ThreatModel
from leakmeter.auditors.values import Vector
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
    _replies: Kept[SeatReplies]
    _lean: Kept[Lean]
    _is_masked: Kept[bool]
    _num_rounds = 0

    def join(self, others: Sequence[Auditor]) -> None:
        """Look for the canaries of another auditor, if one plays some."""
        players = (one for one in others if isinstance(one, CanaryAuditor))
        plans = (one.plan for one in players if not isinstance(one, SingleUpdates))
        self._plan = next(plans, self._own_plan)
        if self._is_guest:
            self._plan.drawn = self._plan.drawn or DrawnCanaries()
        self.num_bounds = self._bounds_wanted()

    def _bounds_wanted(self) -> int:
        """Return how many bounds are planned, as far as the claims are known."""
        return len(self._planned)

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
        self._replies = SeatReplies(dim, self._file("replies"))
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
        return said + plan.seat_limits(project, has_fits=False)

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
        if self._dim:
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


DIRECTIONS: Final = 3  # a reply, that less the client's last one, that less another client's
KEPT_CLIENTS: Final = 32  # clients whose last reply as a seat is kept, in a file
_SHORTEST, _LONGEST = 1e-30, 1e30  # norms that single precision can keep
_FULL: Final = 0.1  # a reply is of full length from this share of the length of canaries on
_ALONG: Final = 5.0  # standard deviations from which on replies point along a nudge


class Seat(NamedTuple):
    """A seat whose reply is a direction.

    Attributes:
        client: Who sits there.
        update: What came of it.
        length: L2 norm of that.
        another: The update of another client of the round; None if there is none.
    """

    client: int
    update: Vector
    length: float
    another: Vector | None


class SeatReplies(Resumable):
    """The replies of seats, of which the last of each client is kept in a file.

    Args:
        dim: Length of an update.
        path: The file; None takes a temporary one.

    Attributes:
        has_hidden: Whether any reply was no plain update: masked, or packed.
    """

    has_hidden: Kept[bool]
    _rows: Kept[KeptRows]

    def __init__(self, dim: int, path: Path | None) -> None:
        self._dim, self.has_hidden = dim, False
        self._rows = KeptRows(dim, path)

    def seats(self, view: RoundView, seats: Sequence[int]) -> Iterator[Seat]:
        """Yield the seats of a round whose reply is a direction, one after the other.

        Another client is the next seat that has a direction, or one without a canary.
        """
        self._rows.begin_round()
        reply = self._reader(view)
        beside = [client for client in sorted(view.replies) if client not in seats]
        for place, client in enumerate(seats):
            if client in view.replies and (own := reply(client)) is not None:
                later = [*seats[place + 1 :], *seats[:place], *beside]
                found = (reply(one) for one in later if one in view.replies)
                another = next((one for one in found if one is not None), None)
                length = float(np.linalg.norm(own))
                yield Seat(client, own, length, another)
        self._rows.end_round()

    def _reader(self, view: RoundView) -> Callable[[int], Vector | None]:
        """Return what gives the update of a client; None for what is no direction."""

        @lru_cache(maxsize=2)  # that of a seat, and of the next
        def reply(client: int) -> Vector | None:
            update = view.replies[client]
            if update.shape != (self._dim,):
                self.has_hidden = True
                return None
            return update if 0 < float(update @ update) < math.inf else None

        return reply

    def cosines(self, drawn: CanaryBlocks, seat: Seat, total: str | None) -> NDArray[np.float64]:
        """Return the cosines of a canary with the directions of its seat; NaN for undefined ones.

        Args:
            drawn: The canary.
            seat: Where it sits in this round.
            total: Name of the sum of all replies of this canary, each of length 1, which is one
                direction more; None without it.
        """
        cosines, lengths = drawn.cosines(self._blocks(seat, total))
        if total is not None:
            self._rows.note(total, float(lengths[DIRECTIONS]))
        return cosines

    def _blocks(self, seat: Seat, total: str | None) -> Iterator[list[Vector]]:
        """Yield the directions by blocks; zeros where there is none."""
        before, kept = f"client-{seat.client}", self._rows.names
        rows = np.zeros((DIRECTIONS, min(BLOCK, self._dim)))
        short = np.zeros(rows.shape[1], np.float32)
        for start in range(0, self._dim, BLOCK):
            part = seat.update[start : start + BLOCK]
            last, other, summed = rows[:, : part.size]
            old = short[: part.size]
            if before in kept:
                self._rows.read(before, start, old)
                np.subtract(part, old, out=last)
            if seat.another is not None:
                np.subtract(part, seat.another[start : start + BLOCK], out=other)
            if total is None:
                yield [part, last, other]
                continue
            old[:] = 0.0
            if total in kept:
                self._rows.read(total, start, old)
            # Look at the sum as it is stored: the null is then exact to the last digit.
            old[:] = old + part / seat.length
            self._rows.write(total, start, old)
            summed[:] = old
            yield [part, last, other, summed]

    def keep(self, seat: Seat) -> None:
        """Keep a reply for the client's next one; of many clients, those who came last."""
        name, short = f"client-{seat.client}", np.empty(min(BLOCK, self._dim), np.float32)
        if not _SHORTEST < seat.length < _LONGEST:
            self.forget(name)
            return
        for start in range(0, self._dim, BLOCK):
            part = seat.update[start : start + BLOCK]
            short[: part.size] = part
            self._rows.write(name, start, short[: part.size])
        self._rows.note(name, seat.length)
        clients = [one for one in self._rows.names if one.startswith("client-")]
        for oldest in clients[:-KEPT_CLIENTS]:
            self.forget(oldest)

    def forget(self, name: str) -> None:
        """Forget a reply, or a sum of replies."""
        self._rows.drop(name)

    def close(self) -> None:
        """Delete the file."""
        self._rows.close()


class Lean(Resumable):
    """Whether replies of seats that send nothing are full updates along their nudge.

    Such a seat moves the first coordinate by a rounding step, so its reply is that short, or noise.
    Where a mod scales every update to one norm, it is a full update. Noise that comes again, in
    other rounds or from other clients, counts once.
    """

    _lengths: Kept[list[float]]  # summed over replies: of canaries that are out, that are in
    _counts: Kept[list[int]]
    _along: Kept[set[str]]  # share of the former along the nudge, in three digits

    def __init__(self) -> None:
        self._lengths, self._counts, self._along = [0.0, 0.0], [0, 0], set()

    def add(self, seat: Seat, *, is_in: bool) -> None:
        """Look at the reply of a seat."""
        self._lengths[is_in] += seat.length
        self._counts[is_in] += 1
        if not is_in:
            self._along.add(f"{float(seat.update[0]) / seat.length:.3g}")

    def is_along(self, dim: int) -> bool:
        """Whether they are, with updates of this length."""
        if not all(self._counts):
            return False
        out, in_ = (s / n for s, n in zip(self._lengths, self._counts, strict=True))
        # Of noise alone, each share has mean 0 and standard deviation 1/√d.
        total = math.sqrt(dim) * math.fsum(map(float, self._along))
        return out > _FULL * in_ and total > _ALONG * math.sqrt(len(self._along))


@dataclass(frozen=True)
class KeptRow:
    """A row that counts: its name, its place in the file and its L2 norm."""

    name: str
    place: int
    length: float


class KeptRows(RowFile):
    """Rows by name, of which the last that was written under a name counts.

    Within a round nothing is overwritten that counted when it began: an interrupted round leaves
    the rows of the last checkpoint as they were. Memory does not depend on their number.
    """

    what = "the replies of seats"
    counted = ("", "kept row")
    same = 1e-5  # norms are those of rows in double precision

    _kept: Kept[list[KeptRow]]  # in the order in which they were written

    def __init__(self, dim: int, path: Path | None) -> None:
        super().__init__(dim, path)
        self._kept = []
        self._free: list[int] = []
        self._writing: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """Names of the rows that count, the one that was written first in front."""
        return [row.name for row in self._kept]

    def begin_round(self) -> None:
        """Free the places of rows that do not count any more."""
        used = {row.place for row in self._kept}
        self._free = sorted(set(range(max(used, default=-1) + 1)) - used, reverse=True)
        self._writing.clear()

    def end_round(self) -> None:
        """Wait until the rows of this round are on disk."""
        self._sync()

    def read(self, name: str, start: int, into: Rows) -> None:
        """Read a part of the row of a name."""
        self._read(self._row(name).place, start, into)

    def write(self, name: str, start: int, part: Rows) -> None:
        """Write a part of the next row of a name; it counts from `note` on."""
        if name not in self._writing:
            taken = {row.place for row in self._kept} | set(self._writing.values())
            free = self._free.pop() if self._free else max(taken, default=-1) + 1
            self._writing[name] = free
        self._write(self._writing[name], start, part)

    def note(self, name: str, length: float) -> None:
        """Let the row that was written count under its name."""
        self.drop(name)
        self._kept.append(KeptRow(name, self._writing.pop(name), length))

    def drop(self, name: str) -> None:
        """Forget the row of a name, if there is one."""
        self._kept = [row for row in self._kept if row.name != name]

    def _counted(self) -> list[tuple[int, float]]:
        return [(row.place, row.length) for row in self._kept]

    def close(self) -> None:
        """Delete the file and with it the rows."""
        super().close()
        self._kept = []

    def _row(self, name: str) -> KeptRow:
        return next(row for row in self._kept if row.name == name)
