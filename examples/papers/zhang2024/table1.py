"""What one record is guaranteed in one round, by every row of the published table that holds.

Zhang and Psounis (2024), arXiv:2405.04551, Table 1, for 50 users of 1,200 records, B = 32, C = 10,
δ = 1e-4. Rows 2 and 4 guarantee nothing, in the paper and here. Row 6 is not a theorem, and (38),
which should prove it, is false: they appear as counterexamples only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from leakmeter.auditors.values import Floats
from leakmeter.papers.base import Cells, Comparison, Table
from leakmeter.papers.plot import Line, Panel
from leakmeter.papers.zhang2024 import prices
from leakmeter.strategies.accounting.rdp import epsilon_of

_SCALES = {"paper": 25, "small": 4}  # floors of the figure
_FLOORS = (1e-4, 1e-3, 1e-2)
_USERS, _BATCH, _CLIP, _EXAMPLES, _DELTA = 50, 32, 10.0, 1200, 1e-4
_SOURCE, _THEOREM = "Zhang and Psounis 2024, Table 1", "Zhang and Psounis 2024, Theorem 4"
_FIVE = "5 Gaussian sampling, isotropic, as printed"


def run(scale: str, cells: Cells) -> Table:
    """Price every row at every floor."""
    floors = [float(f) for f in np.geomspace(1e-5, 1e-1, _SCALES[scale])]
    table: dict[str, list[float]] = {}
    lines: list[Line] = []
    for name, price in _ROWS.items():
        key = "".join(c if c.isalnum() else "-" for c in name.lower()).replace("--", "-")
        table[name] = cells.get(f"table-{key}", _priced, price, _FLOORS)
        if "printed" not in name:
            values = cells.get(f"{scale}-curve-{key}", _priced, price, floors)
            lines.append(Line(name, floors, [float(v) for v in values], len(lines)))
    broken = cells.get("counterexamples", _counterexamples)
    panel = Panel("one round", "σ² of each user", "ε", tuple(lines), log_x=True, log_y=True)
    return Table(
        title=f"ε of one round for one record, {_USERS} users of {_EXAMPLES:,} records, "
        f"B = {_BATCH}, C = {_CLIP:g}, δ = {_DELTA:g}",
        columns=("row", *(f"σ² = {floor:g}" for floor in _FLOORS)),
        rows=tuple((name, *map(_short, values)) for name, values in table.items()),
        notes=(
            "Guarantees for one record that is replaced, against a server that learns the secure "
            "sum of honest users only. Plain conversion from Rényi DP as in the paper, if nothing "
            "else is said; the minimum is over admissible orders α only, beyond which the printed "
            "formulas turn negative; none: no order is admissible. Rows 2 and 4 (WF-NA on "
            "minibatches, or on the full gradient) guarantee nothing.",
            f"Counterexample to row 6: at α = {broken['alpha']:g} it says {broken['row six']:.4g} "
            f"where the mixed covariance has an eigenvalue of {broken['mixed']:.1f}: the "
            "divergence is infinite.",
            "Counterexample to (38), by which none is above 0: replacing g₁ = 0 by g₂ = (1, 1) at "
            "Σ = diag(0, 4), BD = 1, σ² = 3 changes what is added by eigenvalues "
            f"{broken['change'][0]:.3f} and {broken['change'][1]:+.3f}.",
        ),
        figures={"epsilon.svg": (panel,)},
        comparisons=tuple(_comparisons(table, broken)),
    )


def stated_limit(floor: float) -> float:
    """Return the α below which Theorem 4 states (35), Nσ²D/(2C²)."""
    return _USERS * floor * _EXAMPLES / (2 * _CLIP**2)


def _printed(
    shift: float, middle: float, floor: float, stated: Callable[[float], float] | None = None
) -> float:
    """Return the printed form (2αC²/D² + `shift` αt/(α - 1)) / (Nσ² - `middle` αt), t = C²/(BD).

    The minimum is over orders where the denominator is positive and, if asked, below a stated one.
    """
    t, total = _CLIP**2 / (_BATCH * _EXAMPLES), _USERS * floor

    def curve(alpha: Floats) -> Floats:
        rest = total - middle * alpha * t
        is_admissible = (alpha > 1) & (rest > 0)
        a, rest = np.where(is_admissible, alpha, 2.0), np.where(is_admissible, rest, 1.0)
        value = (2 * a * _CLIP**2 / _EXAMPLES**2 + shift * a * t / (a - 1)) / rest
        return np.where(is_admissible, value, math.inf)

    limit = min(total / (middle * t), stated(floor) if stated else math.inf)
    return epsilon_of(curve, _DELTA, limit=limit, conversion="plain") if limit > 1 else math.inf


def _ours(price: Callable[..., float], conversion: str, floor: float) -> float:
    batch = {} if price is prices.full_gradient_epsilon else {"batch": _BATCH}
    size = {"users": _USERS, "clip": _CLIP, "examples": _EXAMPLES, "delta": _DELTA, **batch}
    return price(floor=floor, conversion=conversion, **size)


_ROWS: dict[str, Callable[[float], float]] = {
    "1 minibatch, isotropic": partial(_ours, prices.minibatch_epsilon, "plain"),
    "3 full gradient, isotropic": partial(_ours, prices.full_gradient_epsilon, "plain"),
    "3 full gradient, isotropic, exact": partial(_ours, prices.full_gradient_epsilon, "exact"),
    _FIVE: partial(_printed, 1.0, 1.0),
    "5 Gaussian sampling, isotropic, sharpened": partial(
        _ours, prices.gaussian_sampling_epsilon, "plain"
    ),
    "WF-NA, (35) as printed": partial(_printed, 2.0, 2.0),
    "WF-NA, (35) as printed, α as stated": partial(_printed, 2.0, 2.0, stated=stated_limit),
    "WF-NA, ours": partial(_ours, prices.water_filling_epsilon, "plain"),
    "WF-NA, ours, tight conversion": partial(_ours, prices.water_filling_epsilon, "tight"),
}


def _short(value: float | str) -> str:
    """Return ε as the table has it; cells keep infinity as a word."""
    return "none" if math.isinf(float(value)) else f"{float(value):.6f}"


def _priced(price: Callable[[float], float], floors: Sequence[float]) -> list[float]:
    return [float(price(floor)) for floor in floors]


def _floored(sigma: Floats, floor: float) -> Floats:
    values, vectors = np.linalg.eigh(sigma)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)


def _counterexamples() -> dict[str, Any]:
    """Return where row 6 and (38) fail; by hand, in two dimensions."""
    users, records, alpha = 10_000, 101, 9000.0  # C² = D = 101, B = 1, σ² = 1: t = 1
    angle = math.acos(1 / math.sqrt(3)) / 2
    one = np.array([math.cos(angle), math.sin(angle)])
    other = np.array([-math.sin(angle), math.cos(angle)])
    rest = np.diag([100.0, 0.0])  # a hundred gradients along the first axis
    first, second = (
        (users - 1) * np.eye(2) + _floored(rest + np.outer(g, g), 1.0) for g in (one, other)
    )
    mixed = [(1 - alpha) * a + alpha * b for a, b in ((first, second), (second, first))]
    row_six = (2 * alpha / records + alpha / (alpha - 1)) / (users - alpha)
    sigma, added = np.diag([0.0, 4.0]), np.ones((2, 2))
    filled = [_floored(s, 3.0) - s for s in (sigma, sigma + added)]
    return {
        "alpha": alpha,
        "row six": row_six,
        "mixed": min(float(np.linalg.eigvalsh(m)[0]) for m in mixed),
        "change": [float(v) for v in np.linalg.eigvalsh(filled[1] - filled[0])],
    }


# What is compared: source, row of the paper, its formula and ours among the rows, and why.
_COMPARED = (
    (_SOURCE, "row 1", "1 minibatch, isotropic", "1 minibatch, isotropic", "the formula holds"),
    (
        *(_SOURCE, "row 3", "3 full gradient, isotropic", "3 full gradient, isotropic, exact"),
        "the formula holds; the Gaussian mechanism's own ε is smaller",
    ),
    (
        *(_SOURCE, "row 5", _FIVE, "5 Gaussian sampling, isotropic, sharpened"),
        "the formula holds; ours bounds ln det by its second derivative, which is sharper",
    ),
    (
        *(_THEOREM, "(35)", "WF-NA, (35) as printed", "WF-NA, ours"),
        "true as a bound, but not by its proof, which rests on (38); ours is sharper",
    ),
    (
        *(_SOURCE, "row 6, the same as row 5", _FIVE, "WF-NA, ours"),
        "row 6 is not a theorem: it is finite in a case where the divergence is infinite",
    ),
)


def _comparisons(table: dict[str, list[float]], broken: dict[str, Any]) -> Iterator[Comparison]:
    at = f"ε at σ² = {_FLOORS[1]:g} by the formula, which the paper gives without numbers"
    for source, row, printed, ours, why in _COMPARED:
        theirs, better = _short(table[printed][1]), _short(table[ours][1])
        yield Comparison(source, f"{row}, {at}", theirs, better, why)
    empty = 2 * _CLIP**2 / (_USERS * _EXAMPLES)
    ends = ", ".join(f"α = {stated_limit(f):.2g} for σ² = {f:g}" for f in _FLOORS)
    yield Comparison(
        _THEOREM,
        "orders α for which (35) is stated, (1, Nσ²D/(2C²)), at N = 50, C = 10 and D = 1,200",
        "not considered",
        f"empty for σ² up to {empty:.4g}; the range ends at {ends}",
        "The statement lacks a factor B: the denominator of (35) is positive up to "
        "α = BNσ²D/(2C²). Our rows use that range",
    )
    yield Comparison(
        "Zhang and Psounis 2024, (38)",
        "largest eigenvalue of the change of what is added, g₁ = 0",
        "at most 0",
        f"{broken['change'][1]:.3f}",
        "false: raising eigenvalues to a floor does not keep the order of matrices",
    )
