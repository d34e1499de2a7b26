"""How a configuration becomes strategies and auditors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedAvgM

from leakmeter.auditors import MutualInformation, OneShotCanaries, RoundView
from leakmeter.auditors.auditor import RoundFacts
from leakmeter.auditors.hook.chain import chain
from leakmeter.fl_app import build
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.strategies import Chosen, Filled, Masked, Noised


def test_the_chain_of_strategies_has_every_seam_in_its_place() -> None:
    kinds = [type(held) for held in chain(build.server_strategy(Config()))]
    assert kinds == [Masked, Chosen, FedAvg]
    noised = Config(noise="central", clip_norm=1.0)
    kinds = [type(held) for held in chain(build.server_strategy(noised))]
    assert kinds == [Masked, Noised, Chosen, FedAvg]
    kinds = [type(held) for held in chain(build.server_strategy(replace(noised, secagg="off")))]
    assert kinds == [Noised, Chosen, FedAvg]


def test_the_server_takes_its_settings(caplog: pytest.LogCaptureFixture) -> None:
    config = Config(server="fedavgm", server_lr=0.7, server_momentum=0.4)
    *_, inner = chain(build.server_strategy(config))
    assert type(inner) is FedAvgM
    assert (inner.server_learning_rate, inner.server_momentum) == (0.7, 0.4)
    assert inner.fraction_evaluate == 0.0
    assert caplog.text == ""  # nothing about federated evaluation, which is off on purpose


def test_auditors_are_made_by_name_once_each() -> None:
    config = Config(auditors="one-shot,one-shot", canaries=20, canary_repetitions=2, delta=1e-6)
    [auditor] = build.auditors(config, 210)
    assert isinstance(auditor, OneShotCanaries)
    assert (auditor.seats, auditor.canaries, auditor.repetitions) == (10, 20, 2)
    assert (auditor.delta, auditor.seed) == (1e-6, 0)
    assert build.auditors(Config(auditors="none"), 210) == []


def test_mutual_information_takes_its_settings() -> None:
    config = Config(auditors="mutual-information", mi_every=3, mi_target=4, mi_draws=9, mi_rank=5)
    [auditor] = build.auditors(config, 210)
    assert isinstance(auditor, MutualInformation)
    assert (auditor.every, auditor.target, auditor.observer) == (3, 4, "server")
    assert (auditor.look.draws, auditor.look.rank) == (9, 5)
    noised = replace(config, mi_target=-1, mi_rank=0, noise="central", clip_norm=1.0)
    [auditor] = build.auditors(noised, 210)
    assert (auditor.target, auditor.look.rank, auditor.observer) == (None, None, "outsider")


def test_the_batch_limits_what_is_told_only_where_nothing_else_is_random(
    tiny_config: Config,
) -> None:
    rerun = replace(
        tiny_config, algorithm="fedsgd", lrt_game="rerun", auditors="mutual-information"
    )
    [auditor] = build.auditors(rerun, 210)
    assert isinstance(auditor, MutualInformation)
    assert auditor.theory.limit is not None
    known = auditor.theory.limit(0)  # 20 records, batches of 8
    assert known is not None
    assert known.nats == pytest.approx(np.log(125970))
    for other in (replace(rerun, lrt_game="independent"), replace(rerun, algorithm="fedavg")):
        [auditor] = build.auditors(other, 210)
        assert auditor.theory.limit(0) is None


def test_a_model_too_small_for_canaries_is_the_users_mistake() -> None:
    with pytest.raises(ConfigError, match=r"auditor one-shot: .* at least 100 parameters"):
        build.auditors(Config(), 99)


def test_water_filling_is_masked_and_the_server_counts_on_what_the_clients_do(
    tiny_config: Config,
) -> None:
    noise = {"noise": "wfna", "wfna_floor": 0.02, "clip_norm": 0.7, "algorithm": "fedsgd"}
    config = replace(tiny_config, auditors="none", **noise)
    masked, filled, *inner = chain(build.server_strategy(config))
    assert [type(held) for held in (masked, filled, *inner)] == [Masked, Filled, Chosen, FedAvg]
    room = 0.7 + 10 * math.sqrt(max(0.02, 0.7**2 / config.batch_size))
    assert filled.clip_range == pytest.approx(config.lr * room)


def test_the_sampler_weighs_and_clips_as_the_runs_clients_do(tiny_config: Config) -> None:
    view = RoundView(1, np.zeros(210), {}, np.zeros(210), RoundFacts())
    assert build._sampler(tiny_config, "independent", view).scale == 20.0
    noised = replace(tiny_config, noise="central", clip_norm=0.1)
    # The accounting knows no other weight.
    assert build._sampler(noised, "independent", view).scale == 1.0


def test_only_the_attack_on_a_pair_holds_its_records_out(tiny_config: Config) -> None:
    names = "likelihood-ratio,mutual-information"
    config = replace(tiny_config, auditors=names, lrt_game="independent-held-out")
    view = RoundView(1, np.zeros(210), {}, np.zeros(210), RoundFacts())
    games = {a.name: a.sampler.for_round(view).game for a in build.auditors(config, 210)}
    assert games == {
        "likelihood-ratio": "independent-held-out",
        "mutual-information": "independent",
    }
