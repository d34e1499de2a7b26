"""All rounds of a client in one test, beside the best of them: ADULT, as whole runs and frozen.

Ngo et al. (2024), arXiv:2403.17775, audit the first round and expect later ones to be easier. Here
`TranscriptLikelihoodRatio` audits ten rounds of federated averaging together: 60 of 100 clients
take part in each, the client under attack in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from leakmeter.auditors import RoundView, TranscriptBudget, TranscriptLikelihoodRatio
from leakmeter.auditors.auditor import RoundFacts
from leakmeter.auditors.finding import Game
from leakmeter.auditors.likelihood_ratio.transcript_runs import Mode, Transcripts
from leakmeter.auditors.rng import stream
from leakmeter.papers.base import Cells, Table
from leakmeter.papers.ngo2024.game import Setting, sampler_of
from leakmeter.papers.plot import Line, Panel

_SEED = 2403
_GAMES: tuple[Game, ...] = ("independent", "partition")
_MODES: tuple[Mode, ...] = ("frozen-models", "whole-runs")


@dataclass(frozen=True)
class Scale:
    """How large the experiment is."""

    rounds: int
    sample: int  # clients in each round, the target among them
    budget: TranscriptBudget
    dataset: str = "adult"


# Column to what it shows.
_SHOWN = {
    "separation, all rounds": "separation",
    "best single round": "largest_separation",
    "ε ≥, all rounds": "epsilon",
    "ε ≥, best single round": "largest_single",
    "largest ε that can be shown": "cap",
}
_SCALES = {
    "paper": Scale(10, 60, TranscriptBudget(4000, 50, pilot=400, trials=1000)),
    "small": Scale(3, 8, TranscriptBudget(60, 4, own=2, pilot=20, trials=20), "synthetic"),
}


def run(scale: str, cells: Cells) -> Table:
    """Audit the run in both modes and games, round by round and as a whole."""
    size = _SCALES[scale]
    found = cells.each("{}-{}", product(_GAMES, _MODES), partial(_audit, size))
    return Table(
        title="All rounds of a client in one test, ADULT",
        columns=("game", "trials", "rounds", *_SHOWN),
        rows=[
            (*case, size.rounds, *(f"{got[name]:.2f}" for name in _SHOWN.values()))
            for case, got in found.items()
        ],
        notes=(
            "ε ≥ at δ = 1e-5 with 95 % confidence; the best single round has a 1/T share of the "
            "failures, since it is the largest of T. Separations are in standard deviations, on "
            "the trials. The two worlds are two data sets of one client, kept over all rounds; "
            "batches are drawn again in every round.",
            "The other clients keep their data over a transcript too, so their sums are "
            "correlated between rounds. In the game independent, rounds therefore add up to far "
            "less than √ΣΔ² of independent rounds. In the game partition all clients together "
            "hold one known data set, so the sums of changing cohorts determine more and more of "
            "what hides the client.",
            "Frozen models bound the composition at the models that occurred. Whole runs train "
            "every trial from the first model and are exact.",
        ),
        figures={"rounds.svg": [_panel(game, found) for game in _GAMES]},
    )


def _panel(game: Game, found: Mapping[tuple[Game, Mode], Mapping[str, Any]]) -> Panel:
    lines = []
    for color, mode in enumerate(_MODES):
        got = found[game, mode]
        rounds = [float(t) for t in range(1, len(got["so_far"]) + 1)]
        lines += [
            Line(f"{mode}, all rounds so far", rounds, got["so_far"], color),
            Line(f"{mode}, each round alone", rounds, got["alone"], color, "--"),
        ]
    return Panel(f"game {game}", "rounds", "separation in standard deviations", lines)


def _audit(size: Scale, game: Game, mode: Mode) -> dict[str, Any]:
    """Return what the audit of one simulated run shows."""
    setting = Setting(dataset=size.dataset, models=1, synthetic_examples=1200)
    sampler, starts = sampler_of(setting, game)
    budget = replace(size.budget, mode=mode)
    auditor = TranscriptLikelihoodRatio(sampler, target=0, budget=budget, seed=_SEED)
    model = starts[0]
    auditor.begin(model.size, size.rounds)
    truth = sampler.keeping((_SEED, "truth"))
    assert truth is not None
    for server_round in range(1, size.rounds + 1):
        rng, run = stream(_SEED, "cohort", server_round), (_SEED, "run", server_round)
        others = rng.choice(np.arange(1, setting.clients), size.sample - 1, replace=False)
        cohort = [0, *sorted(int(c) for c in others)]
        total = truth.shares(cohort, 0, run).sum()
        released = model + truth.one(model, cohort, 0, run).sum(axis=0) / total
        facts = RoundFacts(num_clients=size.sample, total_weight=total * sampler.scale)
        replies = dict.fromkeys(cohort, model)
        auditor.observe(RoundView(server_round, model, replies, released, facts))
        model = released
    (bound,) = auditor.report()
    return {
        "epsilon": bound.value,
        "cap": bound.cap,
        "separation": bound.facts["separation"],
        "largest_single": bound.facts["largest single round"],
        "largest_separation": bound.facts["largest separation of one round"],
        **_growth(auditor.state(), size.budget.pilot),
    }


def _growth(state: Mapping[str, Any], pilot: int) -> dict[str, list[float]]:
    """Return the separation after each round, and of each round alone."""
    sums, models = ([Transcripts(**one) for one in state[name]] for name in ("rounds", "models"))
    so_far = [_apart([*sums[:t], *models[: t - 1]], pilot) for t in range(1, len(sums) + 1)]
    return {"so_far": so_far, "alone": [_apart([one], pilot) for one in sums]}


def _apart(rounds: list[Transcripts], pilot: int) -> float:
    return Transcripts.joined(rounds).judged(pilot).separation
