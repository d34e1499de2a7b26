"""Models: their size, their first parameters, and what cannot be built."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakmeter.auditors.rng import stream
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.update import fedsgd
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.config.settings import MODELS
from leakmeter.fl_app.task import build_model


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().ravel() for parameter in module.parameters()])


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("linear", (28, 28), 10, 7_850),  # Elkordy et al. 2023, Table 1
        ("mlp", (28, 28), 10, 89_610),  # the same table
        ("slp", (28, 28), 10, 7_850),
        ("linear", (3, 32, 32), 10, 30_730),
        ("slp", (3, 32, 32), 10, 30_730),
        ("cnn", (3, 32, 32), 10, 82_554),
        ("cnn", (28, 28), 10, 69_466),  # grey: 288 weights less at the bottom, 12,800 at the top
        ("linear", (104,), 2, 210),  # Ngo et al. 2024, ADULT
        ("linear", (8, 8), 10, 650),
        ("mlp", (1, 8, 8), 10, 17_610),
    ],
)
def test_parameter_counts_are_the_published_ones(name, shape, classes, count) -> None:
    assert flat(build_model(name, shape, classes, seed=0)).numel() == count


ANY = [(5,), (8, 8), (3, 4, 4)]
SHAPES = {
    "linear": ANY,
    "mlp": ANY,
    "cnn": [(15, 15), (28, 28), (1, 28, 28), (3, 32, 32), (2, 16, 40)],
}


@pytest.mark.parametrize(("name", "shape"), [(n, s) for n in SHAPES for s in SHAPES[n]])
def test_logits_come_out_for_any_record_that_fits(name: str, shape: tuple[int, ...]) -> None:
    logits = build_model(name, shape, 4, seed=0)(torch.ones(6, *shape))
    assert logits.shape == (6, 4)
    assert (logits < 0).any()  # no ReLU on the way out


def test_the_cnn_has_the_layers_of_alexnet_in_their_order() -> None:
    kinds = [type(layer).__name__ for layer in build_model("cnn", (3, 32, 32), 10, seed=0)]
    first = ["Conv2d", "ReLU", "MaxPool2d"] * 2 + ["Conv2d", "ReLU"] * 3 + ["MaxPool2d", "Flatten"]
    assert kinds == [*first, "Linear", "ReLU", "Linear", "ReLU", "Linear"]


def test_the_slp_is_the_linear_model_with_a_relu_behind_it() -> None:
    x = torch.linspace(-1, 1, 6 * 64).reshape(6, 8, 8)
    linear, slp = (build_model(name, (8, 8), 10, seed=3) for name in ("linear", "slp"))
    assert torch.equal(flat(linear), flat(slp))
    assert torch.equal(slp(x), linear(x).relu())
    assert (linear(x) < 0).any()


@pytest.mark.parametrize(("name", "shape"), [("slp", (8, 8)), ("cnn", (15, 15))])
def test_many_clients_at_once_train_these_models_as_one_does(
    name: str, shape: tuple[int, ...]
) -> None:
    net, rule = build_model(name, shape, 10, seed=0), fedsgd(batch_size=4, lr=0.1)
    rng = stream(0, "records")
    x = torch.from_numpy(rng.random((24, *shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 24))
    parts = np.split(np.arange(24), 6)
    cohort, start = Cohort(net, rule), flat(net)
    updates = cohort.updates(start, x, y, parts, [stream(1, i) for i in range(6)])
    for client, part in enumerate(parts):
        own = build_model(name, shape, 10, seed=0)
        rule(own, x[part], y[part], stream(1, client))
        assert torch.allclose(updates[client], flat(own) - start, rtol=1e-4, atol=1e-6)
    # Rows of the slp's output layer do not sum to zero: the ReLU stands between.
    assert (cohort.free is None) == (name == "slp")


@pytest.mark.parametrize("name", MODELS)
def test_seed_alone_decides_the_first_parameters_and_global_draws_go_on(name: str) -> None:
    torch.manual_seed(1)
    first = flat(build_model(name, (16, 16), 10, seed=7))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert torch.equal(first, flat(build_model(name, (16, 16), 10, seed=7)))
    assert not torch.equal(first, flat(build_model(name, (16, 16), 10, seed=8)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "shape", "place", "theirs", "fan_in"),
    [
        ("mlp", (28, 28), 1, torch.nn.Linear(784, 100), 784),
        ("cnn", (3, 32, 32), 8, torch.nn.Conv2d(48, 48, 3, padding=1), 9 * 48),
    ],
)
def test_first_parameters_follow_the_law_of_torch(name, shape, place, theirs, fan_in) -> None:
    layer, bound = build_model(name, shape, 10, seed=0)[place], fan_in**-0.5
    for parameter, reference in zip(layer.parameters(), theirs.parameters(), strict=True):
        assert (parameter.shape, parameter.dtype) == (reference.shape, reference.dtype)
        assert parameter.requires_grad
        assert parameter.abs().max() <= bound
    # Uniform on ±b has standard deviation b/√3; 20,736 draws know it to a per cent.
    for weight in (layer.weight, theirs.weight):
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("resnet", (8, 8), 10, "model must be one of linear, slp, mlp, cnn, got 'resnet'"),
        (
            "cnn",
            (8, 8),
            10,
            "--model cnn needs images of at least 15×15, got records of size 8×8. Try --model",
        ),
        ("cnn", (3, 32, 14), 10, "at least 15×15, got records of size 3×32×14"),
        ("cnn", (104,), 2, "at least 15×15, got records of size 104"),
        ("cnn", (1, 3, 32, 32), 2, "got records of size 1×3×32×32"),
        ("cnn", (3, 32, 0), 2, r"input_shape must be one or more positive"),
        ("linear", (), 10, r"input_shape must be one or more positive sizes .* got \(\)"),
        ("mlp", (8, 0), 10, r"input_shape must be .* got \(8, 0\)"),
        ("mlp", (-8,), 10, r"input_shape must be .* got \(-8,\)"),
        ("linear", (8, 8), 1, "num_classes must be at least 2 for --model linear, got 1"),
    ],
)
def test_bad_input_names_field_range_and_value(name, shape, classes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(name, shape, classes, seed=0)
