"""What does a client's integer noise cost, against Gaussian noise and its rounding?

Both from the clipped update to the vector in the ring: ours rounds conditionally, draws integers by
inversion and adds them; the float path draws Gaussians by inversion, adds them and rounds. All
randomness comes from the operating system's source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.measure import OURS, Row, Scale, interleave, timer
from leakmeter.auditors.noise import RoundedNorms, gaussian
from leakmeter.auditors.values import Vector
from leakmeter.clients.protection.noise_mod import RingNoise
from leakmeter.clients.secure_sum.quantise import Quantiser
from leakmeter.papers.ring_noise.integer_sum import IntegerNoise

CLIENTS, STD, CLIP = 50, 0.2, 1.0
FLOAT = "Gaussian noise in float64"


def ours(update: Vector, distribution: str, bits: int) -> Callable[[], object]:
    """Return the integer path; its table is made beforehand, as it is kept between rounds."""
    quantiser = Quantiser(
        clip_range=CLIP,
        bits=bits,
        max_clients=CLIENTS,
        noise_std=STD,
        noise_distribution=distribution,
    )
    limits = RoundedNorms.of(CLIP / quantiser.step, len(update))
    share = IntegerNoise(distribution, (STD / quantiser.step) ** 2)
    noise = RingNoise(quantiser.step, CLIP, limits, share.sampler)
    return lambda: quantiser.encode_integers(noise.applied(update, None))


def floats(update: Vector, bits: int) -> Callable[[], object]:
    """Return the float path."""
    quantiser = Quantiser(clip_range=CLIP, bits=bits, max_clients=CLIENTS, noise_std=STD)
    rng = np.random.default_rng()
    return lambda: quantiser.encode(update + gaussian(len(update), STD, None), 1.0, {}, rng)


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row for each distribution and size of the ring."""
    dim, repetitions = (1_000_000, 7) if scale != "quick" else (2_000, 2)
    update = np.random.default_rng(0).standard_normal(dim)
    update *= CLIP / np.linalg.norm(update)
    distributions: tuple[str, ...] = ("skellam", "discrete-gaussian")
    for distribution in distributions:
        for bits in (16, 32):
            works = {OURS: ours(update, distribution, bits), FLOAT: floats(update, bits)}
            times = interleave({n: timer(w) for n, w in works.items()}, repetitions)
            row = partial(Row, f"{distribution}, d = {dim:,}, {bits} bits", times[OURS])
            yield row(times[FLOAT], peer=FLOAT, target=1 / 3)
