"""Plays transcripts: the client under attack holds one of two data sets through all its rounds.

Each trial draws the data of the other clients once and keeps them over the rounds; batches are
drawn again in every round. There are two modes:

1. Frozen models: each round is played at the model that it really started from. This bounds the
   composition of the rounds at the models that occurred. It is neither above nor below the ε of the
   run, in which the models themselves depend on the target's data; it is compared only with
   guarantees that hold for arbitrary models.
2. Whole runs: every transcript trains its own models from the first round to the last. Exact: what
   the models reveal is part of the transcript. A run is scored along directions that are fixed
   beforehand on a reference path. Besides the sum z_t of each round the attacker sees the model θ_t
   that the round started from; along the same directions it is a feature too, so the test can
   subtract what earlier rounds explain of z_t.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import AuditedRound, Claims, Trials
from leakmeter.auditors.auditor import DivergedError, UnableError
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.likelihood_ratio.game import (
    OthersSum,
    between,
    challenge,
    with_noise,
)
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampling.sampler import Stream, UpdateSampler, finite
from leakmeter.auditors.values import AnyFloats, Floats, Vector, Watch, within
from leakmeter.auditors.wording import counted


@dataclass(frozen=True)
class Transcripts:
    """Scores of played transcripts, the same number in each of the two worlds.

    Attributes:
        first: Scores if the target holds the first data set, (draws, features).
        second: Scores if it holds the second.
    """

    first: Floats
    second: Floats

    def __post_init__(self) -> None:
        if self.first.shape != self.second.shape or self.first.ndim != 2:
            shapes = f"{self.first.shape} and {self.second.shape}"
            raise ValueError(f"both worlds must have scores (draws, features), got {shapes}")

    def judged(self, pilot: int) -> Trials:
        """Return the scores of a test that the first `pilot` transcripts fix, on the others."""
        weights, middle = _discriminant(self.first[:pilot], self.second[:pilot])
        return Trials(self.first[pilot:] @ weights, self.second[pilot:] @ weights, middle)

    @staticmethod
    def joined(rounds: Sequence[Transcripts]) -> Transcripts:
        """Return the features of several rounds side by side."""
        return Transcripts(
            np.concatenate([one.first for one in rounds], axis=1),
            np.concatenate([one.second for one in rounds], axis=1),
        )


def _discriminant(first: Floats, second: Floats) -> tuple[Vector, float]:
    """Return one linear test over the scores of all rounds, (features,), and its threshold.

    Fisher's linear discriminant: for Gaussian scores with one covariance C in both worlds and means
    that differ by g, the log-likelihood ratio is linear with weights C⁻¹g, and the worlds are
    √(gᵀC⁻¹g) standard deviations apart. For independent rounds that is √ΣΔ_t². Any weights give a
    valid test, since the trials that judge it are others: a bad fit costs power, never confidence.

    Args:
        first: Scores of the pilot in the first world, (draws, features).
        second: The same in the second.
    """
    if len(first) < 4:
        raise BadValueError("pilot", "at least 4 transcripts", len(first))
    means = first.mean(axis=0), second.mean(axis=0)
    gap = means[0] - means[1]
    # Both worlds around their own means, (2 draws, features): one covariance C, pooled, with 2
    # draws - 2 degrees of freedom.
    centred = np.concatenate([first - means[0], second - means[1]])
    std = np.sqrt(np.square(centred).sum(axis=0) / (len(centred) - 2))
    # A feature that never varies would get an infinite weight; rounding gives it a little.
    std = np.maximum(std, 1e-9 * max(float(np.abs(gap).max()), 1e-300))
    scaled = centred / std
    correlation = _shrink(scaled.T @ scaled / (len(centred) - 2), len(first))
    # C⁻¹g with C = D R D, D = diag(std): D⁻¹R⁻¹D⁻¹g. Shrinking R instead of C leaves the scale of
    # each feature alone.
    weights = np.linalg.solve(correlation, gap / std) / std
    return weights, float((means[0] + means[1]) @ weights) / 2


def prove(
    claims: Claims,
    rounds: Sequence[Transcripts],
    models: Sequence[Transcripts] = (),
    *,
    target: int,
    pilot: int,
) -> Finding:
    """Return what the trials of these rounds together prove.

    Args:
        claims: About the last of these rounds if the run continues, else about the run.
        rounds: Scores of the rounds in which the target takes part or might.
        models: The same for models that the attacker has seen beside the sums.
        target: Client under attack.
        pilot: Transcripts that fix the test; the others are trials.
    """
    model = replace(claims.threat_model, participations=len(rounds))
    claims, count = replace(claims, threat_model=model), len(rounds)
    trials = Transcripts.joined([*rounds, *models]).judged(pilot)
    bound = claims.assuming(trials.bound(claims.delta, claims.confidence))
    bound = replace(bound, rule=f"{bound.rule}; one test over {counted(count, 'round')}")
    facts = {"target": target, "rounds": count, "separation": trials.separation}
    if claims.server_round is not None:
        return claims.finding(bound, facts)
    alone = [one.judged(pilot) for one in rounds]
    shared = claims.shared_confidence(count)
    facts["largest single round"] = max(one.bound(claims.delta, shared).value for one in alone)
    facts["largest separation of one round"] = max(one.separation for one in alone)
    return claims.finding(bound, facts, (trials.curve(claims.confidence),))


def _shrink(correlation: Floats, draws: int) -> Floats:
    """Return a correlation matrix pulled to the identity as far as its errors ask for.

    Schäfer and Strimmer (2005), A Shrinkage Approach to Large-Scale Covariance Matrix Estimation:
    the best intensity is the sum of the variances of the off-diagonal entries over the sum of
    their squares; here with the variance of a correlation of Gaussians, (1 - r²)²/(draws - 1).
    """
    off = correlation[~np.eye(len(correlation), dtype=bool)]
    size = float(np.square(off).sum())
    errors = float(np.square(1 - np.square(off)).sum()) / (draws - 1)
    share = min(errors / size, 1.0) if size > 0 else 1.0
    return (1 - share) * correlation + share * np.eye(len(correlation))


Mode = Literal["frozen-models", "whole-runs"]
_Features = tuple[list[Vector], list[Vector]]  # of sums and of models, a round each
_REFERENCE = 20  # draws of the sum behind each step of the reference path
_CANNOT_KEEP = (
    "the transcript audit gives a client two data sets to keep over all rounds, and this sampler "
    "cannot draw data sets: it needs the game partition, independent or independent-held-out of a "
    "simulation"
)


@dataclass(frozen=True)
class TranscriptBudget:
    """How transcripts are played, and how many draws go into each stage.

    Attributes:
        fit: Single updates behind each round's model of the other clients' sum.
        candidates: Data sets of the target among which the worst pair is chosen.
        own: Trainings on each data set behind its mean update.
        pilot: Transcripts that fix how rounds are combined, and the threshold.
        trials: Transcripts on which the test is judged, in each world.
        mode: "frozen-models" plays every round at the model that it really started from.
            "whole-runs" trains every transcript from the first model to the last. It is exact for
            a server that adds the mean update to the model, clients that do the same in every
            round, and no canary seats; and much slower.
    """

    fit: int = 200
    candidates: int = 20
    own: int = 8
    pilot: int = 100
    trials: int = 200
    mode: Mode = "frozen-models"

    def __post_init__(self) -> None:
        limits = (("fit", 10), ("candidates", 2), ("own", 1), ("pilot", 10), ("trials", 20))
        for name, lowest in limits:
            within(name, getattr(self, name), lowest=lowest)
        if self.mode not in get_args(Mode):
            raise BadValueError("mode", f"one of {get_args(Mode)}", self.mode)

    @property
    def draws(self) -> int:
        """Transcripts in all, in each world."""
        return self.pilot + self.trials


@dataclass(frozen=True)
class Case:
    """The client under attack, and the two data sets that it may hold.

    Attributes:
        target: The client.
        stream: Names all randomness of the audit.
        pair: The two draws of candidate data sets; a large score favours the first.
    """

    target: int
    stream: tuple[str | int, ...]
    pair: tuple[int, int]

    def others(self, sampler: UpdateSampler) -> UpdateSampler:
        """Return the sampler in which every other client keeps its data over a transcript."""
        # Unless the game is "independent", the others never have records of either candidate.
        drawn, pair = _candidates(self.stream), sorted(self.pair)
        kept = sampler.excluding_drawn(self.target, drawn, pair).keeping((*self.stream, "data"))
        if kept is None:
            raise UnableError(_CANNOT_KEEP)
        return kept

    def owners(self, sampler: UpdateSampler) -> tuple[UpdateSampler, UpdateSampler]:
        """Return the samplers in which the target holds the first or the second data set."""
        first, second = (
            sampler.holding(self.target, _candidates(self.stream), draw) for draw in self.pair
        )
        if first is None or second is None:
            raise UnableError(_CANNOT_KEEP)
        return first, second


@dataclass(frozen=True)
class HiddenCohorts:
    """Cohorts that the attacker does not know: every round draws them at random.

    Attributes:
        rate: Chance that a client takes part in a round, independently of other rounds.
        clients: Clients of the federation, numbered from 0.
    """

    rate: float
    clients: int

    def __post_init__(self) -> None:
        within("rate", self.rate, above=0.0, highest=1.0)
        within("clients", self.clients, lowest=2)


@dataclass(frozen=True)
class TranscriptCohort:
    """Who takes part in a round.

    Attributes:
        others: Clients that take part in any case.
        stand_in: Client that takes part in place of the target in transcripts in which the target
            does not; None if it always does.
        rate: Share of the transcripts in which the target takes part. It is 0 or 1 if the attacker
            knows the cohort.
    """

    others: tuple[int, ...]
    stand_in: int | None = None
    rate: float = 1.0

    @classmethod
    def of(
        cls, honest: Sequence[int], target: int, hidden: HiddenCohorts | None, rng: Generator
    ) -> TranscriptCohort:
        """Return the cohort of a round in which these honest clients took part.

        If cohorts are hidden, a random client stands in for the target where that is absent.
        """
        others = tuple(c for c in honest if c != target)
        rate = float(target in honest) if hidden is None else hidden.rate
        if target not in honest:
            # One of those that took part makes room for the target, so the sum keeps its size.
            stand_in = int(rng.choice(others))
            return cls(tuple(c for c in others if c != stand_in), stand_in, rate)
        # In transcripts without the target a client that was absent takes its seat.
        absent = hidden.clients - len(honest) if hidden else 0
        if not absent:
            return cls(others)
        stand_in = int(rng.choice(absent))  # its place among the absent, who need no list
        for present in sorted(honest):
            stand_in += present <= stand_in
        return cls(others, stand_in, rate)

    def has_target(self, stream: Stream, draws: int) -> NDArray[np.bool_]:
        """Return in which transcripts the target takes part, (draws,)."""
        return numbers(0, *stream, "takes part").random(draws) < self.rate


def choose(
    audited: AuditedRound,
    others: Sequence[int],
    *,
    budget: TranscriptBudget,
    stream: tuple[str | int, ...],
) -> Case:
    """Return the case whose two data sets move the first round's sum farthest apart.

    Raises:
        NothingMovesError: The other clients' updates do not vary, and the sum has no noise.
        UnableError: The sampler cannot draw data sets.
    """
    sampler, model, target = audited.sampler, audited.model, audited.target
    assert target is not None
    kept = sampler.keeping(_candidates(stream))
    if kept is None or sampler.game == "rerun":
        raise UnableError(_CANNOT_KEEP)
    audited.watch("candidates", 0.0)
    # (candidates, dim): the mean over batches is what a data set contributes; one training has the
    # noise of its batches on top.
    means = np.zeros((budget.candidates, model.size))
    for turn in range(budget.own):  # draw i of every call has data set i, and new batches
        rows = kept.updates(model, [target], budget.candidates, (*stream, "choice", turn))
        for index, row in enumerate(finite(rows)):
            means[index] += row / budget.own
    sums = OthersSum(sampler, model, others, audited.watch)
    fits = sums.gaussians(budget.fit, (*stream, "choice", "fit"), audited.noise_std)
    return Case(target, stream, challenge(means, fits[0]).pair)


def directions(
    sums: OthersSum, case: Case, *, budget: TranscriptBudget, place: int, noise_std: float
) -> Floats:
    """Return the directions in which a round is scored, (dim, k): Σ⁻¹ times the gap of the means.

    Args:
        sums: Draws of the sum of the other clients, at the model that the round starts from.
        case: Who is attacked.
        budget: How many draws.
        place: The round; names its randomness.
        noise_std: Noise of the mechanism on each coordinate of the sum.
    """
    stream = (*case.stream, "round", place)
    first, second = (
        _mean(own.updates(sums.model, [case.target], budget.own, (*stream, name)))
        for own, name in zip(case.owners(sums.sampler), ("first", "second"), strict=True)
    )
    fits = sums.gaussians(budget.fit, (*stream, "fit"), noise_std)
    # One column per model of the sum: each is Σ⁻¹(x̄₁ - x̄₂) in unit variance, and the combination
    # that is fitted later weighs them.
    return np.stack([between(first, second, fit).direction for fit in fits], axis=1)


def _mean(updates: Iterator[AnyFloats]) -> Vector:
    return np.asarray(np.mean(list(finite(updates)), axis=0, dtype=np.float64))


def _candidates(stream: Stream) -> tuple[str | int, ...]:
    return (*stream, "candidates")


def round_scores(
    audited: AuditedRound, cohort: TranscriptCohort, case: Case, *, budget: TranscriptBudget
) -> Transcripts:
    """Return what the round's sum scores in each transcript and world.

    Args:
        audited: The round; the game of its sampler decides what a transcript resamples.
        cohort: Who takes part.
        case: Who is attacked, with which two data sets.
        budget: How many draws, and transcripts.
    """
    sampler, model, watch = audited.sampler, audited.model, audited.watch
    place, draws = audited.server_round, budget.draws
    others = OthersSum(sampler, model, cohort.others, watch)
    project = directions(others, case, budget=budget, place=place, noise_std=audited.noise_std)
    stream = (*case.stream, "round", place, "trials")
    kept = case.others(sampler)
    watch("transcripts", 0.0)
    # (transcripts, k): the other clients, their data kept from round to round by `kept`.
    base = _sums(kept, model, cohort.others, draws, (*stream, "others"), project)
    # Both worlds share the other clients and the noise: each world's transcripts are independent.
    base = with_noise(base, project, stream, audited.seen_std)
    # (transcripts, k) each: what the target adds with the first and the second data set.
    worlds = [
        _sums(own, model, (case.target,), draws, (*stream, name), project)
        for own, name in zip(case.owners(sampler), ("first", "second"), strict=True)
    ]
    is_in = cohort.has_target(stream, draws)
    if cohort.stand_in is not None:
        instead = _sums(kept, model, (cohort.stand_in,), draws, (*stream, "others"), project)
        # Where the target is absent both worlds are equal, and this round tells nothing.
        worlds = [np.where(is_in[:, None], own, instead) for own in worlds]
    watch("transcripts", 1.0)
    return Transcripts(base + worlds[0], base + worlds[1])


def _sums(
    sampler: UpdateSampler,
    model: Vector,
    clients: tuple[int, ...],
    draws: int,
    stream: Stream,
    project: Floats,
) -> Floats:
    """Return draws of the sum of some clients along the directions, (draws, k)."""
    chunks = sampler.sums(model, clients, draws, stream, project=project)
    return np.asarray(np.concatenate(list(finite(chunks))), dtype=np.float64)


@dataclass(frozen=True)
class RoundPlan:
    """One round of every simulated run.

    Attributes:
        cohort: Who takes part.
        seen_std: Noise on each coordinate of the sum that the attacker sees, rounding included.
        added_std: Noise that the server adds to the sum afterwards, unseen.
        divisor: Public number that the sum is divided by, in units of the sampler's scale; None
            for the clients' weights.
    """

    cohort: TranscriptCohort
    seen_std: float = 0.0
    added_std: float = 0.0
    divisor: float | None = None

    @property
    def absent(self) -> tuple[int, ...]:
        """Who takes part in place of the target."""
        return () if self.cohort.stand_in is None else (self.cohort.stand_in,)


@dataclass(frozen=True)
class WholeRuns:
    """Runs of federated averaging from one initial model.

    Attributes:
        sampler: Draws updates; its game decides what a transcript resamples.
        start: The initial model.
        plans: The rounds.
        case: Who is attacked, with which two data sets.
        budget: How many runs.
        watch: Told of the progress.
    """

    sampler: UpdateSampler
    start: Vector
    plans: tuple[RoundPlan, ...]
    case: Case
    budget: TranscriptBudget
    watch: Watch

    def play(self) -> tuple[list[Transcripts], list[Transcripts]]:
        """Return the features of all runs in both worlds: of the sums, and of the models.

        Each is a list of the rounds in which the target may take part.
        """
        looks = self._directions()
        kept, owners = self.case.others(self.sampler), self.case.owners(self.sampler)
        is_in = np.stack(
            [
                plan.cohort.has_target((*self.case.stream, "runs", place), self.budget.draws)
                for place, plan in enumerate(self.plans)
            ]
        )  # (rounds, runs)
        worlds: tuple[list[_Features], list[_Features]] = ([], [])
        for run in range(self.budget.draws):
            self.watch("whole runs", run / self.budget.draws)
            for world, own in zip(worlds, owners, strict=True):
                world.append(self._one(kept, own, looks, run, is_in[:, run]))
        # (runs, sums or models, rounds, k) of each world
        first, second = (np.array(world, dtype=np.float64) for world in worlds)
        sums, models = (
            [Transcripts(first[:, i, t], second[:, i, t]) for t in range(first.shape[2])]
            for i in range(2)
        )
        return sums, models[1:]  # all runs have the first model in common

    def _directions(self) -> list[Floats | None]:
        """Return the directions of each round, (dim, k), along a path of mean steps.

        None for rounds in which the target never takes part.
        """
        model, made = np.array(self.start, dtype=np.float64), list[Floats | None]()
        owners = self.case.owners(self.sampler)
        for place, plan in enumerate(self.plans):
            cohort = plan.cohort
            mean = partial(_mean_sum, model, (*self.case.stream, "path", place))
            total = mean(self.sampler, cohort.others)
            if cohort.rate:
                others = OthersSum(self.sampler, model, cohort.others, self.watch)
                look = partial(directions, others, self.case, budget=self.budget)
                made.append(look(place=place, noise_std=plan.seen_std))
                # Half way between the worlds, so that the path favours neither.
                total += sum(mean(own, (self.case.target,)) for own in owners) / 2
            else:
                made.append(None)
                total += mean(self.sampler, plan.absent)
            # Every client with weight 1 on the path: directions need not be exact, only fixed
            # beforehand.
            model = model + total / (plan.divisor or len(cohort.others) + 1)
        return made

    def _one(
        self,
        kept: UpdateSampler,
        own: UpdateSampler,
        looks: list[Floats | None],
        run: int,
        is_in: NDArray[np.bool_],
    ) -> _Features:
        """Return each round's sum, and the model it started from, along its directions."""
        model = np.array(self.start, dtype=np.float64)
        sums, models = list[Vector](), list[Vector]()
        for place, (plan, look) in enumerate(zip(self.plans, looks, strict=True)):
            stream = (*self.case.stream, "runs", place)
            others, last, clients = plan.cohort.others, kept, plan.absent
            if is_in[place]:
                last, clients = own, (self.case.target,)
            total = kept.one(model, others, run, stream).sum(axis=0, dtype=np.float64)
            total += last.one(model, clients, run, (*stream, "target"))[0]
            rng = numbers(run, *stream, "noise")
            if plan.seen_std:
                total += plan.seen_std * rng.standard_normal(model.size)
            if look is not None:
                # (k,) each. Before the noise that the server adds unseen, after what the attacker
                # sees.
                sums.append(total @ look)
                models.append(model @ look)
            if plan.added_std:
                total += plan.added_std * rng.standard_normal(model.size)
            weight = plan.divisor or float(
                kept.shares(others, run, stream).sum()
                + last.shares(clients, run, (*stream, "target")).sum()
            )
            model = model + total / weight
        if not np.isfinite(model).all():
            raise DivergedError
        return sums, models


def _mean_sum(
    model: Vector, stream: Stream, sampler: UpdateSampler, clients: Sequence[int]
) -> Vector:
    """Return the mean of some draws of a sum, (dim,)."""
    drawn = np.concatenate(list(sampler.sums(model, clients, _REFERENCE, stream)))
    return np.asarray(drawn.mean(axis=0, dtype=np.float64))
