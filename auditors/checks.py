"""The contract that every auditor keeps, as a public list of checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from leakmeter.auditors.auditor import Auditor, Canary, RoundFacts, RoundView
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.codec import codec, pack, plain, unpack
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Vector

Make = Callable[[], Auditor]
Change = Callable[[RoundView], RoundView]

DIM, ROUNDS, CLIENTS = 128, 6, 12


def check_auditor(make: Make) -> None:
    """Run every check on auditors that `make` returns; raises AssertionError on the first miss.

    `make` must return a new auditor with the same settings at each call, able to work with
    a model of 128 parameters, 12 clients per round and 6 rounds.
    """
    once = partial(make)  # has a hash of its own, whatever `make` is
    for check in CHECKS:
        check(once)


def check_findings_are_complete(make: Make) -> None:
    """Findings have the auditor's name and typed fields, and survive a report unchanged."""
    (auditor, findings), as_read = _undisturbed(make), codec(Finding)
    assert findings, f"{auditor.name} must report at least one finding in {ROUNDS} rounds"
    for finding in findings:
        assert isinstance(finding, Finding), f"findings must be Finding, got {type(finding)}"
        assert finding.auditor == auditor.name, f"auditor must be {auditor.name!r}: {finding}"
        model = finding.threat_model
        assert model.sees is not None or finding.kind == "diagnostic", (
            f"threat_model.sees must say what the attacker sees: {finding}"
        )
        try:
            written = json.loads(json.dumps(finding.to_json(), allow_nan=False))
            read = as_read.read(written, finding.quantity)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"findings must survive JSON: {error}") from error
        assert read.to_json() == written, f"findings must survive JSON unchanged: {finding}"
    together = [finding.value for finding in findings if finding.is_anytime]
    assert together == sorted(together), (
        f"bounds that hold at all rounds together must never fall, got {together}"
    )
    assert auditor.is_anytime or not together, (
        "is_anytime must be true for an auditor whose bounds hold at all rounds together"
    )


def check_same_seed_same_findings(make: Make) -> None:
    """Two auditors with the same settings report the same, to the last bit."""
    _check_same(make, "equal auditors must report equal findings")


def check_order_of_replies_is_immaterial(make: Make) -> None:
    """Nothing depends on who answered first."""

    def backwards(view: RoundView) -> RoundView:
        return replace(
            view,
            replies=dict(reversed(list(view.replies.items()))),
            truth=dict(reversed(list(view.truth.items()))),
            instructed=dict(reversed(list(view.instructed.items()))),
        )

    _check_same(make, "findings must not depend on reply order", backwards)


def check_only_declared_fields_are_read(make: Make) -> None:
    """Findings do not change when a field changes that the adversary cannot see."""
    reads = make().reads
    known = {f.name for f in fields(RoundView)}
    assert reads <= known, f"reads must name fields of RoundView, got {sorted(reads - known)}"

    def disturb(view: RoundView) -> RoundView:
        rng = stream(7, "disturb", view.server_round)

        def noisy(vectors: Mapping[int, Vector]) -> dict[int, Vector]:
            return {c: v + rng.standard_normal(DIM) for c, v in vectors.items()}

        others: dict[str, Any] = {
            "sent": view.sent + rng.standard_normal(DIM),
            "released": view.released + rng.standard_normal(DIM),
            "replies": noisy(view.replies),
            "truth": noisy(view.truth),
            "facts": RoundFacts(aggregate=rng.standard_normal(DIM)),
        }
        return replace(view, **{k: v for k, v in others.items() if k not in reads})

    words = (
        f"findings must depend on {sorted(reads)} only; "
        "declare further fields in `reads` if the adversary sees them"
    )
    _check_same(make, words, disturb)


def check_what_it_sees_is_left_alone(make: Make) -> None:
    """An auditor changes nothing in the views that it is shown."""
    seen: list[tuple[RoundView, Any]] = []

    def remember(view: RoundView) -> RoundView:
        seen.append((view, plain(asdict(view))))
        return view

    _play(make(), remember)
    for view, before in seen:
        assert plain(asdict(view)) == before, f"the view of round {view.server_round} was changed"


def check_an_abandoned_round_is_survived(make: Make) -> None:
    """A round without answers and without a release does not make the auditor fail."""

    def abandon(view: RoundView) -> RoundView:
        if view.server_round != 2:
            return view
        facts = RoundFacts(abandoned="nobody answered")
        return RoundView(view.server_round, view.sent, {}, view.sent, facts)

    try:
        _play(make(), abandon)
    except Exception as error:
        raise AssertionError(f"an abandoned round must be survived, got {error!r}") from error


def check_it_resumes(make: Make) -> None:
    """A state saved halfway and restored in a new auditor leads to the same findings."""
    first, second = make(), make()
    half = ROUNDS // 2
    findings = _rounds(first, range(1, half + 1))
    state = _stored(first.state())
    second.begin(DIM, ROUNDS)
    second.restore(state)
    findings += _rounds(second, range(half + 1, ROUNDS + 1), begin=False)
    findings += second.report()
    assert _said(findings) == _said(_undisturbed(make)[1]), (
        "findings after state() and restore() must be as without"
    )


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
    check_an_abandoned_round_is_survived,
    check_it_resumes,
    check_orders_go_to_the_chosen_only,
)


@lru_cache(maxsize=1)  # four checks compare with it, and one plays another run against it
def _undisturbed(make: Make) -> tuple[Auditor, list[Finding]]:
    """Return an auditor after a small synthetic run, and what it found."""
    auditor = make()
    return auditor, _play(auditor)


def _check_same(make: Make, words: str, change: Change | None = None) -> None:
    """Raise unless another run, perhaps with changed views, has the same findings."""
    assert _said(_play(make(), change)) == _said(_undisturbed(make)[1]), words


def _said(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings in JSON types."""
    return [finding.to_json() for finding in findings]


def _play(auditor: Auditor, change: Change | None = None) -> list[Finding]:
    """Return all findings of a small synthetic run."""
    return [*_rounds(auditor, range(1, ROUNDS + 1), change), *auditor.report()]


def _rounds(
    auditor: Auditor, rounds: Sequence[int], change: Change | None = None, *, begin: bool = True
) -> list[Finding]:
    """Show the given rounds of the synthetic run to the auditor."""
    if begin:
        auditor.begin(DIM, ROUNDS)
    findings: list[Finding] = []
    for server_round in rounds:
        orders = auditor.instruct(server_round, range(CLIENTS))
        view = _view(server_round, orders)
        findings += auditor.observe(change(view) if change else view)
    return findings


def _stored(state: Any) -> Any:
    """Return a state as a checkpoint gives it back: tuples as lists."""
    try:
        return unpack(pack(state))
    except TypeError as error:
        raise AssertionError(f"a checkpoint must be able to keep the state: {error}") from error


def _view(server_round: int, orders: Mapping[int, Canary]) -> RoundView:
    """Return a round in which every client sends a unit update, canaries as ordered."""
    rng = stream(11, "contract", server_round)
    updates = {c: rng.standard_normal(DIM) / np.sqrt(DIM) for c in range(CLIENTS)}
    for client, order in orders.items():
        updates[client] = canary_vector(order.seed, order.id, DIM, order.kind) * order.included
    sent = rng.standard_normal(DIM)
    mean = np.mean(list(updates.values()), axis=0)
    return RoundView(
        server_round=server_round,
        sent=sent,
        replies=updates,
        released=sent + mean,
        facts=RoundFacts(aggregate=mean, num_clients=CLIENTS, total_weight=float(CLIENTS)),
        truth={c: u.copy() for c, u in updates.items()},
        truth_weights=dict.fromkeys(updates, 1.0),
        instructed=orders,
    )
