"""Whatever one client sends at whatever stage: the run goes on, sums are right, and all is charged.

Every case is one round with one liar. The cases of an example share a run, so that its set-up is
paid for once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from leakmeter.auditors import Audited
from leakmeter.auditors.hook import wire
from leakmeter.strategies import Central, Distributed, Local
from leakmeter.strategies.secure_sum import masked as masked_module
from tests.helpers import lies
from tests.helpers.numbers import few_or_many
from tests.strategies.protection import test_noised as noisy
from tests.strategies.secure_sum.test_lies import noised
from tests.strategies.secure_sum.test_masked import Federation, Watching, masked
from tests.strategies.secure_sum.test_signed import Signing, signed

pytestmark = pytest.mark.usefixtures("flower_task")

CASES = 10  # rounds of an example
NUM = 4


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a run go on after any number of rejected sums, without a log of it."""
    monkeypatch.setattr(masked_module, "_MAX_REJECTED", 10**9)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


stage_lies = st.one_of(
    st.tuples(st.sampled_from(["keys", "shares", "unmask"]), lies.malformed_stages),
    st.tuples(st.sampled_from(["keys", "shares", "unmask"]), lies.well_formed_stages),
    st.tuples(st.just("train"), lies.malformed),
    st.tuples(st.just("train"), lies.well_formed_uploads),
)
plans = st.lists(st.tuples(st.integers(0, NUM - 1), stage_lies), min_size=CASES, max_size=CASES)


SIGNED_STAGES = ["keys", "shares", "survivors", "unmask"]
signed_lies = st.one_of(
    st.tuples(st.sampled_from(SIGNED_STAGES), lies.malformed_stages),
    st.tuples(st.sampled_from(SIGNED_STAGES), lies.well_formed_stages),
    st.tuples(st.just("train"), lies.malformed),
)
signed_plans = st.lists(
    st.tuples(st.integers(0, NUM - 1), signed_lies), min_size=CASES, max_size=CASES
)
draw_plans = st.lists(
    st.one_of(lies.malformed_stages, lies.well_formed_stages), min_size=3, max_size=3
)


class Rounds(Watching):
    """Keeps the facts of every round."""


def check_sums(plan: Any, kind: Any = Federation, make: Any = masked) -> None:
    """Play one round a lie; each gives the mean over everybody or the others, or none."""

    def faults(client: int, number: int, stage: str) -> Any:
        liar, (when, lie) = plan[number - 1]
        return lie if (client, stage) == (liar, when) else None

    clients = kind(NUM, faults=faults, mods=())
    strategy = make(clients, threshold=3)
    rounds = Rounds()
    clients.run(Audited(strategy, [rounds], sends="models"), rounds=CASES)
    assert len(rounds.views) == CASES
    for view, (liar, (_, lie)) in zip(rounds.views, plan, strict=True):
        if view.facts.abandoned is not None or is_upload(lie):
            continue
        others = [c for c in range(NUM) if c != liar]
        means = [clients.mean(), clients.mean(others)]
        assert view.facts.aggregate is not None
        errors = [np.abs(view.facts.aggregate - mean).max() for mean in means]
        assert min(errors) <= view.facts.quantum


def is_upload(lie: Any) -> bool:
    """Whether a lie is a well-formed upload: what passes may be anywhere in the range."""
    return "_moved" in lie.__qualname__ or "_random_upload" in lie.__qualname__


def check_charges(noise: Any, plan: Any) -> None:
    """Play one round a lie under noise: what was opened is charged, and nothing else."""
    outer, inside = noised(noise, num=NUM, threshold=3)
    opened: list[int] = []
    outer.before_release = lambda: opened.append(1)

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        order = wire.config(message.content, wire.MASK)
        reply: Message = call_next(message, context)
        if order is None:
            return reply
        liar, (when, lie) = plan[wire.get_int(order, "round") - 1]
        is_now = context.node_id - 1 == liar and order.get("stage") == when
        return lie(reply) if is_now else reply

    mods = [mod, *noisy.MODS]
    outer.start(noisy.grid(NUM, mods=mods), noisy.model(), num_rounds=CASES)
    assert len(inside.spending.releases) == len(opened)
    assert inside.spending.participations <= len(opened)


def check_replies(noise: Any, plan: Any) -> None:
    """Play one round a lie without masks: the liar drops out or counts, and nothing breaks."""
    strategy = noisy.make(noise, num=NUM)

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if wire.CONFIG not in message.content or reply.has_error():
            return reply
        liar, lie = plan[wire.server_round(message.content) - 1]
        return lie(reply) if context.node_id - 1 == liar else reply

    rounds = Rounds()
    audited = Audited(strategy, [rounds], sends="models")
    clients = noisy.grid(NUM, mods=[mod, *noisy.MODS])
    result = audited.start(clients, noisy.model(), num_rounds=CASES)
    assert np.isfinite(result.arrays["w"].numpy()).all()
    assert {c.contributors for c in strategy.spending.charges} <= {NUM - 1, NUM}
    assert len(strategy.spending.releases) == CASES


# Without shrinking: an example is ten rounds, and a smaller one would take minutes to find.
noises = st.sampled_from([Central(1.0), Distributed(1.0, min_honest=2)])
replies = st.lists(
    st.tuples(st.integers(0, NUM - 1), lies.malformed), min_size=CASES, max_size=CASES
)


# Without shrinking: an example is ten rounds, and a smaller one would take minutes to find.
def tried(examples: int, check: Callable[..., None], *plans: Any) -> None:
    """Check this many examples of plans."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    every = settings(
        max_examples=examples,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    every(given(*plans)(check))()


@pytest.mark.parametrize("examples", few_or_many(2, 100))
def test_a_liar_at_any_stage_drops_out_or_spoils_its_round(examples: int) -> None:
    tried(examples, lambda plan: check_sums(plan), plans)


@pytest.mark.parametrize("examples", few_or_many(2, 100))
def test_a_liar_at_any_stage_of_a_signed_sum_drops_out_or_spoils_its_round(examples: int) -> None:
    tried(examples, lambda plan: check_sums(plan, Signing, signed), signed_plans)


def check_draws(plan: Any) -> None:
    """Whatever the first client answers when it is to draw, the others have a sum or none."""
    clients = Signing(
        12, faults=lambda c, number, stage: plan[number - 1] if (c, stage) == (0, "draw") else None
    )
    risky = {"neighbours": 8, "threshold": 7, "collusion_rate": 0.0, "max_abort": 1.0}
    strategy = signed(clients, **risky)
    rounds = Rounds()
    clients.run(Audited(strategy, [rounds], sends="models"), rounds=len(plan))
    for view in rounds.views:
        if view.facts.aggregate is not None:
            means = [clients.mean(), clients.mean(range(1, 12))]
            errors = [np.abs(view.facts.aggregate - mean).max() for mean in means]
            assert min(errors) <= view.facts.quantum
    assert len(rounds.views) == len(plan)


@pytest.mark.parametrize("examples", few_or_many(1, 30))
def test_a_liar_that_draws_its_neighbours_is_a_dropout(examples: int) -> None:
    tried(examples, lambda plan: check_draws(plan), draw_plans)


@pytest.mark.parametrize("examples", few_or_many(2, 100))
def test_what_a_liar_makes_the_server_open_is_charged(examples: int) -> None:
    tried(examples, lambda noise, plan: check_charges(noise, plan), noises, plans)


@pytest.mark.parametrize("examples", few_or_many(2, 100))
def test_a_liar_without_masks_drops_out(examples: int) -> None:
    either = st.sampled_from([Central(1.0), Local(1.0)])
    tried(examples, lambda noise, plan: check_replies(noise, plan), either, replies)
