"""Runs whose clients are generated: the numbers of a list, and no room for who is not asked."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.fl_app import task as tasks
from leakmeter.fl_app.build.audit import AuditRun
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.data.dataset import Dataset, dealt
from leakmeter.fl_app.data.table import Population
from leakmeter.fl_app.job import run
from leakmeter.fl_app.run import rehearsal
from leakmeter.fl_app.task import load_task
from tests.helpers.numbers import first_fast
from tests.helpers.runs import run_of

MILLION = 10**6
FEW = {
    "clients": 12,
    "sample": 6,
    "rounds": 2,
    "lrt-game": "rerun",
    "synthetic-per-client": 9,
    "partition": "dirichlet",
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Counts how often each client is generated."""
    counted, usual = Counter[int](), Population.client

    def client(self: Population, number: int) -> Any:
        counted[number] += 1
        return usual(self, number)

    monkeypatch.setattr(Population, "client", client)
    rehearsal._rehearsed.cache_clear()
    return counted


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lists all records of a population before the run, as those of other data sets are."""

    def all_records(task: Any) -> tuple[Dataset, list[np.ndarray]]:
        dataset, parts = dealt(task)
        assert dataset.population is not None
        x, y = dataset.rows(np.concatenate(parts))
        whole = replace(dataset, train_x=x, train_y=y, population=None)
        return whole, [np.array(part) for part in parts]

    tasks._load.cache_clear()
    monkeypatch.setattr(tasks, "dealt", all_records)
    yield
    tasks._load.cache_clear()


def findings(words: list[str], out: Path) -> dict[str, Any]:
    report = run_of(out, *words)
    return {name: report[name] for name in ("findings", "rounds")}


@pytest.mark.usefixtures("short_page")
def test_generated_clients_give_the_numbers_of_a_list_bit_for_bit(
    panel: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    words = [word for name, value in FEW.items() for word in (f"--{name}", str(value))]
    lazy = findings([*panel, *words], tmp_path / "lazy")
    request.getfixturevalue("listed")
    found = findings([*panel, *words], tmp_path / "listed")
    used = load_task(Config.from_toml(tmp_path / "listed" / "config.toml")).dataset
    assert (used.population, used.num_train) == (None, 12 * 9)
    assert found == lazy
    auditors = {one["auditor"] for one in found["findings"]}
    assert {"one-shot", "likelihood-ratio", "mutual-information", "mine"} <= auditors


def small(clients: int, **more: Any) -> dict[str, Any]:
    """Return a run of a few clients of so many."""
    asked = {"sample": 5, "canary_seats": 2, "auditors": "one-shot", "model": "linear"}
    data = {"dataset": "synthetic", "synthetic_per_client": 10, "epochs": 1}
    return {"clients": clients, **asked, **data, **more}


@pytest.mark.usefixtures("short_page")
@pytest.mark.parametrize(
    "more",
    first_fast(
        2,
        [
            {"noise": "central", "clip_norm": 1.0},
            {"secagg": "active"},
            {"participation": "poisson"},
            {},
        ],
    ),
    ids=lambda more: "-".join(map(str, more.values())) or "usual",
)
def test_a_run_makes_the_clients_that_it_asks_and_no_others(
    more: dict[str, Any], made: Counter[int]
) -> None:
    tracemalloc.start()
    try:
        run(2, **small(MILLION, **more))
        assert tracemalloc.get_traced_memory()[1] < 6 * 2**20  # six bytes a client
    finally:
        tracemalloc.stop()
    asked = [c for t in (1, 2) for c in _cohort(Config(rounds=2, **small(MILLION, **more)), t)]
    assert made == Counter(asked)  # a rehearsal of what is advised would cost as much again


def _cohort(config: Config, server_round: int) -> list[int]:
    return list(AuditRun(config).records.cohort_of(server_round))


def test_the_text_of_a_run_does_not_grow_with_its_clients(tmp_path: Path) -> None:
    lengths = {}
    for clients in (1000, MILLION):
        out = tmp_path / str(clients)
        run(2, out=out, **small(clients, noise="central", clip_norm=1.0))
        files = [path for path in out.iterdir() if path.suffix in (".json", ".jsonl", ".html")]
        lengths[clients] = sum(path.stat().st_size for path in files)
    assert lengths[MILLION] < 1.02 * lengths[1000]


def test_resampled_clients_are_others_of_the_population(made: Counter[int]) -> None:
    config = Config(rounds=2, **small(MILLION))
    of = AuditRun(config).sampler_of("independent", _view())
    model = np.zeros(load_task(config).dim)
    drawn = np.concatenate(list(of.sample(model, [4, 999_999], 5, ("test",))))
    assert drawn.shape == (5, 2, 210)
    assert len(made) == made.total() == 10
    assert min(made) >= MILLION
    assert of.scale == 10.0


def _view() -> Any:
    from leakmeter.auditors.auditor import RoundFacts, RoundView

    return RoundView(1, np.zeros(210), {}, np.zeros(210), RoundFacts())


def test_no_finite_number_of_bits_limits_an_update_on_generated_records() -> None:
    config = Config(rounds=2, **small(MILLION, auditors="mutual-information"))
    assert AuditRun(config).entropy_of(3) is None
    known = AuditRun(replace(config, lrt_game="rerun")).entropy_of(3)
    assert known is not None  # only the batches are random


def test_candidates_of_a_record_audit_are_records_of_other_clients(
    made: Counter[int],
) -> None:
    noise = {"noise": "wfna", "wfna_floor": 0.01, "clip_norm": 1.0, "algorithm": "fedsgd"}
    config = Config(rounds=1, **small(MILLION, auditors="record-likelihood-ratio", **noise))
    case = AuditRun(config).records.case(_view())
    assert case.records == 10
    first = _cohort(config, 1)[0]
    assert made[first] == 1
    assert sum(number >= MILLION for number in made) in range(10, 21)  # 20 records of so many


@pytest.mark.slow
def test_a_million_clients_take_no_more_than_a_thousand(made: Counter[int]) -> None:
    """The command of the documentation with all default auditors, for one round."""
    peaks = {}
    for clients in (1000, MILLION):
        made.clear()
        tracemalloc.start()
        try:
            settings = {"dataset": "synthetic", "clients": clients, "sample": 100}
            run(1, synthetic_per_client=100, **settings)
            peaks[clients] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        trained = {number: times for number, times in made.items() if number < clients}
        assert len(trained) == 110
    # A list of all numbers would take 8 MB.
    assert peaks[MILLION] < peaks[1000] + 2**22
