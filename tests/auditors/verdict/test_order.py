"""A guarantee is set against what was measured for attackers that it covers, and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakmeter.auditors import Finding, ThreatModel
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
from leakmeter.auditors.verdict.claim import (
    Question,
    attacker,
    carries_bounds,
    covers,
    is_same,
    is_weaker,
    strongest,
    unsized,
)
from leakmeter.auditors.wording import Assumption
from tests.fl_app.report.makers import CANARY, bound, conditional, guarantee

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
    asked, answered = Question.of(lower), Question.of(upper)
    assert asked is not None
    assert answered in (asked, Question("client", "replace"))
    assert upper.server_round in (None, lower.server_round)
    assert (upper.delta or 0) <= (lower.delta or 0)
    assert (below.observer, above.observer) in {
        ("outsider", "server"),
        *((one, one) for one in get_args(Observer)),
    }
    assert None not in (above.sees, below.sees)
    assert above.knows_cohort >= below.knows_cohort
    assert (above.game == "worst-data") <= (below.game == "worst-data")
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
    other = "wire" if model.observer != "wire" else "server"
    stronger: list[Finding] = [
        replace(lower, threat_model=replace(model, **changed))
        for changed in (
            {"observer": other},
            {"sees": None},
            *([{"sees": "updates"}] if model.sees != "updates" else []),
            *([{"conduct": "active"}] if model.conduct != "active" else []),
            {"participations": most + 1},
            {"colluders": model.colluders + 1},
        )
    ]
    stronger += [
        conditional(2.0, threat_model=model),
        replace(lower, adjacency="replace"),
        replace(lower, adjacency="add-remove"),
        replace(lower, adjacency=None),
        replace(lower, unit="record"),
        replace(lower, kind="estimate"),
        replace(lower, quantity="separation"),
        replace(lower, delta=1e-6),
    ]
    assert not covers(upper, data.draw(st.sampled_from(stronger)))
    if not model.knows_cohort:
        assert not covers(upper, replace(lower, threat_model=replace(model, knows_cohort=True)))


def test_an_attacker_that_sees_something_unknown_is_compared_with_nobody() -> None:
    unknown = replace(CANARY, sees=None)
    for one in (CANARY, unknown):
        assert not covers(guarantee(1.0, threat_model=unknown), bound(2.0, threat_model=one))


def test_what_a_test_brings_along_is_no_part_of_the_attacker() -> None:
    tested = replace(CANARY, game="independent")
    assert attacker(bound(1.0, threat_model=tested)) == attacker(
        bound(1.0, threat_model=replace(CANARY, holds="two updates", game="rerun"))
    )
    worst = bound(1.0, threat_model=replace(CANARY, game="worst-data"))
    assert attacker(worst) != attacker(bound(1.0))


def test_frozen_sums_are_set_against_guarantees_about_sums_only() -> None:
    frozen = replace(CANARY, observer="server", holds="two data sets", sees="frozen sums")
    compared = {
        sees
        for sees in get_args(Sees)
        if covers(
            guarantee(9.0, threat_model=replace(frozen, sees=sees)), bound(1.0, threat_model=frozen)
        )
    }
    assert compared == {"frozen sums", "noised sum", "round sum", "updates"}


@pytest.mark.parametrize("alone", [{"sees": "frozen sums"}, {"game": "worst-data"}])
def test_a_bound_about_rounds_that_were_not_played_stays_in_its_own_row(
    alone: dict[str, Any],
) -> None:
    made_up = replace(CANARY, observer="server", holds=None, **alone)
    updates = replace(made_up, sees="updates", game=None)
    assert is_weaker(made_up, updates)
    assert not carries_bounds(made_up, updates)
    assert carries_bounds(made_up, replace(made_up, participations=9))


def test_runs_of_different_size_have_the_same_attackers() -> None:
    small, large = (replace(CANARY, participations=n, colluders=n) for n in (1, 7))
    assert is_same(small, large)
    assert unsized(small) == unsized(large)
    assert strongest([large, small]) == large
    single = replace(CANARY, participations=None)
    assert not is_same(single, small)  # one round is not many
    assert is_weaker(single, small)  # yet seen by whoever sees one of many
    assert strongest([single]).participations is None


def test_every_field_of_a_threat_model_is_compared() -> None:
    """A new field must be thought about here and in `is_weaker`."""
    assert {f.name for f in fields(ThreatModel)} == {
        *("observer", "sees", "holds", "knows_cohort"),
        *("participations", "game", "colluders", "conduct"),
    }
