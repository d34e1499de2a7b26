"""Plans how many canaries play in which round, and says what they cannot show in a project."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from leakmeter.auditors.auditor import Project, UnableError
from leakmeter.auditors.canaries.changes import file_size
from leakmeter.auditors.canaries.scores import LEAST_FITTED
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import counted

_LEAST_COHORT: Final = 3  # with one seat, honest clients are the majority
_ONE_IN: Final = 5


def seats_of(clients: int) -> int:
    """Return the seats of a cohort, such that most of it stays honest: one in five, or none.

    >>> [seats_of(n) for n in (2, 3, 9, 10, 100)]
    [0, 1, 1, 2, 20]
    """
    return 0 if clients < _LEAST_COHORT else max(clients // _ONE_IN, 1)


def affordable(
    canaries: int | None, repetitions: int, seats: int, rounds: int, *, least: int
) -> int:
    """Return how many canaries play in the given rounds.

    Args:
        canaries: The user's setting; None for as many as there are seats.
        repetitions: In how many rounds each plays.
        seats: Seats per round.
        rounds: Number of rounds that may have canaries.
        least: Canaries that the audit needs.

    Raises:
        UnableError: The project has too few rounds.
        ValueError: The user asks for more canaries than that many rounds allow.
    """
    slots = seats * rounds
    # Fewer seats in all come from the project, not from what the user typed.
    needed = least if canaries is not None else least * repetitions
    if slots < needed or repetitions > rounds:
        raise UnableError(
            f"canaries need at least {needed} seats x rounds and {repetitions} rounds, got {seats} "
            f"seats and {rounds} rounds"
        )
    k = slots // repetitions if canaries is None else canaries
    if k < least or k * repetitions > slots:
        raise ValueError(
            f"canaries x repetitions must be at most seats x rounds = {slots} with at least "
            f"{least} canaries, got {k} x {repetitions}"
        )
    return k


def schedule(k: int, repetitions: int, num_rounds: int, seed: int) -> dict[int, list[int]]:
    """Return the canaries of each round: each plays `repetitions` times, at most once a round.

    A round takes those with most repetitions left, so that the rest stays playable; ties are
    broken at random.
    """
    left = np.full(k, repetitions)
    total = k * repetitions
    plan = {}
    for server_round in range(1, num_rounds + 1):
        take = total * server_round // num_rounds - total * (server_round - 1) // num_rounds
        order = stream(seed, "schedule", server_round).permutation(k)
        ids = order[np.argsort(-left[order], kind="stable")][:take]
        left[ids] -= 1
        plan[server_round] = ids.tolist()
    assert not left.any()
    return plan


_VISIBLE: Final = 3.0  # standard deviations
_LARGE: Final = 1e9  # bytes of a working file that are worth a line
_LONG: Final = 60.0  # seconds
# Seconds of one core per coordinate of a canary, and per multiply-add of a matrix product, as
# benchmarks/transcript_report.py measured them on one kind of machine.
_DRAW: Final = 15e-9
_ADD: Final = 0.055e-9


def canary_limitations(
    project: Project, *, canaries: int, included: int, seats: int, watched: int
) -> list[str]:
    """Return in words where there are too few canaries, clients or parameters, or too many.

    Args:
        project: The run.
        canaries: Canaries of the whole run.
        included: How many of them are expected to take part.
        seats: Clients per round that play one.
        watched: Canaries that are searched for at the end, including those that nobody plays.
    """
    rounds, clients, dim = project.num_rounds, project.clients, project.dim
    said = []
    if (size := file_size(dim, rounds)) > _LARGE:
        said.append(
            f"the changes of the model take up to {size / 1e9:.1f} GB of disk until the report is "
            f"written: {rounds} rounds of {dim:,} parameters in single precision"
        )
    if (seconds := product_seconds(watched, rounds, dim)) > _LONG:
        said.append(
            f"the products of {watched:,} canaries with the changes of {rounds:,} rounds take "
            f"about {_rounded(seconds / 60)} minutes of one core after the last round; use fewer "
            "canaries to save time"
        )
    if included < LEAST_FITTED:
        noun = "canary" if canaries == 1 else "canaries"
        which = (
            "all taking part" if included == canaries else f"of which about {included} take part"
        )
        said.append(
            f"{canaries} {noun} in {counted(rounds, 'round')}, {which}: results vary widely, and "
            f"estimates that fit a standard deviation are left out below {LEAST_FITTED}; use more "
            "seats or rounds"
        )
    if clients is not None and 2 * seats > clients:
        said.append(
            f"{min(seats, clients)} of the {clients} clients of round 1 play canaries: the model "
            f"learns only from {max(clients - seats, 0)}; use fewer seats or more clients per round"
        )
    # Among n updates of equal norm without a common direction, a canary has the cosine 1/√n with
    # their sum. The cosine of a canary that is out has mean 0 and standard deviation 1/√d.
    if clients and (seen := math.sqrt(dim / clients)) < _VISIBLE:
        said.append(
            f"{dim} parameters for {clients} clients per round: a canary stands out by only about "
            f"{seen:.1f} standard deviations, so the audit may find little even if much leaks; "
            "fewer clients per round or a larger model show more"
        )
    said += [
        f"{name} scales every coordinate of the mean separately: an outsider who undoes that sees "
        "canaries more clearly than this audit does"
        for name in project.bent_by
    ]
    said += [
        f"{name} drops or trims updates that differ from the rest. A canary is a random vector, so "
        "it may be dropped where a client's own update is not: a low result says little about "
        "clients"
        for name in project.selected_by
    ]
    return said


def product_seconds(canaries: int, rounds: int, dim: int) -> float:
    """Return about how many seconds of one core the products of canaries and changes take.

    Every canary is drawn once. The products take k·T·d multiply-adds, the Gram matrix T²·d/2.
    """
    return dim * (canaries * _DRAW + (canaries * rounds + rounds**2 / 2) * _ADD)


def _rounded(minutes: float) -> str:
    """Return an estimate with two digits at most."""
    return f"{round(minutes, min(2 - len(str(int(minutes))), 0)):,.0f}"
