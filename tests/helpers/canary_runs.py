"""Runs in which canaries are played, without clients: Gaussian mechanisms whose ε is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from leakmeter.auditors import Finding, OneShotCanaries, RoundView
from leakmeter.auditors.auditor import RoundFacts
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.rng import stream


def play(
    auditor: OneShotCanaries,
    *,
    dim: int,
    rounds: int = 1,
    cohorts: Sequence[int] | None = None,
    sigma: float = 1.0,
    seed: int = 0,
    leak: bool = True,
    change: Callable[[RoundView], RoundView] = lambda view: view,
) -> list[Finding]:
    """Return the findings on Gaussian mechanisms: each round releases a sum and its noise.

    Args:
        auditor: Plays the canaries, and looks for them.
        dim: Length of the model.
        rounds: How many there are.
        cohorts: Clients of each round; None for as many as there are seats, in each of `rounds`.
        sigma: Standard deviation of the noise; a canary has length 1.
        seed: Of the noise and the first model.
        leak: Whether canaries are in the sum.
        change: What happens to a round before the auditor sees it.
    """
    cohorts = [auditor.seats] * rounds if cohorts is None else cohorts  # type: ignore[list-item]
    auditor.begin(dim, len(cohorts))
    rng, findings = stream(seed, "mechanism"), list[Finding]()
    model = rng.standard_normal(dim)  # an adversary who forgets the initial model sees nothing
    for server_round, clients in enumerate(cohorts, 1):
        view = change(shown(auditor, model, server_round, clients, sigma, rng, leak=leak))
        findings += auditor.observe(view)
        model = view.released
    return [*findings, *auditor.report()]


def shown(
    auditor: OneShotCanaries,
    model: np.ndarray,
    server_round: int,
    clients: int,
    sigma: float,
    rng: np.random.Generator,
    *,
    leak: bool = True,
) -> RoundView:
    """Return a round of this many clients that begins with a model."""
    orders = auditor.instruct(server_round, range(clients))
    released = model + sigma * rng.standard_normal(model.size)
    for order in orders.values():
        if order.included and leak:
            released = released + canary_vector(order.seed, order.id, model.size, order.kind)
    return RoundView(server_round, model, {}, released, RoundFacts(), instructed=orders)


def lower_bounds(findings: Sequence[Finding], sees: str | None = None) -> list[Finding]:
    """Return the lower bounds of the run, for whoever sees something or for everybody."""
    found = (f for f in findings if f.kind == "lower_bound" and f.server_round is None)
    return [f for f in found if sees in (None, f.threat_model.sees)]
