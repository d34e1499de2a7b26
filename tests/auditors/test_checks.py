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


class SaysNothing(Auditor):
    pass


class NotAFinding(Honest):
    def report(self) -> Any:
        return [1.0]


class UnderAnotherName(Honest):
    def report(self) -> Sequence[Finding]:
        return [found("somebody", 1.0)]


class SeesNothing(Honest):
    def report(self) -> Sequence[Finding]:
        nothing = ThreatModel(observer="outsider", sees=None)
        return [found(self.name, 1.0, kind="estimate", threat_model=nothing)]


class Falls(Honest):
    """Its bound at all rounds together is smaller at the end."""

    is_anytime = True

    def observe(self, view: RoundView) -> Sequence[Finding]:
        return [together(self.name, 2.0, view.server_round)]

    def report(self) -> Sequence[Finding]:
        return [together(self.name, 1.0)]


class SaysNotThatItIsAnytime(Falls):
    is_anytime = False

    def report(self) -> Sequence[Finding]:
        return [together(self.name, 2.0)]


class NotJson(Honest):
    def report(self) -> Sequence[Finding]:
        return [found(self.name, 1.0, facts={"set": {1, 2}})]


class UntypedDetails(Honest):
    def report(self) -> Sequence[Finding]:
        return [found(self.name, 1.0, details=({"curve": [1, 2]},))]


class ListAsFact(Honest):
    def report(self) -> Sequence[Finding]:
        return [found(self.name, 1.0, facts={"curve": [1.0, 2.0]})]


class Moody(Honest):
    counter = itertools.count()

    def score(self, view: RoundView) -> float:
        return float(next(self.counter))


class FirstComeFirstScored(Honest):
    reads = frozenset({"replies"})

    def score(self, view: RoundView) -> float:
        return float(next(iter(view.replies.values()), np.zeros(1))[0])


class LooksAtTruth(Honest):
    def score(self, view: RoundView) -> float:
        return float(sum(u.sum() for u in view.truth.values()))


class LooksAtReplies(Honest):
    def score(self, view: RoundView) -> float:
        return float(sum(u.sum() for u in view.replies.values()))


class LooksAtFacts(Honest):
    def score(self, view: RoundView) -> float:
        return 0.0 if view.facts.aggregate is None else float(view.facts.aggregate.sum())


class LooksAtReleased(Honest):
    reads = frozenset({"sent"})


class ReadsWhatIsNotThere(Honest):
    reads = frozenset({"sent", "released", "relaesed"})


class WritesIntoTheModel(Honest):
    def score(self, view: RoundView) -> float:
        view.released[0] = 0.0
        return super().score(view)


class WritesIntoTheAggregate(Honest):
    def score(self, view: RoundView) -> float:
        if view.facts.aggregate is not None:
            view.facts.aggregate[:] = 0.0
        return super().score(view)


class TakesReplies(Honest):
    def score(self, view: RoundView) -> float:
        view.replies.clear()  # type: ignore[attr-defined]
        return super().score(view)


class NeedsReplies(Honest):
    def score(self, view: RoundView) -> float:
        return super().score(view) / len(view.replies)


class Forgets(Honest):
    def state(self) -> dict[str, Any]:
        return {"total": 0.0}


class KeepsObjects(Honest):
    def state(self) -> dict[str, Any]:
        return {"total": self.total, "me": self}


class KeepsNumbersAsKeys(Honest):
    def state(self) -> dict[str, Any]:
        return {"total": {1: self.total}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.total = next(iter(state["total"].values()))  # a checkpoint refuses it all the same


class OrdersStrangers(Honest):
    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        return {0: Canary(id=server_round, seed=1)}


BROKEN: list[tuple[type[Auditor], Callable[[checks.Make], None], str]] = [
    (SaysNothing, checks.check_findings_are_complete, "must report at least one finding"),
    (NotAFinding, checks.check_findings_are_complete, "findings must be Finding"),
    (UnderAnotherName, checks.check_findings_are_complete, "auditor must be 'honest'"),
    (SeesNothing, checks.check_findings_are_complete, "sees must say what the attacker sees"),
    (Falls, checks.check_findings_are_complete, "must never fall"),
    (SaysNotThatItIsAnytime, checks.check_findings_are_complete, "is_anytime must be true"),
    (NotJson, checks.check_findings_are_complete, "must survive JSON"),
    (UntypedDetails, checks.check_findings_are_complete, r"length.details\[0\].type must be one"),
    (ListAsFact, checks.check_findings_are_complete, r"length.facts.curve must be a number"),
    (Moody, checks.check_same_seed_same_findings, "equal auditors"),
    (FirstComeFirstScored, checks.check_order_of_replies_is_immaterial, "reply order"),
    (LooksAtTruth, checks.check_only_declared_fields_are_read, r"\['released', 'sent'\] only"),
    (LooksAtReplies, checks.check_only_declared_fields_are_read, "declare further fields"),
    (LooksAtFacts, checks.check_only_declared_fields_are_read, "declare further fields"),
    (LooksAtReleased, checks.check_only_declared_fields_are_read, r"\['sent'\] only"),
    (ReadsWhatIsNotThere, checks.check_only_declared_fields_are_read, r"got \['relaesed'\]"),
    (WritesIntoTheModel, checks.check_what_it_sees_is_left_alone, "view of round 1 was changed"),
    (WritesIntoTheAggregate, checks.check_what_it_sees_is_left_alone, "was changed"),
    (TakesReplies, checks.check_what_it_sees_is_left_alone, "was changed"),
    (NeedsReplies, checks.check_an_abandoned_round_is_survived, "ZeroDivisionError"),
    (Forgets, checks.check_it_resumes, "must be as without"),
    (KeepsObjects, checks.check_it_resumes, "got KeepsObjects"),
    (KeepsNumbersAsKeys, checks.check_it_resumes, r"must be texts, got \[1\]"),
    (OrdersStrangers, checks.check_orders_go_to_the_chosen_only, r"got \[0\]"),
]


def test_an_honest_auditor_passes() -> None:
    check_auditor(Honest)


def test_an_auditor_that_declares_what_it_reads_passes() -> None:
    class Declared(LooksAtFacts):
        reads = frozenset({"facts"})

    check_auditor(Declared)


@pytest.mark.parametrize(("broken", "check", "words"), BROKEN, ids=[b[0].__name__ for b in BROKEN])
def test_each_way_to_break_the_contract_is_refused(
    broken: type[Auditor], check: Callable[[checks.Make], None], words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        check(broken)
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
    assert {check for _, check, _ in BROKEN} == set(CHECKS)


def test_the_made_up_run_holds_the_canaries_that_were_ordered() -> None:
    orders = {3: Canary(id=9, seed=1), 4: Canary(id=8, seed=1, included=False)}
    view = checks._view(1, orders)
    assert np.linalg.norm(view.replies[3]) == pytest.approx(1.0)
    assert not view.replies[4].any()
    np.testing.assert_allclose(view.released - view.sent, view.facts.aggregate, atol=1e-12)
