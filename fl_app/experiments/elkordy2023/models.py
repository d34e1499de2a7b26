"""What the sum tells of a client, over data sets, models and algorithms.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 3 to 5: linear, SLP and MLP on MNIST, linear, SLP and
CNN on CIFAR-10; FedSGD, FedAvg and FedProx. The paper's leakage grows with the model. In a Gaussian
model it does so by the number of directions in which updates vary, and not otherwise, which is what
the columns set apart. FedAvg and FedProx with the linear model on MNIST are in `users`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from leakmeter.auditors.information import gaussian_information
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    NAMES,
    Algorithm,
    Setting,
    look,
    whole_bits,
)
from leakmeter.fl_app.experiments.plot import Panel


@dataclass(frozen=True)
class _Scale:
    settings: tuple[Setting, ...]
    users: tuple[int, ...]


def _settings(base: Setting, *models: str) -> tuple[Setting, ...]:
    return tuple(replace(base, model=model) for model in models)


_WIDE = Setting("cifar10", draws=90, rank=20)
_DEEP = Setting("cifar10", draws=40, rank=10)
_DIGITS = Setting("digits", clients=20, batch_size=8, draws=60, rank=8)


def _whole_passes(algorithm: Algorithm) -> tuple[Setting, ...]:
    """Return the settings whose clients pass over all their data, with fewer draws for that."""
    return (
        *_settings(Setting("mnist", algorithm=algorithm, draws=90, rank=20), "slp"),
        *_settings(Setting("mnist", algorithm=algorithm, draws=40, rank=10), "mlp"),
        *_settings(replace(_WIDE, algorithm=algorithm), "linear", "slp"),
        *_settings(replace(_DEEP, algorithm=algorithm), "cnn"),
    )


_SCALES = {
    "paper": _Scale(
        (
            *_settings(Setting("mnist"), "linear", "slp", "mlp"),
            *_settings(_WIDE, "linear", "slp"),
            *_settings(_DEEP, "cnn"),
            *_whole_passes("fedavg"),
            *_whole_passes("fedprox"),
        ),
        (2, 10, 20),
    ),
    "small": _Scale(
        (
            *_settings(_DIGITS, "linear", "slp", "mlp"),
            *_settings(replace(_DIGITS, algorithm="fedavg"), "slp", "mlp"),
        ),
        (2, 10),
    ),
}


def run(scale: str, cells: Cells) -> Table:
    """Measure every model at every number of users."""
    what = _SCALES[scale]
    rows: list[tuple[Any, ...]] = []
    lines = []
    told: list[tuple[Setting, list[dict[str, Any]]]] = []
    for color, setting in enumerate(what.settings):
        found = [cells.get(f"{setting.cell}-N{n}", partial(look, setting, n)) for n in what.users]
        rows += [_row(setting, n, got) for n, got in zip(what.users, found, strict=True)]
        told.append((setting, found))
        label = f"{NAMES[setting.algorithm]}, {setting.dataset}, {setting.model}"
        each = [got["bits"] / got["rank"] for got in found]
        lines.append(page.line(label, what.users, each, color))
    return Table(
        title="What a secure sum tells of an update, over data, models and algorithms",
        columns=(
            *(
                "algorithm",
                "data",
                "model",
                "users",
                "bits",
                "directions",
                "variance kept",
                "Gaussian truth",
            ),
            *("free coordinates", "all coordinates", "paper's axis"),
        ),
        rows=tuple(rows),
        notes=(
            page.NOTE.format(rank="the stated number of") + page.PAPER,
            "All coordinates: the Gaussian truth for every free coordinate, or the entropy of a "
            "client's records and batches where that is less; no number of samples here could "
            "confirm it. CIFAR-10 may be a part of the data "
            "set; the run says so.",
        ),
        figures={"models.svg": (Panel("Bits a direction", "users", "bits", tuple(lines), True),)},
        comparisons=_comparisons(what, told) if scale == "paper" else (),
    )


def _row(setting: Setting, users: int, found: dict[str, Any]) -> tuple[Any, ...]:
    return (
        NAMES[setting.algorithm],
        setting.dataset,
        setting.model,
        users,
        page.plus_minus(found),
        found["rank"],
        f"{100 * found['kept']:.0f} %",
        page.number(found["gaussian"]),
        found["free"],
        page.number(whole_bits(setting, found, users)),
        page.share(setting, found),
    )


# What the paper says of more than 20 users, on its own axis.
_FIGURES: dict[Algorithm, tuple[str, str]] = {
    "fedsgd": ("Fig. 3", "CIFAR-10 above MNIST, below 5 % and 2 %"),
    "fedavg": ("Fig. 4", "below 0.1 % on both"),
    "fedprox": ("Fig. 5", "below 0.12 % on both"),
}


def _comparisons(
    what: _Scale, told: list[tuple[Setting, list[dict[str, Any]]]]
) -> tuple[Comparison, ...]:
    rows = []
    for algorithm, (figure, share) in _FIGURES.items():
        own = [(setting, found[-1]) for setting, found in told if setting.algorithm == algorithm]
        each = [float(got["bits"]) / got["rank"] for _, got in own]
        errors = [float(got["error"]) / got["rank"] for _, got in own]
        free = [got["free"] for _, got in own]
        truth = gaussian_information(1, what.users[-1]).bits
        rows.append(
            Comparison(
                f"{page.SOURCE}{figure}",
                f"over models and data sets, {NAMES[algorithm]}, N = {what.users[-1]}",
                f"grows with the model, less than in proportion; {share}, more than 20 users",
                f"{min(each):.4f} to {max(each):.4f} bits a direction for all "
                f"{len(own)} models (± {max(errors):.4f}; Gaussian truth {truth:.4f}): only the "
                f"number of directions grows, {min(free):,} to {max(free):,} free coordinates",
                f"{page.UNITS}. Which of a large model's coordinates vary independently decides, "
                "and no number of samples here could tell; CIFAR-10 is a part of the data set",
            )
        )
    return tuple(rows)
