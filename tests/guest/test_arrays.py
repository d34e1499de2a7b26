"""Arrays of all kinds: what is no float of numpy's is left alone, and said to be."""

from __future__ import annotations

import logging

import pytest
from flwr.clientapp.mod import fixedclipping_mod

from leakmeter.auditors import canary_mod
from tests.guest.clients import Clients
from tests.guest.harness import (
    Cell,
    Quiet,
    assert_same,
    assert_unharmed,
    cells,
    explained,
    run_audited,
    run_plain,
    said,
    was_seen,
)
from tests.guest.model import MODELS
from tests.guest.mods import local_dp
from tests.guest.strategies import CLIENT_SIDE, PLAIN, Make, own
from tests.helpers.flower import NO_DIMENSIONS

READABLE = ("batchnorm", "integers", "0-d", "empty", "float16", "big-endian")
MIXED = {"bool": "mask", "complex": "phase", "integers": "steps", "batchnorm": "num_batches"}
UNREADABLE = ("bfloat16", "some bfloat16", "own bytes", "no floats", "few")
FEDAVG, CLIPPED = PLAIN["FedAvg"], CLIENT_SIDE["DifferentialPrivacyClientSideFixedClipping"]


def project(kind: str, strategy: Make | None = None, *mods: object) -> Cell:
    """Return a project with a model of this kind."""
    make = MODELS[kind]
    return Cell(strategy or own(make), lambda: Clients(make()), (*mods, canary_mod))


@pytest.mark.parametrize(
    "kind", cells([*READABLE, "bool", "complex"], fast=("batchnorm", "complex", "float16"))
)
def test_canaries_leave_arrays_in_their_types_and_shapes(kind: str) -> None:
    cell = project(kind, FEDAVG)
    run, audited = run_audited(cell)
    assert len(run_plain(cell).trace.released) == cell.rounds
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


@NO_DIMENSIONS
@pytest.mark.parametrize("kind", ["batchnorm", "0-d"])
def test_clipping_mods_get_no_second_record_of_settings(kind: str) -> None:
    cell = project(kind, CLIPPED, fixedclipping_mod)
    run, audited = run_audited(cell)
    assert len(run_plain(cell).trace.released) == cell.rounds
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)


@NO_DIMENSIONS
@pytest.mark.parametrize("kind", cells(["batchnorm", "float16"], fast=["batchnorm"]))
def test_canaries_behind_local_noise_leave_arrays_in_their_types(kind: str) -> None:
    cell = project(kind, FEDAVG, local_dp())
    run, audited = run_audited(cell)
    assert len(run_plain(cell).trace.released) == cell.rounds
    assert_unharmed(cell, run)
    assert was_seen(run, audited)


@pytest.mark.parametrize("kind", cells(MODELS, fast=("batchnorm", "complex", "bfloat16")))
def test_an_auditor_that_looks_on_changes_no_array(kind: str) -> None:
    cell = project(kind)
    run, audited = run_audited(cell, [Quiet()])
    assert len(run_plain(cell).trace.released) == cell.rounds
    assert_same(cell, run)
    assert said(audited, "quiet")


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_model_without_enough_floats_trains_and_is_said_not_to_be_audited(kind: str) -> None:
    cell = project(kind)
    run, audited = run_audited(cell)
    assert len(run_plain(cell).trace.released) == cell.rounds
    assert_same(cell, run)
    assert explained(audited)


@pytest.mark.parametrize("kind", ["bfloat16", "own bytes"])
def test_a_strategy_that_misreads_the_arrays_does_what_it_does_alone(kind: str) -> None:
    cell = project(kind, PLAIN["FedMedian"])
    run, _ = run_audited(cell)
    assert_same(cell, run)


@pytest.mark.parametrize("kind", MIXED)
def test_arrays_outside_of_the_audit_are_named(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")
    cell = project(kind, FEDAVG)
    _, audited = run_audited(cell, [Quiet()])
    told = caplog.text + "".join(one.text for one in audited.limitations)
    assert MIXED[kind] in told
    assert "integer" not in told or kind in ("integers", "batchnorm")
