"""Builds the server's side of a run from its configuration: the strategies and the auditors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from leakmeter.auditors import (
    Auditor,
    Effort,
    LikelihoodRatio,
    MutualInformation,
    OneShotCanaries,
    RoundView,
    UpdateSampler,
)
from leakmeter.auditors._types import Watch
from leakmeter.auditors.finding import Game
from leakmeter.auditors.hook import wire
from leakmeter.auditors.information import Look, Theory, UpdateEntropy, update_entropy
from leakmeter.auditors.records.auditor import RecordLikelihoodRatio
from leakmeter.auditors.sampler import PerRound
from leakmeter.clients import CohortSampler
from leakmeter.clients.update import as_steps, batch_sizes
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.deployment import cohort_seed, is_deployed, noise_seed
from leakmeter.fl_app.engines.ray_sampler import WhereRayRuns, threads
from leakmeter.fl_app.engines.record_case import record_case
from leakmeter.fl_app.engines.samplers import postprocess_for, sampler_for
from leakmeter.fl_app.rule import filling_rule, update_rule
from leakmeter.fl_app.task import load_task
from leakmeter.strategies import (
    AdaptiveClip,
    Central,
    Chosen,
    Distributed,
    EachOnce,
    Filled,
    FixedClip,
    FixedSize,
    Local,
    Masked,
    Noised,
    Participation,
    Poisson,
    ShuffledEpochs,
)
from leakmeter.strategies.mechanism import Clipping, Noise
from leakmeter.strategies.secure_sum.topology import Topology

# Shares that open a secret, and the least clients of a sum, as a fraction of the cohort.
_THRESHOLD = 2 / 3


def server_strategy(config: Config) -> Strategy:
    """Return the chain of strategies without the audit: `Masked(Noised(Chosen(FedAvg())))`.

    With noise wfna `Filled` takes the place of `Noised`; without noise or masks a link is missing.
    """
    strategy: Strategy = Chosen(
        _averaging(config),
        _participation(config),
        num_clients=config.clients,
        seed=cohort_seed(config),
    )
    if config.noise == "wfna":
        filled = _filled(strategy, config)
        return Masked(filled, threshold=_THRESHOLD, max_weight=1.0, clip_range=filled.clip_range)
    if config.noise != "none":
        strategy = _noised(strategy, config)
    return _masked(strategy, config) if config.secagg == "on" else strategy


def _averaging(config: Config) -> FedAvg:
    """Return what the server does with the mean update."""
    # Chosen shows each round's clients only, and all of them take part.
    if config.server == "fedavgm":
        inner: FedAvg = FedAvgM(
            min_train_nodes=1,
            min_available_nodes=1,
            server_learning_rate=config.server_lr,
            server_momentum=config.server_momentum,
        )
    else:
        inner = FedAvg(min_train_nodes=1, min_available_nodes=1)
    inner.fraction_evaluate = 0.0  # the server evaluates; as an argument Flower warns of it
    return inner


def _participation(config: Config) -> Participation:
    match config.participation:
        case "poisson":
            return Poisson(config.cohort / config.clients)
        case "once":
            return EachOnce(config.cohort)
        case "epochs":
            return ShuffledEpochs(config.cohort)
    return FixedSize(config.cohort)


def _noised(strategy: Strategy, config: Config) -> Noised:
    """Return the strategy with clipping, noise and accounting."""
    noise: Noise = Central(config.noise_multiplier)
    if config.noise == "local":
        noise = Local(config.noise_multiplier)
    elif config.noise == "distributed":
        # The target is reached by those who are certain to be there, less those who may collude.
        plan = Topology(threshold=_THRESHOLD).plan(config.cohort)
        certain = plan.threshold - plan.bearable(config.cohort)
        noise = Distributed(config.noise_multiplier, min_honest=certain)
    clipping: Clipping = FixedClip(config.clip_norm)
    if config.clipping == "adaptive":
        clipping = AdaptiveClip(config.clip_norm, quantile=config.clip_quantile)
    return Noised(
        strategy,
        noise=noise,
        clipping=clipping,
        expected_clients=float(config.cohort),
        delta=config.delta,
        seed=noise_seed(config, is_deployed()),
    )


def _filled(strategy: Strategy, config: Config) -> Filled:
    """Return the strategy with the accounting of water filling."""
    rule = filling_rule(config)
    return Filled(
        strategy,
        sigma2=config.wfna_floor,
        clip_norm=rule.clip_norm,
        batch_size=rule.batch_size,
        examples=load_task(config).sizes.smallest,
        lr=rule.lr,
        steps=rule.steps,
        delta=config.delta,
    )


def _masked(strategy: Strategy, config: Config) -> Masked:
    """Return the strategy behind secure sums."""
    metrics = {"train-loss": (0.0, 16.0)}
    if config.clipping == "adaptive":
        metrics[wire.CLIP_BIT] = (0.0, 1.0)
    if config.noise in ("distributed", "local"):
        metrics = {}  # the server would learn them without noise
    # A simulation knows its clients: the tightest limits give the finest rounding.
    largest = 1.0 if config.noise != "none" else float(load_task(config).sizes.largest)
    bounded = config.noise != "none" and config.clipping == "fixed"
    return Masked(
        strategy,
        threshold=_THRESHOLD,
        max_weight=largest,
        metrics=metrics,
        clip_range=config.clip_norm if bounded else 4.0,
    )


def auditors(config: Config, dim: int, watch: Watch | None = None) -> list[Auditor]:
    """Return the auditors by name; what they cannot do with this model is an error now.

    Args:
        config: Says which, and how they are set.
        dim: Number of parameters of the model.
        watch: Told which stage of a long audit is how far.
    """
    game = cast(Game, config.game)
    sampler = _each_round(config, game)
    # Mutual information has no pair of updates whose records could be held out.
    everything = sampler if game != "independent-held-out" else _each_round(config, "independent")
    makers: dict[str, Callable[[], Auditor]] = {
        "one-shot": lambda: _one_shot(config),
        "likelihood-ratio": lambda: _likelihood_ratio(config, sampler),
        "mutual-information": lambda: _mutual_information(config, everything),
        "record-likelihood-ratio": lambda: _record_likelihood_ratio(config),
    }
    made = [makers[name]() for name in dict.fromkeys(config.auditor_names)]
    for auditor in made:
        auditor.watch = watch
        try:
            auditor.begin(dim, config.rounds)
        except ValueError as error:
            raise ConfigError(f"auditor {auditor.name}: {error}") from None
    return made


def _one_shot(config: Config) -> Auditor:
    return OneShotCanaries(
        seats=config.canary_seats,
        canaries=config.canaries or None,
        repetitions=config.canary_repetitions,
        delta=config.delta,
        seed=config.seed,
    )


def _likelihood_ratio(config: Config, sampler: UpdateSampler) -> Auditor:
    return LikelihoodRatio(
        sampler,
        target=None if config.lrt_target < 0 else config.lrt_target,
        every=config.lrt_every,
        effort=Effort(
            fit=config.lrt_fit,
            candidates=config.lrt_candidates,
            pilot=max(config.lrt_trials // 4, 20),
            trials=config.lrt_trials,
        ),
        observer="outsider" if config.noise == "central" else "server",
        delta=config.delta,
        seed=config.seed,
    )


def _mutual_information(config: Config, sampler: UpdateSampler) -> Auditor:
    return MutualInformation(
        sampler,
        target=None if config.mi_target < 0 else config.mi_target,
        every=config.mi_every,
        look=Look(draws=config.mi_draws, rank=config.mi_rank or None),
        theory=Theory(limit=partial(_update_entropy, config)),
        observer="outsider" if config.noise == "central" else "server",
        seed=config.seed,
    )


def _record_likelihood_ratio(config: Config) -> Auditor:
    pattern, seed = _participation(config), cohort_seed(config)

    def cohort_of(server_round: int) -> list[int]:
        return pattern.cohort(seed, server_round, config.clients)

    return RecordLikelihoodRatio(
        partial(record_case, config, cohort_of),
        every=config.lrt_every,
        delta=config.delta,
        seed=config.seed,
    )


def _each_round(config: Config, game: Game) -> PerRound:
    """Return what makes the sampler of each round."""
    in_process = partial(_sampler, config, game)
    return PerRound(WhereRayRuns(in_process) if config.engine == "ray" else in_process)


def _sampler(config: Config, game: Game, view: RoundView) -> CohortSampler:
    """Return what draws updates as the clients of this round compute and clip them."""
    return sampler_for(
        load_task(config),
        config.task,
        update_rule(config),
        game,
        postprocess=postprocess_for(config, clip_norm=view.facts.clip_norm),
        weighted=config.noise == "none",  # the accounting of noise knows no other weight than 1
        threads=threads(),
    )


def _update_entropy(config: Config, client: int) -> UpdateEntropy | None:
    """Return the entropy of a client's update; None where more is random than whole records.

    The audit draws records and batches. Clients that add noise draw that too, and under skewed
    labels the number of records is itself random.
    """
    rule = as_steps(update_rule(config))  # None with water filling, whose weights are Gaussian
    if rule is None or config.noise not in ("none", "central"):
        return None
    parts = load_task(config).parts
    own = len(parts[client])
    if config.game == "rerun":  # the records are known
        return update_entropy(own, own, batch_sizes(rule, own), epochs=rule.passes)
    if config.partition != "iid":
        return None
    records = sum(len(part) for part in parts)
    if config.game != "partition":  # every client draws an equal share
        own = round(records / len(parts))
    return update_entropy(records, own, batch_sizes(rule, own), epochs=rule.passes)
