"""How many CPU seconds does a secure round cost, all clients and the server, beside Flower's?

One client in ten has shared its secrets and does not upload; threshold 60 %. Flower's side is its
own `secaggplus_mod` and the stages of its `SecAggPlusWorkflow`. Ours is measured twice: as the
functions that `MaskMod` and `Masked` call, with the records they read and write; and as `MaskMod`
and `Masked` themselves, with Flower's messages and the serialisation of the model around them.
All clients are in this process, so ours derives the key of each pair once, as every simulation
does; Flower derives it on both sides. Rows "each client for itself" have both sides, as deployed
clients do. The least that those can cost is a row, too: the calls of curve, hash and cipher alone.

Fourteen neighbours are a shape to measure, not one to choose: now and then a round has too few
shares for its dropouts and is abandoned. Both sides then play another, and the time of the
abandoned one counts; the note says how many there were.

The complete graph of 100 clients has one repetition: Flower's sharing is cubic in the cohort and
takes minutes there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

from benchmarks.measure import Row, Scale, Timer, interleave
from benchmarks.secure_sum import Case, until_one_ends, within_a_run
from benchmarks.secure_sum_flower import flower_round
from benchmarks.secure_sum_ours import apart, bare, our_functions, our_round

FUNCTIONS, WHOLE, FLOWER = "the functions", "with all messages", "Flower"
SIGNED = "signed and checked, with all messages"
BARE = "curve, hash and cipher alone, each client for itself"
CASES = {
    "quick": (Case(5, 500, None, 1), Case(12, 500, 6, 1)),
    "full": (
        Case(30, 7_850, None, 5),
        Case(100, 7_850, 14, 5, {FUNCTIONS: 45, WHOLE: 35}),
        Case(50, 1_000_000, 14, 5, {FUNCTIONS: 9, WHOLE: 8}),
        Case(100, 7_850, None, 1, {FUNCTIONS: 100, SIGNED: 95}),
    ),
    "long": (Case(100, 1_000_000, 14, 3, {FUNCTIONS: 9, WHOLE: 8}),),
}
ALONE = {"quick": Case(20, 500, "auto", 1), "full": Case(1_000, 7_850, "auto", 2, {WHOLE: 60})}


def measure(scale: Scale) -> Iterator[Row]:
    """Yield rows a shape beside Flower as each is played, and the largest cohort alone."""
    # After these imports: Flower sets its own level when it is imported.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    within_a_run(lambda: our_round(Case(5, 10, None, 1)))  # imports and caches
    for case in CASES[scale]:
        yield from within_a_run(partial(compared, case))
    if scale in ALONE:
        case = ALONE[scale]
        spent = within_a_run(lambda: [our_round(case)[0] for _ in range(case.repetitions)])
        yield Row(f"{case}, {WHOLE}", spent, target=case.targets.get(WHOLE))


def compared(case: Case) -> list[Row]:
    """Return the rows of ours; clients sign where all are peers."""
    plays: dict[str, Timer] = {
        FUNCTIONS: lambda: our_functions(case),
        WHOLE: lambda: our_round(case)[0],
    }
    if case.neighbours is None:
        plays[SIGNED] = lambda: our_round(case, is_signed=True)[0]
    plays |= {f"{name}, each client for itself": apart()(play) for name, play in plays.items()}
    ours = [*plays, BARE]
    plays |= {BARE: lambda: bare(case), FLOWER: lambda: flower_round(case)[0]}
    abandoned = dict.fromkeys(plays, 0)

    def counted(name: str, play: Timer) -> float:
        spent, count = until_one_ends(play)
        abandoned[name] += count
        return spent

    timers = {name: partial(counted, name, play) for name, play in plays.items()}
    times = interleave(timers, case.repetitions, warm_up=False)
    found = []
    for name in ours:
        lost = abandoned[name], abandoned[FLOWER]
        note = "abandoned rounds, counted: ours {}, Flower {}".format(*lost) if any(lost) else ""
        figures, target = (times[name], times[FLOWER]), case.targets.get(name)
        found.append(Row(f"{case}, {name}", *figures, FLOWER, target=target, note=note))
    return found
