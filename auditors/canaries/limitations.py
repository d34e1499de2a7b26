"""Says in words what canaries cannot show in a given project."""

from __future__ import annotations

import math
from typing import Final

from leakmeter.auditors.auditor import Project
from leakmeter.auditors.canaries.changes import file_size
from leakmeter.auditors.canaries.estimates import LEAST_FITTED

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
    return [
        *_large_file(project),
        *_long_products(project, watched),
        *_few_canaries(project, canaries, included),
        *_few_clients(project, seats),
        *_few_parameters(project),
        *_bent(project),
        *_selected(project),
    ]


def _large_file(project: Project) -> list[str]:
    size = file_size(project.dim, project.num_rounds)
    if size <= _LARGE:
        return []
    return [
        f"the changes of the model take up to {size / 1e9:.1f} GB of disk until the report is "
        f"written: {project.num_rounds} rounds of {project.dim:,} parameters in single precision"
    ]


def _long_products(project: Project, watched: int) -> list[str]:
    seconds = product_seconds(watched, project.num_rounds, project.dim)
    if seconds <= _LONG:
        return []
    return [
        f"the products of {watched:,} canaries with the changes of {project.num_rounds:,} rounds "
        f"take about {_rounded(seconds / 60)} minutes of one core after the last round; use fewer "
        "canaries to save time"
    ]


def product_seconds(canaries: int, rounds: int, dim: int) -> float:
    """Return about how many seconds of one core the products of canaries and changes take.

    Every canary is drawn once. The products take k·T·d multiply-adds, the Gram matrix T²·d/2.
    """
    return dim * (canaries * _DRAW + (canaries * rounds + rounds**2 / 2) * _ADD)


def _rounded(minutes: float) -> str:
    """Return an estimate with two digits at most."""
    return f"{round(minutes, min(2 - len(str(int(minutes))), 0)):,.0f}"


def _few_canaries(project: Project, canaries: int, included: int) -> list[str]:
    if included >= LEAST_FITTED:
        return []
    rounds = f"{project.num_rounds} round{'s' * (project.num_rounds > 1)}"
    return [
        f"{canaries} canaries in {rounds}, of which about {included} take part: results vary "
        f"widely, and estimates that fit a standard deviation are left out below {LEAST_FITTED}; "
        "use more seats or rounds"
    ]


def _few_clients(project: Project, seats: int) -> list[str]:
    if project.clients is None or 2 * seats <= project.clients:
        return []
    honest = max(project.clients - seats, 0)
    return [
        f"{min(seats, project.clients)} of the {project.clients} clients of round 1 play canaries: "
        f"the model learns only from {honest}; use fewer seats or more clients per round"
    ]


def _few_parameters(project: Project) -> list[str]:
    """Compare a canary's cosine with its standard deviation if nothing leaks.

    Among n updates of equal norm without a common direction, a canary has the cosine 1/√n with
    their sum. The cosine of a canary that is out has mean 0 and standard deviation 1/√d.
    """
    if not project.clients:
        return []
    seen = math.sqrt(project.dim / project.clients)
    if seen >= _VISIBLE:
        return []
    return [
        f"{project.dim} parameters for {project.clients} clients per round: a canary stands out by "
        f"only about {seen:.1f} standard deviations, so the audit may find little even if much "
        "leaks; fewer clients per round or a larger model show more"
    ]


def _bent(project: Project) -> list[str]:
    return [
        f"{name} scales every coordinate of the mean separately: an outsider who undoes that sees "
        "canaries more clearly than this audit does"
        for name in project.bent_by
    ]


def _selected(project: Project) -> list[str]:
    return [
        f"{name} drops or trims updates that differ from the rest. A canary is a random vector, so "
        "it may be dropped where a client's own update is not: a low result says little about "
        "clients"
        for name in project.selected_by
    ]
