"""A damaged run says so: typed warnings with what they are out of."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import Audited, Auditor, RoundView, canary_mod, tap_mod
from leakmeter.auditors.auditor import Canary, RoundFacts
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.open_round import NO_TRUTH
from leakmeter.auditors.hook.panel import Health
from leakmeter.clients import MaskMod, NoiseMod
from leakmeter.strategies import Central, Chosen, Local, Masked, Noised
from leakmeter.strategies.chosen import FixedSize
from leakmeter.strategies.protection.mechanism import FixedClip
from tests.helpers.federation import vanishing
from tests.helpers.findings import finding

ZERO = np.zeros(3)


def view(replies: int = 4, instructed: Any = None, **facts: Any) -> RoundView:
    """Return a round with this many replies and these facts."""
    known: dict[str, Any] = {"num_clients": replies, "aggregate": ZERO, **facts}
    updates = dict.fromkeys(range(replies), ZERO)
    return RoundView(1, ZERO, updates, ZERO, RoundFacts(**known), instructed=instructed or {})


def noted(*rounds: RoundView, asked: int = 4, silent: Any = None, plain: Any = None) -> Health:
    health = Health()
    for one in rounds:
        diverged = sum(not np.isfinite(update).all() for update in one.replies.values())
        health.note(one, asked=asked, silent=silent or {}, diverged=diverged, plain=plain or {})
    return health


def counts(health: Health, canaries: Any = ()) -> list[tuple[str, int, int]]:
    return [(one.kind, one.count, one.total) for one in health.warnings(canaries)]


def test_a_sound_run_has_no_warnings() -> None:
    sound = view(saturated=0, coordinates=12, clip_norm=1.0)
    assert counts(noted(sound, sound, plain={0: ZERO}), [(10, 10), (139, 150)]) == []


def test_any_clipped_coordinate_is_worth_a_warning() -> None:
    health = noted(view(saturated=0, coordinates=12), view(saturated=9, coordinates=12))
    [warning] = health.warnings(())
    assert (warning.kind, warning.count, warning.total) == ("clipped-coordinates", 9, 24)
    assert warning.value == 0.375


@pytest.mark.parametrize(("clipped", "said"), [(8, []), (9, [("clipped-updates", 9, 10)])])
def test_updates_are_mostly_clipped_from_nine_in_ten(clipped: int, said: Any) -> None:
    at_norm = np.full(3, 2 / math.sqrt(3)) * (1 - 1e-7)  # as float32 may have it
    plain = {c: at_norm if c < clipped else at_norm / 1.01 for c in range(10)}
    one = view(instructed={77: Canary(1, 1)}, clip_norm=2.0)
    assert counts(noted(one, plain=plain | {77: at_norm})) == said  # a canary has the clip norm


def test_without_plain_updates_nobody_says_how_many_were_clipped() -> None:
    assert noted(view(clip_norm=2.0)).state()["counts"]["clipped-updates"] == [0, 0]


def test_dropouts_are_worth_a_warning_from_one_in_twenty() -> None:
    assert counts(noted(view(95), asked=100)) == [("dropouts", 5, 100)]
    assert counts(noted(view(96), asked=100)) == []
    # A secure sum loses clients before the train messages go out.
    assert counts(noted(view(4, asked=6), asked=5)) == [("dropouts", 2, 6)]


def test_abandoned_rounds_are_counted_and_are_no_dropouts_by_themselves() -> None:
    given_up = view(4, abandoned="too few", num_clients=0, aggregate=None)
    assert counts(noted(view(), given_up)) == [("abandoned-rounds", 1, 2)]


def test_updates_that_are_not_finite_are_counted_whether_they_come_or_are_kept_back() -> None:
    broken = RoundView(
        *(1, ZERO, {0: ZERO, 1: np.array([0, math.nan, 0]), 2: np.array([math.inf, 0, 0])}, ZERO),
        RoundFacts(num_clients=3, aggregate=np.full(3, math.nan)),
    )
    assert counts(noted(broken, silent={7: True})) == [("non-finite-updates", 3, 4)]
    failed = [("non-finite-updates", 2, 4), ("blank-updates", 1, 4)]
    assert counts(noted(broken, silent={7: False})) == failed
    # What a secure sum has counted includes those that say so.
    facts = replace(broken.facts, blank=2)
    told = [("non-finite-updates", 3, 5), ("blank-updates", 1, 5)]
    assert counts(noted(replace(broken, facts=facts), silent={7: True})) == told


@pytest.mark.parametrize(
    ("canaries", "said"),
    [
        ([(7, 20)], [("few-canaries", 7, 20)]),
        ([(8, 20)], []),
        ([(4, 4)], [("few-canaries", 4, 4)]),
        ([(0, 0)], []),  # none was planned
    ],
)
def test_fewer_than_eight_canaries_are_few(canaries: Any, said: Any) -> None:
    assert counts(Health(), canaries) == said


def test_few_canaries_are_left_out_where_another_warning_explains_them() -> None:
    lost = view(4, abandoned="too few", num_clients=0, aggregate=None)

    def kinds(health: Health, *canaries: tuple[int, int]) -> list[str]:
        return [kind for kind, *_ in counts(health, canaries)]

    assert kinds(noted(lost), (0, 8)) == ["abandoned-rounds"]
    assert kinds(noted(lost), (0, 7)) == ["abandoned-rounds", "few-canaries"]  # too few anyway
    assert kinds(noted(view(), silent={7: True}), (0, 7)) == ["non-finite-updates"]


def test_counts_of_others_that_do_not_fit_are_cut_and_end_no_run() -> None:
    assert counts(Health(), [(5, 3)]) == [("few-canaries", 3, 3)]
    health = noted(view(saturated=9, coordinates=3), view(saturated=1, coordinates=0))
    assert counts(health) == [("clipped-coordinates", 3, 3)]


@pytest.mark.parametrize(
    ("value", "count", "total", "reason"),
    [
        (0.0, 0, 0, "total must be at least 1, got 0"),
        (2.0, 2, 1, r"count must be in \[0, 1\], got 2"),
        (-0.5, -1, 2, r"count must be in \[0, 2\], got -1"),
        (0.6, 1, 2, "value must be count / total = 1/2, got 0.6"),
        (math.nan, 1, 2, "value must be count / total"),
    ],
)
def test_a_warning_whose_numbers_do_not_fit_is_refused(
    value: float, count: int, total: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        RunWarning("dropouts", value, count, total, "words")
    RunWarning("dropouts", 0.333333333333, 1, 3, "words")  # as another program may round it


def test_the_worst_comes_first_and_survives_an_interruption() -> None:
    health = noted(view(2, saturated=1, coordinates=6), silent={7: True})
    again = Health()
    again.restore(json.loads(json.dumps(health.state())))
    assert again.warnings([(1, 2)]) == health.warnings([(1, 2)])
    assert [kind for kind, *_ in counts(again, [(1, 2)])] == [
        *("non-finite-updates", "clipped-coordinates", "dropouts"),
    ]


class Watch(Auditor):
    """Plays a canary in client 0 and says how many."""

    name = "watch"
    wants_truth = True
    played = 0

    @property
    def canaries_played(self) -> tuple[int, int]:
        return self.played, 12

    def instruct(self, server_round: int, chosen: Any) -> Any:
        return {0: Canary(id=1, seed=1)} if 0 in chosen else {}

    def observe(self, view: RoundView) -> Any:
        self.played += len(view.instructed)
        return [finding(auditor=self.name)]


def inner() -> Chosen:
    averaging = FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    return Chosen(averaging, FixedSize(5), num_clients=5, seed=0)


def masked(clip_range: float = 8.0) -> Masked:
    return Masked(inner(), max_weight=50.0, clip_range=clip_range)


MASK = MaskMod(required=False, allow_tap=True, seed=0, outside=["vanish"])
MODS = [MASK, tap_mod, canary_mod]


def warned(of: Any, strategy: Any, auditors: Any = (), **more: Any) -> dict[str, tuple[int, int]]:
    """Return the warnings of two rounds."""
    audited = Audited(strategy, list(auditors), **more, sends="models")
    audited.start(of.grid, of.arrays(), num_rounds=2)
    assert audited.failures == []
    return {one.kind: (one.count, one.total) for one in audited.warnings}


def clipped(noise: Any = Central(1.0)) -> Noised:  # noqa: B008
    return Noised(inner(), noise=noise, clipping=FixedClip(1.0), seed=0)


def broken(federation: Any, who: Any, mods: Any) -> Any:
    """Return a federation in which some clients diverge."""

    class Diverging(federation):  # type: ignore[misc]
        def trained(self, client: int, arrays: Any) -> dict[str, np.ndarray]:
            models: dict[str, np.ndarray] = super().trained(client, arrays)
            return {**models, "b": models["b"] * math.nan} if client in who else models

    return Diverging(5, mods=mods)


LOSS = {"train-loss": (0.0, 1.0)}  # a metric out of its range is no clipped coordinate
ONE_GONE = vanishing(lambda server_round, client: (server_round, client) == (2, 3))
MOST_GONE = vanishing(lambda server_round, client: server_round == 2 and client > 1)
TAPPED, CLOSED = NoiseMod(allow_tap=True, seed=0), replace(MASK, allow_tap=False)


@pytest.mark.parametrize(
    ("make", "mods", "who", "auditors", "expected"),
    [
        (inner, MODS, (), (), {}),
        (masked, MODS, (), (), {}),
        (lambda: Masked(inner(), max_weight=50.0, clip_range=8.0, metrics=LOSS), MODS, (), (), {}),
        (inner, [ONE_GONE, *MODS], (), (), {"dropouts": (1, 10)}),
        (masked, [ONE_GONE, *MODS], (), (), {"dropouts": (1, 10)}),
        (masked, [MOST_GONE, *MODS], (), (), {"abandoned-rounds": (1, 2), "dropouts": (3, 10)}),
        (inner, MODS, {1, 2}, (), {"non-finite-updates": (4, 10)}),
        # Only a simulation says why a client of a secure sum has no update.
        (masked, MODS, {1}, [Watch], {"non-finite-updates": (2, 10)}),
        (masked, [CLOSED, tap_mod, canary_mod], {1}, [Watch], {"blank-updates": (2, 10)}),
        # Clipped updates are seen by their length, without a tap; canaries are not counted.
        (
            *(clipped, [TAPPED, tap_mod], {1}, ()),
            {"non-finite-updates": (2, 10), "clipped-updates": (8, 8)},
        ),
        (clipped, [TAPPED, tap_mod, canary_mod], (), [Watch], {"clipped-updates": (8, 8)}),
        (clipped, [TAPPED, canary_mod], (), [Watch], {"clipped-updates": (8, 8)}),
        # Clients with noise of their own all answer, and the server cannot know.
        (lambda: clipped(Local(1.0)), [NoiseMod(seed=0)], {1}, (), {}),
    ],
    ids=[
        *("sound", "sound sum", "metric out of range", "dropout", "dropout of a sum"),
        *("no sum", "not finite", "not finite in a sum", "blank in a sum", "not finite, clipped"),
        *("clipped, with a tap", "clipped, without", "own noise"),
    ],
)
def test_damage_of_a_federation_is_counted(
    federation: Any, make: Any, mods: Any, who: Any, auditors: Any, expected: Any
) -> None:
    found = warned(broken(federation, who, mods), make(), [kind() for kind in auditors])
    assert {kind: found.get(kind) for kind in expected} == expected
    assert set(found) - set(expected) <= ({"few-canaries"} if auditors else set())


def test_clipped_coordinates_reach_the_report(federation: Any, tmp_path: Path) -> None:
    found = warned(federation(5, mods=MODS), masked(0.25), out=tmp_path)
    assert list(found) == ["clipped-coordinates"]
    count, total = found["clipped-coordinates"]
    assert total == 2 * 5 * 132
    assert count > total / 2
    [warning] = json.loads((tmp_path / "report.json").read_text())["warnings"]
    assert (warning["kind"], warning["count"], warning["total"]) == (*found, count, total)
    assert warning["value"] == count / total


def lying(**values: Any) -> Any:
    """Return a mod by which client 2 says these values of the update that it kept."""

    def mod(message: Any, context: Any, call_next: Any) -> Any:
        reply = call_next(message, context)
        if wire.only_collects(message.content) and context.node_config["partition-id"] == 2:
            for name, value in values.items():
                reply.content[wire.TAP][name] = value
            if not values:
                del reply.content["arrays"]
        return reply

    return mod


@pytest.mark.parametrize("lie", [{"weight": "x"}, {}])
def test_a_client_that_lies_about_its_kept_update_loses_only_that_update(
    federation: Any, lie: Any
) -> None:
    gone = vanishing(lambda _, client: client == 3)
    watch, of = Watch(), federation(5, mods=[gone, TAPPED, lying(**lie), tap_mod, canary_mod])
    found = warned(of, clipped(), [watch])
    assert found["dropouts"] == (2, 10)
    assert found["clipped-updates"] == (4, 4)  # neither the canary, nor the liar, nor the lost one
    assert watch.played == 2


def test_what_fails_inside_the_hook_costs_neither_warnings_nor_findings(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("not today")

    def run() -> Audited:
        of = federation(5, mods=[vanishing(lambda _, client: client == 3), *MODS])
        audited = Audited(masked(), [Watch()], sends="models")
        audited.start(of.grid, of.arrays(), num_rounds=1)
        return audited

    for place in ("open_round.collect_truth", "panel.Panel.observe"):
        with monkeypatch.context() as patched:
            patched.setattr(f"leakmeter.auditors.hook.{place}", fail)
            audited = run()
        assert len(audited.failures) == 1
        assert NO_TRUTH not in {one.text for one in audited.limitations}  # the tap is there
        assert "dropouts" in {one.kind for one in audited.warnings}
    with monkeypatch.context() as patched:
        patched.setattr(Health, "note", fail)
        audited = run()
    assert audited.failures == ["warnings may lack round 1: RuntimeError: not today"]
    assert "watch" in {f.auditor for f in audited.findings()}


def test_our_error_code_is_none_of_flowers() -> None:
    from flwr.common.constant import ErrorCode

    # Without Python's own, such as `__firstlineno__`.
    codes = [v for k, v in vars(ErrorCode).items() if isinstance(v, int) and k[0] != "_"]
    assert wire.DROPPED > 100 > max(codes)
