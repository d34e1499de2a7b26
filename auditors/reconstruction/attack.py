"""Reconstructs training images from a gradient, or from the mean gradient of clients.

Sources: Zhu, Liu and Han 2019, Deep Leakage from Gradients (arXiv:1906.08935), DLG; Zhao, Mopuri
and Bilen 2020, iDLG (arXiv:2001.02610), labels from the last layer; as used by Elkordy et al. 2023
(arXiv:2208.02304), §5.7 and Figure 15.

How ours differs:
1. The distance of gradients is relative to the length of the one observed, so that step sizes and
   the weight of the prior mean the same for every model.
2. Labels of a whole batch are inferred: a negative gradient of an output bias proves that its class
   is there, and the size says how often.
3. A batch has no order: images are matched to the originals before they are compared.

Torch is imported on use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import within

if TYPE_CHECKING:
    from torch import Tensor, nn

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Attack:
    """How images are searched for.

    Attributes:
        method: "idlg" infers the labels first; "dlg" searches for them along with the images.
        optimizer: "lbfgs" for smooth models; "adam" where activations have corners.
        steps: Steps of the search.
        rate: Step size; 1 suits L-BFGS, 0.1 Adam.
        smoothness: Weight of the total variation of the images, per pixel.
        restarts: Searches from different noise; the best match of gradients is kept.
        start: Brightest noise that a search starts from. Where many images have the same gradient
            a search ends near its start, so faint noise leads to images without needless contrast:
            32 digits from a linear model had 13 dB from 0.1 and 7 dB from 1.
    """

    method: Literal["dlg", "idlg"] = "idlg"
    optimizer: Literal["lbfgs", "adam"] = "lbfgs"
    steps: int = 200
    rate: float = 1.0
    smoothness: float = 0.0
    restarts: int = 1
    start: float = 0.1

    def __post_init__(self) -> None:
        if self.method not in ("dlg", "idlg"):
            raise BadValueError("method", "'dlg' or 'idlg'", self.method)
        if self.optimizer not in ("lbfgs", "adam"):
            raise BadValueError("optimizer", "'lbfgs' or 'adam'", self.optimizer)
        within("steps", self.steps, lowest=1)
        within("restarts", self.restarts, lowest=1)
        within("rate", self.rate, above=0.0)
        within("smoothness", self.smoothness, lowest=0.0)
        within("start", self.start, above=0.0, highest=1.0)


@dataclass(frozen=True)
class Reconstruction:
    """What an attack brought back.

    Attributes:
        images: (batch, *shape), within [0, 1].
        labels: Inferred, found or given, (batch,).
        mismatch: Squared distance of the gradients over the squared length of the observed one.
        mismatches: The same for every restart; the least of them is `mismatch`.
    """

    images: NDArray[np.float32]
    labels: Labels
    mismatch: float
    mismatches: tuple[float, ...]


def invert(
    model: nn.Module,
    gradient: Floats,
    *,
    shape: Sequence[int],
    batch: int,
    seed: int,
    attack: Attack | None = None,
    labels: Labels | None = None,
) -> Reconstruction:
    """Return images whose mean cross-entropy gradient is closest to the observed one.

    The model is read only. For a sum of N clients give its mean: the images sought are then as
    many as `batch` says, and the other clients' are in the way.

    Args:
        model: Module from images (batch, *shape) to scores (batch, classes). The search runs on its
            device; noise and labels are drawn on the CPU.
        gradient: Observed mean gradient, flat, in the order of `model.parameters()`. The update
            of one step of SGD is this times minus the learning rate.
        shape: Of one image.
        batch: Images to search for.
        seed: Of the noise that the searches start from.
        attack: How; None takes the defaults.
        labels: The images' labels if the attacker knows them, (batch,).

    Raises:
        ValueError: If the gradient does not fit the model, is zero or not finite, or if labels are
            to be inferred and the model does not end in a bias.
    """
    import torch

    attack = Attack() if attack is None else attack
    model = deepcopy(model)  # running statistics change with every look
    parameters = list(model.parameters())
    device = parameters[0].device
    target = torch.from_numpy(np.array(gradient, dtype=np.float32).reshape(-1)).to(device)
    _check(target, sum(p.numel() for p in parameters), batch)
    rng = stream(seed, "inversion")
    noise = rng.random((attack.restarts, batch, *shape), dtype=np.float32)
    noise *= np.float32(attack.start)
    starts = torch.from_numpy(noise).to(device)
    with torch.no_grad():
        scores = model(starts[0])
    if labels is None and attack.method == "idlg":
        guessed = scores.softmax(1).cpu().numpy()
        labels = infer_labels(_bias_gradient(target, parameters, scores), guessed)
    known = None if labels is None else _check_labels(labels, batch, scores.shape[1]).to(device)
    found = [_search(model, target, start, known, attack, rng) for start in starts]
    mismatches = tuple(f[2] for f in found)
    images, classes, mismatch = found[int(np.argmin(mismatches))]
    return Reconstruction(images, classes, mismatch, mismatches)


def infer_labels(bias_gradient: Floats, probabilities: Floats) -> Labels:
    """Return the labels of a batch from the gradient of the output layer's bias.

    For mean cross-entropy it is mean(p_c) - n_c / B per class c. Only n_c > 0 makes it negative,
    which is exact for one image (iDLG); how often each class occurs follows from a guess at the
    mean of p_c.

    Args:
        bias_gradient: One number per class.
        probabilities: The model's outputs on stand-ins for the images, (batch, classes).

    >>> infer_labels(np.array([0.2, -0.7, 0.5]), np.full((1, 3), 1 / 3))
    array([1])
    """
    batch, classes = probabilities.shape
    expected = batch * (probabilities.mean(0) - bias_gradient)
    proven = np.argsort(bias_gradient)[: min(batch, int((bias_gradient < 0).sum()))]
    counts = np.zeros(classes, dtype=np.int64)
    counts[proven] = 1
    for _ in range(batch - len(proven)):
        counts[np.argmax(expected - counts)] += 1
    return np.repeat(np.arange(classes), counts)


def psnr(originals: Floats, images: Floats) -> Floats:
    """Return the peak signal-to-noise ratio in dB of each original in its best reconstruction.

    Images are matched one to one so that the total squared error is least. With more
    reconstructions than originals, the best are taken; fewer are an error.

    >>> black, grey = np.zeros((1, 2, 2)), np.full((1, 2, 2), 0.1)
    >>> psnr(np.concatenate([black, grey]), np.concatenate([grey, black + 0.01])).round(1)
    array([40., inf])
    """
    errors, _ = best_matches(originals, images)
    with np.errstate(divide="ignore"):  # a perfect image has no noise
        return np.asarray(-10 * np.log10(errors))


def best_matches(originals: Floats, images: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Return the mean squared error of each original, and the reconstruction that it is of."""
    from scipy.optimize import linear_sum_assignment  # a fifth of a second, and few ask

    if len(images) < len(originals):
        raise BadValueError("images", f"at least {len(originals)}", len(images))
    if originals.shape[1:] != images.shape[1:]:
        raise BadValueError("images", f"of shape {originals.shape[1:]}", images.shape[1:])
    truth, guess = (a.reshape(len(a), -1).astype(np.float64) for a in (originals, images))
    errors = ((truth[:, None] - guess[None]) ** 2).mean(2)  # (originals, images)
    rows, columns = linear_sum_assignment(errors)
    return errors[rows, columns], columns


def _check(target: Tensor, size: int, batch: int) -> None:
    """Raise if a gradient cannot be one of a model of `size` parameters."""
    if target.numel() != size:
        raise BadValueError("gradient", f"of {size} entries, as the model", target.numel())
    if not bool(target.isfinite().all()) or not bool(target.any()):
        raise BadValueError("gradient", "finite and not zero", float(target.abs().max()))
    if batch < 1:
        raise BadValueError("batch", "at least 1", batch)


def _bias_gradient(target: Tensor, parameters: Sequence[Tensor], scores: Tensor) -> Floats:
    """Return the part of the gradient that belongs to the output bias."""
    if parameters[-1].shape != scores.shape[1:]:
        bias, last = "one that ends in a bias for each class", tuple(parameters[-1].shape)
        raise BadValueError("model", bias, last, fix="Give labels, or use method 'dlg'")
    return np.asarray(target[-scores.shape[1] :].cpu().numpy(), dtype=np.float64)


def _check_labels(labels: Labels, batch: int, classes: int) -> Tensor:
    import torch

    if np.shape(labels) != (batch,) or np.min(labels) < 0 or np.max(labels) >= classes:
        raise BadValueError("labels", f"{batch} numbers in [0, {classes})", labels)
    return torch.from_numpy(np.asarray(labels, dtype=np.int64))


def _search(
    model: nn.Module,
    target: Tensor,
    start: Tensor,
    labels: Tensor | None,
    attack: Attack,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float32], Labels, float]:
    """Return images, labels and mismatch of one search."""
    import torch

    images = start.clone().requires_grad_()
    with torch.no_grad():
        classes = model(start).shape[1]
    drawn = rng.standard_normal((len(start), classes), dtype=np.float32)
    guess = torch.from_numpy(drawn).to(start.device)
    free = [images] if labels is not None else [images, guess.requires_grad_()]

    def mismatch() -> Tensor:
        chosen = labels if labels is not None else guess.softmax(1)
        return _distance(model, images, chosen, target)

    def loss() -> float:
        optimizer.zero_grad()
        value = mismatch() + attack.smoothness * _variation(images)
        for variable, slope in zip(free, torch.autograd.grad(value, free), strict=True):
            variable.grad = slope
        return float(value.detach())

    optimizer: Any
    if attack.optimizer == "lbfgs":
        optimizer = torch.optim.LBFGS(
            free,
            lr=attack.rate,
            max_iter=attack.steps,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )
        optimizer.step(loss)
    else:
        optimizer = torch.optim.Adam(free, lr=attack.rate)
        for _ in range(attack.steps):
            optimizer.step(loss)
    final = labels if labels is not None else guess.argmax(1)
    left = float(mismatch().detach())
    # A search that ran away has found nothing: what it started from is as good.
    seen = images.detach() if math.isfinite(left) else start
    return (
        np.asarray(seen.clamp(0, 1).cpu().numpy(), dtype=np.float32),
        np.asarray(final.cpu().numpy(), dtype=np.int64),
        left if math.isfinite(left) else math.inf,
    )


def _distance(model: nn.Module, images: Tensor, labels: Tensor, target: Tensor) -> Tensor:
    """Return the relative squared distance of the images' gradient from the target."""
    import torch

    loss = torch.nn.functional.cross_entropy(model(images), labels)
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    ours = torch.cat([slope.reshape(-1) for slope in slopes])
    return (ours - target).square().sum() / target.square().sum()


def _variation(images: Tensor) -> Tensor:
    """Return the mean absolute step between neighbouring pixels, over the last two axes."""
    if images.dim() < 3:
        return images.diff(dim=-1).abs().mean()
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()
