"""A secure sum of four clients that does not hide the fourth.

Three clients never touch the last quarter of the model; the fourth does. Whatever the three add,
the server reads the fourth's part there as if it were alone (Elkordy et al. 2023,
arXiv:2208.02304, Fig. 17; Zhang and Psounis 2024, arXiv:2405.04551, Fig. 3). Each of the three
adds Gaussian noise of standard deviation 10 elsewhere, ten times the update itself. That does not
help; noise that fills the missing directions does.

    python examples/sum_of_few_directions.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from leakmeter import epsilon_gaussian, epsilon_lower_bound, stream
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.likelihood_ratio.sum_distribution import Span, outside_span

DIM, OTHERS, LOUD, DELTA = 40, 3, 10.0, 1e-5
IDLE = DIM // 4

Floats = NDArray[np.float64]


def others(rng: np.random.Generator) -> Floats:
    """Return the three updates: large, and zero in the last quarter, (OTHERS, DIM)."""
    updates = LOUD * rng.standard_normal((OTHERS, DIM))
    updates[:, -IDLE:] = 0.0
    return updates


def candidates() -> tuple[Floats, Floats]:
    """Return two updates of the fourth client, before and after it has changed one record."""
    first, second = stream(0, "candidates").standard_normal((2, DIM)) / np.sqrt(DIM)
    return first, second


def span(draws: int = 60) -> Span:
    """Return the part of the candidates' difference that is outside the span of the three."""
    first, second = candidates()
    rng = stream(0, "span")
    return outside_span(first - second, np.concatenate([others(rng) for _ in range(draws)]))


def audit(trials: int = 300, sigma: float = 0.0) -> Bound:
    """Return the lower bound from sums; `sigma` is noise that fills every direction."""
    first, second = candidates()
    difference = (first - second)[-IDLE:]

    def scores(update: Floats, name: str) -> Floats:
        rng = stream(0, "sums", name)
        sums = np.stack([others(rng).sum(axis=0) + update for _ in range(trials)])
        sums += sigma * rng.standard_normal(sums.shape)
        # Only the last quarter is informative: project it on the difference, from the midpoint.
        middle = (first + second)[-IDLE:] / 2
        return np.asarray((sums[:, -IDLE:] - middle) @ difference)

    if sigma == 0:
        return epsilon_lower_bound(scores(first, "in"), scores(second, "out"), delta=DELTA)
    # The noise has a known distribution, and so has the score without the first update.
    length = float(np.linalg.norm(difference))
    mean, std = -(length**2) / 2, sigma * length

    def null_logsf(thresholds: Floats) -> Floats:
        return np.asarray(norm.logsf(thresholds, mean, std))

    return epsilon_lower_bound(scores(first, "in"), null_logsf=null_logsf, delta=DELTA)


def main() -> None:
    """Print the span condition, and what sums prove without and with noise."""
    print(f"span: {span().words}")
    bare = audit()
    errors = "no error in 600 sums" if bare.saturated else "some errors"
    print(f"without noise ε ≥ {bare.value:.2f} at δ = {DELTA:g}, 95% confidence: {errors}")
    sigma = 1.0
    first, second = candidates()
    most = epsilon_gaussian(DELTA, float(np.linalg.norm(first - second)) / sigma)
    filled = audit(sigma=sigma)
    print(f"filled to σ = 1 ε ≥ {filled.value:.2f}, and no sum can prove more than {most:.2f}")


if __name__ == "__main__":
    main()
