"""Callbacks hear of a run as it goes on, and can neither change nor end it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import Audited, Callback, OneShotCanaries
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.run_log import RoundLine, RunEnd, RunStart
from leakmeter.strategies import Chosen
from leakmeter.strategies.chosen import FixedSize


def strategy(**more: Any) -> Audited:
    inner = Chosen(FedAvg(fraction_evaluate=0.0), FixedSize(6), num_clients=6, seed=1)
    return Audited(inner, [OneShotCanaries(seats=2, seed=3)], sends="models", **more)


class Ear(Callback):
    """Keeps what it hears, and fails at a moment if it has one."""

    def __init__(self, moment: str = "") -> None:
        self.moment, self.heard = moment, list[Any]()

    def on_start(self, start: RunStart) -> None:
        self._hear("start", start)

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        self._hear("round", (line, tuple(warnings)))

    def on_end(self, end: RunEnd) -> None:
        self._hear("end", end)

    def _hear(self, moment: str, said: Any) -> None:
        self.heard.append(said)
        if moment == self.moment:
            raise OSError("no connection")


def test_a_callback_hears_start_rounds_and_end_in_order(federation: Any, tmp_path: Path) -> None:
    ear, of = Ear(), federation()
    audited = strategy(out=tmp_path / "mine", config={"lr": 0.5}, callbacks=[ear])
    audited.start(of.grid, of.arrays(), num_rounds=3, evaluate_fn=lambda n, _: {"accuracy": n / 10})
    first, *rounds, last = ear.heard
    assert first == RunStart(3, 0, "mine", {"lr": 0.5}, tmp_path / "mine")
    assert [line.server_round for line, _ in rounds] == [1, 2, 3]
    # With the evaluation that follows the aggregation.
    assert [line.accuracy for line, _ in rounds] == [0.1, 0.2, 0.3]
    assert last.folder == tmp_path / "mine"
    assert (last.folder / "report.json").exists()
    assert last.findings
    assert [f for line, _ in rounds for f in line.findings] + list(last.findings) == (
        audited.findings()
    )


@pytest.mark.parametrize(("moment", "calls"), [("start", 1), ("round", 2), ("end", 5)])
def test_a_callback_that_fails_is_left_out_and_changes_nothing(
    federation: Any, moment: str, calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    deaf, ear = Ear(moment), Ear()
    results, findings = [], []
    for callbacks in ([deaf, ear], []):
        of = federation()
        audited = strategy(callbacks=callbacks)
        with caplog.at_level(logging.WARNING, logger="flwr"):
            result = audited.start(of.grid, of.arrays(), num_rounds=3)
        assert audited.failures == []
        results.append(np.concatenate([a.numpy().ravel() for a in result.arrays.values()]))
        findings.append(audited.findings())
    np.testing.assert_array_equal(*results)
    assert findings[0] == findings[1]
    assert (len(deaf.heard), len(ear.heard)) == (calls, 5)
    said = [r.getMessage() for r in caplog.records if "Ear" in r.getMessage()]
    assert said == ["Ear failed and is left out from here on: OSError: no connection"]


def test_what_is_no_callback_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="callbacks must be a list of Callback objects, got 3"):
        strategy(callbacks=[3])
