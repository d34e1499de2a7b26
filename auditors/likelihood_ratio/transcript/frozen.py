"""Plays one round of many transcripts at the model that the round really started from.

This bounds the composition of the rounds at the models that occurred. It is neither above nor
below the ε of the run, in which the models themselves depend on the target's data; it is compared
only with guarantees that hold for arbitrary models.
"""

from __future__ import annotations

import numpy as np

from leakmeter.auditors._types import Floats, Vector, Watch
from leakmeter.auditors.likelihood_ratio.sums import noised
from leakmeter.auditors.likelihood_ratio.transcript.case import Case, Cohort
from leakmeter.auditors.likelihood_ratio.transcript.combination import Transcripts
from leakmeter.auditors.sampler import Stream, UpdateSampler, finite


def round_scores(
    sampler: UpdateSampler,
    model: Vector,
    cohort: Cohort,
    case: Case,
    project: Floats,
    *,
    draws: int,
    place: int,
    noise_std: float,
    watch: Watch,
) -> Transcripts:
    """Return what the round's sum scores in each transcript and world.

    Args:
        sampler: Draws updates; its game decides what a transcript resamples.
        model: Model that the round started from.
        cohort: Who takes part.
        case: Who is attacked, with which two data sets.
        project: Directions of the scores, (dim, k).
        draws: Number of transcripts.
        place: The round; names its randomness.
        noise_std: Noise on each coordinate of the sum, rounding included.
        watch: Told of the progress.
    """
    stream = (*case.stream, "round", place, "trials")
    kept = case.others(sampler)
    watch("transcripts", 0.0)
    # (transcripts, k): the other clients, their data kept from round to round by `kept`.
    base = _sums(kept, model, cohort.others, draws, (*stream, "others"), project)
    # Both worlds share the other clients and the noise: each world's transcripts are independent.
    base = noised(base, project, stream, noise_std)
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
