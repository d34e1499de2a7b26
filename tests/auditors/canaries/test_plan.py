"""Every canary plays as often as planned."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors.auditor import UnableError
from leakmeter.auditors.canaries.canary_auditor import canary_count, schedule, seats_of


@given(st.data())
def test_every_canary_plays_as_often_as_planned_and_never_twice_a_round(
    data: st.DataObject,
) -> None:
    rounds, seats = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 8))
    repetitions = data.draw(st.integers(1, rounds))
    canaries = data.draw(st.integers(1, seats * rounds // repetitions))
    plan = schedule(canaries, repetitions, rounds, seed=data.draw(st.integers(0, 5)))
    assert list(plan) == list(range(1, rounds + 1))
    counts = np.bincount(list(itertools.chain(*plan.values())), minlength=canaries)
    assert counts.tolist() == [repetitions] * canaries
    for ids in plan.values():
        assert len(ids) == len(set(ids)) <= seats
    sizes = [len(ids) for ids in plan.values()]
    assert max(sizes) - min(sizes) <= 1  # spread evenly


def test_another_seed_plans_other_rounds() -> None:
    assert schedule(20, 2, 10, seed=0) != schedule(20, 2, 10, seed=1)


def test_too_few_rounds_for_two_canaries_leave_the_auditor_out() -> None:
    with pytest.raises(UnableError, match=r"at least 4 seats x rounds and 2 rounds, got 1 seats"):
        canary_count(None, repetitions=2, seats=1, rounds=2, least=2)
    assert canary_count(None, repetitions=2, seats=1, rounds=2, least=1) == 1
    assert canary_count(None, repetitions=2, seats=2, rounds=2, least=2) == 2
    with pytest.raises(ValueError, match="got 2 x 2") as typed:
        canary_count(2, repetitions=2, seats=1, rounds=2, least=2)
    assert not isinstance(typed.value, UnableError)


def test_most_of_a_cohort_stays_honest_whatever_its_size() -> None:
    seats = [seats_of(clients) for clients in range(1000)]
    assert seats[:3] == [0, 0, 0]
    assert all(2 * one < clients for clients, one in enumerate(seats) if clients)
    assert all(seats[3:])
    assert all(abs(one - clients / 5) < 1 for clients, one in enumerate(seats) if clients >= 5)
