"""Projects of all kinds are trained as without the audit, and audited or told why they are not.

`test_product.py` has every pair of strategy, mods, arrays and clients. Here are single ones, fast,
and projects that go together with nothing else.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from leakmeter.auditors import canary_mod, tap_mod
from leakmeter.clients import MaskMod, NoiseMod, mask_mod
from leakmeter.strategies import Central, Chosen, Distributed, Local, Masked, Noised
from leakmeter.strategies.chosen import FixedSize
from leakmeter.strategies.protection.mechanism import FixedClip
from tests.guest import clients as kinds
from tests.guest import strategies
from tests.guest.clients import Clients, Stateful
from tests.guest.harness import (
    NODES,
    Cell,
    Quiet,
    assert_same,
    assert_unharmed,
    canaries,
    cells,
    explained,
    has_found,
    run_audited,
    run_plain,
    said,
    was_seen,
)
from tests.guest.model import MODELS
from tests.guest.mods import HARMLESS, clipping_mods, local_dp, strict_mod
from tests.guest.strategies import CHOOSING, CLIENT_SIDE, FLOWERS, PLAIN, TREES, Make, of, own
from tests.helpers.flower import NO_DIMENSIONS
from tests.helpers.project import ROOT

FEDAVG, OWN = PLAIN["FedAvg"], own(MODELS["floats"])
FIXED, ADAPTIVE = CLIENT_SIDE.values()
STRATEGIES = {
    name: Cell(make, kinds.Trees if name in TREES else Clients, clipping_mods(name))
    for name, make in FLOWERS.items()
}


def of_model(kind: str, strategy: Make | None = None, *mods: Any) -> Cell:
    """Return a project with a model of this kind."""
    make = MODELS[kind]
    return Cell(strategy or own(make), lambda: Clients(make()), (*mods, canary_mod))


CLIENTS = {
    "failing": Cell(FEDAVG, kinds.Failing),
    "stateful": Cell(FEDAVG, Stateful),
    "other keys": Cell(FEDAVG, kinds.OtherKeys),
    "no metrics": Cell(OWN, kinds.NoMetrics),
    "protecting": Cell(FEDAVG, kinds.Protecting),
    "emptying": Cell(FEDAVG, kinds.Emptying),
    "odd metrics": Cell(FEDAVG, kinds.OddMetrics),
}
# Projects in which a part cannot be seen, which must be said.
ODD = {
    "failing first": Cell(FEDAVG, kinds.FailingFirst),
    "renamed": Cell(FEDAVG, kinds.Renamed),
    "part": Cell(FEDAVG, kinds.Part),
    "twofold": Cell(of(strategies.Controlled), kinds.Twofold),
    "constant": Cell(FEDAVG, kinds.Constant),
}
LOST = {
    "some replies are lost": Cell(
        FEDAVG, Stateful, lost=frozenset({(1, 2), (2, 1), (2, 3), (3, 4)})
    ),
    "all replies of a round are lost": Cell(
        FEDAVG, Stateful, lost=frozenset((2, node) for node in range(1, NODES + 1))
    ),
}
MESSAGES = {
    "named": Cell(of(strategies.Named), kinds.MyTraining, rounds=4),
    "personal": Cell(of(strategies.Personal), Stateful, rounds=4),
    "controlling": Cell(of(strategies.Controlling), kinds.Twofold, rounds=4),
    "resting": Cell(of(strategies.Resting), Stateful, rounds=4),
    "lazy": Cell(of(strategies.Lazy), Stateful, rounds=4),
}

# Our own wrappers are guests of each other.
SEED = 5
MASK, NOISE = MaskMod(allow_tap=True, seed=SEED), NoiseMod(allow_tap=True, seed=SEED)


def chosen() -> Strategy:
    few = {"min_train_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0.0}
    return Chosen(FedAvg(**few), FixedSize(4), num_clients=NODES, seed=SEED)  # type: ignore[arg-type]


def noised(noise: Any, inner: Callable[[], Strategy] = FEDAVG) -> Strategy:
    return Noised(inner(), noise=noise, clipping=FixedClip(2.0), seed=SEED)


def masked(inner: Callable[[], Strategy] = FEDAVG, **options: Any) -> Strategy:
    return Masked(inner(), max_weight=100, **options)


def chained(strategy: Callable[[], Strategy], *before: Any) -> Cell:
    """Return a project with a chain of ours, and the mods of its app before `canary_mod`."""
    return Cell(strategy, Stateful, (*before, canary_mod), shadow=MASK not in before)


CHAINS = {
    "Chosen": chained(chosen),
    "Masked": chained(lambda: masked(metrics={"train-loss": (0.0, 100.0)}), MASK),
    "Masked FedAvgM": chained(lambda: masked(of(FedAvgM, server_momentum=0.5)), MASK),
    "Noised central": chained(lambda: noised(Central(0.01)), NOISE),
    "Noised local": chained(lambda: noised(Local(0.01)), NOISE),
    "Masked Noised": chained(
        lambda: masked(lambda: noised(Distributed(0.01, NODES - 2))), MASK, NOISE
    ),
    "all": chained(lambda: masked(lambda: noised(Central(0.01), chosen)), MASK, NOISE),
}

LOOKED_ON: dict[str, Cell] = {
    **STRATEGIES,
    **{kind: of_model(kind) for kind in MODELS},
    **CLIENTS,
    **ODD,
    **LOST,
    **{kind.__name__: Cell(FEDAVG, kind) for kind in (kinds.Diverging, kinds.DivergingAlways)},
    **MESSAGES,
    **CHAINS,
}
LOOKED_ON_FAST = (
    *("FedAdam", "QFedAvg", "DifferentialPrivacyServerSideAdaptiveClipping"),
    *("batchnorm", "complex", "renamed", "twofold", "some replies are lost"),
    *("Diverging", "named", "controlling", "lazy"),
    *("Chosen", "Masked", "Noised local"),
)


@pytest.mark.parametrize("name", cells(LOOKED_ON, fast=LOOKED_ON_FAST))
def test_an_auditor_that_looks_on_changes_nothing(name: str) -> None:
    run, audited = run_audited(LOOKED_ON[name], [Quiet()])
    assert run_plain(LOOKED_ON[name]).trace.released
    assert_same(LOOKED_ON[name], run)
    assert said(audited, "quiet")


SEEN: dict[str, Cell] = {
    **{name: STRATEGIES[name] for name in FLOWERS if name not in {**CHOOSING, **TREES}},
    **CLIENTS,
    **LOST,
    **CHAINS,
    "emptying Masked Noised": replace(CHAINS["Masked Noised"], clients=kinds.Emptying),
    "failing Masked": replace(CHAINS["Masked"], clients=kinds.Failing),
    "batchnorm Masked Noised": replace(
        CHAINS["Masked Noised"], clients=lambda: Stateful(MODELS["batchnorm"]())
    ),
    **{kind: of_model(kind, FEDAVG) for kind in ("batchnorm", "complex", "float16")},
    "0-d clipped": of_model("0-d", FIXED, fixedclipping_mod),
    **{f"{n} first": Cell(FEDAVG, Stateful, (mod, canary_mod)) for n, mod in HARMLESS.items()},
    **{f"{n} last": Cell(FEDAVG, Stateful, (canary_mod, mod)) for n, mod in HARMLESS.items()},
    "ours before fixed": Cell(FIXED, mods=(canary_mod, fixedclipping_mod)),
    "strict before fixed": Cell(FIXED, mods=(strict_mod, fixedclipping_mod, canary_mod)),
    "ours before adaptive": Cell(ADAPTIVE, mods=(canary_mod, adaptiveclipping_mod)),
    **{f"ε = {e:g}": Cell(FEDAVG, mods=(local_dp(e), canary_mod)) for e in (1000.0, 1.0, 0.01)},
    "batchnorm local noise": of_model("batchnorm", FEDAVG, local_dp()),
    "local noise in train": Cell(FEDAVG, mods=(), train_mods=(local_dp(), canary_mod)),
    "ours in train": Cell(FEDAVG, mods=(local_dp(),), train_mods=(canary_mod,)),
}
SEEN_FAST = (
    *("FedAvg", "QFedAvg", *CLIENT_SIDE),
    *("failing", "no metrics", "emptying", "odd metrics", "some replies are lost"),
    *("all replies of a round are lost", "emptying Masked Noised"),
    *("Masked", "Noised local", "Masked Noised", "batchnorm", "0-d clipped"),
    *("strict_mod first", "rounding_mod last", "strict before fixed", "ours before adaptive"),
    *("ε = 1", "batchnorm local noise", "local noise in train", "ours in train"),
)


@NO_DIMENSIONS
@pytest.mark.parametrize("name", cells(SEEN, fast=SEEN_FAST))
def test_canaries_are_counted_and_the_training_goes_on(name: str) -> None:
    run, audited = run_audited(SEEN[name])
    assert_unharmed(SEEN[name], run)
    assert audited.failures == []
    assert was_seen(run, audited)
    if name.startswith("emptying"):
        assert not any("no update" in one.text for one in audited.warnings)


TOLD: dict[str, tuple[Cell, str]] = {
    **{name: (STRATEGIES[name], name) for name in CHOOSING},
    **{name: (STRATEGIES[name], "float") for name in TREES},
    **{kind: (of_model(kind), "float") for kind in ("bfloat16", "no floats")},
    "some bfloat16": (of_model("some bfloat16"), "100 parameters"),
    "few": (of_model("few"), "100 parameters"),
    "own bytes": (of_model("own bytes"), "no canary was played"),
    "Diverging": (Cell(FEDAVG, kinds.Diverging), "finite"),
    "noise behind ours": (Cell(FEDAVG, mods=(canary_mod, local_dp())), "LocalDpMod"),
    "noise in train": (Cell(FEDAVG, train_mods=(local_dp(),)), "LocalDpMod"),
    "without canary_mod": (Cell(FEDAVG, Clients, ()), "no client answered for canary_mod"),
    "masks behind ours": (
        Cell(masked, mods=(canary_mod, mask_mod), shadow=False),
        "canary_mod and tap_mod must be behind mask_mod",
    ),
    "masks without a mod": (Cell(masked, mods=(canary_mod,), shadow=False), "mask_mod"),
    "a mask_mod without masks": (Cell(FEDAVG, mods=(mask_mod, canary_mod)), "canary"),
}
UNTOUCHED = {*TREES, "bfloat16", "some bfloat16", "no floats", "few", "own bytes"}
TOLD_FAST = {*TOLD}.difference(["MultiKrum", "Bulyan"])


@pytest.mark.parametrize("name", cells(TOLD, fast=TOLD_FAST))
def test_what_no_canary_can_show_is_said(name: str) -> None:
    cell, words = TOLD[name]
    run, audited = run_audited(cell)
    (assert_same if name in UNTOUCHED else assert_unharmed)(cell, run)
    assert words in said(audited, "one-shot") + str(audited.warnings)


EITHER = {**ODD, **{name: MESSAGES[name] for name in list(MESSAGES)[::2]}}


@pytest.mark.parametrize("name", EITHER)
def test_canaries_are_counted_or_said_to_be_lost(name: str) -> None:
    run, audited = run_audited(EITHER[name])
    assert_unharmed(EITHER[name], run)
    assert was_seen(run, audited) or explained(audited)


@pytest.mark.parametrize("kind", ["bfloat16", "own bytes"])
def test_a_strategy_that_misreads_the_arrays_does_what_it_does_alone(kind: str) -> None:
    cell = of_model(kind, PLAIN["FedMedian"])
    run, _ = run_audited(cell)
    assert_same(cell, run)


OUTSIDE = {"bool": "mask", "complex": "phase", "integers": "steps", "batchnorm": "num_batches"}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_arrays_outside_of_the_audit_are_named(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")
    _, audited = run_audited(replace(of_model(kind, FEDAVG), rounds=1), [Quiet()])
    told = caplog.text + "".join(one.text for one in audited.limitations)
    assert OUTSIDE[kind] in told
    assert "integer" not in told or kind in ("integers", "batchnorm")


def test_replies_without_a_weight_fail_as_they_do_alone() -> None:
    cell = Cell(FEDAVG, kinds.NoMetrics)
    run, _ = run_audited(cell)
    assert str(run_plain(cell).error).startswith("InconsistentMessageReplies")
    assert_unharmed(cell, run)


def test_a_run_without_training_is_left_alone() -> None:
    cell = Cell(lambda: FedAvg(fraction_train=0.0, min_available_nodes=2), Stateful)
    run, audited = run_audited(cell)
    assert_same(cell, run)
    assert explained(audited)


def test_a_second_start_trains_as_it_does_alone() -> None:
    cell = Cell(of(FedAvg), Stateful)
    plain, (audited, hook) = run_plain.__wrapped__(cell), run_audited(cell, [Quiet()])
    arrays: list[Any] = []
    for run, started in ((plain, plain.strategy), (audited, hook)):
        random.seed(2)  # by which Flower orders the nodes
        result = started.start(run.grid, Clients().arrays(), num_rounds=2)
        arrays.append([a.data for a in result.arrays.values()])
    assert arrays[0] == arrays[1]
    assert plain.grid.states == audited.grid.states


def test_two_auditors_share_the_seats_of_a_round() -> None:
    other = canaries(seats=1, seed=2)
    other.name = "another"
    cell = Cell(of(FedAvg), Stateful)
    run, audited = run_audited(cell, [canaries(seats=1), other])
    assert_unharmed(cell, run)
    assert was_seen(run, audited)
    assert was_seen(run, audited, "another")


def test_a_message_that_is_used_again_has_no_order_of_an_earlier_round() -> None:
    cell = Cell(of(strategies.Reusing))
    run, audited = run_audited(cell, [canaries(include="all")], sends="models")
    assert not audited.failures
    assert len(run.trace.seats) == 6
    assert sorted(run.trace.swapped) == sorted(run.trace.seats)
    assert not run.trace.harm


def test_an_app_without_our_mod_has_no_number_of_canaries() -> None:
    run, audited = run_audited(Cell(FEDAVG, Clients, ()))
    assert run.trace.swapped == []
    # To call that "epsilon 0" would be false comfort.
    assert not has_found(audited, "one-shot")


def test_only_canaries_that_take_part_change_what_a_client_sends() -> None:
    cell = Cell(FEDAVG, Stateful)
    run, audited = run_audited(cell, [canaries(excluded="honest", canaries=2)])
    assert_unharmed(cell, run)
    assert len(run.trace.swapped) <= 2
    assert audited.failures == []


def test_an_auditor_that_wants_the_truth_leaves_no_copy_with_the_clients() -> None:
    class Wanting(Quiet):
        wants_truth = True

    cell = replace(CHAINS["Masked"], mods=(MASK, tap_mod, canary_mod))
    run, audited = run_audited(cell, [Wanting(), canaries()])
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


@pytest.mark.parametrize("per_train", [True, False])
def test_local_noise_at_the_train_function_leaves_the_evaluation_alone(per_train: bool) -> None:
    mods = (local_dp(), canary_mod)
    cell = Cell(FEDAVG, mods=() if per_train else mods, train_mods=mods if per_train else ())
    run, _ = run_audited(cell)
    # Flower's mod answers an evaluation, whose reply has no model, with an error.
    assert bool(run.result.evaluate_metrics_clientapp) is per_train


def test_the_page_lists_local_noise_at_the_train_function() -> None:
    page = (ROOT / "docs/plug-in.md").read_text(encoding="utf-8")
    assert "@app.train(mods=[noise, canary_mod])" in page
    assert "ClientApp(mods=[LocalDpMod" not in page
