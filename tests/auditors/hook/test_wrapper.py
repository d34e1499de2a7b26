"""Wrappers hand everything on, keep the inner loop, and take their hooks away."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors.hook.wrapper import Wrapper, chain, lend_methods
from leakmeter.strategies import Chosen
from leakmeter.strategies.chosen import FixedSize
from tests.helpers.strategies import OwnLoop, Through


class Noting(Wrapper):
    """Notes each call that passes through it."""

    def __init__(self, strategy: Any, name: str, calls: list[str]) -> None:
        super().__init__(strategy)
        self._name, self._calls = name, calls

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._calls.append(self._name)
        return super().configure_train(server_round, arrays, config, grid)


def same(a: ArrayRecord, b: ArrayRecord) -> bool:
    assert set(a) == {"w", "n", "b"}
    return list(a) == list(b) and all(np.array_equal(a[k].numpy(), b[k].numpy()) for k in a)


def chosen(strategy: FedAvg, size: int = 6) -> Chosen:
    return Chosen(strategy, FixedSize(size), num_clients=6, seed=1)


def test_wrappers_change_nothing(federation: Any) -> None:
    plain = chosen(FedAvg()).start(federation().grid, federation().arrays(), 2)
    wrapped = Through(Through(Through(chosen(FedAvg())))).start(
        federation().grid, federation().arrays(), 2
    )
    assert same(plain.arrays, wrapped.arrays)
    assert plain.train_metrics_clientapp == wrapped.train_metrics_clientapp
    assert plain.evaluate_metrics_clientapp == wrapped.evaluate_metrics_clientapp


def test_calls_pass_through_every_wrapper_from_the_outside_in(federation: Any) -> None:
    calls: list[str] = []
    inner = Noting(Noting(OwnLoop(), "inner", calls), "middle", calls)
    Noting(inner, "outer", calls).start(federation().grid, federation().arrays(), num_rounds=2)
    assert calls == ["outer", "middle", "inner"] * 2


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_loop_of_its_own_is_kept_however_deep_it_is_wrapped(federation: Any, depth: int) -> None:
    inner = OwnLoop()
    strategy: Any = inner
    for _ in range(depth):
        strategy = Through(strategy)
    result = strategy.start(federation().grid, federation().arrays(), num_rounds=3)
    assert hasattr(inner, "options")  # its own `start` has run
    assert len(result.train_metrics_clientapp) == 3
    plain = FedAvg(fraction_evaluate=0.0).start(federation().grid, federation().arrays(), 3)
    # Flower asks nodes in random order, and float32 sums depend on it.
    for name in ("w", "b"):
        np.testing.assert_allclose(
            result.arrays[name].numpy(), plain.arrays[name].numpy(), rtol=1e-5, atol=1e-6
        )


def test_hooks_are_taken_away_also_after_an_exception(federation: Any) -> None:
    class Broken(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            raise RuntimeError("no sum today")

    inner = Broken()
    strategy = Through(Through(inner))
    before = [dict(vars(held)) for held in chain(strategy)]
    with pytest.raises(RuntimeError, match="no sum today"):
        strategy.start(federation().grid, federation().arrays(), 1)
    assert [dict(vars(held)) for held in chain(strategy)] == before


def test_replaced_methods_come_back_in_order() -> None:
    inner, other, third = FedAvg(), FedAvg(), FedAvg()
    with lend_methods(inner, other):
        before = inner.configure_train
        with lend_methods(inner, third):
            assert inner.configure_train is not before
        assert inner.configure_train is before
    assert "configure_train" not in vars(inner)


def test_copies_and_pickles_of_a_strategy_have_its_own_methods() -> None:
    inner = FedAvg(fraction_train=0.25)
    with lend_methods(inner, FedAvg()):
        twins = [copy.deepcopy(inner), pickle.loads(pickle.dumps(inner))]
    for twin in twins:
        assert twin.fraction_train == 0.25
        assert twin.configure_train.__func__ is FedAvg.configure_train
        assert twin.configure_train.__self__ is twin


def test_a_loop_of_its_own_with_slots_is_refused_in_words() -> None:
    class Slotted:
        __slots__ = ()

        def start(self, *_: object) -> None: ...

        configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = start

    with pytest.raises(TypeError, match="Slotted has a loop of its own and __slots__"):
        Through(Slotted()).start()  # type: ignore[arg-type]


def test_the_chain_stops_where_strategy_is_something_else() -> None:
    inner = FedAvg()
    inner.strategy = "weighted"  # a foreign strategy may use this name for anything
    assert list(chain(Through(inner)))[1:] == [inner]
