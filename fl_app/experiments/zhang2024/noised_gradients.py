"""Four ways to noise sampled gradients, at equal accumulated (ε, δ) for one record.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Fig. 4 and Fig. 5, 50 users, linear model and CNN. Ours differs:

1. All floors are calibrated with bounds that hold (`strategies.water_filling.rdp`), composed over
   the rounds in Rényi DP and converted tightly. Row 6 of Table 1, which the paper prices WF-NA
   with, is no theorem; with the corrected bound the floor for WF-NA is above that for isotropic
   noise.
2. The paper trains for 100 epochs, and each of 50 users holds 1,200 records. At the scale "paper"
   users hold 600 and there are 20 rounds, so that it takes minutes.
3. Isotropic noise on Gaussian sampling (row 5) is trained as well: it is what WF-NA should beat.
4. The CNN is smaller still, because the Gram matrix and the gradients of single examples take
   milliseconds an example and round: users hold 60 records, B is 8 in place of 32, and there are 8
   rounds. C, δ and the number of users are the published ones.
5. So few steps would not leave the plateau that the CNN starts on. It starts from a model that
   2,000 public records, which no user holds, have brought off it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from scipy.special import stdtrit

from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.plot import Line, Panel
from leakmeter.fl_app.experiments.zhang2024.training import (
    DELTA,
    MECHANISMS,
    Got,
    Runs,
    Scale,
    compute,
    start_accuracy,
)

Variant = Literal["linear", "cnn"]

_SCALES: dict[Variant, dict[str, Scale]] = {
    "linear": {
        "paper": Scale("mnist", 50, 600, 20, 32, 10.0, 0.3, (0.5, 1.0, 2.0, 4.0, 8.0), 3),
        "small": Scale("digits", 5, 150, 5, 16, 4.0, 0.8, (2.0, 16.0), 2),
    },
    "cnn": {
        "paper": Scale(
            *("mnist", 50, 60, 8, 8, 10.0, 0.01, (2.0, 8.0), 3),
            once=("GSGD isotropic", "GD-DP"),
            model="cnn",
            public=2000,
        ),
        "small": Scale(
            "digits", 5, 40, 3, 8, 4.0, 0.1, (8.0, 64.0), 1, model="cnn", enlarged=2, public=600
        ),
    },
}
# Neighbours in the published order, the better one first; isotropic noise is not in its figure.
_PUBLISHED = (("GSGD-DP", "SGD-DP"), ("GD-DP", "GSGD-DP"))
_NAMED = ("SGD-DP", "GSGD-DP", "GD-DP")


@dataclass(frozen=True)
class _Words:
    """What is said of one model and nothing else.

    Attributes:
        name: Of the model.
        title: The same for the title.
        notes: On how it was trained.
        why: How our runs differ from the published ones.
    """

    name: str
    title: str
    notes: tuple[str, ...]
    why: str


def run(scale: str, cells: Cells, variant: Variant) -> Table:
    """Train every mechanism at every ε with every seed."""
    size = _SCALES[variant][scale]
    got, middle, spectrum = compute(scale, size, cells)
    if variant == "cnn":
        start = float(cells.get(f"{scale}-start", partial(start_accuracy, size)))
        words = _cnn(size, spectrum["dim"], start)
    else:
        words = _linear(size)
    return Table(
        title=f"Accuracy at equal ε for one record, {size.dataset}, {words.title}, {size.users} "
        f"users of {size.examples} records, {size.rounds} rounds, B = {size.batch}, "
        f"C = {size.clip:g}, δ = {DELTA:g}",
        columns=("mechanism", "ε", "σ² per user", "runs", "accuracy", "ms a round"),
        rows=tuple(_row(name, epsilon, runs) for (name, epsilon), runs in got.items()),
        notes=(
            *words.notes,
            *(f"ε = {e:g}: {relations(got, e)}." for e in size.epsilons),
            _meaning(size),
            _spectrum_note(spectrum, middle),
        ),
        figures={"accuracy.svg": _panels(got, spectrum)},
        comparisons=(
            *compared(got, words.name, words.why),
            _compared_spectrum(spectrum, words.name, got),
        ),
    )


def _linear(size: Scale) -> _Words:
    return _Words(
        "linear model",
        "linear model",
        notes=(
            f"Steps have the length {size.lr:g} for all mechanisms; the paper gives none. Records, "
            "rounds and runs are fewer than its own, for the sake of time.",
        ),
        why=f"{size.examples} records a user and {size.rounds} rounds in place of 1,200 and "
        "100 epochs; floors from bounds that hold, composed in Rényi DP",
    )


def _cnn(size: Scale, dim: int, start: float) -> _Words:
    return _Words(
        "CNN",
        f"CNN of {dim:,} parameters",
        notes=(
            f"The first run starts at an accuracy of {start:.4f}, from {size.public} public "
            "records that no user holds; the published runs start at random and are far longer.",
            "The kind of start was chosen, and the step length set, after ten short runs without "
            "noise that looked at the accuracy on a part of the test data; accuracies are to be "
            "compared with each other, not with the paper's. A first run had steps of 0.03, at "
            "which full gradients without any noise swing (0.877 after 4 rounds, 0.814 after 8); "
            "steps of 0.01 replaced it after that had been seen.",
        ),
        why=f"{size.examples} records a user, {size.rounds} rounds and B = {size.batch} in "
        f"place of 1,200, 100 epochs and 32; a start from public records, at {start:.4f}; floors "
        "from bounds that hold",
    )


def _mean_std(runs: Runs, name: str = "accuracy") -> tuple[float, float]:
    """Return mean and standard deviation over runs; the latter is 0 for one run."""
    values = [float(run[name]) for run in runs]
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _row(name: str, epsilon: float, runs: Runs) -> tuple[Any, ...]:
    """Return a line of the table."""
    mean, std = _mean_std(runs)
    taken, _ = _mean_std(runs, "seconds")
    floor = float(runs[0]["floor"])
    accuracy = f"{mean:.4f} ± {std:.4f}" if len(runs) > 1 else f"{mean:.4f}"
    return name, epsilon, f"{floor:.4g}", len(runs), accuracy, f"{1e3 * taken:.0f}"


def relations(got: Got, epsilon: float) -> str:
    """Return accuracies at one ε, and which neighbours in the published order are apart.

    Runs of one number share split and start, so their differences are taken run by run.
    """
    runs = {name: got[name, epsilon] for name in MECHANISMS}
    is_uneven = len({len(own) for own in runs.values()}) > 1  # means of other starts
    means = ", ".join(
        f"{name} {_mean_std(own)[0]:.4f}" + " (one run)" * (is_uneven and len(own) == 1)
        for name, own in runs.items()
    )
    return "; ".join([means, *(_relation(got, epsilon, *pair) for pair in _PUBLISHED)])


def _relation(got: Got, epsilon: float, better: str, worse: str) -> str:
    """Say whether the better one in the paper is above the other here, at 95 % confidence."""
    both = zip(got[better, epsilon], got[worse, epsilon], strict=False)  # one may have run once
    runs = [{"apart": float(one["accuracy"]) - float(other["accuracy"])} for one, other in both]
    if len(runs) == 1:
        return f"one run shows no order of {better} and {worse}"
    mean, std = _mean_std(runs, "apart")
    reach = float(stdtrit(len(runs) - 1, 0.975)) * std / math.sqrt(len(runs))
    size = f"{mean:+.4f} ± {reach:.4f}"
    if abs(mean) <= reach:
        return f"no order of {better} and {worse} is shown ({size})"
    return f"{better} is {'above' if mean > 0 else 'below'} {worse} ({size})"


def _meaning(size: Scale) -> str:
    """Return what the numbers of the table are."""
    once = f", {' and '.join(size.once)} one" if size.once else ""
    return (
        f"Runs of each mechanism: {size.seeds}{once}. They differ in split, start and noise; mean "
        "± std. Means over other numbers of runs have other starts and are not to be compared. In "
        "brackets: mean difference of runs with the same split and start, with its 95 % "
        "interval; an order is named only where that excludes 0. Runs of one mechanism at "
        "different ε share their draws, scaled: they are no repetitions of each other. ε is that "
        "of all rounds together, for one record that is replaced, against a server that learns "
        "each secure sum of honest users only. SGD-DP alone gains from the secrecy of batches. "
        "Time is that of one core for all users of a round."
    )


def _spectrum_note(spectrum: Mapping[str, Any], epsilon: float) -> str:
    """Return what of the noise the floor at ε asks for sampling brings by itself."""
    return (
        f"Spectrum (Fig. 4): one user at the first model, floor of ε = {epsilon:g}; "
        f"{spectrum['covered']} of {spectrum['dim']} directions need no noise, and "
        f"{spectrum['saved']:.2%} of the variance of isotropic noise is saved. A diagnosis of "
        "these data, not a guarantee."
    )


def compared(got: Got, model: str, why: str) -> list[Comparison]:
    """Return what the paper says of its Fig. 5 beside what came out.

    Args:
        got: Runs by mechanism and ε.
        model: Which one.
        why: How our runs differ from the published ones.
    """
    source = "Zhang and Psounis 2024, Fig. 5"
    rows = [
        Comparison(
            source,
            f"accuracy at equal ε = {epsilon:g}, MNIST, {model}",
            "GD-DP > GSGD-DP > SGD-DP, GSGD-DP significantly above SGD-DP",
            relations(got, epsilon),
            why,
        )
        for epsilon in dict.fromkeys(e for _, e in got)
    ]
    times = {
        name: _mean_std(
            [run for (n, _), runs in got.items() if n == name for run in runs], "seconds"
        )
        for name in _NAMED
    }
    rows.append(
        Comparison(
            source,
            f"time of a round, {model}",
            "SGD-DP takes least and GSGD-DP most, which needs an SVD of the covariance",
            ", ".join(f"{name} {1e3 * times[name][0]:.0f} ms" for name in _NAMED),
            "noise is drawn through the Gram matrix: no SVD of size d × d",
        )
    )
    return rows


def _compared_spectrum(spectrum: Mapping[str, Any], model: str, got: Got) -> Comparison:
    """Return what the paper says of its Fig. 4 beside what came out."""
    shown = [
        f"ε = {e:g}: {_relation(got, e, 'GSGD-DP', 'GSGD isotropic')}"
        for e in dict.fromkeys(e for _, e in got)
    ]
    return Comparison(
        "Zhang and Psounis 2024, Fig. 4",
        f"noise that WF-NA adds against isotropic noise of the same σ², {model}",
        "less: only where eigenvalues are below σ²",
        f"{1 - spectrum['saved']:.2%} of its variance; {spectrum['covered']} of "
        f"{spectrum['dim']} directions need none",
        "the published figure is a sketch without a data set; few records span few of the "
        "directions, and at equal ε the sound bound asks for a larger σ² than isotropic noise. "
        f"Accuracy, WF-NA as GSGD-DP: {'; '.join(shown)}",
    )


def _panels(got: Got, spectrum: Mapping[str, Any]) -> tuple[Panel, ...]:
    """Return accuracy over ε, and the spectrum with what is added to it."""
    lines = []
    for color, name in enumerate(MECHANISMS):
        epsilons = [e for n, e in got if n == name]
        means = [_mean_std(got[name, e]) for e in epsilons]
        lines.append(Line(name, epsilons, [m for m, _ in means], color))
        for sign in (-1, 1) if any(std for _, std in means) else ():
            lines.append(Line("_std", epsilons, [m + sign * s for m, s in means], color, ":"))
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
