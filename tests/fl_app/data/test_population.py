"""Clients that are generated when they are needed: their law, and that nobody else is made."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, chisquare, kstest

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.data.dataset import dealt, load
from leakmeter.fl_app.data.partition import Sizes, sizes
from leakmeter.fl_app.data.table import Population
from tests.helpers.refusals import refuses

CENTRES = np.arange(12, dtype=np.float32).reshape(4, 3)
MILLION = 10**6


def population(size: int = 5, concentration: float | None = None, seed: int = 3) -> Population:
    return Population(seed, MILLION, size, CENTRES, concentration)


def test_a_client_depends_on_seed_and_number_only() -> None:
    x, y = population().client(7)
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((5, 3), np.float32, (5,), np.int64)
    again = pickle.loads(pickle.dumps(population()))
    np.testing.assert_array_equal(again.client(7)[0], x)
    for other in (population().client(8), population(seed=4).client(7)):
        assert not np.isin(other[0], x).any()


@given(st.lists(st.tuples(st.integers(0, 2**55), st.integers(0, 4)), min_size=1, max_size=30))
def test_records_are_those_of_their_clients_in_any_order(asked: list[tuple[int, int]]) -> None:
    of = population()
    x, y = of.rows(np.array([client * 5 + row for client, row in asked]))
    for i, (client, row) in enumerate(asked):
        own_x, own_y = of.client(client)
        np.testing.assert_array_equal(x[i], own_x[row])
        assert y[i] == own_y[row]


def test_only_the_clients_of_the_records_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made, usual = list[int](), Population.client
    monkeypatch.setattr(
        Population, "client", lambda self, number: (made.append(number), usual(self, number))[1]
    )
    of = population()
    assert len(of.parts) == MILLION
    of.rows(np.concatenate([of.parts[999_999], of.parts[3], of.parts[3]]))
    assert made == [3, 999_999]


def test_a_million_clients_are_loaded_without_any_of_them() -> None:
    task = TaskConfig(dataset="synthetic", clients=MILLION, synthetic_per_client=100)
    dealt.__wrapped__(task)
    tracemalloc.start()
    try:
        dataset, parts = dealt.__wrapped__(task)
        assert sizes(parts) == Sizes(100, 100.0, 100)
        assert tracemalloc.get_traced_memory()[1] < 2**20  # of which the test records take half
    finally:
        tracemalloc.stop()
    assert dataset.num_train == 10**8
    assert (len(parts), parts[-1].tolist()) == (MILLION, list(range(10**8 - 100, 10**8)))
    assert len(dataset.train_x) == 0  # whoever takes them for all records notices


@pytest.mark.slow
def test_generated_records_have_the_law_of_the_listed_ones() -> None:
    """Chance of failure by bad luck: 1e-4 each (fixed seed)."""
    listed = load("synthetic", seed=2, synthetic_examples=20_000)
    made = load("synthetic", seed=2, synthetic_examples=20_000, synthetic_per_client=50)
    np.testing.assert_array_equal(made.test_x, listed.test_x)
    assert made.population is not None
    x, y = made.rows(np.arange(20_000))
    assert chisquare(np.bincount(y)).pvalue > 1e-4
    assert chisquare(np.bincount(y[:-1:2] * 10 + y[1::2])).pvalue > 1e-4  # of neighbours, too
    for label in range(3):
        ours, theirs = x[y == label], listed.train_x[listed.train_y == label]
        for feature in range(3):
            assert kstest(ours[:, feature], theirs[:, feature]).pvalue > 1e-4
    spread = x - made.population.centres[y]
    assert kstest(spread.ravel(), "norm").pvalue > 1e-4
    assert kstest(spread.ravel() * 1.02, "norm").pvalue < 1e-4
    # The mean of a client's records varies as that of independent ones does.
    means = spread.reshape(400, 50, 20).mean(axis=1) * np.sqrt(50)
    assert kstest(means.ravel(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("omega", [0.5, 4.0])
def test_label_shares_of_generated_clients_follow_the_dirichlet_law(omega: float) -> None:
    draws = 1500
    of = population(size=100, concentration=omega)
    shares = np.array([(of.client(c)[1] == 2).mean() for c in range(draws)])
    # One of four shares is Beta(ω/4, 3ω/4); tolerances are five standard errors, and rounding to
    # whole records moves a share by 0.01 at most.
    slack = 5 * np.sqrt(0.25 / draws)
    law = beta(omega / 4, 3 * omega / 4)
    assert shares.mean() == pytest.approx(0.25, abs=5 * np.sqrt(3 / 16 / (omega + 1) / draws))
    for place in np.arange(0.1, 1.0, 0.2):
        found = (shares <= place).mean()
        assert law.cdf(place - 0.01) - slack <= found <= law.cdf(place + 0.01) + slack


def test_other_clients_are_none_of_the_run_and_do_not_repeat() -> None:
    of = population()
    drawn = [of.another(stream(0, "other", i)) for i in range(200)]
    numbers = {int(part[0]) // of.size for part in drawn}
    assert len(numbers) == 200
    assert min(numbers) >= MILLION
    assert max(part[-1] for part in drawn) < 2**62
    x, _ = of.rows(drawn[0])
    np.testing.assert_array_equal(x, of.client(int(drawn[0][0]) // of.size)[0])
    np.testing.assert_array_equal(of.another(stream(0, "other", 7)), drawn[7])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"partition": "natural"}, "--partition"),
        ({"partition": "dirichlet-labels"}, "--partition"),
        ({"partition": "dirichlet", "dirichlet": 1e9}, "--dirichlet"),
    ],
)
def test_partitions_that_need_a_list_of_records_are_refused(wrong, words: str) -> None:
    with refuses(words):
        load("synthetic", synthetic_per_client=5, **wrong)
