"""What canaries cost in accuracy.

Andrew et al. (2024), arXiv:2302.03098, Table 3: a thousand canaries among 341,000 clients, a share
of 0.3 %. Here canaries take the seats of clients, so that their share of all updates can be varied
up to one half. Runs with and without canaries have the same cohorts, batches and noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from leakmeter.auditors.values import Floats
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.config import Config
from leakmeter.papers.andrew2024 import audit
from leakmeter.papers.andrew2024.audit import DIGITS, WRITERS, mean_std
from leakmeter.papers.base import Cells, Comparison, Table
from leakmeter.papers.plot import Line, Panel

# Noise multiplier to accuracy without and with a thousand canaries, in per cent.
_TABLE3 = {0.0: (25.3, 25.3), 0.102: (23.1, 23.1), 0.234: (20.6, 20.5)}


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
    def ways(self) -> list[tuple[int, str]]:
        """How many canaries, and what divides a sum; only the most canaries show a difference."""
        counts = (0, *self.counts)
        return [*((n, "by clients and canaries") for n in counts), (counts[-1], "by clients")]

    def config(self, count: int, divisor: str) -> Config:
        """Return the federation with so many canaries among the clients of its rounds."""
        if not count:
            return self.federation
        seats = math.ceil(self.counts[-1] / self.federation.rounds)
        return replace(
            self.federation,
            auditors="one-shot",
            sample=self.federation.sample - seats,
            canary_seats=seats,
            canary_repetitions=1,
            canaries=count,
            server_lr=self.updates / (self.updates - count) if divisor == "by clients" else 1.0,
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
    config, runs = size.federation, range(size.runs)
    for z in size.noises:
        kept = [cells.get(f"noise{z:g}-run{i}", _cell, size, z, i) for i in runs]
        # Per cent, (ways, runs).
        got[z] = 100 * np.array([[one[f"{n} {by}"] for one in kept] for n, by in size.ways])
    changes = {z: accuracy[1:] - accuracy[0] for z, accuracy in got.items()}
    lines = [
        Line(
            f"{n} canaries, divided {by}" if n else "without canaries",
            list(got),
            [float(accuracy[i].mean()) for accuracy in got.values()],
            i,
            "--" if by == "by clients" else "-",
        )
        for i, (n, by) in enumerate(size.ways)
    ]
    panel = Panel("Accuracy with canaries", "noise multiplier", "accuracy in %", lines)
    return Table(
        title=f"Accuracy with canaries among {config.clients} clients of {config.dataset}, "
        f"{size.updates} updates per run, {counted(size.runs, 'run')} per row",
        columns=(
            *("noise multiplier", "accountant's ε", "without canaries"),
            *(
                f"{n} canaries ({n / size.updates:.1%}), sum divided {by}"
                for n, by in size.ways[1:]
            ),
        ),
        rows=[
            (
                *(z, f"{audit.accountant(audit.seeded(config, z)):.1f}"),
                *(mean_std(got[z][0]), *(mean_std(own, "+") for own in changes[z])),
            )
            for z in got
        ],
        notes=(_NOTE,),
        figures={"accuracy.svg": [panel]},
        comparisons=[_comparison(size, z, own) for z, own in changes.items()],
    )


def _cell(size: _Scale, noise: float, number: int) -> dict[str, float]:
    """Return the accuracy of one run with every number of canaries."""
    configs = {f"{n} {by}": size.config(n, by) for n, by in size.ways}
    return {
        way: audit.play(audit.seeded(config, noise, "accuracy", number)).accuracy
        for way, config in configs.items()
    }


def _comparison(size: _Scale, noise: float, changes: Floats) -> Comparison:
    before, after = _TABLE3[noise]
    least, *_, most, same = changes
    return Comparison(
        source="Andrew et al. 2024, Table 3",
        what=f"noise multiplier {noise:g}: change of accuracy in percentage points",
        paper=f"{after - before:+.1f} (from {before}), canaries are 0.3 % of the clients",
        ours=f"{mean_std(least, '+')} with {size.counts[0] / size.updates:.1%} canaries, "
        f"{mean_std(most, '+')} with {size.counts[-1] / size.updates:.0%}, "
        f"{mean_std(same, '+')} if the sum is divided by clients alone",
        why=f"Another task, {counted(size.runs, 'run')}. Where half of the updates are canaries, "
        f"{np.mean(same) - np.mean(most):.2f} points come from the shorter step: Algorithm 2 "
        "divides by clients and canaries.",
    )
