"""Every pair of strategy, mods, arrays and clients: trained as without, audited or said why."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors import canary_mod
from tests.guest import clients as kinds
from tests.guest.clients import Clients
from tests.guest.harness import (
    Cell,
    Quiet,
    assert_same,
    assert_unharmed,
    explained,
    run_audited,
    run_plain,
    was_seen,
)
from tests.guest.model import MODELS
from tests.guest.mods import HARMLESS, clipping_mods, local_dp
from tests.guest.strategies import CHOOSING, CLIENT_SIDE, PLAIN, SERVER_SIDE

pytestmark = [
    pytest.mark.slow,
    # Flower's own arithmetic with models that are not finite.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:flwr"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy"),
]

STRATEGIES = {**PLAIN, **CHOOSING, **SERVER_SIDE, **CLIENT_SIDE}
MODS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {  # before ours, after ours
    "none": ((), ()),
    "LocalDpMod before": ((local_dp(),), ()),
    "LocalDpMod after": ((), (local_dp(),)),
    **{f"{name} before": ((HARMLESS[name],), ()) for name in ("counting_mod", "strict_mod")},
    **{f"{name} after": ((), (HARMLESS[name],)) for name in ("message_size_mod", "rounding_mod")},
}
CLIENTS: dict[str, type[Clients]] = {
    kind.__name__: kind
    for kind in (
        Clients,
        kinds.Failing,
        kinds.FailingFirst,
        kinds.Diverging,
        kinds.DivergingAlways,
        kinds.Stateful,
        kinds.Renamed,
        kinds.OtherKeys,
        kinds.OtherWeight,
        kinds.NoExamples,
        kinds.Part,
        kinds.Protecting,
        kinds.Refusing,
        kinds.Keeping,
        kinds.OddMetrics,
        kinds.Constant,
    )
}
USUAL = ("FedAvg", "none", "floats", "Clients")
READABLE = [kind for kind in MODELS if kind != "own bytes"]  # to Flower's strategies
CHOICES = (list(STRATEGIES), list(MODS), READABLE, list(CLIENTS))
# What hinders no canary.
FLOATS = {"floats", "batchnorm", "integers", "0-d", "empty", "float16", "bool", "complex"}
STEADY = {"Clients", "Stateful", "OtherKeys", "OtherWeight", "NoExamples", "Protecting", "Keeping"}


def pairs() -> list[tuple[str, ...]]:
    """Return projects that differ from the usual one in at most two respects, each once."""
    found: dict[tuple[str, ...], None] = {}
    for i in range(len(CHOICES)):
        for j in range(i):
            for first in CHOICES[i]:
                for second in CHOICES[j]:
                    names = list(USUAL)
                    names[i], names[j] = first, second
                    found[tuple(names)] = None
    # Krum fails where it chooses the client without examples, so it fails or not by the model.
    return [names for names in found if (names[0], names[3]) != ("Krum", "NoExamples")]


def project(strategy: str, mods: str, model: str, clients: str) -> Cell:
    """Return the project of these names."""
    *clipping, _ = clipping_mods(strategy)
    before, after = MODS[mods]
    kind = CLIENTS[clients]

    def make() -> Strategy:
        made = STRATEGIES[strategy]()
        inner: Any = getattr(made, "strategy", made)  # Flower's wrappers hold one
        inner.weighted_by_key = kind.weight_key
        return made

    mods_of_app = (*before, *clipping, canary_mod, *after)
    return Cell(make, lambda: kind(MODELS[model]()), mods_of_app)


@pytest.mark.parametrize("names", pairs(), ids="-".join)
def test_a_project_is_trained_as_without_and_audited_or_said_why(names: tuple[str, ...]) -> None:
    cell = project(*names)
    run, _ = run_audited(cell, [Quiet()])
    assert_same(cell, run)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    if run.error is not None:
        return
    released = run_plain(cell).trace.released
    if names[2] in FLOATS and names[3] in STEADY and len(released) == cell.rounds:
        assert was_seen(run, audited)
    else:
        assert was_seen(run, audited) or explained(audited)
