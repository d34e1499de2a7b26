"""The rule on clipped gradients: known rules are its special cases, and what it refuses."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.gradients import per_example_gradients
from leakmeter.clients.protection.record_rule import GaussianSampling, Isotropic, WaterFilling
from leakmeter.clients.update import UpdateRule, fedsgd, gd
from tests.helpers.numbers import FixedNormals
from tests.helpers.refusals import refuses

COUNT, DIM = 6, 12
LOOSE = 1e9  # a clip norm that clips nothing


def new_model() -> nn.Module:
    """Return a linear model of 12 parameters in double precision."""
    model = nn.Linear(3, 3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(stream(0, "model").standard_normal(parameter.shape)))
    return model


def examples() -> tuple[Tensor, Tensor]:
    rng = stream(0, "examples")
    x = torch.from_numpy(rng.standard_normal((COUNT, 3)))
    return x, torch.from_numpy(rng.integers(0, 3, COUNT))


def update_of(rule: UpdateRule, rng: Any) -> np.ndarray:
    """Return the change that a rule makes to the model."""
    model = new_model()
    start = vector(model)
    rule(model, *examples(), cast(np.random.Generator, rng))
    return vector(model) - start


def vector(model: nn.Module) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def law_of(rule: GaussianSampling, num_normals: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the update, which is affine in the normals."""
    mean = update_of(rule, FixedNormals(np.zeros(num_normals)))
    moves = [update_of(rule, FixedNormals(unit)) - mean for unit in np.eye(num_normals)]
    return mean, np.array(moves).T @ np.array(moves)


def clipped(norm: float) -> np.ndarray:
    return per_example_gradients(new_model(), *examples(), norm).columns(0, DIM)


@pytest.mark.parametrize(
    ("batch", "sampling", "known"), [(0, "full", gd(1, 0.3)), (2, "minibatch", fedsgd(2, 0.3))]
)
def test_without_noise_and_clipping_the_rule_is_a_known_one(
    batch: int, sampling: Any, known: UpdateRule
) -> None:
    rule = GaussianSampling(0.3, LOOSE, batch, sampling=sampling, simulated=True)
    found, expected = (update_of(one, stream(0, "r")) for one in (rule, known))
    assert found == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("noise", [None, Isotropic(0.02), WaterFilling(0.02)])
def test_the_update_has_the_mean_and_covariance_of_its_assumption(
    noise: Isotropic | WaterFilling | None,
) -> None:
    rule = GaussianSampling(0.5, 0.7, 4, noise=noise, simulated=True)
    mean, covariance = law_of(rule, COUNT + (DIM if noise else 0))
    g = clipped(0.7)
    sigma = g.T @ g / (4 * COUNT)
    if isinstance(noise, Isotropic):
        sigma = sigma + 0.02 * np.eye(DIM)
    if isinstance(noise, WaterFilling):
        values, vectors = np.linalg.eigh(sigma)
        assert values[0] < 0.02 < values[-1]  # some directions lack noise, some do not
        sigma = (vectors * np.maximum(values, 0.02)) @ vectors.T
    assert mean == pytest.approx(-0.5 * g.mean(axis=0), abs=1e-14)
    assert covariance == pytest.approx(0.25 * sigma, abs=1e-13)


@pytest.mark.parametrize("sampling", ["full", "minibatch"])
def test_isotropic_noise_is_added_to_other_samplings_too(sampling: Any) -> None:
    batch = COUNT if sampling == "minibatch" else 0
    rule = GaussianSampling(0.5, 0.7, batch, sampling, Isotropic(0.02), simulated=True)
    plain = GaussianSampling(0.5, 0.7, batch, sampling, simulated=True)
    with_noise, without = (update_of(r, stream(0, "r")) for r in (rule, plain))
    rng = stream(0, "r")
    if sampling == "minibatch":
        rng.permutation(COUNT)
    noise = np.sqrt(0.02) * rng.standard_normal(DIM)
    assert with_noise - without == pytest.approx(-0.5 * noise, abs=1e-13)


def test_several_steps_are_single_steps_one_after_the_other() -> None:
    rule = GaussianSampling(0.5, 0.7, 4, noise=WaterFilling(0.02), simulated=True)
    twice = GaussianSampling(0.5, 0.7, 4, noise=WaterFilling(0.02), steps=2, simulated=True)
    model, rng = new_model(), stream(0, "r")
    losses = [rule(model, *examples(), rng).loss for _ in range(2)]
    other = new_model()
    trained = twice(other, *examples(), stream(0, "r"))
    assert np.array_equal(vector(model), vector(other))
    assert trained.loss == pytest.approx(np.mean(losses))
    assert trained.num_examples == COUNT


def test_a_simulation_repeats_and_a_deployment_leaves_the_generator_alone() -> None:
    simulated = GaussianSampling(0.5, 0.7, 2, noise=WaterFilling(0.02), simulated=True)
    assert np.array_equal(
        update_of(simulated, stream(0, "r")), update_of(simulated, stream(0, "r"))
    )
    for sampling, noise in (("gaussian", WaterFilling(0.02)), ("minibatch", Isotropic(0.02))):
        rule = GaussianSampling(0.5, 0.7, 2, cast(Any, sampling), noise)
        rng = stream(0, "r")
        assert not np.array_equal(update_of(rule, rng), update_of(rule, stream(0, "r")))
        assert rng.random() == stream(0, "r").random()


def test_the_spectra_of_the_last_step_can_be_had_for_a_diagnosis() -> None:
    rule = GaussianSampling(0.5, 0.7, 4, noise=WaterFilling(0.02, blocks=2), simulated=True)
    _, spectra = rule.train(new_model(), *examples(), stream(0, "r"))
    assert [s.dim for s in spectra] == [6, 6]
    g = clipped(0.7)
    total = sum(float(s.eigenvalues.sum()) for s in spectra)
    assert total == pytest.approx((g**2).sum() / (4 * COUNT))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, {name: 0}) for name in ("lr", "batch_size", "steps")),
        ("clip_norm", {"clip_norm": float("inf")}),
        ("sampling", {"sampling": "poisson"}),
        *(("sampling", {"sampling": s, "noise": WaterFilling(1.0)}) for s in ("minibatch", "full")),
    ],
)
def test_bad_settings_are_named(name: str, values: dict[str, Any]) -> None:
    with refuses(name):
        GaussianSampling(**({"lr": 0.5, "clip_norm": 1.0, "batch_size": 2} | values))
    with refuses("sigma2"):
        Isotropic(0.0)
    with refuses("batch_size"):
        update_of(GaussianSampling(0.5, 1.0, 7, "minibatch"), stream(0, "r"))
