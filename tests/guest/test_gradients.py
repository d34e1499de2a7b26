"""Clients that send gradients or differences: canaries travel as those do, and bend nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg

from leakmeter.auditors import Audited, Finding, RoundView, SingleUpdates
from leakmeter.auditors.hook.canary_order import ReplyKind
from tests.guest.clients import Clients, Differences, Failing, Gradients
from tests.guest.harness import (
    NODES,
    Cell,
    Quiet,
    Run,
    assert_unharmed,
    canaries,
    cells,
    explained,
    run_audited,
    run_plain,
    was_seen,
)
from tests.guest.model import MODELS, RATE, Model, targets
from tests.guest.strategies import ADDS, DESCENDS, PLAIN, Make, applying

ROUNDS = 9
FEDAVG = PLAIN["FedAvg"]
SENDERS: dict[str, tuple[type[Clients], Make]] = {
    "gradients": (Gradients, DESCENDS),
    "differences": (Differences, ADDS),
}
OTHERS: dict[str, tuple[type[Clients], Make]] = {
    "gradients, median": (Gradients, applying(FedMedian, -RATE)),
    "gradients, trimmed": (Gradients, applying(FedTrimmedAvg, -RATE)),
    "differences, median": (Differences, applying(FedMedian)),
    "differences, trimmed": (Differences, applying(FedTrimmedAvg)),
}


def optimum(model: Model, clients: Clients) -> dict[str, Any]:
    """Return the model at which the trainings of all clients cancel."""
    weights = np.array([clients.weight(c) for c in range(NODES)], dtype=float)
    goals = [targets(dict(model.start), client) for client in range(NODES)]
    return {
        name: np.average([goal[name] for goal in goals], axis=0, weights=weights)
        for name in model.names
    }


def distance(run: Run) -> float:
    """Return how far a model is from the optimum."""
    best = optimum(MODELS["floats"](), Clients())
    gaps = [run.result.arrays[name].numpy() - best[name] for name in best]
    return float(np.sqrt(sum(float((gap**2).sum()) for gap in gaps)))


def bound(audited: Audited) -> float:
    """Return the largest ε that canaries have shown."""
    return max(f.value for f in audited.findings() if f.kind == "lower_bound")


@pytest.mark.parametrize("sends", cells(["auto", "differences"], fast=("auto",)))
@pytest.mark.parametrize("name", SENDERS)
def test_canaries_are_seen_and_the_model_stays_near_the_optimum(name: str, sends: str) -> None:
    clients, strategy = SENDERS[name]
    cell = Cell(strategy, clients, rounds=ROUNDS)
    run, audited = run_audited(cell, [canaries(seats=1)], sends=sends)
    assert_unharmed(cell, run)
    assert audited.failures == []
    assert was_seen(run, audited)
    assert bound(audited) > 0
    assert distance(run_plain(cell)) == pytest.approx(distance(run_plain(MODEL_SENDERS)), rel=1e-3)
    assert distance(run) < 1.5 * distance_of_model_senders() + 0.2


MODEL_SENDERS = Cell(FEDAVG, rounds=ROUNDS)  # the same training in other words


@cache
def distance_of_model_senders() -> float:
    """Return how far canaries move the model where clients send models."""
    run, _ = run_audited(MODEL_SENDERS, [canaries(seats=1)], sends="models")
    return distance(run)


def test_single_updates_show_the_same_in_models_and_differences() -> None:
    shown = []
    for cell, sends in ((Cell(FEDAVG), "models"), (Cell(ADDS, Differences), "differences")):
        auditor = SingleUpdates(seats=2, seed=14)
        _, audited = run_audited(cell, [auditor], sends=sends)
        shown.append((bound(audited), auditor._cosines))
    assert shown[0][0] == shown[1][0] > 0
    np.testing.assert_allclose(shown[0][1], shown[1][1], rtol=1e-5)


@pytest.mark.parametrize("name", cells(OTHERS, fast=["gradients, median"]))
def test_other_aggregates_of_differences_are_audited(name: str) -> None:
    clients, strategy = OTHERS[name]
    cell = Cell(strategy, clients)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert was_seen(run, audited)


def first_swap(cell: Cell) -> tuple[int, str]:
    """Return the first round with a canary in a reply, and what is said of canaries."""
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert audited.failures == []
    return min(server_round for server_round, _ in run.trace.swapped), explained(audited)


@pytest.mark.parametrize(
    ("clients", "strategy"), [(Clients, FEDAVG), SENDERS["differences"]], ids=["models", "changes"]
)
def test_seats_tell_models_from_differences_and_play_in_round_1(
    clients: type[Clients], strategy: Make
) -> None:
    assert first_swap(Cell(strategy, clients)) == (1, "")


def test_seats_that_cannot_tell_stay_honest_and_say_so() -> None:
    # These gradients are longer than the model, and all of the model is in them.
    clients, strategy = SENDERS["gradients"]
    first, words = first_swap(Cell(strategy, clients))
    assert first == 2  # the honest replies of round 1 have decided
    assert "a seat could not tell whether its client app replies with a model" in words
    assert "sends=" not in words  # leakmeter audit has no code to set it in


class Decaying(Gradients):
    """Sends gradients of little more than the squared length of the model."""

    def send(self, before: Any, after: Any) -> Any:
        return before + 0.02 * super().send(before, after)


def test_seats_that_take_gradients_for_models_are_corrected_and_said_to_have() -> None:
    cell = Cell(DESCENDS, Decaying, rounds=4)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert was_seen(run, audited)
    assert "the wrong one of models and differences" in explained(audited)
    assert (audited.audit._reply_kind.sends, audited.audit._reply_kind.sign) == ("differences", -1)


@pytest.mark.slow
def test_a_model_that_starts_at_zero_does_not_hide_what_is_sent() -> None:
    def zeros() -> Model:
        return Model({name: np.zeros_like(v) for name, v in MODELS["floats"]().start.items()})

    for clients, strategy in (*SENDERS.values(), (Clients, FEDAVG)):
        cell = Cell(strategy, lambda kind=clients: kind(zeros()), rounds=6)  # type: ignore[misc]
        run, audited = run_audited(cell, [canaries(seats=1)])
        assert_unharmed(cell, run)
        assert was_seen(run, audited) or explained(audited)
        assert distance(run) < distance(run_plain(cell)) + 3.0


def test_clients_that_fail_in_the_round_that_decides_delay_it() -> None:
    class FailingGradients(Failing, Gradients):
        """Sends gradients, and some clients fail."""

    cell = Cell(DESCENDS, FailingGradients, rounds=4)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert was_seen(run, audited)


def test_canaries_do_not_decide_which_way_the_server_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    means: list[Any] = []
    noted = ReplyKind.note_step

    def note(self: ReplyKind, sent: Any, released: Any, mean: Any) -> None:
        means.append(mean)
        noted(self, sent, released, mean)

    monkeypatch.setattr(ReplyKind, "note_step", note)
    clients, strategy = SENDERS["gradients"]
    spy = Replies()
    auditors = [canaries(include="all"), spy]
    _, audited = run_audited(Cell(strategy, clients, rounds=2), auditors, sends="differences")
    assert not audited.failures
    assert len(means) == 1
    replies, seats = spy.first
    weights = {c: clients().weight(c) for c in replies if c not in seats}
    honest = sum(w * replies[c] for c, w in weights.items()) / sum(weights.values())
    assert len(seats) == 2
    np.testing.assert_allclose(means[0], honest, rtol=1e-6)


class Replies(Quiet):
    """Keeps the replies of round 1, and who of them plays a canary."""

    def observe(self, view: RoundView) -> list[Finding]:
        if view.server_round == 1:
            self.first = dict(view.replies), set(view.instructed)
        return []
