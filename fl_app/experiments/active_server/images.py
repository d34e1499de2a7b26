"""Images of a batch, out of one client's update or out of a sum, by a model crafted for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.reconstruction import psnr
from leakmeter.fl_app.experiments.active_server.attacks import (
    Honest,
    InconsistentModel,
    Played,
)
from leakmeter.fl_app.experiments.active_server.federation import Federation
from leakmeter.fl_app.experiments.active_server.perceptron import Weights, trap, trapped
from leakmeter.fl_app.experiments.active_server.server import Server

Pictures = NDArray[np.floating[Any]]

_CEILING = 60.0  # dB; beyond it nobody sees a difference, and a perfect image has no finite PSNR


class TrapForOne(InconsistentModel):
    """A trap for the target and dead units for the others: the target's images one by one."""

    name = "trap for the target"
    what = "sends the target a model that separates its images, and the others dead units"

    def model(self, federation: Federation) -> Weights:
        """Return the trap."""
        return trap(federation.weights, federation.brightness)


class TrapForAll(Honest):
    """The same trap for all clients: images of all of them, but not whose they are."""

    name = "one trap for all"
    what = "sends all clients the same model that separates images"

    def play(self, server: Server) -> Played:
        """Play a round with the trap as the model."""
        self.weights = trap(server.federation.weights, server.federation.brightness)
        seen = server.round(self.relay, weights=self.weights)
        return Played(seen, self.opened(seen))


def recovered(played: Played, weights: Weights, count: int) -> Pictures:
    """Return at least `count` images that a server reads, black where it reads none."""
    pixels = weights["w1"].shape[1]
    if played.opened is None:
        return np.zeros((count, pixels))
    found = trapped(played.opened.vector, weights)
    return np.vstack([found, np.zeros((max(count - len(found), 0), pixels))])


def quality(originals: Pictures, images: Pictures) -> list[float]:
    """Return the PSNR in dB of each original in its best reconstruction, up to a ceiling."""
    return [min(float(value), _CEILING) for value in psnr(originals, images)]


def best(originals: Pictures, images: Pictures) -> Pictures:
    """Return for each original the reconstruction that is nearest to it, for people to see."""
    errors = ((originals[:, None] - images[None]) ** 2).mean(axis=2)
    nearest: Pictures = images[errors.argmin(axis=1)]
    return nearest
