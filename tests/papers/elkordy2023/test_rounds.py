"""What all rounds reveal, in small; and training that is a run of the command line's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leakmeter.auditors.information.theory import gaussian_information
from leakmeter.papers.base import audited_run
from leakmeter.papers.elkordy2023.measure import name_of, noised_accuracies
from leakmeter.papers.elkordy2023.rounds import (
    Run,
    accumulated,
    accuracies,
    growth,
    run_of,
)
from tests.papers.elkordy2023.test_sweep import TINY
from tests.papers.small import Reproduced


def test_rounds_add_up_for_those_who_take_part(reproduced: Reproduced) -> None:
    small, asked = reproduced("mi-rounds"), reproduced.scale("mi-rounds")
    played = {
        (at["algorithm"], run_of(at).colluding, run_of(at).cohort): at for at in asked.points()
    }
    sgd, whole, helped, sampled = (
        small.cells[f"{name_of(at.config)}-{run_of(at).cell}"] for at in played.values()
    )
    for each in (whole, helped):
        assert each[-1]["bits"] > each[0]["bits"] + 2 * each[-1]["error"]
        assert each[-1]["bits"] < 4 * each[0]["bits"] + 2 * each[-1]["error"]
        assert all(f["bits"] < f["corollary"] for f in each)
        assert each[0]["bits"] == pytest.approx(each[0]["single"])
    assert helped[-1]["bits"] > whole[-1]["bits"] + whole[-1]["error"]
    assert whole[-1]["bits"] > sgd[-1]["bits"]
    run = run_of(played["fedavg", 0, None])
    assert [f["corollary"] for f in whole] == pytest.approx(
        [t * gaussian_information(run.rank, 3).bits for t in (1, 2, 3, 4)]
    )
    # With a cohort of two in three the target misses a round, which reveals nothing about it.
    taken = [0 in cohort for cohort in replace(run, cohort=2).cohorts()]
    assert sampled[-1]["participations"] == sum(taken) < 4
    assert sampled[-1]["expected"] == pytest.approx(
        4 * 2 / 3 * gaussian_information(run.rank, 2).bits
    )
    assert len(small.table.rows) == 4 * 4


def test_a_target_that_never_takes_part_is_not_revealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "cohorts", lambda _: [[1, 2]])
    (found,) = accumulated(TINY, Run(users=3, rounds=1, pairs=60, rank=2, cohort=2))
    assert (found["participations"], found["corollary"], found["bits"]) == (0, 0.0, 0.0)


def test_growth_is_named_only_where_it_is_shown() -> None:
    def after(rounds: int, bits: float, error: float, null: float = 0.1) -> dict[str, Any]:
        return {"rounds": rounds, "bits": bits, "error": error, "null": null}

    one = after(1, 0.5, 0.01)
    assert growth(one, after(10, 0.05, 0.03)).startswith("nothing is shown")
    assert growth(one, after(10, 0.52, 0.03)) == "no growth is shown"
    assert "and no departure from it is shown" in growth(one, after(10, 4.9, 0.05))
    assert growth(one, after(10, 2.0, 0.05)).startswith("grows less than in proportion")


def test_a_slow_algorithm_needs_more_rounds_and_a_bound_counts_them(reproduced: Reproduced) -> None:
    small, target = reproduced("mi-accuracy"), reproduced.scale("mi-accuracy").fixed["target"]
    table = small.table
    assert [row[0] for row in table.rows] == ["FedSGD"] * 8 + ["FedAvg"] * 3
    reached: dict[str, tuple[Any, ...]] = {}
    for row in table.rows:
        if float(row[table.columns.index("accuracy")]) >= target:
            reached.setdefault(row[0], row)
    slow, fast = reached["FedSGD"], reached["FedAvg"]
    assert slow[4] > fast[4]
    each = gaussian_information(2, 3).bits
    assert (float(slow[9]), float(fast[9])) == pytest.approx(
        (slow[4] * each, fast[4] * each), rel=0.01
    )
    assert len(small.cells) == 4


@pytest.mark.slow
def test_training_reaches_what_a_run_of_the_command_line_does() -> None:
    # Full batches leave nothing to chance. All clients have 30 records, and so equal weights.
    config = replace(TINY, batch_size=0, lr=0.5, lrt_game="rerun", sample=20, rounds=6)
    _, report = audited_run(replace(config, auditors="none"))
    expected = [one["accuracy"] for one in report["rounds"]]
    (played,) = accuracies(config, Run(users=20, rounds=6, pairs=40, rank=2), 1)
    assert played == expected
    assert played[-1] > played[0] + 0.1
    # Without noise and clipping.
    assert noised_accuracies(config, 20, 0.0, 1e9, rounds=6, plays=2) == [expected[-1]] * 2
