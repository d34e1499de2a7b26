"""The recorder: what a finished run shows again is what it has shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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


def collected(folder: Path, **options: Any) -> list[RoundView]:
    """Return the rounds that a replay shows."""
    collector = Collector()
    replay(folder, [collector], **options)
    return collector.views


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


@pytest.mark.parametrize("kind", ["sphere", "signs"])
def test_a_replay_finds_what_the_run_has_found(
    kind: str, federation: type[Federation], tmp_path: Path
) -> None:
    strategy, kept = recorded(federation, tmp_path / "kept", kind=kind), tmp_path / "kept"
    found = [f.to_json() for f in strategy.findings() if f.auditor == "one-shot"]
    # The first cohort has shown how often clients send; a replay has to be told.
    assert [f.to_json() for f in replay(kept, [shots(kind=kind, client_rounds=2)])] == found
    # Another look at the same run: same canaries, another question.
    asked = replay(kept, [shots(kind=kind, delta=1e-3, confidence=0.5)])
    assert {f.delta for f in asked if f.quantity == "epsilon"} == {1e-3}
    # Canaries of another seed, or of another plan, have not been played.
    with pytest.raises(ValueError, match="canaries of another seed than one-shot looks for"):
        replay(kept, [shots(kind=kind, seed=4)])
    other_kind = "signs" if kind == "sphere" else "sphere"
    for other in ({"seats": 3, "kind": kind}, {"kind": other_kind}):
        with pytest.raises(
            ValueError, match=r"round \d of the recording has other canaries .* kind"
        ):
            replay(kept, [shots(**other)])
    (said,) = (f for f in strategy.findings() if f.auditor == "recorder")
    assert (said.value, said.kind) == (ROUNDS, "diagnostic")


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what is kept of a round."""
    kept = unpack(path.read_bytes())
    change(kept)
    path.write_bytes(pack(kept))


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
    (again,) = collected(tmp_path)
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
    replies = collected(tmp_path)[0].replies
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


@pytest.mark.parametrize("rounds", [3, 6])
def test_rounds_are_shown_beyond_the_plan_and_short_of_it_if_asked(
    rounds: int, tmp_path: Path
) -> None:
    record(tmp_path, rounds=rounds)
    if rounds < ROUNDS:
        words = r"all 4 rounds, lacks round-000004\.npz: resume the run"
        with pytest.raises(ValueError, match=words):
            replay(tmp_path, [Collector()])
    assert [v.server_round for v in collected(tmp_path, partial=rounds < ROUNDS)] == [
        *range(1, rounds + 1)
    ]


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


def without_sent(path: Path) -> None:
    edit(path, lambda one: one.pop("sent"))


def of_another_model(path: Path) -> None:
    edit(path, lambda one: one.update(released=np.zeros(5)))


BAD_ROUND = r"round-000003\.npz must be a round of a recorder"
BAD_PLAN = r"folder must contain plan\.json of a recorder"


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("round-000003.npz", Path.unlink, r"every round .* lacks round-000003\.npz"),
        ("round-000003.npz", lambda path: path.write_bytes(b""), BAD_ROUND),
        ("round-000003.npz", lambda path: path.write_bytes(b"no archive"), BAD_ROUND),
        ("round-000003.npz", shortened, BAD_ROUND),
        ("round-000003.npz", without_sent, rf"{BAD_ROUND}.* must have a field 'sent', got"),
        ("round-000003.npz", of_another_model, r"released in .*3\.npz must have 128 numbers"),
        ("plan.json", Path.unlink, BAD_PLAN),
        ("plan.json", lambda path: path.write_text(""), BAD_PLAN),
        ("plan.json", lambda path: path.write_text("{}"), BAD_PLAN),
        ("plan.json", lambda path: path.write_text('{"dim": 3}'), BAD_PLAN),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    name: str, damage: Callable[[Path], Any], words: str, tmp_path: Path
) -> None:
    record(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(ValueError, match=words):
        replay(tmp_path, [Collector()])


def test_a_new_run_leaves_nothing_of_an_old_one(tmp_path: Path) -> None:
    record(tmp_path, rounds=6, planned=6)
    record(tmp_path, rounds=2)
    kept = {"round-000001.npz", "round-000002.npz", "plan.json"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan == {"dim": 128, "num_rounds": 4, "first_round": 1, "about": {}}


def test_a_resumed_run_keeps_its_rounds_and_replaces_those_run_again(tmp_path: Path) -> None:
    record(tmp_path, rounds=3)
    again = AggregateRecorder(tmp_path)
    again.begin(128, ROUNDS)
    again.restore({"rounds": 2})
    changed = replace(view(3), released=np.zeros(128))
    again.observe(changed)
    again.observe(view(4))
    shown = collected(tmp_path)
    assert not shown[2].released.any()
    assert shown[1].released.any()
    assert again.report()[0].value == 4
