"""A server that sees single updates: what is shown of it is right, whatever clients send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors import Finding, OneShotCanaries, RoundView, SingleUpdates
from leakmeter.auditors import check_auditor as check
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.auditor import Canary, RoundFacts
from leakmeter.auditors.canaries.scores import MAX_SCORE
from leakmeter.auditors.canary import canary_vector
from leakmeter.auditors.hook.panel import Panel
from leakmeter.auditors.rng import stream
from tests.helpers.numbers import first_fast

DELTA = 1e-6
DIM = 200
# What reaches the server of an update, given client, round and a generator of this reply.
Mechanism = Callable[[np.ndarray, int, int, np.random.Generator], np.ndarray]


def plain(update: np.ndarray, *_: Any) -> np.ndarray:
    return update


def noised(sigma: float) -> Mechanism:
    """Return independent Gaussian noise on every reply."""

    def mechanism(update: np.ndarray, *about: Any) -> np.ndarray:
        noise: np.ndarray = about[-1].standard_normal(update.size)
        return update + sigma * noise

    return mechanism


def shown(
    server_round: int,
    orders: Mapping[int, Canary],
    mechanism: Mechanism,
    *,
    dim: int = DIM,
    clients: int = 12,
    seed: int = 0,
    leak: bool = True,
) -> RoundView:
    """Return a round whose clients send unit updates, seats their canary or a nudge."""
    sent, replies = np.zeros(dim), {}
    for client in range(clients):
        rng = stream(seed, "client", client, server_round)
        update = rng.standard_normal(dim)
        update /= np.linalg.norm(update)
        if client in orders:
            update = 1e-7 * np.eye(dim)[0]
            if orders[client].included and leak:
                update = canary_vector(orders[client].seed, orders[client].id, dim)
        replies[client] = mechanism(update, client, server_round, rng)
    facts = RoundFacts(num_clients=clients, total_weight=float(clients))
    return RoundView(server_round, sent, replies, sent, facts, instructed=dict(orders))


def play(
    auditor: SingleUpdates, mechanism: Mechanism = plain, *, rounds: int = 5, **about: Any
) -> list[Finding]:
    """Return the findings on rounds of this mechanism."""
    auditor.begin(about.get("dim", DIM), rounds)
    findings: list[Finding] = []
    for server_round in range(1, rounds + 1):
        orders = auditor.instruct(server_round, range(about.get("clients", 12)))
        findings += auditor.observe(shown(server_round, orders, mechanism, **about))
    return [*findings, *auditor.report()]


def bounds(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.kind == "lower_bound"]


@pytest.mark.parametrize(
    "settings",
    first_fast(
        3,
        [
            {"seats": 3},
            {"seats": 4, "repetitions": 2},
            {"seats": 3, "excluded": "full"},
            {},
            {"seats": 3, "include": "all"},
            {"seats": 3, "excluded": "honest"},
            {"seats": 1, "canaries": 5, "seed": 5},
        ],
    ),
)
def test_it_keeps_the_contract_of_auditors(settings: dict[str, Any]) -> None:
    check(lambda: SingleUpdates(**settings))


def test_it_keeps_the_contract_with_its_replies_in_a_folder(tmp_path: Path) -> None:
    def made() -> SingleUpdates:
        auditor = SingleUpdates(seats=4, repetitions=2)
        auditor.folder = tmp_path
        return auditor

    check(made)
    assert [path.name for path in tmp_path.iterdir()] == ["single-update-replies.f32"]


def test_a_reply_without_noise_shows_all_that_the_seed_of_a_canary_can() -> None:
    [bound] = bounds(play(SingleUpdates(seats=4, delta=DELTA)))
    assert 80 < bound.value < MAX_SCORE
    assert (bound.value, bound.saturated) == (bound.cap, True)
    assert bound.facts["threshold"] == bound.facts["median_score"] == MAX_SCORE
    assert bound.facts["share_at_threshold"] == 1.0
    assert (bound.adjacency, bound.delta, bound.confidence) == ("zero-out", DELTA, 0.95)
    attacker = bound.threat_model
    assert (attacker.observer, attacker.sees, attacker.holds) == ("server", "updates", "canary")
    assert (attacker.knows_cohort, attacker.participations) == (True, 1)
    assert not bound.is_conditional
    assert Assumption.SEAT_SENDS_ZERO in bound.assumptions


def once_per_client(update: np.ndarray, client: int, *_: Any) -> np.ndarray:
    """Add noise whose generator is seeded by the client, the same in every round."""
    return update + 5 * stream(1, "noise", client).standard_normal(update.size)


def once_per_round(update: np.ndarray, _: int, server_round: int, *__: Any) -> np.ndarray:
    """Add noise whose generator is seeded by the round, the same for all clients."""
    return update + 5 * stream(1, "noise", server_round).standard_normal(update.size)


@pytest.mark.parametrize("mechanism", [once_per_client, once_per_round])
def test_noise_that_repeats_is_seen_through_and_fresh_noise_is_not(mechanism: Mechanism) -> None:
    repeated, fresh = (
        SingleUpdates(seats=6, delta=DELTA, include="coin", seed=3) for _ in range(2)
    )
    [bound] = bounds(play(repeated, mechanism, rounds=6))
    assert bound.value > 60
    assert np.nanmax(np.abs(repeated._cosines)) < 0.4  # nothing in the replies themselves
    [other] = bounds(play(fresh, noised(5.0), rounds=6))
    assert other.value < 2


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("settings", [{}, {"repetitions": 2}, {"excluded": "full"}], ids=str)
def test_it_takes_no_further_seat_beside_one_shot(settings: dict[str, Any], is_first: bool) -> None:
    def orders(auditors: list[Any]) -> list[Any]:
        panel = Panel(auditors)
        panel.begin(DIM, 6)
        return [panel.instruct(r, list(range(12))) for r in range(1, 7)]

    alone = orders([OneShotCanaries(seats=3, seed=4, **settings)])
    both = [OneShotCanaries(seats=3, seed=4, **settings), SingleUpdates(seats=5, seed=9)]
    assert orders(both[:: 1 if is_first else -1]) == alone
    assert both[1].canaries_played is None  # told by the other
    assert any(alone)
