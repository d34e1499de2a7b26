"""Which update rule a configuration asks for."""

from __future__ import annotations

from leakmeter.clients import update
from leakmeter.clients.protection.record_rule import GaussianSampling, Isotropic, WaterFilling
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.task import record_rule, update_rule


def test_the_clients_rule_is_the_one_configured() -> None:
    steps = {"epochs": 3, "batch_size": 4, "lr": 0.5}
    assert update_rule(Config(**steps)) == update.fedavg(**steps)
    assert update_rule(Config(algorithm="fedsgd", **steps)) == update.fedsgd(4, 0.5)
    prox = update_rule(Config(algorithm="fedprox", prox_mu=0.2, **steps))
    assert prox == update.fedprox(**steps, mu=0.2)
    assert update_rule(Config(algorithm="gd", **steps)) == update.gd(3, 0.5)


def test_water_filling_takes_one_step_with_fedsgd_and_one_per_epoch_with_fedavg() -> None:
    noise = {"noise": "wfna", "wfna_floor": 0.02, "wfna_blocks": 3, "clip_norm": 0.7}
    config = Config(algorithm="fedsgd", lr=0.5, batch_size=4, epochs=3, **noise)
    filling = WaterFilling(0.02, blocks=3)
    assert update_rule(config) == GaussianSampling(0.5, 0.7, 4, noise=filling, simulated=True)
    assert record_rule(Config(algorithm="fedavg", epochs=3, **noise)).steps == 3


def test_noise_for_records_is_isotropic_on_the_gradient_that_its_name_says() -> None:
    own = {"wfna_floor": 0.02, "clip_norm": 0.7, "lr": 0.5, "batch_size": 4}
    noise = Isotropic(0.02)
    sgd = update_rule(Config(noise="record-sgd", algorithm="fedsgd", **own))
    assert sgd == GaussianSampling(0.5, 0.7, 4, "minibatch", noise, simulated=True)
    full = update_rule(Config(noise="record-gd", algorithm="gd", epochs=1, **own))
    assert full == GaussianSampling(0.5, 0.7, 0, "full", noise, simulated=True)
    sampled = update_rule(Config(noise="record-isotropic", algorithm="fedsgd", **own))
    assert sampled == GaussianSampling(0.5, 0.7, 4, "gaussian", noise, simulated=True)
