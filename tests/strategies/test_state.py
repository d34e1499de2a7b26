"""A strategy that was interrupted goes on as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedYogi,
    Strategy,
)

from leakmeter.auditors import Audited
from leakmeter.auditors.codec import pack, unpack
from leakmeter.auditors.hook.wrapper import Wrapper
from leakmeter.clients import NoiseMod
from leakmeter.strategies import Central, Chosen, Noised
from leakmeter.strategies.chosen import FixedSize
from leakmeter.strategies.flower import check_resumable, restore_strategy, strategy_state
from leakmeter.strategies.protection.mechanism import AdaptiveClip
from tests.helpers.flower import NO_DIMENSIONS

NODES = {"fraction_evaluate": 0.0}
MAKERS: dict[str, Callable[[], FedAvg]] = {
    "fedavg": lambda: FedAvg(**NODES),
    "fedprox": lambda: FedProx(proximal_mu=0.1, **NODES),
    "fedavgm": lambda: FedAvgM(server_momentum=0.9, server_learning_rate=0.5, **NODES),
    "fedadam": lambda: FedAdam(**NODES),
    "fedyogi": lambda: FedYogi(**NODES),
    "fedadagrad": lambda: FedAdagrad(**NODES),
}


def wrapped(make: Callable[[], FedAvg]) -> Strategy:
    chosen = Chosen(make(), FixedSize(4), num_clients=6, seed=2)
    # With a clip norm that moves, the noise depends on the state as well.
    return Noised(chosen, noise=Central(0.2), clipping=AdaptiveClip(2.0), seed=2)


def run(fed: Any, strategy: Strategy, arrays: ArrayRecord, rounds: int, done: int = 0) -> Any:
    """Return the model after `rounds`; Audited counts the rounds of an interrupted run on."""
    return Audited(strategy, [], rounds_done=done).start(fed.grid, arrays, rounds).arrays


@NO_DIMENSIONS
@pytest.mark.parametrize("name", MAKERS)
def test_a_restored_strategy_goes_on_to_the_same_bits(federation: Any, name: str) -> None:
    fed = federation(mods=[NoiseMod(seed=2)])
    expected = run(fed, wrapped(MAKERS[name]), fed.arrays(), 4)

    first = wrapped(MAKERS[name])
    half = run(fed, first, fed.arrays(), 2)
    state = pack(strategy_state(first))
    second = wrapped(MAKERS[name])
    restore_strategy(second, unpack(state))
    result = run(fed, second, half, 4, done=2)
    for key in expected:
        assert result[key].dtype == expected[key].dtype
        assert np.array_equal(result[key].numpy(), expected[key].numpy())
    if name not in ("fedavg", "fedprox"):  # without its state the same strategy ends elsewhere
        lost = run(fed, wrapped(MAKERS[name]), half, 4, done=2)
        assert not np.array_equal(lost["w"].numpy(), expected["w"].numpy())


def test_a_strategy_that_has_not_run_yet_has_a_state_too_and_no_other_chain_takes_it() -> None:
    for make in MAKERS.values():
        state = strategy_state(wrapped(make))
        restore_strategy(wrapped(make), state)
        with pytest.raises(ValueError, match="there must be 1 strategies, got 3"):
            restore_strategy(FedAvg(**NODES), state)


def test_single_numbers_keep_their_type_in_a_checkpoint() -> None:
    strategy = FedAdam(**NODES)
    strategy.m_t = {"scale": np.float32(0.1)}  # what Flower makes of a 0-d array
    state = pack(strategy_state(strategy))
    restore_strategy(strategy, unpack(state))
    assert strategy.m_t["scale"].dtype == np.float32


def test_an_unknown_strategy_is_refused_with_the_reason() -> None:
    class Mine(FedAvg):
        pass

    for inner in (FedMedian(**NODES), Mine(**NODES)):
        with pytest.raises(TypeError, match=f"FedAvgM.*got {type(inner).__name__}: what it rem"):
            check_resumable(Wrapper(inner))
        with pytest.raises(TypeError):
            strategy_state(inner)
        with pytest.raises(TypeError):
            restore_strategy(inner, [{}])
