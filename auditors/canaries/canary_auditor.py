"""The base of auditors that play canaries: the plan they follow, and what cosines estimate.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation
for Federated Learning, arXiv:2302.03098, Algorithm 2.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, get_args
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import Auditor, Canary, Project, RoundView, UnableError
from leakmeter.auditors.bounds.anytime import Anytime
from leakmeter.auditors.bounds.gaussian import anderson_darling, epsilon_between_gaussians
from leakmeter.auditors.bounds.one_run import FEW
from leakmeter.auditors.canaries.transcript import Scores
from leakmeter.auditors.canary_draws import (
    KINDS,
    CanaryKind,
    DrawnCanaries,
    Kind,
    KindName,
    kind_for,
)
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import (
    Adjacency,
    Bound,
    Finding,
    Histogram,
    Observer,
    Sees,
    ThreatModel,
)
from leakmeter.auditors.rng import derive, stream
from leakmeter.auditors.values import require_one_of, within
from leakmeter.auditors.wording import Assumption, counted

Seats = int | Literal["auto"]
Repetitions = int | Literal["auto"]
Include = Literal["auto", "coin", "all"]
Excluded = Literal["zero", "honest", "full"]
_log = logging.getLogger("flwr")
# What the seat of a canary that is out sends: the two worlds, and what findings assume.
_WORLDS: Final[Mapping[Excluded, tuple[Adjacency, Assumption]]] = {
    "zero": ("zero-out", Assumption.SEAT_SENDS_ZERO),
    "honest": ("honest-seat", Assumption.SEAT_STAYS_HONEST),
    "full": ("replace", Assumption.SEAT_SENDS_OTHER),
}
NO_SEATS: Final = (
    "seats='auto' needs three clients in a round, so that most of them stay honest: use more "
    "clients per round, or seats=1"
)
_MIN_COHORT: Final = 3  # with one seat, honest clients are the majority
_ONE_IN: Final = 5


def seats_of(clients: int) -> int:
    """Return the seats of a cohort, such that most of it stays honest: one in five, or none.

    >>> [seats_of(n) for n in (2, 3, 9, 10, 100)]
    [0, 1, 1, 2, 20]
    """
    return 0 if clients < _MIN_COHORT else max(clients // _ONE_IN, 1)


def schedule(k: int, repetitions: int, num_rounds: int, seed: int) -> dict[int, list[int]]:
    """Return the canaries of each round: each plays `repetitions` times, at most once a round.

    A round takes those with most repetitions left, so that the rest stays playable; ties are
    broken at random.
    """
    left = np.full(k, repetitions)
    total = k * repetitions
    plan = {}
    for server_round in range(1, num_rounds + 1):
        take = total * server_round // num_rounds - total * (server_round - 1) // num_rounds
        order = stream(seed, "schedule", server_round).permutation(k)
        ids = order[np.argsort(-left[order], kind="stable")][:take]
        left[ids] -= 1
        plan[server_round] = ids.tolist()
    assert not left.any()
    return plan


class CanaryPlan(Resumable):
    """Which canaries play in which round, which of them are in, and which clients play them.

    Auditors of one run may share a plan. Then there are no more seats than for one of them:
    whoever asks first in a round gives the orders.

    Args:
        name: Of the auditor whose plan it is; canaries of two names differ.
        seats: Clients per round that play a canary; "auto" takes one in five of the first cohort
            that has three clients or more.
        canaries: How many canaries; None fills all seats of all rounds.
        repetitions: In how many rounds each canary plays. "auto" takes as many as a client of the
            first cohort can expect to take part in; with a number of seats, which need no cohort,
            it is 1.
        include: "coin", "all", or "auto", which takes coins from ten canaries on.
        excluded: What the seat of a canary that is out sends: "zero", its own "honest" update, or
            a "full" one, which is another random vector of the same norm.
        seed: Of canaries, coins and seats.
        client_rounds: Rounds that a client can expect to take part in, if that is known before.

    Attributes:
        begun: First round of the plan; None until it is known.
        seated: Seats per round; 0 until the first cohort is known.
        repetitions: In how many rounds each canary plays; 1 until that is known.
        client_rounds: Rounds that a client can expect to take part in; None if nobody knows.
        needs_coins: Whether few canaries have coins too.
        plays_once: Whether "auto" is one round, since a claim about each round is tested.
        canary_seed: The seed that all canaries share, of 128 bits.
        by_round: Canaries of each round, counted from 1, in an order that knows no coins.
        included: What the coin of each canary says, (canaries,).
        has_coins: Whether fair coins decided that.
        drawn: Canaries of this round that several auditors look for; None for one auditor.
        kind: How canaries are drawn; the setting until the length of the model is known.
    """

    begun: Kept[int | None]
    seated: Kept[int]
    repetitions: Kept[int]
    client_rounds: Kept[int | None]
    kind: Kept[Kind]

    def __init__(
        self,
        name: str,
        *,
        seats: Seats,
        canaries: int | None,
        repetitions: Repetitions,
        include: Include,
        excluded: Excluded,
        seed: int,
        client_rounds: int | None = None,
        kind: Kind = "auto",
    ) -> None:
        for what, number in (("seats", seats), ("repetitions", repetitions)):
            if isinstance(number, str) and number != "auto":
                raise BadValueError(what, "a number or 'auto'", number)
            if number != "auto" and number < 1:
                raise BadValueError(what, "at least 1", number)
        require_one_of(get_args(Include), include=include)
        require_one_of(get_args(Kind), kind=kind)
        require_one_of(_WORLDS, excluded=excluded)
        if canaries is not None and canaries < (least := 2 if include == "coin" else 1):
            allowed = f"at least {least}, or None for all seats"
            raise BadValueError("canaries", allowed, canaries)
        self._name, self.seats, self.canaries = name, seats, canaries
        self._repetitions, self._client_rounds = repetitions, client_rounds
        self.include, self.excluded, self.seed = include, excluded, seed
        self._kind = self.kind = kind
        self.needs_coins, self.plays_once = include == "coin", False
        self.canary_seed = derive(seed, name)
        self.drawn: DrawnCanaries | None = None
        self._num_rounds = 0
        self._forget()

    def begin(self, dim: int, num_rounds: int) -> None:
        """Plan a run; with seats="auto" the plan waits for the first cohort."""
        self._num_rounds = num_rounds
        self.kind = self.kind_at(dim)
        self._forget()
        if self.seats != "auto":
            self.repetitions = 1 if self._repetitions == "auto" else self._repetitions
            self._make(self.seats, 1)

    def kind_at(self, dim: int) -> KindName:
        """Return the kind of canaries for a model of this size, whatever an earlier run took."""
        return kind_for(self._kind, dim)

    @property
    def repeats(self) -> bool:
        """Whether a canary plays in several rounds, as far as that is known."""
        is_open = self.seats == self._repetitions == "auto" and not (self.seated or self.plays_once)
        known = self.repetitions if self._repetitions == "auto" else self._repetitions
        return known > 1 or is_open

    def _forget(self) -> None:
        """Plan no canary at all."""
        self.begun, self.seated, self.repetitions = None, 0, 1
        self.client_rounds = self._client_rounds
        self.by_round: Mapping[int, Sequence[int]] = {}
        self.included, self.has_coins = np.zeros(0, dtype=bool), self.needs_coins
        self._asked: tuple[int, str] | None = None  # the last round, and who gave its orders
        self._seating: Mapping[int, int] = {}

    def _make(self, seats: int, first_round: int) -> None:
        """Plan the canaries of this many seats in the rounds from the given one on."""
        rounds = max(self._num_rounds - first_round + 1, 0)
        k = self._count(seats, rounds)
        self.begun, self.seated = first_round, seats
        # Of few canaries, fair coins would leave nothing to see.
        self.has_coins = self.needs_coins or (self.include == "auto" and k >= FEW)
        self.by_round = schedule(k, self.repetitions, rounds, self.seed)
        coins = stream(self.seed, "coins").random(k) < 0.5
        self.included = coins if self.has_coins else np.ones(k, dtype=bool)

    def _count(self, seats: int, rounds: int) -> int:
        """Return how many canaries play, all seats if the user has not said.

        Raises:
            UnableError: The project has too few rounds.
            ValueError: The user asks for more canaries than that many rounds allow.
        """
        slots, least, repetitions = seats * rounds, self._least, self.repetitions
        # Fewer seats in all come from the project, not from what the user typed.
        needed = least if self.canaries is not None else least * repetitions
        if slots < needed or repetitions > rounds:
            raise UnableError(
                f"canaries need at least {needed} seats x rounds and {repetitions} rounds, got "
                f"{seats} seats and {rounds} rounds"
            )
        k = slots // repetitions if self.canaries is None else self.canaries
        if k < least or k * repetitions > slots:
            raise ValueError(
                f"canaries x repetitions must be at most seats x rounds = {slots} with at least "
                f"{least} canaries, got {k} x {repetitions}"
            )
        return k

    @property
    def _least(self) -> int:
        """Canaries that the audit needs: a coin must have two sides."""
        return 2 if self.needs_coins else 1

    def _busy(self, seats: int, first_round: int) -> int:
        """Return in how many rounds a canary plays, as often as a client if that is open."""
        rounds = max(self._num_rounds - first_round + 1, 1)
        if self._repetitions != "auto":
            return self._repetitions
        least = self.canaries or self._least
        wanted = 1 if self.plays_once else self.client_rounds or 1
        return max(min(wanted, rounds, seats * rounds // least), 1)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; seats that came from a cohort are planned again."""
        super().restore(state)
        if self.seats == "auto" and self.seated:
            assert self.begun is not None
            self._make(self.seated, self.begun)

    @property
    def drawn_as(self) -> KindName:
        """The kind of the canaries, once the length of the model is known."""
        assert self.kind != "auto"
        return self.kind

    @property
    def null(self) -> CanaryKind:
        """How likely a canary that nobody sent has a cosine, and what findings assume of that."""
        return KINDS[self.drawn_as]

    @property
    def num_canaries(self) -> int:
        """Canaries of the whole run; 0 until the plan is made."""
        return self.included.size

    @property
    def world(self) -> tuple[Adjacency, Assumption]:
        """How the two worlds of a canary differ, and what every finding assumes about it."""
        adjacency, assumed = _WORLDS[self.excluded]
        return adjacency, assumed if self.has_coins else Assumption.ALL_CANARIES_PLAY

    @property
    def all_out(self) -> str:
        """That no coin lets a canary take part, in words."""
        return (
            f"the coins of all {self.num_canaries} planned canaries say out; use more seats, "
            "another seed, or include='all'"
        )

    @property
    def unplayed(self) -> str | None:
        """Why no canary can take part, in words; None if one can."""
        if not self.seated:
            return NO_SEATS
        return None if self.included.any() else self.all_out

    def limits(self, project: Project) -> list[str]:
        """Return in words that no canary can take part, as far as that is known."""
        if self.seated:
            return [] if self.included.any() else [f"no canary will be played: {self.all_out}"]
        is_small = project.clients is not None and not seats_of(project.clients)
        return [f"no canary is played in rounds like the first: {NO_SEATS}"] * is_small

    def seat_limits(self, project: Project, *, has_fits: bool = True) -> list[str]:
        """Return in words where there are too few canaries, or too few clients beside them.

        Args:
            project: The run.
            has_fits: Whether estimates fit a standard deviation.
        """
        canaries, seats, clients = self.num_canaries, self.seated, project.clients
        included = canaries // 2 if self.has_coins else canaries  # as expected
        said = []
        if included < MIN_FITTED:
            noun = "canary" if canaries == 1 else "canaries"
            part = f"of which about {included} take part" if self.has_coins else "all taking part"
            fits = f", and estimates that fit a standard deviation are left out below {MIN_FITTED}"
            said.append(
                f"{canaries} {noun} in {counted(project.num_rounds, 'round')}, {part}: results "
                f"vary widely{fits if has_fits else ''}; use more seats or rounds"
            )
        if clients is not None and 2 * seats > clients:
            said.append(
                f"{min(seats, clients)} of the {clients} clients of round 1 play canaries: the "
                f"model learns only from {max(clients - seats, 0)}; use fewer seats or more "
                "clients per round"
            )
        return said

    def orders(
        self,
        asker: str,
        server_round: int,
        chosen: Sequence[int],
        population: int | None = None,
    ) -> dict[int, Canary]:
        """Give this round's canaries to clients drawn among the chosen.

        Args:
            asker: Which auditor asks. Of those that share the plan the first gets the orders.
            server_round: The round.
            chosen: Its clients.
            population: Clients of the whole project, if that is known.
        """
        if self._asked is not None and self._asked[0] == server_round and self._asked[1] != asker:
            return {}
        self._asked = server_round, asker
        if self.drawn is not None:
            self.drawn.forget()
        most = seats_of(len(chosen)) if self.seats == "auto" else len(chosen)
        seats = most if self.seats == "auto" else min(self.seated, most)
        if self.client_rounds is None and population and seats:
            # Those in seats send no update of their own.
            share = min((len(chosen) - seats) / population, 1.0)
            self.client_rounds = max(round(share * self._num_rounds), 1)
        if self.seats == "auto" and not self.seated and most:
            self.repetitions = self._busy(most, server_round)
            self._make(most, server_round)
            about = (self._name, most, len(chosen), self.num_canaries)
            often = counted(self.repetitions, "round")
            _log.info(
                "%s: %d of %d clients per round play canaries, %d in all, each in %s", *about, often
            )
        # A strategy's own loop may run longer than planned.
        ids = self.by_round.get(self.planned_round(server_round), [])
        if len(ids) > most:  # with Poisson sampling, or fewer clients than seats
            _log.warning(
                "round %d has %d clients for %d canaries: some stay out, bounds will be lower",
                *(server_round, len(chosen), len(ids)),
            )
            ids = ids[:most]  # the plan's order is random and knows no coins
        rng = stream(self.seed, "seats", server_round)
        clients = sorted(rng.choice(np.asarray(chosen), len(ids), replace=False).tolist())
        self._seating = dict(zip(clients, ids, strict=True))
        return {
            client: self._order(i)
            for client, i in self._seating.items()
            if self.included[i] or self.excluded != "honest"
        }

    def _order(self, canary: int) -> Canary:
        """Return what the seat of a canary is told."""
        is_in = bool(self.included[canary])
        if is_in or self.excluded == "zero":
            return Canary(canary, self.canary_seed, is_in, kind=self.drawn_as)
        # A vector of full norm that is nobody's canary: numbers beyond the last are free.
        return Canary(self.num_canaries + canary, self.canary_seed, kind=self.drawn_as)

    def planned_round(self, server_round: int) -> int:
        """Return which round of the plan this is, 0 before its first."""
        return 0 if self.begun is None else server_round - self.begun + 1

    def seating(self, server_round: int) -> Mapping[int, int]:
        """Return who sits in a round, client to canary, whatever the coins; {} if nobody asked."""
        is_now = self._asked is not None and self._asked[0] == server_round
        return self._seating if is_now else {}

    def played(self, view: RoundView) -> list[int]:
        """Return the canaries that are in and were delivered in a round, ascending.

        Raises:
            ValueError: A recording has canaries of a cohort that nobody knows here.
        """
        ours = [o for o in view.instructed.values() if o.seed == self.canary_seed]
        if ours and not self.seated:
            raise ValueError("seats must be the number of the recorded run, got 'auto'")
        return sorted(o.id for o in ours if o.included and o.id < self.num_canaries)


NULL_RUNS = 400  # simulated no-leak repetitions behind a null band
_MIN_DIM = 100
Std = Literal["known", "fitted"]
_SPREAD: dict[Std, Assumption] = {
    "known": Assumption.GAUSSIAN_COSINES_NULL_STD,
    "fitted": Assumption.GAUSSIAN_COSINES,
}


class CanaryAuditor(Auditor):
    """Plays the canaries of a plan; a subclass looks for them.

    The arguments are those of `CanaryPlan`, with the δ and the confidence of bounds.
    """

    can_bet: ClassVar[bool] = False  # whether its confidence may be `Anytime`
    undelivered: ClassVar[str]  # why no canary was seen although some were played, in words

    _plan: Kept[CanaryPlan]
    _played: Kept[NDArray[np.int64]]  # rounds that each canary took part in, (canaries,)

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
        within("delta", delta, above=0.0, below=1.0)
        self._plan = self._own_plan = CanaryPlan(
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
        self._is_anytime = isinstance(confidence, Anytime)
        if self._is_anytime:
            self._check_bets(include, confidence)
            # A canary is bet on when it has played for the last time.
            self._plan.needs_coins = self._plan.plays_once = True
        self.seats, self.canaries, self.seed = seats, canaries, seed
        self.include, self.excluded = include, excluded
        self.delta, self.confidence = delta, Anytime.level(confidence)
        self.num_bounds = self._bounds_wanted()
        self._dim, self._played = 0, np.zeros(0, dtype=np.int64)

    def _check_bets(self, include: Include, confidence: float | Anytime) -> None:
        """Raise unless coins can be bet on."""
        if not self.can_bet:
            raise BadValueError("confidence", "a number, not Anytime", confidence)
        if include == "all":
            allowed = "'coin' or 'auto' with confidence=Anytime(…), which bets on coins"
            raise BadValueError("include", allowed, include)

    def _bounds_wanted(self) -> int:
        """Return how many bounds without a condition share the confidence."""
        return 2  # of the final model, of all models

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
        if dim < _MIN_DIM:
            raise UnableError(
                f"the model must have at least {_MIN_DIM} parameters for canaries, got {dim}"
            )
        self._dim = dim
        self._plan.plays_once |= any(claim.per == "round" for claim in self.claims)
        self._plan.begin(dim, num_rounds)
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

    @property
    def unplayed(self) -> str | None:
        """Why no canary has taken part; None if one has, or if another auditor says it."""
        if self.canaries_played is None or self._played.any():
            return None
        return self._plan.unplayed or self.undelivered

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

    def _claims_of(self, observer: Observer, sees: Sees, rounds: int | None) -> Claims:
        """Return what makes findings about who sees this of a canary in so many rounds.

        They assume how canaries were drawn, and what seats send.
        """
        adjacency, assumed = self._plan.world
        attacker = ThreatModel(
            observer=observer, sees=sees, holds="canary", knows_cohort=True, participations=rounds
        )
        return Claims(
            self.name,
            attacker,
            self.delta,
            self.confidence,
            adjacency,
            seed=self._plan.seed,
            assumptions=(assumed,),
        )

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


MIN_FITTED: Final = 30  # canaries behind a fitted std; with fewer ε̂ is far too large
_MIN_TESTED = 8  # samples behind a test for normality
_REJECTED = 1e-3  # a p-value below which samples are not Gaussian
# Facts of a bound that is above an estimate, by what the estimate assumes.
_REFUTED: Final[Mapping[str, str]] = {
    Assumption.GAUSSIAN_COSINES_NULL_STD: "refuted_known_std",
    Assumption.GAUSSIAN_COSINES: "refuted_fitted_std",
    Assumption.GAUSSIAN_MAXIMA: "refuted_largest_cosines",
}


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """Cosines of canaries with what one attacker sees.

    Attributes:
        included: Those of the canaries that took part.
        excluded: Those of the canaries that did not.
        null: Draws from the distribution of the latter; None where it is that of one cosine.
    """

    included: Scores
    excluded: Scores
    null: Scores | None = None


def one_fit(z: Scores, std: Std, delta: float) -> Scores:
    """Return ε between N(0, 1) and a Gaussian fitted to each row of standardised cosines.

    The algorithm as printed fits mean and std; the paper's table keeps the null's std, 1/√d.
    """
    spread = np.ones(len(z)) if std == "known" else z.std(axis=1)
    return np.asarray(epsilon_between_gaussians(0.0, 1.0, z.mean(axis=1), spread, delta))


def band(null: Scores) -> tuple[float, float]:
    """Return the 90 % band of what a method says when nothing leaks: 5 % and 95 % quantile."""
    low, high = np.quantile(null, [0.05, 0.95])
    return float(low), float(high)


def histogram(scores: CanaryScores, dim: int) -> Histogram:
    """Return counts of cosines in units of the null's std, 1/√dim, for the report."""
    # At least from -3 to 3, so that the null is visible even if all cosines are far away.
    scaled = [np.sqrt(dim) * scores.included, np.sqrt(dim) * scores.excluded]
    both = np.concatenate(scaled)
    edges = np.linspace(min(both.min(), -3.0), max(both.max(), 3.0), 31)
    counts = [np.histogram(s, edges)[0].tolist() for s in scaled]
    null = np.diff(ndtr(edges))
    if scores.null is not None:
        null = np.histogram(np.sqrt(dim) * scores.null, edges)[0] / scores.null.size
    return Histogram(
        edges=tuple(edges.round(4).tolist()),
        included=tuple(counts[0]),
        excluded=tuple(counts[1]),
        null=tuple(null.round(6).tolist()),
        is_exact=scores.null is None,
    )


def normality(claims: Claims, sizes: Mapping[str, int], *groups: Scores) -> Finding | None:
    """Return whether the scores look Gaussian; of several groups, the least Gaussian one.

    Args:
        claims: Makes the finding.
        sizes: How many canaries are behind the scores.
        groups: Scores that Gaussians are fitted to. Those too few or all equal are not tested.
    """
    enough = (s for s in groups if len(s) >= _MIN_TESTED and np.ptp(s) > 0)
    tested = [anderson_darling(scores) for scores in enough]
    if not tested:
        return None
    statistic, p = min(tested, key=lambda both: both[1])
    is_rejected = p < _REJECTED
    then = ", so a Gaussian fit estimates nothing" if is_rejected else ""
    rule = f"Anderson-Darling test of the cosines, p = {p:.2g}{then}"
    bound = Bound(statistic, "diagnostic", rule, sample_sizes=sizes)
    return claims.finding(bound, {"p_value": p, "rejected": is_rejected}, quantity="normality")


def without_refuted(found: Sequence[Finding]) -> list[Finding]:
    """Return findings on one attacker without the estimates that a lower bound refutes.

    A bound that exceeds an estimate names its value as a fact. The estimate uses the mean of the
    cosines, which says little where a few canaries are seen clearly and most are not.
    """
    bounds = [f for f in found if f.kind == "lower_bound"]
    estimates = [f for f in found if f.kind == "estimate"]
    kept = []
    for f in found:
        if f.kind == "lower_bound":
            below = {_REFUTED[e.assumptions[0]]: e.value for e in estimates if e.value < f.value}
            kept.append(replace(f, facts={**f.facts, **below}))
        elif f.kind != "estimate" or all(b.value <= f.value for b in bounds):
            kept.append(f)
    return kept
