"""Measures what one unit of each part of a secure, audited round costs, for docs/scaling-out.md.

Process CPU time of one thread, the median of several repetitions; run it as
`OMP_NUM_THREADS=1 python docs/unit_costs.py`. Vectors have 2²⁴ coordinates, far more than any cache
holds, as those of a large model do.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from leakmeter.auditors.canary_draws import canary_products
from leakmeter.auditors.noise import gaussian
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.moments import Scatter
from leakmeter.clients.protection.noise_mod import clip
from leakmeter.clients.secure_sum.keys import KeyPair, Session, agree, seal, unseal
from leakmeter.clients.secure_sum.quantise import Quantiser, Ring, add_masks, add_vectors
from leakmeter.clients.secure_sum.sharing import recover, split
from leakmeter.strategies.secure_sum.topology import plan_graph

DIM = 2**24
SESSION = Session(1, 1)
RING = Ring(32)


def cpu(work: Callable[[], object], repetitions: int = 5) -> float:
    """Return the median CPU seconds of a call."""
    spent = []
    for _ in range(repetitions):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return statistics.median(spent)


def per_coordinate() -> Iterator[tuple[str, float, str]]:
    """Yield the work that grows with the model."""
    rng = stream(0, "unit costs")
    update = rng.standard_normal(DIM).astype(np.float32).astype(np.float64) / 1e3
    vector = np.ones(DIM, RING.dtype)
    keys = [(os.urandom(32), 1) for _ in range(4)]
    scale = 1e9 / DIM
    quantiser = Quantiser(clip_range=1.0, bits=32, max_clients=1000, max_weight=1.0)
    encoded = quantiser.encode(update, 1.0, {}, rng)
    yield "clip to a norm", cpu(lambda: clip(update, 1.0)) * scale, "ns a coordinate"
    yield "own noise, system source", cpu(lambda: gaussian(DIM, 1.0, None), 3) * scale, "same"
    yield "round to the ring", cpu(lambda: quantiser.encode(update, 1.0, {}, rng)) * scale, "same"
    yield "one mask", cpu(lambda: add_masks(vector, keys, RING)) * scale / len(keys), "same"
    yield "add an upload", cpu(lambda: add_vectors([vector] * 5, RING)) * scale / 5, "same"
    yield "decode the sum", cpu(lambda: quantiser.decode(encoded)) * scale, "same"
    yield "one canary's product", cpu(lambda: canary_products(0, [1], update)) * scale, "same"


def per_peer() -> Iterator[tuple[str, float, str]]:
    """Yield the work that grows with the graph."""
    own, peers = KeyPair.generate(), {i: KeyPair.generate().public for i in range(2, 202)}
    keys = agree(SESSION, "mask", 1, own, peers, bytes(32))
    boxes = {i: seal(keys[i], bytes(78), SESSION, "shares", 1, i) for i in peers}
    spent = cpu(lambda: agree(SESSION, "mask", 1, own, peers, bytes(32))) / len(peers)
    yield "agree on a key", spent * 1e6, "µs a peer"
    spent = cpu(lambda: [seal(keys[i], bytes(78), SESSION, "shares", 1, i) for i in peers])
    yield "seal a box", spent / len(peers) * 1e6, "µs a peer"
    spent = cpu(lambda: [unseal(keys[i], boxes[i], SESSION, "shares", 1, i) for i in peers])
    yield "open a box", spent / len(peers) * 1e6, "µs a peer"
    secrets = [os.urandom(32), os.urandom(32)]
    for holders, threshold in ((100, 60), (200, 120)):
        points = range(1, holders + 1)
        yield (
            f"deal two secrets to {holders}",
            cpu(lambda t=threshold, p=points: split(secrets, t, p)) * 1e3,
            "ms a client",
        )
        shares = split(secrets, threshold, points)[0]
        yield (
            f"recover a secret from {threshold} of {holders}",
            cpu(lambda t=threshold, s=shares: recover({1: s}, t, lambda *_: True)) * 1e3,
            "ms a client",
        )


def per_draw() -> Iterator[tuple[str, float, str]]:
    """Yield the work of audits that redraw updates."""
    rng = stream(0, "unit costs", "rows")
    for dim in (1024, 4096):
        rows = rng.standard_normal((1024, dim), dtype=np.float32)
        spent = cpu(lambda r=rows, d=dim: Scatter(d).add(r)) / len(rows)
        yield f"scatter of an update, d = {dim:,}", spent / dim**2 * 1e9, "ns a d²"
    wide, along = rng.standard_normal((2, 2**20)), rng.standard_normal((2**20, 8))
    spent = cpu(lambda: wide @ along) / len(wide) / 2**20 / 8
    yield "project an update", spent * 1e9, "ns a coordinate and direction"


def graphs() -> Iterator[str]:
    """Yield the neighbours that a cohort needs at 10 % dropout and 5 % collusion."""
    for clients in (1_000, 10_000, 100_000, 1_000_000):
        begun = time.process_time()
        plan = plan_graph(clients, dropout_rate=0.1, collusion_rate=0.05)
        spent = time.process_time() - begun
        yield f"{clients:>9,} clients: {plan.degree} neighbours, threshold {plan.threshold} " + (
            f"({spent:.1f} CPU s to plan)"
        )


def main() -> None:
    """Print the table."""
    for part in (per_coordinate, per_peer, per_draw):
        for name, value, unit in part():
            print(f"{name:<36} {value:10.3f} {unit}")
    for line in graphs():
        print(line)


if __name__ == "__main__":
    main()
