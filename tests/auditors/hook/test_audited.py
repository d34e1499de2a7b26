"""The hook: training goes on as without it, and the auditors see what happened."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from leakmeter.auditors import (
    Audited,
    Auditor,
    Finding,
    OneShotCanaries,
    RoundView,
    SingleUpdates,
    ThreatModel,
    canary_mod,
    tap_mod,
)
from leakmeter.auditors.auditor import Canary, RoundMessages
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.codec import pack, unpack
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.wrapper import chain
from leakmeter.auditors.verdict.lines import Ending, steps, summary
from leakmeter.clients import MaskMod
from leakmeter.strategies import Central, Chosen, Masked, Noised
from leakmeter.strategies.chosen import FixedSize
from leakmeter.strategies.protection.mechanism import FixedClip
from tests.helpers.strategies import OwnLoop, Through

NO_EVALUATION = {"fraction_evaluate": 0.0}


def chosen(strategy: Strategy | None = None, size: int = 6) -> Chosen:
    inner = FedAvg(**NO_EVALUATION) if strategy is None else strategy
    return Chosen(inner, FixedSize(size), num_clients=6, seed=1)


class Spy(Auditor):
    """Keeps every view and says how far the model moved."""

    name = "spy"

    def __init__(self, name: str = "spy", *, seats: int = 0, wants_truth: bool = False) -> None:
        self.name, self.seats, self.wants_truth = name, seats, wants_truth
        self.views: list[RoundView] = []
        self.chosen: list[list[int]] = []
        self.begun: list[tuple[int, int]] = []

    def begin(self, dim: int, num_rounds: int) -> None:
        self.begun.append((dim, num_rounds))

    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        self.chosen.append(list(chosen))
        return {c: Canary(id=c, seed=len(self.name)) for c in chosen[: self.seats]}

    def observe(self, view: RoundView) -> Sequence[Finding]:
        self.views.append(view)
        moved = float(np.linalg.norm(view.released - view.sent))
        return [self.found(moved, view.server_round)]

    def report(self) -> Sequence[Finding]:
        return [self.found(float(len(self.views)), None)]

    def state(self) -> dict[str, Any]:
        return {"count": len(self.views)}

    def found(self, value: float, server_round: int | None) -> Finding:
        return Finding(
            value=value,
            kind="diagnostic",
            rule="length",
            auditor=self.name,
            quantity="moved",
            threat_model=ThreatModel(observer="outsider", sees="all models"),
            server_round=server_round,
        )


class Silent(Auditor):
    name = "silent"


def same(a: ArrayRecord, b: ArrayRecord) -> bool:
    assert set(a) == {"w", "n", "b"}
    return list(a) == list(b) and all(np.array_equal(a[k].numpy(), b[k].numpy()) for k in a)


# Training goes on as without the hook.


def test_the_whole_chain_trains_like_plain_fedavg(federation: Any) -> None:
    fed = federation()
    plain = chosen().start(fed.grid, fed.arrays(), 3)
    audited = Audited(Through(chosen()), [Silent()], sends="models").start(
        fed.grid, fed.arrays(), 3
    )
    assert same(plain.arrays, audited.arrays)
    assert plain.train_metrics_clientapp == audited.train_metrics_clientapp
    masking = federation(mods=[MaskMod(allow_tap=True, seed=0), tap_mod, canary_mod])
    whole = Audited(Masked(Through(chosen())), [Silent()], sends="models")
    layout = Layout.of(fed.arrays())
    np.testing.assert_allclose(  # a secure sum is the mean up to its rounding
        layout.flatten(whole.start(masking.grid, fed.arrays(), 3).arrays),
        layout.flatten(plain.arrays),
        atol=1e-5,
    )
    # Flower's own sampling sums in another order.
    flower = FedAvg(**NO_EVALUATION).start(fed.grid, fed.arrays(), 3)
    np.testing.assert_allclose(
        layout.flatten(audited.arrays), layout.flatten(flower.arrays), atol=1e-5
    )


def test_it_works_around_flowers_own_privacy_wrapper(federation: Any) -> None:
    fed = federation()
    arrays = fed.arrays()
    del arrays["n"]  # that wrapper cannot noise integers
    spy = Spy()
    inner = DifferentialPrivacyServerSideFixedClipping(
        chosen(), noise_multiplier=0.0, clipping_norm=0.5, num_sampled_clients=6
    )
    Audited(inner, [spy], sends="models").start(fed.grid, arrays, 2)
    moved = [np.linalg.norm(view.released - view.sent) for view in spy.views]
    assert len(moved) == 2
    assert max(moved) <= 0.5 + 1e-6
    # The view shows what crossed the wire, before the server clipped it.
    assert min(np.linalg.norm(u) for u in spy.views[0].replies.values()) > 0.5


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_loop_of_its_own_is_kept_however_deep(federation: Any, depth: int) -> None:
    fed, spy = federation(), Spy()
    strategy: Strategy = OwnLoop()
    for _ in range(depth):
        strategy = Through(strategy)
    audited = Audited(strategy, [spy], sends="models", metrics=True)
    result = audited.start(fed.grid, fed.arrays(), 4, extra="known to its start")
    assert [view.server_round for view in spy.views] == [1, 2, 3, 4]
    inner = list(chain(audited.strategy))[-1]
    assert "extra" in inner.options  # type: ignore[attr-defined]
    # The audit of a strategy with its own loop looks on from the grid, and changes no metrics.
    assert ("spy.moved" in result.train_metrics_clientapp[4]) == (depth > 0)


def test_a_strategy_inside_keeps_its_attributes_to_itself() -> None:
    audited = Audited(OwnLoop(), [], sends="models")
    assert audited.strategy.favourite == "blue"
    with pytest.raises(AttributeError, match="'Audited' object has no attribute 'favourite'"):
        _ = audited.favourite


class Broken(FedAvg):
    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if server_round == 2:
            raise RuntimeError("no sum today")
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("strategy", [FedAvg, Broken])
def test_hooks_are_taken_away_also_after_an_exception(federation: Any, strategy: Any) -> None:
    fed = federation()
    audited = Audited(Through(Through(strategy(**NO_EVALUATION))), [Spy()], sends="models")
    inside = list(chain(audited.strategy))
    before = [set(vars(held)) for held in inside]
    if strategy is Broken:
        with pytest.raises(RuntimeError, match="no sum today"):
            audited.start(fed.grid, fed.arrays(), 2)
    else:
        audited.start(fed.grid, fed.arrays(), 2)
    assert [set(vars(held)) for held in inside] == before


def test_a_broken_start_leaves_no_line_for_the_next_one(federation: Any) -> None:
    fed, lines = federation(), []

    def evaluate(server_round: int, _: ArrayRecord) -> None:
        if server_round == 2:
            raise RuntimeError("no evaluation today")

    audited = Audited(chosen(), [], sends="models")
    audited.on_round = lambda line, _: lines.append(line.server_round)
    with pytest.raises(RuntimeError, match="no evaluation today"):
        audited.start(fed.grid, fed.arrays(), 3, evaluate_fn=evaluate)
    assert lines == [1]
    audited.start(fed.grid, fed.arrays(), 1)
    assert lines == [1, 1]


@pytest.mark.parametrize(
    "around",
    [
        Masked,
        lambda s: Noised(s, noise=Central(1.0), clipping=FixedClip(1.0)),
        Through,
        chosen,
        lambda s: DifferentialPrivacyServerSideFixedClipping(s, 1.0, 1.0, 6),
        lambda s: Audited(s, [], sends="models"),
    ],
)
def test_inside_another_wrapper_it_refuses_to_run(federation: Any, around: Any) -> None:
    fed = federation()
    strategy = around(Audited(FedAvg(**NO_EVALUATION), [Spy()], sends="models"))
    with pytest.raises(RuntimeError, match="Audited must be outermost"):
        strategy.start(fed.grid, fed.arrays(), 1)
    assert not [kind for kind, *_ in fed.seen if kind == "train"]  # before anybody trained


# What the auditors see.


def test_views_show_model_replies_and_mean(federation: Any) -> None:
    fed, spy = federation(), Spy()
    Audited(Through(chosen(size=4)), [spy], sends="models").start(fed.grid, fed.arrays(), 2)
    layout = Layout.of(fed.arrays())
    assert spy.begun == [(132, 2)]
    first, second = spy.views
    assert np.array_equal(first.sent, layout.flatten(fed.arrays()))
    assert np.array_equal(second.sent, first.released)
    assert list(first.replies) == FixedSize(4).cohort(1, 1, 6) == spy.chosen[0]
    for client, update in first.replies.items():
        trained = fed.trained(client, fed.arrays())
        model = np.concatenate([trained["w"].ravel(), trained["b"]])
        assert np.array_equal(update, model - first.sent)
    weights = {c: 10.0 * (c + 1) for c in first.replies}
    mean = sum(w * first.replies[c] for c, w in weights.items()) / sum(weights.values())
    np.testing.assert_allclose(first.facts.aggregate, mean, atol=1e-12)
    np.testing.assert_allclose(first.released - first.sent, mean, atol=1e-6)
    assert (first.facts.num_clients, first.facts.total_weight) == (4, sum(weights.values()))
    assert first.facts.abandoned is None


def test_the_mean_is_weighted_as_the_strategy_weights(federation: Any) -> None:
    fed, spy = federation(weight_key="share"), Spy()
    inner = FedAvg(weighted_by_key="share", **NO_EVALUATION)
    Audited(Through(chosen(inner)), [spy], sends="models").start(fed.grid, fed.arrays(), 1)
    (view,) = spy.views
    assert view.facts.total_weight == sum(10 * (c + 1) for c in range(6))
    np.testing.assert_allclose(view.released - view.sent, view.facts.aggregate, atol=1e-6)


def test_without_chosen_clients_are_numbered_by_node(federation: Any) -> None:
    fed, spy = federation(), Spy()
    Audited(FedAvg(**NO_EVALUATION), [spy], sends="models").start(fed.grid, fed.arrays(), 1)
    assert list(spy.views[0].replies) == list(range(6))


def test_plain_updates_are_collected_where_an_auditor_wants_them(federation: Any) -> None:
    fed, spy = federation(), Spy(wants_truth=True)
    Audited(Through(chosen(size=4)), [spy], sends="models").start(fed.grid, fed.arrays(), 2)
    for view in spy.views:
        assert list(view.truth) == list(view.replies)
        for client in view.truth:
            assert np.array_equal(view.truth[client], view.replies[client])


def test_nothing_is_collected_where_nobody_wants_it(federation: Any) -> None:
    fed, spy = federation(), Spy()
    Audited(chosen(), [spy], sends="models").start(fed.grid, fed.arrays(), 1)
    assert spy.views[0].truth == {}
    assert len(fed.seen) == 6


def test_a_canary_reaches_the_sum_along_the_auditors_own_vector(federation: Any) -> None:
    fed, spy = federation(), Spy(seats=2)
    Audited(Through(chosen()), [spy], sends="models").start(fed.grid, fed.arrays(), 3)
    # From round 2 on FedAvg's counter is a float; the canary must not shift because of it.
    for view in spy.views:
        assert sorted(view.instructed) == [0, 1]
        for client, order in view.instructed.items():
            update = view.replies[client]
            cosine = update @ canary_vector(order.seed, order.id, 132) / np.linalg.norm(update)
            assert cosine == pytest.approx(1.0, abs=1e-5)


def test_two_auditors_never_get_the_same_seat(federation: Any) -> None:
    fed, one, two = federation(), Spy("one", seats=2), Spy("another", seats=3)
    Audited(chosen(size=6), [one, two], sends="models").start(fed.grid, fed.arrays(), 2)
    for view, free in zip(one.views, two.chosen, strict=True):
        seats = {c: order.seed for c, order in view.instructed.items()}
        assert seats == {0: 3, 1: 3, 2: 7, 3: 7, 4: 7}  # the spies' seeds
        assert free == [2, 3, 4, 5]


# Faults.


def test_an_auditor_that_cannot_begin_is_an_error_before_anything_is_sent(federation: Any) -> None:
    fed = federation()
    audited = Audited(chosen(), [OneShotCanaries(seats=1, canaries=50)], sends="models")
    with pytest.raises(ValueError, match="canaries x repetitions must be at most"):
        audited.start(fed.grid, fed.arrays(), 3)
    assert not fed.seen


def test_clients_that_fail_are_missing_from_the_view(federation: Any) -> None:
    fed = federation(fails=lambda server_round, client: client == 0 and server_round == 2)
    spy = Spy(seats=2, wants_truth=True)
    Audited(chosen(), [spy], sends="models").start(fed.grid, fed.arrays(), 3)
    assert [next(iter(view.replies)) for view in spy.views] == [0, 1, 0]
    assert [sorted(view.instructed) for view in spy.views] == [[0, 1], [1], [0, 1]]
    assert [len(view.truth) for view in spy.views] == [6, 5, 6]
    assert [view.facts.num_clients for view in spy.views] == [6, 5, 6]


def test_a_round_in_which_all_fail_releases_nothing(federation: Any, tmp_path: Path) -> None:
    fed = federation(fails=lambda server_round, _: server_round == 2)
    spy, models = Spy(seats=1), []
    audited = Audited(
        chosen(),
        [spy, OneShotCanaries(seats=2)],
        out=tmp_path,
        sends="models",
    )
    audited.on_round = lambda _, model: models.append(model)
    result = audited.start(fed.grid, fed.arrays(), 3)
    empty = spy.views[1]
    assert np.array_equal(empty.released, empty.sent)
    assert (len(empty.replies), dict(empty.instructed)) == (0, {})
    assert empty.facts.aggregate is None
    assert empty.facts.abandoned == "the strategy released no model"
    assert same(models[1], models[0])
    assert same(models[2], result.arrays)
    assert not audited.failures
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["num_clients"] for line in lines] == [6, 0, 6]


# What is written and counted.


def test_findings_appear_in_flowers_result_beside_the_clients_metrics(federation: Any) -> None:
    fed, spy = federation(), Spy()
    audited = Audited(chosen(), [spy], sends="models", metrics=True)
    result = audited.start(fed.grid, fed.arrays(), 2)
    plain = chosen().start(fed.grid, fed.arrays(), 2)
    for server_round, view in enumerate(spy.views, start=1):
        metrics = dict(result.train_metrics_clientapp[server_round])
        assert metrics.pop("spy.moved") == np.linalg.norm(view.released - view.sent)
        assert metrics == dict(plain.train_metrics_clientapp[server_round])
    # The last one is that the server sees every update here.
    assert [f.server_round for f in audited.findings()] == [1, 2, None, None]


def test_metrics_of_all_evaluations_are_noted_in_the_line_of_their_round(
    federation: Any, tmp_path: Path
) -> None:
    fed = federation()

    def evaluate(server_round: int, _: ArrayRecord) -> MetricRecord | None:
        return None if server_round == 3 else MetricRecord({"loss": float(server_round)})

    audited = Audited(chosen(FedAvg()), [], out=tmp_path, sends="models")
    result = audited.start(fed.grid, fed.arrays(), 3, evaluate_fn=evaluate)
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2]
    rounds = json.loads((tmp_path / "report.json").read_text())["rounds"]
    accuracy = sum(10 * (c + 1) * c / 100 for c in range(6)) / 210  # what the clients measured
    for line in rounds:
        assert line["accuracy"] == pytest.approx(accuracy)
        assert line["metrics"]["train-loss"] == pytest.approx(100 * accuracy)
    assert [line["metrics"].get("loss") for line in rounds] == [1.0, 2.0, None]


def test_rounds_of_an_interrupted_run_are_counted_on_everywhere(federation: Any) -> None:
    fed, spy, evaluated, lines = federation(), Spy(), [], []
    audited = Audited(
        chosen(FedAvg(), size=3),
        [spy],
        rounds_done=4,
        sends="models",
    )
    audited.on_round = lambda line, _: lines.append(line)
    audited.start(
        fed.grid, fed.arrays(), num_rounds=6, evaluate_fn=lambda r, _: evaluated.append(r)
    )
    assert spy.begun == [(132, 6)]
    assert [view.server_round for view in spy.views] == [5, 6]
    assert [line.server_round for line in lines] == [5, 6]
    assert evaluated == [4, 5, 6]
    told = {kind: sorted({r for k, r, _ in fed.seen if k == kind}) for kind, *_ in fed.seen}
    assert told == {"train": [5, 6], "evaluate": [5, 6]}
    # The cohorts are those of rounds 5 and 6, not of 1 and 2.
    trained = sorted((r, c) for kind, r, c in fed.seen if kind == "train")
    assert trained == [(r, c) for r in (5, 6) for c in FixedSize(3).cohort(1, r, 6)]


def test_a_finished_run_only_reports_again(federation: Any) -> None:
    fed, spy = federation(), Spy()
    Audited(chosen(), [spy], rounds_done=3, sends="models").start(
        fed.grid, fed.arrays(), num_rounds=3
    )
    assert spy.views == []
    assert not fed.seen


class Failing(Spy):
    """Raises in round 2."""

    def observe(self, view: RoundView) -> Sequence[Finding]:
        if view.server_round == 2:
            raise ZeroDivisionError("no denominator")
        return super().observe(view)


@pytest.mark.parametrize(
    ("sends", "make", "has_folder"),
    [
        ("models", lambda: [OneShotCanaries(seats=3, seed=4), Failing("failing")], False),
        ("auto", lambda: [OneShotCanaries(seats=3, seed=4)], False),
        ("models", lambda: [SingleUpdates(seats=3, repetitions=2)], False),
        ("models", lambda: [SingleUpdates(), OneShotCanaries(repetitions=2)], True),
    ],
    ids=["with a failed one", "kind not known", "single updates", "two, in a folder"],
)
def test_a_resumed_audit_finds_the_same_as_one_without_a_break(
    federation: Any, tmp_path: Path, sends: Any, make: Any, has_folder: bool
) -> None:
    saved: dict[int, Any] = {}

    def audited(name: str, done: int = 0) -> Audited:
        out = tmp_path / name if has_folder else None
        return Audited(chosen(), make(), out=out, rounds_done=done, sends=sends)

    def keep(line: Any, model: ArrayRecord) -> None:
        saved[line.server_round] = pack(first.state()), ArrayRecord(dict(model))
        if line.server_round == 4:  # a round beyond the checkpoint
            raise KeyboardInterrupt

    fed, whole, first = federation(), audited("whole"), audited("part")
    whole.start(fed.grid, fed.arrays(), 5)
    first.on_round = keep
    with pytest.raises(KeyboardInterrupt):
        first.start(fed.grid, fed.arrays(), 5)
    state, model = saved[3]
    second = audited("part", done=3)
    second.restore(unpack(state))
    second.start(fed.grid, model, 5)
    assert [f.server_round for f in second.findings()].count(None) > 1
    assert whole.findings()[-len(second.findings()) :] == second.findings()
    assert "failing" not in [auditor.name for auditor in second.auditors]  # it had failed before
    assert second.failures == whole.failures
    assert second.limitations == whole.limitations


def test_the_log_ends_with_the_verdict_and_where_the_report_is(
    federation: Any, tmp_path: Path, caplog: Any
) -> None:
    fed = federation()
    audited = Audited(chosen(), [OneShotCanaries(seats=3)], out=tmp_path / "run", name="night")
    with caplog.at_level("INFO", "flwr"):
        audited.start(fed.grid, fed.arrays(), 4)
    lines = [record.getMessage() for record in caplog.records]
    verdict = next(i for i, line in enumerate(lines) if line.startswith("VERDICT "))
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    cohorts = [line["num_clients"] for line in report["rounds"]]
    said = Ending(steps(audited.verdict, cohorts, parameters=report["parameters"]))
    assert lines[verdict:-3] == summary(audited.verdict, audited.failures, said)
    assert lines[-3].startswith("Audit written to ")
    assert lines[-2] == f"page: leakmeter report {tmp_path / 'run'}"
    assert json.loads((tmp_path / "run" / "report.json").read_text())["name"] == "night"
    caplog.clear()
    audited.logs_verdict = False
    audited.start(fed.grid, fed.arrays(), 4)  # a second run goes to a folder of its own
    assert "VERDICT " not in caplog.text
    second = json.loads((tmp_path / "run-2" / "report.json").read_text())
    assert len(second["findings"]) == len(audited.findings())  # none of the first run
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 4


def test_a_loop_that_hands_on_something_else_than_messages_is_not_audited(federation: Any) -> None:
    class Pairs(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return super().aggregate_train(server_round, [reply for _, reply in replies])

        def start(self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3) -> Any:
            arrays, config = initial_arrays, ConfigRecord()
            for current in range(1, num_rounds + 1):
                messages = list(self.configure_train(current, arrays, config, grid))
                replies = grid.send_and_receive(messages)
                arrays, _ = self.aggregate_train(current, [(0, reply) for reply in replies])
            return arrays

    fed = federation()
    audited = Audited(Pairs(**NO_EVALUATION), [Spy()])
    plain = Pairs(**NO_EVALUATION).start(fed.grid, fed.arrays(), 2)
    arrays = audited.start(fed.grid, fed.arrays(), 2)
    for name, array in plain.items():
        np.testing.assert_allclose(arrays[name].numpy(), array.numpy(), atol=1e-6)


@pytest.mark.parametrize("strategy", [FedAvg, None, "FedAvg"])
def test_what_is_no_strategy_is_refused_in_words(strategy: Any) -> None:
    with pytest.raises(TypeError, match=r"strategy must be a Flower strategy, got .*; for example"):
        Audited(strategy, [])


@pytest.mark.parametrize(
    "auditors",
    [OneShotCanaries(seats=1), [OneShotCanaries], ["one-shot"], "one-shot", None, {"one-shot": 1}],
)
def test_what_is_no_list_of_auditors_is_refused_in_words(auditors: Any) -> None:
    with pytest.raises(TypeError, match=r"auditors must be a list of Auditor objects, got .*; for"):
        Audited(FedAvg(), auditors)


def test_a_name_in_place_of_a_list_is_quoted_whole() -> None:
    with pytest.raises(TypeError, match="got 'one-shot'; for"):
        Audited(FedAvg(), "one-shot")  # type: ignore[arg-type]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"different names, got \['spy', 'spy'\]"):
        Audited(FedAvg(), [Spy(), Spy()], sends="models")
    with pytest.raises(ValueError, match="rounds_done must be at least 0, got -1"):
        Audited(FedAvg(), [], rounds_done=-1, sends="models")


def test_every_auditor_is_shown_the_messages_of_a_round_before_they_are_sent(
    federation: Any,
) -> None:
    bound: list[RoundMessages] = []

    class Binding(Spy):
        def bind(self, messages: RoundMessages) -> None:
            bound.append(messages)
            if len(bound) == 2:
                raise RuntimeError("not this one")

    fed, spy = federation(), Binding()
    audited = Audited(FedAvg(**NO_EVALUATION), [spy], sends="models")
    audited.start(fed.grid, fed.arrays(), 3)
    assert sorted(bound[0].by_client) == list(range(6))
    assert np.array_equal(bound[0].sent, spy.views[0].sent)
    assert bound[0].weight_key == "num-examples"
    assert len(bound) == 2  # left out after its failure; the training went on
    assert list(audited.failures) == ["spy, round 2: RuntimeError: not this one"]
