"""Critics and searches run on the device they are given; a stand-in shows that nothing mixes."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors import Critics
from leakmeter.auditors.information.neural import GuidedCritic, HeldOut, held_out_values, train
from leakmeter.auditors.reconstruction.attack import Attack, Reconstruction, invert
from leakmeter.auditors.rng import stream

torch = pytest.importorskip("torch")

from tests.helpers.stand_in import DEVICE, MixedError, StandIn  # noqa: E402 - which needs torch

SHAPE, CLASSES = (1, 6, 6), 4


def found(place: str, steps: int = 4) -> HeldOut:
    rng = stream(0, "rows")
    rows, fitted = rng.standard_normal((16, 5, 3)), rng.standard_normal((4, 5, 3))
    critics = Critics(count=2, steps=steps, hidden=4, device=place)
    return held_out_values(rows, fitted, critics=critics, path=("x",), seed=1, noise_std=0.1)


def test_critics_find_there_what_they_find_on_the_cpu(device: StandIn) -> None:
    here = found("cpu")
    assert not device.operations
    assert found(str(DEVICE)) == here
    assert device.operations["lerp_.Scalar"] == 4  # every step of Adam was taken there
    assert here != found("cpu", steps=0)


@pytest.mark.usefixtures("device")
def test_pairs_that_stay_behind_their_critics_are_found() -> None:
    rngs = [stream(0, i) for i in range(2)]
    critic = GuidedCritic.drawn(np.full((2, 3), 0.5), 4, 3.0, rngs, str(DEVICE))
    parts = [[torch.zeros(2, 256, 3) for _ in range(3)] for _ in range(3)]
    with pytest.raises(MixedError):
        train(critic, parts, steps=1, rate=0.1)


def searched(net: torch.nn.Module, attack: Attack, labels: bool) -> Reconstruction:
    rng = stream(0, "gradient")
    observed = rng.standard_normal(sum(p.numel() for p in net.parameters()))
    known = np.array([0, 3]) if labels else None
    return invert(net, observed, shape=SHAPE, batch=2, seed=1, attack=attack, labels=known)


def network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        convolution = torch.nn.Conv2d(1, 2, 3)
        last = torch.nn.Linear(32, CLASSES)
        return torch.nn.Sequential(convolution, torch.nn.Sigmoid(), torch.nn.Flatten(), last)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize(
    "attack",
    [
        Attack("idlg", steps=3, smoothness=0.1),
        Attack("dlg", steps=3, restarts=2),
        Attack("dlg", "adam", steps=3, rate=0.1),
    ],
    ids=["idlg", "dlg", "adam"],
)
def test_a_search_ends_there_where_it_ends_on_the_cpu(
    attack: Attack, labels: bool, device: StandIn
) -> None:
    here = searched(network(), attack, labels)
    there = searched(network().to(DEVICE), attack, labels)
    np.testing.assert_array_equal(there.images, here.images)
    np.testing.assert_array_equal(there.labels, here.labels)
    assert there.mismatches == here.mismatches
    assert device.operations["convolution_backward"] >= 3


@pytest.mark.usefixtures("device")
def test_a_model_that_is_half_moved_is_found() -> None:
    net = network()
    net[0].to(DEVICE)
    with pytest.raises(MixedError):
        searched(net, Attack(steps=1), labels=False)
