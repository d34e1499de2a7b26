"""Scores in, bounds out: which epsilon do an attack's scores refute, and how confidently?

Needs numpy and scipy only. An attack scores what it saw in two worlds; `epsilon_lower_bound` turns
the scores into a lower bound, `ErrorCurve` into one for every delta. For a single run with many
canaries, `one_run_epsilon` takes guesses, `coin_bound` and `share_bound` take p-values.
`AnytimeBound` takes evidence as it arrives, and holds after every piece of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import front_page

if TYPE_CHECKING:
    from leakmeter.auditors.bounds.anytime import Anytime as Anytime
    from leakmeter.auditors.bounds.anytime import AnytimeBound as AnytimeBound
    from leakmeter.auditors.bounds.lower_bound import ErrorCurve as ErrorCurve
    from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound as epsilon_lower_bound
    from leakmeter.auditors.bounds.lower_bound import proven_epsilons as proven_epsilons
    from leakmeter.auditors.bounds.one_run import coin_bound as coin_bound
    from leakmeter.auditors.bounds.one_run import guess_by_rank as guess_by_rank
    from leakmeter.auditors.bounds.one_run import one_run_epsilon as one_run_epsilon
    from leakmeter.auditors.bounds.one_run import (
        one_run_gaussian_epsilon as one_run_gaussian_epsilon,
    )
    from leakmeter.auditors.bounds.one_run import share_bound as share_bound
    from leakmeter.auditors.bounds.rules import BandAndFixed as BandAndFixed
    from leakmeter.auditors.bounds.rules import Bonferroni as Bonferroni
    from leakmeter.auditors.bounds.rules import Fixed as Fixed
    from leakmeter.auditors.bounds.rules import PilotSplit as PilotSplit
    from leakmeter.auditors.bounds.rules import SimultaneousBand as SimultaneousBand
    from leakmeter.auditors.bounds.rules import upper_limit as upper_limit
else:
    __all__, __getattr__ = front_page(__spec__)
