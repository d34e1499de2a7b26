"""Distinguishing two updates in a secure sum: ADULT, and MNIST with even and with skewed labels.

Ngo et al. (2024), arXiv:2403.17775, Fig. 2 to 4, with MNIST (60,000 images) in place of EMNIST
digits (280,000). `papers.ngo2024.game` plays the games. The paper does not say which
records the other clients may hold, so both conventions for independent clients have a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from leakmeter.auditors.finding import Game
from leakmeter.papers.base import Cells, Comparison, Table, median_range
from leakmeter.papers.ngo2024.game import Partition, Setting, audit
from leakmeter.papers.plot import Line, Panel

Variant = Literal["adult", "mnist", "mnist-skewed"]
Sizes = Mapping[str, Mapping[str, Any]]  # what was found, by the size of the sum
Found = Mapping[tuple[Partition, Game], Sizes]

_GAMES: tuple[Game, ...] = ("partition", "independent", "independent-held-out")
# Each game takes 25 min of one core, so the one with all records is left out.
_MNIST_GAMES: tuple[Game, ...] = ("partition", "independent-held-out")
_LABELS: dict[Partition, str] = {
    "iid": "even",
    "dirichlet": "ω = 1, drawn by each client",
    "dirichlet-labels": "ω = 1, drawn for each label",
}
_MNIST = {
    "paper": Setting("mnist", models=5, candidates=1000, trials=5000, pilot=50, block=100),
    "small": Setting("mnist", models=1, fit=2000, candidates=60, trials=60, pilot=20, block=60),
}
_SCALES: dict[Variant, dict[str, Setting]] = {
    "adult": {
        "paper": Setting("adult"),
        "small": Setting(
            "adult", models=2, fit=4000, candidates=400, trials=600, pilot=60, block=300
        ),
    },
    "mnist": _MNIST,
    "mnist-skewed": _MNIST,
}


@dataclass(frozen=True)
class Page:
    """What to play and to say about one figure of the paper."""

    title: str  # data set, dimension and labels
    paper: str  # what the paper says of the errors
    notes: tuple[str, ...]
    compare: Callable[[Found], tuple[Comparison, ...]]  # at the published size
    played: tuple[tuple[Partition, Game], ...]


def run(scale: str, cells: Cells, variant: Variant) -> Table:
    """Play the games of one figure and list them side by side."""
    page, setting = _PAGES[variant], _SCALES[variant][scale]
    found: dict[tuple[Partition, Game], Sizes] = {
        (partition, game): audit(replace(setting, partition=partition), game, cells)
        for partition, game in page.played
    }
    return Table(
        title=f"Distinguishing two updates in a secure sum: {page.title}, first round",
        columns=(
            *("labels", "game", "n + 1", "separation", "variance", "error as printed"),
            *("paper's error", "error with confidence", "ε ≥ at δ = 1e-5", "cap"),
            *("Fixed(0): ε ≥", "its δ at ε = 7", "with half of the failures"),
        ),
        rows=[
            (_LABELS[partition], game, size, *_row(got, page.paper * (game == "partition")))
            for (partition, game), sizes in found.items()
            for size, got in sizes.items()
        ],
        notes=(*page.notes, _RECORDS_NOTE, _NOTE),
        figures={"curves.svg": [panel for case in found.items() for panel in _panels(*case)]},
        comparisons=page.compare(found) if scale == "paper" else (),
    )


_RECORDS_NOTE = (
    "Which records the other clients may hold: partition, those that the target does not hold; "
    "independent, any, drawn from all records without regard to the pair; independent-held-out, "
    "any but those behind the two candidates. Holding records out makes the attack stronger. All "
    "initial models share one pair of candidates, the one that is farthest apart on average."
)
_NOTE = (
    "Several initial models: median (smallest to largest), never a mean of ε, which the paper "
    "takes. Separation: distance of the two worlds in standard deviations of fresh trials. "
    "Variance: of the sum, as a share of what as many independent clients would have. Error: the "
    "smallest rate that false positives and false negatives stay below at one threshold. As "
    "printed, it takes the best threshold on the trials that are counted, which has no confidence. "
    "With confidence 95 %: a band over all thresholds, which gets one fifth of the failures, and "
    "one threshold half way between the two worlds, fixed on a pilot, which gets four fifths; the "
    "larger bound counts. Fixed(0): this threshold alone, where the log-likelihood ratio is 0, "
    "with all of the failures, and what it shows of δ at ε = 7 with all of them and with half. ε: "
    "lower bound with 95 % confidence for each initial model by itself. The claim: there are two "
    "feasible updates of one client, the worst of those sampled and fixed before testing, which "
    "the server distinguishes. Curves are those of the initial model with the median separation."
)


def _row(got: Mapping[str, Any], paper: str) -> tuple[str, ...]:
    whole, half = got["fixed"]
    by_one_threshold = ((whole, "epsilon"), (whole, "delta"), (half, "delta"))
    return (
        median_range(got["separation"], ".3g"),
        f"{got['variance_ratio']:.2f}",
        median_range(got["error_as_printed"], ".3g"),
        paper,
        median_range(got["error"], ".3g"),
        median_range(got["epsilon"]),
        f"{got['cap']:.2f}",
        *(median_range([one[name] for one in models]) for models, name in by_one_threshold),
    )


def _panels(played: tuple[Partition, Game], found: Sizes) -> list[Panel]:
    """Return the trade-off and the curve of bounds of the median model of each size."""
    title, errors, bounds = f"{played[1]}, labels {_LABELS[played[0]]}", [], []
    for color, (size, got) in enumerate(found.items()):
        # The model whose separation is the median: curves of several are not averaged either.
        middle = int(np.argsort(got["separation"])[len(got["separation"]) // 2])
        label, curve = f"n + 1 = {size}", got["tradeoff"][middle]
        errors.append(Line(label, curve["fpr"], curve["fnr"], color))
        bounds.append(Line(label, got["epsilons"][middle], got["deltas"], color))
    caps = Line("cap", got["caps"], got["deltas"], len(found), "--")  # the same for every size
    return [
        Panel(f"{title}: errors", "FPR", "FNR", errors, log_x=True, log_y=True),
        Panel(f"{title}: bounds", "ε at least", "δ", [*bounds, caps], log_y=True),
    ]


def _over_sizes(found: Sizes, name: str, digits: str = ".2g") -> str:
    """Return the median over the initial models for every size of the sum."""
    return ", ".join(f"{float(np.median(got[name])):{digits}}" for got in found.values())


def _cap(found: Sizes) -> str:
    """Return what trials without an error would show; it is the same for every size."""
    return f"{next(iter(found.values()))['cap']:.2f}"


def _compare_adult(found: Found) -> tuple[Comparison, ...]:
    dealt, drawn, apart = (found["iid", game] for game in _GAMES)
    times = (np.median(drawn[n]["error"]) / np.median(dealt[n]["error"]) for n in dealt)
    larger = ", ".join(f"{float(ratio):.0f}" for ratio in times)
    return (
        Comparison(
            "Ngo et al. 2024, Fig. 2 (a)",
            "the error that both rates stay below at once, n + 1 = 60, 70, 90 clients",
            "as small as 0.005",
            f"partition: {_over_sizes(dealt, 'error_as_printed')} by the paper's rule, "
            f"{_over_sizes(dealt, 'error')} with 95 % confidence. With 95 % confidence, "
            f"independent: {_over_sizes(drawn, 'error')}; independent, held out: "
            f"{_over_sizes(apart, 'error')}",
            "The paper's trials are the game partition, in which the sum varies less. Its theorems "
            "are about independent clients. Their errors (game independent) are "
            f"{larger} times larger",
        ),
        Comparison(
            "Ngo et al. 2024, Fig. 2 (b)",
            "the audited curve, 5,000 trials, n + 1 = 60, 70, 90 clients",
            "close to the largest auditable",
            f"ε ≥ at δ = 1e-5 with 95 % confidence, partition: "
            f"{_over_sizes(dealt, 'epsilon', '.2f')}; independent: "
            f"{_over_sizes(drawn, 'epsilon', '.2f')}; independent, held out: "
            f"{_over_sizes(apart, 'epsilon', '.2f')}. Without an error 5,000 trials would show "
            f"{_cap(dealt)}",
            "The paper takes the best threshold on the trials that it counts, which does not keep "
            "95 % confidence (see coverage). Ours is the larger of a band over all thresholds and "
            "one threshold fixed on a pilot, which share the failures",
        ),
        Comparison(
            "Ngo et al. 2024, Fig. 2 (b)",
            "δ at ε = 7 by the rule Fixed(0), n + 1 = 60, 70, 90 clients: the threshold 0 of the "
            "log-likelihood ratio alone, named before the trials",
            "δ > 0.1",
            f"partition: ε ≥ {_by_one(dealt, 'epsilon', '.2f')} at δ = 1e-5; at ε = 7 δ ≥ "
            f"{_by_one(dealt, 'delta')}, with half of the failures "
            f"{_by_one(dealt, 'delta', half=1)}. At ε = 7, independent: δ ≥ "
            f"{_by_one(drawn, 'delta')}; independent, held out: δ ≥ {_by_one(apart, 'delta')}",
            "At n + 1 = 90 no trial is an error, and δ > 0.1 holds as published, but only if this "
            "threshold has all of the failures",
        ),
        Comparison(
            "Ngo et al. 2024, Fig. 2 (a, b)",
            "more clients in the sum: separation of the two worlds in standard deviations",
            "a marginal improvement of privacy",
            f"partition: {_over_sizes(dealt, 'separation', '.1f')}, privacy gets worse; "
            f"independent: {_over_sizes(drawn, 'separation', '.1f')}, it improves as 1/√n; "
            f"independent, held out: {_over_sizes(apart, 'separation', '.1f')}, the same",
            "In the game partition 90 of 100 clients together have nearly the whole data set, so "
            "their sum hardly varies. The paper does not say whether independent clients may have "
            "the records behind the two candidates",
        ),
    )


def _by_one(found: Sizes, name: str, digits: str = ".2g", *, half: int = 0) -> str:
    """Return what the threshold named beforehand proves, for every size of the sum."""
    each = ([one[name] for one in got["fixed"][half]] for got in found.values())
    return ", ".join(f"{float(np.median(values)):{digits}}" for values in each)


def _compare_mnist(figure: str, claim: str, why: str, found: Found) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            f"Ngo et al. 2024, {figure}",
            f"d = 7,850, labels {_LABELS[partition]}, game {game}, n + 1 = 60, 70, 90 clients",
            claim,
            f"separation {_over_sizes(got, 'separation', '.1f')} standard deviations; with 95 % "
            f"confidence errors below {_over_sizes(got, 'error')} and, at δ = 1e-5, ε ≥ "
            f"{_over_sizes(got, 'epsilon', '.2f')}, of {_cap(got)} that 5,000 trials can show",
            why,
        )
        for (partition, game), got in found.items()
    )


_ADULT_NOTE = (
    "In the paper both error rates can be as small as 0.005 at once, and more clients in the sum "
    "help little. That is the partition game: its trials partition one finite data set among all "
    "100 clients, so the others' updates are negatively correlated and their sum varies less the "
    "more of them are in it. The attack then gets *stronger* with n. With clients whose data are "
    "drawn independently, as the paper's theorems assume, the errors are many times larger and "
    "grow with n."
)
_MNIST_NOTE = (
    "Where no trial is an error, the error with confidence and ε follow from the number of trials "
    "alone, and only separations can be compared with other rows. A client here has 600 images, "
    "the paper's has 2,800. The game independent with all records is left out to save time."
)
_SKEWED_NOTE = (
    "Two readings of a Dirichlet partition with ω = 1. Drawn by each client: every client has 600 "
    "images, with label shares of its own draw. Drawn for each label: every label is split among "
    "the clients by one draw, so their sizes differ. The sum weights a client by its images, as "
    "federated averaging does: equally in the first partition, not in the second. The paper's sum "
    "has no weights, and it does not say which partition it has."
)
_PAGES: dict[Variant, Page] = {
    "adult": Page(
        "ADULT, d = 210",
        "as small as 0.005",
        (_ADULT_NOTE,),
        _compare_adult,
        tuple(("iid", game) for game in _GAMES),
    ),
    "mnist": Page(
        "MNIST, d = 7,850, even labels",
        "below ADULT's",
        (_MNIST_NOTE,),
        partial(
            _compare_mnist,
            "Fig. 3",
            "smaller errors than on ADULT; the curve close to the largest auditable",
            "No trial is an error, so the curve is the largest auditable, and errors cannot be "
            "compared with ADULT's beyond that",
        ),
        tuple(("iid", game) for game in _MNIST_GAMES),
    ),
    "mnist-skewed": Page(
        "MNIST, d = 7,850, skewed labels (Dirichlet, ω = 1), clients weighted by their images",
        "below those with even labels",
        (_MNIST_NOTE, _SKEWED_NOTE),
        partial(
            _compare_mnist,
            "Fig. 4",
            "smaller errors than with even labels; the curve is the largest auditable",
            "No trial is an error, with even labels or skewed ones, so errors cannot be ordered. "
            "Separations are larger than with even labels. The sum weights clients by their images",
        ),
        (("dirichlet", "partition"), ("dirichlet-labels", "partition")),  # the paper's game
    ),
}
