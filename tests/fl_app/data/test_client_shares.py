"""The partition by label shares that each client draws (Hsu et al. 2019): its distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.data.partition import sizes
from tests.helpers.numbers import num_examples
from tests.helpers.partition import deal, draw, partition

SKEWED = np.repeat([0, 1], [3000, 1000])  # a prior of 3/4 and 1/4
EVEN = np.arange(1000, dtype=np.int64) % 10


def counts(labels: np.ndarray, parts) -> np.ndarray:
    """Return how many records of each label each client holds, (clients, labels)."""
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.integers(1, 12),
    st.floats(1e-9, 1e6),
    st.integers(0, 2**40),
)
@settings(max_examples=num_examples(100), deadline=None)
def test_every_record_is_used_once_in_equal_sizes(given_labels, clients, omega, seed) -> None:
    labels = np.array(given_labels, dtype=np.int64)
    clients = min(clients, len(labels))
    asked = {"clients": clients, "scheme": "dirichlet", "concentration": omega, "seed": seed}
    parts = partition(labels, **asked)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(labels)))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert sizes(parts).largest - sizes(parts).smallest <= 1
    held = [len(part) for part in parts]
    assert held == sorted(held, reverse=True)  # a client's size does not depend on the draw
    again = partition(labels, **asked)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


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


def test_records_of_a_label_are_drawn_uniformly() -> None:
    rng, pool = stream(4, "records"), np.arange(0, 1000, 2)
    drawn = [draw(EVEN, "dirichlet", 5.0, pool, 10, rng) for _ in range(600)]
    assert all(len(np.unique(part)) == 50 for part in drawn)
    hits = np.bincount(np.concatenate(drawn), minlength=1000)
    assert not hits[1::2].any()
    # Each record of the pool is drawn with chance 1/10: a count has mean 60 and a standard
    # deviation of 8 at most; one of 500 beyond 5.5 of them has a chance below one in 10,000.
    assert abs(hits[::2] - 60).max() < 5.5 * 8


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
        assert ((counts(EVEN, partition(EVEN, **asked)) > 0).sum(axis=1) == 1).all()
    # Where sizes do not divide the classes, each client that has more has used a class up.
    parts = partition(EVEN, clients=30, scheme="dirichlet", concentration=1e-9, seed=0)
    assert ((counts(EVEN, parts) > 0).sum(axis=1) > 1).sum() <= 9


def test_the_one_class_of_a_client_is_drawn_from_the_prior() -> None:
    rng, pool = stream(6, "class"), np.arange(4000)
    drawn = [SKEWED[draw(SKEWED, "dirichlet", 1e-12, pool, 40, rng)] for _ in range(1000)]
    assert {len(set(one.tolist())) for one in drawn} == {1}
    # Five standard errors of a share of 1/4 in 1,000 draws: below one in a million.
    assert np.mean([one[0] for one in drawn]) == pytest.approx(0.25, abs=5 * 0.0137)


def test_a_large_concentration_gives_every_client_the_prior() -> None:
    """A share of 1/10 with ω = 10⁶ has a deviation of 0.0003: 0.03 records of a client's 100."""
    parts = partition(EVEN, clients=10, scheme="dirichlet", concentration=1e6, seed=0)
    assert abs(counts(EVEN, parts) - 10).max() <= 1
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


def test_a_deal_is_the_partition_of_its_generator() -> None:
    rng = stream(5, "partition", "dirichlet-clients")
    parts = deal(EVEN, "dirichlet", 3.0, np.arange(1000), 7, rng)
    twin = partition(EVEN, clients=7, scheme="dirichlet", concentration=3.0, seed=5)
    assert [np.sort(part).tolist() for part in parts] == [part.tolist() for part in twin]
