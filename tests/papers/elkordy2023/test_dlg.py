"""Reconstruction over the number of clients: what comes back, the controls, and the pictures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.task import build_model
from leakmeter.papers.base import Table, write_table
from leakmeter.papers.elkordy2023 import dlg
from leakmeter.papers.elkordy2023.dlg import (
    Side,
    mean_gradient,
    packed,
    play,
    unpacked,
)
from leakmeter.papers.plot import Gallery, Strip, picture_figure
from tests.helpers.project import ROOT
from tests.papers.small import Reproduced

(CASE,) = dlg._SCALES["small"]
QUICK = replace(CASE, users=(1, 2), targets=1, attacks=(replace(CASE.attacks[0], steps=20),))


@pytest.mark.slow
def test_one_clients_images_come_back_and_far_less_from_a_sum(reproduced: Reproduced) -> None:
    cells = reproduced("dlg-users").cells
    alone, pair, many = (cells[f"{CASE.key}-n{n}"] for n in (1, 2, 8))
    reached = [np.mean(found["psnr"]) for found in (alone, pair, many)]
    assert reached == sorted(reached, reverse=True)
    for control in ("strangers", "mean image", "black image"):
        assert reached[0] > np.mean(alone[control]) + 15
    # Eight clients: no closer to the target's image than to that of somebody who was not there.
    assert abs(reached[2] - np.mean(many["strangers"])) < 3
    assert reached[2] < np.mean(many["mean image"]) + 1


@pytest.mark.slow
def test_information_falls_with_the_clients_as_a_gaussian_model_has_it(
    reproduced: Reproduced,
) -> None:
    rows = {int(row["N"]): row for row in reproduced("dlg-users").rows}
    assert rows[1]["log-det MI [bits]"] == "∞"
    for users in (2, 8):
        value, error = map(float, rows[users]["log-det MI [bits]"].split(" ± "))
        assert abs(value - float(rows[users]["Gaussian [bits]"])) < 4 * error
    assert float(rows[2]["Gaussian [bits]"]) > 4 * float(rows[8]["Gaussian [bits]"])


def test_the_attack_is_tuned_on_the_attackers_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, own = dlg.sides("digits")
    tuned = dlg.rehearse(QUICK, 2)
    reached = dlg.attack_clients(QUICK, 2, 0)
    other = Side("clients", 1 - clients.x, clients.y)
    monkeypatch.setattr(dlg, "sides", lambda _: (other, own))
    assert dlg.rehearse(QUICK, 2) == tuned
    monkeypatch.setattr(dlg, "sides", lambda _: (clients, Side("attacker", 1 - own.x, own.y)))
    again = dlg.attack_clients(QUICK, 2, 0)
    assert {k for k in reached if again[k] != reached[k]} == {"mean image"}
    assert dlg.rehearse(QUICK, 2) != tuned


def test_clients_and_attacker_share_no_image() -> None:
    clients, own = dlg.sides("digits")
    together = {image.tobytes() for image in clients.x} & {image.tobytes() for image in own.x}
    assert not together


def test_the_target_is_the_same_whatever_the_number_of_clients() -> None:
    clients, _ = dlg.sides("digits")
    one, two = (play(QUICK, clients, n, QUICK.attacks[0], 0) for n in (1, 2))
    np.testing.assert_array_equal(one["truth"], two["truth"])
    other = play(QUICK, clients, 1, QUICK.attacks[0], 1)
    assert (other["truth"] != one["truth"]).any()


def test_who_seeks_all_images_finds_the_targets_where_who_seeks_one_does_not() -> None:
    clients, _ = dlg.sides("digits")
    case = replace(CASE, seeks_all=True)
    attack = CASE.attacks[0]
    alone, every = (
        np.mean([play(c, clients, 2, attack, i)["psnr"] for i in range(2)]) for c in (CASE, case)
    )
    assert every > alone + 3


@pytest.mark.parametrize("model", ["slp", "mlp"])
def test_the_mean_of_fedsgd_updates_is_the_gradient_of_all_images_together(model: str) -> None:
    net = build_model(model, (8, 8), 10, seed=0)
    rng = stream(0, "images")
    x, y = rng.random((12, 8, 8), dtype=np.float32), rng.integers(0, 10, 12)
    found = mean_gradient(net, x, y, np.arange(12).reshape(3, 4))
    loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y))
    slopes = torch.autograd.grad(loss, list(net.parameters()))
    expected = torch.cat([slope.reshape(-1) for slope in slopes]).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_pictures_survive_as_text_up_to_a_byte() -> None:
    images = stream(0, "pictures").random((11, 3, 5, 7), dtype=np.float32)
    again = unpacked(packed(images), (3, 5, 7))
    assert again.shape == (8, 3, 5, 7)
    assert np.abs(again - images[:8]).max() <= 0.5 / 255 + 1e-6
    assert packed(again) == packed(images)


def _gallery() -> Gallery:
    grey, colour = np.linspace(0, 1, 32).reshape(2, 4, 4), np.linspace(0, 1, 96).reshape(2, 3, 4, 4)
    return Gallery("t", (Strip("grey", grey), Strip("colour", colour)))


def test_a_gallery_is_a_picture_on_the_page(tmp_path: Path) -> None:
    write_table(Table("t", ("a",), ((1,),), figures={"pictures.png": _gallery()}), tmp_path)
    assert (tmp_path / "pictures.png").read_bytes() == picture_figure(_gallery())
    assert "![t](pictures.png)" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_a_gallery_is_the_same_bytes_in_every_process() -> None:
    code = (
        "import sys\n"
        "from tests.papers.elkordy2023.test_dlg import _gallery, picture_figure\n"
        "sys.stdout.buffer.write(picture_figure(_gallery()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT)
    assert done.stdout == picture_figure(_gallery())


def test_pictures_keep_their_colours_and_their_order(tmp_path: Path) -> None:
    from matplotlib.image import imread

    red, blue = np.zeros((2, 3, 8, 8))
    red[0] = blue[2] = 1.0
    path = tmp_path / "pictures.png"
    path.write_bytes(picture_figure(Gallery("t", (Strip("s", np.stack([red, blue])),))))
    pixels = imread(path)[..., :3]
    is_red = (pixels == [1, 0, 0]).all(axis=-1)
    is_blue = (pixels == [0, 0, 1]).all(axis=-1)
    assert is_red.sum() > 1000
    assert np.nonzero(is_red)[1].max() < np.nonzero(is_blue)[1].min()
