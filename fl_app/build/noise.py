"""Makes the mechanism of a run's noise from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from leakmeter.fl_app.build.secure_sum import topology
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.task import load_task
from leakmeter.fl_app.training import record_rule
from leakmeter.strategies import Central, Distributed, Local, Mechanism, RecordNoise


def mechanism(config: Config) -> Mechanism:
    """Return the mechanism that the table of noises names."""
    module, _, function = config.noise_kind.make.partition(":")
    make: Callable[[Config], Mechanism] = getattr(import_module(module), function)
    return make(config)


def central(config: Config) -> Central:
    """Return noise that the server adds."""
    return Central(config.noise_multiplier, config.noise_distribution)


def distributed(config: Config) -> Distributed:
    """Return noise that all clients add together.

    The target is reached by those who are certain to be there, less those who may collude.
    """
    plan = topology(config).plan(config.cohort)
    certain = plan.least or plan.threshold - plan.bearable(config.cohort)
    return Distributed(
        config.noise_multiplier, min_honest=certain, distribution=config.noise_distribution
    )


def local(config: Config) -> Local:
    """Return noise that each client adds for itself."""
    return Local(config.noise_multiplier)


def records(config: Config) -> RecordNoise:
    """Return noise for single records."""
    rule, sizes = record_rule(config), load_task(config).sizes
    if rule.sampling == "minibatch" and rule.batch_size > sizes.smallest:
        allowed = (
            f"at most {sizes.smallest}, the fewest records of a client, with --noise record-sgd"
        )
        raise out_of_range("--batch-size", allowed, rule.batch_size)
    return RecordNoise(
        sigma2=config.wfna_floor,
        clip_norm=rule.clip_norm,
        batch_size=rule.batch_size,
        examples=sizes.smallest,
        lr=rule.lr,
        steps=rule.steps,
        kind=rule.mechanism,
    )
