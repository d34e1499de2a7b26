"""Every attack of the suite reads what it should where nothing is checked, and nothing after."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from leakmeter.clients.secure_sum.signing import Identity
from leakmeter.fl_app.experiments.active_server import federation
from leakmeter.fl_app.experiments.active_server.attacks import (
    ATTACKS,
    Attack,
    CanaryOrders,
    HiddenModel,
    Honest,
    InconsistentModel,
    InventedPeers,
    LiedDropouts,
    SmallCohort,
    SwappedKeys,
    TwoRequests,
    UnevenConfig,
    UnevenEncoding,
)
from leakmeter.fl_app.experiments.active_server.federation import Mode, Shape
from leakmeter.fl_app.experiments.active_server.images import TrapForAll, TrapForOne
from leakmeter.fl_app.experiments.active_server.measure import Count, attacked, images
from leakmeter.fl_app.experiments.active_server.remaining import (
    REMAINING,
    CanarySeats,
    ChosenCohorts,
    GivenUp,
    SmallestSum,
)

SHAPE = Shape()
OF_TWO = (LiedDropouts, SmallCohort, CanarySeats)
# What only signatures, lists of keys and the owner's policy stop; binding stops the others.
UNSIGNED = (SwappedKeys, InventedPeers, LiedDropouts, TwoRequests, SmallCohort)


@cache
def counted(kind: type[Attack], mode: Mode) -> Count:
    return Count(**attacked(kind, SHAPE, mode, 1))


def is_read(count: Count, members: int) -> bool:
    """Whether the attack has read a sum of so many clients to the grid of the secure sum."""
    assert count.read in (0, count.trials)
    return bool(count.read) and count.members == members and (count.error or 0.0) < 1e-5


@pytest.mark.parametrize("mode", ["unbound", "curious", "active"])
def test_an_honest_round_opens_the_sum_of_all(mode: Mode) -> None:
    count = counted(Honest, mode)
    assert (count.sums, count.members, count.read) == (count.trials, SHAPE.clients, 0)
    assert not count.refused


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.name)
def test_without_checks_the_attack_reads_the_target(kind: type[Attack]) -> None:
    count = counted(kind, "unbound")
    assert is_read(count, 2 if kind in OF_TWO else 1)
    assert not count.refused


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.name)
def test_masks_that_are_bound_stop_uneven_orders_and_nothing_else(kind: type[Attack]) -> None:
    count = counted(kind, "curious")
    if kind in UNSIGNED:
        assert is_read(count, 2 if kind in OF_TWO else 1)
    else:
        assert (count.read, count.sums) == (0, 0)
        assert count.error is None or count.error > 100


STAGES = {
    SwappedKeys: "shares",
    InventedPeers: "shares",
    UnevenEncoding: "unmask",
    UnevenConfig: "unmask",
    InconsistentModel: "unmask",
    HiddenModel: "unmask",
    CanaryOrders: "survivors",
    LiedDropouts: "unmask",
    TwoRequests: "survivors",
    SmallCohort: "shares",
}


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.name)
def test_clients_that_sign_stop_every_attack(kind: type[Attack]) -> None:
    count = counted(kind, "active")
    assert count.read == 0
    assert STAGES[kind] in count.refused
    if kind is TwoRequests:  # one of the two is answered: the sum of all
        assert (count.sums, count.members) == (count.trials, SHAPE.clients)
    else:
        assert count.sums == 0


def test_only_the_files_of_a_node_stop_two_requests_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_memory(_: Path) -> Identity:
        return Identity(Ed25519PrivateKey.generate())

    monkeypatch.setattr(federation.Identity, "create", in_memory)
    assert is_read(Count(**attacked(TwoRequests, SHAPE, "active", 1)), 1)


@pytest.mark.parametrize("kind", REMAINING, ids=lambda kind: kind.name)
def test_what_remains_is_refused_by_nobody(kind: type[Attack]) -> None:
    assert not counted(kind, "active").refused


def test_what_remains_reads_as_much_as_is_said() -> None:
    assert is_read(counted(ChosenCohorts, "active"), 1)
    assert is_read(counted(CanarySeats, "active"), 2)
    smallest = counted(SmallestSum, "active")
    assert (smallest.read, smallest.sums, smallest.members) == (0, 1, SHAPE.threshold)
    given_up = counted(GivenUp, "active")
    assert (given_up.read, given_up.sums) == (0, 0)
    assert given_up.error is not None
    assert given_up.error > 100


def test_other_batches_blur_what_two_cohorts_show() -> None:
    shape = Shape(batch=8, drawn=4)
    count = Count(**attacked(ChosenCohorts, shape, "active", 2))
    assert count.read == 0
    assert count.error is not None
    assert 0.1 < count.error < 10


def test_a_trap_shows_the_targets_images_before_and_noise_after() -> None:
    before, after = (images(TrapForOne, SHAPE, mode, 2) for mode in ("unbound", "active"))
    assert before["psnr"] > 50
    assert before["clear"] >= 0.5
    assert after["psnr"] < after["guess"]
    assert after["clear"] == after["clear of all"] == 0


def test_one_trap_for_all_shows_images_of_an_honest_sum() -> None:
    found = images(TrapForAll, SHAPE, "active", 2)
    assert 2 < found["clear of all"] <= SHAPE.clients * SHAPE.batch
