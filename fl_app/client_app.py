"""The client: the mods that a message passes on its way to `train`, and its reply on the way out.

Flower's launches find `app`, which reads the run's own configuration. Where the configuration is
known beforehand, `client_app_of` makes the same app for it.
"""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, TypeAlias

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors import canary_mod, tap_mod
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.mods import Call, OrderedMod
from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients import MaskMod, NoiseMod
from leakmeter.clients.node import DropoutMod, add_identity
from leakmeter.clients.protection.noise_mod import filled_record
from leakmeter.clients.protection.record_rule import GaussianSampling
from leakmeter.clients.secure_sum.signing import Identity, TrustedKeys
from leakmeter.fl_app.config.config import Config, from_context
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.deployment import client_keys, is_deployed, noise_seed, own_threshold
from leakmeter.fl_app.task import Task, device_of, load_task, train_client, update_rule
from leakmeter.strategies.flower import UNUSABLE

Mod: TypeAlias = Callable[[Message, Context, Call], Message]

_log = logging.getLogger("flwr")
_HIDDEN = "Flower's simulation hides GPUs unless client-resources-num-gpus is above 0."
_NO_KEYS = "this client's keys or its least threshold cannot be used; its own log says why"


def client_app_of(
    config: Config | None = None, *innermost: Mod, masks: type[MaskMod] = MaskMod
) -> ClientApp:
    """Return the client's app for a configuration, or for that of each message's context.

    Args:
        config: The configuration; None takes that of the context.
        innermost: Further mods, next to the training: a rehearsal measures there.
        masks: What takes part in secure sums.
    """
    app = ClientApp()
    add_identity(app)

    def config_of(context: Context) -> Config:
        return from_context(context) if config is None else config

    def policies(context: Context) -> _Policies:
        return _policies(config_of(context), is_deployed(), masks)  # type: ignore[arg-type]

    def mask(message: Message, context: Context, call_next: Call) -> Message:
        own, deployed, mod = config_of(context), is_deployed(), policies(context).mask
        try:
            keys, least = client_keys(own, deployed, context), own_threshold(context, deployed)
        except ConfigError as error:  # it names files of this machine, and an error travels
            _log.error("this client takes part in no secure sum: %s", error)
            raise RefusedError(_NO_KEYS) from None
        if least is not None:
            mod = replace(mod, min_threshold=least)
        if keys is not None:
            mod = _signing(mod, *keys)
        return mod(message, context, call_next)

    def drop_out(message: Message, context: Context, call_next: Call) -> Message:
        return policies(context).dropout(message, context, call_next)

    # From the wire inwards: a message passes from left to right, its reply from right to left.
    @app.train(mods=[drop_out, mask, NoiseOfRun(policies), tap_mod, canary_mod, *innermost])
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        own = config_of(context)
        task, rule = _task_here(own), update_rule(own)
        client = int(context.node_config["partition-id"])
        arrays, done = train_client(own, rule, task, message, client)
        metrics = MetricRecord({"num-examples": done.num_examples, "train-loss": done.loss})
        reply = RecordDict({"arrays": arrays, "metrics": metrics})
        if isinstance(rule, GaussianSampling):
            reply[wire.FILLED] = filled_record(rule, done.num_examples)
        return Message(reply, reply_to=message)

    return app


@dataclass(frozen=True)
class NoiseOfRun(OrderedMod):
    """Noises as the run that a message belongs to says."""

    carries_out: ClassVar[frozenset[str]] = NoiseMod.carries_out

    policies: Callable[[Context], _Policies]

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Let the mod of this run answer."""
        return self.policies(context).noise(message, context, call_next)


@dataclass(frozen=True)
class _Policies:
    """What the client's owner allows the server to ask for, one mod each."""

    dropout: DropoutMod
    mask: MaskMod
    noise: NoiseMod


# Once per configuration. Every message asks again whether this is a deployment, and the answer is
# part of the key: a deployment must never keep using the seed and tap of a simulation.
@lru_cache(maxsize=8)
def _policies(config: Config, deployed: bool, masks: type[MaskMod] = MaskMod) -> _Policies:
    seed, allow_tap = noise_seed(config, deployed), not deployed
    return _Policies(
        dropout=DropoutMod(0.0 if deployed else config.dropout, config.seed),
        mask=masks(
            required=config.has_sums,
            colluders=max(config.colluders, 0),
            allow_tap=allow_tap,
            seed=seed,
            outside=["drop_out"],
        ),
        noise=NoiseMod(
            required=config.noise != "none",
            unit=config.noise_kind.unit or "client",
            allow_tap=allow_tap,
            seed=seed,
        ),
    )


@lru_cache(maxsize=4096)
def _signing(mod: MaskMod, identity: Identity, trusted: TrustedKeys) -> MaskMod:
    """Return the mod of a client with keys: it takes part in signed sums alone."""
    return replace(mod, required=True, identity=identity, trusted=trusted)


def _task_here(config: Config) -> Task:
    """Return the task, or say which machine lacks its data or the device."""
    # The server may be another's: it does not say what this machine fetches, and where to.
    may_fetch = config.download and not is_deployed()
    lacks = "device"
    try:
        device_of(config.device)
        lacks = "data-dir"
        return load_task(replace(config.task, download=may_fetch))
    except ConfigError as error:
        why = f"{error} {_HIDDEN}" if lacks == "device" else error
        raise ConfigError(f"{UNUSABLE}: node {platform.node()}, {lacks}: {why}") from None


app = client_app_of()

# Flower's simulation loads this file before it starts its workers; a deployment has neither.
if "flwr.server.superlink.fleet.vce" in sys.modules:
    from leakmeter.fl_app.engines.cluster import use_steady_pool

    use_steady_pool()
