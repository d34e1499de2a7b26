"""Builds the chain of strategies of a run from its configuration."""

from __future__ import annotations

from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from leakmeter.auditors.hook import wire
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.deployment import cohort_seed, is_deployed, noise_seed
from leakmeter.fl_app.rule import filling_rule
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
        participation(config),
        num_clients=config.clients,
        seed=cohort_seed(config),
        needs_answers=not is_deployed(),
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
