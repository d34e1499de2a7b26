"""What all rounds together tell of a client's data, over the number of rounds.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 9: linear model on MNIST, three algorithms. Beside it
runs with cohorts drawn each round, (16), and with users that collude, Corollary 2. See
`fl_app.experiments.elkordy2023.accumulated` for what is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.accumulated import Run, accumulated
from leakmeter.fl_app.experiments.elkordy2023.measure import NAMES, Algorithm, Setting
from leakmeter.fl_app.experiments.plot import Panel


@dataclass(frozen=True)
class _Scale:
    setting: Setting
    run: Run
    algorithms: tuple[Algorithm, ...]
    cohort: int
    colluding: int


_SCALES = {
    "paper": _Scale(
        Setting("mnist", batch_size=32),
        Run(users=5, rounds=10, pairs=300, rank=4),
        ("fedsgd", "fedavg", "fedprox"),
        cohort=3,
        colluding=2,
    ),
    "small": _Scale(
        Setting("synthetic", clients=20, batch_size=8, synthetic_examples=600),
        Run(users=3, rounds=4, pairs=80, rank=3),
        ("fedsgd", "fedavg"),
        cohort=2,
        colluding=1,
    ),
}
_NOTES = (
    "Bits that the sums of the first T rounds tell of the target's records: two runs share these "
    "and nothing else, ½ log₂|Σ(A)| - ½ log₂|Σ(A given D)| of a Gaussian model with its standard "
    "error. Corollary 1: the rounds that the target took part in times (d*/2) log₂(n/(n - 1)), n "
    "the honest users of a round, in the same directions and with C₀ = 0, which only Gaussians "
    "have; expected: their mean T·K/N in place of the rounds, (16). The corollary counts what is "
    "told of updates, and with new batches in each round an update says less than itself of the "
    "data behind it. In the paper the figure grows in proportion to T; here it grows less, if at "
    "all: the same data are seen again. FedSGD's sums say the less of a client's records the fewer "
    "of them a batch takes.",
)


def run(scale: str, cells: Cells) -> Table:
    """Play all runs."""
    what = _SCALES[scale]
    rows: list[tuple[Any, ...]] = []
    lines = []
    told: dict[str, list[dict[str, Any]]] = {}
    for color, (name, setting, played) in enumerate(_runs(what)):
        key = f"{setting.key}-{played.cell}"
        found = [dict(f) for f in cells.get(key, partial(accumulated, setting, played))]
        told[name] = found
        rows += [_row(name, setting, played, f) for f in found]
        steps = [f["rounds"] for f in found]
        lines.append(page.line(name, steps, [f["bits"] for f in found], color))
        if played == what.run and color == 0:
            bound = [f["corollary"] for f in found]
            lines.append(page.line("Corollary 1, all users", steps, bound, 9, "--"))
    return Table(
        title=f"What all rounds tell of a client's data: {what.setting.dataset}, linear model",
        columns=(
            *("run", "users", "cohort", "colluding", "rounds", "took part in", "bits"),
            *("Corollary 1", "expected", "paper's axis"),
        ),
        rows=tuple(rows),
        notes=_NOTES,
        figures={"rounds.svg": (Panel("Accumulated", "rounds", "bits", tuple(lines)),)},
        comparisons=_comparisons(what, told) if scale == "paper" else (),
    )


def _comparisons(what: _Scale, told: dict[str, list[dict[str, Any]]]) -> tuple[Comparison, ...]:
    rows = []
    for algorithm in what.algorithms:
        found = told[NAMES[algorithm]]
        first, last = found[0], found[-1]
        rows.append(
            Comparison(
                f"{page.SOURCE}Fig. 9",
                f"what {last['rounds']} rounds tell of a client's data, {NAMES[algorithm]}, "
                f"N = {what.run.users}, linear model on MNIST",
                "grows in proportion to the rounds T",
                f"{page.plus_minus(first)} bits after one round, {page.plus_minus(last)} after "
                f"{last['rounds']}, where {_proportion(first, last['rounds'])} and Corollary 1 "
                f"allows {page.number(last['corollary'])}",
                "later rounds see the same records again; along few directions a round, and "
                f"{page.UNITS}",
            )
        )
    sampled = told["FedAvg, sampled"][-1]
    rows.append(
        Comparison(
            f"{page.SOURCE}section 5.4",
            f"the same with {what.cohort} of {what.run.users} users drawn each round, FedAvg",
            "fewer rounds with the client, less told of it",
            f"{page.plus_minus(sampled)} bits from {sampled['participations']} of "
            f"{sampled['rounds']} rounds, against {page.plus_minus(told['FedAvg'][-1])} from all",
            "two things pull: the client misses rounds, and those it is in hide it among fewer",
        )
    )
    return tuple(rows)


def _proportion(first: dict[str, Any], rounds: int) -> str:
    """Say what growth in proportion would give, if one round tells anything that can be shown."""
    if float(first["bits"]) < 2 * float(first["error"]):
        return "one round alone cannot be told from none"
    return f"proportion would make it {page.number(rounds * float(first['bits']))}"


def _runs(what: _Scale) -> list[tuple[str, Setting, Run]]:
    """Return every algorithm with all users, and FedAvg with fewer that hide the target."""
    whole = [(NAMES[a], replace(what.setting, algorithm=a), what.run) for a in what.algorithms]
    setting = replace(what.setting, algorithm="fedavg")
    return [
        *whole,
        ("FedAvg, sampled", setting, replace(what.run, cohort=what.cohort)),
        ("FedAvg, collusion", setting, replace(what.run, colluding=what.colluding)),
    ]


def _row(name: str, setting: Setting, played: Run, found: dict[str, Any]) -> tuple[Any, ...]:
    return (
        name,
        played.users,
        played.cohort or played.users,
        played.colluding,
        found["rounds"],
        found["participations"],
        page.plus_minus(found),
        page.number(found["corollary"]),
        page.number(found["expected"]),
        page.data_share(setting, float(found["bits"]), found["records"]),
    )
