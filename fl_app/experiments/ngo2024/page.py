"""The page of a likelihood-ratio audit of a secure sum: a line for each game and size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from leakmeter.auditors.sampler import Game
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.ngo2024.game import Setting, audit
from leakmeter.fl_app.experiments.plot import Line, Panel

_GAMES: tuple[Game, ...] = ("partition", "independent")
# What was found for each size of the sum, by the setting's name and the game.
Found = Mapping[tuple[str, Game], Mapping[str, Mapping[str, Any]]]


def table(
    title: str,
    settings: Mapping[str, Setting],
    cells: Cells,
    *,
    paper: str,
    notes: tuple[str, ...],
    compare: Callable[[Found], tuple[Comparison, ...]] | None = None,
) -> Table:
    """Play both games for every setting and lay the results out.

    Args:
        title: Of the table.
        settings: What to play, by a name that tells them apart.
        cells: Where results are kept.
        paper: What the paper says of the errors.
        notes: What to say of this experiment in particular.
        compare: Sets what was found beside what was published.
    """
    everything: dict[tuple[str, Game], Mapping[str, Mapping[str, Any]]] = {}
    rows: list[tuple[Any, ...]] = []
    panels: list[Panel] = []
    for name, setting in settings.items():
        for game in _GAMES:
            found = everything[name, game] = audit(setting, game, cells)
            rows += [_row(name, game, size, got, paper) for size, got in found.items()]
            panels += _panels(" ".join(filter(None, (game, name))), found)
    return Table(
        title=title,
        columns=(
            *(["labels"] if any(settings) else []),
            *("game", "n + 1", "separation", "variance", "error as printed", "paper's error"),
            *("error, band", "ε ≥ at δ = 1e-5", "cap"),
        ),
        rows=tuple(row if any(settings) else row[1:] for row in rows),
        notes=(*notes, *_NOTES),
        figures={"curves.svg": tuple(panels)},
        comparisons=compare(everything) if compare else (),
    )


def over_sizes(found: Mapping[str, Mapping[str, Any]], name: str, digits: str = ".2g") -> str:
    """Return the median over the initial models for every size of the sum, in words."""
    values = (f"{float(np.median(got[name])):{digits}}" for got in found.values())
    return ", ".join(values)


_NOTES = (
    "Several initial models: median (smallest to largest), never a mean of ε. Separation: distance "
    "of the two worlds in standard deviations of fresh trials. Variance: of the sum, as a share of "
    "what as many independent clients would have. Error: the smallest rate that false positives "
    "and false negatives stay below at one threshold; as printed it takes the best threshold on "
    "the trials that are counted, which flatters the attack, and the band pays for that. ε: lower "
    "bound with 95 % confidence for each initial model by itself; the claim is that there are two "
    "feasible updates of one client, the worst of those sampled and fixed before testing, which "
    "the server tells apart. Curves are those of the initial model with the median separation.",
)


def _row(name: str, game: Game, size: str, got: Mapping[str, Any], paper: str) -> tuple[Any, ...]:
    """Return one line of the table."""
    return (
        name,
        game,
        size,
        spread(got["separation"]),
        f"{got['variance_ratio']:.2f}",
        spread(got["error_as_printed"]),
        paper if game == "partition" else "",
        spread(got["error"]),
        spread(got["epsilon"], ".2f"),
        f"{got['cap']:.2f}",
    )


def _panels(title: str, found: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    """Return the trade-off and the curve of bounds of the median model of each size."""
    errors, bounds = [], []
    for color, (size, got) in enumerate(found.items()):
        # The model whose separation is the median: curves of several are not averaged either.
        middle = int(np.argsort(got["separation"])[len(got["separation"]) // 2])
        curve = got["tradeoff"][middle]
        errors.append(Line(f"n + 1 = {size}", curve["fpr"], curve["fnr"], color))
        bounds.append(Line(f"n + 1 = {size}", got["epsilons"][middle], got["deltas"], color))
        caps = Line("cap", got["caps"], got["deltas"], len(found), "--")
    return [
        Panel(f"{title}: errors", "FPR", "FNR", tuple(errors), log_x=True, log_y=True),
        Panel(f"{title}: bounds", "ε at least", "δ", (*bounds, caps), log_y=True),
    ]


def spread(values: Sequence[float], digits: str = ".3g") -> str:
    """Return median, smallest and largest: values of several models are never averaged."""
    low, middle, high = np.quantile(np.asarray(values), [0.0, 0.5, 1.0])
    return f"{middle:{digits}} ({low:{digits}} to {high:{digits}})"
