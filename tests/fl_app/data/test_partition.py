"""Partitions: every record once, the same for the same seed, never an empty client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.data.partition import Sizes, sizes
from tests.helpers.numbers import num_examples
from tests.helpers.partition import deal, draw, partition
from tests.helpers.refusals import refuses

LABELS = np.arange(1000, dtype=np.int64) % 10

labels_and_clients = st.tuples(
    st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 12)
).filter(lambda case: len(case[0]) >= case[1])


def assert_every_record_once(parts: Sequence[np.ndarray], num_records: int) -> None:
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(num_records))


def spread(parts: Sequence[np.ndarray]) -> float:
    """Return how far the clients' label shares are from equal, on average."""
    shares = np.stack([np.bincount(LABELS[part], minlength=10) / len(part) for part in parts])
    return float(np.abs(shares - 0.1).mean())


@given(labels_and_clients, st.integers(-5, 2**40))
@settings(max_examples=num_examples(100), deadline=None)
def test_iid_uses_every_record_once_in_equal_sizes(case, seed) -> None:
    labels, clients = np.array(case[0], dtype=np.int64), case[1]
    parts = partition(labels, clients=clients, scheme="iid", concentration=1.0, seed=seed)
    assert len(parts) == clients
    assert_every_record_once(parts, len(labels))
    assert sizes(parts).largest - sizes(parts).smallest <= 1


@given(labels_and_clients, st.floats(0.01, 1e6), st.integers(-5, 2**40))
@settings(max_examples=num_examples(80), deadline=None)
def test_dirichlet_uses_every_record_once_and_leaves_nobody_empty(case, omega, seed) -> None:
    labels, clients = np.array(case[0], dtype=np.int64), case[1]
    asked = {"clients": clients, "scheme": "dirichlet-labels", "concentration": omega, "seed": seed}
    try:
        parts = partition(labels, **asked)
    except ConfigError:
        reject()  # an empty client in every attempt; tested below
    assert len(parts) == clients
    assert_every_record_once(parts, len(labels))
    assert sizes(parts).smallest >= 1
    again = partition(labels, **asked)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "dirichlet-labels"])
def test_seed_decides_the_partition(scheme: str) -> None:
    first, again, other = (
        partition(LABELS, clients=7, scheme=scheme, concentration=1.0, seed=seed)
        for seed in (3, 3, 4)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_deals_uniformly() -> None:
    # 400 seeds; the share of record 0 at client 0 of 4 has standard deviation 0.022, so five of
    # them are exceeded with chance below one in a million, and the seeds are fixed anyway.
    hits = [
        0 in partition(LABELS[:40], clients=4, scheme="iid", concentration=1.0, seed=seed)[0]
        for seed in range(400)
    ]
    assert abs(np.mean(hits) - 0.25) < 5 * 0.022


@pytest.mark.parametrize("scheme", ["dirichlet", "dirichlet-labels"])
def test_small_concentration_is_skewed_and_large_is_even(scheme: str) -> None:
    skewed, middling, even = (
        spread(partition(LABELS, clients=10, scheme=scheme, concentration=omega, seed=0))
        for omega in (0.1, 1.0, 1e6)
    )
    assert skewed > 1.2 * middling > 3 * even
    assert even < 0.01


def test_shares_of_a_label_follow_the_dirichlet_law() -> None:
    # One label, two clients: the first one's share is Beta(ω, ω) with variance 1/(4(2ω + 1)).
    omega, records = 2.0, np.zeros(500, dtype=np.int64)
    asked = {"clients": 2, "scheme": "dirichlet-labels", "concentration": omega}
    shares = [len(partition(records, **asked, seed=seed)[0]) / 500 for seed in range(1000)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.035)  # five standard errors
    assert np.var(shares) == pytest.approx(1 / 20, rel=0.15)  # ω = 1 or 3 would be 67 % or 29 % off


def test_dirichlet_draws_again_rather_than_leave_a_client_empty() -> None:
    parts = partition(LABELS, clients=60, scheme="dirichlet-labels", concentration=0.12, seed=0)
    assert sizes(parts).smallest >= 1


def test_empty_clients_are_reported_with_a_cure() -> None:
    with pytest.raises(ConfigError, match=r"of 60 clients would get no record.*fewer clients, a l"):
        partition(LABELS, clients=60, scheme="dirichlet-labels", concentration=0.001, seed=0)


@given(
    st.lists(st.integers(-3, 9), min_size=1, max_size=60), st.integers(1, 13), st.integers(0, 2**40)
)
@settings(max_examples=num_examples(100), deadline=None)
def test_natural_gives_each_client_all_records_of_one_user(people, clients, seed) -> None:
    users = np.array(people, dtype=np.int64)
    asked = {"scheme": "natural", "concentration": 1.0, "seed": seed, "users": users}
    clients = min(clients, len(set(people)))
    parts = partition(np.zeros_like(users), clients=clients, **asked)
    assert len(parts) == clients
    owners = [users[part[0]] for part in parts]
    assert len(set(owners)) == clients
    for part, owner in zip(parts, owners, strict=True):
        assert part.dtype == np.int64
        assert part.tolist() == [i for i, user in enumerate(people) if user == owner]


def test_natural_with_a_client_for_everyone_uses_every_record_once() -> None:
    asked = {"scheme": "natural", "concentration": 1.0, "users": LABELS * 3}
    for seed in (0, 1):
        assert_every_record_once(partition(LABELS, clients=10, **asked, seed=seed), len(LABELS))


def test_natural_draws_users_uniformly_and_by_the_seed() -> None:
    # 400 seeds, 3 of 10 users: a user's share has standard deviation 0.023, and five of them are
    # exceeded by any of ten with chance below one in 100,000; the seeds are fixed anyway.
    asked = {"clients": 3, "scheme": "natural", "concentration": 1.0, "users": LABELS[:20]}
    drawn = [
        [int(part[0]) for part in partition(LABELS[:20], **asked, seed=seed)] for seed in range(400)
    ]
    shares = np.bincount(np.concatenate(drawn), minlength=10) / 400
    np.testing.assert_allclose(shares, 0.3, atol=5 * 0.023)
    again = [int(part[0]) for part in partition(LABELS[:20], **asked, seed=7)]
    assert again == drawn[7]


@pytest.mark.parametrize(
    ("clients", "users", "message"),
    [
        (5, None, "partition natural needs the user behind each record, got none"),
        (11, LABELS, r"clients must be at most the number of users \(10\) .* natural, got 11"),
        (5, LABELS[:999], r"users must be one a record, \(1000,\), got \(999,\)"),
    ],
)
def test_natural_without_enough_users_is_refused(clients, users, message) -> None:
    with pytest.raises(ConfigError, match=message):
        partition(LABELS, clients=clients, scheme="natural", concentration=1.0, seed=0, users=users)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scheme": "even"}, "--partition"),
        ({"clients": 0}, "--clients"),
        ({"clients": 1001}, "--clients"),
        ({"concentration": 0.0}, "--dirichlet"),
        ({"concentration": -1.0}, "--dirichlet"),
        ({"concentration": float("nan")}, "--dirichlet"),
        ({"concentration": float("inf")}, "--dirichlet"),
        ({"labels": LABELS.reshape(10, 100)}, "labels"),
        ({"labels": LABELS[:0]}, "--clients"),
    ],
)
def test_bad_input_names_field_range_and_value(changed, message) -> None:
    asked = {"clients": 5, "scheme": "dirichlet-labels", "concentration": 1.0, "seed": 0} | changed
    with refuses(message):
        partition(asked.pop("labels", LABELS), **asked)


def test_sizes_are_reported_in_words() -> None:
    report = sizes((np.arange(3), np.arange(5), np.arange(8), np.arange(6)))
    assert report == Sizes(smallest=3, median=5.5, largest=8)
    assert str(report) == "3 to 8 records each, median 5.5"


# Dealing and drawing again and again.

POOL = np.arange(0, 1000, 2, dtype=np.int64)  # the even labels


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "dirichlet-labels"])
def test_a_deal_gives_every_record_of_the_pool_to_one_client(scheme: str) -> None:
    parts = deal(LABELS, scheme, 1.0, POOL, 7, stream(0, "deal"))
    assert len(parts) == 7
    assert np.sort(np.concatenate(parts)).tolist() == POOL.tolist()
    again = deal(LABELS, scheme, 1.0, POOL, 7, stream(0, "deal"))
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_an_iid_deal_is_the_partition_of_its_generator() -> None:
    parts = deal(LABELS, "iid", 1.0, np.arange(1000), 7, stream(5, "partition", "iid"))
    twin = partition(LABELS, clients=7, scheme="iid", concentration=1.0, seed=5)
    assert [np.sort(part).tolist() for part in parts] == [part.tolist() for part in twin]


def test_a_dirichlet_deal_is_the_partition_of_its_generator() -> None:
    rng = stream(5, "partition", "dirichlet", 0)
    parts = deal(LABELS, "dirichlet-labels", 3.0, np.arange(1000), 7, rng)
    twin = partition(LABELS, clients=7, scheme="dirichlet-labels", concentration=3.0, seed=5)
    assert [np.sort(part).tolist() for part in parts] == [part.tolist() for part in twin]


def test_a_deal_draws_again_rather_than_leave_a_client_empty() -> None:
    rng = stream(0, "deal")
    smallest = [
        min(map(len, deal(LABELS, "dirichlet-labels", 0.2, np.arange(1000), 60, rng)))
        for _ in range(20)
    ]
    assert min(smallest) >= 1
    with pytest.raises(ConfigError, match=r"of 60 clients would get no record.*fewer clients"):
        deal(LABELS, "dirichlet-labels", 0.001, np.arange(1000), 60, rng)


def test_an_iid_draw_is_a_uniform_subset_of_one_share() -> None:
    rng = stream(0, "draw")
    drawn = [draw(LABELS, "iid", 1.0, POOL, 10, rng) for _ in range(600)]
    assert {len(part) for part in drawn} == {50}
    assert all(len(np.unique(part)) == 50 for part in drawn)
    hits = np.bincount(np.concatenate(drawn), minlength=1000)
    assert not hits[1::2].any()
    # 600 draws of a tenth: a record's count has standard deviation 7.3; the largest of 500 stays
    # within 4.8 of them with chance 0.999, and counts follow the binomial's spread.
    assert abs(hits[::2] - 60).max() < 4.8 * 7.35
    assert hits[::2].var() == pytest.approx(54, rel=0.3)


@pytest.mark.parametrize("omega", [0.3, 2.0])
def test_a_dirichlet_draw_has_the_law_of_one_client_in_a_deal(omega: float) -> None:
    labels, pool, clients = np.repeat([0, 1], [300, 100]), np.arange(400), 4
    rng = stream(1, "law")

    def shares(parts: list[np.ndarray]) -> np.ndarray:
        return np.stack([np.bincount(labels[part], minlength=2) / [300, 100] for part in parts])

    drawn = shares(
        [draw(labels, "dirichlet-labels", omega, pool, clients, rng) for _ in range(1500)]
    )
    dealt = shares(
        [deal(labels, "dirichlet-labels", omega, pool, clients, rng)[0] for _ in range(1500)]
    )
    for found in (drawn, dealt):
        # Beta(w, 3w): mean 1/4, variance 3/16 / (4w + 1); a wrong second parameter is far off.
        assert found.mean(axis=0) == pytest.approx(0.25, abs=0.04)
        assert found.var(axis=0) == pytest.approx(3 / 16 / (4 * omega + 1), rel=0.15)
    quantiles = [0.1, 0.25, 0.5, 0.75, 0.9]
    one, other = (np.quantile(found, quantiles, axis=0) for found in (drawn, dealt))
    np.testing.assert_allclose(one, other, atol=0.05)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "dirichlet-labels"])
def test_the_only_client_gets_the_whole_pool(scheme: str) -> None:
    assert np.sort(draw(LABELS, scheme, 1.0, POOL, 1, stream(0, "x"))).tolist() == POOL.tolist()
    (part,) = deal(LABELS, scheme, 1.0, POOL, 1, stream(0, "x"))
    assert np.sort(part).tolist() == POOL.tolist()


def test_a_draw_that_would_stay_empty_is_reported() -> None:
    with pytest.raises(ConfigError, match="would get no record"):
        draw(0 * LABELS, "dirichlet-labels", 1e-6, POOL, 500, stream(0, "x"))


@pytest.mark.parametrize("share", [deal, draw])
@pytest.mark.parametrize(
    ("clients", "scheme", "omega", "message"),
    [
        (0, "iid", 1.0, "--clients"),
        (501, "iid", 1.0, "--clients"),
        (5, "natural", 1.0, "--partition"),
        (5, "dirichlet", 0.0, "--dirichlet"),
    ],
)
def test_what_cannot_be_shared_names_field_range_and_value(
    share, clients, scheme, omega, message
) -> None:
    with refuses(message):
        share(LABELS, scheme, omega, POOL, clients, stream(0, "x"))
