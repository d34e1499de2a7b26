"""The cohort trains as the plain rules do, whatever the model, the sizes, the chunks or threads."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors.rng import stream
from leakmeter.clients import cohort as cohorts
from leakmeter.clients.cohort import Chunk, Cohort, Dense, Functional, Plain, steps
from leakmeter.clients.update import Trained, UpdateRule, fedavg, fedprox, fedsgd, gd
from tests.helpers.numbers import num_examples
from tests.helpers.refusals import refuses

SIDE, CLASSES, EXAMPLES = 4, 3, 90
RAGGED = (13, 1, 40, 8, 16, 9, 16)  # whole batches of 8, a rest, fewer than one, and ties
RULES: dict[str, UpdateRule] = {
    "fedavg": fedavg(3, 8, 0.2),
    "fedavg-all": fedavg(2, 0, 0.2),
    "fedsgd": fedsgd(8, 0.2),
    "fedprox": fedprox(3, 8, 0.2, 0.7),
    "full": gd(3, 0.2),
}


class Centred(nn.Module):
    """Subtracts the batch's mean: a module that padding would spoil."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Gated(nn.Module):
    """Looks at its numbers, which `vmap` cannot."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else -x


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES))


def head(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 6), *layers, nn.Linear(6, CLASSES))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, CLASSES))


MODULES: dict[str, tuple[Callable[[], nn.Module], type]] = {
    "linear": (linear, Dense),
    "mlp": (lambda: head(nn.ReLU(), nn.Linear(6, 6), nn.ReLU()), Dense),
    "two linear in a row": (head, Dense),
    "no bias": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES, bias=False)),
        Dense,
    ),
    "tanh": (lambda: head(nn.Tanh()), Functional),
    "layer norm": (lambda: head(nn.LayerNorm(6)), Functional),
    "centred": (lambda: head(Centred()), Functional),
    "convolution": (convolution, Plain),
    "batch norm": (lambda: head(nn.BatchNorm1d(6, momentum=0.5).eval()), Plain),
    "gated": (lambda: head(Gated()), Plain),
}


def new(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Return a module whose parameters come from a stream."""
    module, rng = make(), stream(seed, "module")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.from_numpy(0.4 * rng.standard_normal(parameter.shape)))
    return module


def data() -> tuple[Tensor, Tensor]:
    rng = stream(0, "data")
    x = rng.standard_normal((EXAMPLES, 1, SIDE, SIDE)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(rng.integers(0, CLASSES, EXAMPLES))


def parts(sizes: tuple[int, ...] = RAGGED) -> list[np.ndarray]:
    return [stream(0, "part", i).permutation(EXAMPLES)[:size] for i, size in enumerate(sizes)]


def rngs(count: int = len(RAGGED)) -> list[np.random.Generator]:
    return [stream(0, "batches", i) for i in range(count)]


def flat(module: nn.Module) -> Tensor:
    return parameters_to_vector(module.parameters()).detach()


def by_loop(
    module: nn.Module, rule: UpdateRule, start: Tensor, records: list[np.ndarray]
) -> Tensor:
    """Return the updates of the plain rule, one client after the other."""
    x, y = data()
    updates = []
    for own, rng in zip(records, rngs(len(records)), strict=True):
        net = copy.deepcopy(module)
        vector_to_parameters(start.clone(), net.parameters())
        rule(net, x[own], y[own], rng)
        updates.append(flat(net) - start)
    return torch.stack(updates)


def every_pair() -> list[Any]:
    """Return each module with each rule; all rules are fast for one module of each engine."""
    fast = ("mlp", "tanh")
    return [
        pytest.param(
            *MODULES[module],
            rule,
            id=f"{module}-{name}",
            marks=() if module in fast or name == "fedavg" else pytest.mark.slow,
        )
        for module in MODULES
        for name, rule in RULES.items()
    ]


@pytest.mark.parametrize(("make", "engine", "rule"), every_pair())
def test_updates_are_the_plain_rules_for_one_model_and_for_several(
    make: Callable[[], nn.Module], engine: type, rule: UpdateRule
) -> None:
    module = new(make)
    before = copy.deepcopy(module.state_dict())
    cohort = Cohort(module, rule)
    starts = torch.stack([flat(new(make, seed)) for seed in range(2)])

    together = cohort.updates(starts, *data(), parts(), rngs())
    assert type(cohort._engine(*data())) is engine
    assert together.shape == (2, len(RAGGED), cohort.dim)
    assert together.dtype == torch.float32
    for start, found in zip(starts, together, strict=True):
        truth = by_loop(module, rule, start, parts())
        assert truth.abs().max() > 0.01
        assert (found - truth).abs().max() <= 1e-5
    alone = cohort.updates(starts[1].double().numpy(), *data(), parts(), rngs())
    assert (alone - together[1]).abs().max() <= 1e-6
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())


@settings(max_examples=num_examples(30), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=9),
    batch_size=st.integers(0, 12),
    epochs=st.integers(1, 3),
    mu=st.sampled_from([0.0, 0.5]),
)
def test_any_sizes_and_batches_agree_in_double_precision(
    sizes: list[int], batch_size: int, epochs: int, mu: float
) -> None:
    rule, records = fedprox(epochs, batch_size, 0.3, mu), parts(tuple(sizes))
    x, y = data()
    module = new(lambda: head(nn.ReLU())).double()
    found = Cohort(module, rule).updates(flat(module), x.double(), y, records, rngs(len(sizes)))
    for update, own, rng in zip(found, records, rngs(len(sizes)), strict=True):
        net = copy.deepcopy(module)
        rule(net, x[own].double(), y[own], rng)
        np.testing.assert_allclose(update, flat(net) - flat(module), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [linear, MODULES["tanh"][0], convolution])
def test_the_generators_end_where_the_plain_rule_leaves_them(make: Callable[[], nn.Module]) -> None:
    module, used, twins = new(make), rngs(), rngs()
    starts = flat(module).repeat(2, 1)
    Cohort(module, RULES["fedavg"]).updates(starts, *data(), parts(), used)
    x, y = data()
    for own, rng in zip(parts(), twins, strict=True):
        RULES["fedavg"](copy.deepcopy(module), x[own], y[own], rng)
    assert [rng.random() for rng in used] == [rng.random() for rng in twins]


@pytest.mark.parametrize("make", [linear, MODULES["mlp"][0], MODULES["tanh"][0], convolution])
def test_the_numbers_do_not_depend_on_threads(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohorts, "_CACHE", 2 * 8 * SIDE * SIDE * 4)  # two clients a chunk
    monkeypatch.setattr(cohorts, "_FEW", 2)
    module, before = new(make), torch.get_num_threads()
    found = []
    for threads in (1, 2, 5):
        cohort = Cohort(module, RULES["fedprox"], threads=threads)
        found.append(cohort.updates(flat(module), *data(), parts(), rngs()))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.get_num_threads() == before


class Counted:
    """An engine that does nothing but take notes."""

    def __init__(self) -> None:
        self.chunks: list[int] = []

    def clients_at_once(self, size: int) -> int:
        return 4

    def bytes_each(self, models: int, size: int) -> int:
        return 100 * models * size

    def train(self, start: Tensor, x: Tensor, y: Tensor, chunk: Chunk, out: Tensor) -> None:
        sizes = [len(own) for own in chunk.records]
        assert sizes == sorted(sizes, reverse=True)
        self.chunks.append(100 * len(start) * sizes[0] * len(chunk))
        out.zero_()


@pytest.mark.parametrize(
    ("memory", "threads", "workers"), [(4_000, 9, 1), (8_500, 9, 1), (10**6, 9, 3), (10**6, 2, 2)]
)
def test_chunks_and_workers_together_stay_within_the_memory(
    memory: int, threads: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, module, used = Counted(), new(linear), []
    monkeypatch.setattr(Cohort, "_engine", lambda *_: engine)
    plan = Cohort._chunks

    def noted(self: Cohort, *arguments: Any) -> Any:
        chunks, count = plan(self, *arguments)
        used.append(count)
        return chunks, count

    monkeypatch.setattr(Cohort, "_chunks", noted)
    records = parts((40, 13, 1, 8, 16, 9, 16, 2, 3))
    cohort = Cohort(module, RULES["fedavg"], memory=memory, threads=threads)
    cohort.updates(flat(module), *data(), records, rngs(9))
    assert used[0] * max(engine.chunks) <= memory
    if memory == 10**6:
        assert used == [workers]
        assert len(engine.chunks) == 3


@pytest.mark.parametrize("name", ["linear", "mlp", "tanh"])
@pytest.mark.parametrize("rule", [RULES["fedavg-all"], RULES["fedprox"]], ids=["all", "fedprox"])
def test_engines_allocate_no_more_than_they_say(name: str, rule: UpdateRule) -> None:
    make, _ = MODULES[name]
    module, size, clients = new(make), 40, 12
    engine: Any = Cohort(module, rule)._engine(*data())
    chunk = Chunk(parts((size,) * clients), rngs(clients))
    starts = flat(module).repeat(2, 1)

    def train() -> Tensor:
        out = starts.new_empty((2, clients, starts.shape[1]))
        engine.train(starts, *data(), chunk, out)
        return out.double()

    held = peak_bytes(train)
    allowed = clients * engine.bytes_each(2, size)
    assert allowed / 5 < held <= allowed


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most that torch held at a time, beyond what it held before."""
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        call()
    held = peak = 0
    for event in run.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert peak > 0
    return peak


@pytest.mark.parametrize("rule", [RULES["fedprox"], RULES["full"]], ids=["fedprox", "full"])
@pytest.mark.parametrize("name", ["linear", "mlp", "no bias", "tanh", "convolution"])
def test_the_coordinates_left_out_follow_from_the_free_ones(name: str, rule: UpdateRule) -> None:
    module = new(MODULES[name][0])
    cohort = Cohort(module, rule)
    updates = cohort.updates(flat(module), *data(), parts(), rngs())
    assert cohort.free is not None
    rebuilt = torch.full_like(updates, torch.nan)
    rebuilt[:, cohort.free] = updates[:, cohort.free]
    last = module[-1]  # type: ignore[index]
    biases = last.out_features if last.bias is not None else 0
    for width, end in ((1, cohort.dim), (last.in_features, cohort.dim - biases)):
        if width > 1 or biases:
            rows = rebuilt[:, end - width * CLASSES : end].view(-1, CLASSES, width)
            assert rows[:, -1].isnan().all()
            rows[:, -1] = -rows[:, :-1].sum(dim=1)
    np.testing.assert_allclose(rebuilt, updates, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("features", "classes", "free"), [(784, 10, 7065), (104, 2, 105)])
def test_one_class_is_redundant_after_a_linear_layer_that_is_there_once(
    features: int, classes: int, free: int
) -> None:
    cohort = Cohort(nn.Linear(features, classes), RULES["fedsgd"])
    assert cohort.dim == (features + 1) * classes
    assert cohort.free is not None
    assert len(cohort.free) == len(set(cohort.free)) == free
    tied = nn.Linear(4, 4)
    for other in (nn.Sequential(tied, nn.Tanh()), nn.Sequential(tied, nn.ReLU(), tied)):
        assert Cohort(other, RULES["fedavg"]).free is None


def own_rule(model: nn.Module, _: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
    """Do what no rule of ours does."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(float(rng.random()) * len(y))
    return Trained(len(y), 0.0)


def test_weights_are_what_the_rules_report() -> None:
    x, y = data()
    for rule in RULES.values():
        done = [rule(new(linear), x[own], y[own], stream(0, "w")).num_examples for own in parts()]
        assert list(Cohort(new(linear), rule).weights(parts())) == done


def test_foreign_rules_and_few_clients_for_vmap_are_trained_by_the_rule_itself() -> None:
    module = new(linear)
    cohort = Cohort(module, own_rule)
    found = cohort.updates(flat(module), *data(), parts(), rngs())
    assert torch.equal(found, by_loop(module, own_rule, flat(module), parts()))
    assert cohort.free is None
    assert list(cohort.weights(parts())) == list(RAGGED)
    few, rule = new(MODULES["tanh"][0]), RULES["fedavg"]
    found = Cohort(few, rule).updates(flat(few), *data(), parts((20,)), rngs(1))
    assert torch.equal(found, by_loop(few, rule, flat(few), parts((20,))))
    nobody = Cohort(few, rule).updates(flat(few)[None], *data(), [], [])
    assert nobody.shape == (1, 0, len(flat(few)))


@pytest.mark.parametrize("make", [linear, MODULES["tanh"][0], convolution])
def test_read_only_arrays_will_do_and_a_copy_made_by_pickle_is_as_good(
    make: Callable[[], nn.Module],
) -> None:
    module = new(make)
    start, records = flat(module).numpy().copy(), parts()
    for array in (start, *records):
        array.flags.writeable = False
    cohort = Cohort(module, RULES["fedavg"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = cohort.updates(start, *data(), records, rngs())
    sent = pickle.loads(pickle.dumps(cohort))
    assert torch.equal(found, sent.updates(start, *data(), records, rngs()))


@pytest.mark.parametrize("make", [linear, MODULES["tanh"][0]])
def test_frozen_parameters_are_refused_as_the_plain_rule_refuses_them(
    make: Callable[[], nn.Module],
) -> None:
    module = new(make)
    next(module.parameters()).requires_grad_(False)
    with pytest.raises(RuntimeError, match="does not require grad"):
        Cohort(module, RULES["fedavg"]).updates(flat(module), *data(), parts(), rngs())


def test_hooks_and_a_layer_that_is_there_twice_are_not_overlooked() -> None:
    hooked, tied = new(linear), nn.Linear(SIDE * SIDE, SIDE * SIDE)
    hooked[1].register_forward_hook(lambda *a: 2 * a[2])  # type: ignore[index]
    twice = new(lambda: nn.Sequential(nn.Flatten(), tied, nn.ReLU(), tied))
    for module in (hooked, twice):
        found = Cohort(module, RULES["fedavg"]).updates(flat(module), *data(), parts(), rngs())
        truth = by_loop(module, RULES["fedavg"], flat(module), parts())
        assert (found - truth).abs().max() <= 1e-5


def test_labels_that_cross_entropy_skips_are_skipped() -> None:
    module, (x, y) = new(linear), data()
    y[::5] = -100
    records = [own for own in parts() if (y[own] >= 0).all() or len(own) > 8]
    found = Cohort(module, gd(2, 0.1)).updates(flat(module), x, y, records, rngs(len(records)))
    net = copy.deepcopy(module)
    gd(2, 0.1)(net, x[records[0]], y[records[0]], stream(0, "none"))
    assert (found[0] - (flat(net) - flat(module))).abs().max() <= 1e-5


def test_steps_pad_with_the_clients_own_records() -> None:
    chunk = Chunk([np.arange(10, 17), np.arange(20, 23)], rngs(2))
    seen = list(steps(fedavg(1, 4, 0.1), chunk))
    assert [index.shape for index, _ in seen] == [(2, 4), (1, 3)]
    assert [list(counts) for _, counts in seen] == [[4, 3], [3]]
    assert set(seen[0][0][1]) == {20, 21, 22}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": torch.zeros(7)}, r"start must have shape \(51,\) or \(models, 51\), got \(7,\)"),
        ({"rngs": rngs(2)}, "rngs must be 7, one per client, got 2"),
        ({"rngs": [stream(0, "a")] * 7}, "a different generator for each client"),
        (
            {"records": [*parts()[:-1], np.zeros(0, np.int64)]},
            r"records\[6\] must contain at least",
        ),
        ({"y": torch.full((EXAMPLES,), CLASSES)}, "out of bounds"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    x, y = data()
    good = {"start": torch.zeros(51), "x": x, "y": y, "records": parts(), "rngs": rngs()}
    with pytest.raises((ValueError, IndexError), match=message):
        Cohort(new(linear), RULES["fedavg"]).updates(**(good | change))


@pytest.mark.parametrize(("name", "value"), [("memory", 0), ("threads", 0), ("memory", 1000)])
def test_bad_settings_and_clients_too_large_for_the_memory_are_named(name: str, value: int) -> None:
    with refuses(name):
        cohort = Cohort(new(linear), RULES["full"], **{name: value})  # type: ignore[arg-type]
        cohort.updates(torch.zeros(51), *data(), parts(), rngs())
