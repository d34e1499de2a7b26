"""What stays the same over a transcript: the client under attack, two data sets, the cohorts.

Two worlds: the target holds one of two data sets through the whole run. Each trial draws the data
of the other clients once and keeps them over the rounds; batches are drawn again in every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from leakmeter.auditors._types import AnyFloats, Floats, Vector
from leakmeter.auditors._validate import within
from leakmeter.auditors.audited_round import AuditedRound
from leakmeter.auditors.auditor import UnableError
from leakmeter.auditors.likelihood_ratio.challenge import between, challenge
from leakmeter.auditors.likelihood_ratio.sums import Sums
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampler import Stream, UpdateSampler, finite

Mode = Literal["frozen-models", "whole-runs"]


@dataclass(frozen=True)
class TranscriptEffort:
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
            raise ValueError(f"mode must be one of {get_args(Mode)}, got {self.mode!r}")

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
        apart = sampler.excluding_drawn(self.target, _candidates(self.stream), sorted(self.pair))
        kept = apart.keeping((*self.stream, "data"))
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


_CANNOT_KEEP = (
    "the transcript audit gives a client two data sets to keep over all rounds, and this sampler "
    "cannot draw data sets: it needs the game partition, independent or independent-held-out of a "
    "simulation"
)


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
class Cohort:
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
    ) -> Cohort:
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
        absent = sorted(set(range(hidden.clients)) - set(honest)) if hidden else []
        return cls(others, int(rng.choice(absent)), rate) if absent else cls(others)

    def has_target(self, stream: Stream, draws: int) -> NDArray[np.bool_]:
        """Return in which transcripts the target takes part, (draws,)."""
        return numbers(0, *stream, "takes part").random(draws) < self.rate


def choose(
    audited: AuditedRound,
    others: Sequence[int],
    *,
    effort: TranscriptEffort,
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
    means = np.zeros((effort.candidates, model.size))
    for turn in range(effort.own):  # draw i of every call has data set i, and new batches
        rows = kept.updates(model, [target], effort.candidates, (*stream, "choice", turn))
        for index, row in enumerate(finite(rows)):
            means[index] += row / effort.own
    sums = Sums(sampler, model, others, audited.watch)
    law = sums.laws(effort.fit, (*stream, "choice", "fit"), audited.noise_std)[0]
    return Case(target, stream, challenge(means, law).pair)


def directions(
    sums: Sums, case: Case, *, effort: TranscriptEffort, place: int, noise_std: float
) -> Floats:
    """Return the directions in which a round is scored, (dim, k): Σ⁻¹ times the gap of the means.

    Args:
        sums: Draws of the sum of the other clients, at the model that the round starts from.
        case: Who is attacked.
        effort: How many draws.
        place: The round; names its randomness.
        noise_std: Noise of the mechanism on each coordinate of the sum.
    """
    stream = (*case.stream, "round", place)
    first, second = (
        _mean(own.updates(sums.model, [case.target], effort.own, (*stream, name)))
        for own, name in zip(case.owners(sums.sampler), ("first", "second"), strict=True)
    )
    laws = sums.laws(effort.fit, (*stream, "fit"), noise_std)
    # One column per model of the sum: each is Σ⁻¹(x̄₁ - x̄₂) in unit variance, and the combination
    # that is fitted later weighs them.
    return np.stack([between(first, second, law).direction for law in laws], axis=1)


def _mean(updates: Iterator[AnyFloats]) -> Vector:
    return np.asarray(np.mean(list(finite(updates)), axis=0, dtype=np.float64))


def _candidates(stream: Stream) -> tuple[str | int, ...]:
    return (*stream, "candidates")
