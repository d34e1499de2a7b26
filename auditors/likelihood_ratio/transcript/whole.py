"""Plays whole runs: every transcript trains its own models from the first round to the last.

Exact: what the models reveal is part of the transcript. A run is scored along directions that are
fixed beforehand on a reference path. Besides the sum z_t of each round the attacker sees the model
θ_t that the round started from; along the same directions it is a feature too, so the test can
subtract what earlier rounds explain of z_t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Floats, Vector, Watch
from leakmeter.auditors.auditor import DivergedError
from leakmeter.auditors.likelihood_ratio.sums import Sums
from leakmeter.auditors.likelihood_ratio.transcript.case import (
    Case,
    Cohort,
    TranscriptEffort,
    directions,
)
from leakmeter.auditors.likelihood_ratio.transcript.combination import Transcripts
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampler import Stream, UpdateSampler

_Features = tuple[list[Vector], list[Vector]]  # of sums and of models, a round each
_REFERENCE = 20  # draws of the sum behind each step of the reference path


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

    cohort: Cohort
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
        effort: How many runs.
        watch: Told of the progress.
    """

    sampler: UpdateSampler
    start: Vector
    plans: tuple[RoundPlan, ...]
    case: Case
    effort: TranscriptEffort
    watch: Watch

    def play(self) -> tuple[list[Transcripts], list[Transcripts]]:
        """Return the features of all runs in both worlds: of the sums, and of the models.

        Each is a list of the rounds in which the target may take part.
        """
        looks = self._directions()
        kept, owners = self.case.others(self.sampler), self.case.owners(self.sampler)
        is_in = np.stack(
            [
                plan.cohort.has_target((*self.case.stream, "runs", place), self.effort.draws)
                for place, plan in enumerate(self.plans)
            ]
        )  # (rounds, runs)
        worlds: tuple[list[_Features], list[_Features]] = ([], [])
        for run in range(self.effort.draws):
            self.watch("whole runs", run / self.effort.draws)
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
            mean = partial(_mean_sum, model=model, stream=(*self.case.stream, "path", place))
            total = mean(self.sampler, clients=cohort.others)
            if cohort.rate:
                made.append(self._look(place, model))
                # Half way between the worlds, so that the path favours neither.
                total += sum(mean(own, clients=(self.case.target,)) for own in owners) / 2
            else:
                made.append(None)
                total += mean(self.sampler, clients=plan.absent)
            # Every client with weight 1 on the path: directions need not be exact, only fixed
            # beforehand.
            model = model + total / (plan.divisor or len(cohort.others) + 1)
        return made

    def _look(self, place: int, model: Vector) -> Floats:
        plan = self.plans[place]
        others = Sums(self.sampler, model, plan.cohort.others, self.watch)
        return directions(
            others, self.case, effort=self.effort, place=place, noise_std=plan.seen_std
        )

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
    sampler: UpdateSampler, *, model: Vector, clients: Sequence[int], stream: Stream
) -> Vector:
    """Return the mean of some draws of a sum, (dim,)."""
    drawn = np.concatenate(list(sampler.sums(model, clients, _REFERENCE, stream)))
    return np.asarray(drawn.mean(axis=0, dtype=np.float64))
