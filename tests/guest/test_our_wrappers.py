"""Our own wrappers are guests of each other: masks, noise and choice, in one chain or another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from leakmeter.auditors import canary_mod, tap_mod
from leakmeter.clients import MaskMod, NoiseMod, mask_mod
from leakmeter.strategies import Central, Chosen, Distributed, Local, Masked, Noised
from leakmeter.strategies.chosen import FixedSize
from leakmeter.strategies.protection.mechanism import FixedClip
from tests.guest.clients import Emptying, Failing, Stateful
from tests.guest.harness import (
    NODES,
    Cell,
    Quiet,
    assert_same,
    assert_unharmed,
    canaries,
    cells,
    run_audited,
    run_plain,
    said,
    was_seen,
)
from tests.guest.model import MODELS
from tests.guest.strategies import PLAIN, of

SEED = 5
FEDAVG = PLAIN["FedAvg"]
MASK, NOISE = MaskMod(allow_tap=True, seed=SEED), NoiseMod(allow_tap=True, seed=SEED)


def chosen() -> Strategy:
    few = {"min_train_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0.0}
    return Chosen(FedAvg(**few), FixedSize(4), num_clients=NODES, seed=SEED)  # type: ignore[arg-type]


def noised(noise: Any, inner: Callable[[], Strategy] = FEDAVG) -> Strategy:
    return Noised(inner(), noise=noise, clipping=FixedClip(2.0), seed=SEED)


def masked(inner: Callable[[], Strategy] = FEDAVG, **options: Any) -> Strategy:
    return Masked(inner(), max_weight=100, **options)


# Strategy, and the mods of its app before ours.
CHAINS: dict[str, tuple[Callable[[], Strategy], tuple[Any, ...]]] = {
    "Chosen": (chosen, ()),
    "Masked": (lambda: masked(metrics={"train-loss": (0.0, 100.0)}), (MASK,)),
    "Masked FedAvgM": (lambda: masked(of(FedAvgM, server_momentum=0.5)), (MASK,)),
    "Noised central": (lambda: noised(Central(0.01)), (NOISE,)),
    "Noised local": (lambda: noised(Local(0.01)), (NOISE,)),
    "Masked Noised": (lambda: masked(lambda: noised(Distributed(0.01, NODES - 2))), (MASK, NOISE)),
    "all": (lambda: masked(lambda: noised(Central(0.01), chosen)), (MASK, NOISE)),
}


def project(name: str, *mods: Any, clients: Any = Stateful) -> Cell:
    strategy, before = CHAINS[name]
    return Cell(strategy, clients, (*before, *mods), shadow=MASK not in before)


@pytest.mark.parametrize("name", cells(CHAINS, fast=("Chosen", "Masked", "Noised local")))
def test_an_auditor_that_looks_on_changes_nothing(name: str) -> None:
    cell = project(name, canary_mod)
    run, _ = run_audited(cell, [Quiet()])
    assert len(run_plain(cell).trace.released) == cell.rounds
    assert_same(cell, run)


FAST = ("Chosen", "Masked", "Noised local", "Masked Noised")


@pytest.mark.parametrize("name", cells(CHAINS, fast=FAST))
def test_canaries_are_counted_and_the_training_goes_on(name: str) -> None:
    cell = project(name, canary_mod)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


@pytest.mark.parametrize("name", ["Masked", "Noised local", "Masked Noised"])
def test_clients_may_empty_their_messages(name: str) -> None:
    cell = project(name, canary_mod, clients=Emptying)
    run, audited = run_audited(cell)
    assert len(run_plain(cell).trace.released) == cell.rounds
    assert not any("no update" in one.text for one in audited.warnings)
    assert_unharmed(cell, run)
    assert was_seen(run, audited)


def test_an_auditor_that_wants_the_truth_leaves_no_copy_with_the_clients() -> None:
    class Wanting(Quiet):
        wants_truth = True

    cell = project("Masked", tap_mod, canary_mod)
    run, audited = run_audited(cell, [Wanting(), canaries()])
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


@pytest.mark.slow
def test_clients_that_drop_out_of_a_secure_sum_do_so_as_they_do_alone() -> None:
    cell = project("Masked", canary_mod, clients=Failing)
    run, audited = run_audited(cell)
    assert len(run_plain(cell).trace.released) == cell.rounds
    assert_unharmed(cell, run)
    assert was_seen(run, audited)


@pytest.mark.slow
def test_batchnorm_under_masks_and_noise() -> None:
    make = MODELS["batchnorm"]
    cell = project("Masked Noised", canary_mod, clients=lambda: Stateful(make()))
    run, audited = run_audited(cell)
    assert len(run_plain(cell).trace.released) == cell.rounds
    assert_unharmed(cell, run)
    assert was_seen(run, audited)


def test_masks_behind_a_canary_are_refused_with_and_without_the_audit() -> None:
    cell = Cell(masked, mods=(canary_mod, mask_mod), shadow=False)
    run, audited = run_audited(cell)
    assert run_plain(cell).trace.released == []
    assert_unharmed(cell, run)
    assert "canary_mod and tap_mod must be behind mask_mod" in said(audited, "one-shot")


def test_masks_without_the_mod_in_the_app_are_said_to_lack_it() -> None:
    cell = Cell(masked, mods=(canary_mod,), shadow=False)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert "mask_mod" in said(audited, "one-shot")


def test_a_mask_mod_without_masks_refuses_as_it_does_alone() -> None:
    cell = Cell(FEDAVG, mods=(mask_mod, canary_mod))
    run, audited = run_audited(cell)
    assert run_plain(cell).trace.released == []
    assert_unharmed(cell, run)
    assert said(audited, "one-shot")
