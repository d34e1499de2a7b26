"""The textbook chapter "Privacy: Differential Privacy and Secure Aggregation": its two worked
examples, and what clipping and noise do to updates and to gradient inversion.

The first example, a noise scale under basic composition, is computed as printed, and then with the
calibration that is exact for one round and for all of them. The second, three clients with pairwise
masks, is computed as printed, and by the ring that the secure sum really uses. What the chapter
says in words about clipping and Deep Leakage from Gradients (Zhu, Liu and Han 2019,
arXiv:1906.08935) is measured: the share of updates that its clip norm changes, and the PSNR of a
digit that an attacker reconstructs from its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from leakmeter.auditors.gaussian.pair import epsilon_gaussian, gaussian_sigma
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023.measure import Setting, sampler_of

if TYPE_CHECKING:
    from leakmeter.fl_app.experiments.elkordy2023.dlg_game import Images

_CLIP, _EPSILON, _DELTA, _ROUNDS = 1.5, 2.0, 1e-5, 100
_PRINTED = 428.775
_UPDATES = (8, 5, 11)
_MASKS = {(2, 1): 4, (3, 1): 7, (3, 2): 2}  # s_{k,u} for k > u
_BITS = 32  # of the ring
_SEED = 3


@dataclass(frozen=True)
class Scale:
    """How much is drawn; the worked examples have one size.

    Attributes:
        draws: Updates whose norms are looked at, for each number of epochs.
        targets: Digits that are attacked in each case.
        steps: Of each attack.
    """

    draws: int
    targets: int
    steps: int


_SCALES = {"paper": Scale(draws=400, targets=16, steps=200), "small": Scale(20, 2, 40)}
_EPOCHS = (1, 5, 7, 10)
# Clip norm, noise on each coordinate as a multiple of it, and whether the attacker rescales.
_RELEASES = (
    (math.inf, 0.0, False),
    (_CLIP, 0.0, False),
    (_CLIP, 0.0, True),
    (_CLIP, 1e-3, True),
    (_CLIP, 1e-2, True),
    (_CLIP, 1e-1, True),
    (_CLIP, 1.0, True),
)


def run(scale: str, cells: Cells) -> Table:
    """Compute both examples, the clipped shares and the attacks."""
    what = _SCALES[scale]
    noise = cells.get("noise", noise_scales)
    masks = cells.get("masks", partial(masked_values, _BITS))
    clipped = {e: cells.get(f"{scale}-clipped-E{e}", partial(_norms, what, e)) for e in _EPOCHS}
    attacks = {
        case: cells.get(
            f"{scale}-dlg-C{case[0]:g}-z{case[1]:g}{'-rescaled' if case[2] else ''}",
            partial(_attacked, what, *case),
        )
        for case in _RELEASES
    }
    one, rounds = float(noise["one round"]), float(noise["all rounds"])
    sent = ", ".join(map(str, masks["sent"]))
    return Table(
        title="A textbook chapter: worked examples, clipping, and inversion of gradients",
        columns=("example", "what", "printed", "ours"),
        rows=(
            ("1", "σ, classical, basic composition", _PRINTED, f"{noise['classical']:.6f}"),
            ("1", "σ, exact for one round's ε and δ", "", f"{one:.3f}"),
            ("1", "σ, exact for all rounds together", "", f"{rounds:.3f}"),
            ("1", "ε of all rounds with the printed σ", _EPSILON, f"{noise['delivered']:.4f}"),
            ("2", "masked values", "-3, 7, 20", sent),
            ("2", "their sum", 24, sum(masks["sent"])),
            ("2", "sum of uploads in the ring of the secure sum", 24, masks["ring sum"]),
            *(("clipping", *_clipped_row(e, norms)) for e, norms in clipped.items()),
            *(("DLG", *_attack_row(case, found)) for case, found in attacks.items()),
        ),
        notes=_NOTES,
        comparisons=_comparisons(noise, masks, clipped, attacks),
    )


_NOTES = (
    "Example 1: C = 1.5, ε = 2 and δ = 1e-5 over 100 rounds, split evenly. The sum of many "
    "Gaussian rounds is one Gaussian round with √100 times the sensitivity, so the exact noise for "
    "all rounds is known; every client is assumed to take part in all of them. Example 2: the ring "
    "adds self masks and pairwise masks from AES streams, 32 bits wide; its uploads look random, "
    "and their sum is the sum of the updates.",
    "Clipping: share of updates longer than the chapter's C = 1.5, an MLP on digits, 20 clients, "
    "FedAvg at the initial model, batches of 8, steps of 0.1. The federation is ours; the chapter "
    "has none. Seven epochs were added after a first look.",
    "DLG: one digit, one client, an untrained MLP; PSNR of the reconstruction, mean ± standard "
    "error, beside the same for a digit that nobody held. Only what exceeds that was learnt. z: "
    "noise on each coordinate over C; example 1 asks for z = 286 with basic composition and for 20 "
    "exactly, far beyond the last row. Rescaled: clipping shortens a gradient, but the output bias "
    "of a known model shows by how much, so the attacker undoes it.",
    "The chapter's alternatives to masks, homomorphic encryption, multi-party computation and "
    "trusted hardware, give the same sum: docs/secure-aggregation.md compares them.",
)


def _clipped_row(epochs: int, norms: Sequence[float]) -> tuple[Any, ...]:
    local = counted(epochs, "local epoch")
    return f"updates longer than C after {local}", "", f"{100 * _share(norms):.0f} %"


def _share(norms: Sequence[float]) -> float:
    return float(np.mean(np.asarray(norms) > _CLIP))


def _attack_row(
    case: tuple[float, float, bool], found: Mapping[str, Sequence[float]]
) -> tuple[Any, ...]:
    return _case(*case), "", f"{_decibels(found['psnr'])}, nobody's {_decibels(found['strangers'])}"


def _case(clip: float, multiplier: float, rescales: bool) -> str:
    if math.isinf(clip):
        return "PSNR, gradient as it is"
    noise = f", z = {multiplier:g}" if multiplier else ""
    return f"PSNR, clipped to {clip:g}{noise}{', rescaled' if rescales else ''}"


def _decibels(values: Sequence[float]) -> str:
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return f"{np.mean(values):.1f} ± {error:.1f} dB"


def _norms(what: Scale, epochs: int) -> list[float]:
    """Return the lengths of updates, as clients would send them before clipping."""
    setting = Setting(
        "digits", clients=20, algorithm="fedavg", batch_size=8, epochs=epochs, model="mlp"
    )
    sampler, model = sampler_of(setting)
    rows = np.concatenate(list(sampler.sample(model, [0], what.draws, ("textbook", epochs))))
    return [float(norm) for norm in np.linalg.norm(rows[:, 0], axis=1)]


def _attacked(what: Scale, clip: float, multiplier: float, rescales: bool) -> dict[str, Any]:
    """Return the PSNR of attacked digits, and of digits that nobody held."""
    from leakmeter.auditors.reconstruction import Attack
    from leakmeter.fl_app.experiments.elkordy2023.dlg_game import Case, play, sides

    attack = Attack("idlg", "lbfgs", steps=what.steps)
    case = Case("digits", "mlp", 1, False, (1,), what.targets, 0, (attack,), 0)
    side, _ = sides(case.dataset)
    see = partial(_released, clip, multiplier, rescales)
    plays = [play(case, side, 1, attack, number, see) for number in range(what.targets)]
    return {name: [p[name] for p in plays] for name in ("psnr", "strangers")}


def _released(
    clip: float, multiplier: float, rescales: bool, gradient: Images, number: int
) -> Images:
    """Return what the attacker makes of a clipped and noised gradient."""
    seen = gradient * min(1.0, clip / float(np.linalg.norm(gradient)))
    if multiplier:
        rng = stream(_SEED, "textbook", "noise", number)
        seen = seen + clip * multiplier * rng.standard_normal(seen.shape)
    return np.asarray(seen * _undone(seen) if rescales else seen, dtype=np.float32)


def _undone(seen: Images, classes: int = 10) -> float:
    """Return the factor that undoes clipping, from the gradient of the output bias.

    For one image that is the model's probabilities less 1 for the label, and an untrained model
    gives each of the classes about the same.
    """
    bias = seen[-classes:]
    label = int(np.argmin(bias))
    expected = np.full(classes, 1 / classes) - (np.arange(classes) == label)
    return float(expected @ expected / max(float(bias @ expected), 1e-12))


def _comparisons(
    noise: Mapping[str, float],
    masks: Mapping[str, Any],
    clipped: Mapping[int, Sequence[float]],
    attacks: Mapping[tuple[float, float, bool], Mapping[str, Sequence[float]]],
) -> tuple[Comparison, ...]:
    one, rounds = float(noise["one round"]), float(noise["all rounds"])
    sent = ", ".join(map(str, masks["sent"]))
    shares = ", ".join(f"{100 * _share(norms):.0f} % (E = {e})" for e, norms in clipped.items())
    told = "; ".join(
        f"{_case(*case).removeprefix('PSNR, ')}: {_decibels(found['psnr'])}"
        for case, found in attacks.items()
    )
    nobody = _decibels(attacks[_RELEASES[0]]["strangers"])
    return (
        Comparison(
            "Textbook chapter, worked example 1",
            "noise for C = 1.5, ε = 2, δ = 1e-5 over 100 rounds, basic composition",
            f"σ = {_PRINTED}",
            f"σ = {noise['classical']:.4f}",
            f"the square root was rounded to 5.717 on the way. {one:.1f} is enough for each "
            f"round's share, and {rounds:.1f} for all rounds together, both exactly",
        ),
        Comparison(
            "Textbook chapter, worked example 2",
            "three clients with updates 8, 5, 11 and masks 4, 7, 2",
            "masked values -3, 7, 20; sum 24",
            f"masked values {sent}; sum {sum(masks['sent'])}, also in the ring of the secure sum",
        ),
        Comparison(
            "Textbook chapter, common pitfalls",
            "share of updates that C = 1.5 clips",
            "clipping too aggressively biases the aggregate; no number",
            f"{shares} local epochs, MLP on digits",
            "a federation of our own; the share grows with the local work",
        ),
        Comparison(
            "Textbook chapter, key results",
            "Deep Leakage from Gradients under clipping and noise, one digit",
            "noise and clipping degrade the attack; no number",
            f"{told}; digits that nobody held {nobody}",
            "clipping alone is undone by an attacker who knows the model; noise is what ends the "
            "attack, at far less than example 1 asks for. Other attackers may do better",
        ),
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
        x
        + sum(mask for (k, u), mask in _MASKS.items() if k == client)
        - sum(mask for (k, u), mask in _MASKS.items() if u == client)
        for client, x in enumerate(_UPDATES, start=1)
    ]
    return {"sent": sent, "ring sum": _ring_sum(bits)}


def _ring_sum(bits: int) -> int:
    """Return the sum that the server gets from masked uploads in the ring."""
    from leakmeter.clients.secure_sum.masking import Ring, add_vectors, mask, unmask

    ring = Ring(bits)
    own = {i: bytes([i]) * 32 for i in range(3)}  # fixed keys: an example, not a deployment
    pairs = {(i, j): bytes([16 * i + j]) * 32 for i in range(3) for j in range(i)}
    uploads = [
        mask(
            ring.from_signed(np.array([x], dtype=np.int64)),
            i,
            own[i],
            {j: pairs[max(i, j), min(i, j)] for j in range(3) if j != i},
            ring,
        )
        for i, x in enumerate(_UPDATES)
    ]
    total = unmask(add_vectors(uploads, ring), own.values(), {}, ring)
    return int(ring.signed(total)[0])
