"""Three clients whose sum hides nothing of a fourth, and the noise that would.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 17, and Zhang and Psounis (2024), arXiv:2405.04551,
Fig. 3: the last quarter of three updates is zero, that of the fourth is not. The papers show a
heatmap; here auditors look for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.likelihood_ratio.sum_distribution import outside_span
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats
from leakmeter.papers.base import Cells, Comparison, Table
from leakmeter.papers.plot import Line, Panel

_SCALES = {"paper": 3000, "small": 300}  # sums in either world
_DIM, _OTHERS, _LOUD, _DELTA = 40, 3, 10.0, 1e-5
_IDLE = _DIM // 4
_SIGMAS = (0.0, 0.25, 0.5, 1.0, 2.0)


def run(scale: str, cells: Cells) -> Table:
    """Look at the span, and tell the fourth client's two updates apart at every noise."""
    trials = _SCALES[scale]
    support = cells.get("span", _support)
    found = {
        sigma: cells.get(f"{scale}-sigma{sigma:g}", _audited, trials, sigma) for sigma in _SIGMAS
    }
    bare = found[0.0]
    return Table(
        title=f"A sum of {_OTHERS + 1} clients of which {_OTHERS} never touch a quarter of "
        f"{_DIM} parameters, δ = {_DELTA:g}",
        columns=("noise σ in every direction", "ε at least", "cap", "errors", "ε at most"),
        rows=tuple(
            (
                *(sigma, _short(f["value"]), _short(f["cap"])),
                *(f"{f['errors']} of {2 * trials}", _short(f["most"])),
            )
            for sigma, f in found.items()
        ),
        notes=(
            f"Span: {support['words']}. {support['idle']:.0%} of the squared length of x₄ is in "
            "the quarter that the others leave alone. A diagnosis.",
            f"Each of the three has noise of standard deviation {_LOUD:g} elsewhere, ten times the "
            "length of the fourth update. Lower bounds at 95 % confidence, replace, unit client. "
            "Cap: the most that so many trials can show. ε at most: the exact ε of the two worlds "
            "with that noise in every direction and nothing else.",
        ),
        figures={"counterexample.svg": _panels(found)},
        comparisons=(
            Comparison(
                "Elkordy et al. 2023, Fig. 17; Zhang and Psounis 2024, Fig. 3",
                "distinguishing x₄ from x₄′ in the sum of four, without noise",
                "an adversary can perfectly distinguish them",
                f"{bare['errors']} errors in {2 * trials} sums, ε ≥ {bare['value']:.2f} with 95 % "
                "confidence, the largest bound that so many sums can show",
                "the auditor made errors" if bare["errors"] else "",
            ),
            Comparison(
                "Zhang and Psounis 2024, Theorem 1",
                "part of x₄ - x₄′ outside the span of the other updates",
                "none, if there is to be any DP",
                f"{support['outside']:.0%} of its length",
                "Our updates have the figure's zeros; the paper does not publish its numbers",
            ),
        ),
    )


def _others(rng: np.random.Generator) -> Floats:
    """Return the three updates: loud, and zero in the last quarter."""
    updates = _LOUD * rng.standard_normal((_OTHERS, _DIM))
    updates[:, -_IDLE:] = 0.0
    return updates


def _candidates() -> tuple[Floats, Floats]:
    """Return the fourth update before and after one record has changed."""
    first, second = stream(0, "candidates").standard_normal((2, _DIM)) / np.sqrt(_DIM)
    return first, second


def _support() -> dict[str, Any]:
    """Return what the others' span misses, after many rounds."""
    first, second = _candidates()
    rng = stream(0, "span")
    found = outside_span(first - second, np.concatenate([_others(rng) for _ in range(60)]))
    idle = float((first[-_IDLE:] ** 2).sum() / (first**2).sum())
    return {"words": found.words, "outside": found.share, "idle": idle}


def _audited(trials: int, sigma: float) -> dict[str, Any]:
    """Return what sums prove, how often a guess is wrong, and what could be proved at most."""
    first, second = _candidates()
    difference = (first - second)[-_IDLE:]
    middle = (first + second)[-_IDLE:] / 2

    def scores(update: Floats, name: str) -> Floats:
        rng = stream(0, "sums", name)
        sums = np.stack([_others(rng).sum(axis=0) + update for _ in range(trials)])
        sums += sigma * rng.standard_normal(sums.shape)
        # The last quarter alone tells: its part along the difference, from half way.
        return np.asarray((sums[:, -_IDLE:] - middle) @ difference)

    inside, outside = scores(first, "in"), scores(second, "out")
    distance = float(np.linalg.norm(first - second))
    length = float(np.linalg.norm(difference))
    # Noise of one's own has a known distribution, and so has the score in the other world.
    null = norm(-(length**2) / 2, sigma * length)
    known = {"null_logsf": null.logsf} if sigma else {"scores_out": outside}
    bound = epsilon_lower_bound(inside, delta=_DELTA, **known)
    return {
        "value": bound.value,
        "cap": bound.cap,
        "errors": int((inside <= 0).sum() + (outside > 0).sum()),
        "most": epsilon_gaussian(_DELTA, distance / sigma) if sigma else None,
    }


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _panels(found: dict[float, dict[str, Any]]) -> tuple[Panel, ...]:
    """Return one draw of the four updates, and the bounds over the noise."""
    rng = stream(0, "heatmap")
    rows = [*np.abs(_others(rng)), np.abs(_candidates()[0])]
    index = list(range(1, _DIM + 1))
    updates = tuple(
        Line(f"user {i + 1}", index, np.maximum(row, 1e-3).tolist(), i)  # a logarithm has no zero
        for i, row in enumerate(rows)
    )
    noisy = [sigma for sigma in found if sigma]
    bounds = (
        Line("at least", noisy, [found[s]["value"] for s in noisy], 0),
        Line("at most", noisy, [found[s]["most"] for s in noisy], 1, "--"),
    )
    return (
        Panel("sizes of four updates", "parameter", "absolute value", updates, log_y=True),
        Panel("what sums tell once noise fills all directions", "σ", "ε", bounds),
    )
