"""What a malicious server reads of one client, by what its clients check.

Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS), in
its variant against an active server; Bell et al. 2020 (CCS), section 4; Pasquini et al. 2022
(arXiv:2111.07380); Fowl et al. 2022 (arXiv:2110.13057).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.reconstruction.attack import psnr
from leakmeter.papers.active_server.attacks import (
    ATTACKS,
    NONE,
    REMAINING,
    TRAP_FOR_ALL,
    TRAP_FOR_ONE,
)
from leakmeter.papers.active_server.federation import Federation, Mode, Shape
from leakmeter.papers.active_server.oracle import questioned
from leakmeter.papers.active_server.server import Attack, Opened, Server
from leakmeter.papers.base import Cells, Table, within_a_run
from leakmeter.papers.plot import Gallery, Strip

MODES: tuple[Mode, ...] = get_args(Mode)
# Relative error below which an update counts as read, and PSNR in dB above which an image does.
EXACT, CLEAR = 1e-3, 30.0
_CEILING = 60.0  # dB; beyond it nobody sees a difference
_SIDE = 8  # pixels of an image

Pictures = NDArray[np.floating[Any]]
# What came of one trial: what was read and who refused, the relative error over the coordinates
# that the server vouches for, and the images of all clients, the target's first.
Trial = tuple[Opened | None, list[str], float, Pictures]
# Trials of each attack in the last mode, where none must get through; and where all get through or
# none: in the other modes, and of what remains.
_SCALES = {"paper": (1000, 100), "small": (1, 1)}
_QUESTIONS = {"paper": 1000, "small": 20}  # rounds in which the server looks at answers alone
_SHAPE = Shape()
# The same federation, whose clients train on half of their images in each round.
_REDRAWN = replace(_SHAPE, batch=2 * _SHAPE.batch, drawn=_SHAPE.batch)


def run(scale: str, cells: Cells) -> Table:
    """Play every attack in every mode, and what remains in the last."""
    (many, few), last = _SCALES[scale], MODES[-1]

    def cell(measure: Callable[..., Any], attack: Attack, mode: Mode, trials: int) -> Any:
        key = f"{scale}-{mode}-{attack.name.replace(' ', '-')}"
        return cells.get(key, measure, attack, _SHAPE, mode, trials)

    trials = dict.fromkeys(MODES, few) | {last: many}
    counts = {a: {m: cell(attacked, a, m, trials[m]) for m in MODES} for a in (NONE, *ATTACKS)}
    counts |= {attack: {last: cell(attacked, attack, last, few)} for attack in REMAINING}
    redrawn = cells.get(f"{scale}-redrawn", attacked, REMAINING[0], _REDRAWN, last, few)
    one, every = (
        {mode: cell(images, trap, mode, few) for mode in MODES}
        for trap in (TRAP_FOR_ONE, TRAP_FOR_ALL)
    )
    answers = cells.get(f"{scale}-oracle", questioned, _QUESTIONS[scale])
    return Table(
        title=f"What a malicious server reads of one client in secure sums of {_SHAPE.clients} "
        f"clients, threshold {_SHAPE.threshold}",
        columns=("attack", "the server", *MODES, "clients refuse"),
        rows=tuple(_row(attack, by_mode) for attack, by_mode in counts.items()),
        notes=(*_notes(redrawn, one, every[last]), "", _oracle(answers)),
        figures={"images.png": _gallery(one, every[last])},
    )


def _played(
    attack: Attack, shape: Shape, mode: Mode, trials: int
) -> tuple[Federation, list[Trial]]:
    """Play an attack many times, each time with other images."""
    federation = Federation(shape, mode)
    server = Server(federation, attack)

    def play(trial: int) -> Trial:
        federation.deal(trial)
        opened, refused = server.play()
        error = np.inf
        if opened is not None:
            truth = np.sum([federation.truth[number] for number in opened.members], axis=0)
            read = slice(len(truth) - attack.unread)
            distance = np.linalg.norm(opened.vector[read] - truth[read])
            error = float(distance / np.linalg.norm(truth[read]))
        images = np.concatenate([batch.images for batch in federation.batches.values()])
        return opened, refused, error, images

    return federation, within_a_run(lambda: [play(trial) for trial in range(trials)])


def attacked(attack: Attack, shape: Shape, mode: Mode, trials: int) -> dict[str, Any]:
    """Play an attack many times and count.

    Returns:
        Of all "trials" those in which the server has "read" a sum over fewer clients than the
        threshold; the "members" of the sum that it says it has read; the trials in which "sums"
        with the target in them came out; the median relative "error" of what it says it has read,
        None if it never did; and stage to the trials in which some client has "refused" it.
    """
    _, found = _played(attack, shape, mode, trials)
    said = [(opened, error) for opened, _, error, _ in found if opened is not None]
    return {
        "trials": trials,
        "read": sum(e <= EXACT and len(opened.members) < shape.threshold for opened, e in said),
        "members": max((len(opened.members) for opened, _ in said), default=0),
        "sums": sum(opened.is_sum for opened, _ in said),
        "error": float(np.median([error for _, error in said])) if said else None,
        "refused": dict(Counter(stage for _, refused, *_ in found for stage in refused)),
    }


def images(attack: Attack, shape: Shape, mode: Mode, trials: int) -> dict[str, Any]:
    """Set a trap many times; return what comes back of the target's images, and of everyone's."""
    federation, found = _played(attack, shape, mode, trials)
    guess = np.repeat(federation.mean_image, shape.batch, axis=0)
    qualities, read = [], []
    for opened, _, _, held in found:
        own, seen = held[: shape.batch], np.zeros_like(held)
        if opened is not None:  # black where the server reads nothing
            caught = federation.network.trapped(opened.vector)
            seen = np.vstack([caught, seen[len(caught) :]])
        read.append(seen)
        pairs = ((own, seen), (held, seen), (own, guess))
        # A perfect image has no finite PSNR.
        qualities.append([np.minimum(psnr(*pair), _CEILING) for pair in pairs])
    target, every, guessed = (np.stack(rows) for rows in zip(*qualities, strict=True))
    first = found[0][-1][: shape.batch]
    nearest = ((first[:, None] - read[0][None]) ** 2).mean(axis=2).argmin(axis=1)
    return {
        "trials": trials,
        "psnr": float(np.median(target)),
        "guess": float(np.median(guessed)),
        "clear": float(np.mean(target >= CLEAR)),
        "clear of all": float((every >= CLEAR).sum(axis=1).mean()),
        "shown": {
            "target": np.round(first, 3).tolist(),
            "found": np.round(read[0][nearest], 3).tolist(),
        },
    }


def _row(attack: Attack, by_mode: Mapping[Mode, Mapping[str, Any]]) -> tuple[Any, ...]:
    told = [_words(by_mode[mode]) if mode in by_mode else "" for mode in MODES]
    return (attack.name, attack.what, *told, ", ".join(by_mode[MODES[-1]]["refused"]))


def _words(count: Mapping[str, Any]) -> str:
    """Return what came of an attack, such as "1000 of 1000 read (error 7e-07)"."""
    trials, read, sums, members = (count[n] for n in ("trials", "read", "sums", "members"))
    whose = "" if members == 1 else f"sum of {members}, "
    if read:
        return f"{read} of {trials} read ({whose}error {count['error']:.0e})"
    if sums:
        return f"sum of {members} in {sums} of {trials}"
    return f"0 of {trials} read, all abandoned"


def _notes(
    redrawn: Mapping[str, Any], one: Mapping[Mode, Any], every: Mapping[str, Any]
) -> tuple[str, ...]:
    qualities = ", ".join(f"{mode} {one[mode]['psnr']:.1f} dB" for mode in MODES)
    return (
        "An update counts as read if the relative error is at most 1e-3, in a sum over fewer "
        "clients than the threshold; the error is the median. Abandoned: no sum with the target in "
        "it came out. unbound: the textbook's protocol, in which clients mask and check nothing of "
        "what they are told. curious: the default, which binds it into the masks. active: clients "
        "sign, know each other's keys, insist on the threshold, and keep their keys in files. The "
        "last column has the stages that clients refuse in active; where it is empty nothing is "
        "refused.",
        "",
        f"Images of the target, {_SHAPE.batch} a round: the target gets a model that separates "
        f"them, the others dead units. Median PSNR: {qualities}; the mean image of the server's "
        f"own data has {one[MODES[0]]['guess']:.1f} dB.",
        "",
        "What remains in active: the last rows, and one crafted model for all. A server that sends "
        f"all clients the same trap reads {every['clear of all']:.1f} of "
        f"{_SHAPE.clients * _SHAPE.batch} images above {CLEAR:g} dB from an honest sum, without "
        "knowing whose they are. Two sums with and without the target differ by its update "
        "exactly, because clients here train on all their images. If each draws "
        f"{_REDRAWN.drawn} of {_REDRAWN.batch} images in every round, the relative error is "
        f"{redrawn['error']:.1f}.",
    )


def _oracle(answers: Mapping[str, int]) -> str:
    """Return what answers alone have told the server."""
    rounds, differ, failed = (answers[n] for n in ("rounds", "answers differ", "failed once"))
    told = "0 bits" if not differ else f"something in {differ} rounds"
    return (
        f"Answers alone, in active: {rounds} rounds with crafted models, limits, weights, noise "
        "and canary orders, each put to one client with two data sets. In "
        f"{failed} of them training failed with one of the two and not with the other. Presence, "
        f"code, text, records, types and sizes of the answers differed in {differ}, so they carry "
        f"{told}. Time was not compared."
    )


def _gallery(one: Mapping[Mode, Any], every: Mapping[str, Any]) -> Gallery:
    """Return the target's images of one round, and what the server makes of them."""
    rows = {"target's images": one[MODES[0]]["shown"]["target"]}
    rows |= {f"read, {mode}": one[mode]["shown"]["found"] for mode in MODES}
    rows[f"one trap for all, {MODES[-1]}"] = every["shown"]["found"]
    strips = (Strip(label, np.reshape(row, (-1, _SIDE, _SIDE))) for label, row in rows.items())
    return Gallery("Images read by a server that crafts the model", tuple(strips))
