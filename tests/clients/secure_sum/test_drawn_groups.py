"""The smallest sum that a server can open where neighbours are drawn, from the protocol itself.

`participant` bounds it by a condition on the draws. Here every choice of the server is a variable
of an integer programme: which boxes it delivers, and which survivors it names to whom. The solver
finds its best choice, so no argument about groups is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

Draws = Sequence[Collection[int]]


class Programme:
    """Truth values, and linear constraints on them."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        self.rows: list[tuple[dict[int, float], float]] = []

    def var(self, *name: object) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def at_least(self, least: float, *terms: tuple[int, float]) -> None:
        self.rows.append((dict(terms), least))

    def implies(self, one: int, other: int) -> None:
        self.at_least(0, (other, 1), (one, -1))

    def all_of(self, *those: int) -> int:
        """Return a value that may be true only if all of these are."""
        both = self.var("all", *those)
        for one in those:
            self.implies(both, one)
        return both

    def smallest(self, those: Collection[int]) -> int:
        """Return the fewest of these that can be true."""
        size = len(self.numbers)
        matrix = np.zeros((len(self.rows), size))
        for row, (terms, _) in zip(matrix, self.rows, strict=True):
            row[list(terms)] = list(terms.values())
        cost = np.zeros(size)
        cost[list(those)] = 1
        limits = LinearConstraint(matrix, [least for _, least in self.rows], np.inf)
        found = milp(cost, constraints=limits, integrality=np.ones(size), bounds=Bounds(0, 1))
        assert found.success, found.message
        return round(found.fun)


def smallest_group(draws: Draws, bad: Collection[int], t: int) -> int:
    """Return how many honest clients are in the smallest sum that a server can open."""
    p, everyone = Programme(), range(len(draws))
    honest = [i for i in everyone if i not in bad]
    for i in honest:
        mine = [j for j in draws[i] if j in honest]
        theirs = [j for j in draws[i] if j in bad]
        uploads, signs, reveals = (p.var(what, i) for what in ("uploads", "signs", "reveals"))
        # It masks with whose box it gets: with t - 1 of its draws at least.
        p.at_least(0, (uploads, 1 - t), *((p.var("masks", i, j), 1) for j in draws[i]))
        for j in everyone:
            if j != i:  # what is on the list of i, and what i says of j if it reveals
                lists, masks = p.var("lists", i, j), p.var("masks", i, j)
                p.implies(lists, masks)
                p.implies(masks, uploads)
                p.implies(lists, signs)
                p.at_least(-1, (p.var("omits", i, j), -1), (lists, -1))
                p.implies(p.var("omits", i, j), masks)
        p.implies(signs, uploads)
        p.at_least(0, (signs, 1 - t), *((p.var("lists", i, j), 1) for j in draws[i]))
        # It reveals once t - 1 of its holders have signed that it survived; colluders sign all.
        p.implies(reveals, signs)
        votes = [p.all_of(p.var("lists", j, i), p.var("masks", i, j)) for j in mine]
        votes += [p.var("masks", i, j) for j in theirs]
        p.at_least(0, (reveals, 1 - t), *((vote, 1) for vote in votes))
        # t shares open a secret; colluding holders give both.
        seed = [p.all_of(p.var("reveals", j), p.var("lists", j, i)) for j in mine]
        gone = [p.all_of(p.var("reveals", j), p.var("omits", j, i)) for j in mine]
        few = -len(theirs)
        p.at_least(few, (p.var("seed", i), -t), (reveals, 1), *((share, 1) for share in seed))
        p.at_least(few, (p.var("key", i), -t), *((share, 1) for share in gone))
        p.implies(p.var("in", i), p.var("seed", i))
        p.implies(p.var("in", i), uploads)
    for i in honest:
        for j in honest:
            if i != j:  # a mask cancels within the group, or a key takes it off
                within = p.all_of(p.var("in", j), p.var("masks", j, i))
                ways = [(within, 1), (p.var("key", i), 1), (p.var("key", j), 1)]
                p.at_least(-1, (p.var("in", i), -1), (p.var("masks", i, j), -1), *ways)
    group = [p.var("in", i) for i in honest]
    p.at_least(1, *((one, 1) for one in group))
    return p.smallest(group)


def bound(draws: Draws, bad: Collection[int], t: int) -> int:
    """Return the size of the smallest group that the condition of `participant` allows."""
    needed = 2 * t - len(draws[0]) - 2
    honest = [i for i in range(len(draws)) if i not in bad]
    groups = (set(g) for size in range(1, len(honest) + 1) for g in combinations(honest, size))
    fits = (g for g in groups if all(len(set(draws[i]) & (g | set(bad))) >= needed for i in g))
    return len(next(fits))


def drawn(n: int, k: int, seed: int) -> list[set[int]]:
    """Return draws that favour two halves, so that small groups are likely."""
    rng = np.random.default_rng(seed)
    found = []
    for own in range(n):
        others = [i for i in range(n) if i != own]
        weights = np.array([20.0 if (i < n // 2) == (own < n // 2) else 1.0 for i in others])
        found.append(set(rng.choice(others, k, replace=False, p=weights / weights.sum()).tolist()))
    return found


CASES = [(6, 3, 3, 0), (6, 3, 3, 1), (6, 4, 3, 0), (6, 4, 4, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k", "t", "colluders"), CASES)
def test_no_choice_of_the_server_opens_a_smaller_sum_than_the_condition_allows(
    n: int, k: int, t: int, colluders: int
) -> None:
    for seed in range(3):
        draws, bad = drawn(n, k, seed), set(range(colluders))
        assert smallest_group(draws, bad, t) >= bound(draws, bad, t)


@pytest.mark.slow
def test_a_server_opens_one_update_where_the_condition_allows_it() -> None:
    """Four draws, threshold 3: no draw need be in the group, which clients therefore refuse."""
    draws = [{j for j in range(6) if j not in (i, (i + 1) % 6)} for i in range(6)]
    assert smallest_group(draws, (), 3) == bound(draws, (), 3) == 1
