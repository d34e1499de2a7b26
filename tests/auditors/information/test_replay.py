"""The mutual-information audit of an app that it knows nothing about, by replaying its rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import Audited, DrawPlan, MutualInformation, ReplaySampler


def test_a_foreign_app_is_audited_by_replay(federation: Any) -> None:
    loud = 4.0

    class Foreign(federation):  # type: ignore[misc]
        """Clients draw batches of their own; the first one's updates vary more."""

        draws = np.random.default_rng(0)

        def trained(self, client: int, arrays: Any) -> dict[str, np.ndarray]:
            models = super().trained(client, arrays)
            spread = loud if client == 0 else 1.0
            batch = self.draws.standard_normal((10, 12)) * spread
            models["w"] = (models["w"] + batch).astype(np.float32)
            return models

    app = Foreign(5)
    inner = FedAvg(min_train_nodes=5, min_available_nodes=5, fraction_evaluate=0.0)
    audited = Audited(inner, [MutualInformation(ReplaySampler(), plan=DrawPlan(draws=30, rank=4))])
    audited.start(app.grid, app.arrays(), num_rounds=1)
    assert audited.failures == []
    found = audited.findings()[0]
    assert found.threat_model.game == "rerun"
    (spread,) = found.details
    assert spread.clients == tuple(range(5))
    # Client c weighs c + 1, so that variances in the sum are (c + 1)² times its own.
    variances = np.arange(1, 6) ** 2 * np.array([loud**2, 1, 1, 1, 1])
    truth = 2 * np.log2(variances.sum() / (variances.sum() - variances))
    assert spread.values == pytest.approx(truth, rel=0.35)
    assert found.value == pytest.approx(truth.mean(), rel=0.1)
