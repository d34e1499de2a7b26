"""DP-FedAvg on MNIST by writer: what one-shot canaries find against what the noise guarantees.

In the manner of Andrew et al. (2024), arXiv:2302.03098, Table 2, with MNIST's writers in place of
Stackoverflow's authors. Ours differs in three points:
1. Every client takes part once, and so does every canary: the accountant then prices exactly the
   participation that is audited, and claims no amplification.
2. Lower bounds with 95 % confidence each are listed next to the estimates.
3. The accountant's ε covers the attacker, adjacency, unit and δ of the bounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import ThreatModel
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.preflight import preflight
from leakmeter.fl_app.run.progress import Progress

_NOISES = (0.0, 0.5, 2.0)  # none, low and high: noise on the sum in units of the clip norm
# What an attacker sees, and what the estimate that is shown assumes.
_MODELS = {
    "final": ("final model", Assumption.GAUSSIAN_COSINES_NULL_STD),
    "all rounds": ("all models", Assumption.GAUSSIAN_MAXIMA),
}
# Which of the bounds the table shows; the cells keep all of them.
_SHOWN: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "any mechanism": lambda bound: not bound["conditional"],
    "if scores are independent": lambda bound: (
        {
            Assumption.INDEPENDENT_SCORES,
            Assumption.UNIFORM_CANARIES,
        }
        <= set(bound["assumptions"])
    ),
}


@dataclass(frozen=True)
class _Scale:
    """How large the runs are, and how many; all fixed before the first one."""

    clients: int
    sample: int
    seats: int
    rounds: int
    seeds: int


_SCALES = {
    "paper": _Scale(clients=539, sample=29, seats=20, rounds=11, seeds=5),
    "small": _Scale(clients=300, sample=15, seats=15, rounds=10, seeds=1),
}


def run(scale: str, cells: Cells) -> Table:
    """Train with no, low and high noise, and set findings beside guarantees."""
    size = _SCALES[scale]
    got: dict[float, list[Any]] = {noise: [] for noise in _NOISES}
    for seed in range(size.seeds):  # the outer loop: runs with the same seed share their data
        for noise in _NOISES:
            key = f"{scale}-noise{noise:g}-seed{seed}"
            compute = partial(_cell, cells.folder / "runs" / key, _config(size, noise, seed))
            got[noise].append(cells.get(key, compute))
    rows = [(noise, *_row(runs)) for noise, runs in got.items()]
    pairs = [(name, model) for name in _SHOWN for model in _MODELS]
    return Table(
        title=f"DP-FedAvg on MNIST by writer, {size.clients} writers once each, "
        f"{size.seats * size.rounds} canaries, δ = 1e-5, {counted(size.seeds, 'run')} per row",
        columns=(
            "noise multiplier",
            "accuracy",
            "accountant's ε",
            *(f"estimate, {model}" for model in _MODELS),
            *(f"bound ({name}), {model}" for name, model in pairs),
            "bounds above ε",
        ),
        rows=tuple(rows),
        notes=(
            "ε, estimates and bounds are about the same outsider, who sees the released models, "
            "and about one client's update set to zero. Mean ± std where a row has more than one "
            "run. Estimates are no bounds; brackets contain the 90 % band of the method when "
            "nothing leaks (first run). Estimates are too low where honest updates are not small "
            "against the noise, and each run warns of it. They are left out where the cosines are "
            "clearly not Gaussian or a bound refutes them. A bound holds with 95 % confidence by "
            "itself, so up to one in twenty may exceed ε; the last column counts all bounds of "
            "the row, also those not shown. The first bound holds for any mechanism, the second "
            "only if the scores of one run are independent. An asterisk: as large as the method "
            "could show.",
        ),
        comparisons=tuple(_comparison(noise, runs) for noise, runs in got.items()),
    )


# Noise of the paper that lies nearest by its analytical ε, with ε_est of all models and the last.
_TABLE2 = {
    0.0: "analytical ε = ∞: 45800; 4.60",
    0.5: "analytical ε = 30: 2.693; 0.569",
    2.0: "no row: the smallest analytical ε is 30",
}


def _comparison(noise: float, runs: Sequence[Mapping[str, Any]]) -> Comparison:
    """Set our estimates beside the nearest row of the paper."""
    every, last = (_shown_estimate(runs, model) for model in ("all rounds", "final"))
    return Comparison(
        source="Andrew et al. 2024, Table 2",
        what="ε_est from all models; from the final one, each client once",
        paper=_TABLE2[noise],
        ours=f"accountant's ε = {float(runs[0]['epsilon']):.4g}: {every}; {last}",
        why="Another task, and noise for an ε that somebody would promise; one-shot-writers has "
        f"the paper's own. {_shape(runs)}",
    )


def _shape(runs: Sequence[Mapping[str, Any]]) -> str:
    """Say whether all models show more than the last one."""
    found = _estimates(runs, "all rounds")
    if not found:
        return "The largest cosines are not Gaussian, so a fit to them estimates nothing."
    mean = sum(float(one["value"]) for one in found) / len(found)
    low, high = map(float, found[0]["null_band"])
    if mean <= high:
        return (
            f"What all models give is within what the method says where nothing leaks, {low:.2f} "
            f"to {high:.2f}: it shows nothing."
        )
    return (
        "One shape: all models show far more than the last one; the paper's largest estimates are "
        "those of a fit to skewed maxima."
    )


def _config(size: _Scale, noise: float, seed: int) -> Config:
    return Config(
        dataset="mnist",
        model="linear",
        partition="natural",
        clients=size.clients,
        sample=size.sample,
        rounds=size.rounds,
        participation="once",
        epochs=1,
        lr=0.1,
        noise="central",
        clip_norm=0.5,
        noise_multiplier=noise,
        canary_seats=size.seats,
        seed=seed,
    )


def _cell(path: Path, config: Config) -> dict[str, Any]:
    """Run or resume one training, and return its report."""
    preflight(config)
    folder = _folder(path, config)
    if not (path / "report.json").exists():
        launch(folder, Progress(Console(quiet=True)))
    report = json.loads((path / "report.json").read_text())
    if report["failures"]:  # no cell is kept that lacks an auditor
        raise RuntimeError(f"{path}: {'; '.join(report['failures'])}")
    return summarise(report)


def _folder(path: Path, config: Config) -> RunFolder:
    """Return the folder of a new or an interrupted run with these settings."""
    if not (path / "config.toml").exists():
        return RunFolder.create(path, config)
    if Config.from_toml(path / "config.toml") != config:
        raise ConfigError(f"out must be new: {path} is of a run with other settings")
    return RunFolder(path.absolute(), config)


_KEPT = ("value", "rule", "cap", "saturated", "confidence", "conditional", "assumptions")


def summarise(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return accuracy, guarantee, estimates (None where left out) and all bounds of a report."""
    whole = [f for f in report["findings"] if f["server_round"] is None]
    epsilons = [f for f in whole if f["auditor"] == "one-shot" and f["quantity"] == "epsilon"]
    found: dict[str, Any] = {"accuracy": report["rounds"][-1]["accuracy"]}
    bounds = []
    for model, (sees, assumed) in _MODELS.items():
        these = [f for f in epsilons if f["threat_model"]["sees"] == sees]
        estimates = (f for f in these if f["kind"] == "estimate" and assumed in f["assumptions"])
        found[f"estimate, {model}"] = next(
            ({k: f[k] for k in ("value", "null_band", "rule")} for f in estimates), None
        )
        for bound in (f for f in these if f["kind"] == "lower_bound"):
            bounds.append(
                {
                    "model": model,
                    **{k: bound[k] for k in _KEPT},
                    "epsilon": _guarantee(whole, bound),
                }
            )
    return {**found, "epsilon": max(b["epsilon"] for b in bounds), "bounds": bounds}


def _guarantee(findings: Sequence[Mapping[str, Any]], bound: Mapping[str, Any]) -> float:
    """Return the smallest ε that is guaranteed for attacker, adjacency, unit and δ of a bound."""
    same = ("quantity", "adjacency", "unit", "delta")
    attacker = ThreatModel(**bound["threat_model"])
    covering = (
        float(f["value"])
        for f in findings
        if f["kind"] == "guarantee"
        and all(f[k] == bound[k] for k in same)
        and attacker.is_within(ThreatModel(**f["threat_model"]))
    )
    return min(covering, default=math.inf)


def _estimates(cells: Sequence[Mapping[str, Any]], model: str) -> list[Mapping[str, Any]]:
    """Return the estimates of the runs that have one."""
    return [c[f"estimate, {model}"] for c in cells if c[f"estimate, {model}"] is not None]


def _shown_estimate(cells: Sequence[Mapping[str, Any]], model: str) -> str:
    """Return the estimates of all runs as one text."""
    found = _estimates(cells, model)
    if not found:
        return "left out"
    some = "" if len(found) == len(cells) else f" in {len(found)} of {len(cells)} runs"
    return _shown([float(one["value"]) for one in found]) + some


def _row(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line of the table from the runs with the same noise."""
    row = [_shown([c["accuracy"] for c in cells], 3), f"{float(cells[0]['epsilon']):.2f}"]
    for model in _MODELS:
        shown = _shown_estimate(cells, model)
        for first in _estimates(cells, model)[:1]:
            low, high = map(float, first["null_band"])
            shown += f" ({low:.2f} to {high:.2f})"
        row.append(shown)
    for is_shown in _SHOWN.values():
        for model in _MODELS:
            bounds = [
                next(b for b in c["bounds"] if b["model"] == model and is_shown(b)) for c in cells
            ]
            star = "*" * any(b["saturated"] for b in bounds)
            row.append(_shown([float(b["value"]) for b in bounds]) + star)
    every = [b for c in cells for b in c["bounds"]]
    above = sum(float(b["value"]) > float(b["epsilon"]) for b in every)
    return [*row, f"{above} of {len(every)}"]


def _shown(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean, and the std where there is more than one value."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return f"{mean:.{digits}f} ± {std:.{digits}f}"
