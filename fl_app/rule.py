"""Which update rule a configuration asks for: what a client does with its data."""

from __future__ import annotations

from functools import partial

from leakmeter.clients import update
from leakmeter.clients.protection.gaussian_sampling import GaussianSampling, Isotropic
from leakmeter.clients.protection.water_filling import WaterFilling
from leakmeter.fl_app.config.config import Config


def update_rule(config: Config) -> update.LocalSteps | GaussianSampling:
    """Return what a client does with its data."""
    if config.hides_records:
        return record_rule(config)
    match config.algorithm:
        case "fedsgd":
            return update.fedsgd(config.batch_size, config.lr)
        case "fedprox":
            return update.fedprox(config.epochs, config.batch_size, config.lr, config.prox_mu)
        case "gd":
            return update.gd(config.epochs, config.lr)
    return update.fedavg(config.epochs, config.batch_size, config.lr)


def record_rule(config: Config) -> GaussianSampling:
    """Return the rule of a noise for single records.

    With wfna it is Gaussian sampling, filled to the floor; with the others, isotropic noise of that
    variance on a minibatch, on the full gradient or on Gaussian sampling.
    """
    make = partial(GaussianSampling, config.lr, config.clip_norm, simulated=True)
    noise = Isotropic(config.wfna_floor)
    match config.noise:
        case "record-sgd":
            return make(config.batch_size, "minibatch", noise)
        case "record-gd":
            return make(0, "full", noise)
        case "record-isotropic":
            return make(config.batch_size, "gaussian", noise)
    filling = WaterFilling(config.wfna_floor, config.wfna_blocks)
    steps = 1 if config.algorithm == "fedsgd" else config.epochs
    return make(config.batch_size, "gaussian", filling, steps)
