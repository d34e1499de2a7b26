"""Gradients of single examples: the loop of single backward passes is their twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from leakmeter.auditors.rng import stream
from leakmeter.clients.protection import gradients
from leakmeter.clients.protection.gradients import Gradients, per_example_gradients
from tests.helpers.refusals import refuses

COUNT = 7


def twice() -> nn.Module:
    """Return a chain that passes the same layer two times."""
    layer = nn.Linear(12, 12)
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh(), layer, nn.Linear(12, 3))


def tied() -> nn.Module:
    """Return a chain of two layers with one weight."""
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second)


def tied_convolutions() -> nn.Module:
    """Return two convolutions with one weight."""
    first, second = (nn.Conv2d(1, 1, 3, padding=1) for _ in range(2))
    second.weight = first.weight
    shape = nn.Unflatten(1, (1, 3, 4))
    return nn.Sequential(shape, first, nn.ReLU(), second, nn.Flatten(), nn.Linear(12, 3))


FACTORED = {
    "bare linear layer": lambda: nn.Linear(12, 3),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)),
    "without bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3, bias=False)),
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4, bias=False), nn.GELU(),
        nn.Linear(4, 3),
    ),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    ),
    "two convolutions with a pool": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 3)), nn.Conv2d(2, 3, (2, 3), padding=(1, 2), bias=False), nn.Tanh(),
        nn.MaxPool2d(2, stride=1), nn.Conv2d(3, 2, 2, stride=2, padding=1), nn.Flatten(),
        nn.Linear(12, 3),
    ),
    "holes in the kernel": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 3)), nn.Conv2d(1, 3, (2, 3), padding=1, dilation=(3, 1)),
        nn.AvgPool2d((2, 1)), nn.Flatten(), nn.Linear(9, 3),
    ),
}  # fmt: skip
DENSE = {
    "channels apart": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 3)), nn.Conv2d(2, 4, 2, groups=2), nn.Flatten(), nn.Linear(8, 3)
    ),
    "a mirror around the image": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 1, 2, padding=1, padding_mode="reflect"),
        nn.Flatten(), nn.Linear(20, 3),
    ),
    "padding in words": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 1, 3, padding="same"), nn.Flatten(),
        nn.Linear(12, 3),
    ),
    "one weight for two convolutions": tied_convolutions,
    "in place": lambda: nn.Sequential(nn.Linear(12, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
    "a layer used twice": twice,
    "a weight used twice": tied,
    "more axes": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 4)), nn.Linear(4, 2), nn.Flatten(), nn.Linear(6, 3)
    ),
}  # fmt: skip
MODELS = FACTORED | DENSE


def made(name: str) -> nn.Module:
    """Return the model in double precision, drawn from a seed."""
    model = MODELS[name]().double()
    rng = stream(0, "model", name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(parameter.shape)))
    return model


def examples(count: int = COUNT) -> tuple[Tensor, Tensor]:
    rng = stream(0, "examples")
    x = torch.from_numpy(rng.standard_normal((count, 12)))
    return x, torch.from_numpy(rng.integers(0, 3, count))


def looped(model: nn.Module, x: Tensor, y: Tensor, clip_norm: float) -> np.ndarray:
    """Return G by one backward pass for each example."""
    rows = []
    for one, label in zip(x, y, strict=True):
        loss = cross_entropy(model(one[None]), label[None])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        row = torch.cat([part.reshape(-1) for part in parts]).numpy()
        rows.append(row * min(1.0, clip_norm / max(float(np.linalg.norm(row)), 1e-300)))
    return np.array(rows)


def check_views(found: Gradients, truth: np.ndarray) -> None:
    rng = stream(0, "vectors")
    assert (found.count, found.dim) == truth.shape
    weights, vector = rng.standard_normal(found.count), rng.standard_normal(found.dim)
    assert found.columns(0, found.dim) == pytest.approx(truth, rel=1e-9, abs=1e-12)
    assert found.gram() == pytest.approx(truth @ truth.T, rel=1e-9, abs=1e-12)
    assert found.combined(weights) == pytest.approx(weights @ truth, rel=1e-9, abs=1e-12)
    assert found.products(vector) == pytest.approx(truth @ vector, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("clip_norm", [float("inf"), 1.5])
@pytest.mark.parametrize("name", MODELS)
def test_every_view_of_the_gradients_equals_that_of_a_loop(
    name: str, clip_norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (x, y) = made(name), examples()
    truth = looped(model, x, y, clip_norm)
    found = per_example_gradients(model, x, y, clip_norm, chunk=3)
    is_dense = all(isinstance(part, gradients.Rows) for part in found.parts)
    assert is_dense == (name in DENSE)
    check_views(found, truth)
    assert found.loss == pytest.approx(float(cross_entropy(model(x), y).detach()))
    if name in FACTORED and "convolution" in name:  # rows that do not fit come from the factors
        monkeypatch.setattr(gradients, "_ROOM", 0)
        monkeypatch.setattr(gradients, "_CHUNK", 3)
        found = per_example_gradients(model, x, y, clip_norm)
        assert any(isinstance(part, gradients.Convolution) for part in found.parts)
        check_views(found, truth)


@pytest.mark.parametrize("name", ["mlp", "two convolutions with a pool"])
def test_any_columns_can_be_had_alone(name: str) -> None:
    found = per_example_gradients(made(name), *examples(), 1.0)
    whole = found.columns(0, found.dim)
    for start in range(found.dim):
        for stop in range(start, found.dim + 1, 7):
            assert np.array_equal(found.columns(start, stop), whole[:, start:stop])


@pytest.mark.parametrize("name", ["mlp", "convolution"])
def test_clipping_is_by_one_joint_norm_also_in_single_precision(name: str) -> None:
    model, (x, y) = made(name).float(), examples(200)
    free = per_example_gradients(model, x.float(), y, float("inf")).columns(0, 10**6)
    norm = float(np.median(np.linalg.norm(free, axis=1)))
    clipped = per_example_gradients(model, x.float(), y, norm).columns(0, 10**6)
    lengths = np.linalg.norm(free, axis=1)
    assert np.linalg.norm(clipped, axis=1).max() <= norm * (1 + 1e-15)
    assert clipped == pytest.approx(free * np.minimum(1, norm / lengths)[:, None], rel=1e-5)
    assert 50 < (lengths > norm).sum() < 150


def test_what_mixes_examples_is_refused() -> None:
    x, y = examples()
    model = nn.Sequential(nn.Linear(12, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match=r"BatchNorm1d at '1'.*mixes the batch"):
        per_example_gradients(model, x.float(), y, 1.0)
    model = model.double().eval()  # with moments that are fixed, examples are apart
    found = per_example_gradients(model, x, y, float("inf"))
    assert found.columns(0, found.dim) == pytest.approx(looped(model, x, y, float("inf")))


def test_bad_input_is_named() -> None:
    model, (x, y) = made("linear"), examples()
    flat = nn.Sequential(nn.Linear(12, 3, bias=False))
    still = per_example_gradients(flat, torch.zeros(4, 12), torch.tensor([0, 1, 2, 0]), 1e-3)
    assert not still.gram().any()  # gradients of zero stay zero
    with refuses("clip_norm"):
        per_example_gradients(model, x, y, 0.0)
    with pytest.raises(ValueError, match="at least one example"):
        per_example_gradients(model, x[:0], y[:0], 1.0)
    with pytest.raises(ValueError, match="finite"):
        per_example_gradients(model, x * float("nan"), y, 1.0)
    with refuses("chunk"):
        per_example_gradients(model, x, y, 1.0, chunk=0)


@pytest.mark.parametrize("kind", ["mlp", "convolution", "in place"])
def test_a_record_whose_gradient_is_not_finite_changes_nothing_for_the_others(kind: str) -> None:
    model, (x, y) = made(kind), examples()
    spoilt = x.clone()
    spoilt[0] = float("inf")
    clean, found = (per_example_gradients(model, one, y, 1.0, chunk=2) for one in (x, spoilt))
    whole, matrix = (g.columns(0, g.dim) for g in (clean, found))
    assert not matrix[0].any()
    assert matrix[1:] == pytest.approx(whole[1:])
