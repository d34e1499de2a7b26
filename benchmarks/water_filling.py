"""How fast is water-filling noise through the Gram matrix, for 1,200 examples of MNIST?

Against the eigenvectors of the dim × dim covariance, which the paper (arXiv:2405.04551, section 5)
calls for, and against its split of the coordinates into ten blocks with one sampling for all. That
split leaves directions with too little noise: λ_min/σ² is the smallest eigenvalue of the whole
covariance over the floor. All start from known gradients; the peers get `numpy.linalg.eigh`, where
the paper says SVD, which takes longer. At dim = 89,610 (the MLP) the peer is Opacus, which stores
every gradient; ours are factors, and their making is counted.

Processor time, medians, one thread of two shared cores, 2026-11-16:

    dim 7,850    Gram matrix                       0.25 s, λ_min/σ² 1.000, 66 MB beside libraries
                 ten blocks                        1.1 s (4.5x), λ_min/σ² 0.001
                 dim × dim                         100 s (307x; 371x in another run)
    dim 89,610   Gram matrix of 1,200 gradients    0.078 s; with a draw of the noise 0.33 s
                 Opacus 1.6, gradients alone       1.05 s (13x), and their Gram matrix 3.1 s (40x)
    gradients    linear                            116x a loop of single backward passes
                 MLP                               197x
                 convolutions, by vmap             11x

Needs MNIST in the folder that LEAKMETER_DATA names, and `opacus` for its rows. `--full` adds
dim × dim, which takes minutes and 2.5 GB.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from auditors.rng import stream
from clients.gradient_matrix import Floats, Gradients
from clients.per_example import per_example_gradients
from clients.water_filling import WaterFilling
from fl_app.data import load
from fl_app.model import build

COUNT, BATCH, CLIP, FLOOR, REPETITIONS, BLOCKS = 1200, 32, 10.0, 1e-3, 5, 10
SHAPE = (1, 28, 28)


def seconds(work: Callable[[], object], repetitions: int = REPETITIONS) -> list[float]:
    """Return processor times: others share the cores."""
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return times


def show(name: str, times: Sequence[float], than: Sequence[float] | None = None) -> None:
    """Print the median and, with a peer, how many times longer that takes."""
    middle = statistics.median(times)
    ratio = f"  {statistics.median(than) / middle:8.1f}x faster" if than else ""
    print(f"{name:58} {middle:8.3f} s ({min(times):.3f} to {max(times):.3f}){ratio}", flush=True)


def memory(field: str) -> float:
    """Return VmRSS (now) or VmHWM (most so far) of this process in MB; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def peak_memory(x: NDArray[np.float32], y: NDArray[np.int64]) -> tuple[float, float]:
    """Return the memory of a new process before it takes one draw, and the most during it."""
    linear = build("linear", SHAPE, 10, 0)
    before = memory("VmRSS")
    gradients = per_example_gradients(linear, torch.from_numpy(x), torch.from_numpy(y), CLIP)
    WaterFilling(FLOOR).draw(gradients, BATCH, None)
    return before, memory("VmHWM")


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
        return np.sqrt(FLOOR) * v - gradients.combined(inner)

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
        from opacus.grad_sample import GradSampleModule
    except ImportError:
        return None
    wrapped = GradSampleModule(model, loss_reduction="sum")

    def work() -> Floats:
        wrapped.zero_grad()
        cross_entropy(wrapped(x), y, reduction="sum").backward()
        parts = [p.grad_sample.reshape(len(y), -1) for p in wrapped.parameters()]
        rows = torch.cat(parts, dim=1)
        rows *= (CLIP / rows.norm(dim=1).clamp(min=CLIP))[:, None]
        return rows.numpy()

    return work


def main(is_full: bool) -> None:
    """Print all rows."""
    data = load("mnist")
    x = torch.from_numpy(np.array(data.train_x[:COUNT], dtype=np.float32)).reshape(-1, *SHAPE)
    y = torch.from_numpy(np.array(data.train_y[:COUNT], dtype=np.int64))
    del data
    filling = WaterFilling(FLOOR)
    linear, mlp = (build(name, SHAPE, 10, 0) for name in ("linear", "mlp"))

    gradients = per_example_gradients(linear, x, y, CLIP)
    ours = seconds(lambda: filling.draw(gradients, BATCH, stream(0, "draw")))
    dense = gradients.columns(0, gradients.dim)
    blocks = seconds(lambda: naive(dense, stream(0, "draw"), BLOCKS), 3)
    show("dim 7,850: Gram matrix", ours)
    show("dim 7,850: ten blocks", blocks)
    show("    ratio to ours", ours, blocks)
    print(f"    λ_min/σ²: ours {our_ratio(gradients):.6f}, ten blocks {block_ratio(dense):.2g}")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        before, most = pool.submit(peak_memory, x.numpy(), y.numpy()).result()
    print(f"    memory of a process: {before:.0f} MB with its libraries, {most:.0f} MB with a draw")

    factored = per_example_gradients(mlp, x, y, CLIP)
    ours = seconds(lambda: per_example_gradients(mlp, x, y, CLIP).gram())
    whole = seconds(lambda: filling.draw(per_example_gradients(mlp, x, y, CLIP), BATCH, None), 3)
    show(f"dim {factored.dim:,}: Gram matrix from factors", ours)
    show("    and a draw of the noise", whole)
    peer = opacus_gradients(build("mlp", SHAPE, 10, 0), x, y)
    if peer is not None:
        stored = seconds(peer, 3)
        show("    opacus: gradients alone", stored)
        show("    ratio to ours", ours, stored)
        with_gram = seconds(lambda: (rows := peer()) @ rows.T, 3)
        show("    opacus: gradients and their Gram matrix", with_gram)
        show("    ratio to ours", ours, with_gram)

    torch.manual_seed(0)
    for name, model in {"linear": linear, "mlp": mlp, "convolution": convolution()}.items():
        mine = seconds(lambda m=model: per_example_gradients(m, x, y, CLIP), 3)  # type: ignore[misc]
        loop = seconds(lambda m=model: looped(m, x, y), 1)  # type: ignore[misc]
        show(f"{name}: gradients of {COUNT} examples", mine)
        show("    against a loop", mine, loop)

    if is_full:
        ours = seconds(lambda: filling.draw(gradients, BATCH, stream(0, "draw")))
        show("dim 7,850: against dim × dim", ours, seconds(lambda: naive(dense, stream(0, "d")), 1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main("--full" in sys.argv[1:])
