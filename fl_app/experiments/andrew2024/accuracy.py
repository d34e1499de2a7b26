"""What canaries cost in accuracy.

Andrew et al. (2024), arXiv:2302.03098, Table 3: a thousand canaries among 341,000 clients, a share
of 0.3 %. Here canaries take the seats of clients, so that their share of all updates can be varied
up to one half. Runs with and without canaries have the same cohorts, batches and noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.experiments.andrew2024 import federation
from leakmeter.fl_app.experiments.andrew2024.audit import mean_std
from leakmeter.fl_app.experiments.andrew2024.federation import DIGITS, WRITERS
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.plot import Line, Panel

# Noise multiplier to accuracy without and with a thousand canaries, in per cent.
_TABLE3 = {0.0: (25.3, 25.3), 0.102: (23.1, 23.1), 0.234: (20.6, 20.5)}
_DIVIDED = {True: "by clients and canaries", False: "by clients"}

# How many canaries, and whether they count in the divisor.
Key: TypeAlias = tuple[int, bool]


@dataclass(frozen=True)
class _Scale:
    """Runs of one federation."""

    federation: Config  # without canaries; half of a round's clients can be canaries
    noises: tuple[float, ...]  # multipliers
    counts: tuple[int, ...]  # canaries; the first is the paper's share, the last one half
    runs: int  # of each

    @property
    def updates(self) -> int:
        """Updates of a run, honest ones and canaries."""
        return self.federation.sample * self.federation.rounds

    @property
    def keys(self) -> list[Key]:
        """All ways to play; only the most canaries show a difference of the divisor."""
        return [(0, True), *((count, True) for count in self.counts), (self.counts[-1], False)]

    def config(self, count: int, both: bool) -> Config:
        """Return the federation with so many canaries among the clients of its rounds."""
        if not count:
            return self.federation
        seats = math.ceil(self.counts[-1] / self.federation.rounds)
        return replace(
            self.federation,
            auditors="one-shot",
            sample=self.federation.sample - seats,
            canary_seats=seats,
            canaries=count,
            server_lr=1.0 if both else self.updates / (self.updates - count),
        )


_DIGITS = replace(DIGITS, model="linear", sample=20, lr=0.1)
_SCALES = {
    "paper": _Scale(replace(WRITERS, sample=22), (0.0, 0.102, 0.234), (3, 54, 539), 1),
    "small": _Scale(_DIGITS, (0.0, 0.234), (2, 12, 120), 3),
}
_NOTE = (
    "Accuracy without canaries, and the change that they bring to the same run, both in per cent "
    "of the test set; mean ± std where a row has several runs. A canary takes the seat of a "
    "client, whose update is then missing. Algorithm 2 divides a round's sum by clients and "
    "canaries, which also shortens the step; divided by the clients alone the step stays. The "
    "accountant's ε is a guarantee for one client added or removed, who takes part once, against "
    "an outsider who sees every model, at δ = 1e-5."
)


def run(scale: str, cells: Cells) -> Table:
    """Train with and without canaries at every noise."""
    size, got = _SCALES[scale], {}
    for z in size.noises:
        kept = [
            cells.get(f"noise{z:g}-run{i}", partial(_cell, size, z, i)) for i in range(size.runs)
        ]
        got[z] = {key: [100 * one[_name(*key)] for one in kept] for key in size.keys}
    config = size.federation
    epsilons = {z: federation.accountant(federation.seeded(config, z)) for z in got}
    return Table(
        title=f"Accuracy with canaries among {config.clients} clients of {config.dataset}, "
        f"{size.updates} updates per run, {counted(size.runs, 'run')} per row",
        columns=(
            *("noise multiplier", "accountant's ε", "without canaries"),
            *(
                f"{count} canaries ({count / size.updates:.1%}), sum divided {_DIVIDED[both]}"
                for count, both in size.keys[1:]
            ),
        ),
        rows=tuple(
            (
                *(z, f"{epsilons[z]:.1f}", mean_std(one[0, True])),
                *(mean_std(_changes(one, key), "+.2f") for key in size.keys[1:]),
            )
            for z, one in got.items()
        ),
        notes=(_NOTE,),
        figures={"accuracy.svg": (_panel(size, got),)},
        comparisons=tuple(_comparison(size, z, one) for z, one in got.items()),
    )


def _name(count: int, both: bool) -> str:
    return f"{count} {_DIVIDED[both]}"


def _cell(size: _Scale, noise: float, number: int) -> dict[str, float]:
    """Return the accuracy of one run with every number of canaries."""
    configs = {
        _name(*key): federation.seeded(size.config(*key), noise, "accuracy", number)
        for key in size.keys
    }
    return {name: federation.play(config).accuracy for name, config in configs.items()}


def _changes(one: Mapping[Key, Sequence[float]], key: Key) -> list[float]:
    """Return the changes in accuracy, run by run."""
    return [after - before for before, after in zip(one[0, True], one[key], strict=True)]


def _comparison(size: _Scale, noise: float, one: Mapping[Key, Sequence[float]]) -> Comparison:
    few, many = size.counts[0], size.counts[-1]
    before, after = _TABLE3[noise]
    least, most, same = (_changes(one, key) for key in ((few, True), (many, True), (many, False)))
    return Comparison(
        source="Andrew et al. 2024, Table 3",
        what=f"noise multiplier {noise:g}: change of accuracy in per cent points",
        paper=f"{after - before:+.1f} (from {before}), canaries are 0.3 % of the clients",
        ours=f"{mean_std(least, '+.2f')} with {few / size.updates:.1%} canaries, "
        f"{mean_std(most, '+.2f')} with {many / size.updates:.0%}, "
        f"{mean_std(same, '+.2f')} if the sum is divided by clients alone",
        why=f"Another task. Where half of the updates are canaries, "
        f"{np.mean(same) - np.mean(most):.2f} points come from the step, which Algorithm 2 halves "
        "by dividing by twice as many.",
    )


def _panel(size: _Scale, got: Mapping[float, Mapping[Key, Sequence[float]]]) -> Panel:
    """Return accuracy over noise for every number of canaries."""
    lines = []
    for color, (count, both) in enumerate(size.keys):
        means = [float(np.mean(one[count, both])) for one in got.values()]
        label = f"{count} canaries, divided {_DIVIDED[both]}" if count else "without canaries"
        lines.append(Line(label, list(got), means, color, "-" if both else "--"))
    return Panel("Accuracy with canaries", "noise multiplier", "accuracy in %", tuple(lines))
