"""The hook makes no vector that nobody reads: at 10⁷ parameters each takes memory and time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import Audited, Auditor, OneShotCanaries, RoundView, canary_mod
from leakmeter.auditors.hook.layout import Layout, SentModel
from leakmeter.auditors.hook.open_round import Updates


def test_asking_whether_a_client_has_replied_does_not_make_its_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = ArrayRecord({"w": Array(np.zeros(3))})
    updates = Updates(
        Layout.of(record), SentModel(Layout.of(record), record), {4: RecordDict({"arrays": record})}
    )
    monkeypatch.setattr(Layout, "flatten", None)
    assert 4 in updates
    assert 5 not in updates


class Reading(Auditor):
    """Keeps the means that it is shown."""

    name = "reading"

    def __init__(self) -> None:
        self.means: list[Any] = []

    def observe(self, view: RoundView) -> Any:
        self.means.append(view.facts.aggregate)
        return ()


@pytest.mark.parametrize("sends", ["auto", "models", "differences"])
def test_the_mean_is_for_auditors_that_want_it(federation: Any, sends: Any) -> None:
    means = {}
    for wants_mean in (True, False):
        of, auditor = federation(mods=[canary_mod]), Reading()
        auditor.wants_mean = wants_mean
        inner = FedAvg(min_train_nodes=6, min_available_nodes=6, fraction_evaluate=0.0)
        audited = Audited(inner, [auditor, OneShotCanaries(seats=2)], sends=sends)
        audited.start(of.grid, of.arrays(), num_rounds=3)
        assert not audited.failures
        means[wants_mean] = auditor.means
    assert all(mean is not None for mean in means[True])
    assert [mean is None for mean in means[False]] == [True, True, True]
