"""How many CPU seconds does a secure round cost, all clients and the server, beside Flower's?

One client in ten has shared its secrets and does not upload; threshold 60 %. Flower's side is its
own `secaggplus_mod` and the stages of its `SecAggPlusWorkflow`. Ours is measured twice: as the
functions that `MaskMod` and `Masked` call, with the records they read and write; and as `MaskMod`
and `Masked` themselves, with Flower's messages and the serialisation of the model around them. Two
shared cores, load of others 1 to 6, flwr 1.41.0, 2026-11-16; median (smallest to largest):

    shape                             functions              with all messages      Flower
    100 clients, d = 7,850, complete  221x, 2.0 CPU s        227x, 1.9 CPU s        441 CPU s
    100 clients, d = 7,850, 14 peers  37x (28-43), 0.36 s    27x (25-31), 0.47 s    13.6 s
    100 clients, d = 10^6, 14 peers   7.6x (7.6-7.9), 3.2 s  7.0x (6.9-7.6), 3.4 s  24.4 s
    1,000 clients, d = 7,850, 74 peers                       13 to 17 s

The rows with 14 peers are the last of three runs; the medians of the two before, on a busier
machine and with more copying, were 32x and 30x (22x and 23x with messages) at d = 7,850, and 8.2x
and 8.0x (6.4x and 6.7x) at 10^6. The complete shape was run once, for real: Flower's part takes
minutes. About half of ours is key
agreement there (20,000 times 40 µs) and with 14 peers; at 10^6 it is the masks' cipher and the
rounding. Busy neighbours slow ours more than Flower's, which is plain Python within one cache.
`--quick` takes shapes of a minute or two in all. Its complete graph has 30 clients, where the ratio
was 84x: Flower's sharing is cubic in the cohort, so the ratio grows with it.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
from collections.abc import Callable
from typing import Any

from secure_sum import Case, flower_round, our_functions, our_round, within_a_run


def compare(case: Case) -> None:
    """Print ratios, CPU seconds and spread, all in turn: a busy machine slows all."""
    our_round(Case(5, 10, None, 1))  # imports and caches
    rows = []
    for _ in range(case.repetitions):
        # Flower's round is long enough to even out what others do on the machine; ours is not.
        functions = [our_functions(case) for _ in range(3)]
        whole = [our_round(case)[0] for _ in range(3)]
        slow = flower_round(case)[0]
        functions += [our_functions(case) for _ in range(2)]
        whole += [our_round(case)[0] for _ in range(2)]
        rows.append((statistics.median(functions), statistics.median(whole), slow))
        _say("  functions {:.2f} s, with messages {:.2f} s, Flower {:.2f} s".format(*rows[-1]))
    target = f", target {case.target:.0f}x" if case.target else ""
    print(f"{case}:")
    for column, name in enumerate(("the functions", "with all messages and the model's arrays")):
        ratios = sorted(row[2] / row[column] for row in rows)
        ours, slow = (statistics.median(row[c] for row in rows) for c in (column, 2))
        print(
            f"  {statistics.median(ratios):.1f}x ({ratios[0]:.1f} to {ratios[-1]:.1f}{target}), "
            f"{name}: {ours:.2f} CPU s, Flower {slow:.2f} CPU s",
            flush=True,
        )


def alone(case: Case, limit: float) -> None:
    """Print the CPU seconds of ours only."""
    seconds = sorted(our_round(case)[0] for _ in range(case.repetitions))
    print(
        f"{case}: {statistics.median(seconds):.1f} CPU s "
        f"({seconds[0]:.1f} to {seconds[-1]:.1f}, limit {limit:.0f})",
        flush=True,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure all shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller shapes, once each")
    parser.add_argument("--only", default="", help="part of a line to select shapes by")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    quick = arguments.quick
    cases: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        # Flower's sharing is cubic in the cohort: the ratio at 30 clients is below that at 100.
        (compare, (Case(30, 7_850, None, 1) if quick else Case(100, 7_850, None, 1, 100),)),
        (compare, (Case(100, 7_850, 14, 1 if quick else 5, 30),)),
        (compare, (Case(100, 100_000, 14, 1) if quick else Case(100, 1_000_000, 14, 3, 7),)),
        (alone, (Case(1_000, 7_850, "auto", 1), 60.0)),
    ]

    def work() -> None:
        for measure, values in cases:
            if arguments.only in f"{measure.__name__} {values[0]}":
                measure(*values)

    within_a_run(work)


if __name__ == "__main__":
    main()
