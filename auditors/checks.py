"""The contract that every auditor keeps, as a public list of checks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from auditors.base import Auditor, Canary, Finding, RoundFacts, RoundView, Vector
from auditors.canary import canary_vector
from auditors.rng import stream

Make = Callable[[], Auditor]
Change = Callable[[RoundView], RoundView]

DIM, ROUNDS, CLIENTS = 128, 6, 12


def check_auditor(make: Make) -> None:
    """Run every check on auditors that `make` returns; raises AssertionError on the first miss.

    `make` must return a new auditor with the same settings at each call, able to work with
    a model of 128 parameters, 12 clients a round and 6 rounds.
    """
    for check in CHECKS:
        check(make)


def check_findings_are_complete(make: Make) -> None:
    """Findings carry the auditor's name, a finite or infinite value, and survive JSON."""
    auditor = make()
    findings = _play(auditor)
    assert findings, f"{auditor.name} must report at least one finding in {ROUNDS} rounds"
    for finding in findings:
        assert isinstance(finding, Finding), f"findings must be Finding, got {type(finding)}"
        assert finding.auditor == auditor.name, f"auditor must be {auditor.name!r}: {finding}"
        assert finding.threat_model, f"threat_model must not be empty: {finding}"
        assert not math.isnan(finding.value), f"value must be a number: {finding}"
        json.dumps(finding.to_json(), allow_nan=False)


def check_same_seed_same_findings(make: Make) -> None:
    """Two auditors with the same settings say the same, to the last bit."""
    assert _play(make()) == _play(make()), "equal auditors must report equal findings"


def check_order_of_replies_is_immaterial(make: Make) -> None:
    """Nothing depends on who answered first."""

    def backwards(view: RoundView) -> RoundView:
        return replace(
            view,
            replies=dict(reversed(list(view.replies.items()))),
            truth=dict(reversed(list(view.truth.items()))),
            instructed=dict(reversed(list(view.instructed.items()))),
        )

    assert _play(make(), backwards) == _play(make()), "findings must not depend on reply order"


def check_only_declared_fields_are_read(make: Make) -> None:
    """Findings do not move when a field that the adversary cannot see changes."""

    def disturb(view: RoundView) -> RoundView:
        reads = make().reads
        rng = stream(7, "disturb", view.server_round)

        def noisy(vectors: Mapping[int, Vector]) -> dict[int, Vector]:
            return {c: v + rng.standard_normal(DIM) for c, v in vectors.items()}

        if "replies" not in reads:
            view = replace(view, replies=noisy(view.replies))
        if "truth" not in reads:
            view = replace(view, truth=noisy(view.truth))
        if "facts" not in reads:
            view = replace(view, facts=RoundFacts(aggregate=rng.standard_normal(DIM)))
        return view

    assert _play(make(), disturb) == _play(make()), (
        f"findings must depend on {sorted(make().reads)} only; "
        "declare further fields in `reads` if the adversary sees them"
    )


def check_what_it_sees_is_left_alone(make: Make) -> None:
    """Views are read-only for the auditor."""

    def frozen(view: RoundView) -> RoundView:
        vectors = [view.sent, view.released, *view.replies.values(), *view.truth.values()]
        for vector in vectors:
            vector.flags.writeable = False
        return replace(view, replies=MappingProxyType(dict(view.replies)))

    _play(make(), frozen)


def check_it_resumes(make: Make) -> None:
    """State taken half way and given to a new auditor leads to the same findings."""
    whole, first, second = make(), make(), make()
    expected = _play(whole)
    half = ROUNDS // 2
    findings = _rounds(first, range(1, half + 1))
    state = first.state()
    second.begin(DIM, ROUNDS)
    second.restore(state)
    findings += _rounds(second, range(half + 1, ROUNDS + 1), begin=False)
    findings += second.report()
    assert findings == expected, "findings after state() and restore() must be as without"


def check_orders_go_to_the_chosen_only(make: Make) -> None:
    """Only clients of the round are told to play, whoever they are."""
    auditor = make()
    auditor.begin(DIM, ROUNDS)
    chosen = list(range(100, 100 + CLIENTS))
    for server_round in range(1, ROUNDS + 1):
        orders = auditor.instruct(server_round, chosen)
        assert set(orders) <= set(chosen), f"orders must be for {chosen}, got {sorted(orders)}"


CHECKS: tuple[Callable[[Make], None], ...] = (
    check_findings_are_complete,
    check_same_seed_same_findings,
    check_order_of_replies_is_immaterial,
    check_only_declared_fields_are_read,
    check_what_it_sees_is_left_alone,
    check_it_resumes,
    check_orders_go_to_the_chosen_only,
)


def _play(auditor: Auditor, change: Change | None = None) -> list[Finding]:
    """Return all findings of a small made-up run."""
    return [*_rounds(auditor, range(1, ROUNDS + 1), change), *auditor.report()]


def _rounds(
    auditor: Auditor, rounds: Sequence[int], change: Change | None = None, *, begin: bool = True
) -> list[Finding]:
    """Show the given rounds of the made-up run to the auditor."""
    if begin:
        auditor.begin(DIM, ROUNDS)
    findings: list[Finding] = []
    for server_round in rounds:
        orders = auditor.instruct(server_round, range(CLIENTS))
        view = _view(server_round, orders)
        findings += auditor.observe(change(view) if change else view)
    return findings


def _view(server_round: int, orders: Mapping[int, Canary]) -> RoundView:
    """Return a round in which every client sends a unit update, canaries as ordered."""
    rng = stream(11, "contract", server_round)
    updates = {c: rng.standard_normal(DIM) / np.sqrt(DIM) for c in range(CLIENTS)}
    for client, order in orders.items():
        updates[client] = canary_vector(order.seed, order.id, DIM) * order.included
    sent = rng.standard_normal(DIM)
    mean = np.mean(list(updates.values()), axis=0)
    return RoundView(
        server_round=server_round,
        sent=sent,
        replies=updates,
        released=sent + mean,
        facts=RoundFacts(aggregate=mean, num_clients=CLIENTS, total_weight=float(CLIENTS)),
        truth={c: u.copy() for c, u in updates.items()},
        instructed=orders,
    )
