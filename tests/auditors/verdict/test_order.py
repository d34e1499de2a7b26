"""A guarantee is set against what was measured for the same attacker, and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakmeter.auditors import Finding, ThreatModel, wording
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import (
    Adjacency,
    Conduct,
    Game,
    Holds,
    Kind,
    Observer,
    Sees,
    Unit,
)
from leakmeter.auditors.judge.adversary import by_adversary, covers, leading
from leakmeter.auditors.judge.verdict import judged
from leakmeter.fl_app.report.judge.of_run import contradictions
from tests.fl_app.report.judge.makers import ANYONE, CANARY, bound, conditional, guarantee, run

_MAYBE = st.none() | st.integers(0, 3)
_MODELS = st.builds(
    ThreatModel,
    observer=st.sampled_from(get_args(Observer)),
    sees=st.sampled_from((*get_args(Sees), None)),
    holds=st.sampled_from((*get_args(Holds), None)),
    knows_cohort=st.booleans(),
    participations=_MAYBE,
    game=st.sampled_from((*get_args(Game), None)),
    colluders=st.integers(0, 2),
    conduct=st.sampled_from(get_args(Conduct)),
)
_CLAIMS = st.builds(
    Finding,
    auditor=st.just("any"),
    rule=st.just("any"),
    value=st.floats(0, 30),
    kind=st.sampled_from(get_args(Kind)),
    confidence=st.just(0.95),
    quantity=st.sampled_from(("epsilon", "epsilon", "separation")),
    delta=st.sampled_from((None, 1e-6, 1e-5)),
    threat_model=_MODELS,
    adjacency=st.sampled_from((*get_args(Adjacency), None)),
    unit=st.sampled_from(get_args(Unit)),
    server_round=st.sampled_from((None, None, 1, 2)),
    assumptions=st.lists(st.sampled_from(list(Assumption)), max_size=2).map(tuple),
)
# Changes to a covered bound, each of which gives the attacker more than the guarantee allows.
_STRONGER: tuple[dict[str, Any], ...] = (
    {"observer": "server"},
    {"sees": "round sum"},
    {"sees": "updates"},
    {"sees": None},
    {"participations": ANYONE.participations + 1 if ANYONE.participations else 0},
    {"colluders": 1},
    {"conduct": "active"},
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first draw reads all annotations
@given(_CLAIMS, _CLAIMS)
def test_a_bound_is_set_against_a_guarantee_only_if_every_field_allows_it(
    upper: Finding, lower: Finding
) -> None:
    if not covers(upper, lower):
        return
    above, below = upper.threat_model, lower.threat_model
    assert (upper.kind, lower.kind) == ("guarantee", "lower_bound")
    assert (upper.quantity, lower.quantity) == ("epsilon", "epsilon")
    assert not lower.is_conditional
    assert upper.unit == lower.unit
    assert upper.adjacency == lower.adjacency is not None
    assert upper.server_round in (None, lower.server_round)
    assert (upper.delta or 0) <= (lower.delta or 0)
    assert above.observer == below.observer
    assert None not in (above.sees, below.sees)
    assert above.holds in (None, below.holds)
    assert above.knows_cohort >= below.knows_cohort
    assert above.game in (None, below.game)
    assert above.colluders >= below.colluders
    assert above.conduct in ("active", below.conduct)
    rounds = [1 if m.participations is None else m.participations for m in (above, below)]
    assert rounds[0] >= rounds[1]


@given(_MODELS.filter(lambda m: m.sees is not None), st.data())
def test_random_claims_that_do_match_are_compared_until_one_field_is_stronger(
    model: ThreatModel, data: st.DataObject
) -> None:
    """The property above would hold if `covers` were never true; here it must be."""
    upper, lower = guarantee(1.0, threat_model=model), bound(2.0, threat_model=model)
    if model.participations == 0:  # priced for nobody, and a round has somebody
        upper = replace(upper, threat_model=replace(model, participations=1))
    assert covers(upper, lower)
    most = model.participations or 1
    other = next(o for o in get_args(Observer) if o != model.observer)
    stronger: list[Finding] = [
        replace(lower, threat_model=replace(model, **changed))
        for changed in (
            {"observer": other},
            {"sees": None},
            {"participations": most + 1},
            {"colluders": model.colluders + 1},
        )
    ]
    stronger += [
        conditional(2.0, threat_model=model),
        replace(lower, adjacency="replace"),
        replace(lower, adjacency=None),
        replace(lower, unit="record"),
        replace(lower, kind="estimate"),
        replace(lower, quantity="separation"),
        replace(lower, delta=1e-6),
    ]
    assert not covers(upper, data.draw(st.sampled_from(stronger)))
    if not model.knows_cohort:
        assert not covers(upper, replace(lower, threat_model=replace(model, knows_cohort=True)))


@pytest.mark.parametrize("changed", _STRONGER)
def test_a_stronger_attacker_than_the_guarantee_allows_is_not_compared(
    changed: dict[str, Any],
) -> None:
    assert covers(guarantee(1.0), bound(2.0))
    assert not covers(guarantee(1.0), bound(2.0, threat_model=replace(CANARY, **changed)))
    hidden = guarantee(1.0, threat_model=replace(ANYONE, knows_cohort=False))
    assert not covers(hidden, bound(2.0))  # a canary's seat is certain: no sampling hides it


def test_other_words_change_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Knows the cohort" in place of "knows who takes part" once let a bound be compared."""
    hidden = guarantee(1.0, threat_model=replace(ANYONE, knows_cohort=False))
    before = [covers(g, bound(2.0)) for g in (guarantee(1.0), hidden)]
    groups = len(by_adversary([hidden, guarantee(1.0), bound(2.0)]))
    monkeypatch.setattr(wording, "attacker", lambda *_, **__: "someone")
    monkeypatch.setattr(Assumption, "sentence", property(lambda _: "something"))
    assert [covers(g, bound(2.0, rule="else")) for g in (guarantee(1.0), hidden)] == before
    assert before == [True, False]
    assert len(by_adversary([hidden, guarantee(1.0), bound(2.0)])) == groups


def test_a_bound_above_its_guarantee_is_a_contradiction() -> None:
    [words] = contradictions(run(guarantee(1.0), bound(2.0)))
    assert "an assumption of one of them does not hold" in words
    assert contradictions(run(guarantee(2.5), bound(2.0))) == []
    assert contradictions(run(guarantee(1.0), conditional(2.0))) == []
    assert contradictions(run(guarantee(1.0, delta=1e-3), bound(2.0))) == []  # another promise


def test_an_attacker_is_one_group_with_both_ends() -> None:
    server = guarantee(9.0, threat_model=replace(ANYONE, observer="server"))
    groups = by_adversary([bound(4.2), guarantee(12.0), server])
    assert [(g.findings[0].value, [u.value for u in g.guarantees]) for g in groups] == [
        (4.2, [12.0]),
        (9.0, []),
    ]
    [verdict, _] = judged([bound(4.2), guarantee(12.0), server])
    shown = verdict.headline.replace("\N{NO-BREAK SPACE}", " ")
    assert shown.endswith("ε ≥ 4.2 shown … ε ≤ 12 guaranteed")
    # A guarantee covers each attacker that it may be set against, and is then not by itself.
    final = bound(1.0, threat_model=replace(CANARY, sees="final model"))
    assert [len(g.guarantees) for g in by_adversary([bound(4.2), final, guarantee(12.0)])] == [1, 1]
    # For more rounds than it is priced for, it is a group by itself.
    often = bound(4.2, threat_model=replace(CANARY, participations=11))
    assert [len(g.guarantees) for g in by_adversary([often, guarantee(12.0)])] == [0, 0]


def test_of_several_guarantees_that_cover_a_bound_the_smallest_is_beside_it() -> None:
    # Clients take part in one round, canaries in five: each price is printed once.
    own, often = (
        guarantee(value, threat_model=replace(ANYONE, participations=rounds))
        for value, rounds in ((3.0, 1), (8.0, 5))
    )
    single = bound(2.0, threat_model=replace(CANARY, participations=None))
    for listed in ([own, often], [often, own]):
        [group] = by_adversary([single, *listed])
        assert group.rows == [(single, own), (often, None)]
    five = bound(4.0, threat_model=replace(CANARY, participations=5))
    first, second = by_adversary([five, own, often])
    assert (first.rows, second.rows) == ([(five, often)], [(own, None)])


def test_runs_of_different_size_have_the_same_attackers() -> None:
    small, large = (
        by_adversary([bound(1.0, threat_model=replace(CANARY, participations=n, colluders=n))])
        for n in (1, 7)
    )
    assert small[0].adversary == large[0].adversary
    assert small[0].adversary.sentence() == large[0].adversary.sentence()
    [single] = by_adversary([bound(1.0, threat_model=replace(CANARY, participations=None))])
    assert single.adversary != small[0].adversary  # one round is not many


def test_the_first_bound_without_a_condition_leads() -> None:
    listed = [conditional(9.0), bound(1.0), bound(5.0), conditional(3.0, auditor="other")]
    assert [f.value for f in leading(listed)] == [1.0, 3.0]


def test_every_field_of_a_threat_model_is_compared() -> None:
    """A new field must be thought about here and in `is_within`."""
    assert {f.name for f in fields(ThreatModel)} == {
        *("observer", "sees", "holds", "knows_cohort"),
        *("participations", "game", "colluders", "conduct"),
    }
