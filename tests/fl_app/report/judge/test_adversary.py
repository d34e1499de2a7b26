"""A guarantee is set against what was measured for the same adversary, and nothing else."""

from __future__ import annotations

from leakmeter.fl_app.report.judge.adversary import covers
from leakmeter.fl_app.report.judge.verdict import contradictions
from tests.fl_app.report.judge.makers import bound, guarantee, run


def test_bounds_are_compared_with_guarantees_for_the_same_adversary_only() -> None:
    upper, lower = guarantee(1.0), bound(2.0)
    assert covers(upper, lower)
    [words] = contradictions(run(upper, lower))
    assert "an assumption of one of them does not hold" in words
    for other in (
        guarantee(1.0, observer="server"),
        guarantee(1.0, unit="record"),
        guarantee(1.0, adjacency="replace"),
    ):
        assert not covers(other, lower)
        assert contradictions(run(other, lower)) == []
    hidden = guarantee(1.0, assumptions=("the observer does not learn who took part",))
    assert covers(hidden, lower)
    assert not covers(hidden, bound(2.0, threat_model="outsider who knows who takes part"))
    # A canary has its seat for certain: no sampling hides whether it takes part.
    seated = bound(2.0, assumptions=("a canary stands for a client that takes part in 1 round",))
    assert covers(upper, seated)
    assert contradictions(run(hidden, seated)) == []
    assert contradictions(run(guarantee(2.5), lower)) == []
    assert contradictions(run(guarantee(1.0, delta=1e-3), lower)) == []  # another promise
