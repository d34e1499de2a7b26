"""Cosines of one run or of many: who draws them, how many, and what they consist of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leakmeter.papers.andrew2024 import many_runs
from leakmeter.papers.base import Cells

FEDERATION = replace(
    many_runs._SCALES["small"].federation,
    dataset="synthetic",
    synthetic_examples=120,
    model="linear",
    clients=6,
    sample=3,
    rounds=2,
)


def test_the_canaries_of_an_experiment_are_spread_over_its_runs(tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    def draw(canaries: int, seed: int) -> tuple[np.ndarray, tuple[float, float, float]]:
        asked.append((canaries, seed))
        return np.linspace(1.0, 3.0, canaries), (0.25, 0.5, float(len(asked)))

    cells = Cells(tmp_path, lambda _: None)
    found = many_runs._repeated(cells, draw, "drawn", 20, {1: 2, 10: 1})
    assert [canaries for canaries, _ in asked] == [20, 20] + [2] * 10
    assert len({seed for _, seed in asked}) == 12
    assert [len(found[runs][many_runs._SQUARES[2]]) for runs in (1, 10)] == [2, 1]
    assert found[10][many_runs._SQUARES[2]] == [np.median(range(3, 13))]


def test_cosines_come_with_the_parts_of_their_spread() -> None:
    z, (noise, canaries, honest) = many_runs._gaussian(7850, 5, 1)
    assert z.shape == (5,)
    assert (canaries, honest) == (5 / 7850, 0.0)
    assert noise > 0
    z, (noise, canaries, honest) = many_runs._learnt(FEDERATION, 0.1, 4, 1)
    assert z.shape == (4,)
    assert (noise, canaries) == (pytest.approx(2 * 0.1**2), 4 / 210)
    assert honest >= 0
