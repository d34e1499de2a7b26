"""Builds the auditors of a run from its configuration, each by the name that a user types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Literal, cast

from leakmeter.auditors import (
    AggregateRecorder,
    Auditor,
    Critics,
    Effort,
    HiddenCohorts,
    LikelihoodRatio,
    Membership,
    MutualInformation,
    NeuralInformation,
    OneShotCanaries,
    SpanCondition,
    TranscriptEffort,
    TranscriptLikelihoodRatio,
)
from leakmeter.auditors._types import Watch
from leakmeter.auditors.bounds.anytime import Anytime
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information import (
    IndependentWhitened,
    LogConcaveWhitened,
    Look,
    Theory,
)
from leakmeter.auditors.information.theory import Case
from leakmeter.auditors.inversion import Inversion
from leakmeter.auditors.likelihood_ratio.transcript.case import Mode
from leakmeter.auditors.reconstruction import Attack
from leakmeter.auditors.records.auditor import RecordLikelihoodRatio
from leakmeter.auditors.sampler import PerRound
from leakmeter.fl_app.build.resampling import each_round, entropy_of, other_initial
from leakmeter.fl_app.build.strategy import participation
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.deployment import cohort_seed, is_deployed
from leakmeter.fl_app.engines.record_case import record_case
from leakmeter.fl_app.engines.simulated_records import SimulatedRecords, check_shadows
from leakmeter.fl_app.task import load_task

# Gives the sampler of a game. Auditors of one run that play the same game share it.
Samplers = Callable[[Game], PerRound]


def auditors(config: Config, dim: int, watch: Watch | None = None) -> list[Auditor]:
    """Return the auditors by name; what they cannot do with this model is an error now.

    Args:
        config: Says which, and how they are set.
        dim: Number of parameters of the model.
        watch: Told which stage of a long audit is how far.
    """
    samplers = cache(partial(each_round, config))
    made = [_MAKERS[name](config, samplers) for name in dict.fromkeys(config.auditor_names)]
    _share_draws(made)
    for auditor in made:
        auditor.watch = watch
        try:
            auditor.begin(dim, config.rounds)
        except ValueError as error:
            raise ConfigError(f"auditor {auditor.name}: {error}") from None
    return made


def one_shot(
    config: Config, _: Samplers | None = None, include: Literal["coin", "all"] = "coin"
) -> OneShotCanaries:
    """Return the canaries of a run; a fair coin decides which of them play, or all do."""
    return OneShotCanaries(
        seats=config.canary_seats,
        canaries=config.canaries or None,
        repetitions=config.canary_repetitions,
        delta=config.delta,
        confidence=_confidence(config),
        include=include,
        seed=config.seed,
    )


def _confidence(config: Config) -> float | Anytime:
    """Return the confidence of auditors that may have bounds after every round."""
    return Anytime(config.confidence) if config.bounds == "anytime" else config.confidence


def _likelihood_ratio(config: Config, samplers: Samplers) -> Auditor:
    return LikelihoodRatio(
        samplers(cast(Game, config.game)),
        target=None if config.lrt_target < 0 else config.lrt_target,
        every=config.lrt_every,
        effort=Effort(
            fit=config.lrt_fit,
            candidates=config.lrt_candidates,
            pilot=max(config.lrt_trials // 4, 20),
            trials=config.lrt_trials,
            models=tuple(other_initial(config, index) for index in range(1, config.lrt_models)),
        ),
        observer="outsider" if config.noise == "central" else "server",
        delta=config.delta,
        confidence=_confidence(config),
        seed=config.seed,
    )


def _transcript(config: Config, samplers: Samplers) -> Auditor:
    is_hidden = config.transcript_cohorts == "hidden"
    return TranscriptLikelihoodRatio(
        samplers(cast(Game, config.game)),
        target=None if config.lrt_target < 0 else config.lrt_target,
        hidden=HiddenCohorts(config.sample / config.clients, config.clients) if is_hidden else None,
        effort=TranscriptEffort(
            fit=config.lrt_fit,
            pilot=max(config.transcript_trials // 2, 20),
            trials=config.transcript_trials,
            mode=cast(Mode, config.transcript_mode),
        ),
        observer="outsider" if config.noise == "central" else "server",
        delta=config.delta,
        confidence=config.confidence,
        seed=config.seed,
    )


def _mutual_information(config: Config, samplers: Samplers) -> Auditor:
    return MutualInformation(
        samplers(_without_pair(config)),
        target=None if config.mi_target < 0 else config.mi_target,
        every=config.mi_every,
        look=Look(draws=config.mi_draws, rank=config.mi_rank or None, pairs=config.mi_over_rounds),
        theory=Theory(
            cases=_cases(config),
            batch_size=_least_batch(config),
            limit=partial(entropy_of, config),
        ),
        colluding=max(config.colluders, 0),
        observer="outsider" if config.noise == "central" else "server",
        seed=config.seed,
    )


def _mine(config: Config, samplers: Samplers) -> Auditor:
    return NeuralInformation(
        samplers(_without_pair(config)),
        every=config.mine_every,
        look=Look(draws=config.mine_draws, rank=config.mi_rank or 8),
        critics=Critics(count=config.mine_critics, steps=config.mine_steps),
        limit=partial(entropy_of, config),
        colluding=max(config.colluders, 0),
        observer="outsider" if config.noise == "central" else "server",
        seed=config.seed,
    )


def _share_draws(made: Sequence[Auditor]) -> None:
    """Let the audits of information draw once: they have the same sampler and the same seed."""
    drawing = next((one.drawing for one in made if isinstance(one, MutualInformation)), None)
    for one in made:
        if isinstance(one, NeuralInformation) and drawing is not None:
            one.drawing = drawing


def _cases(config: Config) -> list[Case]:
    """Return what Theorem 1 is to assume of the gradients; nothing for no bound."""
    match config.mi_case:
        case "independent":
            return [IndependentWhitened(config.mi_c0)]
        case "log-concave":
            return [LogConcaveWhitened(config.mi_sigma, config.mi_entropy * load_task(config).dim)]
    return []


def _least_batch(config: Config) -> int:
    """Return the records of the smallest batch of any client: with it the bound holds for all."""
    least = load_task(config).sizes.smallest
    return min(config.batch_size or least, least)


def _record_likelihood_ratio(config: Config, _: Samplers) -> Auditor:
    return RecordLikelihoodRatio(
        partial(record_case, config, _cohort_of(config)),
        every=config.lrt_every,
        delta=config.delta,
        confidence=config.confidence,
        seed=config.seed,
    )


def _membership(config: Config, _: Samplers) -> Auditor:
    check_shadows(config)
    known = SimulatedRecords(config, _cohort_of(config))
    return Membership(
        known.losses,
        shadows=known.shadows if config.membership_shadows else None,
        trained=known.trained,
        every=config.membership_every,
        delta=config.delta,
        confidence=config.confidence,
    )


def _inversion(config: Config, _: Samplers) -> Auditor:
    known = SimulatedRecords(config, _cohort_of(config))
    return Inversion(
        known.at,
        known.images,
        rate=config.lr,
        steps=known.mean_steps,
        seek=config.inversion_images,
        every=config.inversion_every,
        attack=Attack(steps=config.inversion_steps),
        seed=config.seed,
    )


def _span(config: Config, _: Samplers) -> Auditor:
    return SpanCondition(every=config.span_every)


def _cohort_of(config: Config) -> Callable[[int], list[int]]:
    """Return who is asked in which round."""
    pattern, seed = participation(config), cohort_seed(config)

    def cohort_of(server_round: int) -> list[int]:
        return pattern.cohort(seed, server_round, config.clients)

    return cohort_of


def _recorder(config: Config, _: Samplers) -> Auditor:
    return AggregateRecorder(about={"config": config.to_mapping(), "deployed": is_deployed()})


def _without_pair(config: Config) -> Game:
    """Return the game of an audit without a pair of updates whose records could be held out."""
    game = "independent" if config.game == "independent-held-out" else config.game
    return cast(Game, game)


_MAKERS: dict[str, Callable[[Config, Samplers], Auditor]] = {
    "one-shot": one_shot,
    "likelihood-ratio": _likelihood_ratio,
    "mutual-information": _mutual_information,
    "mine": _mine,
    "transcript": _transcript,
    "record-likelihood-ratio": _record_likelihood_ratio,
    "membership": _membership,
    "inversion": _inversion,
    "span": _span,
    "recorder": _recorder,
}
