"""How many CPU seconds does a secure round cost, all clients and the server, beside Flower's?

One client in ten has shared its secrets and does not upload; threshold 60 %. Flower's side is its
own `secaggplus_mod` and the stages of its `SecAggPlusWorkflow`. Ours is measured twice: as the
functions that `MaskMod` and `Masked` call, with the records they read and write; and as `MaskMod`
and `Masked` themselves, with Flower's messages and the serialisation of the model around them.

Flower's sharing on a complete graph is cubic in the cohort and takes minutes for 100 clients, so
the complete graph has 30 here, where the ratio is smaller; the long scale takes 100, once: 221
times (2.0 against 441 CPU s; with messages 227 times), and the largest model with 100 clients.
With 14 neighbours a client's cost does not depend on their number, and the largest model has 50.
About half of ours is key agreement; at d = 10⁶ it is the masks' cipher and the rounding. Busy
neighbours slow ours more than Flower's, which is plain Python within one cache. Two shared cores,
flwr 1.41.0, 2026-11-16.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator
from contextlib import suppress

from benchmarks.measure import Row, Scale, Timer, alone, interleave, paired
from benchmarks.script import main
from benchmarks.secure_sum import Case, within_a_run
from benchmarks.secure_sum_flower import flower_round
from benchmarks.secure_sum_ours import our_functions, our_round
from leakmeter.strategies.secure_sum.unmasking import AbandonedError

FUNCTIONS, WHOLE, FLOWER = "the functions", "with all messages", "Flower"
SIGNED = "signed and checked, with all messages"
CASES = {
    "quick": (Case(5, 500, None, 1), Case(12, 500, 6, 1)),
    "full": (
        Case(30, 7_850, None, 5),
        Case(100, 7_850, 14, 5, 30),
        Case(50, 1_000_000, 14, 5, 7),
    ),
    "long": (Case(100, 7_850, None, 1, 100, 80), Case(100, 1_000_000, 14, 3, 7)),
}
ALONE = {"quick": Case(20, 500, "auto", 1), "full": Case(1_000, 7_850, "auto", 2, 60)}


def measure(scale: Scale) -> list[Row]:
    """Return two rows a shape beside Flower, and the largest cohort alone."""
    # After these imports: Flower sets its own level when it is imported.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    return within_a_run(lambda: list(rounds(scale)))


def rounds(scale: Scale) -> Iterator[Row]:
    """Yield all rows, where Flower lets messages be made."""
    our_round(Case(5, 10, None, 1))  # imports and caches
    for case in CASES[scale]:
        yield from compared(case)
    if scale in ALONE:
        case = ALONE[scale]
        spent = [our_round(case)[0] for _ in range(case.repetitions)]
        yield alone(f"{case}, {WHOLE}", spent, target=case.target)


def compared(case: Case) -> Iterator[Row]:
    """Yield the rows of ours; clients sign where all are peers."""
    timers = {
        FUNCTIONS: evened(lambda: our_functions(case)),
        FLOWER: lambda: flower_round(case)[0],
        WHOLE: evened(lambda: our_round(case)[0]),
    }
    targets = {FUNCTIONS: case.target, WHOLE: None}
    if case.neighbours is None:
        timers[SIGNED] = evened(lambda: our_round(case, is_signed=True)[0])
        targets[SIGNED] = case.signed_target
    times = interleave(timers, case.repetitions, warm_up=False)
    for name, target in targets.items():
        yield paired(f"{case}, {name}", times[name], times[FLOWER], peer=FLOWER, target=target)


def evened(timed: Timer) -> Timer:
    """Return the median of three: Flower's round is long enough to even out others' work."""
    return lambda: statistics.median(whole(timed) for _ in range(3))


def whole(timed: Timer) -> float:
    """Return the time of a round that came to its end; one in ten or so has too few shares."""
    while True:
        with suppress(AbandonedError):
            return timed()


if __name__ == "__main__":
    main(measure, __doc__)
