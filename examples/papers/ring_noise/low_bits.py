"""Which of two sums was noised? The low bits of a floating-point release tell.

Mironov 2012, On Significance of the Least Significant Bits for Differential Privacy (CCS), here for
Gaussian noise by inversion: 52 random bits give at most 2^52 noises, so a released float64 can come
from one sum only if some noise leads from that sum to it. Two sums that differ by a millionth of
the noise are the same to every test that trusts the Gaussian distribution.

The attacker knows both sums, the noise's scale and the code. Sums are of the size of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from leakmeter.auditors.noise import MAX_STD, RoundedNorms, distribution_named, gaussian
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats, Vector
from leakmeter.clients.protection.noise_mod import RingNoise
from leakmeter.papers.base import Cells, Table
from leakmeter.papers.ring_noise.integer_sum import IntegerNoise

_SCALES: Final = {"paper": 1000, "small": 40}
_DIMS: Final = (10, 100, 400)
_APART: Final = 1e-6  # of the two sums, in units of the noise
_STEP: Final = 2.0**-10  # of the ring, in units of the noise
_BITS: Final = 52  # random bits of a float64 noise


def run(scale: str, cells: Cells) -> Table:
    """Attack each kind of release at each number of coordinates."""
    rows = []
    for name, dim in product(_RELEASES, _DIMS):
        key = f"{scale}-{name.replace(' ', '-').replace(',', '')}-{dim}"
        found = cells.get(key, attacked, name, dim, _SCALES[scale])
        right, impossible, ratio = (found[n] for n in ("right", "impossible", "ratio"))
        rows.append((name, dim, f"{right:.3f}", f"{impossible:.2f}", f"{ratio:.3f}"))
    return Table(
        title=f"Which of two sums, {_APART:g} noise standard deviations apart, was released?",
        columns=(
            *("release", "coordinates", "right by low bits"),
            *("coordinates that exclude the wrong sum", "right by likelihood ratio"),
        ),
        rows=rows,
        notes=(
            f"{_SCALES[scale]} trials a row, noise from the operating system's source. An attacker "
            "who learns nothing is right in half of them; ties are decided by a coin.",
            "By likelihood ratio: the nearer sum. The distribution of the noise tells no more.",
        ),
    )


def attacked(name: str, dim: int, trials: int) -> dict[str, float]:
    """Return how often the attacker is right, by low bits and by the likelihood ratio."""
    (release, step), rng = _RELEASES[name], stream(0, "low bits", name, dim)
    right, ratio, impossible = 0, 0, 0
    for _ in range(trials):
        sums = rng.standard_normal(dim) + np.array([[0.0], [_APART]])
        truth = int(rng.integers(2))
        seen = release(sums[truth])
        possible = [int(reaches(s, seen, step).sum()) for s in sums]
        impossible += dim - possible[1 - truth]
        right += _decided(possible, rng) == truth
        near = [-float(np.square(seen.astype(np.float64) - s).sum()) for s in sums]
        ratio += _decided(near, rng) == truth
    return {"right": right / trials, "ratio": ratio / trials, "impossible": impossible / trials}


def _decided(pair: Sequence[float], rng: np.random.Generator) -> int:
    """Return the index of the larger of two; a coin decides between equals."""
    return int(rng.integers(2)) if pair[0] == pair[1] else int(pair[1] > pair[0])


def reaches(total: Vector, seen: Floats, step: float) -> Floats:
    """Return for each coordinate whether some noise leads from the sum to what was seen.

    Args:
        total: The sum.
        seen: The release; as float32 it was rounded after the noise.
        step: Of the grid, where every integer within 13 standard deviations has a chance; 0 for
            floating point.
    """
    if step:
        is_integer = np.abs(seen / step - np.rint(seen / step)) < 1e-6
        return np.asarray(is_integer & (np.abs(seen - total) <= 13 + step))
    # The noise that is needed belongs to a word near this one; ndtr and ndtri err by a few units.
    words = np.rint(ndtr(seen.astype(np.float64) - total) * 2.0**_BITS - 0.5)
    found = np.zeros(len(total), dtype=bool)
    for off in range(-8, 9):
        noise = ndtri((np.clip(words + off, 0, 2.0**_BITS - 1) + 0.5) * 2.0**-_BITS)
        found |= (total + noise).astype(seen.dtype) == seen
    return found


def _as_float(dtype: str, total: Vector) -> Floats:
    return np.asarray(total + gaussian(len(total), 1.0, None)).astype(dtype)


def _central(kind: str, total: Vector) -> Floats:
    return distribution_named(kind).noised(total, 1.0, None)


def _in_ring(total: Vector) -> Floats:
    """Return a client's update in a sum with the noise of three, as a secure sum shows it."""
    noise = IntegerNoise("skellam", 1 / _STEP**2 / 3)
    limits = RoundedNorms.of(float(np.linalg.norm(total)) / _STEP, len(total))
    shares = RingNoise(_STEP, clip_range=100.0, limits=limits, sampler=noise.sampler)
    parts = [shares.applied(update, None) for update in (total, 0 * total, 0 * total)]
    return np.asarray(np.sum(parts, axis=0) * _STEP)


# Ways to release a noised sum, and the steps of their grids.
_RELEASES: Final[Mapping[str, tuple[Callable[[Vector], Floats], float]]] = {
    "float64, Gaussian": (partial(_as_float, "float64"), 0.0),
    "float32, Gaussian": (partial(_as_float, "float32"), 0.0),
    "ring, Skellam shares": (_in_ring, _STEP),
    "grid, central Skellam": (partial(_central, "skellam"), 1 / MAX_STD),
    "grid, central discrete Gaussian": (partial(_central, "discrete-gaussian"), 1 / MAX_STD),
}
