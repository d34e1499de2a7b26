"""Puts the parts of a run together as its configuration says."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from leakmeter.auditors import (
    Auditor,
    Effort,
    LikelihoodRatio,
    MutualInformation,
    OneShotCanaries,
    RoundView,
    canary_mod,
    tap_mod,
)
from leakmeter.auditors._types import Watch
from leakmeter.auditors.hook import wire
from leakmeter.auditors.information.information import Information
from leakmeter.auditors.information.mi import batch_entropy
from leakmeter.auditors.records.auditor import RecordLikelihoodRatio
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampler import Game, PerRound
from leakmeter.clients import CohortSampler, FillMod, MaskMod, NoiseMod, update
from leakmeter.clients.identity import add_identity
from leakmeter.clients.secure_sum.mask_mod import Call
from leakmeter.clients.water_filling.fill_mod import filled_record
from leakmeter.clients.water_filling.gaussian_sampling import GaussianSampling
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.engines.ray_sampler import WhereRayRuns, threads
from leakmeter.fl_app.engines.samplers import finish_for, sampler_for
from leakmeter.fl_app.filling import beside_records, filled, filling_rule, record_case
from leakmeter.fl_app.run.deployment import cohort_seed, is_deployed, noise_seed
from leakmeter.fl_app.task import Task, load_task
from leakmeter.strategies import (
    AdaptiveClip,
    Central,
    Chosen,
    Distributed,
    EachOnce,
    FixedClip,
    FixedSize,
    Local,
    Masked,
    Noised,
    Participation,
    Poisson,
    ShuffledEpochs,
)
from leakmeter.strategies.grid import UNUSABLE
from leakmeter.strategies.noise.mechanism import Clipping, Noise


def update_rule(config: Config) -> update.UpdateRule:
    """Return what a client does with its data."""
    if config.noise == "wfna":
        return filling_rule(config)
    match config.algorithm:
        case "fedsgd":
            return update.FedSGD(config.batch_size, config.lr)
        case "fedprox":
            return update.FedProx(config.epochs, config.batch_size, config.lr, config.prox_mu)
        case "gd":
            return update.FullBatchGD(config.epochs, config.lr)
    return update.FedAvg(config.epochs, config.batch_size, config.lr)


def server_strategy(config: Config) -> Strategy:
    """Return the chain of strategies without the audit, outermost first."""
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
    seed = cohort_seed(config)
    chosen = Chosen(inner, _participation(config), num_clients=config.clients, seed=seed)
    if config.noise == "wfna":
        inside = filled(chosen, config)
        return Masked(inside, threshold=_THRESHOLD, max_weight=1.0, clip_range=inside.clip_range)
    strategy = chosen if config.noise == "none" else _noised(chosen, config)
    if config.secagg == "off":
        return strategy
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


# Shares that open a secret; also how many contributors distributed noise may count on.
_THRESHOLD = 2 / 3


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
        certain = max(math.ceil(_THRESHOLD * config.cohort - 1e-9), 2)
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
        seed=noise_seed(config),
    )


def auditors(config: Config, dim: int, watch: Watch | None = None) -> list[Auditor]:
    """Return the auditors by name; what they cannot do with this model is an error now.

    Args:
        config: Says which, and how they are set.
        dim: Number of parameters of the model.
        watch: Told which stage of a long audit is how far.
    """
    in_process = partial(_sampler, config)
    sampler = PerRound(WhereRayRuns(in_process) if config.engine == "ray" else in_process)
    makers: dict[str, Callable[[], Auditor]] = {
        "one-shot": lambda: OneShotCanaries(
            seats=config.canary_seats,
            canaries=config.canaries or None,
            repetitions=config.canary_repetitions,
            delta=config.delta,
            seed=config.seed,
        ),
        "likelihood-ratio": lambda: LikelihoodRatio(
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
            watch=watch,
        ),
        "mutual-information": lambda: MutualInformation(
            sampler,
            target=None if config.mi_target < 0 else config.mi_target,
            every=config.mi_every,
            draws=config.mi_draws,
            rank=config.mi_rank or None,
            observer="outsider" if config.noise == "central" else "server",
            limit=partial(_batch_entropy, config),
            seed=config.seed,
            watch=watch,
        ),
        "record-likelihood-ratio": lambda: RecordLikelihoodRatio(
            partial(record_case, config),
            every=config.lrt_every,
            delta=config.delta,
            seed=config.seed,
        ),
    }
    made = [makers[name]() for name in dict.fromkeys(config.auditor_names)]
    if config.noise == "wfna":
        made = beside_records(made)
    for auditor in made:
        try:
            auditor.begin(dim, config.rounds)
        except ValueError as error:
            raise ConfigError(f"auditor {auditor.name}: {error}") from None
    return made


def _sampler(config: Config, view: RoundView) -> CohortSampler:
    """Return what draws updates as the clients of this round compute and clip them."""
    finish = finish_for(config, clip_norm=view.facts.clip_norm)
    rule, game = update_rule(config), cast(Game, config.game)
    return sampler_for(load_task(config), config, rule, game, finish=finish, threads=threads())


def _batch_entropy(config: Config, client: int) -> Information | None:
    """Return what a client's batch holds at most, where nothing else is random."""
    if config.game != "rerun" or config.algorithm != "fedsgd":
        return None
    records = len(load_task(config).parts[client])
    return batch_entropy(records, min(config.batch_size or records, records))


def _task_here(config: Config) -> Task:
    """Return the task, or say which machine lacks its data."""
    try:
        return load_task(config)
    except ConfigError as error:
        raise ConfigError(f"{UNUSABLE}: node {platform.node()}, data-dir: {error}") from None


def client_app(config_of: Callable[[Context], Config]) -> ClientApp:
    """Return the client's app; `config_of` finds the configuration in the context or knows it."""
    app = ClientApp()
    add_identity(app)

    def allow_tap() -> bool:
        # In a simulation auditors may see plain updates. Asked where the client runs.
        return not is_deployed()

    def mask(message: Message, context: Context, call_next: Call) -> Message:
        config = config_of(context)
        # The run's own configuration decides.
        seed = noise_seed(config)
        mod = MaskMod(required=config.secagg == "on", allow_tap=allow_tap(), seed=seed)
        return mod(message, context, call_next)

    def noise(message: Message, context: Context, call_next: Call) -> Message:
        config = config_of(context)
        is_asked = config.noise not in ("none", "wfna")
        mod = NoiseMod(required=is_asked, allow_tap=allow_tap(), seed=noise_seed(config))
        return mod(message, context, call_next)

    def fill(message: Message, context: Context, call_next: Call) -> Message:
        mod = FillMod(required=config_of(context).noise == "wfna", allow_tap=allow_tap())
        return mod(message, context, call_next)

    @app.train(mods=[mask, fill, noise, tap_mod, canary_mod])
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        config = config_of(context)
        client = int(context.node_config["partition-id"])
        arrays, order = message.content["arrays"], message.content["config"]
        assert isinstance(arrays, ArrayRecord)
        assert isinstance(order, ConfigRecord)
        task = _task_here(config)
        net = task.new_model()
        net.load_state_dict(arrays.to_torch_state_dict())
        replay = wire.replay(message.content)  # an auditor's, which is to draw new batches
        again = () if replay is None else ("replay", replay)
        rng = stream(config.seed, "train", int(str(order["server-round"])), client, *again)
        rule = update_rule(config)
        done = rule(net, *task.examples(client), rng)
        metrics = MetricRecord({"num-examples": done.num_examples, "train-loss": done.loss})
        reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        if isinstance(rule, GaussianSampling):
            reply[wire.FILLED] = filled_record(rule, done.num_examples)
        return Message(reply, reply_to=message)

    return app
