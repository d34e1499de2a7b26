"""Claimed, delivered, shown: what audits say of mechanisms that break their claims or keep them.

Each broken mechanism is audited with many seeds, and each right one far more often: an audit with
95 % confidence may refute a true claim in 5 % of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from leakmeter.auditors import wording
from leakmeter.papers.base import Cells, Table
from leakmeter.papers.claims_zoo import broken, right
from leakmeter.papers.claims_zoo.audit import DELTA, Mechanism, audit
from leakmeter.papers.plot import Line, Panel


@dataclass(frozen=True)
class Scale:
    """How often mechanisms are audited."""

    seeds: int  # runs of each broken one
    runs: int  # of each right one


_SCALES: Final = {"paper": Scale(100, 2000), "small": Scale(1, 1)}
_BLOCK: Final = 100  # runs of a cell


@dataclass(frozen=True)
class Audits:
    """What all runs of a mechanism show.

    Attributes:
        mechanism: The mechanism.
        shown: Lower bounds on ε, one of each run.
        refuted: Runs that refute the claim.
        confidence: Of each of them.
    """

    mechanism: Mechanism
    shown: Sequence[float]
    refuted: int
    confidence: float

    def row(self, kind: str) -> tuple[Any, ...]:
        """Return the line of the table."""
        one, claim = self.mechanism, self.mechanism.claim
        runs = len(self.shown)
        return (
            *(
                kind,
                one.name,
                one.after,
                claim.against,
                f"{_epsilon(claim.epsilon)} per {claim.per}",
            ),
            *(self._delivered(), self._shown(), f"{self.confidence:.0%}"),
            f"{self.refuted:,} of {runs:,} ({self.refuted / runs:.1%})",
        )

    def _delivered(self) -> str:
        """Return what the mechanism delivers; "none" if no finite ε holds."""
        delivered = self.mechanism.claim.delivered
        assert delivered is not None
        if math.isinf(delivered):
            return "none"
        return f"{'≥ ' * self.mechanism.is_least}{_epsilon(delivered)}"

    def _shown(self) -> str:
        """Return the median bound, in brackets the smallest and the largest."""
        low, middle, high = (
            wording.number(value, 2 if value > wording.CERTAIN else 3, "lower_bound")
            for value in np.quantile(self.shown, [0.0, 0.5, 1.0], method="lower")
        )
        return f"≥ {middle}" + f" ({low} to {high})" * (len(self.shown) > 1)


def _epsilon(value: float) -> str:
    return wording.number(value)


def run(scale: str, cells: Cells) -> Table:
    """Audit every mechanism."""
    size = _SCALES[scale]
    refuted = [_audits(one, size.seeds, cells) for one in broken.mechanisms()]
    kept = [_audits(one, size.runs, cells) for one in right.mechanisms()]
    return Table(
        title=f"Claims at δ = {DELTA:g}: {len(refuted)} broken mechanisms audited "
        f"{_times(size.seeds)}, {len(kept)} right ones {_times(size.runs)}",
        columns=(
            *("kind", "mechanism", "after", "against", "claimed ε", "delivered ε", "shown ε"),
            *("confidence", "refuted"),
        ),
        rows=[*(one.row("broken") for one in refuted), *(one.row("right") for one in kept)],
        notes=_NOTES,
        figures={"claims.svg": (_panel("Broken", refuted), _panel("Right", kept))},
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times each"


def _audits(mechanism: Mechanism, runs: int, cells: Cells) -> Audits:
    """Audit one mechanism so many times, a block of runs in a cell."""
    found = [
        cells.get(f"{mechanism.key}-{first}-{last}", _block, mechanism, first, last)
        for first, last in ((i, min(i + _BLOCK, runs)) for i in range(0, runs, _BLOCK))
    ]
    shown = [float(value) for cell in found for value in cell["shown"]]
    refuted = sum(int(cell["refuted"]) for cell in found)
    return Audits(mechanism, shown, refuted, min(float(cell["confidence"]) for cell in found))


def _block(mechanism: Mechanism, first: int, last: int) -> dict[str, Any]:
    """Return what runs with these seeds show."""
    found = [audit(mechanism, seed) for seed in range(first, last)]
    return {
        # Rounded down: a bound must not become stronger.
        "shown": [math.floor(one.low * 1e4) / 1e4 for one in found],
        "refuted": sum(one.is_refuted for one in found),
        "confidence": min(round(one.confidence, 9) for one in found if one.confidence is not None),
    }


_NOTES: Final = (
    "Delivered: exact for the parameters of this table, by the formula of Gaussian noise where it "
    "applies; none: no finite ε holds. Shown: the largest lower bound of an audited run that needs "
    "no condition; median, in brackets the smallest and the largest of all runs. Refuted: runs "
    "whose bound exceeds the claim. A true claim may be refuted in 5 % of them. A claim that is "
    "not refuted is not confirmed.",
    "Each run is a small federation in one process, with Flower's client app, `canary_mod` and "
    "`Audited`: 12 to 80 clients, 5 to 30 rounds, 100 to 1,024 parameters, 50 to 300 canaries, "
    "each included by a fair coin. Claims are known before round 1, so canaries enter with ten "
    "times the clip norm, except behind masks. Against the server: it sees each "
    "update, or behind masks their sum. Against an outsider, who sees all models. The bound for a "
    "sum is that of the models which follow from it.",
    "After: public reports of the mistake, or questions about it. Flower's `LocalDpMod` and "
    "`DifferentialPrivacyServerSideFixedClipping` are Flower's own code; the other broken "
    "mechanisms are ours.",
    "Sensitivity far below the clip norm: `LocalDpMod` with clip norm 1 and sensitivity 0.0001. "
    "Classical formula: `LocalDpMod` with ε = 50; the formula is proven up to ε = 1. Each layer "
    "by itself: 16 layers, each clipped to 1 with noise for 1. Each parameter: clipped to ±1, with "
    "noise for a norm of 1. Noise of the mean: the sum of 20 clients gets a twentieth of its noise "
    "before it is divided. Same noise: in each round for a client, enough for all rounds if it "
    "were independent; or in one round for all clients. Clipped after the noise: the noise stays "
    "as it is, however long the update.",
    "Noise lost in float32: 80 clients add their shares to weights near 3,072, which are 0.00024 "
    "apart in float32; a share is a ninth of that, so it is rounded away, and what an update moves "
    "by more than half of it is not. Delivered is a lower bound there. Adaptive clip: the norm "
    "grows by up to a tenth per round while few updates are clipped, as in Flower's wrapper; there "
    "the noise grows with it, here it stays. Budget of one round: ε = 2 in each of 30 rounds. "
    "Weights: 4 of 20 clients state 100 examples, the others 1; the wrapper's noise is for equal "
    "weights.",
)


def _panel(kind: str, all_audits: Sequence[Audits]) -> Panel:
    """Return claimed, delivered and shown ε of each mechanism."""
    places = range(1, len(all_audits) + 1)
    claims = [one.mechanism.claim for one in all_audits]
    truth = [(place, claim.delivered) for place, claim in zip(places, claims, strict=True)]
    finite = [(x, y) for x, y in truth if y is not None and math.isfinite(y)]
    lines = (
        Line("claimed", places, [claim.epsilon for claim in claims], 3),
        Line("shown, median", places, [float(np.median(one.shown)) for one in all_audits], 0),
        Line("shown, smallest", places, [min(one.shown) for one in all_audits], 0, ":"),
        Line("shown, largest", places, [max(one.shown) for one in all_audits], 0, "--"),
        Line("delivered, if finite", [x for x, _ in finite], [y for _, y in finite], 7, "-."),
    )
    is_log = kind == "Broken"
    return Panel(f"{kind} mechanisms", "mechanism, as in the table", "ε", lines, log_y=is_log)
