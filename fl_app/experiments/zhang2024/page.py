"""Words, rows and figures of the comparison of noised gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from leakmeter.fl_app.experiments.base import Comparison
from leakmeter.fl_app.experiments.plot import Line, Panel

Runs = Sequence[Mapping[str, Any]]
Got = Mapping[tuple[str, float], Runs]

# As the paper has them from the lowest accuracy up; the isotropic one is not in its figure.
RANKED = ("SGD-DP", "GSGD-DP", "GSGD isotropic", "GD-DP")
_PUBLISHED = ("SGD-DP", "GSGD-DP", "GD-DP")


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
    accuracy = f"{mean:.4f} ± {spread:.4f}" if len(runs) > 1 else f"{mean:.4f}"
    return name, epsilon, f"{floor:.4g}", accuracy, f"{1e3 * taken:.0f}"


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
        verdict = "the published order" if kept else "not the published order"
        lines.append(f"ε = {epsilon:g}: {words}: {verdict}{_unclear(means)}.")
    return lines


def _unclear(means: Mapping[str, tuple[float, float]]) -> str:
    """Say which neighbours in the published order are no farther apart than their spread."""
    return "".join(
        f" ({low} and {high} within their spread)"
        for low, high in pairwise(_PUBLISHED)
        if abs(means[high][0] - means[low][0]) <= math.hypot(means[low][1], means[high][1])
    )


def words(seeds: int) -> str:
    """Return what the numbers of the table are."""
    many = f"Mean ± std of {seeds} runs that differ in split, start and noise."
    one = (
        "One run each, from the same start on the same records: what differs by chance is not "
        "known."
    )
    return (
        f"{many if seeds > 1 else one} Runs of one mechanism at different ε share their draws, "
        "scaled: they are no repetitions of each other. ε is that of all rounds together, for one "
        "record that is replaced, against a server that learns each secure sum of honest users "
        "only. SGD-DP alone gains from the secrecy of batches. Time is that of one core for all "
        "users of a round."
    )


def spectrum_note(spectrum: Mapping[str, Any], epsilon: float) -> str:
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
    source, rows = "Zhang and Psounis 2024, Fig. 5", []
    for epsilon in dict.fromkeys(e for _, e in got):
        means = {
            name: mean_and_spread([float(r["accuracy"]) for r in got[name, epsilon]])
            for name in RANKED
        }
        order = sorted(_PUBLISHED, key=lambda name: -means[name][0])
        once = "; one run each" if len(got[order[0], epsilon]) == 1 else ""
        rows.append(
            Comparison(
                source,
                f"order of accuracy at equal ε = {epsilon:g}, MNIST, {model}",
                "GD-DP > GSGD-DP > SGD-DP, GSGD-DP significantly above SGD-DP",
                " > ".join(f"{name} {means[name][0]:.4f}" for name in order)
                + f"{_unclear(means)}; isotropic noise in place of WF-NA "
                f"{means['GSGD isotropic'][0]:.4f}{once}",
                why,
            )
        )
    times = {
        name: mean_and_spread([float(r["seconds"]) for (n, _), rs in got.items() if n == name
                               for r in rs])[0]
        for name in _PUBLISHED
    }  # fmt: skip
    rows.append(
        Comparison(
            source,
            f"time of a round, {model}",
            "SGD-DP takes least and GSGD-DP most, which needs an SVD of the covariance",
            ", ".join(f"{name} {1e3 * times[name]:.0f} ms" for name in _PUBLISHED),
            "noise is drawn through the Gram matrix: no SVD of size d × d",
        )
    )
    return rows


def compared_spectrum(spectrum: Mapping[str, Any], model: str, got: Got) -> Comparison:
    """Return what the paper says of its Fig. 4 beside what came out."""
    means = {key: mean_and_spread([float(r["accuracy"]) for r in runs])[0]
             for key, runs in got.items()}  # fmt: skip
    epsilons = list(dict.fromkeys(e for _, e in got))
    above = sum(means["GSGD-DP", e] > means["GSGD isotropic", e] for e in epsilons)
    return Comparison(
        "Zhang and Psounis 2024, Fig. 4",
        f"noise that WF-NA adds against isotropic noise of the same σ², {model}",
        "less: only where eigenvalues are below σ²",
        f"{1 - spectrum['saved']:.2%} of its variance; {spectrum['covered']} of "
        f"{spectrum['dim']} directions need none",
        "the published figure is a sketch without a data set; few records span few of the "
        "directions, and at equal ε the sound bound asks for a larger σ² than isotropic noise. In "
        f"accuracy WF-NA is above isotropic noise on the same sampling at {above} of "
        f"{len(epsilons)} values of ε",
    )


def _title(got: Got) -> str:
    return "accuracy; dotted: ± std" if len(next(iter(got.values()))) > 1 else "accuracy of one run"


def panels(got: Got, spectrum: Mapping[str, Any]) -> tuple[Panel, ...]:
    """Return accuracy over ε, and the spectrum with what is added to it."""
    lines = []
    for color, name in enumerate(RANKED):
        epsilons = [e for n, e in got if n == name]
        means = [mean_and_spread([float(r["accuracy"]) for r in got[name, e]]) for e in epsilons]
        lines.append(Line(name, epsilons, [m for m, _ in means], color))
        for sign in (-1, 1) if any(spread for _, spread in means) else ():
            lines.append(Line("_spread", epsilons, [m + sign * s for m, s in means], color, ":"))
    curve = [tuple(map(float, point)) for point in spectrum["curve"]]
    floor = float(spectrum["floor"])
    least = floor * 1e-6  # a logarithmic axis has no zero
    index = [i for i, _, _ in curve]
    return (
        Panel(_title(got), "ε", "accuracy on test data", tuple(lines), log_x=True),
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
