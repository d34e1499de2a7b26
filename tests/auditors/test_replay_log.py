"""The recorder: what a finished run shows again is what it has shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from leakmeter.auditors import (
    AggregateRecorder,
    Audited,
    Auditor,
    Finding,
    OneShotCanaries,
    RoundFacts,
    RoundView,
    check_auditor,
    replay,
)

if TYPE_CHECKING:
    from tests.helpers.federation import Federation

ROUNDS = 4


def shots(**changed: Any) -> OneShotCanaries:
    return OneShotCanaries(**{"seats": 4, "seed": 3, **changed})


def view(server_round: int, **facts: Any) -> RoundView:
    rng = np.random.default_rng(server_round)
    sent, released = rng.standard_normal((2, 128))
    return RoundView(server_round, sent, {}, released, RoundFacts(**facts))


def record(folder: Path, rounds: int = ROUNDS, planned: int = ROUNDS) -> None:
    """Record a made-up run."""
    recorder = AggregateRecorder(folder)
    recorder.begin(128, planned)
    for server_round in range(1, rounds + 1):
        recorder.observe(view(server_round))


class Collector(Auditor):
    """Keeps the views that it is shown."""

    def __init__(self) -> None:
        self.views: list[RoundView] = []

    def observe(self, view: RoundView) -> tuple[Finding, ...]:
        self.views.append(view)
        return ()


def test_it_keeps_the_contract_of_auditors(tmp_path: Path) -> None:
    check_auditor(lambda: AggregateRecorder(tmp_path))


def test_a_replay_finds_what_the_run_has_found(
    federation: type[Federation], tmp_path: Path
) -> None:
    from flwr.serverapp.strategy import FedAvg

    fed = federation(8)
    strategy = Audited(
        FedAvg(fraction_evaluate=0.0), auditors=[shots(), AggregateRecorder(tmp_path / "kept")]
    )
    strategy.start(fed.grid, fed.arrays(), num_rounds=ROUNDS)
    assert strategy.failures == []
    found = [f for f in strategy.findings() if f.auditor == "one-shot"]
    assert [f.to_json() for f in replay(tmp_path / "kept", [shots()])] == [
        f.to_json() for f in found
    ]
    # Another look at the same run: same canaries, another question.
    asked = replay(tmp_path / "kept", [shots(delta=1e-3, confidence=0.5)])
    assert {f.delta for f in asked if f.quantity == "epsilon"} == {1e-3}
    # Canaries of another seed have not been played.
    strangers = replay(tmp_path / "kept", [shots(seed=4)])
    assert {f.value for f in strangers if f.quantity == "canaries"} == {0.0}
    (said,) = (f for f in strategy.findings() if f.auditor == "recorder")
    assert (said.value, said.kind) == (ROUNDS, "diagnostic")


def test_every_fact_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shown = view(
        1,
        aggregate=rng.standard_normal(128).astype(np.float32).astype(np.float64),
        noised=rng.standard_normal(128) * 1e300,
        num_clients=np.int64(7),
        total_weight=1 / 3,
        clip_norm=float("inf"),
        noise_std=np.float64(0.1),
        abandoned=None,
    )
    recorder = AggregateRecorder(tmp_path)
    recorder.begin(128, 1)
    recorder.observe(shown)
    collector = Collector()
    replay(tmp_path, [collector])
    (again,) = collector.views
    for name, value in vars(shown.facts).items():
        assert np.array_equal(getattr(again.facts, name), value), name
    assert np.array_equal(again.sent, shown.sent)
    assert np.array_equal(again.released, shown.released)


def test_short_numbers_take_half_the_room(tmp_path: Path) -> None:
    recorder = AggregateRecorder(tmp_path)
    recorder.begin(10_000, 2)
    long = np.random.default_rng(0).standard_normal(10_000)
    short = long.astype(np.float32).astype(np.float64)
    for server_round, model in ((1, long), (2, short)):
        recorder.observe(RoundView(server_round, model, {}, model, RoundFacts()))
    sizes = [(tmp_path / f"round-00000{r}.npz").stat().st_size for r in (1, 2)]
    assert sizes[1] < 0.55 * sizes[0]


@pytest.mark.parametrize("field", ["replies", "truth"])
def test_auditors_that_read_what_was_not_kept_are_refused(field: str, tmp_path: Path) -> None:
    class Curious(Auditor):
        name = "curious"
        reads = frozenset({"sent", field})

    record(tmp_path)
    with pytest.raises(ValueError, match=f"curious must read only .* reads .*{field}"):
        replay(tmp_path, [Curious()])


def test_a_missing_round_is_named(tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "round-000002.npz").unlink()
    with pytest.raises(ValueError, match=r"must hold all 4 rounds, lacks round-000002\.npz"):
        replay(tmp_path, [Collector()])


def test_a_run_that_was_broken_off_is_named(tmp_path: Path) -> None:
    record(tmp_path, rounds=3)
    with pytest.raises(ValueError, match=r"lacks round-000004\.npz"):
        replay(tmp_path, [Collector()])


@pytest.mark.parametrize("text", [None, "", "{}", '{"dim": 3}'])
def test_a_folder_without_a_plan_is_named(text: str | None, tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "plan.json").unlink()
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=r"folder must hold plan\.json of a recorder, got"):
        replay(tmp_path, [Collector()])


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_round_is_named(damage: bytes | None, tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "round-000003.npz"
    path.write_bytes(path.read_bytes()[:300] if damage is None else damage)
    with pytest.raises(ValueError, match=r"round-000003\.npz must be a round of a recorder"):
        replay(tmp_path, [Collector()])


def test_rounds_beyond_the_plan_are_shown_as_well(tmp_path: Path) -> None:
    record(tmp_path, rounds=6)
    collector = Collector()
    replay(tmp_path, [collector])
    assert [v.server_round for v in collector.views] == [1, 2, 3, 4, 5, 6]


def test_a_new_run_leaves_nothing_of_an_old_one(tmp_path: Path) -> None:
    record(tmp_path, rounds=6, planned=6)
    record(tmp_path, rounds=2)
    assert sorted(p.name for p in tmp_path.glob("round-*")) == [
        "round-000001.npz",
        "round-000002.npz",
    ]
    assert json.loads((tmp_path / "plan.json").read_text()) == {
        "dim": 128,
        "num_rounds": 4,
        "first_round": 1,
    }


def test_a_resumed_run_keeps_its_rounds_and_replaces_those_run_again(tmp_path: Path) -> None:
    record(tmp_path, rounds=3)
    again = AggregateRecorder(tmp_path)
    again.begin(128, ROUNDS)
    again.restore({"rounds": 2})
    changed = replace(view(3), released=np.zeros(128))
    again.observe(changed)
    again.observe(view(4))
    collector = Collector()
    replay(tmp_path, [collector])
    assert not collector.views[2].released.any()
    assert collector.views[1].released.any()
    assert again.report()[0].value == 4
