"""Update rules: exact against slow twins, and their randomness comes from where it should."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from leakmeter.auditors.rng import stream
from leakmeter.clients import update
from leakmeter.clients.update import (
    LocalSteps,
    Trained,
    dense_layers,
    fast_forward,
    fedavg,
    fedprox,
    fedsgd,
    gd,
)
from leakmeter.fl_app.task import build_model
from tests.helpers.numbers import num_examples
from tests.helpers.refusals import refuses

FEATURES, CLASSES = 5, 3


def new_model(seed: int = 0) -> nn.Module:
    """Return a small network in double precision."""
    rng = stream(seed, "model")
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(parameter.shape)))
    return model


def examples(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = stream(seed, "examples")
    x = torch.from_numpy(rng.standard_normal((count, FEATURES)))
    return x, torch.from_numpy(rng.integers(0, CLASSES, count))


def vector(model: nn.Module) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def gradient_step(model: nn.Module, x: Tensor, y: Tensor, lr: float) -> None:
    """Take one step with torch's own optimiser, independently of the rules."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    optimiser.zero_grad()
    cross_entropy(model(x), y).backward()
    optimiser.step()


def flower_average(models: list[nn.Module], weights: list[int]) -> dict[str, np.ndarray]:
    """Return Flower's own FedAvg of the models."""
    replies = []
    for model, weight in zip(models, weights, strict=True):
        arrays = {k: Array(v.numpy()) for k, v in model.state_dict().items()}
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": weight})}
        question = Message(RecordDict(), dst_node_id=1, message_type="train")
        replies.append(Message(RecordDict(content), reply_to=question))
    mean, _ = FlowerFedAvg().aggregate_train(1, replies)
    assert mean is not None
    return {k: a.numpy() for k, a in mean.items()}


@pytest.mark.usefixtures("flower_task")
@pytest.mark.parametrize(("batch_size", "sizes"), [(4, (9, 4, 2)), (0, (7, 1, 12)), (1, (3, 3, 3))])
def test_flowers_mean_of_fedsgd_replies_is_one_step_on_all_batches_together(
    batch_size: int, sizes: tuple[int, ...]
) -> None:
    models, weights, batches = [], [], []
    for client, size in enumerate(sizes):
        x, y = examples(size, client)
        model = new_model()
        done = fedsgd(batch_size, lr=0.7)(model, x, y, stream(1, "batch", client))
        drawn = stream(1, "batch", client).permutation(size)[: batch_size or size]
        models.append(model)
        weights.append(done.num_examples)
        batches.append((x[drawn], y[drawn]))
    assert weights == [min(batch_size or size, size) for size in sizes]

    central = new_model()
    gradient_step(
        central, torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]), lr=0.7
    )
    mean = flower_average(models, weights)
    for name, value in central.state_dict().items():
        np.testing.assert_allclose(mean[name], value.numpy(), rtol=0, atol=1e-12)


@settings(max_examples=num_examples(25), deadline=None)
@given(
    size=st.integers(1, 13),
    batch_size=st.integers(0, 15),
    epochs=st.integers(1, 3),
    mu=st.sampled_from([0.0, 0.5, 2.0]),
    seed=st.integers(0, 99),
)
def test_passes_equal_a_naive_loop_with_torchs_own_sgd_on_the_loss_with_its_proximal_term(
    size: int, batch_size: int, epochs: int, mu: float, seed: int
) -> None:
    x, y = examples(size)
    trained, twin, origin = new_model(), new_model(), new_model()
    done = fedprox(epochs, batch_size, 0.2, mu)(trained, x, y, stream(seed, "train"))

    rng, optimiser = stream(seed, "train"), torch.optim.SGD(twin.parameters(), lr=0.2)
    for _ in range(epochs):
        order = list(rng.permutation(size))
        for start in range(0, size, batch_size or size):
            batch = order[start : start + (batch_size or size)]
            pairs = zip(twin.parameters(), origin.parameters(), strict=True)
            distance = sum(((w - w0.detach()) ** 2).sum() for w, w0 in pairs)
            optimiser.zero_grad()
            (cross_entropy(twin(x[batch]), y[batch]) + mu / 2 * distance).backward()
            optimiser.step()
    np.testing.assert_allclose(vector(trained), vector(twin), rtol=1e-12, atol=1e-13)
    assert done.num_examples == size


def test_one_full_batch_of_fedavg_is_fedsgd() -> None:
    x, y = examples(8)
    one, other = new_model(), new_model()
    a = fedavg(epochs=1, batch_size=0, lr=0.3)(one, x, y, stream(0, "a"))
    b = fedsgd(batch_size=0, lr=0.3)(other, x, y, stream(0, "b"))
    np.testing.assert_allclose(vector(one), vector(other), rtol=1e-12)
    assert a.num_examples == b.num_examples == 8
    assert a.loss == pytest.approx(cross_entropy(new_model()(x), y).item(), rel=1e-12)


def test_fedprox_without_pull_is_fedavg_and_with_pull_stays_nearer_to_the_start() -> None:
    x, y = examples(12)
    ends, losses = [], []
    for rule in (fedavg(4, 3, 0.2), fedprox(4, 3, 0.2, 0.0), fedprox(4, 3, 0.2, 2.0)):
        model = new_model()
        losses.append(rule(model, x, y, stream(0, "train")).loss)
        ends.append(vector(model))
    assert np.array_equal(ends[0], ends[1])
    assert losses[0] == losses[1] != losses[2]
    far, near = (np.linalg.norm(end - vector(new_model())) for end in ends[1:])
    assert near < 0.8 * far


def test_full_batch_descent_is_torchs_sgd_on_all_examples_and_draws_nothing() -> None:
    x, y = examples(7)
    trained, twin, rng = new_model(), new_model(), stream(0, "train")
    done = gd(steps=4, lr=0.3)(trained, x, y, rng)
    for _ in range(4):
        gradient_step(twin, x, y, lr=0.3)
    np.testing.assert_allclose(vector(trained), vector(twin), rtol=1e-12, atol=1e-13)
    assert done.num_examples == 7
    assert rng.random() == stream(0, "train").random()


def test_only_rules_that_take_one_step_send_a_gradient() -> None:
    assert [rule.is_one_step for rule in RULES] == [False, True, False, False]
    assert all(rule.is_one_step for rule in (fedavg(1, 0, 0.1), gd(1, 0.1), fedsgd(0, 0.1)))
    assert not fedavg(1, 8, 0.1).is_one_step


RULES = [fedavg(2, 3, 0.2), fedsgd(3, 0.2), fedprox(2, 3, 0.2, 0.5), gd(2, 0.2)]
IDS = ["fedavg", "fedsgd", "fedprox", "full"]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_model_depends_on_rng_and_no_global_generator_and_examples_stay(rule: Any) -> None:
    x, y = examples(10)
    results = []
    for global_seed, local_seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(global_seed)
        np.random.seed(global_seed)  # noqa: NPY002
        model = new_model()  # torch's layers draw from the global generator
        before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        rule(model, x, y, stream(local_seed, "train"))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
        results.append(vector(model))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[1], results[2]) == (rule.batches == "unshuffled")
    for now, as_drawn in zip((x, y), examples(10), strict=True):
        assert torch.equal(now, as_drawn)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_client_without_examples_is_an_error_not_a_model_of_nans(rule: Any) -> None:
    with pytest.raises(ValueError, match="y must contain at least one example, got 0"):
        rule(new_model(), *examples(0), stream(0, "train"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("passes", 0), ("batch_size", -1)),
        *(("lr", value) for value in (0.0, float("inf"), float("nan"))),
        *(("mu", value) for value in (-0.1, float("inf"), float("nan"))),
    ],
)
def test_bad_settings_are_named(name: str, value: float) -> None:
    with refuses(name):
        LocalSteps(**{"passes": 1, "batch_size": 2, "lr": 0.1, name: value})


@pytest.mark.parametrize("name", ["mlp", "linear"])
@pytest.mark.parametrize("batch_size", [0, 3, 8])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_dense_steps_are_autograds_to_a_millionth(
    name: str, batch_size: int, mu: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, rule = stream(0, "dense"), fedprox(2, batch_size, 0.2, mu)
    x = torch.from_numpy(rng.standard_normal((20, 8, 8)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 20))
    ours, twin = (build_model(name, (8, 8), 10, seed=0) for _ in range(2))
    found = rule(ours, x, y, stream(0, "batches"))
    monkeypatch.setattr("leakmeter.clients.update.layers_of", lambda _: None)
    assert_alike(rule(twin, x, y, stream(0, "batches")), found)
    assert relative(ours, twin) < 1e-6


def assert_alike(twin: Trained, found: Trained) -> None:
    assert twin.num_examples == found.num_examples
    assert twin.loss == pytest.approx(found.loss, rel=1e-6)


def relative(ours: nn.Module, twin: nn.Module) -> float:
    """Return how far a model is from another one, as a share of its norm."""
    one, other = vector(ours).astype(np.float64), vector(twin).astype(np.float64)
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("width", [16, 400])  # products along the batch, and along the layers
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_products_of_another_library_give_autograds_steps_to_a_millionth(
    width: int, mu: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, rule = stream(0, "large"), fedprox(2, 40, 0.1, mu)
    x = torch.from_numpy(rng.standard_normal((60, 784)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 60))
    ours = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))
    twin, called = copy.deepcopy(ours), Mock(wraps=update._by_onednn)
    monkeypatch.setattr(update, "_LARGE", 200_000)
    monkeypatch.setattr(update, "_by_onednn", called)
    found = rule(ours, x, y, stream(0, "batches"))
    assert called.call_count >= 2 * 2 * 2 * update._HAS_ONEDNN  # passes, batches, both ways
    monkeypatch.setattr(update, "layers_of", lambda _: None)
    assert_alike(rule(twin, x, y, stream(0, "batches")), found)
    assert relative(ours, twin) < 1e-6


def check_alone(start: nn.Module, rule: LocalSteps, size: int, clients: int, classes: int) -> None:
    """Check that clients that train together have the bits that each has alone."""
    rng, features = stream(0, "together", size, clients), start[0].in_features
    x = torch.from_numpy(rng.standard_normal((60, features)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, classes, 60))
    records = [rng.permutation(60)[:size] for _ in range(clients)]
    known = dense_layers(start, x, y)
    assert known is not None
    rngs = [stream(0, "batches", client) for client in range(clients)]
    stacks, told = rule.train_together(known, start, x, y, records, rngs)
    for client, own in enumerate(records):
        alone = copy.deepcopy(start)
        assert rule(alone, x[own], y[own], stream(0, "batches", client)) == told[client]
        pairs = zip(alone.parameters(), stacks, strict=True)
        assert all(torch.equal(one, stack[client]) for one, stack in pairs)


# Torch has code for tiny stacks of matrices, and the last widths make large products.
@pytest.mark.parametrize("widths", [(64, 20, 10), (5, 4, 3), (1400, 100, 10)])
@pytest.mark.parametrize("size", [17, 8])  # with a last batch of one, and without
def test_clients_train_together_as_each_alone_bit_for_bit(
    widths: tuple[int, ...], size: int
) -> None:
    last = nn.Linear(*widths[1:], bias=False)
    start = nn.Sequential(nn.Linear(*widths[:2]), nn.ReLU(), last)
    check_alone(start, fedprox(2, 8, 0.2, 0.1), size, clients=4, classes=widths[-1])


@settings(max_examples=num_examples(60), deadline=None)
@given(
    widths=st.lists(st.sampled_from([1, 2, 3, 5, 7, 16, 30, 104]), min_size=1, max_size=3),
    classes=st.integers(2, 12),
    size=st.integers(1, 40),
    batch_size=st.integers(0, 30),
    clients=st.integers(2, 6),
)
def test_a_clients_bits_depend_on_nobody_beside_it_in_any_shape(
    widths: list[int], classes: int, size: int, batch_size: int, clients: int
) -> None:
    pairs = pairwise((*widths, classes))
    start = nn.Sequential(*(one for pair in pairs for one in (nn.Linear(*pair), nn.ReLU())))[:-1]
    check_alone(start, fedavg(1, batch_size, 0.2), size, clients, classes)


def test_a_batch_size_beyond_all_examples_takes_no_memory_for_them() -> None:
    x, y = torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
    huge = fedavg(epochs=1, batch_size=2**50, lr=0.1)  # petabytes, if there was room for it
    assert huge(nn.Linear(4, 2), x, y, stream(0, "huge")).num_examples == 3


STACKS = {
    "usual": (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "rectified in place": (nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
    "padded by reflection": (nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"),),
    "padded by name": (nn.Conv2d(1, 4, 3, padding="same"), nn.Tanh(), nn.Conv2d(4, 4, 3)),
    "a pool with holes": (nn.Conv2d(1, 4, 3), nn.MaxPool2d(2, dilation=2), nn.ReLU()),
    "means": (nn.Conv2d(1, 4, 3), nn.AvgPool2d(2), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)),
    "groups without bias": (nn.Conv2d(1, 4, 3, bias=False), nn.Conv2d(4, 4, 3, groups=2)),
}


@pytest.mark.parametrize("stack", STACKS)
def test_outputs_and_gradients_are_the_modules_whatever_comes_after_a_convolution(
    stack: str,
) -> None:
    net = nn.Sequential(*copy.deepcopy(STACKS[stack]), nn.Flatten(), nn.LazyLinear(3))
    x = torch.from_numpy(stream(0, "images").random((5, 1, 8, 8), dtype=np.float32))
    net(x)  # the last layer finds its size
    forward = fast_forward(net)
    assert not isinstance(forward, nn.Module)
    parameters = list(net.parameters())
    ours, twins = forward(x), net(x)
    torch.testing.assert_close(ours, twins)
    slopes = (torch.autograd.grad(out.square().sum(), parameters) for out in (ours, twins))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(forward(x), net(x))


@pytest.mark.parametrize("shape", [(16, 16), (3, 16, 16)])
def test_convolutions_train_as_the_module_stands_up_to_rounding(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, rule = stream(0, "convolutions"), fedavg(2, 4, 0.1)
    x = torch.from_numpy(rng.standard_normal((10, *shape)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 10))
    ours, twin = (build_model("cnn", shape, 10, seed=0) for _ in range(2))
    rule(ours, x, y, stream(0, "batches"))
    monkeypatch.setattr("leakmeter.clients.update.fast_forward", lambda module: module)
    rule(twin, x, y, stream(0, "batches"))
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        assert a.is_contiguous()  # as it came
        assert torch.allclose(a, b, rtol=0, atol=3e-6)
