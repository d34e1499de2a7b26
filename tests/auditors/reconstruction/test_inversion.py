"""Images in the sum of a round: how near they come, which are recovered, and their picture."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.auditor import Canary, DivergedError, Project, RoundFacts, RoundView
from leakmeter.auditors.checks import check_auditor
from leakmeter.auditors.reconstruction.attack import Attack
from leakmeter.auditors.reconstruction.inversion import (
    SIGNATURE,
    Inversion,
    RoundImages,
    _Compared,
    _drawn,
    caption_of,
    png,
    recovery,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from tests.helpers.numbers import first_fast
from tests.helpers.refusals import refuses

torch = pytest.importorskip("torch")
RATE = 0.5
SHORT = Attack(steps=5)
SHAPE = (3, 5)


def net(model: np.ndarray | None = None) -> Any:
    """Return a linear model of 128 parameters for images of 15 pixels in 8 classes."""
    made = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(15, 8))
    flat = stream(0, "model").standard_normal(128) / 4 if model is None else model
    torch.nn.utils.vector_to_parameters(torch.from_numpy(flat).float(), made.parameters())
    return made


def images(count: int, name: str = "images") -> np.ndarray:
    return stream(0, name).random((count, *SHAPE)).astype(np.float32)


def known(_: RoundView, **more: Any) -> RoundImages:
    return RoundImages(images(2), images(200, "strangers"), **({"dealt": 200} | more))


def made(images_of: Any = known, **changes: Any) -> Inversion:
    settings = {"rate": RATE, "seek": 2, "attack": SHORT} | changes
    return Inversion(net, images_of, **settings)


def view(server_round: int = 1, *, gradient: float = 1.0, **more: Any) -> RoundView:
    """Return a round in which two clients took one step on an image each."""
    model = torch.nn.utils.parameters_to_vector(net().parameters()).detach().double().numpy()
    one = net()
    loss = torch.nn.functional.cross_entropy(one(torch.from_numpy(images(2))), torch.tensor([1, 6]))
    slopes = torch.autograd.grad(loss, list(one.parameters()))
    flat = torch.cat([s.reshape(-1) for s in slopes]).double().numpy()
    facts = RoundFacts(aggregate=-RATE * gradient * flat, num_clients=2, **more.pop("facts", {}))
    return RoundView(server_round, model, {}, model, facts, **more)


def test_the_auditor_keeps_the_contract() -> None:
    check_auditor(lambda: made(every=3, attack=Attack(steps=1)))


def test_images_come_back_and_strangers_do_not(tmp_path: Path) -> None:
    auditor = made(attack=Attack(steps=100))
    auditor.folder = tmp_path
    auditor.begin(128, 3)
    [found] = auditor.observe(view())
    assert found.null_band is not None
    assert found.value > found.null_band[1] + 10
    assert found.facts["strangers dB"] < found.null_band[1] + 1e-9
    assert found.facts["nearest to an original"] == 2
    assert found.facts["gradient is exact"] is True
    assert (found.auditor, found.kind, found.unit) == ("inversion", "diagnostic", "record")
    assert (found.observer, found.threat_model.sees) == ("server", "round sum")
    assert Assumption.RECORDS_ALIKE in found.assumptions
    assert "not evidence of privacy" in found.rule
    assert auditor.observe(view(2)) == ()  # only the first is due
    test, of_run = auditor.report()
    assert (test.quantity, test.value, test.kind) == ("originals recovered", 2.0, "lower_bound")
    assert (test.confidence, test.cap, test.saturated) == (0.99, 2.0, True)
    assert not test.is_conditional
    assert (of_run.value, of_run.server_round) == (found.value, None)
    assert of_run.null_band == found.null_band
    [picture] = (tmp_path / "inversion").iterdir()
    assert picture.name == "round-000001.png"
    assert "Top: images reconstructed" in caption_of(picture.read_bytes())


@pytest.mark.parametrize(("trials", "most"), first_fast(1, [(10, 4), (40, 8)]))
def test_without_a_leak_the_band_has_nine_of_ten_values(trials: int, most: int) -> None:
    """Reconstructions that know nothing: beyond an edge with 5 %, more than 4 of 10 with 3e-4."""
    beyond = [0, 0]
    for trial in range(trials):
        rng = stream(trial, "no leak")
        # More originals than one in twenty: the nearest stranger alone would be too far away.
        of_round = RoundImages(rng.random((30, *SHAPE)), rng.random((40, *SHAPE)))
        found = _Compared.of(rng.random((4, *SHAPE)), of_round, rng).figures(rng, sharing=1)
        low, high = found["band"]
        beyond[0] += found["psnr"] < low
        beyond[1] += found["psnr"] > high
    assert max(beyond) <= most


def test_what_makes_the_gradient_approximate_is_said() -> None:
    auditor = made(partial(known, steps=3.0))
    [found] = auditor.observe(view(instructed={7: Canary(0, 0)}, facts={"clip_norm": 1.0}))
    assert found.facts["gradient is exact"] is False
    words = "clients take 3 steps, taken for one gradient, clients clip, 1 canary seat in the sum"
    assert words in found.rule


def test_clients_that_send_gradients_are_understood() -> None:
    """The server subtracts what they send, so the mean reply is the gradient itself."""
    plain, sent = made(), Inversion(net, known, rate=1.0, seek=2, attack=SHORT)
    [one] = plain.observe(view())
    [two] = sent.observe(view(gradient=-1 / RATE, sign=-1))
    assert one.value == pytest.approx(two.value)


def test_the_best_of_several_rounds_has_the_null_of_several_rounds() -> None:
    auditor = made(every=1)
    auditor.begin(128, 3)
    found = [f for r in (1, 2, 3) for f in auditor.observe(view(r))]
    test, of_run = auditor.report()
    assert test.facts["round"] == 1  # one test a run
    assert of_run.value == max(f.value for f in found)
    assert of_run.null_band is not None
    assert of_run.null_band[1] >= max(f.null_band[1] for f in found if f.null_band)
    assert "best of 3 audited rounds" in of_run.rule


def test_rounds_without_a_sum_are_passed_over() -> None:
    nothing = RoundView(1, np.zeros(128), {}, np.zeros(128), RoundFacts())
    assert made().observe(nothing) == ()
    zero = RoundView(1, np.zeros(128), {}, np.zeros(128), RoundFacts(aggregate=np.zeros(128)))
    assert made().observe(zero) == ()
    assert made().report() == ()
    wild = RoundView(
        1, np.zeros(128), {}, np.zeros(128), RoundFacts(aggregate=np.full(128, np.inf))
    )
    with pytest.raises(DivergedError):
        made().observe(wild)


def test_canary_seats_are_said_before_anybody_trains() -> None:
    assert made().limits(Project(128, 3, clients=5)) == ()
    [words] = made().limits(Project(128, 3, clients=5, seats=2))
    assert "2 clients of round 1 play canaries" in words


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0.0}, "rate"),
        ({"images_of": partial(known, steps=0.5)}, "steps"),
        ({"seek": 0}, "seek"),
        ({"every": -2}, "every"),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    with refuses(message):
        made(**changes).observe(view())


def test_strangers_that_were_not_dealt_at_random_make_the_test_conditional() -> None:
    auditor = made(partial(known, dealt=0))
    auditor.observe(view())
    assert auditor.report()[0].is_conditional


def test_a_test_that_cannot_show_anything_says_so() -> None:
    def few(_: RoundView) -> RoundImages:
        return RoundImages(images(2), images(60, "strangers"), dealt=60)

    auditor = Inversion(net, few, rate=RATE, seek=2, attack=SHORT)
    auditor.observe(view())
    test = auditor.report()[0]
    assert (test.value, test.cap) == (0.0, 0.0)
    assert "each needs 99 strangers of its label" in test.rule


@pytest.mark.parametrize(("share_std", "is_said"), [(None, False), (0.0, False), (0.1, True)])
def test_noise_is_the_clients_only_if_they_add_it(share_std: float | None, is_said: bool) -> None:
    """With central noise the server adds all of it, and each client's part is 0."""
    facts = {"noise_std": 0.1, "share_std": share_std}
    [found] = made().observe(view(facts=facts))
    assert ("clients add noise" in found.rule) == is_said
    [found] = made(partial(known, has_noise=True)).observe(view(facts=facts))
    assert "clients add noise" in found.rule


PIXELS = 6
CHANCE = 0.05  # 99 batches serve any chance from 0.01 on


def round_of(rng: np.random.Generator, originals: int = 3, **changes: Any) -> RoundImages:
    """Return a round without labels, with a hundred strangers for each original."""
    images = rng.random((101 * originals, PIXELS))
    settings: dict[str, Any] = {"dealt": 100 * originals} | changes
    return RoundImages(images[:originals], images[originals:], **settings)


def test_images_that_came_back_are_all_counted() -> None:
    rng = stream(0, "recovery")
    known = round_of(rng)
    found = recovery(known.originals[::-1] + 1e-3, known, chance=CHANCE, rng=rng)
    assert (found.recovered, found.tested, found.batches) == (3, 3, 99)
    assert found.is_dealt
    assert found.worst == pytest.approx(60.0, abs=0.1)  # 0.001 on each pixel
    assert found.stranger < 40


def test_a_smaller_chance_to_be_wrong_takes_more_strangers() -> None:
    rng = stream(0, "recovery")
    known = round_of(rng)
    found = recovery(known.originals, known, chance=0.004, rng=rng)
    assert (found.tested, found.batches) == (1, 249)  # 300 strangers have no more batches of one


def test_without_a_leak_one_in_a_hundred_tests_is_wrong() -> None:
    """Of 800 tests 8 are expected: none, or more than 20, with a chance below 5e-4."""
    wrong = 0
    for trial in range(800):
        rng = stream(trial, "no leak")
        known = round_of(rng, originals=2)
        wrong += recovery(rng.random((2, PIXELS)), known, chance=CHANCE, rng=rng).recovered > 0
    assert 1 <= wrong <= 20


def test_one_image_that_came_back_does_not_count_for_the_others() -> None:
    """Two of five come back; a third is counted by chance in 1 % of tests, 3 of 300 expected."""
    more = 0
    for trial in range(300):
        rng = stream(trial, "partial leak")
        known = round_of(rng, originals=5)
        images = np.concatenate([known.originals[:2], rng.random((3, PIXELS))])
        count = recovery(images, known, chance=CHANCE, rng=rng).recovered
        assert count >= 2
        more += count > 2
    assert more <= 13  # beyond with a chance of 1e-5


def test_one_image_recovers_one_original() -> None:
    rng = stream(0, "twins")
    known = round_of(rng)
    twins = RoundImages(known.originals[[0, 0, 0]], known.strangers, dealt=300)
    assert recovery(known.originals[:1], twins, chance=CHANCE, rng=rng).recovered == 1


def test_a_stranger_that_is_equal_to_an_original_hides_it() -> None:
    rng = stream(0, "copy")
    known = round_of(rng, originals=1)
    known.strangers[:99] = known.originals[0]
    assert recovery(known.originals, known, chance=CHANCE, rng=rng).recovered == 0


@pytest.mark.parametrize(("control", "is_wrong"), [("same label", False), ("other label", True)])
def test_what_the_label_alone_gives_away_is_no_recovery(control: str, is_wrong: bool) -> None:
    """Each label is a brightness: who knows the label knows that much, and so do strangers of it.

    Compared with strangers of the other label, every round would look like a recovery.
    """
    labels = np.repeat([0, 1, 0], [2, 200, 200])
    count = 0
    for trial in range(100):
        rng = stream(trial, "labels")
        images = labels[:, None] / 2 + rng.random((402, PIXELS)) / 50
        known = RoundImages(
            images[:2],
            images[2:],
            labels=labels[:2] if control == "same label" else 1 - labels[:2],
            stranger_labels=labels[2:],
            dealt=400,
        )
        guess = np.full((2, PIXELS), 0.01)
        count += recovery(guess, known, chance=CHANCE, rng=rng).recovered > 0
    assert count == 100 if is_wrong else count <= 8  # one expected, beyond 8 with a chance of 1e-6


def test_too_few_strangers_test_nothing_and_strangers_of_unknown_origin_are_named() -> None:
    rng = stream(0, "few")
    known = round_of(rng, dealt=0)
    assert not recovery(known.originals, known, chance=CHANCE, rng=rng).is_dealt
    few = RoundImages(known.originals, known.strangers[:98], dealt=98)
    found = recovery(known.originals, few, chance=CHANCE, rng=rng)
    assert (found.recovered, found.tested) == (0, 0)


def test_no_record_is_in_two_batches_and_each_batch_has_the_labels_of_the_originals() -> None:
    rng = stream(0, "batches")
    labels, kinds = np.array([0, 0, 0, 1, 2]), rng.integers(0, 3, size=600)
    known = RoundImages(np.zeros((5, 1)), np.zeros((600, 1)), labels, kinds)
    tested, strangers = _drawn(known, 600, 99, rng)
    assert len(np.unique(strangers)) == len(strangers) == 99 * len(tested)
    assert np.array_equal(np.bincount(kinds[strangers]), 99 * np.bincount(labels[tested]))
    assert np.array_equal(np.bincount(labels[tested]), [np.sum(kinds == 0) // 99, 1, 1])


@pytest.mark.parametrize("shape", [(4, 8, 8), (2, 1, 5, 7), (3, 3, 32, 32)])
def test_pixels_come_back(shape: tuple[int, ...]) -> None:
    image = pytest.importorskip("PIL.Image")
    rows = [np.random.default_rng(i).random(shape) for i in (0, 1)]
    content = png(rows, "ε ≥ 1, two rows")
    seen = np.asarray(image.open(io.BytesIO(content)))
    size = round(64 / max(shape[-2:]))
    first = rows[1][0, :, 0, 0] if len(shape) == 4 else rows[1][0, 0, 0]
    at = seen[seen.shape[0] // 2, 0]  # the top left pixel of the second row
    assert np.allclose(at, np.rint(255 * first))
    assert seen.shape[0] > 2 * size * shape[-2]


def test_captions_come_back_and_other_files_have_none() -> None:
    content = png([np.zeros((1, 8, 8))], "ε ≥ 1")
    assert content.startswith(SIGNATURE)
    assert caption_of(content) == "ε ≥ 1"
    for other in (b"", b"text", SIGNATURE, content[:40], SIGNATURE + b"\xff" * 20):
        assert caption_of(other) == ""


def test_the_same_images_give_the_same_bytes() -> None:
    rows = [np.linspace(0, 1, 64).reshape(1, 8, 8)]
    assert png(rows, "x") == png(rows, "x")
