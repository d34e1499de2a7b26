"""Replays over the grid: honest training, nothing disturbed, and plain words where it cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from leakmeter.auditors import canary_mod, tap_mod
from leakmeter.auditors.auditor import Canary, RoundMessages
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Order
from leakmeter.auditors.hook.layout import Layout, LazyModel
from leakmeter.auditors.hook.open_round import OpenRound, collect_truth
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.replay import ReplayError, ReplaySampler
from leakmeter.clients import MaskMod
from tests.helpers.numbers import few_or_many
from tests.helpers.refusals import refuses

CLIENTS = [0, 1, 2, 3]


class Round:
    """A federation whose clients draw batches of their own, and a round that was sent to it."""

    def __init__(self, federation: Any, *, seeded: str = "", **options: Any) -> None:
        class Foreign(federation):  # type: ignore[misc]
            draws = np.random.default_rng(0)  # a foreign app's global generator

            def trained(self, client: int, arrays: Any) -> dict[str, np.ndarray]:
                models = super().trained(client, arrays)
                batch = self.draws.standard_normal(132) * (client + 1)
                models["w"] = models["w"] + batch[:120].reshape(10, 12).astype(np.float32)
                models["b"] = models["b"] + batch[120:]
                return models

        self.federation = Foreign(4, **options)
        if seeded:
            self._seed(seeded)
        self.arrays = self.federation.arrays()
        self.layout = Layout.of(self.arrays)
        self.sent = self.layout.flatten(self.arrays)
        config = ConfigRecord({"server-round": 1})
        shared = RecordDict({"arrays": self.arrays, "config": config})
        self.messages = {
            client: Message(shared, dst_node_id=client + 1, message_type="train")
            for client in CLIENTS
        }

    def _seed(self, how: str) -> None:
        """Let the clients seed their batches by the round, or by round and replay."""
        inner = self.federation.grid._app

        def app(message: Message, context: Any) -> Message:
            replay = wire.replay_number(message.content) if how == "replay" else None
            self.federation.draws = stream(0, int(context.node_config["partition-id"]), replay or 0)
            return inner(message, context)

        self.federation.grid._app = app

    def order(self, key: str, record: ConfigRecord) -> None:
        for message in self.messages.values():
            wire.add_record(message, key, record)

    def bound(self, **options: Any) -> ReplaySampler:
        sampler = ReplaySampler(**options)
        about = (self.layout, LazyModel(self.layout, self.arrays), wire.WEIGHT)
        sampler.bind(RoundMessages(self.federation.grid, self.messages, *about))
        return sampler

    def expected(self, client: int) -> np.ndarray:
        """Return the client's update without its own randomness."""
        plain = super(type(self.federation), self.federation).trained(client, self.arrays)
        return np.concatenate([plain["w"].ravel(), plain["b"]]) - self.sent


@pytest.mark.parametrize("draws", few_or_many(50, 200))
def test_replays_have_the_law_of_the_clients_updates_times_their_weights(federation, draws) -> None:
    of = Round(federation)
    rows = np.concatenate(list(of.bound(chunk=30).sample(of.sent, CLIENTS, draws, ("a",))))
    assert rows.shape == (draws, 4, 132)
    for place, client in enumerate(CLIENTS):
        weight, std = 10 * (client + 1), client + 1
        updates = rows[:, place] / weight
        found = updates.mean(axis=0) - of.expected(client)
        assert np.abs(found).max() < 5 * std / np.sqrt(draws)
        assert updates.std(axis=0).mean() == pytest.approx(std, rel=0.05)


def test_moments_add_up_the_clients_own_laws(federation) -> None:
    of = Round(federation)
    found = of.bound(chunk=30).moments(of.sent, [0, 2], 80, ("a",))
    truth = (10 * 1) ** 2 + (30 * 3) ** 2
    assert np.diag(found.covariance).mean() == pytest.approx(truth, rel=0.06)
    assert np.diag(found.covariance).mean() != pytest.approx((10 * 1 + 30 * 3) ** 2, rel=0.06)
    assert found.count - 1 == 2 * 79
    mean = 10 * of.expected(0) + 30 * of.expected(2)
    assert np.abs(found.mean - mean).max() < 5 * np.sqrt(truth / 80)


def test_sums_and_projections_keep_shape(federation) -> None:
    of = Round(federation)
    sampler, matrix = of.bound(chunk=8), np.ones((132, 2))
    assert [c.shape for c in sampler.sums(of.sent, CLIENTS, 3, ("a",))] == [(2, 132), (1, 132)]
    chunks = list(sampler.sample(of.sent, [1], 9, ("a",), project=matrix))
    assert [c.shape for c in chunks] == [(8, 1, 2), (1, 1, 2)]
    assert next(sampler.sums(of.sent, [1], 2, ("a",), project=matrix)).shape == (2, 2)
    assert (sampler.game, sampler.scale, sampler.free) == ("rerun", 1.0, None)
    assert sampler.excluding_drawn(1, ("a",), [0]) is sampler


def test_an_app_that_knows_of_replays_gives_each_draw_again(federation) -> None:
    of = Round(federation, seeded="replay")
    one, again, other = (
        np.concatenate(list(of.bound(seed=seed).sample(of.sent, CLIENTS, 5, ("a", 1))))
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.isclose(one, other).all(axis=2).any()
    late = np.concatenate(list(of.bound().sample(of.sent, [2], 5, ("a", 1))))[3:]
    np.testing.assert_array_equal(late[:, 0], one[3:, 2])
    # Asking for the same draw twice is no sign of a deterministic client.
    sampler = of.bound()
    for _ in range(2):
        list(sampler.sample(of.sent, [2], 1, ("a", 1)))


@pytest.mark.parametrize("draws", [[2], [1, 1]])
def test_a_client_that_gives_the_same_update_twice_is_named(federation, draws) -> None:
    of = Round(federation, seeded="round")
    sampler = of.bound()

    def play() -> None:
        for i, count in enumerate(draws):
            list(sampler.sample(of.sent, [1, 2], count, ("a", i)))

    with pytest.raises(ReplayError, match=r"client 1 gave the same update twice.*replay_number"):
        play()


def test_replays_start_from_the_model_that_is_asked_for(federation) -> None:
    of = Round(federation, seeded="replay")
    (at_sent,) = of.bound().sample(of.sent, [1], 1, ("a",))
    (at_zero,) = of.bound().sample(0 * of.sent, [1], 1, ("a",))
    # A client goes half way from the model to its own point.
    np.testing.assert_allclose((at_zero - at_sent)[0, 0] / 20, of.sent / 2, atol=1e-6)


def test_a_replay_trains_honestly_and_disturbs_nothing_that_the_round_has_kept(federation) -> None:
    of = Round(federation, mods=[tap_mod, canary_mod])
    of.order(wire.CANARY, Order(Canary(id=0, seed=0, included=False)).to_record())
    of.order(wire.TAP, wire.keep_record(1))
    before = {c: (id(m), list(m.content)) for c, m in of.messages.items()}
    replies = list(of.federation.grid.send_and_receive(list(of.messages.values())))
    assert all(reply.has_content() for reply in replies)
    rows = np.concatenate(list(of.bound().sample(of.sent, CLIENTS, 3, ("a",))))
    assert np.linalg.norm(rows, axis=2).min() > 1  # a canary that is out would be zero
    assert {c: (id(m), list(m.content)) for c, m in of.messages.items()} == before
    opened = OpenRound(
        server_round=1,
        arrays=of.arrays,
        model=LazyModel(of.layout, of.arrays),
        clients={client + 1: client for client in CLIENTS},
        orders={},
        asked=(),
        grid=of.federation.grid,
        layout=of.layout,
        weight_key=wire.WEIGHT,
        hides_updates=True,
        is_noised=False,
    )
    truth, weights = collect_truth(opened, CLIENTS[:2], sends="models", timeout=9)
    assert list(truth) == list(CLIENTS[:2])  # nobody else is asked for more than its weight
    for update in truth.values():
        np.testing.assert_allclose(update, 0, atol=1e-6)  # the round's own, not a replay's
    assert weights == {client: 10.0 * (client + 1) for client in CLIENTS}


def test_a_strategy_that_changes_its_record_later_does_not_change_the_replay(federation) -> None:
    of = Round(federation, seeded="replay")
    sampler = of.bound()
    (first,) = sampler.sample(of.sent, [1], 1, ("a",))
    for name in list(of.arrays):
        del of.arrays[name]
    (again,) = sampler.sample(of.sent, [1], 1, ("a",))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("allowed", [True, False])
def test_masks_are_left_out_of_simulated_replays_where_clients_allow_it(
    federation, allowed
) -> None:
    of = Round(federation, mods=[MaskMod(allow_tap=allowed), tap_mod, canary_mod])
    of.order(wire.MASK, ConfigRecord({"stage": "train", "round": 1}))
    of.order(wire.SUM_ORDER, ConfigRecord({}))
    words = r"clients \[0, 1, 2, 3\] are told to mask.*CohortSampler"
    with pytest.raises(ReplayError, match=words):
        of.bound()
    sampler = of.bound(simulated=True)
    if not allowed:
        message = r"client 0 and 3 more gave no update to a replay: .*this client masks"
        with pytest.raises(ReplayError, match=message):
            next(sampler.sample(of.sent, CLIENTS, 1, ("a",)))
    else:
        assert next(sampler.sample(of.sent, CLIENTS, 2, ("a",))).shape == (2, 4, 132)


def veil(message: Message, context: Any, call_next: Any) -> Message:
    hidden = ArrayRecord({"ring": Array(np.zeros(132, np.uint32))})
    return wire.replace_arrays(call_next(message, context), hidden)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"fails": lambda _, client: client == 2},
            "client 2 gave no update to a replay: .*client 2 fails",
        ),
        ({"mods": [veil]}, "client 0 answered a replay without a model: array 'w' must be in"),
        ({}, r"client 0 and 3 more .* no reply came in time"),
    ],
    ids=["fails", "no model", "no reply"],
)
def test_a_client_without_an_update_is_named_with_its_reason(federation, options, words) -> None:
    of = Round(federation, **options)
    if not options:
        of.federation.grid.send_and_receive = lambda *_, **__: []
    with pytest.raises(ReplayError, match=words):
        list(of.bound().sample(of.sent, CLIENTS, 1, ("a",)))


def test_what_cannot_be_is_refused(federation) -> None:
    of = Round(federation)
    with pytest.raises(ReplayError, match="need a round: call bind"):
        list(ReplaySampler().sample(of.sent, [0], 1, ("a",)))
    with refuses("clients"):
        list(of.bound().sample(of.sent, [0, 7], 1, ("a",)))
    with refuses("draws"):
        of.bound().moments(of.sent, [0], 1, ("a",))
    with refuses("timeout"):
        ReplaySampler(timeout=0)
    with refuses("chunk"):
        ReplaySampler(chunk=0)


def test_a_long_replay_says_now_and_then_that_it_is_alive(
    federation: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="leakmeter")
    monkeypatch.setattr("leakmeter.auditors.sampling.replay._SAID_EVERY", -1.0)
    played = Round(federation)
    list(played.bound().sample(played.sent, CLIENTS, 2, ("t",)))
    assert "replaying: 8 trainings of this round so far" in caplog.text
