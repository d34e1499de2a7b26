"""The plan of planted records: who holds which, and what the coins decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors import PlantPlan
from tests.helpers.refusals import refuses


@given(st.integers(2, 60), st.integers(1, 20), st.integers(0, 5))
def test_every_canary_has_one_holder_and_one_place(canaries: int, clients: int, seed: int) -> None:
    clients = min(clients, canaries)
    plan = PlantPlan(canaries, clients, seed=seed)
    held = [i for client in range(clients + 3) for i in plan.held(client)]
    assert sorted(held) == list(range(canaries))
    planted = [n for client in range(clients) for n in plan.planted(client)]
    assert sorted(n % canaries for n in planted) == list(range(canaries))
    assert {n for n in planted if n < canaries} == set(np.flatnonzero(plan.is_in).tolist())
    assert not {*planted} & {*plan.decoys(100)}


def test_a_stand_in_keeps_the_number_of_records_whatever_the_coins() -> None:
    counts = {len(PlantPlan(40, 4, seed=s).planted(1)) for s in range(50)}
    assert counts == {10}
    plan = PlantPlan(40, 4, out="nothing")
    assert plan.planted(1) == [i for i in range(1, 40, 4) if plan.is_in[i]]
    assert len({len(PlantPlan(40, 4, out="nothing", seed=s).planted(1)) for s in range(50)}) > 3


def test_coins_are_fair_and_independent_of_each_other() -> None:
    coins = np.array([PlantPlan(100, 10, seed=s).is_in for s in range(100)])
    # 10,000 coins and 9,900 pairs of neighbours: five standard deviations, one seed in 10⁶.
    assert abs(coins.mean() - 0.5) < 5 * 0.5 / np.sqrt(coins.size)
    agree = (coins[:, 1:] == coins[:, :-1]).mean()
    assert abs(agree - 0.5) < 5 * 0.5 / np.sqrt(coins[:, 1:].size)
    assert np.array_equal(PlantPlan(30, 5, seed=3).is_in, PlantPlan(100, 2, seed=3).is_in[:30])


@pytest.mark.parametrize(
    ("plan", "unit", "adjacency"),
    [
        (PlantPlan(), "record", "replace"),
        (PlantPlan(copies=4), "group", "replace"),
        (PlantPlan(20, 20, copies=4, whole=True), "client", "replace"),
        (PlantPlan(out="nothing"), "record", "add-remove"),
    ],
)
def test_the_unit_follows_from_the_copies(plan: PlantPlan, unit: str, adjacency: str) -> None:
    assert (plan.unit, plan.world[0]) == (unit, adjacency)
    first = replace(plan, rounds=2)
    assert first.planted(0, 2)
    assert first.planted(0, 3) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"canaries": 1}, "canaries"),
        ({"clients": 300}, "clients"),
        ({"copies": 0}, "copies"),
        ({"copies": 10_001}, "copies"),
        ({"rounds": 0}, "rounds"),
        ({"out": "zero"}, "out"),
        ({"whole": True}, "whole"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with refuses(said):
        PlantPlan(**given)  # type: ignore[arg-type]
