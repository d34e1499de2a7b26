"""Reconstruction of a client's images from a secure sum, over the number of clients.

Elkordy et al. 2023 (arXiv:2208.02304), section 5.7 and Fig. 15: PSNR of DLG and mutual information
both fall with N. Every client takes one FedSGD step on a batch of its own from an untrained model,
and the attacker sees the mean. How ours differs:
1. The attacker tunes the attack, for each N, on images of its own: nothing is chosen on the images
   that are reported.
2. Three controls: the mean of the attacker's images, a black image, and strangers, which are
   images that nobody held, compared with the same reconstructions. Best matching flatters every
   attack, and strangers are flattered as much.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parameters_to_vector

from leakmeter.auditors.information.draws import principal
from leakmeter.auditors.information.theory import gaussian_information, logdet_information
from leakmeter.auditors.reconstruction.attack import Attack, best_matches, invert, psnr
from leakmeter.auditors.rng import stream
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.sampler import CohortSampler, Fresh
from leakmeter.clients.update import fedsgd
from leakmeter.fl_app.data.dataset import load
from leakmeter.fl_app.task import build_model
from leakmeter.papers.base import Cells, Comparison, Table
from leakmeter.papers.elkordy2023.measure import SEED
from leakmeter.papers.plot import Gallery, Line, Panel, Strip

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Release = Callable[[Images, int], Images]  # what is seen of a gradient, by the attack's number
Found = Mapping[int, dict[str, Any]]  # by the number of clients

_CEILING = 60.0  # dB; beyond it nobody sees a difference, and a perfect image has no finite PSNR
_FIT, _RANK = 200, 20  # updates that a subspace is fitted on, and its directions
_CONTROLS = ("strangers", "mean image", "black image")


@dataclass(frozen=True)
class Case:
    """Who trains what, and how the attacker looks for it."""

    dataset: str
    model: str
    batch: int  # B, images of each client
    users: tuple[int, ...]  # numbers of clients N
    targets: int  # attacks to be reported, each on clients and an initial model of its own
    attacks: tuple[Attack, ...]  # settings to choose from
    rehearsals: int = 0  # attacks that each setting is tried on beforehand
    draws: int = 0  # redraws of all clients for the mutual information
    # Whether the attacker looks for the images of all N clients, and not only for as many as one
    # client has, as the paper's does.
    seeks_all: bool = False
    shows: bool = True  # whether pictures are kept; not of data that may not be passed on

    @property
    def key(self) -> str:
        """A name for files."""
        return f"{self.dataset}-{self.model}-b{self.batch}{'-all' if self.seeks_all else ''}"

    @property
    def title(self) -> str:
        """A name for people."""
        sought = ", all N·B sought" if self.seeks_all else ""
        return f"{self.dataset}, {self.model}, B = {self.batch}{sought}"

    def sought(self, users: int) -> int:
        """Return how many images the attacker looks for."""
        return self.batch * (users if self.seeks_all else 1)


@dataclass(frozen=True)
class Side:
    """One side's images: the clients' or the attacker's own."""

    name: str
    x: Images
    y: Labels


_LBFGS = tuple(Attack(method, "lbfgs", steps=200) for method in ("idlg", "dlg"))
_SMOOTH = Attack("idlg", "adam", steps=300, rate=0.02, smoothness=0.1)
_EVERY = (*_LBFGS, _SMOOTH, replace(_SMOOTH, method="dlg"))
_SLP = Case("mnist", "slp", 32, (1, 2, 5, 10, 20), 4, _EVERY, rehearsals=2, draws=400)
_SHORT = tuple(replace(attack, steps=60) for attack in _LBFGS)
_ONE = replace(_SLP, batch=1, targets=16, rehearsals=4)
_SCALES = {
    "paper": (
        _SLP,
        replace(_SLP, model="mlp"),
        replace(_ONE, model="mlp"),
        replace(_ONE, model="mlp", seeks_all=True),
        # CIFAR-10 comes without a licence: its numbers are kept, its pictures are not.
        replace(_ONE, dataset="cifar10", shows=False),
    ),
    "small": (Case("digits", "mlp", 1, (1, 2, 8), 3, _SHORT, rehearsals=1, draws=100),),
}
_SHAPES = {"digits": (8, 8), "mnist": (28, 28)}
_NOTE = (
    "PSNR after best matching, at most 60 dB an image; mean ± standard error over attacks, each on "
    "clients and an untrained model of its own. Strangers: images that nobody held, against the "
    "same reconstructions; only what exceeds them, and the mean image, was learnt from the target. "
    "Sought: images that the attacker looks for; the paper's looks for B. It does not know whose "
    "it finds. The attack is chosen for each N on images of its own. MI: of the target's update "
    "and the sum in the 20 directions of largest variance, an approximation (Gaussian model); at "
    "N = 1 it is infinite. CIFAR-10 is a subset, 4,000 + 1,000 pictures."
)


def run(scale: str, cells: Cells) -> Table:
    """Attack at every N and lay PSNR, its controls and the information side by side."""
    every = {case: _looked(case, cells) for case in _SCALES[scale]}
    return Table(
        title="Reconstruction of a client's images from the mean gradient of N clients",
        columns=(
            *("data", "model", "B", "sought", "N", "PSNR [dB]", *_CONTROLS),
            *("attack chosen", "log-det MI [bits]", "Gaussian [bits]"),
        ),
        rows=tuple(_row(case, n, at) for case, found in every.items() for n, at in found.items()),
        notes=(_NOTE,),
        figures={
            "psnr.svg": tuple(_panel(case, found) for case, found in every.items()),
            **{f"{case.key}.png": _gallery(case, every[case]) for case in every if case.shows},
        },
        comparisons=tuple(_comparisons(every)) if scale == "paper" else (),
    )


def _looked(case: Case, cells: Cells) -> Found:
    """Return what the attacker reached with the setting chosen beforehand, and the information."""
    found = {}
    for users in case.users:
        key = f"{case.key}-n{users}"
        chosen = int(cells.get(f"{key}-rehearsal", rehearse, case, users)["chosen"])
        reached = cells.get(key, attack_clients, case, users, chosen)
        found[users] = {**reached, "attack": case.attacks[chosen]}
    key = f"mi-{case.dataset}-{case.model}-b{case.batch}"
    for users, bits in cells.get(key, information, case)["users"].items():
        found[int(users)] |= bits
    return found


def _comparisons(every: Mapping[Case, Found]) -> Iterator[Comparison]:
    found = {case.key: found for case, found in every.items()}

    def over_users(key: str, name: str) -> str:
        return ", ".join(f"{np.mean(at[name]):.1f}" for at in found[key].values() if name in at)

    slp, mlp = "mnist-slp-b32", "mnist-mlp-b1-all"
    yield Comparison(
        "Elkordy et al. 2023, Fig. 15",
        f"PSNR of DLG and information over N = {', '.join(map(str, found[slp]))}, SLP on MNIST, "
        "B = 32",
        "both fall with N, at almost the same rate",
        f"PSNR {over_users(slp, 'psnr')} dB; images that nobody held "
        f"{over_users(slp, 'strangers')} dB; information for N ≥ 2 {over_users(slp, 'bits')} bits",
        "Both fall, but the PSNR ends at that of the mean digit "
        f"({over_users(slp, 'mean image').split(',')[0]} dB), which needs no attack. From 5 "
        "clients on no more is shown to come back than of images that nobody held",
    )
    yield Comparison(
        "Elkordy et al. 2023, Fig. 15",
        "one digit a client, MLP: an attacker who looks for the digits of all N clients",
        "not considered: the attacker looks for one client's batch",
        f"PSNR {over_users(mlp, 'psnr')} dB; images that nobody held "
        f"{over_users(mlp, 'strangers')} dB; an attacker who looks for one digit: PSNR "
        f"{over_users('mnist-mlp-b1', 'psnr')} dB",
        "The information is the same, and far more comes back: PSNR depends on the attack, not "
        "only on the bits",
    )


def _row(case: Case, users: int, at: Mapping[str, Any]) -> tuple[Any, ...]:
    bits, gaussian = "∞", "∞"
    if users > 1:
        bits = f"{at['bits']:.1f} ± {at['nats error'] / math.log(2):.1f}"
        gaussian = f"{gaussian_information(_RANK, users).bits:.1f}"
    return (
        *(case.dataset, case.model, case.batch, case.sought(users), users),
        *(decibels(at["psnr"]), *(f"{np.mean(at[name]):.1f}" for name in _CONTROLS)),
        *(f"{at['attack'].method}, {at['attack'].optimizer}", bits, gaussian),
    )


def decibels(values: Sequence[float]) -> str:
    """Return the mean of several attacks with its standard error."""
    error = float(np.std(values, ddof=1) / math.sqrt(len(values)))
    return f"{np.mean(values):.1f} ± {error:.1f}"


def _panel(case: Case, found: Found) -> Panel:
    shown = {
        "psnr": ("target", "o-"),
        "strangers": ("strangers", "s--"),
        "mean image": ("mean image", ":"),
        "bits": ("information", "^-."),
    }
    lines = []
    for color, (name, (label, style)) in enumerate(shown.items()):
        means = {n: float(np.mean(at[name])) for n, at in found.items() if name in at}
        lines.append(Line(label, [*means], [*means.values()], color, style))
    axes = "clients N", "PSNR [dB]; information [bits]"
    return Panel(case.title, *axes, tuple(lines), log_x=True)


def _gallery(case: Case, found: Found) -> Gallery:
    shape = _SHAPES[case.dataset]
    rows = [Strip("originals", unpacked(found[case.users[0]]["originals"], shape))]
    rows += [Strip(f"N = {n}", unpacked(at["pictures"], shape)) for n, at in found.items()]
    return Gallery(case.title, tuple(rows))


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
        **{name: [p[name] for p in plays] for name in ("psnr", "strangers", "mismatch")},
        "mean image": [_quality(t, np.broadcast_to(mean_image, t.shape)) for t in truths],
        "black image": [_quality(t, np.zeros_like(t)) for t in truths],
        **(pictures if case.shows else {}),
    }


def play(
    case: Case, side: Side, users: int, attack: Attack, number: int, release: Release | None = None
) -> dict[str, Any]:
    """Let `users` clients train once and the attacker look for the first one's images.

    The number names the clients and the initial model. Without `release` the attacker gets the
    mean gradient as it is.
    """
    rng = stream(SEED, "dlg", case.dataset, case.batch, side.name, number)
    # One client more than the most there are, so that N does not change who the target is.
    hands = rng.permutation(len(side.x))[: (max(case.users) + 1) * case.batch]
    parts = hands.reshape(-1, case.batch)
    truth, strangers = side.x[parts[0]], side.x[parts[-1]]
    net = build_model(case.model, side.x.shape[1:], int(side.y.max()) + 1, seed=SEED + number)
    seen = mean_gradient(net, side.x, side.y, list(parts[:users]))
    found = invert(
        net,
        seen if release is None else release(seen, number),
        shape=side.x.shape[1:],
        batch=case.sought(users),
        seed=SEED + number,
        attack=attack,
    )
    return {
        "psnr": _quality(truth, found.images),
        "strangers": _quality(strangers, found.images),
        "mismatch": found.mismatch,
        "truth": truth,
        "matched": found.images[best_matches(truth, found.images)[1]],
    }


def mean_gradient(
    net: nn.Module, x: Images, y: Labels, parts: Sequence[NDArray[np.int64]]
) -> NDArray[np.float32]:
    """Return the mean of the clients' gradients, from the updates of one FedSGD step each."""
    cohort = Cohort(net, fedsgd(batch_size=len(parts[0]), lr=1.0))
    rngs = [stream(SEED, "batches", i) for i in range(len(parts))]
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
    net = build_model(case.model, clients.x.shape[1:], int(y.max()) + 1, seed=SEED)
    start = parameters_to_vector(net.parameters()).detach().double().numpy()
    source = Fresh(
        pool=np.arange(len(x)),
        num_clients=len(x) // case.batch,
        draw=lambda pool, _, rng: rng.choice(pool, case.batch, replace=False),
    )
    cohort = Cohort(net, fedsgd(batch_size=case.batch, lr=1.0))
    sampler = CohortSampler(cohort, (x, y), source, seed=SEED)
    fit = np.concatenate(list(sampler.sample(start, [0], _FIT, ("fit",))))[:, 0]
    spectrum, along = principal(fit)
    directions = np.ascontiguousarray(along[:, :_RANK])
    kept = float((np.cumsum(spectrum) / spectrum.sum())[_RANK - 1])
    everybody = range(max(case.users))
    chunks = sampler.sample(start, everybody, case.draws, ("sum",), project=directions)
    rows = np.concatenate(list(chunks))  # (draws, clients, rank)
    found = {}
    for users in (n for n in case.users if n > 1):
        without = rows[:, 1:users].sum(axis=1)
        bits = logdet_information(rows[:, 0] + without, without)
        found[str(users)] = {"bits": bits.bits, "nats error": bits.std_error}
    return {"rank": _RANK, "variance kept": min(1.0, kept), "users": found}


def packed(images: Images, most: int = 8) -> str:
    """Return the first few pictures as text: bytes 0 to 255, in base 64."""
    pixels = np.rint(255 * np.clip(images[:most], 0, 1)).astype(np.uint8)
    return base64.b64encode(pixels.tobytes()).decode()


def unpacked(text: str, shape: Sequence[int]) -> Images:
    """Return the pictures that `packed` has put into text."""
    pixels = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, *shape)
    return pixels.astype(np.float32) / np.float32(255)


def _quality(truth: Images, images: Images) -> float:
    return float(np.minimum(psnr(truth, images), _CEILING).mean())


@lru_cache(maxsize=2)
def sides(name: str) -> tuple[Side, Side]:
    """Return the clients' images and the attacker's own: training and test part of a data set."""
    loaded = load(name)
    # The last sixth of the training part served to find out which settings are worth a try.
    kept = 5 * loaded.num_train // 6
    return (
        Side("clients", loaded.train_x[:kept], loaded.train_y[:kept]),
        Side("attacker", loaded.test_x, loaded.test_y),
    )
