"""DP-FedAvg without masks: what one client sends instead of its update is a dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from leakmeter.auditors.hook import wire
from leakmeter.strategies import Central, Local
from leakmeter.strategies.protection.mechanism import AdaptiveClip
from tests.strategies.protection import test_noised as noisy
from tests.strategies.secure_sum.test_lies import twice

pytestmark = pytest.mark.usefixtures("flower_task")

Lie = Callable[[RecordDict], RecordDict]
DIM = noisy.DIM


def only(lie: Lie, who: tuple[int, ...] = (1,)) -> list[Any]:
    """Return the mods of a federation in which these nodes send something else."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if wire.CONFIG in message.content and context.node_id in who:
            reply.content = lie(reply.content)
        return reply

    return [mod, *noisy.MODS]


def arrays(**given: np.ndarray) -> Lie:
    made = ArrayRecord({name: Array(array) for name, array in given.items()})
    return lambda content: RecordDict({**content, "arrays": made})


def metrics(**given: Any) -> Lie:
    return lambda content: RecordDict({**content, "metrics": MetricRecord(given)})


def without(name: str) -> Lie:
    return lambda content: RecordDict({k: v for k, v in content.items() if k != name})


def torn(content: RecordDict) -> RecordDict:
    whole = content["arrays"]["w"]  # type: ignore[index]
    part = Array(whole.dtype, whole.shape, whole.stype, whole.data[:-3])
    return RecordDict({**content, "arrays": ArrayRecord({"w": part})})


def short(content: RecordDict) -> RecordDict:
    made = Array(np.zeros(3))
    claim = Array(made.dtype, (DIM,), made.stype, made.data)  # says it has more than it has
    return RecordDict({**content, "arrays": ArrayRecord({"w": claim})})


MALFORMED: dict[str, Lie] = {
    "NaN": arrays(w=np.full(DIM, math.nan)),
    "infinity": arrays(w=np.full(DIM, math.inf)),
    "another shape": arrays(w=np.zeros(DIM + 1)),
    "another name and number": arrays(v=np.zeros(DIM), w=np.zeros(DIM + 2)),
    "integers": arrays(w=np.zeros(DIM, int)),
    "no arrays": without("arrays"),
    "two records of arrays": lambda c: RecordDict({**c, "more": c["arrays"]}),
    "torn bytes": torn,
    "fewer numbers than said": short,
    "half a weight": metrics(**{"num-examples": 0.5}),
    "a weight of NaN": metrics(**{"num-examples": math.nan}),
}


@pytest.mark.parametrize("lie", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("noise", [Central(0.5), Local(0.5)], ids=["central", "local"])
def test_a_malformed_reply_is_a_dropout(noise: Any, lie: Lie) -> None:
    strategy = noisy.make(noise)
    released = noisy.run(strategy, clients=noisy.grid(mods=only(lie)))
    assert np.isfinite(released).all()
    assert [c.contributors for c in strategy.spending.charges] == [5]
    assert dict(strategy.spending.times) == dict.fromkeys(range(6), 1)  # it was seen all the same
    if isinstance(noise, Central):
        expected = noisy.clipped_sum(range(1, 6)) + noisy.server_noise(0.5 * 2.0)
        np.testing.assert_allclose(released, expected / 10, atol=1e-12)


def test_noise_that_nobody_honest_draws_is_a_dropout() -> None:
    strategy = noisy.make(Local(0.5))
    lie = arrays(w=np.full(DIM, 1e300))
    assert np.abs(noisy.run(strategy, clients=noisy.grid(mods=only(lie)))).max() < 10
    assert [c.contributors for c in strategy.spending.charges] == [5]


@pytest.mark.parametrize("given", [{}, {"below-clip": math.nan}, {"below-clip": [1.0]}])
def test_a_bit_that_is_none_is_a_dropout(given: dict[str, Any]) -> None:
    strategy = noisy.make(Central(0.5), AdaptiveClip(2.0), expected_clients=6.0)
    lie = metrics(**{"num-examples": 1, **given})
    noisy.run(strategy, clients=noisy.grid(mods=only(lie)))
    assert [c.contributors for c in strategy.spending.charges] == [5]
    assert math.isfinite(strategy.state()["clip_norm"])


@pytest.mark.parametrize("extra", [{}, {"train-loss": [1.0, 2.0]}, {"other": 3.0}])
def test_other_metrics_of_one_client_do_not_end_the_round(extra: dict[str, Any]) -> None:
    strategy = noisy.make(Central(0.5))
    lie = metrics(**{"num-examples": 1, **extra})
    noisy.run(strategy, clients=noisy.grid(mods=only(lie)))
    assert [c.contributors for c in strategy.spending.charges] == [6]


def test_a_round_in_which_nobody_can_be_read_is_abandoned() -> None:
    strategy = noisy.make(Central(0.5))
    lie = MALFORMED["NaN"]
    mods = only(lie, tuple(range(1, 7)))
    strategy.start(noisy.grid(mods=mods), noisy.model(), num_rounds=1)
    assert strategy.facts().abandoned == "no reply could be read"


def test_a_reply_that_is_delivered_twice_counts_once() -> None:
    strategy = noisy.make(Central(0.5))
    released = noisy.run(strategy, clients=twice(noisy.grid()))  # type: ignore[arg-type]
    expected = (noisy.clipped_sum() + noisy.server_noise(0.5 * 2.0)) / 10
    np.testing.assert_allclose(released, expected, atol=1e-12)
    assert dict(strategy.spending.times) == dict.fromkeys(range(6), 1)


def test_everybody_asked_is_charged_before_updates_are_requested() -> None:
    strategy = noisy.make(Local(0.5))
    kept: list[Any] = []
    strategy.before_release = lambda: kept.append(strategy.charges())
    strategy.configure_train(1, noisy.model(), ConfigRecord(), noisy.grid())
    assert [charge["clients"] for charge in kept[0]["charges"]] == [list(range(6))]
    again = noisy.make(Local(0.5))
    again.restore_charges(kept[0])  # the process was killed, and the round is played again
    noisy.run(again)
    assert dict(again.spending.times) == dict.fromkeys(range(6), 2)
    assert len(again.spending.releases) == 2
