"""What the sum of one round reveals about a client, at the initial model, over all that is varied.

Elkordy et al. (2023), arXiv:2208.02304. How ours differs:

- users, models: Fig. 3 to 5, in two games; beside it users that collude (Corollary 2), and the
  neural estimate on training pairs, on shuffled ones and held out.
- batch, epochs: Fig. 6 to 8, 11 and 12, without noise and with a fixed one. For clients of one
  distribution the Gaussian figure does not change when updates are scaled; under noise it does.
- heterogeneity: Fig. 13. Each client draws its label shares from a Dirichlet distribution (Hsu, Qi
  and Brown 2019, arXiv:1909.06335, whom the paper follows); beside it labels that are split over
  clients. Clients keep their data: those that draw skewed data afresh are alike again.
- writers: Fig. 14, MNIST by writer (539 writers, 116 digits each in the middle); the same target in
  every sum, and means over several draws of the others.
- noise: Fig. 16, the classical σ = C √(2 ln(1.25/δ)) / ε after the sum, C = 1, δ = 1/1,200. It is
  short of the ε that it names where that is large, so it is taken as a size of noise, not as a
  guarantee. (The paper's text has ε under the root as well. At ε = 5,000 that would be 0.054 on
  each coordinate, too much for the accuracy of Fig. 16 (b).) Beside it the accuracy of a model
  that is trained with this noise in every round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter

import numpy as np

from leakmeter.auditors.rng import stream
from leakmeter.papers.base import Cells
from leakmeter.papers.elkordy2023 import claims, measure, page
from leakmeter.papers.elkordy2023.measure import DIGITS, FEDERATION, NAMES, Found, Point
from leakmeter.papers.elkordy2023.page import Grid, Kind, Points, Sweep
from leakmeter.papers.plot import Panel

_CLIP, _DELTA = 1.0, 1 / 1200
_FIVE, _PASSES = (2, 5, 10, 20, 50), ("fedavg", "fedprox")
_GAMES: Grid = {"algorithm": tuple(NAMES), "lrt_game": ("independent", "rerun"), "users": _FIVE}
_COLLUDING: Grid = {"colluding": (5, 10, 15), "users": (20,)}
# Larger models, and those whose clients pass over all their data, have fewer draws.
_WIDE, _DEEP = ({"mi_draws": (draws,), "mi_rank": (rank,)} for draws, rank in ((90, 20), (40, 10)))
_CIFAR: tuple[Grid, ...] = (
    {"dataset": ("cifar10",), "model": ("linear", "slp"), **_WIDE},
    {"dataset": ("cifar10",), "model": ("cnn",), **_DEEP},
)
_LARGE: tuple[Grid, ...] = ({"model": ("slp",), **_WIDE}, {"model": ("mlp",), **_DEEP}, *_CIFAR)
_EVERY: Grid = {"model": ("linear", "slp", "mlp")}
_GRIDS = (_EVERY, *_CIFAR, *({"algorithm": (a,), **grid} for a in _PASSES for grid in _LARGE))
_FEW_GRIDS: tuple[Grid, ...] = (_EVERY, {"algorithm": ("fedavg",), "model": ("slp", "mlp")})
_FEW, _FEW_DIGITS = replace(FEDERATION, mi_draws=60), replace(DIGITS, mi_draws=40)
_BATCHES: Grid = {"algorithm": (*NAMES,), "users": (20,), "batch_size": (16, 32, 64, 128, 256)}
_EPOCHS: Grid = {"algorithm": _PASSES, "users": (10, 20), "epochs": (1, 2, 5, 10)}
_KEPT, _KEPT_DIGITS = (
    replace(c, algorithm="fedavg", lrt_game="rerun") for c in (FEDERATION, DIGITS)
)
_SKEWS: Grid = {
    "partition": ("dirichlet", "dirichlet-labels"),
    "epochs": (1, 5),
    "dirichlet": (1.0, 10.0, 100.0, math.inf),
    "users": _FIVE[:-1],
}
_WRITERS = replace(_KEPT, clients=539, partition="natural", mi_draws=120)
# Digits have no writers: skewed labels stand in for them.
_STAND_IN = replace(_KEPT_DIGITS, clients=40, partition="dirichlet-labels", dirichlet=2.0)
_NOISES: Grid = {"epsilon": (5.0, 10.0, 50.0, 500.0, 5000.0, math.inf), "users": (*_FIVE, 1000)}
_PAPER = {
    "users": Sweep(FEDERATION, (_GAMES, _COLLUDING), {"critics": _FIVE, "pairs": 1000, "seeds": 3}),
    "models": Sweep(FEDERATION, tuple({**grid, "users": (2, 10, 20)} for grid in _GRIDS)),
    "batch": Sweep(_FEW, (_BATCHES,), {"first": 16}),
    "epochs": Sweep(_FEW, (_EPOCHS,), {"first": 1}),
    "heterogeneity": Sweep(_KEPT, (_SKEWS,)),
    "writers": Sweep(_WRITERS, ({"epochs": (1, 5), "users": _FIVE},), {"cohorts": 3}),
    "noise": Sweep(FEDERATION, (_NOISES,), {"rounds": 100, "plays": 3}),
}
_SMALL = {
    "users": _PAPER["users"].small(DIGITS, critics=(2,), pairs=60, seeds=2),
    "models": Sweep(DIGITS, tuple({**grid, "users": (2, 10)} for grid in _FEW_GRIDS)),
    "batch": _PAPER["batch"].small(_FEW_DIGITS, users=(10,), batch_size=(4, 8, 16, 32), first=4),
    "epochs": _PAPER["epochs"].small(_FEW_DIGITS, users=(10,), epochs=(1, 2, 5)),
    "heterogeneity": _PAPER["heterogeneity"].small(
        _KEPT_DIGITS, epochs=(1,), dirichlet=(0.5, 10.0, math.inf)
    ),
    "writers": _PAPER["writers"].small(_STAND_IN, users=(2, 5, 20), epochs=(1,), cohorts=2),
    "noise": _PAPER["noise"].small(DIGITS, epsilon=(10.0, 500.0, math.inf), rounds=30, plays=1),
}
_SCALES = {name: {"paper": paper, "small": _SMALL[name]} for name, paper in _PAPER.items()}


def _plain(cells: Cells, at: Point) -> Found:
    return measure.looked(cells, at.config, at["users"])


def _with_critics(cells: Cells, at: Point) -> Found:
    """Measure a point where users may collude, and let critics look where they are asked."""
    users, config, colluding = at["users"], at.config, at.found.get("colluding", 0)
    suffix = f"-colluding{colluding}" if colluding else ""
    found = measure.looked(cells, config, users, suffix, colluding=colluding)
    found["colluding"] = colluding
    is_asked = (config.game, config.algorithm) == ("rerun", "fedsgd")
    if is_asked and users in at.found.get("critics", ()):
        key = f"{measure.name_of(config)}-N{users}-mine-{at['pairs']}x{at['seeds']}"
        size = {"draws": at["pairs"], "count": at["seeds"]}
        found |= cells.get(key, measure.critics, config, users, **size)
    return found


def _twice(field: str, cells: Cells, at: Point) -> Found:
    """Measure without noise, and with that of the first value of what varies."""
    first = replace(at.config, **{field: at["first"]})
    spread = cells.get(f"{measure.cell_of(first)}-spread", measure.update_std, first)
    noise = float(spread) / math.sqrt(at["users"])
    noised = measure.looked(cells, at.config, at["users"], "-noise", noise_std=noise)
    return _plain(cells, at) | {"noise": noise, "noised": noised}


def _over_cohorts(cells: Cells, at: Point) -> Found:
    """Return means over draws of the other users, and the range of the target's bits."""
    users, each = at["users"], []
    for i in range(at["cohorts"]):
        who = others(users, at.config.clients, i)
        each.append(measure.looked(cells, at.config, users, f"-others{i}", others=who))
    bits = [one["bits"] for one in each]
    means = {n: float(np.mean([one[n] for one in each])) for n in ("bits", "mean", "gaussian")}
    rank, records = min(one["rank"] for one in each), each[0]["records"]
    return means | {"low": min(bits), "high": max(bits), "rank": rank, "records": records}


def others(users: int, clients: int, cohort: int) -> list[int]:
    """Return who is in the sum beside the target in one draw."""
    rng = stream(measure.SEED, "mi-writers", "others", users, cohort)
    return [1 + int(i) for i in np.sort(rng.choice(clients - 1, users - 1, replace=False))]


def _with_noise(cells: Cells, at: Point) -> Found:
    """Measure a noised sum, and the accuracy with the noise in every round."""
    # In the game independent a batch of FedSGD is a uniform subset of all records, however many
    # of these a client holds: more clients change no distribution.
    users, large = at["users"], replace(at.config, clients=max(at["users"], at.config.clients))
    std, suffix = noise_std(at["epsilon"]), f"-eps{at['epsilon']:g}"
    found = measure.looked(cells, large, users, suffix, noise_std=std)
    key = f"{measure.name_of(large)}-N{users}{suffix}-accuracy-{at['rounds']}x{at['plays']}"
    size = {"rounds": at["rounds"], "plays": at["plays"]}
    runs = cells.get(key, measure.noised_accuracies, large, users, std, _CLIP, **size)
    norm = cells.get(f"{measure.cell_of(at.config)}-norm", measure.largest_norm, at.config)
    return found | {"noise": std, "norm": norm, "accuracy": float(np.mean(runs))}


def noise_std(epsilon: float) -> float:
    """Return the paper's noise on each coordinate of the aggregate.

    >>> round(noise_std(5.0), 4)
    0.7649
    """
    return _CLIP * math.sqrt(2 * math.log(1.25 / _DELTA)) / epsilon


def _draw_users(points: Points) -> Iterator[Panel]:
    honest = [at for at in points if not at["colluding"]]
    lines = page.lines(
        honest,
        lambda at: f"{at.algorithm}, {at['game']}",
        itemgetter("bits"),
        color=page.ALGORITHM,
        style=lambda at: "o-" if at["game"] == "independent" else "x--",
    )
    last = [at for at in honest if at.config == honest[-1].config]
    drawn = (*lines, page.truth(last, len(NAMES)))
    yield Panel("Information in the sum", "users", "bits", drawn, True, True)


def _draw_models(points: Points) -> Iterator[Panel]:
    lines = page.lines(
        points,
        lambda at: f"{at.algorithm}, {at['dataset']}, {at['model']}",
        lambda at: at["bits"] / at["rank"],
    )
    yield Panel("Bits a direction", "users", "bits", lines, True)


def _draw_values(field: str, name: str, points: Points) -> Iterator[Panel]:
    shown: dict[str, page.Show] = {
        "without noise": itemgetter("bits"),
        "per record used": lambda at: at.per_record,
        "with a fixed noise": lambda at: at["noised"]["bits"],
    }
    for title, y in shown.items():
        lines = page.lines(
            points,
            lambda at: f"{at.algorithm}, N = {at['users']}",
            y,
            x=itemgetter(field),
            color=page.ALGORITHM,
            style=lambda at: "o-" if at["users"] == points[0]["users"] else "x--",
        )
        yield Panel(title, name, "bits", lines, True, title == "per record used")


def _draw_skews(points: Points) -> Iterator[Panel]:
    for (skew, epochs), own in page.grouped(points, itemgetter("partition", "epochs")).items():
        title = f"Most exposed user, {page.SKEWS[skew]}, E = {epochs}"
        lines = page.lines(own, claims.alpha, itemgetter("largest"))
        yield Panel(title, "users", "bits", lines, True, True)


def _draw_writers(points: Points) -> Iterator[Panel]:
    drawn = []
    groups = page.grouped(points, itemgetter("epochs"))
    for color, (epochs, own) in enumerate(groups.items()):
        for name, label, style in (("bits", "target", "x--"), ("mean", "mean over users", "o-")):
            label = f"{label}, E = {epochs}"
            drawn.append(page.line(label, own, itemgetter(name), color, style))
    drawn.append(page.truth(own, len(groups)))
    yield Panel("A writer", "users", "bits", tuple(drawn), True, True)


def _draw_noise(points: Points) -> Iterator[Panel]:
    bits = f"bits along {points[0]['rank']} of {points[0]['free']:,} directions"
    after = f"Accuracy after {points[0]['rounds']} rounds"
    for title, name, y_label in (("Noised sum", "mean", bits), (after, "accuracy", "")):
        lines = page.lines(points, lambda at: f"ε = {page.number(at['epsilon'])}", itemgetter(name))
        yield Panel(title, "users", y_label, lines, True, name == "mean")


_OF_SUM = "What a secure sum reveals about"
_COORDINATES = (
    "All coordinates: the Gaussian truth for every free coordinate, or the entropy of a client's "
    "records and batches where that is less; no number of samples here could confirm it."
)
_MODELS = Kind(
    title=f"{_OF_SUM} an update, over models",
    measure=_with_critics,
    columns=page.columns(
        *("algorithm", "data", "model", "game", "users", "colluding", "bits", "mean over users"),
        *("directions", "variance kept", "Gaussian truth", "free coordinates", "all coordinates"),
        *("batch entropy", "paper's axis"),
        *("MINE trained", "MINE shuffled", "MINE held out", "log₂ K"),
    ),
    draw=_draw_models,
    compare=claims.over_models,
    notes=(
        page.about("the stated number of"),
        f"Game independent: each draw gives every client fresh data. {_COORDINATES}",
    ),
)
_VALUES = Kind(
    title=f"{_OF_SUM} an update, over the batch: {{first[dataset]}}",
    measure=partial(_twice, "batch_size"),
    columns=page.columns(
        *("algorithm", "users", "batch size", "bits", "Gaussian truth", "per record used"),
        *("paper's axis", "batch entropy", "noise", "bits with noise"),
    ),
    draw=partial(_draw_values, "batch_size", "batch size"),
    compare=partial(claims.over_values, "batch_size", "batches"),
    notes=(
        page.about(),
        "Game independent: each draw gives every client fresh data. Noise: standard deviation on "
        "every coordinate of the mean update, fixed over the sweep, such that noise and sum vary "
        "alike at its first value.",
    ),
)
_KINDS = {
    "users": replace(
        _MODELS,
        title=f"{_OF_SUM} an update, over users",
        draw=_draw_users,
        compare=claims.over_users,
        notes=(
            page.about("the stated number of", page.GAMES),
            f"{_COORDINATES} {page.MINE} Colluding users are taken off the sum.",
        ),
    ),
    "models": _MODELS,
    "batch": replace(_VALUES, figure="batch-size"),
    "epochs": replace(
        _VALUES,
        title=f"{_OF_SUM} an update, over epochs: {{first[dataset]}}",
        measure=partial(_twice, "epochs"),
        columns=page.columns(*(c.replace("batch size", "local epochs") for c in _VALUES.columns)),
        draw=partial(_draw_values, "epochs", "local epochs"),
        compare=partial(claims.over_values, "epochs", "local epochs"),
    ),
    "heterogeneity": Kind(
        title=f"{_OF_SUM} unlike clients: {{first[dataset]}}, FedAvg",
        measure=_plain,
        columns=page.columns(
            *("partition", "epochs", "α", "users", "bits", "mean over users", "smallest"),
            *("largest", "Gaussian truth", "paper's axis"),
        ),
        draw=_draw_skews,
        compare=claims.over_skews,
        notes=(
            page.about("{first[mi_rank]}", page.GAMES),
            "α by client: each client draws its label shares, and all have as many records, as in "
            "Hsu, Qi and Brown (2019), whom the paper follows. α by label: each label is split "
            "over the clients, so sizes differ too, and the sum weights clients by their records. "
            "Smallest and largest user: chosen among estimates; for α = ∞ much of the range is "
            "estimation error. The shares of the sum's variance add up to one: who differs from "
            "the others stands out, and the others hide the better for it.",
        ),
    ),
    "writers": Kind(
        title=f"{_OF_SUM} a writer: {{first[dataset]}}, FedAvg",
        measure=_over_cohorts,
        columns=page.columns(
            *("epochs", "users", "bits", "mean over users", "Gaussian truth", "images"),
            "paper's axis",
        ),
        draw=_draw_writers,
        compare=claims.over_writers,
        notes=(
            page.about("{first[mi_rank]}", page.GAMES),
            "Mean over draws of the other writers, smallest to largest in brackets; the target is "
            "always the same. The sum weights writers by their images. Only the order of the "
            "batches is random, and two writers vary in fewer directions than are asked for. The "
            "mean over users was added after a first look at these figures.",
        ),
    ),
    "noise": Kind(
        title="What a noised sum reveals about an update: {first[dataset]}, linear model",
        measure=_with_noise,
        columns=page.columns(
            *("ε named", "noise on the mean", "users", "bits", "mean over users"),
            *("Gaussian truth", "directions", "variance kept", "paper's axis", "accuracy"),
        ),
        draw=_draw_noise,
        compare=claims.over_noise,
        notes=(
            page.about("{first[rank]} of {first[free]:,}"),
            "Game independent: each draw gives every client a fresh batch from all records. "
            "Updates have norms up to {first[norm]:.2g}; the paper clips the aggregate to 1. "
            "Accuracy: after {first[rounds]} rounds with this noise, mean of {first[plays]} runs. "
            "Gaussian truth: without noise. Noise: √(2 ln(1.25/δ)) / ε; the paper's text has ε "
            "under the root.",
        ),
    ),
}
run = partial(page.tabled, _KINDS, _SCALES)
