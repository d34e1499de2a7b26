"""Counts over many rounds: how often an attack reads what it should not, and how exactly."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leakmeter.fl_app.engines.inline import within_a_run
from leakmeter.fl_app.experiments.active_server.attacks import Attack, Opened
from leakmeter.fl_app.experiments.active_server.federation import Federation, Mode, Shape
from leakmeter.fl_app.experiments.active_server.images import (
    TrapForAll,
    TrapForOne,
    best,
    quality,
    recovered,
)
from leakmeter.fl_app.experiments.active_server.server import Server

# Relative error below which an update counts as read, and PSNR above which an image does.
EXACT, CLEAR = 1e-3, 30.0


@dataclass(frozen=True)
class Count:
    """What came of many trials of one attack.

    Attributes:
        trials: How many were played.
        read: Trials in which the server has read a sum over fewer clients than the threshold.
        members: Clients in the sum that it says it has read, the target among them.
        sums: Trials in which a sum with the target in it came out.
        error: Median relative error of what the server says it has read; None if it never did.
        refused: Stage to the trials in which some client has refused it.
    """

    trials: int
    read: int
    members: int
    sums: int
    error: float | None
    refused: dict[str, int]


def attacked(make: type[Attack], shape: Shape, mode: Mode, trials: int) -> dict[str, Any]:
    """Play an attack many times, each time with other images, and count."""
    return asdict(within_a_run(lambda: _attacked(make, shape, mode, trials)))


def _attacked(make: type[Attack], shape: Shape, mode: Mode, trials: int) -> Count:
    federation = Federation(shape, mode)
    server = Server(federation)
    errors, sizes, read, sums = [], set(), 0, 0
    refused: Counter[str] = Counter()
    for trial in range(trials):
        federation.deal(trial)
        played = make(shape).play(server)
        sums += played.seen.has_sum
        refused.update(played.seen.refusals.keys())
        if (opened := played.opened) is None:
            continue
        errors.append(relative_error(opened, federation))
        sizes.add(len(opened.members))
        read += errors[-1] <= EXACT and len(opened.members) < shape.threshold
    error = float(np.median(errors)) if errors else None
    return Count(trials, read, max(sizes, default=0), sums, error, dict(refused))


def relative_error(opened: Opened, federation: Federation) -> float:
    """Return how far a sum is from the truth, over the coordinates that the server vouches for."""
    truth = np.sum([federation.truth[n] for n in opened.members], axis=0)
    read = slice(None) if opened.read is None else opened.read
    length = np.linalg.norm(truth[read])
    return float(np.linalg.norm(opened.vector[read] - truth[read]) / length)


def images(make: type[TrapForOne | TrapForAll], shape: Shape, mode: Mode, trials: int) -> Any:
    """Set a trap many times; return what comes back of the target's images, and of everyone's."""
    return within_a_run(lambda: _images(make, shape, mode, trials))


def _images(make: type[TrapForOne | TrapForAll], shape: Shape, mode: Mode, trials: int) -> Any:
    federation = Federation(shape, mode)
    server = Server(federation)
    target, clear, guess, shown = [], [], [], {}
    for trial in range(trials):
        federation.deal(trial)
        attack = make(shape)
        played = attack.play(server)
        batches = [batch.images for batch in federation.batches.values()]
        everyone = np.concatenate(batches)
        found = recovered(played, attack.weights, len(everyone))
        target += quality(batches[0], found)
        clear.append(sum(value >= CLEAR for value in quality(everyone, found)))
        guess += quality(batches[0], np.repeat(federation.mean_image, shape.batch, axis=0))
        if not trial:
            shown = {"target": batches[0], "found": best(batches[0], found)}
    return {
        "trials": trials,
        "psnr": float(np.median(target)),
        "guess": float(np.median(guess)),
        "clear": float(np.mean([value >= CLEAR for value in target])),
        "clear of all": float(np.mean(clear)),
        "shown": {name: np.round(rows, 3).tolist() for name, rows in shown.items()},
    }
