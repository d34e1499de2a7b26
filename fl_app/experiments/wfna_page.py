"""Words, rows and figures of the comparison of noised gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fl_app.experiments.plot import Line, Panel
from strategies.accounting import (
    full_gradient_epsilon,
    gaussian_sampling_epsilon,
    minibatch_epsilon,
    water_filling_epsilon,
)

Runs = Sequence[Mapping[str, Any]]
Got = Mapping[tuple[str, float], Runs]

# As the paper has them from the lowest accuracy up; the isotropic one is not in its figure.
RANKED = ("SGD-DP", "GSGD-DP", "GSGD isotropic", "GD-DP")
_PUBLISHED = ("SGD-DP", "GSGD-DP", "GD-DP")
# Table 1 for 50 users of 1,200 records, B = 32, C = 10, δ = 1e-4, one round.
_SETTING: dict[str, Any] = {"users": 50, "clip": 10.0, "examples": 1200, "delta": 1e-4}
_FLOORS = (1e-4, 1e-3, 1e-2)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation, which is 0 for one value."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def row(name: str, epsilon: float, runs: Runs) -> tuple[Any, ...]:
    """Return a line of the table."""
    mean, spread = mean_and_spread([float(run["accuracy"]) for run in runs])
    taken, _ = mean_and_spread([float(run["seconds"]) for run in runs])
    floor = float(runs[0]["floor"])
    return name, epsilon, f"{floor:.4g}", f"{mean:.4f} ± {spread:.4f}", f"{1e3 * taken:.0f}"


def ranking(got: Got) -> list[str]:
    """Say for every ε in which order the mechanisms come, and whether it is the published one."""
    lines = []
    for epsilon in dict.fromkeys(e for _, e in got):
        means = {
            name: mean_and_spread([float(r["accuracy"]) for r in got[name, epsilon]])
            for name in RANKED
        }
        order = sorted(RANKED, key=lambda name: -means[name][0])
        words = " > ".join(f"{name} {means[name][0]:.4f}" for name in order)
        values = [means[name][0] for name in _PUBLISHED]
        kept = values[0] < values[1] < values[2]
        gap = values[2] - values[1]
        noise = math.hypot(means["GD-DP"][1], means["GSGD-DP"][1])
        unclear = " (GSGD-DP and GD-DP within their spread)" if abs(gap) <= noise else ""
        verdict = "the published order" if kept else "not the published order"
        lines.append(f"ε = {epsilon:g}: {words}: {verdict}{unclear}.")
    return lines


def published() -> list[str]:
    """Return Table 1 with the rows that hold, as a table in the notes."""
    with_batch = {**_SETTING, "batch": 32}
    lines = ["| Table 1, one round, ε at σ² | " + " | ".join(f"{f:g}" for f in _FLOORS) + " |"]
    lines.append("| --- |" + " --- |" * len(_FLOORS))
    rows: dict[str, Callable[[float], float]] = {
        "row 1, minibatch, isotropic": lambda f: minibatch_epsilon(
            floor=f, conversion="plain", **with_batch
        ),
        "row 3, full gradient, isotropic": lambda f: full_gradient_epsilon(
            floor=f, conversion="plain", **_SETTING
        ),
        "row 5, Gaussian sampling, isotropic, sharpened": lambda f: gaussian_sampling_epsilon(
            floor=f, conversion="plain", **with_batch
        ),
        "WF-NA, corrected": lambda f: water_filling_epsilon(
            floor=f, conversion="plain", **with_batch
        ),
        "WF-NA, corrected, tight conversion": lambda f: water_filling_epsilon(
            floor=f, **with_batch
        ),
    }
    for name, price in rows.items():
        lines.append(f"| {name} | " + " | ".join(f"{price(f):.6f}" for f in _FLOORS) + " |")
    return ["", *lines, "", "Row 6 is left out: it is not a theorem."]


def panels(got: Got, spectrum: Mapping[str, Any]) -> tuple[Panel, ...]:
    """Return accuracy over ε, and the spectrum with what is added to it."""
    lines = []
    for color, name in enumerate(RANKED):
        epsilons = [e for n, e in got if n == name]
        means = [mean_and_spread([float(r["accuracy"]) for r in got[name, e]]) for e in epsilons]
        lines.append(Line(name, epsilons, [m for m, _ in means], color))
        for sign in (-1, 1):
            lines.append(Line("_spread", epsilons, [m + sign * s for m, s in means], color, ":"))
    curve = [tuple(map(float, point)) for point in spectrum["curve"]]
    floor = float(spectrum["floor"])
    least = floor * 1e-6  # a logarithmic axis has no zero
    index = [i for i, _, _ in curve]
    return (
        Panel("accuracy; dotted: ± std", "ε", "accuracy on test data", tuple(lines), log_x=True),
        Panel(
            "one user's sampling noise and what WF-NA adds",
            "index of the eigenvalue",
            "variance",
            (
                Line("by sampling", index, [max(v, least) for _, v, _ in curve], 0),
                Line("added by WF-NA", index, [max(a, least) for _, _, a in curve], 1),
                Line("isotropic noise", index, [floor] * len(index), 2, "--"),
            ),
            log_x=True,
            log_y=True,
        ),
    )
