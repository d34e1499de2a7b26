"""How much faster is Shamir sharing as one matrix product than Flower's, per 32-byte secret?

Median of five interleaved repetitions in CPU time, lowest and highest ratio in brackets; on two
shared cores that others were using too, one thread, flwr 1.41.0, 2026-11-16:

    9 of 15     deal                      66x (57 to 71)         0.062 ms against   4 ms
                reconstruct one          120x (112 to 256)       0.123 ms against  26 ms
                reconstruct 15 at once   429x (418 to 865)       0.035 ms against  26 ms
    60 of 100   deal                    2137x (1082 to 2532)     0.132 ms against 264 ms
                reconstruct one         1840x (1033 to 2330)     0.242 ms against 430 ms
                reconstruct 100 at once 5899x (3179 to 7602)     0.080 ms against 430 ms

A small neighbourhood stays below a thousand: there ours is all overhead of the interpreter.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares

from clients import sharing
from clients.sharing import combine, recover, split

REPETITIONS = 5


def cpu_ms(work: Callable[[], object], calls: int = 1) -> float:
    start = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - start) * 1e3 / calls


def deal(secrets: list[bytes], threshold: int, clients: int) -> list[dict[int, bytes]]:
    """Return shares as a client makes them: both of its secrets in one call, nothing cached."""
    sharing._powers.cache_clear()
    return split(secrets, threshold, range(1, clients + 1))


def measure(threshold: int, clients: int) -> dict[str, tuple[float, float]]:
    """Return milliseconds per secret, ours and Flower's, by what was done."""
    secret, other = os.urandom(32), os.urandom(32)
    mine, theirs = (
        deal([secret, other], threshold, clients)[0],
        create_shares(secret, threshold, clients),
    )
    held = dict.fromkeys(range(clients), mine)  # as many owners with the same holders

    def alone() -> None:
        sharing._lagrange.cache_clear()
        assert combine(mine, threshold) == secret

    def together() -> None:
        sharing._lagrange.cache_clear()
        assert len(recover(held, threshold, lambda _, found: found == secret)) == clients

    slow = cpu_ms(lambda: combine_shares(theirs[:threshold]))
    return {
        "deal": (
            cpu_ms(lambda: deal([secret, other], threshold, clients), 20) / 2,
            cpu_ms(lambda: create_shares(secret, threshold, clients)),
        ),
        "reconstruct one": (cpu_ms(alone, 20), slow),
        f"reconstruct {clients} at once": (cpu_ms(together, 3) / clients, slow),
    }


def main() -> None:
    """Print ratio, spread and medians for a neighbourhood and for a cohort."""
    for clients, threshold in ((15, 9), (100, 60)):
        runs = [measure(threshold, clients) for _ in range(REPETITIONS)]  # ours, theirs, ours, …
        for name in runs[0]:
            ratios = sorted(run[name][1] / run[name][0] for run in runs)
            ours, theirs = (statistics.median(run[name][i] for run in runs) for i in (0, 1))
            print(
                f"{threshold} of {clients}, {name}: {statistics.median(ratios):.0f}x "
                f"({ratios[0]:.0f} to {ratios[-1]:.0f}); {ours:.3f} ms, Flower {theirs:.0f} ms"
            )


if __name__ == "__main__":
    main()
