"""What wrappers know and do, and how a chain of strategies is asked."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    Strategy,
)

from leakmeter.auditors.auditor import RoundFacts
from leakmeter.auditors.hook.wrapper import (
    Foreign,
    Wrapper,
    chain,
    client_of,
    known_facts,
    lend_methods,
    pattern,
    survey,
    weight_key,
    wrappers,
)
from leakmeter.strategies import Central, Chosen, Masked, Noised, RecordNoise
from leakmeter.strategies.chosen import FixedSize
from leakmeter.strategies.protection.mechanism import FixedClip
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


def test_calls_pass_through_every_wrapper_from_the_outside_in(federation: Any) -> None:
    calls: list[str] = []
    inner = Noting(Noting(OwnLoop(), "inner", calls), "middle", calls)
    Noting(inner, "outer", calls).start(federation().grid, federation().arrays(), num_rounds=2)
    assert calls == ["outer", "middle", "inner"] * 2


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


def three_of_six(inner: Strategy | None = None) -> Chosen:
    return Chosen(inner or FedAvg(), FixedSize(3), num_clients=6, seed=1)


def noised(inner: Strategy) -> Noised:
    return Noised(inner, noise=Central(0.0), clipping=FixedClip(2.0), expected_clients=3)


def filled(inner: Strategy) -> Noised:
    return Noised(inner, noise=RecordNoise(1e-3, clip_norm=1.0, batch_size=4, examples=20, lr=0.1))


class Misleading(FedAvg):
    """Uses our names for something else, and Flower's too."""

    def __init__(self) -> None:
        super().__init__()
        self.facts = self.findings = "blue"
        self.client_of, self.hides_updates = {1: 7}, True
        self.pattern, self.weight_key = {"sampling": "poisson"}, "mass"
        self.weighted_by_key: Any = 3


class Knowing(Wrapper):
    """Knows what it is given."""

    def __init__(self, strategy: Strategy, **known: Any) -> None:
        super().__init__(strategy)
        self._known = RoundFacts(**known)

    def facts(self) -> RoundFacts:
        return self._known


def test_a_chain_tells_what_any_of_its_wrappers_knows() -> None:
    inner = three_of_six(FedAvg(weighted_by_key="mass"))
    strategy = Masked(noised(inner))
    assert client_of(strategy) is inner.client_of
    assert pattern(strategy) == {"sampling": "fixed", "cohort": 3, "population": 6}
    assert weight_key(strategy) == "mass"
    assert survey(strategy, 4, 2).is_masked
    assert not survey(noised(inner), 4, 2).is_masked
    assert {held.weight_key for held in wrappers(strategy)} == {"mass", None}


def test_a_foreign_strategy_knows_nothing_whatever_it_calls_its_attributes() -> None:
    strategy = Knowing(Misleading())
    assert client_of(strategy) is None
    assert pattern(strategy) == {}
    assert weight_key(strategy) == "num-examples"
    assert known_facts(strategy) == RoundFacts()
    assert not survey(strategy, 4, 2).is_masked


def test_flowers_strategies_are_read_by_their_own_names() -> None:
    inner = FedAdam(min_train_nodes=3, min_available_nodes=4, fraction_train=0.5)
    outer = Foreign(DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 2.0, 6))
    assert (outer.held, Foreign(inner).held) == (inner, None)
    assert (outer.weight_key, Foreign(inner).weight_key) == (None, "num-examples")
    assert (outer.fraction_train, Foreign(inner).fraction_train) == (1.0, 0.5)
    assert Foreign(inner).least_nodes == {"min_train_nodes": 3, "min_available_nodes": 4}
    assert set(outer.least_nodes.values()) == {0}
    assert {"FedAdam", "FedOpt", "FedAvg"} <= Foreign(inner).kinds
    assert "Misleading" not in Foreign(Misleading()).kinds


def test_facts_are_merged_field_by_field_and_the_innermost_decides() -> None:
    mean, noisy = np.ones(2), np.zeros(2)
    inner = Knowing(FedAvg(), noised=noisy, noise_std=0.0, clip_norm=2.0)
    outer = Knowing(inner, aggregate=mean, num_clients=3, total_weight=1.5, clip_norm=9.0)
    facts = known_facts(Knowing(outer))
    assert facts.aggregate is mean
    assert facts.noised is noisy
    assert (facts.num_clients, facts.total_weight) == (3, 1.5)
    assert (facts.clip_norm, facts.noise_std) == (2.0, 0.0)  # no noise is known, not unknown
    assert (facts.share_std, facts.quantum, facts.abandoned) == (None, None, None)


def test_facts_that_say_nothing_change_nothing() -> None:
    said = RoundFacts(num_clients=3, total_weight=1.5, saturated=0, abandoned="too few")
    assert RoundFacts().over(said) == said
    assert said.over(RoundFacts(num_clients=5, total_weight=5.0)) == said
