"""`StopAbove`: a run ends in order once enough is proven, and trains as without until then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy

from leakmeter.auditors import Anytime, Audited, OneShotCanaries, StopAbove
from leakmeter.auditors.wording import Assumption
from leakmeter.strategies import Chosen
from leakmeter.strategies.chosen import FixedSize
from tests.helpers.strategies import OwnLoop

ROUNDS = 6


def chosen(strategy: Strategy | None = None) -> Chosen:
    return Chosen(strategy or FedAvg(), FixedSize(6), num_clients=6, seed=1)


def audited(
    strategy: Strategy | None = None, *, stop_above: float | None = None, **more: Any
) -> Audited:
    """Return an audit that proves some ε in its first rounds: nothing hides the canaries."""
    auditor = OneShotCanaries(seats=4, confidence=Anytime(0.95))
    stop = [] if stop_above is None else [StopAbove(stop_above)]
    return Audited(chosen(strategy), [auditor], sends="models", callbacks=stop, **more)


def proven(run: Audited) -> list[float]:
    """Return the bound after each round."""
    return [f.value for f in run.findings() if f.is_anytime and f.server_round is not None]


@pytest.fixture
def limit(federation: Any) -> tuple[float, int]:
    """Return a limit and the round in which it is passed, neither the first nor the last."""
    fed, run = federation(), audited()
    run.start(fed.grid, fed.arrays(), ROUNDS)
    assert run.ended is None
    values = proven(run)
    passed = next(i for i in range(1, ROUNDS - 1) if values[i] > values[0])
    return values[passed] - 0.01, passed + 1


def test_the_run_ends_before_the_next_round_with_the_model_so_far(
    federation: Any, limit: tuple[float, int], caplog: Any
) -> None:
    above, last = limit
    fed, run = federation(), audited(stop_above=above)
    result = run.start(
        fed.grid, fed.arrays(), ROUNDS, evaluate_fn=lambda r, _: MetricRecord({"round": r})
    )
    assert {r for kind, r, _ in fed.seen if kind == "train"} == set(range(1, last + 1))
    assert len(proven(run)) == last
    assert run.ended is not None
    assert f"above the limit of {above:g}" in run.ended
    assert run.ended in caplog.text
    # What the loop would have returned had it had this many rounds.
    assert sorted(result.train_metrics_clientapp) == list(range(1, last + 1))
    assert sorted(result.evaluate_metrics_serverapp) == list(range(last + 1))
    assert sorted(result.evaluate_metrics_clientapp) == list(range(1, last + 1))


def test_the_model_is_that_of_the_last_round_that_was_played(
    federation: Any, limit: tuple[float, int]
) -> None:
    above, last = limit
    fed, models = federation(), {}
    whole = audited()
    whole.on_round = lambda line, arrays: models.update({line.server_round: arrays})
    whole.start(fed.grid, fed.arrays(), ROUNDS)
    again = federation()
    result = audited(stop_above=above).start(again.grid, again.arrays(), ROUNDS)
    for name, array in models[last].items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array.numpy())


def test_a_loop_of_its_own_is_left_in_order(federation: Any, limit: tuple[float, int]) -> None:
    fed, inner = federation(), OwnLoop()
    run = audited(inner, stop_above=limit[0])
    run.start(fed.grid, fed.arrays(), ROUNDS)
    assert len(proven(run)) < ROUNDS
    assert "configure_train" not in vars(inner)


def test_the_report_says_first_that_the_run_was_stopped(
    federation: Any, limit: tuple[float, int], tmp_path: Path, caplog: Any
) -> None:
    above, last = limit
    fed = federation()
    run = audited(stop_above=above, out=tmp_path / "run")
    caplog.set_level("INFO", logger="flwr")
    run.start(fed.grid, fed.arrays(), ROUNDS)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    warned = [(w["kind"], w["count"], w["total"]) for w in report["warnings"]]
    assert warned[0] == ("stopped-above", ROUNDS - last, ROUNDS)
    assert "few-canaries" not in {kind for kind, *_ in warned}
    said = " ".join(record.message for record in caplog.records)
    assert f"The run stopped {ROUNDS - last} of {ROUNDS} rounds early, as asked" in said


def test_bounds_for_one_look_are_conditional_after_a_stop(
    federation: Any, limit: tuple[float, int]
) -> None:
    fed, run = federation(), audited(stop_above=limit[0])
    run.start(fed.grid, fed.arrays(), ROUNDS)
    bounds = [f for f in run.findings() if f.kind == "lower_bound" and f.server_round is None]
    assert {f.is_conditional for f in bounds if f.is_anytime} == {False}
    others = [f for f in bounds if not f.is_anytime]
    assert others
    assert all(Assumption.FIXED_END in f.assumptions and f.is_conditional for f in others)


def test_a_run_interrupted_at_its_stop_does_not_train_on(
    federation: Any, limit: tuple[float, int]
) -> None:
    above, last = limit
    fed, saved = federation(), {}
    first = audited(stop_above=above)
    first.on_round = lambda line, model: saved.update({line.server_round: (first.state(), model)})
    first.start(fed.grid, fed.arrays(), ROUNDS)
    state, model = saved[last]
    again, second = federation(), audited(stop_above=above, rounds_done=last)
    second.restore(state)
    second.start(again.grid, model, ROUNDS)
    assert not [r for kind, r, _ in again.seen if kind == "train"]
    assert second.ended == first.ended
    of_run = [f for f in first.findings() if f.server_round is None]
    assert second.findings() == of_run
    assert second.warnings == first.warnings


def test_a_second_start_begins_anew(federation: Any, limit: tuple[float, int]) -> None:
    fed, run = federation(), audited(stop_above=limit[0])
    run.start(fed.grid, fed.arrays(), ROUNDS)
    first = run.ended
    run.start(fed.grid, fed.arrays(), ROUNDS)
    assert run.ended == first
    assert len(proven(run)) == limit[1]


def test_it_needs_an_auditor_whose_bounds_hold_at_every_round() -> None:
    with pytest.raises(ValueError, match=r"StopAbove needs an auditor .* got \['one-shot'\]: try"):
        Audited(FedAvg(), [OneShotCanaries(seats=2)], callbacks=[StopAbove(1.0)])
    with pytest.raises(ValueError, match=r"StopAbove must be given an ε in \[0, inf\), got -1"):
        StopAbove(-1)


def test_two_auditors_that_may_stop_a_run_share_its_confidence(
    federation: Any, tmp_path: Path
) -> None:
    made = [OneShotCanaries(seats=2, confidence=Anytime(0.95)) for _ in range(2)]
    made[1].name = "two"
    fed, run = federation(), Audited(chosen(), made, callbacks=[StopAbove(1e6)], out=tmp_path)
    run.start(fed.grid, fed.arrays(), 1)
    misses = [auditor.num_bounds * (1 - auditor.confidence) for auditor in made]
    assert sum(misses) == pytest.approx(0.05)
