"""Theory of information in a sum: golden values, limits, monotonicity and bad input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors.information.theory import (
    IndependentWhitened,
    Information,
    LogConcaveWhitened,
    gaussian_information,
    round_bound,
    update_entropy,
)
from leakmeter.auditors.wording import Assumption
from leakmeter.papers.elkordy2023.corollaries import accumulated, batch_entropy, run_bound
from tests.helpers.refusals import refuses

GAUSSIAN = [IndependentWhitened(0.0)]
LOOSE = [IndependentWhitened(2.0)]

# rank, users, nats: (rank/2) ln(users / (users - 1)), computed apart.
TRUTH = [
    (1, 2, 0.34657359027997264),
    (1, 1000, 0.000500250166791811),
    (10, 5, 1.1157177565710488),
    (50, 50, 0.5050676829379868),
    (210, 5, 23.430072887992026),
    (1000, 2, 346.5735902799726),
    (7850, 2, 2720.6026836977853),
    (7850, 5, 875.8384389082734),
    (7850, 20, 201.32618047113584),
    (7850, 50, 79.29562622126392),
    (7850, 1000, 3.9269638093157164),
    (30730, 20, 788.1214682647131),
    (82554, 50, 833.9071499452511),
    (89610, 10, 4720.67790404891),
]


@pytest.mark.parametrize(("rank", "users", "nats"), TRUTH)
def test_the_gaussian_truth_has_its_golden_values(rank: int, users: int, nats: float) -> None:
    found = gaussian_information(rank, users)
    assert found.nats == pytest.approx(nats, rel=1e-13)
    assert found.bits == pytest.approx(nats / math.log(2), rel=1e-13)
    assert found.kind == "approximation"
    assert round_bound(rank, users, 8, cases=GAUSSIAN).nats == found.nats  # C_0 of a Gaussian is 0


# Bits of the choice of a batch.
@pytest.mark.parametrize(
    ("records", "batch", "bits"),
    [
        (1200, 32, 209.05733318334654),
        (1000, 32, 200.518622568801),
        (1200, 16, 119.26606387482724),
        (1200, 256, 892.2142329568617),
        (2, 1, 1.0),
        (7, 7, 0.0),
    ],
)
def test_the_choice_of_a_batch_has_its_golden_entropy(
    records: int, batch: int, bits: float
) -> None:
    assert batch_entropy(records, batch).bits == pytest.approx(bits, rel=1e-11)


def every_split(held: frozenset[int], batches: list[int]) -> Iterator[tuple[frozenset[int], ...]]:
    """Yield every way to take batches of these sizes out of a set of records, one by one."""
    if not batches:
        yield ()
        return
    for batch in combinations(sorted(held), batches[0]):
        for later in every_split(held - set(batch), batches[1:]):
            yield (frozenset(batch), *later)


def every_update(
    records: int, own: int, batches: list[int], epochs: int, rounds: int
) -> Counter[object]:
    """Count how often each sequence of batches occurs, over all equally likely choices."""
    found: Counter[object] = Counter()
    for held in combinations(range(records), own):
        splits = list(every_split(frozenset(held), batches))
        found.update(product(splits, repeat=epochs * rounds))
    return found


@pytest.mark.parametrize(
    ("records", "own", "batches", "epochs", "rounds"),
    [
        (5, 3, [2, 1], 1, 1),
        (5, 3, [2, 1], 2, 1),
        (5, 3, [2, 1], 1, 2),
        (4, 4, [2, 2], 2, 1),
        (6, 3, [3], 4, 2),
        (6, 3, [1, 1, 1], 1, 1),
        (6, 4, [2], 1, 1),  # FedSGD: the records that are not in the batch leave no trace
        (5, 5, [2], 1, 3),
        (3, 2, [1, 1], 1, 3),
    ],
)
def test_the_entropy_of_an_update_is_that_of_all_choices(
    records: int, own: int, batches: list[int], epochs: int, rounds: int
) -> None:
    counts = list(every_update(records, own, batches, epochs, rounds).values())
    exact = -math.fsum(n / sum(counts) * math.log(n / sum(counts)) for n in counts)
    found = update_entropy(records, own, batches, epochs=epochs).over(rounds)
    assert found == pytest.approx(exact, rel=1e-12)


def test_the_entropy_limits_several_rounds_of_fedsgd() -> None:
    # Two rounds share records only sometimes, so the limit is above the entropy; never below it.
    counts = list(every_update(6, 4, [2], 1, 2).values())
    exact = -math.fsum(n / sum(counts) * math.log(n / sum(counts)) for n in counts)
    found = update_entropy(6, 4, [2])
    assert exact < found.over(2) <= 2 * found.over(1)
    assert found.over(100) == pytest.approx(math.log(15) + 100 * math.log(6))


def test_what_is_not_random_has_no_entropy() -> None:
    assert update_entropy(24, 24, [24], epochs=3).over(7) == 0
    assert update_entropy(24, 24, [8, 8, 8], epochs=0).over(7) == 0
    assert update_entropy(24, 12, [12], epochs=3).over(0) == 0
    assert gaussian_information(0, 2).nats == round_bound(0, 5, 8, cases=LOOSE).nats == 0


def test_case_1_adds_its_constant_to_the_gaussian_term() -> None:
    # 100 · 2 / (9 · 32) + 50 ln(10/9)
    found = round_bound(100, 10, 32, cases=LOOSE)
    assert found.nats == pytest.approx(0.6944444444444444 + 5.268025782891318, rel=1e-12)
    assert found.kind == "guarantee"
    assert found.facts == {"batch_size": 32, "c_0": 2.0}


def test_case_2_has_the_constants_of_the_paper() -> None:
    # sigma ½, entropy 10 nats in 10 dimensions, B = 4, N = 3; terms written out by hand.
    c_1 = 2 * (1.5 + 1.8378770664093453 + 0.6931471805599453)
    by_hand = (10 * c_1 - 40) / (2 * 4 * 0.0625) + 5 * 0.4054651081081644
    found = round_bound(10, 3, 4, cases=[LogConcaveWhitened(0.5, 10.0)])
    assert found.nats == pytest.approx(by_hand, rel=1e-12)


def test_case_2_is_loose_for_the_only_distribution_it_admits() -> None:
    gaussian = 10 / 2 * math.log(2 * math.pi * math.e)
    case = LogConcaveWhitened(1.0, gaussian)
    # 2 d* (sigma - ln sigma) remains of the constants, where the truth has nothing.
    assert case.excess(10) == pytest.approx(20.0)
    assert round_bound(10, 3, 4, cases=[case]).nats > gaussian_information(10, 3).nats


def test_the_smallest_case_counts() -> None:
    both = round_bound(10, 3, 4, cases=[LogConcaveWhitened(0.5, 10.0), *LOOSE])
    assert both.nats == round_bound(10, 3, 4, cases=LOOSE).nats
    assert Assumption.WHITENED_INDEPENDENT in both.assumptions


@given(st.integers(1, 500), st.integers(3, 500), st.integers(1, 300), st.floats(0, 50))
def test_bounds_fall_with_users_and_batch_and_rise_with_rank_and_rounds(
    rank: int, users: int, batch: int, constant: float
) -> None:
    cases = [IndependentWhitened(constant)]
    here = round_bound(rank, users, batch, cases=cases).nats
    assert round_bound(rank, users + 1, batch, cases=cases).nats < here
    assert round_bound(rank, users, batch + 1, cases=cases).nats <= here
    assert round_bound(rank + 1, users, batch, cases=cases).nats > here
    assert gaussian_information(rank, users).nats <= here
    assert run_bound(rank, users, batch, rounds=7, cases=cases).nats == pytest.approx(7 * here)


def test_dropouts_and_colluders_hide_nobody() -> None:
    fewer = round_bound(20, 6, 8, cases=LOOSE)
    assert round_bound(20, 10, 8, cases=LOOSE, dropped=3, colluding=1).nats == fewer.nats
    run = run_bound(20, 10, 8, rounds=5, cases=LOOSE, dropped=3, colluding=1)
    assert run.nats == pytest.approx(5 * fewer.nats)


def test_a_sampled_user_leaks_in_its_share_of_the_rounds_only() -> None:
    one = round_bound(20, 10, 8, cases=LOOSE).nats
    sampled = run_bound(20, 50, 8, rounds=30, cases=LOOSE, cohort=10)
    assert sampled.nats == pytest.approx(30 * 10 / 50 * one)  # T K / N rounds, not K / N
    known = run_bound(20, 50, 8, rounds=30, cases=LOOSE, cohort=10, participations=9)
    assert known.nats == pytest.approx(9 * one)
    absent = run_bound(20, 50, 8, rounds=30, cases=LOOSE, cohort=10, participations=0)
    assert absent.nats == 0


def test_rounds_of_different_size_add_up() -> None:
    rounds = [round_bound(5, users, 8, cases=LOOSE) for users in (10, 7, 9)]
    assert accumulated(rounds).nats == pytest.approx(sum(r.nats for r in rounds))
    assert accumulated(rounds[:1]).assumptions == rounds[0].assumptions


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_information(5, 1), "users"),
        (lambda: gaussian_information(-1, 3), "rank"),
        (lambda: gaussian_information(1, 2.5), "users"),  # type: ignore[arg-type]
        (
            lambda: round_bound(5, 4, 8, cases=LOOSE, dropped=2, colluding=1),
            "users - dropped - colluding",
        ),
        (lambda: round_bound(5, 4, 0, cases=LOOSE), "batch_size"),
        (lambda: round_bound(5, 4, 8, cases=[]), "cases"),
        (lambda: run_bound(5, 4, 8, rounds=2, cases=LOOSE, cohort=5), "cohort"),
        (
            lambda: run_bound(5, 4, 8, rounds=2, cases=LOOSE, participations=3),
            "participations",
        ),
        (lambda: IndependentWhitened(-1.0), "constant"),
        (lambda: LogConcaveWhitened(1.5, 0.0), "sigma"),
        (lambda: LogConcaveWhitened(1.0, 99.0).excess(2), "entropy"),
        (lambda: batch_entropy(5, 6), "batches"),
        (lambda: update_entropy(5, 6, [2]), "own"),
        (lambda: update_entropy(5, 4, [2, 0]), "batches"),
        (lambda: accumulated([]), "rounds"),
        (lambda: accumulated([Information(1.0, "estimate", "x")]), "rounds"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with refuses(message):
        call()
