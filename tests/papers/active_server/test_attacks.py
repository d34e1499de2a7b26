"""Every attack of the suite reads what it should where nothing is checked, and nothing after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from leakmeter.clients.secure_sum.signing import Identity
from leakmeter.papers.active_server import federation
from leakmeter.papers.active_server.attacks import (
    ATTACKS,
    NONE,
    REMAINING,
    TRAP_FOR_ALL,
    TRAP_FOR_ONE,
)
from leakmeter.papers.active_server.federation import Mode, Shape
from leakmeter.papers.active_server.server import Attack
from leakmeter.papers.active_server.table import attacked, images
from tests.papers.small import Reproduced

SHAPE = Shape()
# Attack to the stage that clients who sign refuse.
STAGES = {
    "swapped keys": "shares",
    "invented peers": "shares",
    "uneven encoding": "unmask",
    "uneven configuration": "unmask",
    "inconsistent model": "unmask",
    "hidden model": "unmask",
    "canary orders": "survivors",
    "lied dropouts": "unmask",
    "two requests at once": "survivors",
    "small cohort": "shares",
}
OF_TWO = {"lied dropouts", "small cohort", "canary seats"}
# What only signatures, lists of keys and the owner's policy stop; binding stops the others.
UNSIGNED = {
    "swapped keys",
    "invented peers",
    "two requests at once",
    "lied dropouts",
    "small cohort",
}
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
remaining = {attack.name: attack for attack in REMAINING}


Counts = Callable[[Attack, Mode], dict[str, Any]]


@pytest.fixture
def counted(reproduced: Reproduced) -> Counts:
    """Return what came of one trial of an attack, as the experiment keeps it."""
    cells = reproduced("active-server").cells
    return lambda attack, mode: cells[f"small-{mode}-{attack.name.replace(' ', '-')}"]


def reads(count: Mapping[str, Any], attack: Attack) -> bool:
    """Whether the attack has read what it says to the grid of the secure sum."""
    members = 2 if attack.name in OF_TWO else 1
    return (
        count["read"] == count["trials"] and count["members"] == members and count["error"] < 1e-5
    )


@pytest.mark.parametrize("mode", ["unbound", "curious", "active"])
def test_an_honest_round_opens_the_sum_of_all(counted: Counts, mode: Mode) -> None:
    count = counted(NONE, mode)
    assert (count["sums"], count["members"], count["read"]) == (1, SHAPE.clients, 0)
    assert not count["refused"]


@every_attack
def test_without_checks_the_attack_reads_the_target(counted: Counts, attack: Attack) -> None:
    count = counted(attack, "unbound")
    assert reads(count, attack)
    assert not count["refused"]


@every_attack
def test_masks_that_are_bound_stop_uneven_orders_and_nothing_else(
    counted: Counts, attack: Attack
) -> None:
    count = counted(attack, "curious")
    if attack.name in UNSIGNED:
        assert reads(count, attack)
    else:
        assert (count["read"], count["sums"]) == (0, 0)
        assert count["error"] is None or count["error"] > 100


@every_attack
def test_clients_that_sign_stop_every_attack(counted: Counts, attack: Attack) -> None:
    count = counted(attack, "active")
    assert count["read"] == 0
    assert STAGES[attack.name] in count["refused"]
    if attack.name == "two requests at once":  # one of the two is answered: the sum of all
        assert (count["sums"], count["members"]) == (1, SHAPE.clients)
    else:
        assert count["sums"] == 0


def test_only_the_files_of_a_node_stop_two_requests_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_memory(_: Path) -> Identity:
        return Identity(Ed25519PrivateKey.generate())

    monkeypatch.setattr(federation.Identity, "create", in_memory)
    (attack,) = (attack for attack in ATTACKS if attack.name == "two requests at once")
    assert reads(attacked(attack, SHAPE, "active", 1), attack)


def test_what_remains_reads_as_much_as_is_said_and_nobody_refuses_it(counted: Counts) -> None:
    counts = {name: counted(attack, "active") for name, attack in remaining.items()}
    assert not any(count["refused"] for count in counts.values())
    for name in ("chosen cohorts", "canary seats"):
        assert reads(counts[name], remaining[name])
    smallest, given_up = counts["smallest sum"], counts["rounds given up"]
    assert (smallest["read"], smallest["sums"], smallest["members"]) == (0, 1, SHAPE.threshold)
    assert (given_up["read"], given_up["sums"]) == (0, 0)
    assert given_up["error"] > 100


def test_other_batches_blur_what_two_cohorts_show() -> None:
    shape = Shape(batch=8, drawn=4)
    count = attacked(remaining["chosen cohorts"], shape, "active", 2)
    assert count["read"] == 0
    assert 0.1 < count["error"] < 10


def test_a_trap_shows_the_targets_images_before_and_noise_after() -> None:
    before, after = (images(TRAP_FOR_ONE, SHAPE, mode, 2) for mode in ("unbound", "active"))
    assert before["psnr"] > 50
    assert before["clear"] >= 0.5
    assert after["psnr"] < after["guess"]
    assert after["clear"] == after["clear of all"] == 0


def test_one_trap_for_all_shows_images_of_an_honest_sum() -> None:
    found = images(TRAP_FOR_ALL, SHAPE, "active", 2)
    assert 2 < found["clear of all"] <= SHAPE.clients * SHAPE.batch
