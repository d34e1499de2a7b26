"""Water-filling noise: Gaussian noise only where the sampling of gradients has too little.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), section 5. With Gaussian sampling a client's gradient estimate has the
covariance Σ = GᵀG/(BD). The noise has the covariance h(Σ) - Σ, where h raises every eigenvalue
below the floor σ² to it. Ours differs:

1. No matrix of size dim × dim is formed, and the draw is exact: the eigenvectors of Σ with positive
   eigenvalue are those of the Gram matrix K = GGᵀ/(BD), of size examples × examples.
2. The paper splits the coordinates into blocks and floors each, but samples once for all of them,
   which leaves correlations between blocks and the smallest eigenvalue of the sum far below σ².
   Here each block has its own sampling weights, so the blocks are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from leakmeter.auditors._types import Floats
from leakmeter.auditors.records.spectrum import Spectrum
from leakmeter.clients.protection.clipping import gaussian
from leakmeter.clients.protection.gradient_matrix import DenseGradients, Gradients
from leakmeter.clients.protection.matrix_function import function_times


@dataclass(frozen=True)
class Filled:
    """One draw of the gradient estimate with its noise.

    Attributes:
        gradient: Weighted sum of the gradients plus noise, (dim,).
        spectra: Sampling covariance of each block, and what its floor added.
    """

    gradient: Floats
    spectra: tuple[Spectrum, ...]


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
        if not 0 < self.sigma2 < math.inf:
            raise ValueError(f"sigma2 must be in (0, inf), got {self.sigma2}")
        if self.blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {self.blocks}")

    def draw(
        self, gradients: Gradients, batch_size: int, rng: np.random.Generator | None
    ) -> Filled:
        """Return a draw of N(mean gradient, h(Σ)), Σ = GᵀG / (batch_size · count).

        Args:
            gradients: Clipped gradients of all examples.
            batch_size: B, the size of the minibatch whose sampling noise this one resembles.
            rng: Source of all randomness; None takes the operating system's source.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        drawn = [self._draw_block(part, batch_size, rng) for part in self.parts(gradients)]
        whole = np.concatenate([gradient for gradient, _ in drawn])
        return Filled(whole, tuple(spectrum for _, spectrum in drawn))

    def parts(self, gradients: Gradients) -> Iterator[Gradients]:
        """Yield the gradients of each block."""
        if self.blocks == 1:
            yield gradients
            return
        if self.blocks > gradients.dim:
            raise ValueError(f"blocks must be in [1, {gradients.dim}], got {self.blocks}")
        cuts = np.linspace(0, gradients.dim, self.blocks + 1).astype(int)
        for start, stop in pairwise(cuts):
            yield DenseGradients(gradients.columns(int(start), int(stop)))

    def _draw_block(
        self, gradients: Gradients, batch_size: int, rng: np.random.Generator | None
    ) -> tuple[Floats, Spectrum]:
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
        return gradient, Spectrum.of_eigenvalues(eigenvalues, gradients.dim, self.sigma2)

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
