"""The laws of a verdict, over random findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors import Finding, ThreatModel
from leakmeter.auditors.finding import Adjacency, Kind, Observer, Sees, Unit
from leakmeter.auditors.verdict.claim import (
    Question,
    attacker,
    carries_bounds,
    is_same,
    is_weaker,
)
from leakmeter.auditors.verdict.verdict import Row, judge
from leakmeter.auditors.wording import Assumption
from tests.helpers.findings import finding

MODELS = st.builds(
    ThreatModel,
    observer=st.sampled_from(get_args(Observer)),
    sees=st.sampled_from(get_args(Sees)),
    holds=st.sampled_from([None, "canary", "two updates"]),
    knows_cohort=st.booleans(),
    participations=st.sampled_from([None, 1, 2, 19]),
    game=st.sampled_from([None, "independent", "worst-data"]),
    colluders=st.sampled_from([0, 3]),
    conduct=st.sampled_from(["curious", "active"]),
)
QUESTIONS = [Question(unit, one) for unit in get_args(Unit) for one in get_args(Adjacency)]
VALUES = st.sampled_from([0.0, 0.3, 1.0, 2.5, 8.0, 30.0, math.inf])


@st.composite
def findings(
    draw: st.DrawFn, kinds: Sequence[Kind] = ("lower_bound", "lower_bound", "guarantee", "estimate")
) -> Finding:
    kind = draw(st.sampled_from(kinds))
    value = draw(VALUES)
    if kind != "guarantee":
        value = min(value, 80.0)
    assumed = draw(st.sampled_from([(), (), (Assumption.INDEPENDENT_SCORES,)]))
    question = draw(st.sampled_from(QUESTIONS))
    return finding(
        value=value,
        kind=kind,
        confidence=0.99 if kind == "lower_bound" else None,
        delta=draw(st.sampled_from([1e-5, 1e-5, 1e-6])),
        assumptions=assumed if kind == "lower_bound" else (),
        threat_model=draw(MODELS),
        unit=question.unit,
        adjacency=question.adjacency,
        null_band=(0.0, 0.5) if kind == "estimate" else None,
    )


RUNS = st.lists(findings(), max_size=12)
PROMISES = st.lists(findings(["guarantee"]), max_size=6)


def is_alone(model: ThreatModel) -> bool:
    return model.sees == "frozen sums" or model.game is not None


@given(MODELS, MODELS, MODELS)
def test_attackers_are_ordered(a: ThreatModel, b: ThreatModel, c: ThreatModel) -> None:
    a, b, c = (replace(m, holds=None) for m in (a, b, c))
    assert is_weaker(a, a)
    assert not (is_weaker(a, b) and is_weaker(b, c)) or is_weaker(a, c)
    if carries_bounds(a, b):
        assert is_weaker(a, b)


def test_questions_are_ordered() -> None:
    for a, b, c in product(QUESTIONS, repeat=3):
        assert a.is_implied_by(a)
        assert not (a.is_implied_by(b) and b.is_implied_by(c)) or a.is_implied_by(c)


def test_zero_out_and_records_are_cases_of_replacing_an_update_and_nothing_else_is() -> None:
    everything = Question("client", "replace")
    implied = {q for q in QUESTIONS if q.is_implied_by(everything)}
    records = {Question(u, one) for u in ("record", "group") for one in get_args(Adjacency)}
    assert implied == {everything, Question("client", "zero-out"), *records}
    for q in QUESTIONS:
        if q != everything:
            assert [one for one in QUESTIONS if one.is_implied_by(q)] == [q]


def test_the_order_of_the_attackers_is_that_of_what_they_see() -> None:
    chain = ("final model", "all models", "noised sum", "round sum", "updates")
    server = [ThreatModel(observer="server", sees=sees, participations=3) for sees in chain]
    for i, j in product(range(len(chain)), repeat=2):
        assert is_weaker(server[i], server[j]) == (i <= j)
    outsider = replace(server[1], observer="outsider")
    assert is_weaker(outsider, server[2])
    assert not is_weaker(server[1], outsider)
    wire = replace(server[4], observer="wire")
    assert not is_weaker(wire, server[4])
    assert not is_weaker(server[4], wire)


@given(RUNS)
def test_a_stronger_attacker_or_question_has_no_smaller_number(run: list[Finding]) -> None:
    rows = judge(run).rows
    for a, b in product(rows, repeat=2):
        if is_weaker(a.attacker, b.attacker) and a.question.is_implied_by(b.question):
            assert a.high <= b.high
            if not is_alone(a.attacker):
                assert a.low <= b.low


@given(RUNS)
def test_an_attacker_and_a_question_have_one_row(run: list[Finding]) -> None:
    rows = judge(run).rows
    for i, a in enumerate(rows):
        for b in rows[:i]:
            assert not (a.question == b.question and a.attacker == b.attacker)
            if a.question == b.question and is_same(a.attacker, b.attacker):
                assert (a.is_priced, b.is_priced) == (True, True)
    of_rows = [f for f in run if f.adjacency is not None]
    assert sorted(map(id, of_rows)) == sorted(id(f) for row in rows for f in row.findings)


@given(RUNS)
def test_rows_are_sorted_by_what_is_shown_and_no_guarantee_is_the_worst(
    run: list[Finding],
) -> None:
    rows = judge(run).rows
    for a, b in pairwise(rows):
        assert a.low > b.low or (a.low == b.low and a.high >= b.high)


@given(RUNS)
def test_nothing_conditional_and_no_estimate_is_shown(run: list[Finding]) -> None:
    verdict = judge(run)
    proven = [f for f in run if f.kind == "lower_bound" and not f.is_conditional]
    for row in verdict.rows:
        assert row.shown is None or any(row.shown is f for f in proven)
        assert row.at_most is None or row.at_most.kind == "guarantee"
    case, _ = verdict.headline
    if case in ("leak", "refuted"):
        assert any(f.value > 0 for f in proven)
    if case == "suspected":  # never where something is proven or guaranteed
        assert all(row.low == 0 and math.isinf(row.high) for row in verdict.rows)


@given(RUNS, findings())
def test_a_bound_that_is_not_larger_changes_no_other_row(run: list[Finding], more: Finding) -> None:
    if more.kind == "guarantee" or judge(run).delta != judge([*run, more]).delta:
        return
    # An attacker has a row for each price; those without the new finding are whole and the same.

    def key(row: Row) -> object:
        return row.question, row.attacker, tuple(map(id, row.findings))

    before = {key(row): row for row in judge(run).rows}
    for row in judge([*run, more]).rows:
        old = before.get(key(row))
        if old is None or any(f is more for f in row.findings):
            continue
        assert row.high == old.high
        if more.kind != "lower_bound" or more.is_conditional or more.value <= old.low:
            assert row.low == old.low
        else:
            assert row.low >= old.low


@given(RUNS, PROMISES)
def test_a_guarantee_changes_nothing_that_is_shown(
    run: list[Finding], promises: list[Finding]
) -> None:
    own = [f for f in run if f.kind != "guarantee"]
    if judge(own).delta != judge([*own, *promises]).delta:
        return
    before = {_key(row): row for row in judge(own).rows}
    for row in judge([*own, *promises]).rows:
        if (old := before.get(_key(row))) is not None and row.attacker == old.attacker:
            assert row.low == old.low
            assert row.shown is old.shown


@given(RUNS)
def test_a_row_keeps_its_guarantee_whatever_its_bounds_are(run: list[Finding]) -> None:
    verdict = judge(run)
    for row in verdict.rows:
        usable = [
            g.value
            for g in run
            if g.kind == "guarantee"
            and (g.delta or 0) <= (verdict.delta or 0)
            and is_weaker(row.attacker, attacker(g))
            and row.question.is_implied_by(Question(g.unit, g.adjacency or "replace"))
        ]
        assert row.high == min(usable, default=math.inf)


@given(RUNS)
def test_the_headline_is_the_first_case_that_applies(run: list[Finding]) -> None:
    verdict = judge(run)
    case, row = verdict.headline
    lows = [one.low for one in verdict.rows]
    if any(one.low > one.high for one in verdict.rows):
        assert case == "refuted"
    elif any(one.low > 0 and math.isinf(one.high) for one in verdict.rows):
        assert case == "leak"
        assert row is not None
        assert row.low == max(
            low for low, one in zip(lows, verdict.rows, strict=True) if math.isinf(one.high)
        )
    elif finite := [one.high for one in verdict.rows if math.isfinite(one.high)]:
        assert case == "interval"
        assert row is not None
        assert row.high == max(finite)
    else:
        assert case in ("suspected", "observed", "nothing")


@given(RUNS)
def test_the_verdict_as_data_has_the_same_numbers(run: list[Finding]) -> None:
    verdict = judge(run)
    data = verdict.to_json()
    assert len(data["rows"]) == len(verdict.rows)
    for row, one in zip(verdict.rows, data["rows"], strict=True):
        assert one["severity"] == row.severity
        assert (one["shown"] is None) == (row.shown is None)
        if row.at_most is not None:
            assert float(one["at_most"]["epsilon"]) == row.high


def _key(row: Row) -> tuple[Question, ThreatModel]:
    rounds = None if row.attacker.participations is None else 1
    return row.question, replace(row.attacker, participations=rounds, colluders=0)
