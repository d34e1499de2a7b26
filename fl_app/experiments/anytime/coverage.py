"""How often bets ever refute the true ε, and how soon they refute a wrong one.

A bound that holds at all rounds together with 95 % confidence may be above the truth, at any round,
in at most 5 % of all runs. Mechanisms at exactly (ε, δ) are watched round by round (`streams`):
among them dependent rounds, shared coins, and one that shows everything with chance δ. Flower's
local noise, asked for ε = 50, is watched until ε = 50 is refuted (`waiting`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.anytime.waiting import (
    ASKED,
    DELIVERED,
    DELTA,
    TARGETS,
    bounds_of,
    rounds_until,
)
from leakmeter.fl_app.experiments.base import Cells, Table
from leakmeter.fl_app.experiments.coverage.streams import (
    ALLOWED,
    COINS,
    ROUNDS,
    TRIALS,
    Case,
    cases,
)
from leakmeter.fl_app.experiments.plot import Line, Panel

_SEED: Final = 0
_AT_ONCE: Final = 500  # streams, so that all of them fit into memory
_PLANNED: Final = 30
# Streams of each mechanism, and runs with Flower's noise.
_SCALES: Final = {"paper": (10_000, 200), "small": (500, 4)}
_BOUNDS: Final = {
    "anytime": "bets",
    "split": "best threshold, failures split over the rounds",
}

Cell = Mapping[str, Any]


def run(scale: str, cells: Cells) -> Table:
    """Watch every mechanism, and Flower's noise until it is refuted."""
    streams, runs = _SCALES[scale]
    watched = [_kept(case, streams, cells) for case in cases()]
    waited = [_kept_wait(_PLANNED, runs, cells, is_right=right) for right in (False, True)]
    return Table(
        title=f"Bounds that hold at all rounds together, {streams:,} streams of each mechanism at "
        f"its exact ε, and {runs:,} runs with Flower's local noise",
        columns=("mechanism", "ε at δ", "bound", "result"),
        rows=(*map(_row, watched), *(row for cell in waited for row in _waits(cell))),
        notes=_notes(streams),
        figures={"anytime.svg": (_grown(waited[0]), _refuted(waited[0]), _crossings(watched))},
    )


def most_allowed(streams: int) -> float:
    """Return 5 % and three standard errors."""
    return ALLOWED + 3 * math.sqrt(ALLOWED * (1 - ALLOWED) / streams)


def _notes(streams: int) -> tuple[str, ...]:
    return (
        "Ever above the truth: share of streams in which the true ε is refuted after any round. "
        f"At most 5 % are allowed; with three standard errors {most_allowed(streams):.2%}.",
        f"Canaries and guesses: {ROUNDS} rounds with {COINS} coins each. Trials: {ROUNDS} rounds "
        f"with {TRIALS} trials each. Leaks more after every lost bet: the mechanism knows the "
        "wealth and plays the worst case of a threshold that rises with the losses. Parity: the "
        "second coin of a pair is guessed by the first and by randomised response about both. Sum: "
        "each coin is guessed by the noised sum of its round and the coins before it.",
        "Wrong: δ is paid in the odds of each guess, and wealth 1/0.05 refutes. This covers "
        "mechanisms that show each coin with chance δ, not one that shows all of them at once.",
        f"Flower's LocalDpMod, asked for ε = {ASKED:g} at δ = {DELTA:g}, delivers {DELIVERED:g}. "
        "Each round has one canary with a fair coin, and an eavesdropper sees its noised update. "
        "Failures split over the rounds: coin_bound on all canaries, largest so far; "
        "δ is paid once, and each round has an equal part of what is left of 5 %. The right noise "
        "is the analytic calibration.",
    )


def _kept(case: Case, streams: int, cells: Cells) -> Cell:
    found: Cell = cells.get(f"{case.key}-{streams}", partial(_crossed, case, streams))
    return found


def _crossed(case: Case, streams: int) -> dict[str, Any]:
    """Return the share of streams in which the truth is ever refuted."""
    parts = range(-(-streams // _AT_ONCE))
    crossed = np.concatenate(
        [case.crosses(stream(_SEED, "anytime", case.key, i), _AT_ONCE) for i in parts]
    )[:streams]
    return {
        "name": case.name,
        "epsilon": case.epsilon,
        "delta": case.delta,
        "streams": streams,
        "is_sound": case.is_sound,
        "crossed": float(np.mean(crossed)),
    }


def _kept_wait(planned: int, runs: int, cells: Cells, *, is_right: bool) -> Cell:
    key = f"{'right' if is_right else 'flower'}-noise-{planned}-rounds-{runs}"
    found: Cell = cells.get(key, partial(_waited, planned, runs, is_right=is_right))
    return found


def _waited(planned: int, runs: int, *, is_right: bool) -> dict[str, Any]:
    """Return after how many rounds each bound refutes each target."""
    found = [bounds_of(planned, i, is_right=is_right) for i in range(runs)]
    return {
        "planned": planned,
        "is_right": is_right,
        "runs": runs,
        "rounds": {
            name: {f"{t:g}": [rounds_until(one[name], t) for one in found] for t in TARGETS}
            for name in _BOUNDS
        },
        "first": {name: found[0][name] for name in _BOUNDS},
    }


def _row(cell: Cell) -> tuple[str, ...]:
    words = "bets" if cell["is_sound"] else "wrong bets"
    truth = f"{cell['epsilon']:g} at {cell['delta']:g}"
    return cell["name"], truth, words, f"ever above the truth: {cell['crossed']:.2%}"


def _waits(cell: Cell) -> list[tuple[str, ...]]:
    noise = "the right noise" if cell["is_right"] else "Flower's local noise"
    truth = f"{ASKED:g} at {DELTA:g}" if cell["is_right"] else f"{DELIVERED:g} at {DELTA:g}"
    targets = TARGETS[:1] if cell["is_right"] else TARGETS
    return [
        (
            f"{noise}, {cell['planned']} rounds",
            truth,
            words,
            f"ε = {target:g} refuted {_when(cell['rounds'][name][f'{target:g}'])}",
        )
        for target in targets
        for name, words in _BOUNDS.items()
    ]


def _when(rounds: Sequence[int | None]) -> str:
    """Return after how many rounds, in words."""
    share = sum(r is not None for r in rounds) / len(rounds)
    waits = np.sort([math.inf if r is None else r for r in rounds])
    middle = waits[math.ceil(len(waits) / 2) - 1]
    if not math.isfinite(middle):
        return f"in {share:.1%} of the runs"
    return f"after {middle:g} rounds (median), in {share:.1%} of the runs"


def _crossings(watched: Sequence[Cell]) -> Panel:
    """Return how often the truth is ever refuted, by mechanism."""
    lines = []
    for i, (is_sound, label) in enumerate(((True, "bets"), (False, "wrong: δ in the odds"))):
        at = [n for n, cell in enumerate(watched, start=1) if cell["is_sound"] == is_sound]
        lines.append(Line(label, at, [watched[n - 1]["crossed"] for n in at], i))
    places = [1, len(watched)]
    lines.append(Line("allowed", places, [ALLOWED] * 2, 7, ":"))
    title = "Ever above the truth"
    return Panel(title, "mechanism, as in the table", "share of streams", tuple(lines))


def _grown(cell: Cell) -> Panel:
    """Return the bounds of one run after each round."""
    at = list(range(1, int(cell["planned"]) + 1))
    lines = [
        Line(words, at, cell["first"][name], i) for i, (name, words) in enumerate(_BOUNDS.items())
    ]
    lines.append(Line("asked for", at, [ASKED] * len(at), 7, ":"))
    lines.append(Line("delivered", at, [DELIVERED] * len(at), 7, "--"))
    return Panel("One run with Flower's local noise", "round", "ε proven so far", tuple(lines))


def _refuted(cell: Cell) -> Panel:
    """Return the share of runs in which each target is refuted by a round."""
    at = list(range(1, int(cell["planned"]) + 1))
    lines = []
    for i, target in enumerate(TARGETS):
        for name, style in (("anytime", "-"), ("split", "--")):
            rounds = cell["rounds"][name][f"{target:g}"]
            shares = [sum(r is not None and r <= t for r in rounds) / len(rounds) for t in at]
            lines.append(Line(f"ε = {target:g}, {name}", at, shares, i, style))
    title = f"Flower's local noise (truth {DELIVERED:g}): refuted by round"
    return Panel(title, "round", "share of runs", tuple(lines), log_x=True, y_limits=(0.0, 1.02))
