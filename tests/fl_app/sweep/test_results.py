"""Which points are on the frontier, and what is said of them."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.verdict.lines import Ending
from leakmeter.fl_app.report.read import Rehearsal, Run
from leakmeter.fl_app.sweep.points import plan_of
from leakmeter.fl_app.sweep.results import COST, Result, Results, frontier
from tests.helpers.findings import finding

EPSILONS = st.one_of(st.floats(0, 100, allow_nan=False), st.just(math.inf), st.integers(0, 4))
POINTS = st.lists(st.tuples(st.integers(0, 5).map(lambda n: n / 5), EPSILONS), min_size=1)


def rounded_up(epsilon: float) -> Decimal:
    return Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(float(epsilon)))


def dominates(one: tuple[float, Any], other: tuple[float, Any]) -> bool:
    return one[0] >= other[0] and one[1] <= other[1] and one != other


@given(POINTS)
def test_no_point_of_a_frontier_is_beaten_and_every_other_one_is(
    points: list[tuple[float, float]],
) -> None:
    kept = frontier(*zip(*points, strict=True))
    on = [p for p, is_on in zip(points, kept, strict=True) if is_on]
    off = [p for p, is_on in zip(points, kept, strict=True) if not is_on]
    assert not any(dominates(p, q) for p in points for q in on)
    assert all(math.isfinite(end) for _, end in on)
    # A point that is off the frontier has no guarantee, or one on the frontier beats it in what is
    # printed: three digits, rounded up.
    printed = {p: (p[0], math.inf if math.isinf(p[1]) else rounded_up(p[1])) for p in points}
    for q in off:
        assert math.isinf(q[1]) or any(
            dominates(p, q) or dominates(printed[p], printed[q]) for p in on
        )


@given(POINTS, st.randoms(use_true_random=False))
def test_a_frontier_does_not_depend_on_the_order_of_points(
    points: list[tuple[float, float]], random: Any
) -> None:
    mixed = list(points)
    random.shuffle(mixed)
    kept, again = (
        sorted(
            p for p, is_on in zip(some, frontier(*zip(*some, strict=True)), strict=True) if is_on
        )
        for some in (points, mixed)
    )
    assert kept == again


def test_two_calibrations_for_one_target_are_one_guarantee() -> None:
    assert frontier([0.2, 0.9], [3.99995, 3.99999]) == [False, True]
    assert frontier([0.9, 0.9], [3.99995, 3.99999]) == [True, False]
    assert frontier([0.2, 0.9], [3.98, 3.99999]) == [True, True]


def guarantee(value: float, observer: str = "server", adjacency: str = "zero-out") -> Finding:
    sees = {"server": "round sum", "outsider": "noised sum"}[observer]
    return finding(
        value=value,
        kind="guarantee",
        delta=1e-5,
        auditor="accountant",
        observer=observer,
        sees=sees,
        knows_cohort=True,
        participations=3,
        adjacency=adjacency,
    )


def rehearsal(accuracy: float, *guarantees: Finding, seed: int = 0) -> Rehearsal:
    return Rehearsal(settings={}, seed=seed, accuracies=(0.1, accuracy), guarantees=guarantees)


def results(*of_points: list[Rehearsal], against: str = "", **more: Any) -> Results:
    """Return a sweep of learning rates in which these rehearsals were seen."""
    rates = ",".join(str(i + 1) for i in range(len(of_points)))
    settings = {name.replace("_", "-"): value for name, value in more.items()}
    settings |= {"against": against} if against else {}
    plan = plan_of(settings, [f"lr={rates}"], seeds=len(of_points[0]))
    points, _ = plan.points()
    found = zip(points, of_points, strict=True)
    return Results(plan, tuple(Result(point, tuple(seen)) for point, seen in found))


def names(found: Results) -> list[str]:
    return [one.point.name for one in found.frontier]


def test_guarantees_order_points_and_what_is_shown_does_not() -> None:
    found = results(
        [rehearsal(0.5, guarantee(2.0))],
        [rehearsal(0.4, guarantee(3.0))],
        [rehearsal(0.9, guarantee(8.0))],
        [rehearsal(0.95)],
    )
    assert names(found) == ["A", "C"]
    assert "2 of 4 points are on the frontier, from ε ≤ 2 with accuracy 0.500 (A) to" in (
        found.headline.replace("\u00a0", " ")
    )


def test_the_worst_attacker_counts_and_each_adjacency_is_named() -> None:
    found = results(
        [
            rehearsal(
                0.5,
                guarantee(1.0, "outsider"),
                guarantee(2.0),
                guarantee(5.0, adjacency="replace"),
                guarantee(4.0, "outsider", "replace"),
            )
        ],
        [rehearsal(0.6, guarantee(3.0), guarantee(7.0, adjacency="replace"))],
    )
    assert [q.adjacency for q in found.questions] == ["zero-out", "replace"]
    ends = [[cell.text for cell in found.ends(one)] for one in found.points]
    assert ends == [["ε ≤ 2", "ε ≤ 5"], ["ε ≤ 3", "ε ≤ 7"]]
    assert found.heads == ["lr", "accuracy", "zero-out", "replace", "shown"]
    assert found.about.endswith("against: server, all sums; outsider, noised sums.")


def test_the_question_of_the_target_leads() -> None:
    both = [rehearsal(0.5, guarantee(0.9), guarantee(2.0, adjacency="replace"))]
    aimed = {"noise": "distributed", "clip_norm": 1.0, "target_epsilon": 2.0}
    for adjacency, end in (("zero-out", "ε ≤ 0.9"), ("replace", "ε ≤ 2")):
        found = results(both, both, **aimed, target_adjacency=adjacency)
        assert f"{end} ({adjacency})" in found.headline.replace("\u00a0", " ")


def test_a_point_that_guarantees_nothing_to_an_attacker_of_another_one_is_on_no_frontier() -> None:
    central = [rehearsal(0.9, guarantee(math.inf), guarantee(1.0, "outsider"))]
    distributed = [rehearsal(0.5, guarantee(4.0), guarantee(4.0, "outsider"))]
    assert names(results(central, distributed)) == ["B"]
    assert names(results(central, distributed, against="outsider")) == ["A"]
    assert names(results(central, central)) == ["A", "B"]
    assert names(results(central, central, against="server")) == []


def test_several_seeds_have_a_mean_and_ends_and_the_largest_guarantee() -> None:
    found = results(
        [rehearsal(0.5, guarantee(2.0)), rehearsal(0.7, guarantee(3.0), seed=1)],
        [rehearsal(0.6, guarantee(2.5)), rehearsal(0.4, guarantee(2.5), seed=1)],
    )
    [first, second] = found.points
    assert first.accuracy == pytest.approx(0.6)
    assert (found.end(first), found.end(second)) == (3.0, 2.5)
    assert str(found.cells(first)[1]) == "0.600 (0.500 to 0.700)"
    one_without = results([rehearsal(0.5, guarantee(2.0)), rehearsal(0.7)], [rehearsal(0.1)] * 2)
    assert math.isinf(one_without.end(one_without.points[0]))


def test_without_any_guarantee_there_is_no_frontier_and_it_is_said() -> None:
    found = results([rehearsal(0.5)], [rehearsal(0.6)])
    assert names(found) == []
    assert found.headline.startswith("No point guarantees anything, so there is no frontier")
    text = "\n".join(found.lines(Ending()))
    assert "POINT  LR  ACCURACY\nA      1   0.500\nB      2   0.600" in text


def test_terminal_table_csv_and_json_say_the_same() -> None:
    found = results([rehearsal(0.5, guarantee(2.25))], [rehearsal(0.4, guarantee(3.0))])
    lines = "\n".join(found.lines(Ending()))
    assert "A *    1   0.500     ε ≤ 2.25  not audited" in lines
    assert "B      2   0.400     ε ≤ 3     not audited" in lines
    [a, b] = csv.DictReader(io.StringIO(found.to_csv()))
    assert (a["point"], a["lr"], a["accuracy"], a["frontier"]) == ("A", "1.0", "0.5", "True")
    assert (b["guaranteed_zero_out"], b["shown_zero_out"], b["frontier"]) == ("3.0", "", "False")
    whole = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert whole["frontier"] == ["A"]
    assert [one["guaranteed_zero_out"] for one in whole["points"]] == [2.25, 3.0]
    assert whole["points"][1]["settings"] == {"lr": 2.0}
    assert whole["attackers"] == ["server/round-sum"]
    for one, row in zip(found.points, (a, b), strict=True):
        assert (row["command"], row["rehearsal_command"]) == tuple(one.commands.values())


def test_the_price_of_choosing_and_of_a_measured_norm_are_said_first() -> None:
    found = results([rehearsal(0.5, guarantee(2.0))], [rehearsal(0.4, guarantee(3.0))])
    assert found.notes[0] == COST
    assert "no ε here covers" in COST
    assert any("Clip norms were measured" in note for note in found.notes)
    assert " ".join(COST.split()) in " ".join(" ".join(found.lines(Ending())).split())


def test_an_audit_that_refutes_a_guarantee_leads_the_notes(tmp_path: Path) -> None:
    found = results([rehearsal(0.5, guarantee(2.0))], [rehearsal(0.4, guarantee(3.0))])
    shown = replace(guarantee(2.5), kind="lower_bound", confidence=0.95, auditor="one-shot")
    [first, second] = found.points
    for audited, is_refuted in (((guarantee(2.0), shown), True), ((guarantee(3.0), shown), False)):
        run = Run("audit", tmp_path, findings=audited)
        seen = replace(found, points=(replace(first, audit=run), second))
        assert (
            seen.notes[0].startswith("The audit shows more than is guaranteed at A") == is_refuted
        )
        assert str(seen.cells(seen.points[0])[-1]) == "ε ≥ 2.5"
        assert names(seen) == ["A"]


def test_commands_name_what_differs_from_a_run_and_are_one_line() -> None:
    [one, _] = results([rehearsal(0.5)], [rehearsal(0.4)]).points
    words = "--noise distributed --clip-norm auto"
    assert one.commands == {
        "audit": f"python run_sim.py --lr 1 {words} --auditors one-shot --seed 0",
        "rehearsal": f"python run_sim.py --sample 40 --lr 1 {words} --auditors none --seed 0",
    }
