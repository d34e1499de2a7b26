"""Scores in, bounds out: which epsilon do an attack's scores refute, and how confidently?

Needs numpy and scipy only. An attack scores what it saw in two worlds; `epsilon_lower_bound` turns
the scores into a lower bound, `ErrorCurve` into one for every delta. For a single run with many
canaries, `one_run_epsilon` takes guesses, `coin_bound` and `share_bound` take p-values.
`AnytimeBound` takes evidence as it arrives, and holds after every piece of it.
"""

from __future__ import annotations

from leakmeter.auditors.bounds.anytime import Anytime, AnytimeBound
from leakmeter.auditors.bounds.lower_bound import ErrorCurve, epsilon_lower_bound, proven_epsilons
from leakmeter.auditors.bounds.one_run import (
    coin_bound,
    guess_by_rank,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    share_bound,
)
from leakmeter.auditors.bounds.rules import (
    BandAndFixed,
    Bonferroni,
    Fixed,
    PilotSplit,
    SimultaneousBand,
    upper_limit,
)

__all__ = [
    "Anytime",
    "AnytimeBound",
    "BandAndFixed",
    "Bonferroni",
    "ErrorCurve",
    "Fixed",
    "PilotSplit",
    "SimultaneousBand",
    "coin_bound",
    "epsilon_lower_bound",
    "guess_by_rank",
    "one_run_epsilon",
    "one_run_gaussian_epsilon",
    "proven_epsilons",
    "share_bound",
    "upper_limit",
]
