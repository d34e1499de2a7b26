"""Who holds which records: streams, the three sources, and records that are set apart."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.clients.sampler import (
    Dealt,
    Endless,
    EqualParts,
    Fresh,
    Generators,
    Kept,
    typical,
)
from tests.helpers.refusals import refuses

POOL = np.arange(100, 160)


def shuffled(pool: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(rng.permutation(pool), clients)


def chosen(pool: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(pool, len(pool) // clients, replace=False)


def hand(source, clients, draw: int = 0) -> list[np.ndarray]:
    own, shared = Generators(0, "own"), Generators(0, "shared")
    return source.records(clients, lambda: shared(draw), [own(draw, c) for c in clients])


def test_a_generator_depends_on_seed_path_draw_and_client_only() -> None:
    first = Generators(1, "a")(2, 3).random(4)
    np.testing.assert_array_equal(first, Generators(1, "a")(2, 3).random(4))
    others = [
        Generators(2, "a")(2, 3),
        Generators(1, "b")(2, 3),
        Generators(1, "a")(3, 2),
        Generators(1, "a")(2, 4),
    ]
    assert not any(np.isin(other.random(4), first).any() for other in others)


def test_a_spare_generator_becomes_the_one_that_is_asked_for() -> None:
    new = Generators(7, "path")
    spare = new(1, 2)
    spare.random(3)
    spare.integers(0, 9, dtype=np.int32)  # leaves half a word behind
    again = new(2**64 - 1, 5, spare)
    assert again is spare
    fresh = new(2**64 - 1, 5)
    np.testing.assert_array_equal(again.integers(0, 9, 5), fresh.integers(0, 9, 5))
    np.testing.assert_array_equal(again.permutation(50), fresh.permutation(50))


def test_neighbouring_generators_are_uniform_and_uncorrelated() -> None:
    of = Generators(0, "law")
    drawn = np.array([[of(draw, client).random() for client in range(40)] for draw in range(250)])
    assert abs(drawn.mean() - 0.5) < 5 * 0.2887 / 100
    assert abs(drawn.var() - 1 / 12) < 5 * 0.0745 / 100
    centred = (drawn - 0.5) * np.sqrt(12)
    for pairs in (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1]):
        assert abs(pairs.mean()) < 5 / np.sqrt(pairs.size)


def test_kept_parts_stay_where_they_are() -> None:
    source = Kept((POOL[:10], POOL[10:30]))
    assert source.num_clients == 2
    assert [list(part) for part in hand(source, [1, 0])] == [list(POOL[10:30]), list(POOL[:10])]
    assert source.without(1, POOL[:5]) is source


def test_dealt_records_go_to_one_client_each_whoever_is_asked_for() -> None:
    source = Dealt(pool=POOL, num_clients=7, deal=shuffled)
    everyone = hand(source, range(7))
    assert sorted(np.concatenate(everyone)) == list(POOL)
    np.testing.assert_array_equal(hand(source, [5])[0], everyone[5])
    assert not np.array_equal(hand(source, [5], draw=1)[0], everyone[5])


def test_fresh_records_are_drawn_by_each_client_for_itself() -> None:
    source = Fresh(pool=POOL, num_clients=3, draw=chosen)
    everyone = hand(source, range(3))
    assert [len(part) for part in everyone] == [20, 20, 20]
    assert len(np.unique(np.concatenate(everyone))) < 60  # some records twice
    np.testing.assert_array_equal(hand(source, [2])[0], everyone[2])


@pytest.mark.parametrize("kind", ["dealt", "fresh"])
def test_others_never_hold_what_was_taken_out_and_share_the_rest(kind: str) -> None:
    sources = {
        "dealt": Dealt(pool=POOL, num_clients=6, deal=shuffled),
        "fresh": Fresh(pool=POOL, num_clients=6, draw=chosen, holds_out=True),
    }
    held = POOL[::6]
    rest = sources[kind].without(2, held)
    parts = [part for draw in range(20) for part in hand(rest, [0, 1, 3, 4, 5], draw)]
    assert not np.isin(np.concatenate(parts), held).any()
    assert {len(part) for part in parts} == {10}  # 50 records for five, as 60 for six
    assert rest.num_clients == 6
    with refuses("clients"):
        rest.check([1, 2])


@pytest.mark.parametrize("taken", [12, 24])
def test_those_who_are_present_keep_their_usual_share(taken: int) -> None:
    """60 records for five clients: what is taken out makes fewer shares, not smaller ones."""
    dealt = Dealt(pool=POOL, num_clients=5, deal=shuffled).without(1, POOL[:taken])
    held_out = Fresh(pool=POOL, num_clients=5, draw=chosen, holds_out=True)
    fresh = held_out.without(1, POOL[:taken])
    for source in (dealt, fresh):
        parts = hand(source, [0, 2, 4])
        assert [len(part) for part in parts] == [12, 12, 12]
        assert not set(np.concatenate(parts)) & set(POOL[:taken])
    assert len(np.unique(np.concatenate(hand(dealt, [0, 2, 4])))) == 36
    if taken == 24:  # more clients than shares get smaller ones
        parts = hand(dealt, [0, 2, 3, 4])
        assert sorted(np.concatenate(parts)) == sorted(POOL[24:])
        assert [len(part) for part in parts] == [9, 9, 9, 9]
    assert held_out.game == "independent-held-out"
    independent = Fresh(pool=POOL, num_clients=6, draw=chosen)
    assert independent.game == "independent"
    assert independent.without(2, POOL[::6]) is independent


def test_a_pool_that_cannot_be_shared_is_refused() -> None:
    with refuses("num_clients"):
        Dealt(pool=POOL, num_clients=61, deal=shuffled)
    with refuses("num_clients"):
        Fresh(pool=POOL, num_clients=0, draw=chosen)
    with refuses("the records left"):
        Dealt(pool=POOL, num_clients=2, deal=shuffled).without(0, POOL[:50])


# Many clients.


def test_equal_parts_are_those_of_a_list() -> None:
    parts, listed = EqualParts(4, 3), np.split(np.arange(12), 4)
    assert len(parts) == 4
    for one, other in zip(parts, listed, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(parts[-1], listed[-1])
    np.testing.assert_array_equal(parts[1:3], listed[1:3])
    for missing in (4, -5):
        with pytest.raises(IndexError):
            parts[missing]


def test_one_of_equal_parts_is_typical_and_others_are_all_looked_at() -> None:
    assert [part.tolist() for part in typical(EqualParts(10**12, 2))] == [[0, 1]]
    unequal = [np.arange(2), np.arange(5)]
    assert typical(unequal) is unequal
    assert Kept(EqualParts(10**12, 2)).num_clients == 10**12
    assert len(Kept(EqualParts(10**12, 2)).usual()) == 1


@pytest.mark.parametrize("holds_out", [False, True])
def test_an_endless_population_has_another_client_for_every_draw(holds_out: bool) -> None:
    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.arange(3) + 3 * rng.integers(100, 2**60)

    source = Endless(num_clients=5, size=3, draw=draw, holds_out=holds_out)
    assert source.game == ("independent-held-out" if holds_out else "independent")
    assert [len(part) for part in source.usual()] == [3]
    drawn = [part for turn in range(4) for part in hand(source, [4, 0], turn)]
    assert len({int(part[0]) for part in drawn}) == 8
    np.testing.assert_array_equal(hand(source, [0], 2)[0], drawn[5])  # whoever else is asked for
    assert source.without(4, drawn[0]) is source
    with refuses("clients"):
        source.check([5])
