"""The client's app: what it sends, what it refuses, and what a deployment takes from it."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from leakmeter.auditors.hook import wire
from leakmeter.clients.secure_sum.wire import put_by_number
from leakmeter.fl_app import client_app
from leakmeter.fl_app import task as training
from leakmeter.fl_app.client_app import client_app_of
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.engines import inline
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.fl_app.task import load_task
from tests.helpers.runs import replies_of, train_order


def vector(reply: Message) -> np.ndarray:
    """Return the model of a reply as one vector."""
    return np.concatenate([a.numpy().ravel() for a in wire.arrays(reply.content).values()])


def trained(config: Config, client: int, server_round: int) -> tuple[np.ndarray, Message]:
    """Return a client's new parameters as one vector, and its whole reply, in clear."""
    config = replace(config, secagg="off")
    [reply] = replies_of(config, (client, train_order(config, server_round)))
    return vector(reply), reply


def test_a_reply_carries_model_weight_and_loss_after_training_on_one_thread(
    tiny_config: Config,
) -> None:
    torch.set_num_threads(2)
    vector, reply = trained(tiny_config, 0, 1)
    assert vector.shape == (210,)
    metrics = reply.content["metrics"]
    assert set(metrics) == {"num-examples", "train-loss"}
    assert metrics["num-examples"] == 20
    assert torch.get_num_threads() == 1


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
    monkeypatch.setattr(training, "stream", noted)
    trained(config, 2, 3)
    assert asked == [(5, "train", 3, 2)]


def test_a_client_of_a_masked_run_never_answers_in_clear(tiny_config: Config) -> None:
    [reply] = replies_of(tiny_config, (0, train_order(tiny_config)))
    assert "this client masks" in reply.error.reason


def test_a_message_that_does_not_say_its_round_is_refused(tiny_config: Config) -> None:
    config = replace(tiny_config, secagg="off")
    for order in (ConfigRecord(), ConfigRecord({"server-round": "1"})):
        content = RecordDict({**train_order(config), "config": order})
        [reply] = replies_of(config, (0, content))
        assert "server-round must be a whole number, got" in reply.error.reason


# What the client's owner allows.


def test_policies_are_resolved_once_and_are_those_of_the_configuration(tiny_config: Config) -> None:
    local = replace(tiny_config, noise="local", clip_norm=1.0, secagg="off", seed=7)
    assert client_app._policies(local, False) is client_app._policies(replace(local), False)
    allowed = client_app._policies(local, False)
    assert [mod.required for mod in (allowed.mask, allowed.noise)] == [0, 1]
    assert (allowed.mask.seed, allowed.noise.seed) == (7, 7)
    masked = client_app._policies(tiny_config, False)
    assert [mod.required for mod in (masked.mask, masked.noise)] == [1, 0]
    filled = {"noise": "wfna", "wfna_floor": 1e-4, "clip_norm": 1.0, "algorithm": "fedsgd"}
    own = client_app._policies(replace(tiny_config, **filled), False)
    assert [mod.required for mod in (own.mask, own.noise)] == [1, 1]
    assert [each.noise.unit for each in (allowed, masked, own)] == ["client", "client", "record"]


def test_a_deployed_client_has_no_seed_and_no_tap(tiny_config: Config) -> None:
    deployed = client_app._policies(tiny_config, True)
    assert (deployed.mask.seed, deployed.noise.seed) == (None, None)
    for mod in (deployed.mask, deployed.noise):
        assert not mod.allow_tap


def test_a_client_insists_on_the_threshold_of_its_owner(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage(node: int, name: str, **order: Any) -> Message:
        record = ConfigRecord({"stage": name, "round": 1, "number": node, **order})
        return Message(RecordDict({wire.MASK: record}), dst_node_id=node, message_type="train")

    monkeypatch.setattr(client_app, "own_threshold", lambda *_: 3)
    with inline._identified(inline._task_identity()):
        grid = InlineGrid(client_app_of(tiny_config), 3)
        replies = list(grid.send_and_receive([stage(node, "keys") for node in (1, 2, 3)]))
        keys = [bytes(r.content.config_records[wire.MASK]["keys"]) for r in replies]  # type: ignore[arg-type]
        shown = put_by_number("keys", {2: keys[1], 3: keys[2]})
        [low] = grid.send_and_receive([stage(1, "shares", threshold=2, **shown)])
        [high] = grid.send_and_receive([stage(1, "shares", threshold=3, **shown)])
    assert "threshold must be at least 3, got 2" in low.error.reason
    assert high.has_content()


def test_a_process_that_turns_out_to_be_deployed_leaves_the_simulated_policies(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny_config, noise="local", clip_norm=1.0, secagg="off")
    noise = {"clip-norm": 1.0, "share-std": 0.5, "weight-key": "num-examples", "round": 1}
    content = train_order(config, **{wire.NOISE: ConfigRecord(noise)})
    collect = RecordDict({wire.TAP: wire.collect_record(1, wire.WEIGHT)})
    app = client_app_of(config)

    def noised() -> np.ndarray:
        [reply] = replies_of(config, (0, content), app=app)
        return vector(reply)

    assert np.array_equal(noised(), noised())  # named by the seed
    [reply] = replies_of(config, (0, collect), app=app)
    assert "nothing is kept for round 1" in reply.error.reason  # the tap itself was asked
    monkeypatch.setitem(sys.modules, "flwr.supernode.cli", ModuleType("flwr.supernode.cli"))
    assert not np.array_equal(noised(), noised())
    [reply] = replies_of(config, (0, collect), app=app)
    assert "this client clips" in reply.error.reason


def test_keys_that_cannot_be_read_are_refused_without_a_path(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_app, "is_deployed", lambda: True)
    monkeypatch.setenv("LEAKMETER_IDENTITY", "/secret/place/key")
    monkeypatch.setenv("LEAKMETER_TRUSTED", "/secret/place/list")
    order = ConfigRecord({"stage": "keys", "round": 1, "number": 1})
    [reply] = replies_of(tiny_config, (0, RecordDict({wire.MASK: order})))
    assert "its own log says why" in reply.error.reason
    assert "secret" not in reply.error.reason
    assert "/secret/place" in caplog.text
