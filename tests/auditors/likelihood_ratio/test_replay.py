"""The likelihood-ratio audit of an app that it knows nothing about, by replaying its rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import (
    Audited,
    LikelihoodRatio,
    ReplaySampler,
    SampleBudget,
    canary_mod,
    tap_mod,
)
from leakmeter.clients import MaskMod
from leakmeter.strategies import Chosen, Masked
from leakmeter.strategies.chosen import FixedSize

QUICK = SampleBudget(fit=60, candidates=12, pilot=10, trials=25)


@pytest.fixture
def foreign(federation: Any) -> Any:
    """Return the maker of federations whose clients draw batches of their own."""

    class Foreign(federation):  # type: ignore[misc]
        spread = 1.0
        draws = np.random.default_rng(0)

        def trained(self, client: int, arrays: Any) -> dict[str, np.ndarray]:
            models = super().trained(client, arrays)
            batch = self.draws.standard_normal((10, 12)) * self.spread
            models["w"] = (models["w"] + batch).astype(np.float32)
            models["b"] = models["b"] + self.draws.standard_normal(12) * self.spread
            return models

    return Foreign


def run(of: Any, auditor: LikelihoodRatio, strategy: Any = None) -> Audited:
    """Return an audited run of two rounds."""
    inner = strategy or FedAvg(min_train_nodes=5, min_available_nodes=5, fraction_evaluate=0.0)
    audited = Audited(inner, [auditor])
    audited.start(of.grid, of.arrays(), num_rounds=2)
    return audited


def test_a_foreign_app_is_audited_by_replay(foreign: Any) -> None:
    audited = run(foreign(5), LikelihoodRatio(ReplaySampler(), budget=QUICK))
    assert audited.failures == []
    kinds = {(f.quantity, f.kind) for f in audited.findings()}
    assert ("epsilon", "lower_bound") in kinds
    assert ("guess", "diagnostic") in kinds
    (bound, *_) = [f for f in audited.findings() if f.kind == "lower_bound"]
    assert bound.threat_model.game == "rerun"
    assert bound.facts["others"] == 4
    assert bound.server_round == 1


def test_replays_do_not_change_the_run(foreign: Any) -> None:
    results = []
    for auditors in ([], [LikelihoodRatio(ReplaySampler(), budget=QUICK)]):
        of = foreign(5)
        of.spread = 0.0  # deterministic clients: both runs agree up to the order of the sum
        inner = FedAvg(min_train_nodes=5, min_available_nodes=5, fraction_evaluate=0.0)
        audited = Audited(inner, auditors)
        results.append(audited.start(of.grid, of.arrays(), num_rounds=2).arrays)
    assert "gave the same update twice" in audited.failures[0]
    for a, b in zip(*(arrays.to_numpy_ndarrays() for arrays in results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_masked_rounds_are_replayed_in_simulations(foreign: Any) -> None:
    of = foreign(5, mods=[MaskMod(required=True, allow_tap=True, seed=0), tap_mod, canary_mod])
    inner = FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    chosen = Chosen(inner, FixedSize(5), num_clients=5, seed=0)
    masked = Masked(chosen, max_weight=50.0, clip_range=8.0, metrics={"train-loss": (0.0, 9.0)})
    audited = run(of, LikelihoodRatio(ReplaySampler(simulated=True), budget=QUICK), masked)
    assert audited.failures == []
    assert any(f.kind == "lower_bound" for f in audited.findings())
