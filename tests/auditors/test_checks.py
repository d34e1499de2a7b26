"""The contract of auditors: an honest one passes, and each check refuses one that breaks it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors import Auditor, Finding, RoundView, ThreatModel, checks
from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.checks import CHECKS, check_auditor


def found(name: str, value: Any, server_round: int | None = None, **more: Any) -> Finding:
    fields: dict[str, Any] = {
        "kind": "diagnostic",
        "rule": "length of the change",
        "auditor": name,
        "quantity": "length",
        "threat_model": ThreatModel(observer="outsider", sees="round model"),
    }
    return Finding(value=value, server_round=server_round, **(fields | more))


def together(name: str, value: float, server_round: int | None = None) -> Finding:
    """Return a bound that holds at all rounds together."""
    more = {"kind": "lower_bound", "confidence": 0.95, "assumptions": ("all-rounds-together",)}
    return found(name, value, server_round, **more)


class Honest(Auditor):
    """Reports how far the model moved, in each round and in sum; plays one canary a round."""

    name = "honest"

    def begin(self, dim: int, num_rounds: int) -> None:
        self.total = 0.0

    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        return {chosen[server_round % len(chosen)]: Canary(id=server_round, seed=1)}

    def score(self, view: RoundView) -> float:
        return float(np.linalg.norm(view.released - view.sent))

    def observe(self, view: RoundView) -> Sequence[Finding]:
        score = self.score(view)
        self.total += score
        return [found(self.name, score, view.server_round, facts={"norm": score})]

    def report(self) -> Sequence[Finding]:
        return [found(self.name, self.total)]

    def state(self) -> dict[str, Any]:
        return {"total": self.total}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.total = state["total"]


def reports(value: Any = 1.0, name: str = "honest", **more: Any) -> dict[str, Any]:
    """Return a method of an auditor that reports this."""
    return {"report": lambda _: [found(name, value, **more)]}


def scores(score: Callable[[Honest, RoundView], Any], **more: Any) -> dict[str, Any]:
    """Return a method of an auditor that takes this for the length of a change."""
    return {"score": lambda self, view: float(score(self, view)), **more}


def spoilt(change: Callable[[RoundView], Any]) -> dict[str, Any]:
    """Return a method of an auditor that changes what it sees before it looks."""
    return scores(lambda self, view: (change(view), Honest.score(self, view))[1])


def at_each_round(first: float, last: float, **more: Any) -> dict[str, Any]:
    """Return an auditor whose bound holds at all rounds together, and changes at the end."""
    return {
        "observe": lambda self, view: [together(self.name, first, view.server_round)],
        "report": lambda self: [together(self.name, last)],
        **more,
    }


def aggregate(view: RoundView) -> Any:
    """Return the aggregate of a round, zeros where there is none."""
    return np.zeros(1) if view.facts.aggregate is None else view.facts.aggregate


UNSEEN = ThreatModel(observer="outsider", sees=None)
COUNTER = itertools.count()
CALLED: dict[str, str] = {
    "complete": "check_findings_are_complete",
    "same": "check_same_seed_same_findings",
    "order": "check_order_of_replies_is_immaterial",
    "reads": "check_only_declared_fields_are_read",
    "alone": "check_what_it_sees_is_left_alone",
    "abandoned": "check_an_abandoned_round_is_survived",
    "resumes": "check_it_resumes",
    "orders": "check_orders_go_to_the_chosen_only",
}
# What breaks the contract, the check that refuses it, and its words.
BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "no finding": (
        {"observe": Auditor.observe, "report": Auditor.report},
        *("complete", "must report at least one finding"),
    ),
    "no Finding": ({"report": lambda _: [1.0]}, "complete", "findings must be Finding"),
    "another name": (reports(name="somebody"), "complete", "auditor must be 'honest'"),
    "no view": (
        reports(kind="estimate", threat_model=UNSEEN),
        *("complete", "sees must say what the attacker sees"),
    ),
    "falls": (at_each_round(2.0, 1.0, is_anytime=True), "complete", "must never fall"),
    "not said to be anytime": (at_each_round(2.0, 2.0), "complete", "is_anytime must be true"),
    "no JSON": (reports(facts={"set": {1, 2}}), "complete", "must survive JSON"),
    "untyped details": (
        reports(details=({"curve": [1, 2]},)),
        *("complete", r"length.details\[0\].type must be one"),
    ),
    "list as fact": (
        reports(facts={"curve": [1.0, 2.0]}),
        *("complete", r"length.facts.curve must be a number"),
    ),
    "moody": (scores(lambda *_: next(COUNTER)), "same", "equal auditors"),
    "first come": (
        scores(
            lambda _, view: next(iter(view.replies.values()), np.zeros(1))[0],
            reads=frozenset({"replies"}),
        ),
        *("order", "reply order"),
    ),
    "truth": (
        scores(lambda _, view: sum(u.sum() for u in view.truth.values())),
        *("reads", r"\['released', 'sent'\] only"),
    ),
    "replies": (
        scores(lambda _, view: sum(u.sum() for u in view.replies.values())),
        *("reads", "declare further fields"),
    ),
    "facts": (scores(lambda _, v: aggregate(v).sum()), "reads", "declare further fields"),
    "released": ({"reads": frozenset({"sent"})}, "reads", r"\['sent'\] only"),
    "unknown field": (
        {"reads": frozenset({"sent", "released", "relaesed"})},
        *("reads", r"got \['relaesed'\]"),
    ),
    "writes into the model": (
        spoilt(lambda view: view.released.__setitem__(0, 0.0)),
        *("alone", "view of round 1 was changed"),
    ),
    "writes into the aggregate": (
        spoilt(lambda view: aggregate(view).fill(0.0)),
        *("alone", "was changed"),
    ),
    "takes replies": (spoilt(lambda view: view.replies.clear()), "alone", "was changed"),  # type: ignore[attr-defined]
    "needs replies": (
        scores(lambda _, view: 1 / len(view.replies)),
        *("abandoned", "ZeroDivisionError"),
    ),
    "forgets": ({"state": lambda _: {"total": 0.0}}, "resumes", "must be as without"),
    "keeps objects": (
        {"state": lambda self: {"total": self.total, "me": self}},
        *("resumes", "got Broken"),
    ),
    "keeps numbers as keys": (
        {
            "state": lambda self: {"total": {1: self.total}},
            "restore": lambda self, state: setattr(self, "total", state["total"][1]),
        },
        *("resumes", r"must be texts, got \[1\]"),
    ),
    "orders strangers": (
        {"instruct": lambda _, server_round, __: {0: Canary(id=server_round, seed=1)}},
        *("orders", r"got \[0\]"),
    ),
}


def test_an_honest_auditor_passes() -> None:
    check_auditor(Honest)


def test_an_auditor_that_declares_what_it_reads_passes() -> None:
    methods, _, _ = BROKEN["facts"]
    check_auditor(type("Declared", (Honest,), {**methods, "reads": frozenset({"facts"})}))


@pytest.mark.parametrize("name", BROKEN)
def test_each_way_to_break_the_contract_is_refused(name: str) -> None:
    methods, check, words = BROKEN[name]
    broken = type("Broken", (Honest,), methods)
    with pytest.raises(AssertionError, match=words):
        getattr(checks, CALLED[check])(broken)
    with pytest.raises(AssertionError):
        check_auditor(broken)


def test_the_undisturbed_run_is_played_once_for_all_checks_and_once_against_it() -> None:
    runs: list[Auditor] = []

    class Counted(Honest):
        def report(self) -> Sequence[Finding]:
            runs.append(self)
            return super().report()

    check_auditor(Counted)
    # Undisturbed twice, reply order, hidden fields, remembered views, abandoned round, resumed.
    assert len(runs) == 7


def test_every_check_is_seen_to_fail() -> None:
    assert {CALLED[check] for _, check, _ in BROKEN.values()} == {one.__name__ for one in CHECKS}


def test_the_made_up_run_holds_the_canaries_that_were_ordered() -> None:
    orders = {3: Canary(id=9, seed=1), 4: Canary(id=8, seed=1, included=False)}
    view = checks._view(1, orders)
    assert np.linalg.norm(view.replies[3]) == pytest.approx(1.0)
    assert not view.replies[4].any()
    np.testing.assert_allclose(view.released - view.sent, view.facts.aggregate, atol=1e-12)
