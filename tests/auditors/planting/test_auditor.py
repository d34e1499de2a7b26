"""Planted records in runs: found where clients train on them, and only there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import (
    Audited,
    Claim,
    FromFile,
    PlantedRecords,
    PlantPlan,
    RandomPattern,
    Secrets,
    canary_mod,
    check_auditor,
    plant_mod,
    planted,
)
from leakmeter.auditors.auditor import DivergedError, Project, RoundFacts, RoundView, UnableError
from leakmeter.auditors.finding import Finding, Losses
from leakmeter.auditors.planting.plan import Batch
from leakmeter.auditors.planting.scores import check_completions, check_losses
from leakmeter.auditors.rng import stream
from leakmeter.auditors.verdict.verdict import judge
from leakmeter.fl_app.engines.inline import run_inline
from tests.helpers.numbers import few_or_many, first_fast, most_allowed
from tests.helpers.refusals import refuses

DIM, CLIENTS, ROUNDS = 1000, 8, 4
PATTERNS = RandomPattern((DIM,), 2, low=-1, high=1)
PLAN = PlantPlan(canaries=64, clients=4)


def losses(model: np.ndarray, records: Batch) -> np.ndarray:
    """Return the logistic losses of a linear model."""
    x, y = records
    signs = 2.0 * np.asarray(y) - 1
    return np.asarray(np.logaddexp(0.0, -signs * (np.asarray(x, np.float64) @ model)))


def trained(model: np.ndarray, x: np.ndarray, y: np.ndarray, steps: int = 20) -> np.ndarray:
    """Return a linear model after steps of gradient descent on the mean loss."""
    signs = 2.0 * y - 1
    for _ in range(steps):
        pull = signs / (1 + np.exp(signs * (x @ model)))
        model = model + 0.05 * pull @ x / 10
    return model


def client_app(mods: list[Any], *, takes: bool = True) -> ClientApp:
    """Return clients that have ten records each, and the canaries they are given."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rng = stream(5, "own", int(context.node_config["partition-id"]))
        x, y = rng.uniform(-1, 1, (10, DIM)), rng.integers(2, size=10)
        if takes:
            with planted(message, context) as canaries:
                x, y = canaries.append(x, y)
        [model] = message.content["arrays"].to_numpy_ndarrays()
        content = {
            "arrays": ArrayRecord([trained(model, x, y)]),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def audit(
    mods: list[Any],
    plan: PlantPlan = PLAN,
    *,
    takes: bool = True,
    out: Path | None = None,
    claims: tuple[Claim, ...] = (),
    **options: Any,
) -> Audited:
    """Return a run with planted records after its end."""
    options = {"generator": PATTERNS, "decoys": 1000, "score": losses, **options}
    auditor = PlantedRecords(plan=plan, **options)
    strategy = Audited(FedAvg(fraction_evaluate=0.0), [auditor], out=out, claims=claims)
    return played(strategy, mods, takes=takes)


def played(strategy: Audited, mods: Sequence[Any] = (plant_mod,), *, takes: bool = True) -> Audited:
    """Return a strategy after its run."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        strategy.start(grid, ArrayRecord([np.zeros(DIM)]), num_rounds=ROUNDS)

    run_inline(server, client_app(list(mods), takes=takes), CLIENTS)
    return strategy


def bounds(strategy: Audited) -> list[Finding]:
    """Return the bounds of a run."""
    return [f for f in strategy.audit.findings if f.kind == "lower_bound"]


def test_planted_records_are_found_in_the_models() -> None:
    run = audit([plant_mod], every=1)
    final, every = bounds(run)
    assert (final.threat_model.sees, every.threat_model.sees) == ("final model", "all models")
    assert final.value > 2
    assert every.value > 2
    assert final.cap is not None
    assert final.value <= final.cap < 5
    assert (final.unit, final.adjacency, final.observer) == ("record", "replace", "outsider")
    assert final.sample_sizes["decoys"] == 1000
    assert final.confidence == pytest.approx(0.975)  # two bounds share the run's 5 %
    [drawn] = final.details
    assert isinstance(drawn, Losses)
    assert sum(drawn.included) == PLAN.is_in.sum()
    [warned] = run.warnings
    assert (warned.kind, warned.count) == ("trained-on-canaries", PLAN.is_in.sum())
    assert warned.total == 64
    assert run.verdict.rows[0].low == max(final.value, every.value)


def test_nothing_is_planted_unless_the_owner_lists_the_mod_and_the_app_takes_the_records() -> None:
    plain = audit([canary_mod], takes=False)
    untouched = audit([canary_mod])
    refused = audit([plant_mod], takes=False)
    for run in (plain, untouched, refused):
        [bound] = bounds(run)
        assert bound.value == 0
        [warned] = run.warnings
        assert (warned.kind, warned.count, warned.total) == ("untaken-canaries", 4, 4)


def test_a_claim_about_records_is_refuted_by_planted_ones() -> None:
    false = Claim(1.0, against="outsider", unit="record", adjacency="replace")
    other = Claim(1.0, against="outsider", unit="record", adjacency="add-remove")
    run = audit([plant_mod], claims=(false, other))
    first, second = run.verdict.claims
    assert first.is_refuted
    assert first.claim == false
    assert not second.is_refuted  # another question
    assert second.bound is None


def test_copies_are_compared_with_what_a_claim_allows_a_group() -> None:
    claims = [
        Claim(epsilon, 1e-7, against="outsider", unit="record", adjacency="replace")
        for epsilon in (1.0, 3.0)
    ]
    found = []
    for copies, claim in zip((2, 8), claims, strict=True):
        run = audit([plant_mod], PlantPlan(64, 4, copies=copies), claims=(claim,))
        [bound], [result] = bounds(run), run.verdict.claims
        assert bound.unit == "group"
        found.append((bound, result))
    (few, allowed), (many, beyond) = found
    assert allowed.bound is not None
    assert (allowed.allowed, allowed.is_refuted) == (2.0, few.value > 2)
    assert beyond.bound is None  # 24 at a δ far above that of the bound
    assert few.value < many.value or few.saturated  # more copies show more
    plan = PlantPlan(8, 8, copies=3, whole=True)  # all of one client
    [bound] = bounds(audit([plant_mod], plan))
    assert bound.unit == judge([bound]).rows[0].question.unit == "client"


@pytest.mark.parametrize("runs", few_or_many(5, 200))
def test_without_planting_a_leak_is_claimed_at_most_as_often_as_promised(runs: int) -> None:
    positive = 0
    for seed in range(runs):
        auditor = PlantedRecords(PATTERNS, losses, PlantPlan(64, 4, seed=seed), decoys=300)
        auditor.begin(DIM, 1)
        rng = stream(seed, "no planting")
        model = trained(np.zeros(DIM), rng.uniform(-1, 1, (30, DIM)), rng.integers(2, size=30))
        auditor._first = auditor._last = auditor._losses(np.zeros(DIM))
        auditor._model, auditor._rounds = model, 1
        positive += auditor.report()[0].value > 0
    assert positive <= most_allowed(runs)  # 19 of 200


def texts(model: np.ndarray, records: Batch) -> np.ndarray:
    """Return losses that know nothing of training."""
    return np.array([model[:9].sum() + len(str(text)) for text in records])


@pytest.mark.parametrize("every", first_fast(1, [2, 0, -1]))
def test_the_contract_of_auditors_is_kept(every: int) -> None:
    def made() -> PlantedRecords:
        plan = PlantPlan(20, 4)
        return PlantedRecords(Secrets("{digits:6}"), texts, plan, decoys=100, every=every)

    check_auditor(made)


def test_extraction_is_counted_next_to_texts_that_nobody_trained_on() -> None:
    plan = PlantPlan(40, 4)
    auditor = PlantedRecords(Secrets("a {digits:6}"), texts, plan, decoys=100)
    known = {auditor._canaries[i] for i in np.flatnonzero(plan.is_in)[:7]}
    auditor._extract = lambda _, some: [text in known for text in some]
    auditor.begin(3, 1)
    auditor._first = auditor._last = auditor._losses(np.zeros(3))
    auditor._model, auditor._rounds = np.zeros(3), 1
    [found] = [f for f in auditor.report() if f.quantity == "secrets extracted"]
    assert (found.facts["extracted"], found.facts["control"]) == (7, 0)
    assert found.value == pytest.approx(7 / plan.is_in.sum())


def test_masks_and_small_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    auditor = PlantedRecords(PATTERNS, losses, PLAN)
    with pytest.raises(UnableError, match="masks would not cancel"):
        auditor.limits(Project(DIM, 1, is_masked=True))
    assert (
        PlantedRecords(PATTERNS, losses, PLAN, orders=False).limits(Project(DIM, 1, is_masked=True))
        == ()
    )
    auditor.population = 3
    [said] = auditor.limits(Project(DIM, 1, clients=3))
    assert said.endswith("use PlantPlan(clients=3)")
    (tmp_path / "few.txt").write_text("\n".join(map(str, range(500))))
    with refuses("generator"):
        PlantedRecords(FromFile(tmp_path / "few.txt"), texts, PlantPlan(201, 3))
    assert PlantedRecords(FromFile(tmp_path / "few.txt"), texts, PlantPlan(50, 5)).decoys == 300


def test_an_auditor_that_fails_after_planting_leaves_its_warning_behind() -> None:
    calls: list[int] = []

    def fails_later(model: np.ndarray, records: Batch) -> np.ndarray:
        calls.append(1)
        return losses(model, records) if len(calls) < 6 else np.full(2, 0.0)

    run = audit([plant_mod], score=fails_later, every=1)
    assert not bounds(run)
    assert any("score must return" in said for said in run.audit.failures)
    assert [warned.kind for warned in run.warnings] == ["trained-on-canaries"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"score": lambda *_: np.zeros(3)}, "score must return 64 losses"),
        ({"extract": lambda *_: [True]}, "extract must be None for records that are no texts"),
        ({"generator": FromFile}, "records must be finite"),
    ],
)
def test_what_would_fail_after_planting_fails_before(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    if "generator" in wrong:
        x = np.full((1000, DIM), np.nan, np.float32)
        np.savez(tmp_path / "records.npz", x=x, y=np.zeros(1000, np.int64))
        wrong = {"generator": FromFile(tmp_path / "records.npz"), "score": lambda _, r: r[1] * 1.0}
    run = audit([plant_mod], **wrong)
    [failed] = run.audit.failures
    assert failed.startswith("planted-records, round 1: ")
    assert said in failed
    assert not run.warnings  # no client has failed, and no model has seen a canary


@pytest.mark.parametrize(
    ("losses_of", "said"),
    [
        (np.zeros(3), r"must return 64 losses, .* got shape \(3,\)"),
        (np.full(64, np.nan), "with NaN"),
    ],
)
def test_losses_are_one_number_for_each_record(losses_of: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_losses(losses_of, 64)


@pytest.mark.parametrize("found", [[True], [math.nan] * 12, "yes", None])
def test_extraction_says_of_each_text_whether_it_was_completed(found: Any) -> None:
    with pytest.raises(ValueError, match="extract must return 12 values True or False"):
        check_completions(found, 12)
    assert check_completions([1, 0], 2).tolist() == [True, False]


def test_a_run_has_one_audit_that_plants() -> None:
    class Other(PlantedRecords):
        name = "other-records"

    auditors = [kind(PATTERNS, losses, PLAN, decoys=100) for kind in (PlantedRecords, Other)]
    run = played(Audited(FedAvg(fraction_evaluate=0.0), auditors))
    assert [f.auditor for f in bounds(run)] == ["planted-records"]
    [failed] = run.audit.failures
    assert failed.startswith("other-records, round 1: ")
    assert "planted-records plants records already" in failed


def test_a_first_model_that_diverged_leaves_the_losses_before_it() -> None:
    auditor = PlantedRecords(PATTERNS, losses, PLAN, decoys=100)
    auditor.begin(DIM, 2)
    start, facts = np.zeros(DIM), RoundFacts()
    with pytest.raises(DivergedError):
        auditor.observe(RoundView(1, start, {}, np.full(DIM, np.nan), facts))
    auditor.observe(RoundView(2, np.full(DIM, 9.0), {}, np.ones(DIM), facts))
    assert np.allclose(auditor._first, math.log(2))  # of the model that round 1 has sent


@pytest.mark.parametrize("every_second", [False, True])
def test_rounds_are_those_in_which_a_holder_took_part(every_second: bool) -> None:
    auditor = PlantedRecords(PATTERNS, losses, PLAN, decoys=100)
    auditor.begin(DIM, 4)
    for number in range(1, 5):
        view = RoundView(number, np.zeros(DIM), {}, np.ones(DIM), RoundFacts())
        is_in = number % 2 == 0 or not every_second
        # Nobody counts as absent by saying that it has not taken its records.
        auditor.observe(replace(view, took={0: False, 1: True} if is_in else {}))
    assert auditor.report()[0].threat_model.participations == (2 if every_second else 4)
    told = PlantedRecords(PATTERNS, losses, PlantPlan(64, 4, rounds=1), decoys=100, orders=False)
    told.begin(DIM, 4)
    for number in range(1, 5):
        replies = {3: np.zeros(DIM), 7: np.zeros(DIM)}
        told.observe(RoundView(number, np.zeros(DIM), replies, np.ones(DIM), RoundFacts()))
    assert told.report()[0].threat_model.participations == 1
