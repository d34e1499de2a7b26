"""Which update rule a configuration asks for."""

from __future__ import annotations

from leakmeter.clients import update
from leakmeter.clients.water_filling import GaussianSampling, WaterFilling
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.rule import filling_rule, update_rule


def test_the_clients_rule_is_the_one_configured() -> None:
    steps = {"epochs": 3, "batch_size": 4, "lr": 0.5}
    assert update_rule(Config(**steps)) == update.FedAvg(**steps)
    assert update_rule(Config(algorithm="fedsgd", **steps)) == update.FedSGD(4, 0.5)
    prox = update_rule(Config(algorithm="fedprox", prox_mu=0.2, **steps))
    assert prox == update.FedProx(**steps, mu=0.2)
    assert update_rule(Config(algorithm="gd", **steps)) == update.FullBatchGD(3, 0.5)


def test_water_filling_takes_one_step_with_fedsgd_and_one_per_epoch_with_fedavg() -> None:
    noise = {"noise": "wfna", "wfna_floor": 0.02, "wfna_blocks": 3, "clip_norm": 0.7}
    config = Config(algorithm="fedsgd", lr=0.5, batch_size=4, epochs=3, **noise)
    filling = WaterFilling(0.02, blocks=3)
    assert update_rule(config) == GaussianSampling(0.5, 0.7, 4, noise=filling, simulated=True)
    assert filling_rule(Config(algorithm="fedavg", epochs=3, **noise)).steps == 3
