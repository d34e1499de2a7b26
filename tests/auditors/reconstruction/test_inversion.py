"""The sum of a round gives images away, and as many strangers are the measure of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.auditor import Canary, DivergedError, Project, RoundFacts, RoundView
from leakmeter.auditors.checks import check_auditor
from leakmeter.auditors.reconstruction.attack import Attack
from leakmeter.auditors.reconstruction.inversion import (
    Inversion,
    RoundImages,
    _Compared,
    caption_of,
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
