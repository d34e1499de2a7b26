"""A panel for a project whose training code stays as it is."""

from __future__ import annotations

from typing import Literal

from leakmeter.auditors.auditor import Auditor
from leakmeter.auditors.canaries.one_shot import OneShotCanaries
from leakmeter.auditors.canaries.single_update import SingleUpdates
from leakmeter.auditors.information.draws import DrawPlan
from leakmeter.auditors.information.mutual_information import MutualInformation
from leakmeter.auditors.likelihood_ratio.auditor import LikelihoodRatio
from leakmeter.auditors.likelihood_ratio.game import SampleBudget
from leakmeter.auditors.sampling.replay import ReplaySampler


def passive(
    *,
    seats: int | Literal["auto"] = "auto",
    trials: int = 60,
    seed: int = 0,
    simulated: bool = False,
) -> list[Auditor]:
    """Return auditors that ask nothing of the clients but `canary_mod` in their list of mods.

    Canaries in a few seats of every round, searched for in models and in single updates; and, by
    sending the messages of round 1 again, the likelihood-ratio and the mutual-information audit of
    that round. With n honest clients the replays cost about (trials + 32) n + 56 trainings, once.
    If that is more than the run trains itself, the log says so before round 1.

    Args:
        seats: Clients per round that play a canary in place of their update; "auto" takes one in
            five.
        trials: Sums on which the likelihood-ratio test is judged; 60 can show ε up to about 2,
            1,000 up to about 5.
        seed: Names canaries, coins and draws.
        simulated: Whether all nodes are simulated, so that masked rounds may be replayed.
    """
    budget = SampleBudget(fit=120, candidates=16, pilot=10, trials=trials)
    replays = [ReplaySampler(seed=seed, simulated=simulated) for _ in range(2)]
    return [
        OneShotCanaries(seats=seats, seed=seed),
        SingleUpdates(seats=seats, seed=seed),
        LikelihoodRatio(replays[0], budget=budget, seed=seed),
        MutualInformation(replays[1], every=0, plan=DrawPlan(draws=8, rank=4), seed=seed),
    ]
