"""Audits of models too large for memory: the same numbers from files, and little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import (
    Audited,
    Auditor,
    DrawPlan,
    LikelihoodRatio,
    MutualInformation,
    ReplaySampler,
    SampleBudget,
    canary_mod,
)
from leakmeter.auditors.auditor import Project, UnableError
from leakmeter.auditors.information.draws import Draws, measure
from leakmeter.auditors.likelihood_ratio.game import ConstantSumError, play_game
from leakmeter.auditors.likelihood_ratio.sum_distribution import DualGaussian
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling import replay, sampler
from leakmeter.auditors.sampling.sampler import RowStore
from leakmeter.fl_app.engines.inline import InlineGrid
from tests.helpers.numbers import first_fast
from tests.helpers.processes import open_files
from tests.helpers.rounds import audited_round

DIM, OTHERS = 600, [1, 2, 3, 4, 5]
BUDGET = SampleBudget(fit=60, candidates=12, pilot=20, trials=40)


@pytest.fixture
def to_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what sends all samples to files from now on, with several blocks each."""

    def use() -> None:
        monkeypatch.setattr(sampler, "_MAX_IN_MEMORY", 0)
        monkeypatch.setattr(sampler, "_MAX_IN_BLOCK", 4 * 60 * 70)

    return use


def root() -> np.ndarray:
    """Return the distribution of updates in which every seventh coordinate never moves."""
    mixed = stream(0, "root").standard_normal((DIM, 40))
    mixed[::7] = 0.0
    return mixed


@pytest.mark.parametrize("game", ["independent", "rerun", "partition"])
@pytest.mark.parametrize("noise_std", [0.0, 0.5])
def test_a_game_from_files_is_that_from_memory(
    gaussian_sampler: Any, to_disk: Any, game: Any, noise_std: float
) -> None:
    sampler = gaussian_sampler(root(), game=game)
    really = stream(1, "really").standard_normal(40) @ root().T

    def play() -> Any:
        audited = audited_round(sampler, np.ones(DIM), OTHERS, noise_std=noise_std, really=really)
        return play_game(audited, budget=BUDGET, stream=("t",))

    memory = play()
    to_disk()
    file = play()
    assert set(file.pair) == set(memory.pair)
    sign = 1 if file.pair == memory.pair else -1  # which comes first is decided by the last bits
    assert file.facts["form"] == memory.facts["form"]
    assert file.facts["dimension"] == memory.facts["dimension"]
    close = {"rtol": 1e-3, "atol": 1e-3 * float(np.abs(memory.scores).max())}
    if noise_std == 0:  # the noise does not turn with the direction
        np.testing.assert_allclose(sign * file.scores, memory.scores, **close)
    assert file.shift == pytest.approx(memory.shift, rel=1e-3)
    assert file.modelled == pytest.approx(memory.modelled, rel=1e-3)
    np.testing.assert_allclose(
        file.real[0].direction, memory.real[0].direction, rtol=1e-2, atol=1e-4
    )
    frozen = gaussian_sampler(root(), frozen=True)  # others that never change
    with pytest.raises(ConstantSumError, match="0 of 60 further draws"):
        play_game(audited_round(frozen, np.zeros(DIM), OTHERS), budget=BUDGET, stream=("t",))


def test_a_model_from_a_file_is_that_from_memory(to_disk: Any) -> None:
    rows = (stream(2, "rows").standard_normal((60, 40)) @ root().T).astype(np.float32)
    others = (stream(2, "others").standard_normal((5, 40)) @ root().T).astype(np.float32)
    memory = DualGaussian.fit(rows)
    to_disk()
    store = RowStore(*rows.shape)
    for row in rows:
        store.add(row)
    file = DualGaussian.fit(store)
    assert not store.is_in_memory
    assert file.kept.tolist() == memory.kept.tolist()
    assert file.shrinkage == pytest.approx(memory.shrinkage, rel=1e-5)
    np.testing.assert_allclose(file.gram(others), memory.gram(others), rtol=1e-4, atol=1e-3)
    for law, same in ((file, memory), (file.leading(9), memory.leading(9))):
        np.testing.assert_allclose(law.solve(others[0]), same.solve(others[0]), atol=1e-4)


@pytest.mark.parametrize("game", ["independent", "partition"])
def test_directions_from_a_file_are_those_from_memory(
    gaussian_sampler: Any, to_disk: Any, game: Any
) -> None:
    plan = DrawPlan(draws=24, rank=4)

    def found() -> Any:
        about = {"target": None, "plan": plan, "stream": ("t",)}
        drawn = Draws(gaussian_sampler(root(), game=game), np.zeros(DIM), OTHERS)
        return measure(drawn, **about)

    memory = found()
    to_disk()
    file = found()
    assert file.rank == memory.rank
    assert file.figure.variance_kept == pytest.approx(memory.figure.variance_kept, rel=1e-5)
    assert file.figure.nats == pytest.approx(memory.figure.nats, rel=1e-4)
    for client in OTHERS:
        assert file.each[client] == pytest.approx(memory.each[client], rel=1e-3, abs=1e-5)


class Random:
    """Clients of a large model who send random numbers, in this process."""

    def __init__(self, dim: int, clients: int) -> None:
        self.dim, self.trained = dim, 0
        table = stream(0, "table").standard_normal(dim + 1000, dtype=np.float32)
        offsets, app = stream(0, "offsets"), ClientApp(mods=[canary_mod])

        @app.train()
        def train(message: Message, context: Context) -> Message:  # noqa: ARG001
            self.trained += 1
            first = int(offsets.integers(1000))
            record = ArrayRecord({"w": Array(table[first : first + dim])})
            metrics = MetricRecord({"num-examples": 1})
            return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

        self.grid = InlineGrid(app, clients)

    def start(self, auditors: Sequence[Auditor], rounds: int = 1) -> Audited:
        """Run some rounds under the eyes of these auditors."""
        inner = FedAvg(min_train_nodes=2, min_available_nodes=2, fraction_evaluate=0.0)
        audited = Audited(inner, auditors)
        arrays = ArrayRecord({"w": Array(np.zeros(self.dim, np.float32))})
        audited.start(self.grid, arrays, num_rounds=rounds)
        return audited


@pytest.fixture
def peak() -> Iterator[Callable[[Callable[[], Any]], int]]:
    """Return what measures the most memory that a call allocates, in bytes."""

    def measured(call: Callable[[], Any]) -> int:
        tracemalloc.start()  # for as long as it is needed: it slows down imports and calls
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before

    yield measured
    tracemalloc.stop()


@pytest.mark.parametrize(
    "make",
    first_fast(
        1,
        [
            lambda: MutualInformation(ReplaySampler(), plan=DrawPlan(draws=6, rank=4, fit=16)),
            lambda: LikelihoodRatio(ReplaySampler(), budget=SampleBudget(60, 4, 10, 20)),
        ],
    ),
)
@pytest.mark.usefixtures("flower_task")
@pytest.mark.slow
def test_a_replayed_audit_holds_a_few_vectors_and_not_all_clients(
    make: Any, peak: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """60 updates or more are sampled; stacked in single precision they are 30 vectors in double."""
    dim = 15_000
    monkeypatch.setattr(sampler, "_MAX_IN_MEMORY", 2**18)
    monkeypatch.setattr(sampler, "_MAX_IN_BLOCK", 2**17)
    monkeypatch.setattr(replay, "_MAX_REPLIES", 2**16)
    monkeypatch.setattr(sampler.tempfile, "tempdir", str(tmp_path))
    of = Random(dim, 3)
    of.start([])  # imports what a run needs
    plain = peak(lambda: of.start([]))
    audited: list[Audited] = []
    above = peak(lambda: audited.append(of.start([make()]))) - plain
    assert audited[0].failures == []
    assert audited[0].findings()
    assert above < 15 * 8 * dim
    assert list(tmp_path.iterdir()) == []
    assert open_files(tmp_path) == 0


@pytest.mark.usefixtures("flower_task")
def test_clients_of_a_large_model_are_asked_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = Random(1000, 5)
    asked: list[int] = []
    send = of.grid.send_and_receive

    def counted(messages: Any, **options: Any) -> Any:
        asked.append(len(messages))
        return send(messages, **options)

    monkeypatch.setattr(of.grid, "send_and_receive", counted)
    monkeypatch.setattr(replay, "_MAX_REPLIES", 2 * 4 * 1000)
    audited = of.start([MutualInformation(ReplaySampler(), plan=DrawPlan(draws=4, rank=2))])
    assert audited.failures == []
    assert [count for count in asked if count] == [5, *[2, 2, 1] * 8]


def test_too_little_room_is_said_before_anybody_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(dim=10**7, num_rounds=5, clients=22, seats=2)
    needed: list[int] = []

    def refuse(size: int) -> None:
        needed.append(size)
        raise UnableError("no room")

    ratio = LikelihoodRatio(ReplaySampler(), budget=SampleBudget(120, 16, 10, 60))
    information = MutualInformation(ReplaySampler(), plan=DrawPlan(draws=8, rank=4))
    for auditor in (ratio, information):
        monkeypatch.setattr(f"{type(auditor).__module__}.check_room", refuse)
        assert auditor.limits(Project(dim=10**7, num_rounds=5)) == []  # clients are not known yet
        with pytest.raises(UnableError, match="no room"):
            auditor.limits(project)
    # 7 draws of 19 others, 16 candidates, and these beside the true update; 4 draws of 20 clients.
    assert needed == [4 * 10**7 * (7 * 19 + 16 + 17), 4 * 10**7 * 4 * 20]
