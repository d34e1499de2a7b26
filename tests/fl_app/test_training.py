"""Clients that train together behind their messages: the same replies as each alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from leakmeter.auditors.hook import wire
from leakmeter.clients.update import LocalSteps
from leakmeter.fl_app import task as training
from leakmeter.fl_app.client_app import client_app_of
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.engines import inline
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.fl_app.task import load_task
from leakmeter.strategies.flower import current_delivery


def replies(config: Config, *, together: bool, models: int = 1) -> list[RecordDict]:
    """Return what all clients answer to one push, or to a push for each."""
    config = replace(config, secagg="off")
    arrays = load_task(config).initial_arrays()
    with inline._identified(inline._task_identity()):
        grid = InlineGrid(client_app_of(config), config.clients)
        messages = []
        for client in range(config.clients):
            # A second model, or round, makes a second job.
            order = ConfigRecord({"server-round": 1 + client % models})
            content = RecordDict({"arrays": arrays, "config": order})
            messages.append(Message(content, dst_node_id=client + 1, message_type="train"))
        pushes = [messages] if together else [[message] for message in messages]
        return [reply.content for push in pushes for reply in grid.send_and_receive(push)]


@pytest.mark.parametrize("change", [{}, {"model": "mlp"}, {"algorithm": "fedprox"}])
@pytest.mark.parametrize("models", [1, 2])
def test_clients_of_one_push_answer_as_each_alone(
    tiny_config: Config, change: dict[str, Any], models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny_config, synthetic_examples=125, **change)  # 20 or 21 records a client
    alone = replies(config, together=False, models=models)
    groups: list[int] = []
    usual = LocalSteps.train_together

    def counted(rule: LocalSteps, *about: Any) -> Any:
        # A client alone is a group of one.
        groups.extend([len(about[-1])] * (len(about[-1]) > 1))
        return usual(rule, *about)

    monkeypatch.setattr(LocalSteps, "train_together", counted)
    assert replies(config, together=True, models=models) == alone
    sizes = enumerate(map(len, load_task(config).parts))
    jobs = Counter((size, client % models) for client, size in sizes)
    assert sorted(groups) == sorted(size for size in jobs.values() if size > 1)


def test_a_message_that_was_changed_on_its_way_trains_alone(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny_config, secagg="off")
    honest = replies(config, together=True)
    seen: list[int] = []
    usual = training._Job.of

    def changed(message: Message) -> training._Job:
        """Return another round's job once client 3 trains."""
        job = usual(message)
        if current_delivery() is not None and message.metadata.dst_node_id == 4 and seen:
            return replace(job, server_round=7)
        seen.append(1)
        return job

    monkeypatch.setattr(training._Job, "of", staticmethod(changed))
    other = replies(config, together=True)
    same = [a == b for a, b in zip(honest, other, strict=True)]
    assert same == [True, True, True, False, True, True]


def test_a_model_that_is_not_dense_trains_alone(tiny_config: Config) -> None:
    slp = replace(tiny_config, model="slp")  # it ends in a ReLU
    assert replies(slp, together=True) == replies(slp, together=False)


def test_replays_draw_other_batches_together_too(tiny_config: Config) -> None:
    config = replace(tiny_config, secagg="off")
    arrays = load_task(config).initial_arrays()
    with inline._identified(inline._task_identity()):
        grid = InlineGrid(client_app_of(config), config.clients)
        contents = [
            RecordDict(
                {
                    "arrays": arrays,
                    "config": ConfigRecord({"server-round": 1}),
                    wire.REPLAY: wire.replay_record(number),
                }
            )
            for number in (0, 1)
        ]
        push = [
            Message(content, dst_node_id=node, message_type="train")
            for content in contents
            for node in (1, 2)
        ]
        models = [wire.arrays(reply.content) for reply in grid.send_and_receive(push)]
    assert len({str(model["1.weight"].data) for model in models}) == 4
