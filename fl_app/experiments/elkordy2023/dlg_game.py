"""Reconstruction of a client's images from the mean gradient of N clients, and its controls.

As in Elkordy et al. 2023 (arXiv:2208.02304), section 5.7: every client takes one FedSGD step on a
batch of its own from an untrained model, and the attacker sees the mean. How ours differs:
1. The attacker tunes the attack, for each N, on images of its own: nothing is chosen on the images
   that are reported.
2. Three controls: the mean of the attacker's images, a black image, and strangers, which are
   images that nobody held, compared with the same reconstructions. Best matching flatters every
   attack, and strangers are flattered as much.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn.utils import parameters_to_vector

from leakmeter.auditors.information import logdet_information, principal_subspace
from leakmeter.auditors.reconstruction import Attack, invert, psnr
from leakmeter.auditors.rng import stream
from leakmeter.clients.cohort.cohort import Cohort
from leakmeter.clients.sampling.sampler import CohortSampler
from leakmeter.clients.sampling.source import Fresh
from leakmeter.clients.update import FedSGD
from leakmeter.fl_app.data.dataset import Dataset
from leakmeter.fl_app.data.load import load
from leakmeter.fl_app.model import build

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
# From a gradient and the number of the attack to what is seen of the gradient.
Release = Callable[[Images, int], Images]

_SEED = 2208
_CEILING = 60.0  # dB; beyond it nobody sees a difference, and a perfect image has no finite PSNR
_FIT, _RANK = 200, 20  # updates that a subspace is fitted on, and its directions


@dataclass(frozen=True)
class Case:
    """Who trains what, and how the attacker looks for it.

    Attributes:
        dataset: Where the images come from.
        model: What is trained.
        batch: Images of each client, B.
        seeks_all: Whether the attacker looks for the images of all N clients, N·B, and not only
            for as many as one client has, as the paper's does.
        users: Numbers of clients N.
        targets: Attacks to be reported, each on clients and an initial model of its own.
        rehearsals: Attacks that each setting is tried on beforehand.
        attacks: Settings to choose from.
        draws: Redraws of all clients for the mutual information.
        shows: Whether pictures are kept; not of data that may not be passed on.
    """

    dataset: str
    model: str
    batch: int
    seeks_all: bool
    users: tuple[int, ...]
    targets: int
    rehearsals: int
    attacks: tuple[Attack, ...]
    draws: int
    shows: bool = True

    @property
    def key(self) -> str:
        """A name for files."""
        return f"{self.dataset}-{self.model}-b{self.batch}{'-all' if self.seeks_all else ''}"

    @property
    def title(self) -> str:
        """A name for people."""
        sought = ", all N·B sought" if self.seeks_all else ""
        return f"{self.dataset}, {self.model}, B = {self.batch}{sought}"


@dataclass(frozen=True)
class Side:
    """One side's images: the clients' or the attacker's own."""

    name: str
    x: Images
    y: Labels


def rehearse(case: Case, users: int) -> dict[str, Any]:
    """Return which setting does best on the attacker's own images, and what each reached."""
    _, own = sides(case.dataset)
    reached = []
    for attack in case.attacks:
        plays = [play(case, own, users, attack, i) for i in range(case.rehearsals)]
        reached.append(float(np.mean([p["psnr"] for p in plays])))
    return {"chosen": int(np.argmax(reached)), "psnr": reached}


def attack_clients(case: Case, users: int, chosen: int) -> dict[str, Any]:
    """Return PSNR of the targets' images and of the controls, and the first few pictures."""
    clients, own = sides(case.dataset)
    plays = [play(case, clients, users, case.attacks[chosen], i) for i in range(case.targets)]
    mean_image = own.x.mean(axis=0)
    truths = [p["truth"] for p in plays]
    pictures = {
        "originals": packed(np.concatenate(truths)),
        "pictures": packed(np.concatenate([p["matched"] for p in plays])),
    }
    return {
        "psnr": [p["psnr"] for p in plays],
        "strangers": [p["strangers"] for p in plays],
        "mismatch": [p["mismatch"] for p in plays],
        "mean image": [_quality(t, np.broadcast_to(mean_image, t.shape)) for t in truths],
        "black image": [_quality(t, np.zeros_like(t)) for t in truths],
        **(pictures if case.shows else {}),
    }


def play(
    case: Case, side: Side, users: int, attack: Attack, number: int, release: Release | None = None
) -> dict[str, Any]:
    """Let `users` clients train once and the attacker look for the first one's images.

    Args:
        case: Who trains what.
        side: Whose images.
        users: Clients in the mean.
        attack: How the attacker searches.
        number: Which clients and which initial model.
        release: What the attacker gets of the mean gradient; None for all of it.
    """
    rng = stream(_SEED, "dlg", case.dataset, case.batch, side.name, number)
    # One client more than the most there are, so that N does not change who the target is.
    hands = rng.permutation(len(side.x))[: (max(case.users) + 1) * case.batch]
    parts = hands.reshape(-1, case.batch)
    truth, strangers = side.x[parts[0]], side.x[parts[-1]]
    net = build(case.model, side.x.shape[1:], int(side.y.max()) + 1, seed=_SEED + number)
    seen = mean_gradient(net, side.x, side.y, list(parts[:users]))
    found = invert(
        net,
        seen if release is None else release(seen, number),
        shape=side.x.shape[1:],
        batch=case.batch * (users if case.seeks_all else 1),
        seed=_SEED + number,
        attack=attack,
    )
    return {
        "psnr": _quality(truth, found.images),
        "strangers": _quality(strangers, found.images),
        "mismatch": found.mismatch,
        "truth": truth,
        "matched": nearest(truth, found.images),
    }


def mean_gradient(
    net: nn.Module, x: Images, y: Labels, parts: Sequence[NDArray[np.int64]]
) -> NDArray[np.float32]:
    """Return the mean of the clients' gradients, from the updates of one FedSGD step each."""
    cohort = Cohort(net, FedSGD(batch_size=len(parts[0]), lr=1.0))
    rngs = [stream(_SEED, "batches", i) for i in range(len(parts))]
    start = parameters_to_vector(net.parameters()).detach()
    updates = cohort.updates(start, torch.from_numpy(x), torch.from_numpy(y), parts, rngs)
    return np.asarray(-updates.double().mean(dim=0).numpy(), dtype=np.float32)


def information(case: Case) -> dict[str, Any]:
    """Return I(first client's update; sum of N) in bits, in a subspace of large variance.

    Each redraw gives all clients fresh batches; the directions are those of other redraws, at the
    initial model of the first target.
    """
    clients, _ = sides(case.dataset)
    x, y = torch.from_numpy(clients.x), torch.from_numpy(clients.y)
    net = build(case.model, clients.x.shape[1:], int(y.max()) + 1, seed=_SEED)
    start = parameters_to_vector(net.parameters()).detach().double().numpy()
    source = Fresh(
        pool=np.arange(len(x)),
        num_clients=len(x) // case.batch,
        draw=lambda pool, _, rng: rng.choice(pool, case.batch, replace=False),
    )
    cohort = Cohort(net, FedSGD(batch_size=case.batch, lr=1.0))
    sampler = CohortSampler(cohort, (x, y), source, seed=_SEED)
    fit = np.concatenate(list(sampler.sample(start, [0], _FIT, ("fit",))))[:, 0]
    subspace = principal_subspace(fit, rank=_RANK)
    everybody = range(max(case.users))
    chunks = sampler.sample(start, everybody, case.draws, ("sum",), project=subspace.directions)
    rows = np.concatenate(list(chunks))  # (draws, clients, rank)
    found = {}
    for users in (n for n in case.users if n > 1):
        without = rows[:, 1:users].sum(axis=1)
        bits = logdet_information(rows[:, 0] + without, without)
        found[str(users)] = {"bits": bits.bits, "nats error": bits.std_error}
    return {"rank": _RANK, "variance kept": subspace.variance_kept, "users": found}


def nearest(truth: Images, images: Images) -> Images:
    """Return for each original the reconstruction that it is matched with."""
    gaps = truth.reshape(len(truth), 1, -1) - images.reshape(1, len(images), -1)
    _, chosen = linear_sum_assignment((gaps**2).mean(axis=2))
    return np.asarray(images[chosen])


def packed(images: Images, most: int = 8) -> str:
    """Return the first few pictures as text: bytes 0 to 255, in base 64."""
    pixels = np.rint(255 * np.clip(images[:most], 0, 1)).astype(np.uint8)
    return base64.b64encode(pixels.tobytes()).decode()


def unpacked(text: str, shape: Sequence[int]) -> Images:
    """Return the pictures that `packed` has put into text."""
    pixels = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, *shape)
    return pixels.astype(np.float32) / np.float32(255)


def _quality(truth: Images, images: Images) -> float:
    """Return the mean PSNR of the originals in dB."""
    return float(np.minimum(psnr(truth, images), _CEILING).mean())


@lru_cache(maxsize=2)
def sides(name: str) -> tuple[Side, Side]:
    """Return the clients' images and the attacker's own: training and test part of a data set."""
    loaded: Dataset = load(name)
    # The last sixth of the training part served to find out which settings are worth a try.
    kept = 5 * loaded.num_train // 6
    return (
        Side("clients", loaded.train_x[:kept], loaded.train_y[:kept]),
        Side("attacker", loaded.test_x, loaded.test_y),
    )
