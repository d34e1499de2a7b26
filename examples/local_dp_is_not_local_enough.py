"""Ask Flower's LocalDpMod for ε = 50 and measure what it delivers.

The mod computes its noise by the classical formula, σ = sensitivity·√(2 ln(1.25/δ))/ε, which is
proven only for ε ≤ 1. Asked for ε = 50 at δ = 1e-5, it separates a client's update from zero by
10.3 standard deviations, which is ε = 96.4. Here a client sends the same update many times through
the mod itself. An attacker on the wire knows the noise level, so the null is known, and every call
draws fresh noise, so the scores are independent. The lower bound assumes nothing more.

    python examples/local_dp_is_not_local_enough.py
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from numpy.typing import NDArray
from scipy.stats import norm

from leakmeter import epsilon_gaussian, epsilon_lower_bound
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.finding import Bound
from leakmeter.papers.gaussian import classical_sigma_unsafe_above_epsilon_1, gaussian_sigma

ASKED, DELTA, CLIP_NORM, DIM = 50.0, 1e-5, 2.0, 200


def scores_through(mod: LocalDpMod, length: float, calls: int) -> NDArray[np.float64]:
    """Return the score of each reply on the wire: its projection on the client's update."""
    direction = canary_vector(0, 0, DIM)
    start = np.zeros(DIM)

    def message(values: NDArray[np.float64]) -> Any:
        content = RecordDict({"arrays": ArrayRecord({"w": Array(values)})})
        return SimpleNamespace(content=content, has_error=lambda: False)  # all that a mod reads

    def call() -> float:
        reply = mod(message(start), cast(Any, None), lambda *_: message(start + length * direction))
        (record,) = reply.content.array_records.values()
        return float(direction @ record["w"].numpy())

    return np.array([call() for _ in range(calls)])


def audit(calls: int = 300, asked: float = ASKED) -> Bound:
    """Return the lower bound on ε from the replies of a client whose update has the clip norm."""
    mod = LocalDpMod(clipping_norm=CLIP_NORM, sensitivity=CLIP_NORM, epsilon=asked, delta=DELTA)
    std = classical_sigma_unsafe_above_epsilon_1(asked, DELTA, CLIP_NORM)
    scores = scores_through(mod, CLIP_NORM, calls) / std
    return epsilon_lower_bound(scores, null_logsf=norm.logsf, delta=DELTA)


def main() -> None:
    """Print the requested ε, the delivered one, and what an outside audit proves."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    bound = audit()
    std = classical_sigma_unsafe_above_epsilon_1(ASKED, DELTA)
    print(f"asked for            ε = {ASKED:g} at δ = {DELTA:g}")
    print(f"delivered by formula ε = {epsilon_gaussian(DELTA, 1 / std):.1f}")
    print(f"shown by the audit   ε ≥ {bound.value:.1f} with {bound.confidence:.0%} confidence")
    print(f"noise it takes       {gaussian_sigma(ASKED, DELTA) / std:.2f} times as much")


if __name__ == "__main__":
    main()
