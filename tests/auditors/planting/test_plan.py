"""The plan of planted records: who holds which, and what the coins decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors import FromFile, PlantPlan, RandomLabel, RandomPattern, Secrets
from leakmeter.auditors.planting.plan import Generator, batch
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


# Generators of canary records: pure functions of a seed and a number.

POOL = np.arange(40.0).reshape(10, 2, 2)


def same(one: object, other: object) -> bool:
    """Whether two records are equal to the last bit."""
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]  # type: ignore[arg-type]
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "generator",
    [Secrets("a {letters:8}-{digits:3}"), RandomLabel(POOL, 5), RandomPattern((3, 3), 5)],
)
def test_a_record_depends_on_seed_and_number_alone(generator: Generator) -> None:
    one, again = generator.draw(7, [3, 9]), generator.draw(7, [9, 4, 3])
    assert same(one[0], again[2])
    assert same(one[1], again[0])
    others = generator.draw(8, [3]) + generator.draw(7, range(10, 40))
    assert not all(same(one[0], other) for other in others)


@given(st.integers(1, 12), st.integers(1, 12))
def test_secrets_fill_all_places_and_keep_the_rest(digits: int, letters: int) -> None:
    secrets = Secrets(f"x {{digits:{digits}}} y {{letters:{letters}}} z")
    [text] = secrets.draw(0, [5])
    assert isinstance(text, str)
    first, last = text.removeprefix("x ").removesuffix(" z").split(" y ")
    assert (len(first), len(last)) == (digits, letters)
    assert first.isdigit()
    assert last.isalpha()
    assert secrets.prefix == "x "


@pytest.mark.parametrize("template", ["no secret", "{words:3}", "{digits}", "a {digits:0}"])
def test_a_template_without_a_known_place_is_refused(template: str) -> None:
    with refuses("template"):
        Secrets(template)


def test_all_digits_and_labels_occur_equally_often() -> None:
    text = "".join(map(str, Secrets("{digits:9}").draw(1, range(2000))))
    counts = np.bincount([int(c) for c in text], minlength=10)
    _, labels = batch(RandomLabel(POOL, 4).draw(1, range(4000)))
    # 18,000 digits and 4,000 labels: five standard deviations, exceeded once in 10⁵ seeds.
    assert np.abs(counts - 1800).max() < 5 * np.sqrt(1800)
    assert np.abs(np.bincount(np.asarray(labels)) - 1000).max() < 5 * np.sqrt(750)


def test_inputs_come_from_the_pool_or_are_uniform() -> None:
    x, _ = batch(RandomLabel(POOL, 3).draw(0, range(100)))
    assert {tuple(np.ravel(one)) for one in x} <= {tuple(one.ravel()) for one in POOL}
    x, y = batch(RandomPattern((4,), 3, low=-1, high=3).draw(0, range(2000)))
    assert isinstance(x, np.ndarray)
    assert (x.dtype, x.shape, np.shape(y)) == (np.float32, (2000, 4), (2000,))
    assert -1 <= x.min() < -0.98
    assert 2.98 < x.max() <= 3


def test_a_file_gives_each_record_once_in_an_order_of_the_seed(tmp_path: Path) -> None:
    lines = [f"line {i}" for i in range(50)]
    (tmp_path / "a.txt").write_text("\n".join([*lines, *lines[:3]]))
    texts = FromFile(tmp_path / "a.txt")
    assert texts.size == 50
    assert sorted(texts.draw(0, range(50))) == sorted(lines)  # type: ignore[type-var]
    assert texts.draw(0, range(5)) != texts.draw(1, range(5))
    np.savez(tmp_path / "b.npz", x=POOL, y=np.arange(10))
    x, y = batch(FromFile(tmp_path / "b.npz").draw(3, range(10)))
    assert np.array_equal(np.asarray(x), POOL[np.asarray(y)])
    np.savez(tmp_path / "c.npz", x=POOL)
    with refuses("path"):
        FromFile(tmp_path / "c.npz")
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe a line")
    with pytest.raises(ValueError, match=r"lines of text in UTF-8, got .*d.txt"):
        FromFile(tmp_path / "d.txt")
    with refuses("low"):
        RandomPattern((3,), 2, low=float("nan"))
