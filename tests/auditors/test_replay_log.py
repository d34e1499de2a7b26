"""The recorder: what a finished run shows again is what it has shown."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from leakmeter.auditors import (
    AggregateRecorder,
    Audited,
    Auditor,
    Finding,
    OneShotCanaries,
    RoundView,
    check_auditor,
    replay,
)
from leakmeter.auditors.auditor import Project, RoundFacts, UnableError
from leakmeter.auditors.codec import pack, unpack
from leakmeter.auditors.replay_log import Recording

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


def recorded(federation: type[Federation], folder: Path, **settings: Any) -> Audited:
    """Record a run with canaries."""
    from flwr.serverapp.strategy import FedAvg

    fed = federation(8)
    strategy = Audited(
        FedAvg(fraction_evaluate=0.0),
        auditors=[shots(**settings), AggregateRecorder(folder)],
        sends="models",
    )
    strategy.start(fed.grid, fed.arrays(), num_rounds=ROUNDS)
    assert strategy.failures == []
    return strategy


def test_a_replay_finds_canaries_of_signs_too(federation: type[Federation], tmp_path: Path) -> None:
    strategy = recorded(federation, tmp_path / "kept", kind="signs")
    found = [f.to_json() for f in strategy.findings() if f.auditor == "one-shot"]
    again = replay(tmp_path / "kept", [shots(kind="signs")])
    assert [f.to_json() for f in again] == found
    with pytest.raises(ValueError, match=r"give the seats, canaries, repetitions and kind of the"):
        replay(tmp_path / "kept", [shots(kind="sphere")])


def test_a_recording_that_says_no_kind_has_canaries_on_the_sphere(
    federation: type[Federation], tmp_path: Path
) -> None:
    recorded(federation, tmp_path / "kept", kind="sphere")
    found = replay(tmp_path / "kept", [shots()])
    for path in (tmp_path / "kept").glob("round-*.npz"):
        kept = unpack(path.read_bytes())
        orders = kept["instructed"].values()
        assert [order.pop("kind") for order in orders] == ["sphere"] * len(orders)
        path.write_bytes(pack(kept))
    assert replay(tmp_path / "kept", [shots()]) == found


def test_a_replay_finds_what_the_run_has_found(
    federation: type[Federation], tmp_path: Path
) -> None:
    strategy = recorded(federation, tmp_path / "kept")
    found = [f for f in strategy.findings() if f.auditor == "one-shot"]
    assert [f.to_json() for f in replay(tmp_path / "kept", [shots()])] == [
        f.to_json() for f in found
    ]
    # Another look at the same run: same canaries, another question.
    asked = replay(tmp_path / "kept", [shots(delta=1e-3, confidence=0.5)])
    assert {f.delta for f in asked if f.quantity == "epsilon"} == {1e-3}
    # Canaries of another seed, or of another plan, have not been played.
    with pytest.raises(ValueError, match="canaries of another seed than one-shot looks for"):
        replay(tmp_path / "kept", [shots(seed=4)])
    with pytest.raises(ValueError, match=r"round \d of the recording has other canaries"):
        replay(tmp_path / "kept", [shots(seats=3)])
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


def test_auditors_that_read_what_was_not_kept_are_refused(tmp_path: Path) -> None:
    class Curious(Auditor):
        name = "curious"
        reads = frozenset({"sent", "truth"})

    class Frugal(Curious):
        optional = {"truth": "a label"}  # noqa: RUF012

    record(tmp_path)
    with pytest.raises(ValueError, match="curious reads truth, which a recording does not have"):
        replay(tmp_path, [Curious()])
    replay(tmp_path, [Frugal()])
    assert Recording.open(tmp_path).check(Frugal()) == [
        "the recording has no truth: a label is left out"
    ]


def test_who_replied_is_kept_but_not_what_they_sent(tmp_path: Path) -> None:
    recorder = AggregateRecorder(tmp_path)
    recorder.begin(128, 1)
    recorder.observe(replace(view(1), replies={7: np.ones(128), 2: np.ones(128)}))
    collector = Collector()
    replay(tmp_path, [collector])
    replies = collector.views[0].replies
    assert (set(replies), len(replies), 7 in replies, 3 in replies) == ({2, 7}, 2, True, False)
    with pytest.raises(UnableError, match="no single updates"):
        replies[7]
    assert replies.get(3) is None


def test_a_recording_without_canaries_cannot_be_searched_for_them(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(ValueError, match="one-shot looks for canaries, and the recording has none"):
        replay(tmp_path, [shots()])


def test_without_a_folder_of_its_own_it_writes_into_that_of_the_run(
    federation: type[Federation], tmp_path: Path
) -> None:
    from flwr.serverapp.strategy import FedAvg

    fed = federation(3)
    recorders = [AggregateRecorder(), AggregateRecorder()]
    for recorder, out in zip(recorders, (tmp_path / "run", None), strict=True):
        strategy = Audited(FedAvg(fraction_evaluate=0.0), auditors=[recorder], out=out)
        strategy.start(fed.grid, fed.arrays(), num_rounds=2)
        assert len(strategy.failures) == (out is None)
    assert "no folder to record to: give the run one with Audited" in strategy.failures[0]
    assert len(Recording.open(tmp_path / "run" / "recording").rounds) == 2


def test_a_large_recording_is_announced_and_one_without_room_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = AggregateRecorder(tmp_path)
    recorder.begin(10**6, 1000)
    assert recorder.limits(Project(dim=1000, num_rounds=10)) == ()
    (said,) = recorder.limits(Project(dim=10**6, num_rounds=100))
    assert "up to 2.4 GB of disk: 100 rounds of 1,000,000 parameters" in said
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    with pytest.raises(UnableError, match=r"needs up to 2.4 GB in .* 1.0 GB free: free some space"):
        recorder.limits(Project(dim=10**6, num_rounds=100))


def test_a_missing_round_is_named(tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "round-000002.npz").unlink()
    with pytest.raises(ValueError, match=r"must contain every round .* lacks round-000002\.npz"):
        replay(tmp_path, [Collector()])


def test_a_run_that_was_broken_off_is_named(tmp_path: Path) -> None:
    record(tmp_path, rounds=3)
    with pytest.raises(ValueError, match=r"all 4 rounds, lacks round-000004\.npz: resume the run"):
        replay(tmp_path, [Collector()])
    collector = Collector()
    replay(tmp_path, [collector], partial=True)
    assert [v.server_round for v in collector.views] == [1, 2, 3]


def test_a_vector_of_another_dimension_is_named(tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "round-000003.npz"
    path.write_bytes(pack({**unpack(path.read_bytes()), "released": np.zeros(5)}))
    with pytest.raises(ValueError, match=r"released in .*round-000003\.npz must have 128 numbers"):
        replay(tmp_path, [Collector()])


def test_a_round_without_a_field_is_named(tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "round-000003.npz"
    kept = unpack(path.read_bytes())
    path.write_bytes(pack({name: value for name, value in kept.items() if name != "sent"}))
    with pytest.raises(ValueError, match=r"round-000003\.npz .* must have a field 'sent', got"):
        replay(tmp_path, [Collector()])


@pytest.mark.parametrize("text", [None, "", "{}", '{"dim": 3}'])
def test_a_folder_without_a_plan_is_named(text: str | None, tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "plan.json").unlink()
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=r"folder must contain plan\.json of a recorder"):
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
        "about": {},
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
