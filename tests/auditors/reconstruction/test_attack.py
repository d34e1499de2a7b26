"""Gradient inversion: it brings back single images, less from sums, and says when it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from leakmeter.auditors.reconstruction.attack import (
    Attack,
    best_matches,
    infer_labels,
    invert,
    psnr,
)
from leakmeter.auditors.rng import stream
from tests.helpers.numbers import num_examples
from tests.helpers.refusals import refuses

torch = pytest.importorskip("torch")
nn = torch.nn
SHAPE, CLASSES = (1, 8, 8), 10


def model(kind: str, seed: int = 0) -> torch.nn.Module:
    """Return a small model with weights of its own."""
    layers = {
        "linear": [nn.Linear(64, CLASSES)],
        "sigmoid": [nn.Linear(64, 40), nn.Sigmoid(), nn.Linear(40, CLASSES)],
        "relu": [nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, CLASSES)],
        "no-bias": [nn.Linear(64, CLASSES, bias=False)],
    }[kind]
    made = nn.Sequential(nn.Flatten(), *layers)
    rng = stream(seed, "weights", kind)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.from_numpy(rng.standard_normal(p.shape)) * 0.3)
    return made


def pictures(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Return smooth pictures: a bright spot each."""
    rng = stream(seed, "pictures")
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8)), axis=-1)
    spots = rng.uniform(1, 6, (count, 1, 1, 2))
    return np.exp(-((grid - spots) ** 2).sum(-1) / 6)[:, None].astype(np.float32)


def gradient(
    net: torch.nn.Module, images: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the mean gradient of a batch, flat."""
    loss = nn.functional.cross_entropy(net(torch.from_numpy(images)), torch.from_numpy(labels))
    slopes = torch.autograd.grad(loss, list(net.parameters()))
    return np.concatenate([s.reshape(-1).numpy() for s in slopes])


@pytest.mark.parametrize("kind", ["linear", "sigmoid"])
def test_one_image_comes_back_with_its_label(kind: str) -> None:
    net, image, label = model(kind), pictures(1), np.array([7])
    found = invert(net, gradient(net, image, label), shape=SHAPE, batch=1, seed=1)
    assert found.labels.tolist() == [7]
    assert found.mismatch < 1e-4
    assert psnr(image, found.images)[0] > 30
    assert psnr(pictures(1, seed=5), found.images)[0] < 20  # and it is this image, no other


def test_dlg_finds_image_and_label_together() -> None:
    net, image, label = model("sigmoid"), pictures(1), np.array([3])
    attack = Attack("dlg", restarts=2)
    found = invert(net, gradient(net, image, label), shape=SHAPE, batch=1, seed=1, attack=attack)
    assert found.labels.tolist() == [3]
    assert psnr(image, found.images)[0] > 30
    assert found.mismatch == min(found.mismatches)
    assert len(found.mismatches) == 2


def test_a_batch_comes_back_in_some_order() -> None:
    net, images, labels = model("sigmoid"), pictures(3), np.array([2, 8, 5])
    found = invert(net, gradient(net, images, labels), shape=SHAPE, batch=3, seed=1)
    assert found.labels.tolist() == [2, 5, 8]
    assert psnr(images, found.images).min() > 25


def test_adam_with_a_smoothness_prior_works_too() -> None:
    net, image, label = model("relu"), pictures(1), np.array([4])
    attack = Attack(optimizer="adam", rate=0.1, steps=150, smoothness=1e-4)
    found = invert(net, gradient(net, image, label), shape=SHAPE, batch=1, seed=1, attack=attack)
    assert psnr(image, found.images)[0] > 25


def test_the_prior_makes_images_smoother() -> None:
    net, images, labels = model("linear"), pictures(8), np.arange(8)
    roughness = []
    for weight in (0.0, 0.1):
        attack = Attack(smoothness=weight, steps=60)
        observed = gradient(net, images, labels)
        found = invert(net, observed, shape=SHAPE, batch=8, seed=1, attack=attack)
        roughness.append(np.abs(np.diff(found.images, axis=-1)).mean())
    assert roughness[1] < 0.8 * roughness[0]


def test_reconstructions_from_a_mean_fall_with_the_clients_in_it() -> None:
    net = model("sigmoid")
    images, labels = pictures(16), stream(0, "labels").integers(0, CLASSES, 16)
    reached = []
    for clients in (1, 4, 16):
        observed = gradient(net, images[:clients], labels[:clients])
        found = invert(
            net, observed, shape=SHAPE, batch=1, seed=1, labels=labels[:1], attack=Attack(steps=80)
        )
        reached.append(float(psnr(images[:1], found.images)[0]))
    assert reached[0] > 30 > 20 > reached[1]
    assert reached[2] < 20


def test_the_model_is_left_as_it_was_and_seeds_repeat() -> None:
    net, image, label = model("sigmoid"), pictures(1), np.array([3])
    before = [p.detach().clone() for p in net.parameters()]
    observed = gradient(net, image, label)
    attack = Attack(steps=5)
    runs = [invert(net, observed, shape=SHAPE, batch=1, seed=s, attack=attack) for s in (1, 1, 2)]
    assert all(bool((a == b).all()) for a, b in zip(before, net.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    np.testing.assert_array_equal(runs[0].images, runs[1].images)
    assert (runs[0].images != runs[2].images).any()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 100))
@settings(max_examples=num_examples(50))
def test_labels_are_exact_when_the_outputs_are_known(labels: list[int], seed: int) -> None:
    chances = stream(seed, "chances").dirichlet(np.ones(5), len(labels))
    true = np.sort(labels)
    bias = chances.mean(0) - np.bincount(true, minlength=5) / len(true)
    np.testing.assert_array_equal(infer_labels(bias, chances), true)


def test_one_label_needs_no_knowledge_of_the_outputs() -> None:
    for seed in range(50):
        rng = stream(seed, "one")
        chances, stand_in = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5) / 5)
        bias = chances - np.eye(5)[seed % 5]
        assert infer_labels(bias, stand_in[None]).tolist() == [seed % 5]


def test_psnr_matches_by_best_total_and_knows_its_formula() -> None:
    originals = pictures(4)
    shuffled = originals[[2, 0, 3, 1]] + np.float32(0.1)
    np.testing.assert_allclose(psnr(originals, shuffled), 20.0, atol=1e-4)
    assert psnr(originals, originals).tolist() == [math.inf] * 4
    errors, best = best_matches(originals, shuffled)
    apart = (originals - shuffled[best]).reshape(4, -1)
    np.testing.assert_allclose((apart**2).mean(axis=1), errors, rtol=1e-6)
    spare = np.concatenate([np.ones((2, *SHAPE)), originals])
    assert psnr(originals, spare).tolist() == [math.inf] * 4


NET = model("linear")
GRADIENT = gradient(NET, pictures(1), np.array([1]))


def attacked(**changes: object) -> object:
    settings = {"model": NET, "gradient": GRADIENT, "shape": SHAPE, "batch": 1, "seed": 0}
    return invert(**(settings | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attacked(gradient=GRADIENT[1:]), "gradient"),
        (lambda: attacked(gradient=GRADIENT * 0), "gradient"),
        (lambda: attacked(gradient=GRADIENT * math.nan), "gradient"),
        (lambda: attacked(batch=0), "batch"),
        (lambda: attacked(labels=np.array([10])), "labels"),
        (lambda: attacked(model=model("no-bias"), gradient=GRADIENT[:640]), "model"),
        (lambda: Attack(steps=0), "steps"),
        (lambda: Attack("gan"), "method"),  # type: ignore[arg-type]
        (lambda: Attack(optimizer="sgd"), "optimizer"),  # type: ignore[arg-type]
        (lambda: psnr(pictures(2), pictures(1)), "images"),
        (lambda: psnr(pictures(1), pictures(1)[..., 1:]), "images"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with refuses(message):
        call()
