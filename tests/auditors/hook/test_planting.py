"""Orders to plant records, the mod that reads them, and what the app gets."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from leakmeter.auditors import (
    LegacyAudited,
    PlantedRecords,
    PlantPlan,
    Secrets,
    canary_mod,
    plant_mod,
    planted,
)
from leakmeter.auditors.hook import mods, wire
from leakmeter.auditors.hook.mods import (
    Planted,
    planting_order,
    read_planting_order,
    take_planting_answer,
)
from leakmeter.auditors.values import Record
from leakmeter.fl_app.engines import inline
from leakmeter.fl_app.engines.inline import run_inline

PAIRS: list[Record] = [(np.full((2, 3), i, np.float32), np.asarray(i, np.int64)) for i in range(4)]
TEXTS: list[Record] = ["my code is 123", "ü", ""]


@pytest.fixture(autouse=True)
def _identity() -> Any:
    with inline._identified(inline._task_identity()):
        yield


def message(order: MetricRecord | None = None) -> Message:
    """Return a train message, with an order if one is given."""
    content = RecordDict({"arrays": ArrayRecord([np.ones(3)]), "config": ConfigRecord({"lr": 0.1})})
    if order is not None:
        content[wire.PLANTED] = order
    return Message(content, dst_node_id=1, message_type="train")


CONTEXT: Any = None


def call(order: MetricRecord | None, app: Any) -> Message:
    """Return what the mod replies with around an app."""
    return plant_mod(message(order), CONTEXT, app)


def replied(to: Message, _: Context) -> Message:
    """Reply with nothing but a metric."""
    return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=to)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("records", [PAIRS, TEXTS, []])
def test_an_order_arrives_as_it_was_sent(records: list[Record], copies: int) -> None:
    got = read_planting_order(planting_order(records, copies))
    assert len(got) == len(records) * copies
    for sent, come in zip(records * copies, got, strict=True):
        if isinstance(sent, str):
            assert come == sent
        else:
            assert all(np.array_equal(a, b) for a, b in zip(sent, come, strict=True))
            assert [np.asarray(part).dtype for part in come] == [np.float32, np.int64]


def test_a_message_without_an_order_passes_as_it_is() -> None:
    seen = []

    def app(given: Message, context: Context) -> Message:
        with planted(given, context) as canaries:
            assert not canaries
        seen.append(given)
        return replied(given, context)

    sent = message()
    reply = plant_mod(sent, CONTEXT, app)
    assert seen[0] is sent
    assert list(reply.content) == ["metrics"]


def test_the_app_sees_no_order_and_gets_the_records_once() -> None:
    def app(given: Message, context: Context) -> Message:
        assert list(given.content) == ["arrays", "config"]
        with planted(given, context) as canaries:
            assert list(canaries) == TEXTS
        return replied(given, context)

    sent = message(planting_order(TEXTS, 1))
    reply = plant_mod(sent, CONTEXT, app)
    assert wire.PLANTED in sent.content  # the original stays whole
    assert reply.content[wire.PLANTED] == ConfigRecord({"taken": True})
    assert take_planting_answer(reply) is True
    assert list(reply.content) == ["metrics"]
    with planted() as later:
        assert not later


def test_records_count_as_taken_only_if_the_block_ends_well() -> None:
    def app(given: Message, context: Context) -> Message:
        with pytest.raises(KeyError), planted(given, context):
            raise KeyError
        return replied(given, context)

    assert take_planting_answer(call(planting_order(TEXTS, 1), app)) is False
    assert take_planting_answer(call(planting_order(TEXTS, 1), replied)) is False


def test_an_app_that_fails_leaves_nothing_behind() -> None:
    def app(*_: Any) -> Message:
        raise RuntimeError("failed")

    with pytest.raises(RuntimeError, match="failed"):
        call(planting_order(TEXTS, 1), app)
    with planted() as later:
        assert not later


@pytest.mark.parametrize("records", [PAIRS, []])
def test_records_join_a_torch_data_set_in_one_line(records: list[Record]) -> None:
    mine = TensorDataset(torch.zeros(5, 2, 3), torch.zeros(5, dtype=torch.int64))
    both = ConcatDataset([mine, Planted(records, 2)])  # type: ignore[list-item]
    batches = list(DataLoader(both, batch_size=4, shuffle=True))
    assert sum(len(x) for x, _ in batches) == 5 + 2 * len(records)
    assert {x.dtype for x, _ in batches} == {torch.float32}


def test_items_take_the_form_of_the_apps_own() -> None:
    canaries = Planted(PAIRS)
    x, y = canaries.like((torch.zeros(2, 3, dtype=torch.float64), 7))[2]
    assert x.dtype == torch.float64
    assert (type(y), y) == (int, 2)
    item = canaries.like({"img": np.zeros((2, 3), np.float16), "label": np.int32(0)})[1]
    assert {key: value.dtype for key, value in item.items()} == {"img": "float16", "label": "int32"}
    assert len(canaries.like((x, y))) == 4


def test_records_are_appended_to_arrays_in_their_types() -> None:
    x, y = Planted(PAIRS, 2).append(np.zeros((5, 2, 3)), np.zeros(5, np.int32))
    assert (x.shape, y.tolist()) == ((13, 2, 3), [0] * 5 + [0, 1, 2, 3] * 2)
    assert (x.dtype, y.dtype) == (np.float64, np.int32)
    same = np.zeros((5, 4)), np.zeros(5)
    assert Planted().append(*same)[0] is same[0]
    with pytest.raises(ValueError, match=r"x and y must have records of the shapes"):
        Planted(PAIRS).append(*same)
    with pytest.raises(ValueError, match="texts"):
        Planted(TEXTS).append(*same)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
def test_numbers_that_another_type_would_change_are_refused(dtype: str) -> None:
    thirds: list[Record] = [(np.full((2,), 1 / 3, np.float32), np.asarray(1))]
    own = np.zeros((4, 2), dtype)
    with pytest.raises(ValueError, match=f"must fit into {dtype}.*from 0.33.* to 0.33"):
        Planted(thirds).append(own, np.zeros(4, np.int64))
    for item in (own[0], torch.from_numpy(own[0])):
        with pytest.raises(ValueError, match=f"must fit into {dtype}"):
            Planted(thirds).like((item, 1))[0]
    labels: list[Record] = [(np.zeros(2, np.float32), np.asarray(300))]
    with pytest.raises(ValueError, match="must fit into uint8"):
        Planted(labels).append(np.zeros((4, 2)), np.zeros(4, np.uint8))
    half = Planted(thirds).like((torch.zeros(2, dtype=torch.bfloat16), np.int32(0)))[0][0]
    assert half.dtype == torch.bfloat16  # a rounding is no other number


GOOD = planting_order(PAIRS, 2)
WORDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)


@given(WORDS, st.integers(-10, 400), st.integers(-2, 20_000))
def test_orders_of_anything_are_refused_and_never_crash(
    words: list[int], size: int, copies: int
) -> None:
    with pytest.raises(wire.WireError):
        read_planting_order(MetricRecord({"words": words, "bytes": size, "copies": copies}))


@given(st.integers(0, len(GOOD["words"]) - 1), st.integers(-(2**63), 2**63 - 1))  # type: ignore[arg-type]
def test_an_order_with_one_changed_word_is_read_or_refused(place: int, word: int) -> None:
    words = list(GOOD["words"])  # type: ignore[arg-type]
    words[place] = word
    try:
        got = read_planting_order(MetricRecord({**GOOD, "words": words}))
    except wire.WireError:
        return
    assert len(got) <= mods.MAX_BYTES
    assert all(np.isfinite(np.asarray(x)).all() for x, _ in got)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"copies": 0}, "copies must be in"),
        ({"copies": 1.5}, "copies must be in"),
        ({"copies": 10_001}, "copies must be in"),
        ({"bytes": 2**40}, "at most"),
        ({"bytes": 10**6}, "words must hold 1000000 bytes"),
        ({"words": [0.5]}, "words must hold"),
        ({"more": 1}, "other fields"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(wire.WireError, match=said):
        read_planting_order(MetricRecord({**GOOD, **change}))


def test_records_that_are_not_finite_are_refused() -> None:
    bad: list[Record] = [(np.array([np.inf], np.float32), np.asarray(0))]
    with pytest.raises(wire.WireError, match="records must be finite"):
        read_planting_order(planting_order(bad, 1))


def test_an_order_too_large_is_refused_where_it_is_made(monkeypatch: Any) -> None:
    monkeypatch.setattr(mods, "MAX_BYTES", 2**10)
    large: list[Record] = [(np.zeros(2**6), np.asarray(0))] * 2
    with pytest.raises(ValueError, match="use fewer canaries, or more clients"):
        planting_order(large, 1)


@given(st.one_of(st.booleans(), st.text(max_size=5), st.integers(0, 3), st.binary(max_size=3)))
def test_a_client_may_answer_anything(said: Any) -> None:
    with inline._identified(inline._task_identity()):
        reply = Message(RecordDict(), reply_to=message())
        reply.content[wire.PLANTED] = ConfigRecord({"taken": said})
        assert take_planting_answer(reply) is (said is True)
        assert not reply.content
        reply.content[wire.PLANTED] = MetricRecord({"taken": 1})
        assert take_planting_answer(copy.copy(reply)) is False


class Client(NumPyClient):
    """A legacy client that notes the texts that it takes."""

    def __init__(self, seen: list[str], told: list[str]) -> None:
        self.seen, self.told = seen, told

    def fit(self, parameters: Any, config: dict[str, Any]) -> tuple[Any, int, dict[str, Any]]:
        with planted() as canaries:
            self.seen += canaries
        self.told += config
        return [parameters[0] + 1], 1, {}


@pytest.mark.parametrize("mods", [[plant_mod], [plant_mod, canary_mod], [canary_mod, plant_mod]])
def test_legacy_apps_take_records_as_well(mods: list[Any]) -> None:
    seen: list[str] = []
    told: list[str] = []
    plan = PlantPlan(12, 3)

    def losses(_: Any, texts: Any) -> list[float]:
        return [0.0] * len(texts)

    auditor = PlantedRecords(Secrets("{digits:5}"), losses, plan, decoys=100)
    strategy = LegacyAudited(
        FedAvg(fraction_evaluate=0.0, initial_parameters=ndarrays_to_parameters([np.zeros(200)])),
        [auditor],
        num_rounds=1,
    )
    config = ServerConfig(num_rounds=1)
    server = ServerApp(server_fn=lambda _: ServerAppComponents(strategy=strategy, config=config))
    client = ClientApp(client_fn=lambda _: Client(seen, told).to_client(), mods=mods)
    run_inline(server, client, 4)
    numbers = [n for c in range(3) for n in plan.planted(c)]
    assert sorted(seen) == sorted(map(str, auditor.generator.draw(0, numbers)))
    assert wire.PLANTED not in told
    assert [one.kind for one in strategy.audit.warnings] == ["trained-on-canaries"]
