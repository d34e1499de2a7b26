"""Models or differences: decided from honest replies, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.hook.canary_order import (
    MISTAKEN,
    ReplyKind,
    in_blocks,
    reply_kind,
    reply_kind_by_lengths,
)
from leakmeter.auditors.rng import stream

DIM = 300


def vectors(seed: int, clients: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return a model and updates of clients that agree in part, a tenth as long as the model."""
    rng = stream(seed, "sending")
    sent = rng.standard_normal(DIM)
    common = rng.standard_normal(DIM)
    return sent, 0.1 * (common + 0.5 * rng.standard_normal((clients, DIM)))


def decide(sent: Any, replies: Any, released: Any) -> str | None:
    return reply_kind(sent, list(replies), in_blocks(np.mean(replies, axis=0)), released)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])  # of the updates
@pytest.mark.parametrize("rate", [0.01, 1.0])  # of the server
def test_models_and_differences_are_recognised(scale: float, rate: float) -> None:
    for seed in range(20):
        sent, updates = vectors(seed)
        updates *= scale
        step = rate * updates.mean(axis=0)
        found = decide(sent, sent + updates, sent + step)
        assert found == "models" or (scale == 100.0 and found is None), seed
        for sign in (1, -1):  # differences are added, gradients are subtracted
            found = decide(sent, updates, sent + sign * step)
            assert found == "differences" or (scale == 100.0 and found is None), seed


def test_a_gradient_that_looks_like_the_model_is_still_a_difference() -> None:
    sent, targets = vectors(0)
    gradients = sent - targets  # of half the squared distance: all of the model is in it
    assert decide(sent, gradients, sent - 0.1 * gradients.mean(axis=0)) == "differences"


@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_started_at_zero_is_decided_in_round_two(seed: int) -> None:
    _, first = vectors(seed)
    _, second = vectors(seed + 100)
    sent = first.mean(axis=0)  # all that is in the model has come from round 1
    updates = first + 0.3 * second  # and round 2 goes on in nearly the same direction
    step = updates.mean(axis=0)
    rounded = [np.float64(np.float32(sent + u)) for u in updates]
    assert decide(sent, rounded, np.float64(np.float32(sent + step))) == "models"
    assert decide(sent, updates, np.float64(np.float32(sent - 0.5 * step))) == "differences"


def test_an_adaptive_server_still_moves_along_models() -> None:
    sent, updates = vectors(3)
    released = sent + 0.01 * np.sign(updates.mean(axis=0))
    assert decide(sent, sent + updates, released) == "models"


def test_under_noise_the_share_of_the_model_decides() -> None:
    sent, updates = vectors(1)
    rng = stream(0, "noise")
    noised = sent + updates.mean(axis=0) + 0.5 * rng.standard_normal(DIM)
    assert decide(sent, sent + updates, noised) == "models"
    assert decide(sent, updates, noised) == "differences"
    blurred = sent + updates + 20 * rng.standard_normal(updates.shape)
    assert decide(sent, blurred, sent + 20 * rng.standard_normal(DIM)) is None


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_nothing_is_decided_where_nothing_can_be(value: float) -> None:
    _, updates = vectors(2)
    flat = np.full(DIM, value)
    assert decide(flat, updates, updates.mean(axis=0)) is None
    if value:
        sent, _ = vectors(2)
        broken = np.full((3, DIM), value)
        with np.errstate(invalid="ignore"):
            assert reply_kind(sent, list(broken), in_blocks(broken[0]), sent) is None
    assert reply_kind(updates[0], [], None, updates[0]) is None


def test_the_sign_is_seen_once_and_survives_an_interruption() -> None:
    sent, updates = vectors(4)
    mean = updates.mean(axis=0)
    sending = ReplyKind("auto")
    sending.note(sent, list(updates), in_blocks(mean), sent - mean)
    assert sending.sends == "differences"
    sending.note_step(sent, sent - mean, mean)
    assert sending.sign == -1
    sending.note_step(sent, sent + mean, mean)  # a later step that canaries have turned round
    assert sending.sign == -1
    again = ReplyKind("auto")
    again.restore(sending.state())
    again.note_step(sent, sent + mean, mean)
    assert (again.sends, again.sign) == ("differences", -1)


@pytest.mark.parametrize("scale", [1e-4, 0.1, 0.6, 3.0, 30.0])
def test_a_seat_takes_nothing_for_the_other(scale: float) -> None:
    for seed in range(50):
        rng = stream(seed, "seat")
        sent, update = rng.standard_normal((2, DIM))
        update *= scale
        kinds = {"models": sent + update, "differences": update}
        for kind, reply in kinds.items():
            lengths = [float(np.linalg.norm(v)) for v in (reply - sent, reply, sent)]
            found = reply_kind_by_lengths(*lengths)
            assert found == kind if scale <= 0.6 else found is None, (seed, kind)


@pytest.mark.parametrize("lengths", [(1, 1, 0), (np.inf, 1, 1), (1, np.nan, 1), (0, 1, 1)])
def test_a_seat_cannot_tell_from_zeros_or_from_what_is_not_finite(lengths: Any) -> None:
    assert reply_kind_by_lengths(*lengths) is None


def test_seats_are_believed_until_honest_replies_say_otherwise() -> None:
    sending = ReplyKind("auto")
    assert sending.note_answers([]) == []
    assert sending.note_answers(["models", "differences"]) == [MISTAKEN]
    assert sending.sends is None
    assert sending.note_answers(["differences", "differences"]) == []
    assert sending.sends == "differences"
    sent, updates = vectors(6)
    decided_before = ReplyKind("auto")
    mean = updates.mean(axis=0)
    decided_before.note(sent, list(updates), in_blocks(mean), sent + mean)
    assert decided_before.note_answers(["models"]) == [MISTAKEN]
    assert decided_before.sends == "differences"


def test_a_server_that_moves_against_replies_to_a_model_of_zeros_gets_gradients() -> None:
    _, updates = vectors(7)
    mean, start = updates.mean(axis=0), np.zeros(DIM)
    assert decide(start, updates, -0.1 * mean) == "differences"
    assert decide(start, updates, mean) is None


def test_what_the_user_says_stays() -> None:
    sent, updates = vectors(5)
    sending = ReplyKind("models")
    sending.note(sent, list(updates), in_blocks(updates.mean(axis=0)), sent + updates.mean(axis=0))
    sending.note_step(sent, sent - updates[0], updates[0])
    assert (sending.sends, sending.sign) == ("models", 1)
    with pytest.raises(
        ValueError, match=r"sends must be one of auto, models, differences, got 'x'"
    ):
        ReplyKind("x")  # type: ignore[arg-type]
