"""What the sum tells of a client, over the number of users, for three algorithms.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 3 to 5: linear model on MNIST, 50 users of 1,200
images, batches of 32. Beside it what the server learns if some users collude (Corollary 2), and the
neural estimate as the paper reads it off, on shuffled pairs and held out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from leakmeter.auditors.finding import Game
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    NAMES,
    Algorithm,
    Setting,
    batch_bits,
    critics,
    look,
    paper_share,
    whole_bits,
)
from leakmeter.fl_app.experiments.plot import Panel

_GAMES: tuple[Game, ...] = ("independent", "rerun")


@dataclass(frozen=True)
class _Scale:
    setting: Setting
    users: tuple[int, ...]
    critics: tuple[int, ...]  # users for which critics are trained
    pairs: int  # that they are trained on
    seeds: int
    colluding: tuple[int, tuple[int, ...]]  # users, and how many of them collude


_SCALES = {
    "paper": _Scale(
        Setting("mnist"), (2, 5, 10, 20, 50), (2, 5, 10, 20, 50), 1000, 3, (20, (5, 10, 15))
    ),
    "small": _Scale(
        Setting("digits", clients=20, batch_size=8, draws=60, rank=8),
        (2, 5, 10, 20),
        (2,),
        60,
        2,
        (20, (10, 15)),
    ),
}
_COLUMNS = (
    *("algorithm", "game", "users", "colluding", "bits", "mean over users", "Gaussian truth"),
    *("all coordinates", "batch entropy", "paper's axis"),
    *("MINE trained", "MINE shuffled", "MINE held out", "log₂ K"),
)
_NOTES = (
    "All coordinates: the Gaussian truth for every free coordinate, or the entropy of a client's "
    "records and batches where that is less. MINE: the paper's estimator, on K pairs of whole "
    "updates, read off on its training pairs as in the paper; the same where pairs are shuffled "
    "and there is nothing to find; and the NWJ value on pairs that it has not seen. Nothing "
    "distribution-free can show more than about log₂ K. Colluding users are taken off the sum.",
)


def run(scale: str, cells: Cells) -> Table:
    """Measure every algorithm in both games."""
    what = _SCALES[scale]
    rows: list[tuple[Any, ...]] = []
    lines = []
    told: dict[Algorithm, list[dict[str, Any]]] = {}
    critics_found: list[dict[str, Any]] = []
    for color, algorithm in enumerate(NAMES):
        for game in _GAMES:
            setting = replace(what.setting, algorithm=algorithm, game=game)
            found = [_cell(cells, setting, n) for n in what.users]
            neural = [_neural(cells, what, setting, n) for n in what.users]
            rows += map(partial(_row, setting), what.users, found, neural)
            if game == "independent":
                told[algorithm] = found
            critics_found += [one for one in neural if one]
            style = "o-" if game == "independent" else "x--"
            label = f"{NAMES[algorithm]}, {game}"
            lines.append(page.line(label, what.users, [f["bits"] for f in found], color, style))
    truth = [f["gaussian"] for f in found]
    lines.append(page.line("Gaussian truth", what.users, truth, len(NAMES), ":"))
    users, counts = what.colluding
    for count in counts:
        setting = replace(what.setting, algorithm="fedsgd")
        rows.append(_row(setting, users, _cell(cells, setting, users, count), {}, count))
    rank = what.setting.rank
    return Table(
        title=f"What a secure sum tells of an update: {what.setting.dataset}, linear model",
        columns=_COLUMNS,
        rows=tuple(rows),
        notes=(page.NOTE.format(rank=rank) + page.PAPER + page.GAMES, *_NOTES),
        figures={
            "users.svg": (
                Panel("Information in the sum", "users", "bits", tuple(lines), True, True),
            )
        },
        comparisons=_comparisons(what, told, critics_found) if scale == "paper" else (),
    )


def _cell(cells: Cells, setting: Setting, users: int, colluding: int = 0) -> dict[str, Any]:
    key = f"{setting.cell}-N{users}" + (f"-colluding{colluding}" if colluding else "")
    return dict(cells.get(key, partial(look, setting, users, colluding=colluding)))


def _neural(cells: Cells, what: _Scale, setting: Setting, users: int) -> dict[str, Any]:
    """Return what critics find, where the paper's own procedure is measured."""
    if setting.game != "rerun" or setting.algorithm != "fedsgd" or users not in what.critics:
        return {}
    work = partial(critics, setting, users, draws=what.pairs, count=what.seeds)
    return dict(cells.get(f"{setting.key}-N{users}-mine-{what.pairs}x{what.seeds}", work))


def _row(
    setting: Setting,
    users: int,
    found: dict[str, Any],
    neural: dict[str, Any],
    colluding: int = 0,
) -> tuple[Any, ...]:
    limited = setting.game == "rerun" and setting.algorithm == "fedsgd"
    return (
        NAMES[setting.algorithm],
        setting.game,
        users,
        colluding,
        page.plus_minus(found),
        page.number(found["mean"]),
        page.number(found["gaussian"]),
        page.number(whole_bits(setting, found, users - colluding))
        if setting.game == "independent"
        else "",
        page.number(batch_bits(setting, found["records"])) if limited else "",
        page.share(setting, found),
        *(page.number(neural[name]) if neural else "" for name in ("trained", "shuffled")),
        f"{neural['held_out']:.2f} ± {neural['held_out_error']:.2f}" if neural else "",
        page.number(neural["log_draws"]) if neural else "",
    )


# What the paper says of more than 20 users, on its own axis.
_PUBLISHED: dict[Algorithm, tuple[str, str]] = {
    "fedsgd": ("Fig. 3", "falls as N grows; below 2 % of a batch's entropy for more than 20 users"),
    "fedavg": (
        "Fig. 4",
        "falls about as 1/N; below 0.1 % of the client's data, more than 20 users",
    ),
    "fedprox": ("Fig. 5", "falls about as 1/N; below 0.12 %, more than 20 users"),
}


def _comparisons(
    what: _Scale, told: dict[Algorithm, list[dict[str, Any]]], neural: list[dict[str, Any]]
) -> tuple[Comparison, ...]:
    rows = [_falls(what, algorithm, found) for algorithm, found in told.items()]
    users = f"N = {', '.join(map(str, what.critics))}"
    read, null, held = (
        ", ".join(f"{float(one[name]):.1f}" for one in neural)
        for name in ("trained", "shuffled", "held_out")
    )
    claim = Comparison(
        f"{page.SOURCE}Fig. 3",
        f"the paper's own estimator, {users}",
        "the reading of MINE falls with N",
        f"{read} bits; on shuffled pairs, which share nothing, {null}; held out {held}",
        "a reading on the training pairs is mostly what MINE has learnt by heart; held out it "
        "finds a few bits for two users and nothing from ten on",
    )
    return (*rows, claim)


def _falls(what: _Scale, algorithm: Algorithm, found: list[dict[str, Any]]) -> Comparison:
    """Return how the figure falls, and what all coordinates would tell at 20 users."""
    figure, published = _PUBLISHED[algorithm]
    setting = replace(what.setting, algorithm=algorithm)
    at = what.users.index(20)
    whole = whole_bits(setting, found[at], 20)
    share = paper_share(setting, whole, found[at]["records"])
    assert share is not None
    return Comparison(
        f"{page.SOURCE}{figure}",
        f"information in the sum over N = {what.users[0]} to {what.users[-1]} users, "
        f"{NAMES[algorithm]}, linear model on MNIST",
        published,
        f"falls from {page.plus_minus(found[0])} to {page.plus_minus(found[-1])} bits along "
        f"{what.setting.rank} directions, as log(N/(N - 1)); if all {found[at]['free']:,} free "
        f"coordinates were Gaussian, {whole:.0f} bits at N = 20, {100 * share:.2g} % of the "
        "paper's entropy",
        page.UNITS,
    )
