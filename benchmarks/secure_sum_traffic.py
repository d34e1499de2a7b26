"""How many bytes does a client send and receive in a secure round, against the update in clear?

Flower's own SecAgg+ beside ours, records only, without the model that goes down anyway; one client
in ten drops out after sharing. 2026-11-16, flwr 1.41.0; nothing here depends on the machine:

    shape                             ours up, a parameter  down    Flower up, a parameter  down
    100 clients, d = 7,850, 14 peers      34,166      4.35   3,606      74,558      9.50  15,614
    30 clients, d = 7,850, complete       36,771      4.68   6,984      86,214     10.98  31,494
    30 clients, d = 10^6, 14 peers     4,002,766      4.00   3,606   8,011,728      8.01  15,610

The update in clear takes 4 bytes a parameter (float32). With bits=24 ours takes 3, with bits=16 2.
"""

from __future__ import annotations

import logging

from secure_sum import Case, flower_round, our_round, within_a_run


def show(case: Case) -> None:
    """Print the bytes of a client that stays to the end, ours and Flower's."""
    kept = case.clients - len(case.dropped)
    plain = 4 * case.dim  # float32
    for name, play in (("ours", our_round), ("Flower", flower_round)):
        grid = play(case, count_bytes=True)[1]
        # The model goes down with or without masks. Who drops out has sent keys and boxes only:
        # what it sent counts for the others, a little too much.
        up, down = grid.up / kept, grid.down / case.clients - plain
        print(
            f"{case}, {name}: up {up:,.0f} bytes ({up / case.dim:.2f} a parameter, "
            f"{up / plain:.2f} of the update in clear), down {down:,.0f} beside the model",
            flush=True,
        )


def main() -> None:
    """Measure a small model among few peers and among many, and a large one."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)

    def work() -> None:
        for clients, dim, neighbours in ((100, 7_850, 14), (30, 7_850, None), (30, 1_000_000, 14)):
            show(Case(clients, dim, neighbours, repetitions=1))

    within_a_run(work)


if __name__ == "__main__":
    main()
