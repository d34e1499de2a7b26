"""Partitions: every record once, the same for the same seed, never an empty client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy.stats import beta

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.data.partition import Sizes, sizes
from tests.helpers.numbers import num_examples
from tests.helpers.partition import deal, draw, partition
from tests.helpers.refusals import refuses

LABELS = np.arange(1000, dtype=np.int64) % 10

# With the stream of a partition by seed 5.
SHARED = {
    "iid": ("iid",),
    "dirichlet": ("dirichlet-clients",),
    "dirichlet-labels": ("dirichlet", 0),
}
SCHEMES = pytest.mark.parametrize("scheme", SHARED)


def same(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def assert_every_record_once(parts: Sequence[np.ndarray], num_records: int) -> None:
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(num_records))


def spread(parts: Sequence[np.ndarray]) -> float:
    """Return how far the clients' label shares are from equal, on average."""
    shares = np.stack([np.bincount(LABELS[part], minlength=10) / len(part) for part in parts])
    return float(np.abs(shares - 0.1).mean())


@SCHEMES
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.integers(1, 12),
    st.floats(1e-9, 1e6),
    st.integers(-5, 2**40),
)
@settings(max_examples=num_examples(100), deadline=None)
def test_every_record_is_used_once_and_nobody_is_empty(scheme, given_labels, most, omega, seed):
    labels, clients = np.array(given_labels, dtype=np.int64), min(most, len(given_labels))
    if scheme == "dirichlet-labels":  # below, most splits leave somebody empty
        omega = max(omega, 0.01)
    asked = {"clients": clients, "scheme": scheme, "concentration": omega, "seed": seed}
    try:
        parts = partition(labels, **asked)
    except ConfigError:
        assert scheme == "dirichlet-labels"
        reject()  # an empty client in every attempt; tested below
    assert_every_record_once(parts, len(labels))
    held = [len(part) for part in parts]
    assert (len(held), min(held) >= 1) == (clients, True)
    if scheme != "dirichlet-labels":  # a client's size does not depend on the draw
        assert max(held) - min(held) <= 1
        assert held == sorted(held, reverse=True)
    assert same(parts, partition(labels, **asked))


@SCHEMES
def test_seed_decides_the_partition(scheme: str) -> None:
    first, again, other = (
        partition(LABELS, clients=7, scheme=scheme, concentration=3.0, seed=seed)
        for seed in (5, 5, 4)
    )
    assert same(first, again)
    assert not same(first, other)
    rng = stream(5, "partition", *SHARED[scheme])
    dealt = deal(LABELS, scheme, 3.0, np.arange(1000), 7, rng)
    assert same([np.sort(part) for part in dealt], first)


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


def test_an_empty_client_is_drawn_again_a_few_times_and_then_reported_with_a_cure() -> None:
    asked = {"clients": 60, "scheme": "dirichlet-labels", "seed": 0}
    assert sizes(partition(LABELS, concentration=0.12, **asked)).smallest >= 1
    rng, pool = stream(0, "deal"), np.arange(1000)
    dealt = [deal(LABELS, "dirichlet-labels", 0.2, pool, 60, rng) for _ in range(10)]
    assert min(len(part) for parts in dealt for part in parts) >= 1
    words = r"of 60 clients would get no record.*fewer clients, a l"
    with pytest.raises(ConfigError, match=words):
        partition(LABELS, concentration=0.001, **asked)
    with pytest.raises(ConfigError, match=words):
        deal(LABELS, "dirichlet-labels", 0.001, pool, 60, rng)


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


@SCHEMES
def test_a_deal_gives_every_record_of_the_pool_to_one_client(scheme: str) -> None:
    for clients in (1, 7):
        parts = deal(LABELS, scheme, 1.0, POOL, clients, stream(0, "deal"))
        assert len(parts) == clients
        assert np.sort(np.concatenate(parts)).tolist() == POOL.tolist()
        assert same(parts, deal(LABELS, scheme, 1.0, POOL, clients, stream(0, "deal")))
    alone = draw(LABELS, scheme, 1.0, POOL, 1, stream(0, "x"))
    assert np.sort(alone).tolist() == POOL.tolist()


@pytest.mark.parametrize(("scheme", "omega"), [("iid", 1.0), ("dirichlet", 5.0)])
def test_records_are_drawn_uniformly(scheme: str, omega: float) -> None:
    rng = stream(0, "draw")
    drawn = [draw(LABELS, scheme, omega, POOL, 10, rng) for _ in range(600)]
    assert all(len(np.unique(part)) == len(part) == 50 for part in drawn)
    hits = np.bincount(np.concatenate(drawn), minlength=1000)
    assert not hits[1::2].any()
    # Each record of the pool is drawn with chance 1/10: a count has mean 60 and a standard
    # deviation of 8 at most; one of 500 beyond 5.5 of them has a chance below one in 10,000.
    assert abs(hits[::2] - 60).max() < 5.5 * 8
    if scheme == "iid":  # counts follow the binomial's spread
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


# The partition by label shares that each client draws (Hsu et al. 2019): its distribution.


SKEWED = np.repeat([0, 1], [3000, 1000])  # a prior of 3/4 and 1/4


def counts(labels: np.ndarray, parts) -> np.ndarray:
    """Return how many records of each label each client holds, (clients, labels)."""
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@pytest.mark.parametrize("omega", [1.0, 4.0])
def test_a_clients_shares_follow_the_dirichlet_law_of_the_prior(omega: float) -> None:
    rng, pool, draws = stream(3, "law"), np.arange(4000), 1500
    parts = [draw(SKEWED, "dirichlet", omega, pool, 40, rng) for _ in range(draws)]
    shares = counts(SKEWED, parts)[:, 1] / 100
    # The share of label 1 is Beta(ω/4, 3ω/4): mean 1/4, variance 3/16/(ω + 1). Five standard errors
    # are exceeded with a chance below one in a million, and the seed is fixed anyway.
    assert shares.mean() == pytest.approx(0.25, abs=5 * np.sqrt(3 / 16 / (omega + 1) / draws))
    assert shares.var() == pytest.approx(3 / 16 / (omega + 1), rel=0.15)
    # The distribution itself at nine places, each within five standard errors: below one in
    # 100,000 together. Rounding to whole records moves a share by 0.01 at most.
    places, slack = np.arange(0.1, 1.0, 0.1), 5 * np.sqrt(0.25 / draws)
    found = (shares[:, None] <= places).mean(axis=0)
    law = beta(omega / 4, 3 * omega / 4)
    assert (found <= law.cdf(places + 0.01) + slack).all()
    assert (found >= law.cdf(places - 0.01) - slack).all()
    # Twice or half the concentration would be refused, and so would a uniform prior.
    for wrong in (beta(omega / 2, 1.5 * omega), beta(omega / 8, 3 * omega / 8)):
        assert abs(shares.var() / wrong.var() - 1) > 0.15


def test_no_client_is_favoured_by_its_number() -> None:
    """Whoever draws last gets what is left; by a random order that is anybody."""
    rng, deals = stream(5, "order"), 400
    parts = [deal(SKEWED, "dirichlet", 0.5, np.arange(4000), 4, rng) for _ in range(deals)]
    shares = np.stack([counts(SKEWED, one)[:, 1] / 1000 for one in parts])  # (deals, clients)
    # All records are used, so the mean is 1/4 for each if all have one law. Its standard error is
    # at most √(0.1875/1.5/400) = 0.018; five of them have a chance below one in 100,000.
    assert abs(shares.mean(axis=0) - 0.25).max() < 5 * 0.018
    assert shares.mean() == pytest.approx(0.25)


def test_a_small_concentration_gives_one_class_to_a_client() -> None:
    # Twenty clients with 50 records each, and 100 records of each class: no class runs out within
    # a client, so each has exactly one class.
    for seed in range(20):
        asked = {"clients": 20, "scheme": "dirichlet", "concentration": 1e-9, "seed": seed}
        assert ((counts(LABELS, partition(LABELS, **asked)) > 0).sum(axis=1) == 1).all()
    # Where sizes do not divide the classes, each client that has more has used a class up.
    parts = partition(LABELS, clients=30, scheme="dirichlet", concentration=1e-9, seed=0)
    assert ((counts(LABELS, parts) > 0).sum(axis=1) > 1).sum() <= 9


def test_the_one_class_of_a_client_is_drawn_from_the_prior() -> None:
    rng, pool = stream(6, "class"), np.arange(4000)
    drawn = [SKEWED[draw(SKEWED, "dirichlet", 1e-12, pool, 40, rng)] for _ in range(1000)]
    assert {len(set(one.tolist())) for one in drawn} == {1}
    # Five standard errors of a share of 1/4 in 1,000 draws: below one in a million.
    assert np.mean([one[0] for one in drawn]) == pytest.approx(0.25, abs=5 * 0.0137)


def test_a_large_concentration_gives_every_client_the_prior() -> None:
    """A share of 1/10 with ω = 10⁶ has a deviation of 0.0003: 0.03 records of a client's 100."""
    parts = partition(LABELS, clients=10, scheme="dirichlet", concentration=1e6, seed=0)
    assert abs(counts(LABELS, parts) - 10).max() <= 1
    rng = stream(0, "limit")
    drawn = [draw(SKEWED, "dirichlet", 1e6, np.arange(4000), 40, rng) for _ in range(100)]
    assert abs(counts(SKEWED, drawn) - [75, 25]).max() <= 1


def test_a_deal_of_a_rest_keeps_the_prior_of_all_records() -> None:
    """After a client has taken all it wanted of one label, the others want as much of it still."""
    rng, rest = stream(7, "rest"), np.r_[0:3000, 3000:3100]
    held = counts(SKEWED, deal(SKEWED, "dirichlet", 1e6, rest, 31, rng))
    first = held[held[:, 1] > 0]
    assert held.sum(axis=0).tolist() == [3000, 100]
    assert len(first) in (4, 5)  # 25 each, until the label is used up
    assert first[:, 1].max() <= 26
