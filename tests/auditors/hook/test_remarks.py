"""What answers of canary_mod mean: each wrong order gets its sentence, a right one gets none."""

from __future__ import annotations

import pytest

from leakmeter.auditors.hook.canary_order import (
    NO_ANSWER,
    Answer,
    guest_warnings,
    noise_around,
    replay_warnings,
)


@pytest.mark.parametrize(
    "answer",
    [
        Answer("played"),
        Answer("greeted", outer=("LocalDpMod",)),
        Answer("played", outer=("MaskMod", "NoiseMod", "tap_mod")),
        Answer("played", inner=("fixedclipping_mod", "arrays_size_mod", "tap_mod")),
        Answer("not-finite"),
    ],
)
def test_a_sound_list_of_mods_gets_no_remark(answer: Answer) -> None:
    assert guest_warnings({0: answer, 1: answer}, [0, 1]) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer("played", inner=("LocalDpMod",)), "bypass the noise of LocalDpMod"),
        (Answer("other-arrays", inner=("MaskMod",)), "MaskMod hides the update from canary_mod"),
        (Answer("played", inner=("my_mod",)), "my_mod handles the update before a canary"),
        (Answer("other-arrays"), "other arrays than they are sent"),
        (Answer("played", trains_privately=True), "numbers are about clients, not records"),
    ],
)
def test_a_wrong_list_is_named_once_with_the_order_to_use(answer: Answer, words: str) -> None:
    [said] = guest_warnings({0: answer, 1: answer, 2: Answer("played")}, [0, 1, 2])
    assert words in said
    for name in answer.inner:
        assert f"[{name}, canary_mod]" in said


def test_silence_of_all_is_said_and_of_nobody_is_not() -> None:
    assert guest_warnings({}, [3]) == [NO_ANSWER]
    assert guest_warnings({}, []) == []


def test_noise_is_found_on_either_side() -> None:
    assert noise_around({0: Answer("played", outer=("MaskMod", "LocalDpMod"))}) == "LocalDpMod"
    assert noise_around({0: Answer(), 1: Answer(inner=("NoiseMod",))}) == "NoiseMod"
    assert noise_around({0: Answer(outer=("fixedclipping_mod",))}) is None


def test_a_mod_that_sees_replays_is_named_once() -> None:
    told = replay_warnings({0: Answer(outer=("mine", "LocalDpMod")), 1: Answer(outer=("mine",))})
    assert len(told) == 1
    assert "[canary_mod, mine]" in told[0]
    assert replay_warnings({0: Answer(inner=("mine",))}) == []
