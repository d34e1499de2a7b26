"""Mods of Flower's and of a project's own, before and after ours."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod

from leakmeter.auditors import canary_mod
from tests.guest.clients import Clients, Stateful
from tests.guest.harness import (
    Cell,
    assert_unharmed,
    canaries,
    cells,
    run_audited,
    said,
    was_seen,
)
from tests.guest.mods import HARMLESS, local_dp, strict_mod
from tests.guest.strategies import CLIENT_SIDE, PLAIN
from tests.helpers.project import ROOT

FEDAVG = PLAIN["FedAvg"]
FIXED, ADAPTIVE = CLIENT_SIDE.values()


ORDERS = {
    **{f"{name} first": (mod, canary_mod) for name, mod in HARMLESS.items()},
    **{f"{name} last": (canary_mod, mod) for name, mod in HARMLESS.items()},
}
FAST = ("strict_mod first", "message_size_mod first", "counting_mod last", "rounding_mod last")


@pytest.mark.parametrize("order", cells(ORDERS, fast=FAST))
def test_a_mod_that_hides_nothing_may_be_on_either_side(order: str) -> None:
    mods = ORDERS[order]
    cell = Cell(FEDAVG, Stateful, mods)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


@pytest.mark.parametrize(
    ("strategy", "mods"),
    [
        (FIXED, (fixedclipping_mod, canary_mod)),
        (FIXED, (canary_mod, fixedclipping_mod)),
        (FIXED, (strict_mod, fixedclipping_mod, canary_mod)),
        (ADAPTIVE, (adaptiveclipping_mod, canary_mod)),
        (ADAPTIVE, (canary_mod, adaptiveclipping_mod)),
    ],
    ids=["fixed", "ours before fixed", "strict", "adaptive", "ours before adaptive"],
)
def test_clipping_mods_may_be_on_either_side(strategy: Any, mods: tuple[Any, ...]) -> None:
    cell = Cell(strategy, mods=mods)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


@pytest.mark.parametrize("epsilon", [1000.0, 1.0, pytest.param(0.01, marks=pytest.mark.slow)])
def test_canaries_behind_local_noise_are_counted_at_every_epsilon(epsilon: float) -> None:
    cell = Cell(FEDAVG, mods=(local_dp(epsilon), canary_mod))
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


def test_a_canary_that_bypasses_local_noise_is_said_to() -> None:
    cell = Cell(FEDAVG, mods=(canary_mod, local_dp()))
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert "LocalDpMod" in said(audited, "one-shot")


@pytest.mark.parametrize("ours_inside", [True, False])
def test_mods_of_the_train_function_are_inside_those_of_the_app(ours_inside: bool) -> None:
    noise, ours = (local_dp(),), (canary_mod,)
    cell = Cell(
        FEDAVG,
        mods=noise if ours_inside else ours,
        train_mods=ours if ours_inside else noise,
    )
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert ("LocalDpMod" in said(audited, "one-shot")) is not ours_inside
    assert was_seen(run, audited) or not ours_inside


@pytest.mark.parametrize("per_train", [True, False])
def test_local_noise_at_the_train_function_leaves_the_evaluation_alone(per_train: bool) -> None:
    mods = (local_dp(), canary_mod)
    cell = Cell(FEDAVG, mods=() if per_train else mods, train_mods=mods if per_train else ())
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert was_seen(run, audited)
    # Flower's mod answers an evaluation, whose reply has no model, with an error.
    assert bool(run.result.evaluate_metrics_clientapp) is per_train


def test_the_page_lists_local_noise_at_the_train_function() -> None:
    page = (ROOT / "docs/plug-in.md").read_text(encoding="utf-8")
    assert "@app.train(mods=[noise, canary_mod])" in page
    assert "ClientApp(mods=[LocalDpMod" not in page


def test_an_app_without_our_mod_trains_and_is_said_to_lack_it() -> None:
    cell = Cell(FEDAVG, Clients, ())
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert run.trace.swapped == []
    assert "canary_mod" in said(audited, "one-shot")


def test_only_canaries_that_take_part_change_what_a_client_sends() -> None:
    cell = Cell(FEDAVG, Stateful)
    run, audited = run_audited(cell, [canaries(excluded="honest", canaries=2)])
    assert_unharmed(cell, run)
    assert len(run.trace.swapped) <= 2
    assert audited.failures == []
