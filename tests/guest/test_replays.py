"""Replays of a round: clients train again for the audit, and keep nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg

from leakmeter.auditors import (
    Auditor,
    DrawPlan,
    LikelihoodRatio,
    MutualInformation,
    ReplaySampler,
    SampleBudget,
    canary_mod,
    passive,
)
from leakmeter.clients import MaskMod
from leakmeter.strategies import Masked
from tests.guest import strategies
from tests.guest.clients import Call, Clients, Drawing, Failing, Gradients, Stateful
from tests.guest.harness import (
    Cell,
    assert_same,
    assert_unharmed,
    canaries,
    cells,
    has_found,
    run_audited,
    run_plain,
    said,
)
from tests.guest.model import RATE
from tests.guest.mods import counting_mod, local_dp
from tests.guest.strategies import PLAIN, Make, applying, of

FOUR = dict.fromkeys(("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), 4)
FEDAVG = of(FedAvg, **FOUR)
QUICK = SampleBudget(fit=16, candidates=4, pilot=10, trials=20)
REPLAYING = ("likelihood-ratio", "mutual-information")


def replays() -> list[Auditor]:
    """Return the audits that send the messages of round 1 again."""
    return [
        LikelihoodRatio(ReplaySampler(), budget=QUICK),
        MutualInformation(ReplaySampler(), every=0, plan=DrawPlan(draws=4, rank=2)),
    ]


def project(
    mods: tuple[Any, ...] = (canary_mod,),
    clients: Callable[[], Clients] = Stateful,
    strategy: Make = FEDAVG,
) -> Cell:
    """Return a project with few clients, since each of them is asked again many times."""
    return Cell(strategy, clients, mods, nodes=4)


def counts(run: Any) -> set[str]:
    """Return what the counters of all clients say."""
    records = [record for state in run.grid.states.values() for record in state]
    return {values[0][2] for key, _, values in records if key == "counter"}


def test_replays_put_the_state_of_clients_back() -> None:
    cell = project((canary_mod, counting_mod))
    run, audited = run_audited(cell, replays())
    assert_same(cell, run)
    assert run.grid.seen.replayed > 50
    assert counts(run) == {str(cell.rounds)}
    assert audited.failures == []
    assert all(has_found(audited, auditor) for auditor in REPLAYING)


def test_clients_on_global_generators_train_as_if_nobody_had_replayed() -> None:
    cell = project(clients=Drawing)
    run, audited = run_audited(cell, replays())
    assert_same(cell, run)
    assert run.grid.seen.replayed > 50
    assert audited.failures == []  # each replay drew other numbers
    assert all(has_found(audited, auditor) for auditor in REPLAYING)


@pytest.mark.slow
def test_a_mod_before_ours_keeps_its_own_count_alone() -> None:
    cell = project((counting_mod, canary_mod))
    run, audited = run_audited(cell, replays())
    assert counts(run) == {str(cell.rounds)}
    plain = run_plain(cell)
    others = [_without_calls(one.grid.states) for one in (plain, run)]
    assert others[0] == others[1]
    assert plain.outcome == run.outcome
    is_told = any("counting_mod" in said(audited, one) for one in REPLAYING)
    assert is_told or plain.grid.states == run.grid.states


def _without_calls(states: dict[int, Any]) -> dict[int, list[Any]]:
    return {node: [r for r in state if r[0] != "calls"] for node, state in states.items()}


def test_an_app_without_our_mod_is_not_replayed_into_another_state() -> None:
    cell = project(())
    run, audited = run_audited(cell, replays())
    assert_same(cell, run)
    assert all("canary_mod" in said(audited, auditor) for auditor in REPLAYING)


@pytest.mark.slow
def test_canaries_and_replays_together_leave_counters_at_the_rounds() -> None:
    cell = project()
    run, audited = run_audited(cell, [canaries(), *replays()])
    assert_unharmed(cell, run)
    assert counts(run) == {str(cell.rounds)}
    assert audited.failures == []


NOISED = {"first": (local_dp(), canary_mod), "last": (canary_mod, local_dp())}


@pytest.mark.parametrize("order", cells(NOISED, fast=["first"]))
def test_replays_of_clients_with_local_noise_are_said_to_show_nothing(order: str) -> None:
    cell = project(NOISED[order])
    run, audited = run_audited(cell, [canaries(), *replays()])
    assert_unharmed(cell, run, draws=False)
    assert counts(run) == {str(cell.rounds)}
    assert all("LocalDpMod" in said(audited, auditor) for auditor in REPLAYING)


def test_clients_that_fail_in_a_replay_end_the_audit_alone() -> None:
    class FailingAgain(Stateful):
        """Raises wherever it is asked to train a round again."""

        def step(self, of: Call, values: Any) -> Any:
            if of.draw:
                raise RuntimeError("this round is over")
            return super().step(of, values)

    cell = project(clients=FailingAgain)
    run, audited = run_audited(cell, replays())
    assert_same(cell, run)
    assert all("this round is over" in said(audited, auditor) for auditor in REPLAYING)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "strategy"),
    [
        (Failing, FEDAVG),
        (Gradients, applying(FedAvg, -RATE, **FOUR)),
        (Clients, of(FedAdam, **FOUR)),
        *((Clients, strategies.dp(kind, FEDAVG)) for kind in strategies.SERVER_SIDE_KINDS),
    ],
    ids=["failing", "gradients", "FedAdam", "fixed clip", "adaptive clip"],
)
def test_replays_are_judged_or_said_not_to_be(clients: Any, strategy: Any) -> None:
    cell = project(clients=clients, strategy=strategy)
    run, audited = run_audited(cell, replays())
    assert_same(cell, run)
    assert all(has_found(audited, one) or said(audited, one) for one in REPLAYING)


def test_masked_clients_are_not_replayed() -> None:
    cell = Cell(
        lambda: Masked(FEDAVG(), max_weight=100),
        Stateful,
        (MaskMod(seed=1), canary_mod),
        shadow=False,
    )
    run, audited = run_audited(cell, replays())
    assert_same(cell, run)
    assert run.grid.seen.replayed == 0
    assert all("mask" in said(audited, auditor) for auditor in REPLAYING)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", PLAIN)
def test_the_panel_for_any_project_leaves_it_as_it_was(strategy: str) -> None:
    cell = Cell(PLAIN[strategy], Stateful)
    panel: Sequence[Auditor] = passive()
    run, audited = run_audited(cell, panel)
    assert_unharmed(cell, run)
    assert counts(run) == {str(cell.rounds)}
    assert audited.failures == []
    assert all(has_found(audited, auditor.name) for auditor in panel)
