"""How many rounds it takes to refute that Flower's local noise keeps the ε it is asked for.

Flower's `LocalDpMod` computes its noise by the classical formula, which holds for ε below 1 only.
Asked for ε = 50 at δ = 1e-5 it delivers 96.4. In every round one canary passes the mod, if its coin
says so. Somebody on the wire sees the noised update and scores it along the canary. A test of the
mod itself shows that its noise has the standard deviation that is drawn here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from scipy.special import log_ndtr

from leakmeter.auditors.bounds.anytime import AnytimeBound
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.one_run import coin_bound
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats
from leakmeter.papers.base import Cells, Table
from leakmeter.papers.coverage.case import ALLOWED, Cell
from leakmeter.papers.gaussian import classical_sigma_unsafe_above_epsilon_1, gaussian_sigma
from leakmeter.papers.plot import Line, Panel

ASKED: Final = 50.0
DELTA: Final = 1e-5
_CLASSICAL: Final = classical_sigma_unsafe_above_epsilon_1(ASKED, DELTA)
DELIVERED: Final = round(epsilon_gaussian(DELTA, 1 / _CLASSICAL), 1)
TARGETS: Final = (50.0, 60.0, 70.0)
_ROUNDS: Final = range(1, 31)
# What it is, its standard deviation, its ε, and the ε to refute.
_NOISES: Final = {
    "flower": ("Flower's local noise", _CLASSICAL, DELIVERED, TARGETS),
    "right": ("the right noise", gaussian_sigma(ASKED, DELTA), ASKED, TARGETS[:1]),
}
_SCALES: Final = {"paper": 200, "small": 4}  # runs
_BOUNDS: Final = {"anytime": "bets", "split": "one look per round, failures split over the rounds"}
_CANDIDATES: Final = np.arange(101.0)
_SEED: Final = 0


def run(scale: str, cells: Cells) -> Table:
    """Watch runs with Flower's noise, and with noise that keeps its ε, until they are refuted."""
    runs = _SCALES[scale]
    waited = {
        noise: cells.get(f"{noise}-noise-{len(_ROUNDS)}-rounds-{runs}", _waited, runs, noise)
        for noise in _NOISES
    }
    return Table(
        title=f"How soon bounds of all rounds refute Flower's local noise, {runs:,} runs",
        columns=("noise", "ε at δ", "bound", "result"),
        rows=[
            (
                *(f"{words}, {len(_ROUNDS)} rounds", f"{truth:g} at {DELTA:g}", bound),
                f"ε = {t:g} refuted {_when(waited[noise]['rounds'][name][f'{t:g}'])}",
            )
            for noise, (words, _, truth, targets) in _NOISES.items()
            for t in targets
            for name, bound in _BOUNDS.items()
        ],
        notes=(_NOTE,),
        figures={"anytime.svg": (_grown(waited["flower"]), _refuted(waited["flower"]))},
    )


_NOTE = (
    f"Flower's LocalDpMod, asked for ε = {ASKED:g} at δ = {DELTA:g}, delivers {DELIVERED:g}. "
    "Each round has one canary with a fair coin, and an eavesdropper sees its noised update. "
    "Failures split over the rounds: coin_bound on all canaries, largest so far; "
    "δ is paid once, and each round has an equal part of what is left of 5 %. The right noise "
    "is the analytic calibration. How often bets refute the true ε: experiment coverage."
)


def bounds_of(noise: str, number: int) -> Mapping[str, Floats]:
    """Return the bounds after each round of one run, (rounds,) each, by the names of `_BOUNDS`."""
    planned = len(_ROUNDS)
    rng = stream(_SEED, "anytime", "waiting", planned, int(noise == "right"), number)
    is_in = rng.random(planned) < 0.5
    log_p = np.asarray(log_ndtr(-rng.standard_normal(planned) - is_in / _NOISES[noise][1]))
    bets = AnytimeBound(
        delta=DELTA, confidence=1 - ALLOWED, planned=planned, candidates=_CANDIDATES
    )
    by_bets = [bets.add_canaries(log_p[t - 1 : t], is_in[t - 1 : t]) for t in _ROUNDS]
    # δ is paid once here too: what it covers is the same at every look. The rest is split.
    part = 1 - (ALLOWED - planned * DELTA / 2) / planned
    by_band = [coin_bound(log_p[:t], is_in[:t], delta=0.0, confidence=part).value for t in _ROUNDS]
    # The limits of all looks hold together, so the largest so far is a bound as well.
    return {"anytime": np.array(by_bets), "split": np.maximum.accumulate(by_band)}


def rounds_until(values: Floats, target: float) -> int | None:
    """Return after which round a bound has refuted ε = `target`; None for never."""
    passed = np.flatnonzero(values >= target)
    return int(passed[0]) + 1 if passed.size else None


def _waited(runs: int, noise: str) -> dict[str, Any]:
    """Return after how many rounds each bound refutes each target."""
    found = [bounds_of(noise, i) for i in range(runs)]
    return {
        "planned": len(_ROUNDS),
        "is_right": noise == "right",
        "runs": runs,
        "rounds": {
            name: {f"{t:g}": [rounds_until(one[name], t) for one in found] for t in TARGETS}
            for name in _BOUNDS
        },
        "first": {name: found[0][name] for name in _BOUNDS},
    }


def _when(rounds: Sequence[int | None]) -> str:
    """Return after how many rounds, in words."""
    share = sum(r is not None for r in rounds) / len(rounds)
    waits = np.sort([math.inf if r is None else r for r in rounds])
    middle = waits[math.ceil(len(waits) / 2) - 1]
    if not math.isfinite(middle):
        return f"in {share:.1%} of the runs"
    return f"after {middle:g} rounds (median), in {share:.1%} of the runs"


def _grown(cell: Cell) -> Panel:
    first = cell["first"]
    lines = (
        *(Line(words, _ROUNDS, first[n], i) for i, (n, words) in enumerate(_BOUNDS.items())),
        Line("asked for", _ROUNDS, [ASKED] * len(_ROUNDS), 7, ":"),
        Line("delivered", _ROUNDS, [DELIVERED] * len(_ROUNDS), 7, "--"),
    )
    return Panel("One run with Flower's local noise", "round", "ε proven so far", lines)


def _refuted(cell: Cell) -> Panel:
    """Return the share of runs in which each target is refuted by a round."""
    lines = []
    for i, target in enumerate(TARGETS):
        for name, style in zip(_BOUNDS, ("-", "--"), strict=True):
            rounds = cell["rounds"][name][f"{target:g}"]
            shares = [sum(r is not None and r <= t for r in rounds) / len(rounds) for t in _ROUNDS]
            lines.append(Line(f"ε = {target:g}, {name}", _ROUNDS, shares, i, style))
    title = f"Flower's local noise (truth {DELIVERED:g}): refuted by round"
    return Panel(title, "round", "share of runs", lines, log_x=True, y_limits=(0.0, 1.02))
