"""The two worked examples of the textbook chapter "Privacy: Differential Privacy and Secure
Aggregation": a noise scale under basic composition, and three clients with pairwise masks.

The first is computed as printed, and then with the calibration that is exact for one round and for
all of them. The second is computed as printed, and by the ring that the secure sum really uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from leakmeter.auditors.gaussian.pair import epsilon_gaussian, gaussian_sigma
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table

_CLIP, _EPSILON, _DELTA, _ROUNDS = 1.5, 2.0, 1e-5, 100
_PRINTED = 428.775
_UPDATES = (8, 5, 11)
_MASKS = {(2, 1): 4, (3, 1): 7, (3, 2): 2}  # s_{k,u} for k > u
_SCALES = {"paper": 32, "small": 32}  # bits of the ring; the examples have one size


def run(scale: str, cells: Cells) -> Table:
    """Compute both examples."""
    noise = cells.get("noise", noise_scales)
    masks = cells.get("masks", partial(masked_values, _SCALES[scale]))
    one, rounds = float(noise["one round"]), float(noise["all rounds"])
    sent = ", ".join(map(str, masks["sent"]))
    return Table(
        title="Worked examples of the textbook chapter",
        columns=("example", "what", "printed", "ours"),
        rows=(
            ("1", "σ, classical, basic composition", _PRINTED, f"{noise['classical']:.6f}"),
            ("1", "σ, exact for one round's ε and δ", "", f"{one:.3f}"),
            ("1", "σ, exact for all rounds together", "", f"{rounds:.3f}"),
            ("1", "ε of all rounds with the printed σ", _EPSILON, f"{noise['delivered']:.4f}"),
            ("2", "masked values", "-3, 7, 20", sent),
            ("2", "their sum", 24, sum(masks["sent"])),
            ("2", "sum of uploads in the ring of the secure sum", 24, masks["ring sum"]),
        ),
        notes=(
            "Example 1: C = 1.5, ε = 2 and δ = 1e-5 over 100 rounds, split evenly. The sum of "
            "many Gaussian rounds is one Gaussian round with √100 times the sensitivity, so the "
            "exact noise for all rounds is known; every client is assumed to take part in all of "
            "them. Example 2: the ring adds self masks and pairwise masks from AES streams, 32 "
            "bits wide; its uploads look random, and their sum is the sum of the updates.",
        ),
        comparisons=_comparisons(noise, masks),
    )


def _comparisons(noise: Mapping[str, float], masks: Mapping[str, Any]) -> tuple[Comparison, ...]:
    one, rounds = float(noise["one round"]), float(noise["all rounds"])
    sent = ", ".join(map(str, masks["sent"]))
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
