"""Models: their size, their first parameters, and what cannot be built."""

from __future__ import annotations

import pytest
import torch

from fl_app import model
from fl_app.errors import ConfigError
from fl_app.model import build, num_parameters
from fl_app.names import MODELS


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().ravel() for parameter in module.parameters()])


def test_every_name_has_hidden_widths() -> None:
    assert tuple(model._HIDDEN) == MODELS


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("linear", (28, 28), 10, 7_850),  # Elkordy et al. 2023, Table 1
        ("mlp", (28, 28), 10, 89_610),  # the same table
        ("linear", (104,), 2, 210),  # Ngo et al. 2024, ADULT
        ("linear", (8, 8), 10, 650),
        ("mlp", (1, 8, 8), 10, 17_610),
    ],
)
def test_parameter_counts_are_the_published_ones(name, shape, classes, count) -> None:
    assert num_parameters(name, shape, classes) == count
    assert flat(build(name, shape, classes, seed=0)).numel() == count


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(5,), (8, 8), (3, 4, 4)])
def test_logits_come_out_for_any_record_shape(name: str, shape: tuple[int, ...]) -> None:
    logits = build(name, shape, 4, seed=0)(torch.ones(6, *shape))
    assert logits.shape == (6, 4)
    assert (logits < 0).any()  # no ReLU on the way out


@pytest.mark.parametrize("name", MODELS)
def test_seed_alone_decides_the_first_parameters(name: str) -> None:
    torch.manual_seed(1)
    first = flat(build(name, (8, 8), 10, seed=7))
    torch.manual_seed(2)
    assert torch.equal(first, flat(build(name, (8, 8), 10, seed=7)))
    assert not torch.equal(first, flat(build(name, (8, 8), 10, seed=8)))


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build("mlp", (8, 8), 10, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_first_parameters_follow_the_law_of_torch() -> None:
    ours = build("mlp", (28, 28), 10, seed=0)
    layer = ours[1]
    assert isinstance(layer, torch.nn.Linear)
    theirs = torch.nn.Linear(784, 100)
    for name in ("weight", "bias"):
        mine, reference = getattr(layer, name), getattr(theirs, name)
        assert mine.dtype == reference.dtype
        assert mine.requires_grad
        assert mine.abs().max() <= 1 / 28
    # Uniform on ±b has standard deviation b/√3; 78,400 draws know it to half a per cent.
    assert layer.weight.std().item() == pytest.approx(1 / 28 / 3**0.5, rel=0.01)
    assert theirs.weight.std().item() == pytest.approx(1 / 28 / 3**0.5, rel=0.01)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("resnet", (8, 8), 10, "model must be one of linear, mlp, got 'resnet'"),
        ("linear", (), 10, r"input_shape must be one or more positive sizes .* got \(\)"),
        ("mlp", (8, 0), 10, r"input_shape must be .* got \(8, 0\)"),
        ("mlp", (-8,), 10, r"input_shape must be .* got \(-8,\)"),
        ("linear", (8, 8), 1, "num_classes must be at least 2 for the model linear, got 1"),
    ],
)
def test_bad_input_names_field_range_and_value(name, shape, classes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, shape, classes, seed=0)
    with pytest.raises(ConfigError, match=message):
        num_parameters(name, shape, classes)
