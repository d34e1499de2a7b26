"""What canaries cost in accuracy.

Andrew et al. (2024), arXiv:2302.03098, Table 3: a thousand canaries among 341,000 clients, a share
of 0.3 %. MNIST has 539 writers, so that shares from that one up to one canary a writer can be
tried. Runs with and without canaries have the same order, batches and noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.rng import derive
from leakmeter.fl_app.experiments.andrew2024.audit import mean_std
from leakmeter.fl_app.experiments.andrew2024.federation import SEED, Canaries, Federation, play
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.plot import Line, Panel

_DELTA = 1e-5
# Noise multiplier to accuracy without and with a thousand canaries, in per cent.
_TABLE3 = {
    0.0: (25.3, 25.3),
    0.064: (24.0, 23.9),
    0.102: (23.1, 23.1),
    0.184: (21.5, 21.5),
    0.234: (20.6, 20.5),
}


@dataclass(frozen=True)
class _Scale:
    federation: Federation
    noises: tuple[float, ...]
    counts: tuple[int, ...]  # canaries; the first is the paper's share
    runs: int


_DIGITS = Federation("digits", "linear", "iid", clients=60, rounds=6, epochs=2, batch_size=8)
_SCALES = {
    "paper": _Scale(Federation(), tuple(_TABLE3), (2, 54, 539), 2),
    "small": _Scale(_DIGITS, (0.0, 0.234), (1, 6, 60), 3),
}
_DIVIDED = {False: "by clients", True: "by clients and canaries"}


def run(scale: str, cells: Cells) -> Table:
    """Train with and without canaries at every noise."""
    size = _SCALES[scale]
    got: dict[float, dict[tuple[int, bool], list[float]]] = {}
    for z in size.noises:
        kept = [
            cells.get(f"noise{z:g}-run{i}", partial(_cell, size, z, derive(SEED, "accuracy", i)))
            for i in range(size.runs)
        ]
        got[z] = {key: [one[_name(*key)] for one in kept] for key in _keys(size)}
    return Table(
        title=f"Accuracy with canaries among {size.federation.clients} clients of "
        f"{size.federation.dataset}, {size.runs} runs a row",
        columns=(
            *("noise multiplier", "accountant's ε", "without canaries"),
            *(_heading(count, counted, size) for count, counted in _keys(size)[1:]),
        ),
        rows=tuple(_row(size, z, one) for z, one in got.items()),
        notes=_NOTES,
        figures={"accuracy.svg": (_panel(size, got),)},
        comparisons=tuple(_comparison(size, z, one) for z, one in got.items()),
    )


_NOTES = (
    "Mean ± std of the accuracy without canaries, and of the change that they bring to the same "
    "run, both in per cent of the test set. Algorithm 2 divides a round's sum by clients and "
    "canaries, which also shortens the step; divided by the clients alone the step stays, and "
    "canaries only add noise of their own. The accountant's ε is a guarantee for one client added "
    "or removed, who takes part once an epoch, against an outsider who sees every model, at δ = "
    "1e-5.",
)


def _keys(size: _Scale) -> list[tuple[int, bool]]:
    return [(0, False), *((count, counted) for count in size.counts for counted in _DIVIDED)]


def _heading(count: int, counted: bool, size: _Scale) -> str:
    share = count / size.federation.clients
    return f"{count} canaries ({share:.1%}), sum divided {_DIVIDED[counted]}"


def _name(count: int, counted: bool) -> str:
    return f"{count} {_DIVIDED[counted]}"


def _cell(size: _Scale, noise: float, seed: int) -> dict[str, float]:
    """Return the accuracy of one run with every number of canaries."""
    return {
        _name(count, counted): play(
            size.federation, noise, Canaries(count, counted=counted), seed
        ).accuracy
        for count, counted in _keys(size)
    }


def _changes(one: Mapping[tuple[int, bool], Sequence[float]], key: tuple[int, bool]) -> list[float]:
    """Return the changes in accuracy, run by run, in per cent."""
    return [100 * (b - a) for a, b in zip(one[0, False], one[key], strict=True)]


def _row(
    size: _Scale, noise: float, one: Mapping[tuple[int, bool], Sequence[float]]
) -> tuple[Any, ...]:
    """Return one line of the table."""
    times = math.sqrt(size.federation.epochs)
    epsilon = f"{epsilon_gaussian(_DELTA, times / noise):.1f}" if noise else "inf"
    changes = [mean_std(_changes(one, key), "+.2f") for key in one if key[0]]
    return (noise, epsilon, mean_std([100 * a for a in one[0, False]]), *changes)


def _comparison(
    size: _Scale, noise: float, one: Mapping[tuple[int, bool], Sequence[float]]
) -> Comparison:
    few, many = size.counts[0], size.counts[-1]
    before, after = _TABLE3[noise]
    return Comparison(
        source="Andrew et al. 2024, Table 3",
        what=f"noise multiplier {noise:g}: change of accuracy in per cent points",
        paper=f"{after - before:+.1f} (from {before}), canaries are 0.3 % of the clients",
        ours=f"{mean_std(_changes(one, (few, True)), '+.2f')} with {few} canaries, "
        f"{mean_std(_changes(one, (many, True)), '+.2f')} with {many}, "
        f"{mean_std(_changes(one, (many, False)), '+.2f')} if the sum is divided by clients alone",
        why="Agrees at the paper's share. As many canaries as clients cost accuracy mostly because "
        "Algorithm 2 then divides by twice as many, which halves the step.",
    )


def _panel(size: _Scale, got: Mapping[float, Mapping[tuple[int, bool], Sequence[float]]]) -> Panel:
    """Return accuracy over noise for every number of canaries."""
    noises = list(got)
    lines = []
    for color, (count, counted) in enumerate(_keys(size)):
        means = [100 * float(np.mean(got[z][count, counted])) for z in noises]
        label = f"{count} canaries, divided {_DIVIDED[counted]}" if count else "without canaries"
        lines.append(Line(label, noises, means, color, "--" if counted else "-"))
    return Panel("Accuracy with canaries", "noise multiplier", "accuracy in %", tuple(lines))
