"""One description of an experiment as data, one function that tables it, and words for figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from operator import attrgetter, itemgetter
from typing import Any

from leakmeter.fl_app.config.config import Config
from leakmeter.papers.base import Cells, Comparison, Table
from leakmeter.papers.elkordy2023.corollaries import batch_entropy
from leakmeter.papers.elkordy2023.measure import Point
from leakmeter.papers.plot import Line, Panel

Grid = Mapping[str, Sequence[Any]]
Points = Sequence[Point]
Show = Callable[[Point], Any]
USERS: Show = itemgetter("users")
ALGORITHM: Show = attrgetter("algorithm")
SOURCE = "Elkordy et al. 2023, "
SKEWS = {"dirichlet": "α by client", "dirichlet-labels": "α by label"}
GAMES = (
    "Game independent: each draw gives every client fresh data, as the theory assumes. Game rerun: "
    "clients keep their data and only draw new batches, as the paper samples; the truth is then "
    "the entropy of the batch for any N, log₂ C(D, B) bits for FedSGD."
)
MINE = (
    "MINE: two hidden layers of 100 and 1,000 steps as in the paper, which states neither K nor "
    "the optimiser; here K = {first[pairs]:,} pairs of whole updates and Adam. Trained: read off "
    "on its training pairs, as (38) has it. Shuffled: the same where there is nothing to find. "
    "Held out: NWJ value on pairs that it has not seen, at the step that other pairs choose, ± "
    "standard error over critics. Nothing distribution-free can show more than about log₂ K."
)
_SETTINGS = {spec.name for spec in fields(Config)}


@dataclass(frozen=True)
class Sweep:
    """The points that an experiment measures.

    Attributes:
        config: The federation, save for what is varied.
        grids: Values by name: settings of `config`, and whatever else is varied, such as "users"
            in the sum. The last one varies fastest.
        fixed: What is the same at all points and no setting.
    """

    config: Config
    grids: tuple[Grid, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def points(self) -> Iterator[Point]:
        """Yield every point before it is measured."""
        for grid in self.grids:
            for values in product(*grid.values()):
                at = {**self.fixed, **dict(zip(grid, values, strict=True))}
                own = {name: value for name, value in at.items() if name in _SETTINGS}
                if math.isinf(own.get("dirichlet", 1.0)):  # label shares that do not differ
                    own |= {"partition": "iid", "dirichlet": 1.0}
                yield Point(replace(self.config, **own), at)

    def small(self, config: Config, **other: Any) -> Sweep:
        """Return the sweep of a federation without larger sums, and with other values."""
        grids = [{name: other.get(name, own) for name, own in grid.items()} for grid in self.grids]
        for grid in grids:
            if "users" in grid:
                grid["users"] = [users for users in grid["users"] if users <= config.clients]
        fixed = {name: other.get(name, own) for name, own in self.fixed.items()}
        return Sweep(config, tuple(grids), fixed)


Sweeps = Mapping[str, Mapping[str, Sweep]]  # by variant and scale


@dataclass(frozen=True)
class Kind:
    """How points are measured and shown. Texts are formatted with the first point."""

    title: str
    # Returns what is found at a point, or a list of that for each of its rounds.
    measure: Callable[[Cells, Point], Mapping[str, Any] | list[dict[str, Any]]]
    columns: Mapping[str, Show]
    draw: Callable[[Points], Iterable[Panel]]
    compare: Callable[[Points], Iterable[Comparison]]  # with what was published
    notes: tuple[str, ...]
    figure: str = ""  # file name without its ending; by default that of the variant


def tabled(
    kinds: Mapping[str, Kind], sweeps: Sweeps, scale: str, cells: Cells, variant: str
) -> Table:
    """Measure every point of a variant's sweep, and return the table."""
    kind = kinds[variant]
    points: list[Point] = []
    for at in sweeps[variant][scale].points():
        found = kind.measure(cells, at)
        points += [at | one for one in (found if isinstance(found, list) else [found])]
    shown = {name: [show(at) for at in points] for name, show in kind.columns.items()}
    filled = {name: values for name, values in shown.items() if any(v != "" for v in values)}
    return Table(
        title=kind.title.format(first=points[0]),
        columns=tuple(filled),
        rows=tuple(zip(*filled.values(), strict=True)),
        notes=tuple(note.format(first=points[0]) for note in kind.notes),
        figures={f"{kind.figure or variant}.svg": tuple(kind.draw(points))},
        comparisons=tuple(kind.compare(points)) if scale == "paper" else (),
    )


def about(rank: str = "{first[mi_rank]}", *more: str) -> str:
    """Return the note on what bits are, along so many directions."""
    note = (
        "Bits that the sum reveals about one client's update, given the initial model: "
        f"½ log₂|Σ| - ½ log₂|Σ without the client| along {rank} directions, fixed on other draws, "
        "± the standard error of a jackknife. A Gaussian model: for other distributions neither an "
        "upper nor a lower bound. Without noise every further direction adds as much. Gaussian "
        "truth: (d*/2) log₂(N/(N - 1)) for alike clients. Paper's axis: bits over the paper's "
        "entropy of what a round uses, 567 bits for an MNIST image (its own neural estimate): the "
        "batch for FedSGD, else all of the client's images."
    )
    return " ".join([note, *more])


def number(value: Any) -> str:
    """Return a number in three digits; cells keep infinities as text."""
    value = float(value)
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def plus_minus(found: Mapping[str, Any] | Point) -> str:
    """Return the target's figure with its standard error."""
    return f"{number(found['bits'])} ± {number(found['error'])}"


def percent(share: float) -> str:
    """Return a share in per cent, or nothing where the paper has no entropy."""
    return "" if math.isnan(share) else f"{100 * share:.3g} %"


def grouped(points: Points, by: Show) -> dict[Any, list[Point]]:
    """Return the points by something that they share."""
    groups: dict[Any, list[Point]] = {}
    for at in points:
        groups.setdefault(by(at), []).append(at)
    return groups


def joined(points: Points, show: Show, separator: str = ", ") -> str:
    """Return what is shown of each point, in one line."""
    return separator.join(str(show(at)) for at in points)


def figure(name: str) -> Show:
    """Return what shows one of a point's figures or settings, or nothing where it has none."""

    def show(at: Point) -> Any:
        value = at.found.get(name, getattr(at.config, name, ""))
        return number(value) if isinstance(value, float) else value

    return show


def _bits(at: Point) -> str:
    """Return the target's figure with its error, or with its range over draws of the others."""
    if "low" not in at.found:
        return plus_minus(at)
    return f"{number(at['bits'])} ({number(at['low'])} to {number(at['high'])})"


def _batch_entropy(at: Point) -> str:
    # With fresh data the batch is not all that is random.
    is_all = at.config.algorithm == "fedsgd" and ("noise" in at.found or at["game"] == "rerun")
    return number(batch_entropy(at["records"], at.used).bits) if is_all else ""


def _held_out(at: Point) -> str:
    has_critics = "held_out" in at.found
    return f"{at['held_out']:.2f} ± {at['held_out_error']:.2f}" if has_critics else ""


_COLUMNS: dict[str, str | Show] = {
    "algorithm": ALGORITHM,
    "data": "dataset",
    "batch size": "batch_size",
    "local epochs": "epochs",
    "partition": lambda at: SKEWS[at["partition"]],
    "α": "dirichlet",
    "ε named": "epsilon",
    "bits": _bits,
    "noise on the mean": "noise",
    "bits with noise": lambda at: plus_minus(at["noised"]),
    "per record used": lambda at: number(at.per_record),
    "mean over users": "mean",
    "directions": "rank",
    "variance kept": lambda at: f"{100 * at['kept']:.0f} %",
    "Gaussian truth": "gaussian",
    "free coordinates": "free",
    "all coordinates": lambda at: number(at.whole_bits) if at["game"] == "independent" else "",
    "batch entropy": _batch_entropy,
    "images": "records",
    "paper's axis": lambda at: percent(at.share(at["bits"])),
    "accuracy": lambda at: f"{at['accuracy']:.3f}" if "accuracy" in at.found else "",
    "MINE trained": "trained",
    "MINE shuffled": "shuffled",
    "MINE held out": _held_out,
    "log₂ K": "log_draws",
    "log-det coordinates": "rank",
    "truth there": "truth_there",
    "log-det": plus_minus,
    "took part in": "participations",
    "shuffled pairs": "null",
    "sum of single rounds": "single",
    "Corollary 1": "corollary",
    "paper's axis, Corollary 1": lambda at: percent(at.share(at["corollary"])),
}


def columns(*names: str) -> dict[str, Show]:
    """Return what columns show of a point; one that is not known shows what has its name."""
    shows = {name: _COLUMNS.get(name, name) for name in names}
    return {name: figure(show) if isinstance(show, str) else show for name, show in shows.items()}


def line(
    label: str, points: Points, y: Show, color: int = 0, style: str = "o-", *, x: Show = USERS
) -> Line:
    """Return a line without its infinite points, which no plot can show."""
    there = [at for at in points if math.isfinite(y(at))]
    return Line(label, [x(at) for at in there], [y(at) for at in there], color, style)


def lines(
    points: Points,
    label: Show,
    y: Show,
    *,
    x: Show = USERS,
    color: Show | None = None,
    style: Show = lambda _: "o-",
) -> tuple[Line, ...]:
    """Return a line for each label; those that agree in `color` have one colour."""
    shade = color or label
    colors = list(grouped(points, shade))
    return tuple(
        line(name, own, y, colors.index(shade(own[0])), style(own[0]), x=x)
        for name, own in grouped(points, label).items()
    )


def truth(points: Points, color: int) -> Line:
    """Return the line of Gaussian clients that are alike."""
    return line("Gaussian truth", points, itemgetter("gaussian"), color, ":")
