"""How much faster is Shamir sharing as one matrix product than Flower's, per 32-byte secret?

CPU time of a secret, nothing cached; a client of ours deals both of its secrets in one call, and a
server reconstructs those of many owners with the same holders at once, while Flower has one at a
time. A small neighbourhood stays below a thousand times: there ours is all overhead of the
interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares

from benchmarks.measure import Row, Scale, interleave, timer
from leakmeter.clients.secure_sum import sharing
from leakmeter.clients.secure_sum.sharing import recover, split

DEAL, COMBINE = "Flower, dealing", "Flower, reconstructing"


def deal(secrets: list[bytes], threshold: int, clients: int) -> list[dict[int, bytes]]:
    """Return shares as a client makes them: both of its secrets in one call, nothing cached."""
    sharing._powers.cache_clear()
    return split(secrets, threshold, range(1, clients + 1))


def measure(scale: Scale) -> Iterator[Row]:
    """Yield three rows for a neighbourhood, and three for a cohort."""
    sizes, repetitions = (((15, 9), (100, 60)), 5)
    if scale == "quick":
        sizes, repetitions = (((5, 3), (15, 9)), 2)
    for clients, threshold in sizes:
        yield from shared(clients, threshold, repetitions)


def shared(clients: int, threshold: int, repetitions: int) -> Iterator[Row]:
    """Yield what is dealt, reconstructed alone, and reconstructed together."""
    secret, other = os.urandom(32), os.urandom(32)
    mine = deal([secret, other], threshold, clients)[0]
    theirs = create_shares(secret, threshold, clients)
    held = dict.fromkeys(range(clients), mine)  # as many owners with the same holders

    def single() -> None:
        assert recover({0: mine}, threshold, lambda *_: True) == {0: secret}

    def together() -> None:
        assert len(recover(held, threshold, lambda _, found: found == secret)) == clients

    many = f"reconstruct {clients} at once"
    ours = {
        "deal": timer(lambda: deal([secret, other], threshold, clients), calls=20, size=2),
        "reconstruct one": timer(single, calls=20),
        many: timer(together, calls=3, size=clients),
    }
    flower = {
        DEAL: timer(lambda: create_shares(secret, threshold, clients)),
        COMBINE: timer(lambda: combine_shares(theirs[:threshold])),
    }
    times = interleave({**ours, **flower}, repetitions)
    for name in ours:
        slow = times[DEAL if name == "deal" else COMBINE]
        yield Row(f"{threshold} of {clients}, {name}", times[name], slow, peer="Flower")
