"""Update rules on clipped gradients of single examples, with sampling and noise.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Assumptions 1 and 2, Table 1 and section 5; Gaussian sampling weights
are those of Wu et al. 2020, On the Noisy Gradient Descent that Generalizes as SGD
(arXiv:1906.07405). What each combination guarantees is in `strategies.accounting.rdp`.

Water filling adds Gaussian noise only where the sampling of gradients has too little. With Gaussian
sampling a client's gradient estimate has the covariance Σ = GᵀG/(BD). The noise has the covariance
h(Σ) - Σ, where h raises every eigenvalue below the floor σ² to it. Ours differs:

1. No matrix of size dim × dim is formed, and the draw is exact: the eigenvectors of Σ with positive
   eigenvalue are those of the Gram matrix K = GGᵀ/(BD), of size examples × examples.
2. The paper splits the coordinates into blocks and floors each, but samples once for all of them,
   which leaves correlations between blocks and the smallest eigenvalue of the sum far below σ².
   Here each block has its own sampling weights, so the blocks are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import SystemRandom
from typing import Literal, get_args

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor, nn

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.noise import gaussian
from leakmeter.auditors.records.game import CovarianceSpectrum
from leakmeter.auditors.values import Floats, require
from leakmeter.clients.protection.gradients import Gradients, per_example_gradients
from leakmeter.clients.update import Trained

Sampling = Literal["gaussian", "minibatch", "full"]


@dataclass(frozen=True)
class WaterFilling:
    """Gaussian sampling of gradients whose covariance is then raised to a floor.

    Memory grows with the square of the number of examples, time with its cube.

    Attributes:
        sigma2: The floor σ²: least variance of the estimate in any direction, in the units of a
            squared gradient.
        blocks: Blocks of equal length into which the coordinates are split. Each is sampled and
            filled independently of the others; 1 adds the least noise.
    """

    sigma2: float
    blocks: int = 1

    def __post_init__(self) -> None:
        require("(0, inf)", sigma2=self.sigma2)
        require("at least 1", blocks=self.blocks)

    def draw(
        self, gradients: Gradients, batch_size: int, rng: np.random.Generator | None
    ) -> tuple[Floats, tuple[CovarianceSpectrum, ...]]:
        """Return a draw of N(mean gradient, h(Σ)), Σ = GᵀG / (batch_size · count), (dim,).

        Also the sampling covariance of each block as a spectrum, with what its floor added.

        Args:
            gradients: Clipped gradients of all examples.
            batch_size: B, the size of the minibatch whose sampling noise this one resembles.
            rng: Source of all randomness; None takes the operating system's source.
        """
        require("at least 1", batch_size=batch_size)
        drawn = [self._draw_block(part, batch_size, rng) for part in self.parts(gradients)]
        whole = np.concatenate([gradient for gradient, _ in drawn])
        return whole, tuple(spectrum for _, spectrum in drawn)

    def parts(self, gradients: Gradients) -> Iterator[Gradients]:
        """Yield the gradients of each block."""
        if self.blocks == 1:
            yield gradients
            return
        require(f"[1, {gradients.dim}]", blocks=self.blocks)
        cuts = np.linspace(0, gradients.dim, self.blocks + 1).astype(int)
        for start, stop in pairwise(cuts):
            yield Gradients.of(gradients.columns(int(start), int(stop)))

    def _draw_block(
        self, gradients: Gradients, batch_size: int, rng: np.random.Generator | None
    ) -> tuple[Floats, CovarianceSpectrum]:
        """Return a draw of one block, (block dim,), and its spectrum.

        The noise f(Σ) z is σz - Gᵀ c(K) Gz/(BD): for any function, Gᵀ c(GGᵀ) G = c(GᵀG) GᵀG, so
        only the (count, count) matrix K has to be diagonalised. Sampling adds Gᵀ times its weights,
        and both products with Gᵀ are done at once.
        """
        weights = sampling_weights(gradients.count, batch_size, rng)  # (count,)
        z = gaussian(gradients.dim, 1.0, rng)  # (dim,)
        scale = batch_size * gradients.count
        sigma = math.sqrt(self.sigma2)
        matrix = gradients.gram()
        matrix /= scale  # in place: memory that is new costs as much as a pass over it
        eigenvalues, moved = function_times(matrix, self._factor, gradients.products(z))
        weights -= moved / scale  # moved is c(K) Gz, (count,)
        gradient = gradients.combined(weights) + sigma * z
        return gradient, CovarianceSpectrum.of_eigenvalues(eigenvalues, gradients.dim, self.sigma2)

    def _factor(self, eigenvalues: Floats) -> Floats:
        """Return c for each eigenvalue μ of K, with which the noise is σz - Gᵀ c(K) Gz/(BD).

        The noise is f(Σ) z with f(μ) = √(σ² - μ), 0 above the floor. So c = (σ - f(μ))/μ. For small
        μ the difference cancels, so c is written as 1/(σ + f(μ)), which is equal. Directions
        without any gradient (μ = 0) then need no special case.
        """
        mu, sigma = np.maximum(eigenvalues, 0.0), math.sqrt(self.sigma2)
        missing = np.sqrt(np.maximum(self.sigma2 - mu, 0.0))
        above = sigma / np.maximum(mu, self.sigma2)
        return np.where(mu > self.sigma2, above, 1 / (sigma + missing))


def sampling_weights(count: int, batch_size: int, rng: np.random.Generator | None) -> Floats:
    """Return 1/D + ξ/√(BD) with ξ ~ N(0, I): the weights of Assumption 2, for D = `count`."""
    return 1 / count + gaussian(count, 1 / math.sqrt(batch_size * count), rng)


@dataclass(frozen=True)
class Isotropic:
    """Gaussian noise of variance `sigma2` on every coordinate of a gradient estimate."""

    sigma2: float

    def __post_init__(self) -> None:
        require("(0, inf)", sigma2=self.sigma2)


@dataclass(frozen=True)
class GaussianSampling:
    """Steps on a random mean of clipped gradients, with the noise that a guarantee asks for.

    The theorems cover one step (FedSGD) with noise. Several steps (FedAvg) take each gradient at
    the model that the step before left: the sum of the clients' updates is then not Gaussian, and
    no theorem covers it.

    The loss in `Trained` is that of the data, without noise: do not send it where the model's
    change is meant to be private. The update is -lr times the gradient estimate; a noise variance
    or floor of σ² is one of lr² σ² in the update.

    Attributes:
        lr: Step length.
        clip_norm: C, the largest joint norm of an example's gradient.
        batch_size: B; with sampling "gaussian" the scale of the weights 1/D + ξ/√(BD), with
            "minibatch" the examples drawn without replacement, with "full" unused and 0.
        sampling: How examples are weighted.
        noise: What is added to each gradient estimate, if anything.
        steps: Local steps.
        simulated: Whether draws come from the generator of the call, so that a run can be
            repeated; otherwise weights and noise come from the operating system's source.
    """

    lr: float
    clip_norm: float
    batch_size: int = 0
    sampling: Sampling = "gaussian"
    noise: Isotropic | WaterFilling | None = None
    steps: int = 1
    simulated: bool = False

    def __post_init__(self) -> None:
        if self.sampling not in get_args(Sampling):
            raise BadValueError("sampling", f"one of {get_args(Sampling)}", self.sampling)
        require("(0, inf)", lr=self.lr, clip_norm=self.clip_norm)
        least = 0 if self.sampling == "full" else 1
        require(f"at least {least}", batch_size=self.batch_size)
        require("at least 1", steps=self.steps)
        if isinstance(self.noise, WaterFilling) and self.sampling != "gaussian":
            raise BadValueError(
                "sampling",
                "'gaussian' with water filling, which has no guarantee otherwise",
                self.sampling,
            )

    @property
    def mechanism(self) -> str:
        """The mechanism that makes the update random, as in the accounting; empty without noise."""
        if self.noise is None:
            return ""
        if isinstance(self.noise, WaterFilling):
            return "water-filling"
        return "isotropic" if self.sampling == "gaussian" else self.sampling

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train `model` in place."""
        trained, _ = self.train(model, x, y, rng)
        return trained

    def train(
        self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator
    ) -> tuple[Trained, tuple[CovarianceSpectrum, ...]]:
        """Train `model` in place; also return the spectra of the last step's water filling.

        The spectra are exact functions of the data: a diagnostic for simulations, never sent.
        """
        losses: list[float] = []
        spectra: tuple[CovarianceSpectrum, ...] = ()
        for _ in range(self.steps):  # every step takes its gradients at the model before it
            estimate, loss, spectra = self._estimate(model, x, y, rng)
            _move(model, estimate, -self.lr)
            losses.append(loss)
        return Trained(num_examples=len(y), loss=float(np.mean(losses))), spectra

    def _estimate(
        self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator
    ) -> tuple[Floats, float, tuple[CovarianceSpectrum, ...]]:
        """Return one noised gradient estimate, and the loss of the examples in it."""
        if self.sampling == "minibatch":
            x, y = self._batch(x, y, rng)
        gradients = per_example_gradients(model, x, y, self.clip_norm)
        estimate, spectra = self.estimate(gradients, rng if self.simulated else None)
        return estimate, gradients.loss, spectra

    def estimate(
        self, gradients: Gradients, source: np.random.Generator | None
    ) -> tuple[Floats, tuple[CovarianceSpectrum, ...]]:
        """Return one noised gradient estimate, and the spectra of water filling.

        Args:
            gradients: Clipped gradients of all examples, or of those in the minibatch.
            source: Source of all randomness; None takes the operating system's source.
        """
        # Gaussian weights and filling share one draw: together they have covariance h(Σ).
        if isinstance(self.noise, WaterFilling):
            return self.noise.draw(gradients, self.batch_size, source)
        if self.sampling == "gaussian":
            # 1/D + ξ/√(BD): mean Gᵀ1/D, covariance Σ = GᵀG/(BD) (Assumption 2)
            weights = sampling_weights(gradients.count, self.batch_size, source)  # (D,)
        else:
            weights = np.full(gradients.count, 1 / gradients.count)
        estimate = gradients.combined(weights)  # (dim,), without forming (D, dim) where factored
        if self.noise is not None:  # of the mean gradient, so lr² σ² in the update
            estimate = estimate + gaussian(gradients.dim, math.sqrt(self.noise.sigma2), source)
        return estimate, ()

    def _batch(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return B examples drawn without replacement."""
        require(f"[1, {len(y)}]", batch_size=self.batch_size)
        if self.simulated:
            chosen = torch.from_numpy(rng.permutation(len(y))[: self.batch_size])
        else:  # the guarantee relies on a batch that nobody can guess
            chosen = torch.tensor(SystemRandom().sample(range(len(y)), self.batch_size))
        chosen = chosen.to(y.device)
        return x[chosen], y[chosen]


def _move(model: nn.Module, direction: Floats, length: float) -> None:
    """Add `length` times a flat vector to the model's parameters."""
    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            part = torch.from_numpy(direction[start : start + parameter.numel()])
            # In double, so rounded only once; on the CPU, as not every device has it.
            moved = parameter.cpu().double() + length * part.view(parameter.shape)
            parameter.copy_(moved.to(parameter.dtype))
            start += parameter.numel()


def function_times(
    matrix: Floats, function: Callable[[Floats], Floats], vector: Floats
) -> tuple[Floats, Floats]:
    """Return the ascending eigenvalues of a symmetric matrix A, and f(A) v.

    A = Q T Qᵀ with T tridiagonal and Q a product of reflections, so f(A) v = Q f(T) Qᵀ v: the
    eigenvectors of T are enough, and Q is only applied to two vectors, which is cheaper than all
    eigenvectors of A. LAPACK's `sytrd`, `stevd` (Gu, Eisenstat 1995, A Divide-and-Conquer Algorithm
    for the Symmetric Tridiagonal Eigenproblem), `ormqr`.

    Args:
        matrix: A.
        function: f, on an array of eigenvalues.
        vector: v.
    """
    if not np.isfinite(matrix).all():  # LAPACK may loop forever on a NaN
        raise ValueError("matrix must be finite, got NaN or infinity")
    size = len(vector)
    if size < 3 or not hasattr(lapack, "dstevd"):  # scipy has it since 1.16
        return _by_eigenvectors(matrix, function, vector)
    lwork, _ = lapack.dsytrd_lwork(size, lower=1)
    # Transposed, because LAPACK stores columns contiguously; A is symmetric, so it is the same.
    reduced, diagonal, beside, tau, _ = lapack.dsytrd(matrix.T, lower=1, lwork=int(lwork))
    values, vectors, failed = lapack.dstevd(diagonal, beside)
    if failed:  # very rare: an eigenvalue of some part was not found
        return _by_eigenvectors(matrix, function, vector)
    reflectors = reduced[1:, :-1]  # below the subdiagonal

    def rotated(v: Floats, way: str) -> Floats:
        tail, _, _ = lapack.dormqr("L", way, reflectors, tau, v[1:, None], 64)
        return np.concatenate([v[:1], tail[:, 0]])  # Q leaves the first coordinate unchanged

    # f(A) v = Q W f(λ) Wᵀ Qᵀ v, with W the eigenvectors of T.
    inner = function(values) * (vectors.T @ rotated(vector, "T"))
    return values, rotated(vectors @ inner, "N")


def _by_eigenvectors(
    matrix: Floats, function: Callable[[Floats], Floats], vector: Floats
) -> tuple[Floats, Floats]:
    values, vectors = np.linalg.eigh(matrix)
    return values, vectors @ (function(values) * (vectors.T @ vector))
