"""Update rules on clipped gradients of single examples, with sampling and noise.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Assumptions 1 and 2 and Table 1; Gaussian sampling weights are those
of Wu et al. 2020, On the Noisy Gradient Descent that Generalizes as SGD (arXiv:1906.07405). What
each combination guarantees is in `strategies.accounting.rdp`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import SystemRandom
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from leakmeter.auditors._types import Floats
from leakmeter.auditors.records.spectrum import Spectrum
from leakmeter.clients.protection.clipping import gaussian
from leakmeter.clients.protection.gradient_matrix import Gradients
from leakmeter.clients.protection.per_example import per_example_gradients
from leakmeter.clients.protection.water_filling import WaterFilling, sampling_weights
from leakmeter.clients.update import Trained

Sampling = Literal["gaussian", "minibatch", "full"]


@dataclass(frozen=True)
class Isotropic:
    """Gaussian noise of variance `sigma2` on every coordinate of a gradient estimate."""

    sigma2: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma2 < math.inf:
            raise ValueError(f"sigma2 must be in (0, inf), got {self.sigma2}")


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
            raise ValueError(f"sampling must be one of {get_args(Sampling)}, got {self.sampling!r}")
        for name in ("lr", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be in (0, inf), got {getattr(self, name)}")
        least = 0 if self.sampling == "full" else 1
        if self.batch_size < least:
            raise ValueError(
                f"batch_size must be at least {least} with sampling {self.sampling!r}, "
                f"got {self.batch_size}"
            )
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if isinstance(self.noise, WaterFilling) and self.sampling != "gaussian":
            raise ValueError(
                "sampling must be 'gaussian' with water filling, which has no guarantee otherwise, "
                f"got {self.sampling!r}"
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
    ) -> tuple[Trained, tuple[Spectrum, ...]]:
        """Train `model` in place; also return the spectra of the last step's water filling.

        The spectra are exact functions of the data: a diagnostic for simulations, never sent.
        """
        losses: list[float] = []
        spectra: tuple[Spectrum, ...] = ()
        for _ in range(self.steps):  # every step takes its gradients at the model before it
            estimate, loss, spectra = self._estimate(model, x, y, rng)
            _move(model, estimate, -self.lr)
            losses.append(loss)
        return Trained(num_examples=len(y), loss=float(np.mean(losses))), spectra

    def _estimate(
        self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator
    ) -> tuple[Floats, float, tuple[Spectrum, ...]]:
        """Return one noised gradient estimate, and the loss of the examples in it."""
        if self.sampling == "minibatch":
            x, y = self._batch(x, y, rng)
        gradients = per_example_gradients(model, x, y, self.clip_norm)
        estimate, spectra = self.estimate(gradients, rng if self.simulated else None)
        return estimate, gradients.loss, spectra

    def estimate(
        self, gradients: Gradients, source: np.random.Generator | None
    ) -> tuple[Floats, tuple[Spectrum, ...]]:
        """Return one noised gradient estimate, and the spectra of water filling.

        Args:
            gradients: Clipped gradients of all examples, or of those in the minibatch.
            source: Source of all randomness; None takes the operating system's source.
        """
        # Gaussian weights and filling share one draw: together they have covariance h(Σ).
        if isinstance(self.noise, WaterFilling):
            filled = self.noise.draw(gradients, self.batch_size, source)
            return filled.gradient, filled.spectra
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
        if self.batch_size > len(y):
            raise ValueError(f"batch_size must be in [1, {len(y)}], got {self.batch_size}")
        if self.simulated:
            chosen = torch.from_numpy(rng.permutation(len(y))[: self.batch_size])
        else:  # the guarantee relies on a batch that nobody can guess
            chosen = torch.tensor(SystemRandom().sample(range(len(y)), self.batch_size))
        return x[chosen], y[chosen]


def _move(model: nn.Module, direction: Floats, length: float) -> None:
    """Add `length` times a flat vector to the model's parameters."""
    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            part = torch.from_numpy(direction[start : start + parameter.numel()])
            moved = parameter.double() + length * part.view_as(parameter).to(parameter.device)
            parameter.copy_(moved)  # computed in double, so rounded only once
            start += parameter.numel()
