"""How fast is water-filling noise through the Gram matrix, for 1,200 examples of MNIST?

Against the eigenvectors of the dim × dim covariance, which the paper (arXiv:2405.04551, section 5)
calls for, and against its split of the coordinates into ten blocks with one sampling for all. That
split leaves directions with too little noise: λ_min/σ² is the smallest eigenvalue of the whole
covariance over the floor. All start from known gradients; the peers get `numpy.linalg.eigh`, where
the paper says SVD, which takes longer. At dim = 89,610 (the MLP) the peer is Opacus, which stores
every gradient; ours are factors, and their making is counted.

Needs MNIST in the folder that LEAKMETER_DATA names, and `opacus` for its rows (`pip install -e
".[bench]"`). dim × dim takes minutes and 2.5 GB, so it has one repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import Row, Scale, compare, timer
from benchmarks.memory import grown
from benchmarks.mnist import SHAPE, digits
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats
from leakmeter.clients.protection.gradients import Gradients, per_example_gradients
from leakmeter.clients.protection.record_rule import WaterFilling
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.task import build_model

COUNT, BATCH, CLIP, FLOOR, BLOCKS = 1200, 32, 10.0, 1e-3, 10
SMALL = (1, 8, 8)  # a corner of an image, for the quick scale
OPACUS = "Opacus"


def one_draw(count: int) -> None:
    """Take one draw from as many examples of noise, for its memory."""
    x = torch.rand((count, *SHAPE), generator=torch.Generator().manual_seed(0))
    y = torch.arange(count) % 10
    gradients = per_example_gradients(build_model("linear", SHAPE, 10, 0), x, y, CLIP)
    WaterFilling(FLOOR).draw(gradients, BATCH, None)


def naive(gradients: Floats, rng: np.random.Generator, blocks: int = 1) -> Floats:
    """Return a draw by the covariance of each block and its eigenvectors, sampled once for all."""
    scale = BATCH * len(gradients)
    weights = 1 / len(gradients) + rng.standard_normal(len(gradients)) / np.sqrt(scale)
    noise = []
    for part in np.array_split(gradients, blocks, axis=1):
        values, vectors = np.linalg.eigh(part.T @ part / scale)
        root = np.sqrt(np.maximum(FLOOR - values, 0.0))
        noise.append(vectors @ (root * rng.standard_normal(len(values))))
    return np.asarray(weights @ gradients + np.concatenate(noise))


def smallest_ratio(times: Callable[[Floats], Floats], dim: int) -> float:
    """Return the smallest eigenvalue of a covariance over the floor, by Lanczos' iteration."""
    start = stream(0, "lanczos").standard_normal(dim)
    whole = LinearOperator((dim, dim), matvec=times, dtype=np.float64)
    top = float(eigsh(whole, 1, which="LA", v0=start, return_eigenvectors=False)[0])
    flipped = LinearOperator((dim, dim), matvec=lambda v: top * v.ravel() - times(v))
    found = eigsh(flipped, 1, which="LA", v0=start, ncv=200, tol=1e-7, return_eigenvectors=False)
    return (top - float(found[0])) / FLOOR


def block_ratio(gradients: Floats) -> float:
    """Return λ_min over the floor when blocks are filled but share their sampling."""
    scale = BATCH * len(gradients)
    parts = np.array_split(gradients, BLOCKS, axis=1)
    pairs = [np.linalg.eigh(part.T @ part / scale) for part in parts]
    cuts = np.cumsum([part.shape[1] for part in parts])[:-1]

    def times(v: Floats) -> Floats:
        split = zip(pairs, np.split(v.ravel(), cuts), strict=True)
        added = [u @ (np.maximum(FLOOR - mu, 0.0) * (u.T @ p)) for (mu, u), p in split]
        return np.asarray(gradients.T @ (gradients @ v.ravel()) / scale + np.concatenate(added))

    return smallest_ratio(times, gradients.shape[1])


def our_ratio(gradients: Gradients) -> float:
    """Return λ_min over the floor of ours: sampling, and the square of z ↦ σz - Gᵀ c(K) Gz/(BD)."""
    scale = BATCH * gradients.count
    values, vectors = np.linalg.eigh(gradients.gram() / scale)
    factor = WaterFilling(FLOOR)._factor(values) / scale

    def root(v: Floats) -> Floats:
        inner = vectors @ (factor * (vectors.T @ gradients.products(v)))
        return np.asarray(np.sqrt(FLOOR) * v - gradients.combined(inner))

    def times(v: Floats) -> Floats:
        sampled = gradients.combined(gradients.products(v.ravel())) / scale
        return np.asarray(sampled + root(root(v.ravel())))

    return smallest_ratio(times, gradients.dim)


def looped(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return gradients by one backward pass each."""
    rows = []
    for one, label in zip(x, y, strict=True):
        loss = cross_entropy(model(one[None]), label[None])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(rows)


def convolution() -> nn.Module:
    """Return a small convolutional network of 8,774 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 20), nn.ReLU(), nn.Linear(20, 10),
    )  # fmt: skip


def opacus_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Floats] | None:
    """Return the peer that stores every gradient, or None if it is not installed."""
    try:
        from opacus.grad_sample import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
            GradSampleModule,
        )
    except ImportError:
        return None
    wrapped = GradSampleModule(model, loss_reduction="sum")

    def work() -> Floats:
        wrapped.zero_grad()
        cross_entropy(wrapped(x), y, reduction="sum").backward()  # type: ignore[no-untyped-call]
        parts = [p.grad_sample.reshape(len(y), -1) for p in wrapped.parameters()]
        rows = torch.cat(parts, dim=1)
        rows *= (CLIP / rows.norm(dim=1).clamp(min=CLIP))[:, None]
        return rows.numpy()

    return work


def measure(scale: Scale) -> Iterator[Row]:
    """Yield all rows; the quick scale takes corners of a few images."""
    count = 40 if scale == "quick" else COUNT
    try:
        x, y = digits(count)
    except ConfigError as error:
        yield Row("digits of MNIST", [], note=f"not measured: {error}")
        return
    side = SMALL[-1] if scale == "quick" else SHAPE[-1]
    part = x[:, :, :side, :side].contiguous()
    yield from drawn(part, y)
    most = grown(one_draw, 2, count)
    note = "beside the libraries"
    yield Row(f"memory of a draw, {count:,} examples", most, unit="MB", note=note)
    yield from factored(part, y)
    torch.manual_seed(0)
    models = {name: build_model(name, tuple(part.shape[1:]), 10, 0) for name in ("linear", "mlp")}
    for name, model in models.items():
        yield looping(name, model, part, y)
    yield looping("convolutions", convolution(), x, y)


def drawn(x: Tensor, y: Tensor) -> Iterator[Row]:
    """Yield a draw beside the covariance of ten blocks, and beside that of the whole."""
    gradients = per_example_gradients(build_model("linear", tuple(x.shape[1:]), 10, 0), x, y, CLIP)
    dense = gradients.columns(0, gradients.dim)
    case = f"a draw, {len(y):,} examples, d = {gradients.dim:,}"

    def ours() -> None:
        WaterFilling(FLOOR).draw(gradients, BATCH, stream(0, "draw"))

    low = our_ratio(gradients), block_ratio(dense)
    yield compare(
        case,
        timer(ours),
        timer(lambda: naive(dense, stream(0, "draw"), BLOCKS)),
        peer="ten blocks",
        target=4.0,
        note="λ_min/σ²: ours {:.6f}, ten blocks {:.2g}, which is unsound".format(*low),
    )
    yield compare(
        case,
        timer(ours),
        timer(lambda: naive(dense, stream(0, "draw"))),
        peer="dim × dim",
        repetitions=1,
        warm_up=False,
        target=150.0,
    )


def factored(x: Tensor, y: Tensor) -> Iterator[Row]:
    """Yield the Gram matrix of an MLP's gradients from factors, beside Opacus."""
    shape = tuple(x.shape[1:])
    model = build_model("mlp", shape, 10, 0)
    dim = per_example_gradients(model, x, y, CLIP).dim
    case = f"Gram matrix of {len(y):,} gradients, d = {dim:,}"

    def draw() -> None:
        WaterFilling(FLOOR).draw(per_example_gradients(model, x, y, CLIP), BATCH, stream(0, "draw"))

    peer = opacus_gradients(build_model("mlp", shape, 10, 0), x, y)
    if peer is None:
        yield Row(
            case, [], note='not measured: the peer is not installed: pip install -e ".[bench]"'
        )
        return
    ours = timer(lambda: per_example_gradients(model, x, y, CLIP).gram())
    yield compare(case, ours, timer(peer), peer=f"{OPACUS}, its gradients alone", target=8.0)
    stored = timer(lambda: (rows := peer()) @ rows.T)
    yield compare(case, ours, stored, peer=f"{OPACUS}, gradients and their Gram matrix")
    yield compare(
        f"the same and a draw, d = {dim:,}", timer(draw), stored, peer=f"{OPACUS}, without a draw"
    )


def looping(name: str, model: nn.Module, x: Tensor, y: Tensor) -> Row:
    """Return the row of gradients beside a loop."""
    return compare(
        f"gradients of {len(y):,} examples, {name}",
        timer(lambda: per_example_gradients(model, x, y, CLIP)),
        timer(lambda: looped(model, x, y)),
        peer="a loop of single backward passes",
        target=5.0,
    )
