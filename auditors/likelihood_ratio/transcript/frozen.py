"""Plays one round of many transcripts at the model that the round really started from.

This bounds the composition of the rounds at the models that occurred. It is neither above nor
below the ε of the run, in which the models themselves depend on the target's data; it is compared
only with guarantees that hold for arbitrary models.
"""

from __future__ import annotations

import numpy as np

from leakmeter.auditors._types import Floats, Vector
from leakmeter.auditors.audited_round import AuditedRound
from leakmeter.auditors.likelihood_ratio.sums import Sums, noised
from leakmeter.auditors.likelihood_ratio.transcript.case import (
    Case,
    Cohort,
    TranscriptEffort,
    directions,
)
from leakmeter.auditors.likelihood_ratio.transcript.combination import Transcripts
from leakmeter.auditors.sampler import Stream, UpdateSampler, finite


def round_scores(
    audited: AuditedRound, cohort: Cohort, case: Case, *, effort: TranscriptEffort
) -> Transcripts:
    """Return what the round's sum scores in each transcript and world.

    Args:
        audited: The round; the game of its sampler decides what a transcript resamples.
        cohort: Who takes part.
        case: Who is attacked, with which two data sets.
        effort: How many draws, and transcripts.
    """
    sampler, model, watch = audited.sampler, audited.model, audited.watch
    place, draws = audited.server_round, effort.draws
    others = Sums(sampler, model, cohort.others, watch)
    project = directions(others, case, effort=effort, place=place, noise_std=audited.noise_std)
    stream = (*case.stream, "round", place, "trials")
    kept = case.others(sampler)
    watch("transcripts", 0.0)
    # (transcripts, k): the other clients, their data kept from round to round by `kept`.
    base = _sums(kept, model, cohort.others, draws, (*stream, "others"), project)
    # Both worlds share the other clients and the noise: each world's transcripts are independent.
    base = noised(base, project, stream, audited.seen_std)
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
