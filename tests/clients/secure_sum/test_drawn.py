"""Neighbours that clients draw: bounds that hold, against simulation and by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.graph import (
    assess_drawn,
    draw,
    plan_drawn,
    smallest_sum,
    union,
)
from leakmeter.clients.secure_sum.participant import Policy
from tests.helpers.numbers import few_or_many


def test_draws_are_distinct_others_and_every_other_equally_often() -> None:
    counts = np.zeros(8)
    for _ in range(4000):
        drawn = draw(3, range(1, 8), 2)
        assert len(set(drawn)) == 2
        assert 3 not in drawn
        counts[list(drawn)] += 1
    others = np.delete(counts[1:], 2)
    # Each of 6 is drawn with chance 1/3: sd 30 of 1333; six sd, chance of failure below 1e-7.
    assert np.abs(others - 4000 / 3).max() < 180


@pytest.mark.parametrize("draws", [0, 7])
def test_too_many_draws_are_refused(draws: int) -> None:
    with pytest.raises(ValueError, match=r"draws must be in \[1, 6\]"):
        draw(1, range(1, 8), draws)


def test_two_mask_if_one_has_drawn_the_other() -> None:
    assert union([1, 2, 3, 4], {1: [2], 2: [3], 3: [2]}) == {
        1: (2,),
        2: (1, 3),
        3: (2,),
        4: (),
    }


def by_hand(n: int, k: int, t: int, bad: int, size: int) -> float:
    """Return the bound for groups of one size, from binomials of whole numbers."""
    needed, marked = 2 * t - k - 2, min(size - 1 + bad, n - 1)
    ways = sum(
        math.comb(marked, x) * math.comb(n - 1 - marked, k - x)
        for x in range(needed, k + 1)
        if k - x <= n - 1 - marked
    )
    return min(math.comb(n - bad, size) * (ways / math.comb(n - 1, k)) ** size, 1.0)


@pytest.mark.parametrize(
    ("n", "k", "t", "bad"), [(30, 14, 12, 0), (100, 29, 20, 5), (60, 20, 16, 6)]
)
def test_the_smallest_sum_is_the_largest_that_the_summed_bound_allows(
    n: int, k: int, t: int, bad: int
) -> None:
    least, chance = smallest_sum(n, k, t, bad)
    total = sum(by_hand(n, k, t, bad, size) for size in range(1, least))
    assert chance == pytest.approx(total, rel=1e-9)
    assert total <= 2**-40 < total + by_hand(n, k, t, bad, least)


def closed_groups(drawn: list[set[int]], bad: set[int], needed: int, size: int) -> bool:
    """Whether some group of this size has enough draws inside it or colluding."""
    honest = [n for n in range(len(drawn)) if n not in bad]
    return any(
        all(len(drawn[n] & ({*group} | bad)) >= needed for n in group)
        for group in combinations(honest, size)
    )


@pytest.mark.parametrize("trials", few_or_many(500, 1500))
@pytest.mark.parametrize(("k", "t", "size"), [(5, 5, 1), (5, 5, 2), (5, 5, 3), (6, 6, 2)])
def test_the_bound_is_above_what_random_graphs_do(k: int, t: int, size: int, trials: int) -> None:
    n, bad = 12, {0, 1, 2}
    rng = np.random.default_rng(k * t * size)
    found = 0
    for _ in range(trials):
        drawn = [
            {int(x) for x in rng.choice([m for m in range(n) if m != own], k, replace=False)}
            for own in range(n)
        ]
        found += closed_groups(drawn, bad, 2 * t - k - 2, size)
    bound = by_hand(n, k, t, len(bad), size)
    assert found / trials <= bound + 3 * math.sqrt(max(bound * (1 - min(bound, 1)), 1e-3) / trials)


def test_a_plan_keeps_both_risks_low_and_the_sum_large() -> None:
    plan = plan_drawn(200, 0.1, 10)
    assert plan.risk.abort <= 2**-20
    assert plan.risk.exposure <= 2**-40
    assert plan.least >= 20
    assert plan.threshold <= plan.draws + 1
    assert assess_drawn(200, plan.draws, plan.threshold, 0.1, 10) == plan


def test_more_colluders_and_fewer_draws_make_smaller_sums() -> None:
    sums = [smallest_sum(100, 30, 22, bad)[0] for bad in (0, 5, 10, 20)]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > sums[-1]


def test_what_cannot_hide_anybody_is_refused() -> None:
    with pytest.raises(ValueError, match="may open a single update"):
        assess_drawn(100, 10, 7, 0.0, 5)
    with pytest.raises(ValueError, match="too few for drawn neighbours"):
        plan_drawn(10, 0.3, 3)
    with pytest.raises(ValueError, match=r"draws must be in \[2, 98\]"):
        smallest_sum(100, 99, 60, 0)
    with pytest.raises(ValueError, match=r"threshold must be in \[2, 11\]"):
        smallest_sum(100, 10, 12, 0)


def test_owners_may_insist_on_larger_sums() -> None:
    """The server chooses draws and threshold: it may lower the smallest sum from 17 to 5."""
    assert [smallest_sum(30, *shape, 0)[0] for shape in ((14, 13), (26, 16))] == [17, 5]
    for least in (2, 5):
        Policy(min_threshold=least).check_draws(30, 26, 16)
    with pytest.raises(RefusedError, match=r"at least 6 honest clients.* give 5"):
        Policy(min_threshold=6).check_draws(30, 26, 16)
    Policy(min_threshold=13).check_draws(30, 14, 13)
    # Of the clients in a sum, some may collude: they are not counted as honest.
    fewer = smallest_sum(30, 14, 13, 2)[0]
    Policy(min_threshold=min(fewer + 2, 13), colluders=2).check_draws(30, 14, 13)
