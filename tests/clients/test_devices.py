"""Clients train where their model is: on a stand-in device, bit for bit as on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leakmeter.auditors.rng import stream
from leakmeter.clients import update
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.protection.gradients import per_example_gradients
from leakmeter.clients.protection.record_rule import GaussianSampling, Isotropic, WaterFilling
from leakmeter.clients.sampler import CohortSampler, Kept
from leakmeter.clients.update import Trained, UpdateRule, fedavg, fedprox, gd
from tests.helpers.stand_in import DEVICE, MixedError, StandIn

SIDE, CLASSES, EXAMPLES = 8, 3, 40
RAGGED = (9, 4, 16, 4, 7)


def head(*layers: nn.Module, width: int = SIDE * SIDE) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 6), *layers, nn.Linear(6, CLASSES))


def convolutions() -> nn.Module:
    grey = nn.Unflatten(1, (1, SIDE))
    return nn.Sequential(grey, nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), *head(width=18))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES)),
    "slp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES), nn.ReLU()),
    "mlp": lambda: head(nn.ReLU()),
    "tanh": lambda: head(nn.Tanh()),
    "cnn": convolutions,
    "batch norm": lambda: head(nn.BatchNorm1d(6)),
}
STEPS: dict[str, UpdateRule] = {
    "fedavg": fedavg(2, 8, 0.2),
    "fedprox": fedprox(2, 8, 0.2, 0.7),
    "gd": gd(2, 0.2),
}
RECORDS = {
    "minibatch": GaussianSampling(0.2, 1.0, 4, "minibatch", Isotropic(0.1), simulated=True),
    "full": GaussianSampling(0.2, 1.0, 0, "full", Isotropic(0.1), simulated=True),
    "filled": GaussianSampling(0.2, 1.0, 4, "gaussian", WaterFilling(0.01), 2, simulated=True),
}


def model(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return MODELS[name]()


def examples() -> tuple[Tensor, Tensor]:
    rng = stream(0, "examples")
    x = torch.from_numpy(rng.standard_normal((EXAMPLES, SIDE, SIDE), dtype=np.float32))
    return x, torch.from_numpy(rng.integers(CLASSES, size=EXAMPLES))


def trained(net: nn.Module, rule: UpdateRule, *data: Tensor) -> tuple[dict[str, Tensor], Trained]:
    told = rule(net, *data, stream(0, "batches"))
    return {name: value.cpu() for name, value in net.state_dict().items()}, told


def assert_trains_alike(name: str, rule: UpdateRule, device: StandIn) -> None:
    here, told = trained(model(name), rule, *examples())
    there, also_told = trained(model(name).to(DEVICE), rule, *(d.to(DEVICE) for d in examples()))
    assert also_told == told
    assert not torch.equal(*(net[next(iter(net))] for net in (here, model(name).state_dict())))
    for key, value in here.items():
        assert torch.equal(there[key], value), key
    assert device.operations["_log_softmax"] > 0


@pytest.mark.parametrize("rule", ["fedprox", "gd"])
@pytest.mark.parametrize("name", MODELS)
def test_a_client_trains_there_as_on_the_cpu(name: str, rule: str, device: StandIn) -> None:
    assert_trains_alike(name, STEPS[rule], device)


@pytest.mark.parametrize("rule", RECORDS)
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_noise_for_records_is_the_same_there(name: str, rule: str, device: StandIn) -> None:
    assert_trains_alike(name, RECORDS[rule], device)


@pytest.mark.parametrize("clip_norm", [0.3, np.inf])
@pytest.mark.parametrize("layer", [nn.ReLU(), nn.LayerNorm(6)], ids=["factors", "vmap"])
@pytest.mark.usefixtures("device")
def test_gradients_of_single_examples_are_the_same_there(layer: nn.Module, clip_norm) -> None:
    net, (x, y) = head(layer), examples()
    x[3] = torch.inf  # which counts as zero
    here = per_example_gradients(net, x, y, clip_norm)
    there = per_example_gradients(
        copy.deepcopy(net).to(DEVICE), x.to(DEVICE), y.to(DEVICE), clip_norm
    )
    assert there.loss == pytest.approx(here.loss, nan_ok=True)
    np.testing.assert_array_equal(there.columns(0, there.dim), here.columns(0, here.dim))


@pytest.mark.usefixtures("device")
def test_convolutions_keep_their_order_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_HAS_ONEDNN", True)
    net = model("cnn").to(DEVICE)
    assert update.fast_forward(net) is net
    assert not isinstance(update.fast_forward(model("cnn")), nn.Module)


class Once:
    """A rule that is no plain steps, so that no engine but the plain one takes it."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: Any) -> Trained:
        return STEPS["fedavg"](model, x, y, rng)


def updates(name: str, rule: UpdateRule, place: Any, models: int, project: Any) -> Tensor:
    rng, net = stream(0, "cohort"), model(name)
    cohort = Cohort(net.to(place), rule)
    start = rng.standard_normal((models, cohort.dim)).astype(np.float32)
    records = [rng.permutation(EXAMPLES)[:size] for size in RAGGED]
    along = None if project is None else torch.from_numpy(rng.standard_normal((cohort.dim, 2)))
    rngs = [stream(0, "client", i) for i in range(len(records))]
    return cohort.updates(start, *examples(), records, rngs, along)


@pytest.mark.parametrize(("models", "project"), [(1, None), (3, "double")])
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param("linear", fedavg(2, 3, 0.2), id="dense-linear"),
        pytest.param("mlp", fedprox(2, 3, 0.2, 0.7), id="dense-mlp"),
        pytest.param("tanh", fedavg(2, 3, 0.2), id="functional"),
        pytest.param("batch norm", fedavg(1, 0, 0.2), id="plain"),
        pytest.param("linear", Once(), id="plain-rule"),
    ],
)
def test_every_engine_of_the_cohort_trains_there_as_on_the_cpu(
    name: str, rule: UpdateRule, models: int, project: str | None, device: StandIn
) -> None:
    here = updates(name, rule, "cpu", models, project)
    there = updates(name, rule, DEVICE, models, project)
    # Projections are in double precision, which not every device has, so on the CPU. Their last
    # bits depend on how many clients train together, which is another number there.
    assert there.device == (DEVICE if project is None else torch.device("cpu"))
    tolerance = 0.0 if project is None else 1e-12
    torch.testing.assert_close(there.cpu(), here, rtol=tolerance, atol=tolerance)
    assert device.operations["sub.out"] + device.operations["cat"] > 0


def drawn(place: Any, clip_norm: float | None) -> Iterator[NDArray[Any]]:
    """Yield all kinds of numbers that a sampler gives."""
    cohort = Cohort(model("mlp").to(place), fedavg(1, 3, 0.2))
    parts = np.split(np.arange(EXAMPLES), 5)
    sampler = CohortSampler(cohort, examples(), Kept(tuple(parts)), seed=0, clip_norm=clip_norm)
    assert sampler.data.device == torch.device(place)
    start, matrix = np.zeros(cohort.dim, np.float32), np.ones((cohort.dim, 2))
    yield from sampler.sample(start, [0, 3], 4, ("a",))
    yield from sampler.sample(start, [0, 3], 4, ("a",), project=matrix)
    yield from sampler.sums(start, [0, 3], 4, ("a",))
    yield sampler.moments(start, [1, 2], 6, ("b",)).scatter


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.usefixtures("device")
def test_a_sampler_draws_there_as_on_the_cpu(clip_norm: float | None) -> None:
    for here, there in zip(drawn("cpu", clip_norm), drawn(DEVICE, clip_norm), strict=True):
        np.testing.assert_array_equal(there, here)


@pytest.mark.usefixtures("device")
def test_elsewhere_all_clients_that_fit_the_memory_train_together() -> None:
    records = [np.arange(EXAMPLES)] * 400
    rngs = [stream(0, i) for i in range(400)]
    count = []
    for place in ("cpu", DEVICE):
        cohort = Cohort(model("linear").to(place), gd(1, 0.1))
        engine = cohort._engine(*examples())
        chunks, _ = cohort._chunks(engine, 1, np.full(400, EXAMPLES))
        count.append(len(chunks))
        found = cohort.updates(np.zeros(cohort.dim), *examples(), records, rngs)
        assert torch.equal(found[0].cpu(), found[-1].cpu())
    assert count[0] > count[1] == 1


# A tensor that is left behind is found.


def behind(model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
    """A rule that draws noise where nobody asked it to."""
    noise = torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))
    return STEPS["fedavg"](model, x + noise, y, rng)


@pytest.mark.usefixtures("device")
def test_a_rule_that_leaves_a_tensor_behind_is_found() -> None:
    x, y = examples()
    behind(model("mlp"), x, y, stream(0))
    with pytest.raises(MixedError, match=r"aten::add\.Tensor got tensors of two devices"):
        behind(model("mlp").to(DEVICE), x.to(DEVICE), y.to(DEVICE), stream(0))
    with pytest.raises(MixedError):
        updates("mlp", behind, DEVICE, 1, None)


@pytest.mark.parametrize("name", ["linear", "tanh", "cnn"])
@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.usefixtures("device")
def test_inputs_labels_or_a_model_left_behind_are_found(name: str, left: int) -> None:
    places: list[Any] = [DEVICE] * 3
    places[left] = "cpu"
    x, y = examples()
    with pytest.raises(MixedError):
        fedavg(1, 3, 0.1)(model(name).to(places[0]), x.to(places[1]), y.to(places[2]), stream(0))
