"""How many bytes does a client send and receive in a secure round, against the update in clear?

Flower's own SecAgg+ beside ours, records only, without the model that goes down anyway; one client
in ten drops out after sharing. Counted once: nothing here depends on the machine. The update in
clear takes 4 bytes a parameter (float32). With bits=24 ours takes 3, with bits=16 2.
"""

from __future__ import annotations

import logging

from benchmarks.measure import Row, Scale
from benchmarks.secure_sum import Case, within_a_run
from benchmarks.secure_sum_flower import flower_round
from benchmarks.secure_sum_ours import our_round

CASES = {
    "quick": (Case(5, 500, None, 1),),
    "full": (Case(100, 7_850, 14, 1), Case(30, 7_850, None, 1), Case(30, 1_000_000, 14, 1)),
}
SIGNED = {
    "quick": (Case(5, 500, None, 1),),
    "full": (Case(100, 7_850, None, 1), Case(30, 7_850, None, 1)),
}


def measure(scale: Scale) -> list[Row]:
    """Return two rows a shape, up and down."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    return within_a_run(
        lambda: [
            *(row for case in CASES.get(scale, ()) for row in counted(case)),
            *(row for case in SIGNED.get(scale, ()) for row in signed(case)),
        ]
    )


def counted(case: Case) -> list[Row]:
    """Return the bytes of a client that stays to the end, ours and Flower's."""
    kept, plain = case.clients - len(case.dropped), 4 * case.dim
    grids = [play(case, count_bytes=True)[1] for play in (our_round, flower_round)]
    # Who drops out has sent keys and boxes only: what it sent counts for the others, a little too
    # much. The model goes down with or without masks.
    ups = [grid.up / kept for grid in grids]
    downs = [grid.down / case.clients - plain for grid in grids]
    note = "bytes a parameter: ours {:.2f}, Flower {:.2f}".format(*(up / case.dim for up in ups))
    return [
        Row(f"{case}, up", ups[:1], ups[1:], peer="Flower", unit="bytes", note=note),
        Row(f"{case}, down less the model", downs[:1], downs[1:], peer="Flower", unit="bytes"),
    ]


def signed(case: Case) -> list[Row]:
    """Return the bytes of a client that signs, and checks the others' signatures."""
    kept, plain = case.clients - len(case.dropped), 4 * case.dim
    _, grid = our_round(case, count_bytes=True, is_signed=True)
    up, down = grid.up / kept, grid.down / case.clients - plain
    note = f"bytes a parameter: {up / case.dim:.2f}"
    return [
        Row(f"{case}, signed and checked, up", [up], unit="bytes", note=note),
        Row(f"{case}, signed and checked, down, without the model", [down], unit="bytes"),
    ]
