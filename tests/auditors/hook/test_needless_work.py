"""The hook makes no vector that nobody reads: at 10⁷ parameters each takes memory and time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors import Audited, Auditor, OneShotCanaries, RoundView, canary_mod
from leakmeter.auditors.hook.layout import Layout, LayoutError, LazyModel
from leakmeter.auditors.hook.open_round import Updates


def test_asking_whether_a_client_has_replied_does_not_make_its_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = ArrayRecord({"w": Array(np.zeros(3))})
    updates = Updates(
        Layout.of(record), LazyModel(Layout.of(record), record), {4: RecordDict({"arrays": record})}
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


@pytest.mark.parametrize("kind", ["sphere", "signs"])
def test_canaries_are_looked_for_without_a_vector_of_the_model(
    federation: Any, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(LazyModel, "vector", property(lambda _: pytest.fail("a vector")))
    of = federation(mods=[canary_mod])
    inner = FedAvg(min_train_nodes=6, min_available_nodes=6, fraction_evaluate=0.0)
    audited = Audited(inner, [OneShotCanaries(seats=2, kind=kind)])
    audited.start(of.grid, of.arrays(), num_rounds=3)
    assert not audited.failures
    assert any(finding.kind == "lower_bound" for finding in audited.findings())


@given(data=st.data(), sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_parts_of_a_model_are_those_of_its_vector(data: Any, sizes: list[int]) -> None:
    kinds = ["float16", "float32", "float64"]
    arrays = [np.arange(size).astype(kinds[place % 3]) for place, size in enumerate(sizes)]
    record = ArrayRecord({str(place): Array(array) for place, array in enumerate(arrays)})
    model, whole = LazyModel(Layout.of(record), record), np.concatenate(arrays)
    start, stop = (data.draw(st.integers(0, whole.size)) for _ in range(2))
    part = model[start:stop]
    assert part.dtype == np.float64
    assert np.array_equal(part, whole[start:stop])
    assert np.array_equal(model.vector, whole)
    assert model.size == whole.size


def test_bytes_of_another_length_than_an_array_says_are_refused() -> None:
    record = ArrayRecord({"w": Array(np.zeros(3)), "b": Array(np.zeros(2))})
    layout = Layout.of(record)
    record["w"].data = Array(np.zeros(4)).data
    with pytest.raises(LayoutError, match="the bytes must have 5 numbers, got 6"):
        LazyModel(layout, record)
