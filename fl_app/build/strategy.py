"""Builds the chain of strategies of a run from its configuration."""

from __future__ import annotations

from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedYogi, Strategy

from leakmeter.auditors.hook import wire
from leakmeter.fl_app.build.noise import mechanism, records
from leakmeter.fl_app.build.secure_sum import masked
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.deployment import cohort_seed, is_deployed, noise_seed
from leakmeter.fl_app.task import load_task
from leakmeter.strategies import (
    AdaptiveClip,
    Chosen,
    Clipped,
    EachOnce,
    FixedClip,
    FixedSize,
    Noised,
    Participation,
    Poisson,
    ShuffledEpochs,
)
from leakmeter.strategies.protection.mechanism import Clipping


def server_strategy(config: Config) -> Strategy:
    """Return the chain of strategies without the audit: `Masked(Noised(Chosen(FedAvg())))`.

    Without noise or masks a link is missing.
    """
    strategy: Strategy = Chosen(
        _averaging(config),
        participation(config),
        num_clients=config.clients,
        seed=cohort_seed(config),
        needs_answers=not is_deployed(),
    )
    # Noise that hides clients clips the mean itself, before it is noised.
    if config.clip_aggregate and config.noise_kind.unit != "client":
        strategy = Clipped(strategy, config.clip_aggregate)
    if config.hides_records:
        noise = records(config)
        noised = Noised(strategy, noise=noise, delta=config.delta)
        return masked(noised, config, max_weight=1.0, clip_range=noise.clip_range)
    if config.noise != "none":
        strategy = _noised(strategy, config)
    return _masked(strategy, config) if config.has_sums else strategy


def _averaging(config: Config) -> FedAvg:
    """Return what the server does with the mean update."""
    # Chosen shows each round's clients only, and all of them take part.
    inner: FedAvg
    match config.server:
        case "fedavgm":
            inner = FedAvgM(
                min_train_nodes=1,
                min_available_nodes=1,
                server_learning_rate=config.server_step,
                server_momentum=config.server_momentum,
            )
        case "fedadam" | "fedyogi":
            kind = FedAdam if config.server == "fedadam" else FedYogi
            inner = kind(
                min_train_nodes=1,
                min_available_nodes=1,
                eta=config.server_step,
                beta_1=config.server_beta1,
                beta_2=config.server_beta2,
                tau=config.server_tau,
            )
        case _:
            inner = FedAvg(min_train_nodes=1, min_available_nodes=1)
    inner.fraction_evaluate = 0.0  # the server evaluates; as an argument Flower warns of it
    return inner


def participation(config: Config) -> Participation:
    """Return who takes part in which round."""
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
    clipping: Clipping = FixedClip(config.clip_norm)
    if config.clipping == "adaptive":
        clipping = AdaptiveClip(config.clip_norm, quantile=config.clip_quantile)
    return Noised(
        strategy,
        noise=mechanism(config),
        clipping=clipping,
        expected_clients=float(config.cohort),
        delta=config.delta,
        seed=noise_seed(config, is_deployed()),
        clip_mean=config.clip_aggregate or None,
    )


def _masked(strategy: Strategy, config: Config) -> Strategy:
    """Return the strategy behind secure sums."""
    metrics = {"train-loss": (0.0, 16.0)}
    if config.clipping == "adaptive":
        metrics[wire.CLIP_BIT] = (0.0, 1.0)
    if config.noise_kind.added_by == "clients":
        metrics = {}  # the server would learn them without noise
    # A simulation knows its clients: the tightest limits give the finest rounding.
    largest = 1.0 if config.noise != "none" else float(load_task(config).sizes.largest)
    bounded = config.noise != "none" and config.clipping == "fixed"
    return masked(
        strategy,
        config,
        max_weight=largest,
        metrics=metrics,
        clip_range=config.clip_norm if bounded else 4.0,
    )
