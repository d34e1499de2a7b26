"""Accuracy at equal ε over bits per coordinate: integer noise beside Gaussian noise.

After Agarwal, Kairouz, Liu (2021), arXiv:2110.04995, and Kairouz, Liu, Steinke (2021),
arXiv:2102.06387, with MNIST by writer. Ours differs in three points:
1. No random rotation before rounding, so that few bits cost more.
2. Every client takes part once, without amplification by sampling.
3. The ring has room for every client at its clip range; the papers choose a smaller one by a model
   of the updates and let the rest wrap around.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final

from leakmeter.auditors import wording
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.papers.base import Cells, Table, audited_run, median_range

_KINDS: Final = ("gaussian", "skellam", "discrete-gaussian")
_CLIP_NORM: Final = 0.5
_config = partial(
    Config,
    model="linear",
    participation="once",
    epochs=1,
    lr=0.1,
    noise="distributed",
    clip_norm=_CLIP_NORM,
    target_epsilon=8.0,
    colluders=0,
    auditors="none",
)


@dataclass(frozen=True)
class _Scale:
    """How large the runs are, and how many; all fixed before the first one."""

    config: Config
    seeds: int
    bits: tuple[int, ...]


_SCALES = {
    "paper": _Scale(
        _config(dataset="mnist", partition="natural", clients=539, sample=49, rounds=11),
        seeds=3,
        bits=(8, 10, 12, 16, 32),
    ),
    "small": _Scale(_config(dataset="digits", clients=24, sample=8, rounds=2), 1, (8, 12, 32)),
}


def run(scale: str, cells: Cells) -> Table:
    """Train with each distribution at each number of bits, calibrated to the same ε."""
    size, rows = _SCALES[scale], []
    config = size.config
    for bits, kind in product(size.bits, _KINDS):
        own = replace(config, secagg_bits=bits, noise_distribution=kind)
        runs = [
            cells.get(f"{scale}-{kind}-bits{bits}-seed{i}", _trained, replace(own, seed=i))
            for i in range(size.seeds)
        ]
        rows.append((bits, kind, *_row(runs)))
    return Table(
        title=f"Distributed noise in the ring, {config.dataset}, linear model, {config.sample} of "
        f"{config.clients} clients per round, each once, {config.rounds} rounds, target "
        f"ε = {config.target_epsilon:g} at δ = 1e-5, {wording.counted(size.seeds, 'run')} per row",
        columns=(
            *("bits per coordinate", "distribution", "noise multiplier", "ε against the server"),
            *("step / clip norm", "norm after rounding / clip norm", "accuracy"),
        ),
        rows=rows,
        notes=(
            "ε is about one client's update set to zero. With Gaussian shares below two steps it "
            "is an approximation (≈) that ignores rounding; integer noise is a guarantee (≤) at "
            "any step. none: no multiplier reaches the target with so few bits, since rounding "
            "alone moves the sum further than the noise that fits the ring can hide. Accuracy: "
            "median, and in brackets smallest and largest of the runs.",
        ),
    )


def _trained(config: Config) -> dict[str, Any]:
    """Return what one run guarantees and learns; only the reason if no noise reaches its target."""
    from leakmeter.fl_app.build.strategy import calibrated

    try:
        multiplier = calibrated(config).noise_multiplier
    except ConfigError as error:
        return {"refused": str(error)}
    _, report = audited_run(config)
    (finding,) = (
        f
        for f in report["findings"]
        if (f["auditor"], f["threat_model"]["observer"], f["adjacency"])
        == ("accountant", "server", "zero-out")
    )
    return {
        "multiplier": multiplier,
        "accuracy": report["rounds"][-1]["accuracy"],
        "epsilon": finding["value"],
        "kind": finding["kind"],
        "step": finding["facts"].get("largest grid step"),
        "sensitivity": finding["facts"]["largest sensitivity"],
    }


def _row(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    first = runs[0]
    if "refused" in first:
        return ["none", "none", "", "", "none"]
    sign = wording.SIGNS.get(first["kind"], "≈")
    has_grid = first["step"] is not None
    return [
        f"{first['multiplier']:.3g}",
        f"{sign} {wording.number(float(first['epsilon']), kind=first['kind'])}",
        f"{first['step'] / _CLIP_NORM:.2g}" if has_grid else "",
        f"{first['sensitivity'] / _CLIP_NORM:.3f}" if has_grid else "",
        median_range([run["accuracy"] for run in runs], ".3f"),
    ]
