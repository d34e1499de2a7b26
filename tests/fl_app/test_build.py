"""How a configuration becomes strategies, auditors and a client's app."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM

from leakmeter.auditors import MutualInformation, OneShotCanaries
from leakmeter.auditors.hook.chain import chain
from leakmeter.clients import update
from leakmeter.fl_app import build
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.engines import inline
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.fl_app.task import load_task
from leakmeter.strategies import Chosen, Masked, Noised


def test_the_clients_rule_is_the_one_configured() -> None:
    fedavg = build.update_rule(Config(epochs=3, batch_size=4, lr=0.5))
    assert fedavg == update.FedAvg(epochs=3, batch_size=4, lr=0.5)
    fedsgd = build.update_rule(Config(algorithm="fedsgd", batch_size=4, lr=0.5))
    assert fedsgd == update.FedSGD(batch_size=4, lr=0.5)


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


def trained(config: Config, client: int, server_round: int) -> tuple[np.ndarray, Message]:
    """Return a client's new parameters as one vector, and its whole reply, in clear."""
    config = replace(config, secagg="off")
    order = ConfigRecord({"server-round": server_round})
    content = RecordDict({"arrays": load_task(config).initial_arrays(), "config": order})
    with inline._identified(inline._task_identity()):
        grid = InlineGrid(build.client_app(lambda _: config), config.clients)
        message = Message(content, dst_node_id=client + 1, message_type="train")
        [reply] = grid.send_and_receive([message])
    arrays = reply.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    return np.concatenate([a.numpy().ravel() for a in arrays.values()]), reply


def test_a_reply_carries_the_model_the_weight_and_the_loss(tiny_config: Config) -> None:
    vector, reply = trained(tiny_config, 0, 1)
    assert vector.shape == (210,)
    metrics = reply.content["metrics"]
    assert set(metrics) == {"num-examples", "train-loss"}
    assert metrics["num-examples"] == 20


def test_training_depends_on_round_and_client_and_is_repeatable(tiny_config: Config) -> None:
    vector, _ = trained(tiny_config, 2, 3)
    assert np.array_equal(trained(tiny_config, 2, 3)[0], vector)
    assert not np.array_equal(trained(tiny_config, 2, 4)[0], vector)
    assert not np.array_equal(trained(tiny_config, 1, 3)[0], vector)


def test_the_batches_of_a_client_have_a_stream_of_their_own(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str | int, ...]] = []

    def noted(*path: str | int) -> np.random.Generator:
        asked.append(path)
        return np.random.default_rng(0)

    config = replace(tiny_config, seed=5)
    load_task(config)
    monkeypatch.setattr(build, "stream", noted)
    trained(config, 2, 3)
    assert asked == [(5, "train", 3, 2)]


def test_a_client_of_a_masked_run_never_answers_in_clear(tiny_config: Config) -> None:
    content = RecordDict({"arrays": load_task(tiny_config).initial_arrays()})
    with inline._identified(inline._task_identity()):
        grid = InlineGrid(build.client_app(lambda _: tiny_config), tiny_config.clients)
        [reply] = grid.send_and_receive([Message(content, dst_node_id=1, message_type="train")])
    assert reply.has_error()
    assert "this client masks" in reply.error.reason


def test_training_uses_one_thread(tiny_config: Config) -> None:
    torch.set_num_threads(2)
    trained(tiny_config, 0, 1)
    assert torch.get_num_threads() == 1
