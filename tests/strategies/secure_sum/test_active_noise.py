"""Noise under a server that may do anything: only the shares count that it cannot do without."""

from __future__ import annotations

import math
from typing import Any

import pytest
from flwr.app import Context, Message

from leakmeter.auditors import Audited, canary_mod
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.wording import Assumption
from leakmeter.clients import NoiseMod
from leakmeter.papers.zhang2024.prices import water_filling_epsilon
from leakmeter.strategies import Distributed, Local, Masked, Risks
from leakmeter.strategies.protection.mechanism import Mechanism
from tests.strategies.protection import test_noised as noisy
from tests.strategies.protection import test_record_noise as filling
from tests.strategies.secure_sum.test_signed import TRUSTED, own_mods

pytestmark = pytest.mark.usefixtures("flower_task")

CLIENTS, THRESHOLD, COLLUDERS = 6, 5, 2
RISKS = Risks(trusted=TRUSTED, colluders=COLLUDERS)


def signing(*behind: Any) -> list[Any]:
    """Return mods of clients that sign."""
    own = own_mods(colluders=COLLUDERS)

    def mask(message: Message, context: Context, call_next: Any) -> Message:
        return own[context.node_id - 1](message, context, call_next)

    return [mask, *behind]


def by_server(findings: Any, adjacency: str) -> dict[str, Finding]:
    """Return the guarantees in ε against the server, by what it may do."""
    return {
        f.threat_model.conduct: f
        for f in findings
        if (f.quantity, f.observer, f.adjacency) == ("epsilon", "server", adjacency)
    }


def run(noise: Mechanism, rounds: int = 3, *, trusted: bool = True) -> Any:
    strategy = noisy.make(noise)
    risks = RISKS if trusted else Risks(colluders=COLLUDERS)
    outer = Masked(strategy, max_weight=1.0, threshold=THRESHOLD, risks=risks)
    mods = signing(NoiseMod(seed=noisy.SEED)) if trusted else noisy.MODS
    noisy.run(outer, rounds, noisy.grid(CLIENTS, mods=mods))
    return strategy


def test_an_active_server_is_priced_for_threshold_less_colluders_shares() -> None:
    strategy = run(Distributed(1.0, min_honest=3, colluders=COLLUDERS))
    found = by_server(strategy.findings(), "zero-out")
    share = 1.0 / math.sqrt(3)  # in units of the clip norm
    for conduct, shares in (("curious", CLIENTS - COLLUDERS), ("active", THRESHOLD - COLLUDERS)):
        expected = epsilon_gaussian(1e-5, math.sqrt(3) / (share * math.sqrt(shares)))
        assert found[conduct].value == pytest.approx(expected)
        assert found[conduct].kind == "guarantee"
    assert found["active"].value > found["curious"].value
    assert {Assumption.OWN_NOISE, Assumption.OWN_THRESHOLD} <= set(found["active"].assumptions)
    assert Assumption.OWN_NOISE not in found["curious"].assumptions
    # A target, and a ledger, is about the server that clients defend against.
    guarantees = strategy.guarantees()
    assert guarantees.headline(1e-5) == found["active"]
    entry = guarantees.entry(run="r", data="d", seed=1)
    assert [r.noise_std for r in entry.releases] == pytest.approx([2.0 * share * math.sqrt(3)] * 3)


def test_without_signatures_nothing_is_said_of_an_active_server() -> None:
    strategy = run(Distributed(1.0, min_honest=3, colluders=COLLUDERS), trusted=False)
    assert set(by_server(strategy.findings(), "zero-out")) == {"curious"}
    assert strategy.guarantees().headline(1e-5).threat_model.conduct == "curious"


def test_noise_of_each_clients_own_is_the_same_for_any_sum() -> None:
    found = run(Local(1.0)).findings()
    assert {f.threat_model.conduct for f in found} == {"curious"}


def test_where_canaries_play_an_active_server_leaves_two_honest_shares_for_records() -> None:
    strategy = filling.make()
    outer = filling.masked(strategy, threshold=THRESHOLD, risks=RISKS)
    audited = Audited(outer, [filling.Seats(seats=1)])
    filling.run(audited, clients=filling.grid(mods=signing(NoiseMod(unit="record"), canary_mod)))
    found = by_server(strategy.findings(), "replace")
    assert found["active"].facts["fewest honest"] == 2
    assert found["curious"].facts["fewest honest"] == CLIENTS - 1 - COLLUDERS
    [hidden] = [f for f in outer.findings() if f.auditor == "secure-sum"]
    assert hidden.value == 2


def test_noise_for_records_is_priced_alike() -> None:
    strategy = filling.make()
    outer = filling.masked(strategy, threshold=THRESHOLD, risks=RISKS)
    filling.run(outer, clients=filling.grid(mods=signing(NoiseMod(unit="record"))))
    found = by_server(strategy.findings(), "replace")
    for conduct, users in (("curious", CLIENTS - COLLUDERS), ("active", THRESHOLD - COLLUDERS)):
        expected = water_filling_epsilon(users=users, delta=1e-5, **filling.PRICE)
        assert found[conduct].value == pytest.approx(expected, rel=1e-9)
        assert found[conduct].facts["fewest honest"] == users
    guarantees = strategy.guarantees()
    assert guarantees is not None
    assert guarantees.headline(1e-5) == found["active"]
