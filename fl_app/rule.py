"""Which update rule a configuration asks for: what a client does with its data."""

from __future__ import annotations

from leakmeter.clients import update
from leakmeter.clients.water_filling.gaussian_sampling import GaussianSampling
from leakmeter.clients.water_filling.water_filling import WaterFilling
from leakmeter.fl_app.config.config import Config


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


def filling_rule(config: Config) -> GaussianSampling:
    """Return the rule of noise wfna: Gaussian sampling, filled to the floor."""
    return GaussianSampling(
        config.lr,
        config.clip_norm,
        config.batch_size,
        noise=WaterFilling(config.wfna_floor, config.wfna_blocks),
        steps=1 if config.algorithm == "fedsgd" else config.epochs,
        simulated=True,
    )
