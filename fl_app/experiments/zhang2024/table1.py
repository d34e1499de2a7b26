"""What one record is guaranteed in one round, by every row of the published table that holds.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Table 1, for 50 users of 1,200 records, B = 32, C = 10, δ = 1e-4. Rows
2 and 4 guarantee nothing, in the paper and here. Row 6 is not a theorem, and (38), which should
prove it, is false: they appear as counterexamples only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from leakmeter.auditors._types import Floats
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.plot import Line, Panel
from leakmeter.strategies.water_filling.guarantee import (
    full_gradient_epsilon,
    gaussian_sampling_epsilon,
    minibatch_epsilon,
    water_filling_epsilon,
)
from leakmeter.strategies.water_filling.rdp import epsilon_of

_SCALES = {"paper": 25, "small": 4}  # floors of the figure
_FLOORS = (1e-4, 1e-3, 1e-2)
_USERS, _BATCH, _CLIP, _EXAMPLES, _DELTA = 50, 32, 10.0, 1200, 1e-4
_SETTING: dict[str, Any] = {
    "users": _USERS,
    "clip": _CLIP,
    "examples": _EXAMPLES,
    "delta": _DELTA,
}
_SOURCE = "Zhang and Psounis 2024, Table 1"


def run(scale: str, cells: Cells) -> Table:
    """Price every row at every floor."""
    floors = [float(f) for f in np.geomspace(1e-5, 1e-1, _SCALES[scale])]
    table = {
        name: cells.get(f"table-{_key(name)}", partial(_priced, price, _FLOORS))
        for name, price in _ROWS.items()
    }
    curves = {
        name: cells.get(f"{scale}-curve-{_key(name)}", partial(_priced, price, floors))
        for name, price in _ROWS.items()
        if "printed" not in name
    }
    broken = cells.get("counterexamples", _counterexamples)
    return Table(
        title=f"ε of one round for one record, {_USERS} users of {_EXAMPLES:,} records, "
        f"B = {_BATCH}, C = {_CLIP:g}, δ = {_DELTA:g}",
        columns=("row", *(f"σ² = {floor:g}" for floor in _FLOORS)),
        rows=tuple((name, *map(_short, values)) for name, values in table.items()),
        notes=(
            "Guarantees for one record that is replaced, against a server that learns the secure "
            "sum of honest users only. Plain conversion from Rényi DP as in the paper, if nothing "
            "else is said; the minimum is over admissible orders α only, beyond which the printed "
            "formulas turn negative; none: no order is admissible.",
            "Theorem 4 states (35) for α in (1, Nσ²D/(2C²)). That range is empty up to "
            f"σ² = {_empty():.4g}: here it ends at {_limits()}. The denominator of (35) is "
            "positive up to B times as much, which the other row of (35) uses.",
            "Rows 2 and 4 (WF-NA on minibatches, or on the full gradient) guarantee nothing.",
            f"Counterexample to row 6: at α = {broken['alpha']:g} it says {broken['row six']:.4g} "
            f"where the mixed covariance has an eigenvalue of {broken['mixed']:.1f}: the "
            "divergence is infinite.",
            "Counterexample to (38): replacing g₁ = 0 by g₂ = (1, 1) at Σ = diag(0, 4), BD = 1, "
            "σ² = 3 changes what is added by eigenvalues "
            f"{broken['change'][0]:.3f} and {broken['change'][1]:+.3f}; (38) says that none is "
            "above 0.",
        ),
        figures={"epsilon.svg": _panels(floors, curves)},
        comparisons=_comparisons(table, broken),
    )


def stated_limit(floor: float) -> float:
    """Return the α below which Theorem 4 states (35), Nσ²D/(2C²).

    The denominator of (35) is positive up to B times as much.
    """
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


def _empty() -> float:
    """Return the σ² up to which the range of α that Theorem 4 states is empty."""
    return 2 * _CLIP**2 / (_USERS * _EXAMPLES)


def _limits() -> str:
    return ", ".join(f"α = {stated_limit(f):.2g} for σ² = {f:g}" for f in _FLOORS)


def _sampled(price: Callable[..., float], conversion: str, floor: float) -> float:
    return price(floor=floor, batch=_BATCH, conversion=conversion, **_SETTING)


def _full(conversion: str, floor: float) -> float:
    return full_gradient_epsilon(floor=floor, conversion=conversion, **_SETTING)  # type: ignore[arg-type]


_ROWS: dict[str, Callable[[float], float]] = {
    "1 minibatch, isotropic": partial(_sampled, minibatch_epsilon, "plain"),
    "3 full gradient, isotropic": partial(_full, "plain"),
    "3 full gradient, isotropic, exact": partial(_full, "exact"),
    "5 Gaussian sampling, isotropic, as printed": partial(_printed, 1.0, 1.0),
    "5 Gaussian sampling, isotropic, sharpened": partial(
        _sampled, gaussian_sampling_epsilon, "plain"
    ),
    "WF-NA, (35) as printed": partial(_printed, 2.0, 2.0),
    "WF-NA, (35) as printed, α as stated": partial(_printed, 2.0, 2.0, stated=stated_limit),
    "WF-NA, ours": partial(_sampled, water_filling_epsilon, "plain"),
    "WF-NA, ours, tight conversion": partial(_sampled, water_filling_epsilon, "tight"),
}


def _short(value: float | str) -> str:
    """Return ε as the table has it; cells keep infinity as a word."""
    return "none" if math.isinf(float(value)) else f"{float(value):.6f}"


def _key(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower()).replace("--", "-")


def _priced(
    price: Callable[[float], float], floors: tuple[float, ...] | list[float]
) -> list[float]:
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


def _comparisons(table: dict[str, list[float]], broken: dict[str, Any]) -> tuple[Comparison, ...]:
    at = f"ε at σ² = {_FLOORS[1]:g} by the formula, which the paper gives without numbers"
    value = {name: _short(values[1]) for name, values in table.items()}
    one = value["1 minibatch, isotropic"]
    five = value["5 Gaussian sampling, isotropic, as printed"]
    return (
        Comparison(_SOURCE, f"row 1, {at}", one, one, "the formula holds and is taken as it is"),
        Comparison(
            _SOURCE,
            f"row 3, {at}",
            value["3 full gradient, isotropic"],
            value["3 full gradient, isotropic, exact"],
            "the formula holds; the Gaussian mechanism's own ε is smaller",
        ),
        Comparison(
            _SOURCE,
            f"row 5, {at}",
            five,
            value["5 Gaussian sampling, isotropic, sharpened"],
            "the formula holds; ours bounds ln det by its second derivative, which is sharper",
        ),
        Comparison(
            "Zhang and Psounis 2024, Theorem 4",
            f"(35), {at}",
            value["WF-NA, (35) as printed"],
            value["WF-NA, ours"],
            "true as a bound, but not by its proof, which rests on (38); ours is sharper",
        ),
        Comparison(
            "Zhang and Psounis 2024, Theorem 4",
            "orders α for which (35) is stated, (1, Nσ²D/(2C²)), at the paper's N, D and C",
            "not looked at",
            f"empty for σ² up to {_empty():.4g}; the range ends at {_limits()}",
            "the statement lacks a factor B, up to which the denominator of (35) is positive; "
            "our rows take that",
        ),
        Comparison(
            _SOURCE,
            f"row 6, {at}",
            f"{five}, the same as row 5",
            value["WF-NA, ours"],
            "row 6 is not a theorem: it is finite in a case where the divergence is infinite",
        ),
        Comparison(
            "Zhang and Psounis 2024, (38)",
            "largest eigenvalue of the change of what is added, g₁ = 0",
            "at most 0",
            f"{broken['change'][1]:.3f}",
            "false: raising eigenvalues to a floor does not keep the order of matrices",
        ),
    )


def _panels(floors: list[float], curves: dict[str, list[float]]) -> tuple[Panel, ...]:
    lines = tuple(
        Line(name, floors, [float(v) for v in values], i)
        for i, (name, values) in enumerate(curves.items())
    )
    return (Panel("one round", "σ² of each user", "ε", lines, log_x=True, log_y=True),)
