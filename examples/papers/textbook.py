"""The textbook chapter "Privacy: Differential Privacy and Secure Aggregation", computed again.

Its first example, a noise scale under basic composition, is computed as printed, and with the
calibration that is exact for one round and for all of them; its second, three clients with pairwise
masks, as printed, and by the ring that the secure sum really uses. What the chapter says about
clipping and Deep Leakage from Gradients (Zhu, Liu and Han 2019, arXiv:1906.08935) is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.reconstruction.attack import Attack
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import counted
from leakmeter.clients.secure_sum.quantise import Ring, add_vectors, mask, unmask
from leakmeter.papers.base import Cells, Comparison, Table
from leakmeter.papers.elkordy2023 import dlg
from leakmeter.papers.elkordy2023.measure import DIGITS, sampler_of
from leakmeter.papers.gaussian import gaussian_sigma

_CLIP, _EPSILON, _DELTA, _ROUNDS = 1.5, 2.0, 1e-5, 100
_PRINTED = 428.775
_UPDATES = (8, 5, 11)
_MASKS = {(2, 1): 4, (3, 1): 7, (3, 2): 2}  # s_{k,u} for k > u
_BITS = 32  # of the ring
_SEED = 3
_EPOCHS = (1, 5, 7, 10)


@dataclass(frozen=True)
class Release:
    """What the attacker sees of a gradient, and makes of it."""

    clip: float = math.inf
    multiplier: float = 0.0  # noise on each coordinate over the clip norm
    rescales: bool = False  # whether the attacker undoes the clipping

    @property
    def key(self) -> str:
        """A name for cells."""
        return f"C{self.clip:g}-z{self.multiplier:g}{'-rescaled' * self.rescales}"

    def __str__(self) -> str:
        """Return a name for people."""
        if math.isinf(self.clip):
            return "gradient as it is"
        noise = f", z = {self.multiplier:g}" if self.multiplier else ""
        return f"clipped to {self.clip:g}{noise}{', rescaled' * self.rescales}"

    def __call__(self, gradient: dlg.Images, number: int) -> dlg.Images:
        """Return what an attack gets to work with."""
        seen = gradient * min(1.0, self.clip / float(np.linalg.norm(gradient)))
        if self.multiplier:
            rng = stream(_SEED, "textbook", "noise", number)
            seen = seen + self.clip * self.multiplier * rng.standard_normal(seen.shape)
        return np.asarray(seen * _undone(seen) if self.rescales else seen, dtype=np.float32)


_RELEASES = (
    *(Release(), Release(_CLIP)),
    *(Release(_CLIP, multiplier, True) for multiplier in (0.0, 1e-3, 1e-2, 1e-1, 1.0)),
)
# Updates whose norms are looked at for each number of epochs; digits that are attacked in each
# case, and the steps of an attack. The worked examples have one size.
_SCALES = {"paper": (400, 16, 200), "small": (20, 2, 40)}
_NOTES = (
    "Example 1: C = 1.5, ε = 2 and δ = 1e-5 over 100 rounds, split evenly. Every client takes part "
    "in all of them, which together are one Gaussian round with √100 times the sensitivity. "
    "Example 2: the ring adds self masks and pairwise masks from AES streams, 32 bits wide.",
    "Clipping: share of updates longer than the chapter's C = 1.5, an MLP on digits, 20 clients, "
    "FedAvg at the initial model, batches of 8, steps of 0.1. The federation is ours; the chapter "
    "has none. Seven epochs were added after a first look.",
    "DLG: one digit, one client, an untrained MLP; PSNR of the reconstruction, mean ± standard "
    "error. Only what exceeds that of a digit that nobody held was learnt. z: noise on each "
    "coordinate over C; example 1 asks for z = 286 with basic composition and for 20 exactly. "
    "Rescaled: the output bias of a known model shows how much clipping has shortened a gradient.",
    "The chapter's alternatives to masks, homomorphic encryption, multi-party computation and "
    "trusted hardware, give the same sum: docs/secure-aggregation.md compares them.",
)


def run(scale: str, cells: Cells) -> Table:
    """Compute both examples, the clipped shares and the attacks."""
    draws, targets, steps = _SCALES[scale]
    noise = cells.get("noise", noise_scales)
    masks = cells.get("masks", masked_values, _BITS)
    shares, attacks = {}, {}
    for epochs in _EPOCHS:
        norms = cells.get(f"{scale}-clipped-E{epochs}", _norms, draws, epochs)
        shares[epochs] = f"{100 * np.mean(np.asarray(norms) > _CLIP):.0f} %"
    for release in _RELEASES:
        found = cells.get(f"{scale}-dlg-{release.key}", _attacked, targets, steps, release)
        attacks[release] = [f"{dlg.decibels(found[n])} dB" for n in ("psnr", "strangers")]
    return Table(
        title="A textbook chapter: worked examples, clipping, and inversion of gradients",
        columns=("example", "what", "printed", "ours"),
        rows=(
            ("1", "σ, classical, basic composition", _PRINTED, f"{noise['classical']:.6f}"),
            ("1", "σ, exact for one round's ε and δ", "", f"{noise['one round']:.3f}"),
            ("1", "σ, exact for all rounds together", "", f"{noise['all rounds']:.3f}"),
            ("1", "ε of all rounds with the printed σ", _EPSILON, f"{noise['delivered']:.4f}"),
            ("2", "masked values", "-3, 7, 20", ", ".join(map(str, masks["sent"]))),
            ("2", "their sum", 24, sum(masks["sent"])),
            ("2", "sum of uploads in the ring of the secure sum", 24, masks["ring sum"]),
            *(
                ("clipping", f"updates longer than C after {counted(e, 'local epoch')}", "", share)
                for e, share in shares.items()
            ),
            *(
                ("DLG", f"PSNR, {release}", "", f"{own}, nobody's {nobodys}")
                for release, (own, nobodys) in attacks.items()
            ),
        ),
        notes=_NOTES,
        comparisons=tuple(_comparisons(noise, masks, shares, attacks)),
    )


def _comparisons(
    noise: Mapping[str, float],
    masks: Mapping[str, Any],
    shares: Mapping[int, str],
    attacks: Mapping[Release, Sequence[str]],
) -> Iterator[Comparison]:
    yield Comparison(
        "Textbook chapter, worked example 1",
        "noise for C = 1.5, ε = 2, δ = 1e-5 over 100 rounds, basic composition",
        f"σ = {_PRINTED}",
        f"σ = {noise['classical']:.4f}",
        "The chapter rounds the square root to 5.717. By the exact calibration "
        f"{noise['one round']:.1f} is enough for each round's share, and "
        f"{noise['all rounds']:.1f} for all rounds together",
    )
    yield Comparison(
        "Textbook chapter, worked example 2",
        "three clients with updates 8, 5, 11 and masks 4, 7, 2",
        "masked values -3, 7, 20; sum 24",
        f"masked values {', '.join(map(str, masks['sent']))}; sum {sum(masks['sent'])}, and "
        f"{masks['ring sum']} in the ring of the secure sum",
    )
    yield Comparison(
        "Textbook chapter, common pitfalls",
        "share of updates that C = 1.5 clips",
        "clipping too aggressively biases the aggregate; no number",
        f"{', '.join(f'{share} (E = {e})' for e, share in shares.items())} local epochs, MLP on "
        "digits",
        "The federation is ours; the share grows with the local epochs",
    )
    told = [f"{release}: {own} ({nobodys})" for release, (own, nobodys) in attacks.items()]
    yield Comparison(
        "Textbook chapter, key results",
        "Deep Leakage from Gradients under clipping and noise, one digit: PSNR (of digits that "
        "nobody held)",
        "noise and clipping degrade the attack; no number",
        "; ".join(told),
        "An attacker who knows the model undoes clipping. At z = 1 no more comes back than of "
        "digits that nobody held; example 1 asks for z = 286, or 20 by the exact calibration. "
        "Other attackers may do better",
    )


def noise_scales() -> dict[str, float]:
    """Return the printed noise again, and what is enough."""
    epsilon, delta = _EPSILON / _ROUNDS, _DELTA / _ROUNDS
    classical = _CLIP * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    whole = math.sqrt(_ROUNDS) * _CLIP
    return {
        "classical": classical,
        "one round": gaussian_sigma(epsilon, delta, _CLIP),
        "all rounds": gaussian_sigma(_EPSILON, _DELTA, whole),
        "delivered": epsilon_gaussian(_DELTA, whole / classical),
    }


def masked_values(bits: int) -> dict[str, Any]:
    """Return what the clients send in the example, and what the secure sum's ring makes of it."""
    sent = [
        x + sum(s * ((k == client) - (u == client)) for (k, u), s in _MASKS.items())
        for client, x in enumerate(_UPDATES, start=1)
    ]
    ring, uploads = Ring(bits), []
    own = {i: bytes([i]) * 32 for i in range(3)}  # fixed keys: an example, not a deployment
    for i, x in enumerate(_UPDATES):
        pairs = {j: bytes([16 * max(i, j) + min(i, j)]) * 32 for j in range(3) if j != i}
        update = ring.from_signed(np.array([x], dtype=np.int64))
        uploads.append(mask(update, i, own[i], pairs, ring))
    total = unmask(add_vectors(uploads, ring), own.values(), {}, ring)
    return {"sent": sent, "ring sum": int(ring.signed(total)[0])}


def _norms(draws: int, epochs: int) -> list[float]:
    """Return the lengths of updates, as clients would send them before clipping."""
    sampler, model = sampler_of(replace(DIGITS, algorithm="fedavg", epochs=epochs, model="mlp"))
    rows = np.concatenate(list(sampler.sample(model, [0], draws, ("textbook", epochs))))
    return [float(norm) for norm in np.linalg.norm(rows[:, 0], axis=1)]


def _attacked(targets: int, steps: int, release: Release) -> dict[str, Sequence[float]]:
    """Return the PSNR of attacked digits, and of digits that nobody held."""
    attack = Attack("idlg", "lbfgs", steps=steps)
    case = dlg.Case("digits", "mlp", 1, (1,), targets, (attack,))
    side, _ = dlg.sides(case.dataset)
    plays = [dlg.play(case, side, 1, attack, number, release) for number in range(targets)]
    return {name: [p[name] for p in plays] for name in ("psnr", "strangers")}


def _undone(seen: dlg.Images, classes: int = 10) -> float:
    """Return the factor that undoes clipping, from the gradient of the output bias.

    For one image that is the model's probabilities less 1 for the label, and an untrained model
    gives each of the classes about the same.
    """
    bias = seen[-classes:]
    label = int(np.argmin(bias))
    expected = np.full(classes, 1 / classes) - (np.arange(classes) == label)
    return float(expected @ expected / max(float(bias @ expected), 1e-12))
