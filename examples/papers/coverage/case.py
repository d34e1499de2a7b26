"""A mechanism whose ε is known, audited many times: how often is a bound above the truth?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.finding import Bound
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import conditions

CONFIDENCE: Final = 0.95
ALLOWED: Final = 0.05  # the share of failures
_SEED: Final = 2302

Coins = NDArray[np.bool_]
Rng = np.random.Generator
Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A mechanism with its ε."""

    name: str  # for the table
    delta: float  # the δ that ε belongs to
    epsilon: float  # the truth
    audit: Callable[[Rng], Mapping[str, Bound]]  # runs it once and returns every bound by name

    @property
    def key(self) -> str:
        """A name for files."""
        words = f"{self.name} delta{self.delta:g}".replace("ε = ", "eps").replace(", ", " ")
        return words.replace(" = ", "").replace(" ", "-")

    def cell(self, runs: int) -> dict[str, Any]:
        """Return the bounds of so many runs, summed up."""
        audits = [self.audit(stream(_SEED, "coverage", self.key, i)) for i in range(runs)]
        found = {
            name: _summary([audit[name] for audit in audits], self.epsilon) for name in audits[0]
        }
        about = {"name": self.name, "epsilon": self.epsilon, "delta": self.delta, "runs": runs}
        return {**about, "bounds": found}


def _summary(bounds: Sequence[Bound], epsilon: float) -> dict[str, Any]:
    assert all(bound.cap is None or bound.value <= bound.cap for bound in bounds)
    values = np.array([bound.value for bound in bounds])
    assumed = {name for bound in bounds for name in conditions(bound.assumptions)}
    return {
        "kind": bounds[0].kind,
        "conditions": sorted(str(name) for name in assumed),
        # Equal to the truth is not above it: no leak and a bound of 0.
        "above": float(np.mean(values > epsilon)),
        "mean": float(values.mean()),
        "quantiles": np.quantile(values, [0.05, 0.5, 0.95]).tolist(),
    }


def no_bound(value: float, name: str) -> Bound:
    """Return a value without confidence: an estimate, whatever its authors call it."""
    return Bound(value, "estimate", rule=name)


def most_allowed(runs: int) -> float:
    """Return the share of runs, 5 % and three standard errors, that no bound should exceed."""
    return ALLOWED + 3 * math.sqrt(ALLOWED * (1 - ALLOWED) / runs)
