"""What a malicious server reads of one client, by what its clients check.

Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS), in
its variant against an active server; Bell et al. 2020 (CCS), section 4; Pasquini et al. 2022
(arXiv:2111.07380); Fowl et al. 2022 (arXiv:2110.13057).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.reconstruction import psnr
from leakmeter.fl_app.engines.inline import within_a_run
from leakmeter.fl_app.experiments.active_server.attacks import (
    ATTACKS,
    NONE,
    REMAINING,
    TRAP_FOR_ALL,
    TRAP_FOR_ONE,
)
from leakmeter.fl_app.experiments.active_server.federation import Federation, Mode, Shape
from leakmeter.fl_app.experiments.active_server.server import Attack, Opened, Server
from leakmeter.fl_app.experiments.base import Cells, Table
from leakmeter.fl_app.experiments.plot import Gallery, Strip

MODES: tuple[Mode, ...] = get_args(Mode)
# Relative error below which an update counts as read, and PSNR in dB above which an image does.
EXACT, CLEAR = 1e-3, 30.0
_CEILING = 60.0  # dB; beyond it nobody sees a difference, and a perfect image has no finite PSNR
_SIDE = 8  # pixels of an image

Pictures = NDArray[np.floating[Any]]
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Scale:
    """How often everything is played, and with whom.

    Attributes:
        rounds: Trials of each attack in the last mode, where none must get through.
        few: Trials where all get through or none: in the other modes, and of what remains.
        shape: Size of the federation.
    """

    rounds: int
    few: int
    shape: Shape

    @property
    def redrawn(self) -> Shape:
        """The same federation, whose clients train on half of their images in each round."""
        return replace(self.shape, batch=2 * self.shape.batch, drawn=self.shape.batch)


_SCALES = {"paper": Scale(1000, 100, Shape()), "small": Scale(1, 1, Shape())}


def run(scale: str, cells: Cells) -> Table:
    """Play every attack in every mode, and what remains in the last."""
    size, last = _SCALES[scale], MODES[-1]

    def cell(measure: Callable[..., Any], attack: Attack, mode: Mode, trials: int) -> Any:
        key = f"{scale}-{mode}-{attack.name.replace(' ', '-')}"
        return cells.get(key, partial(measure, attack, size.shape, mode, trials))

    trials = dict.fromkeys(MODES, size.few) | {last: size.rounds}
    counts = {a: {m: cell(attacked, a, m, trials[m]) for m in MODES} for a in (NONE, *ATTACKS)}
    counts |= {attack: {last: cell(attacked, attack, last, size.few)} for attack in REMAINING}
    redrawn = cells.get(
        f"{scale}-redrawn", partial(attacked, REMAINING[0], size.redrawn, last, size.few)
    )
    one, every = (
        {mode: cell(images, trap, mode, size.few) for mode in MODES}
        for trap in (TRAP_FOR_ONE, TRAP_FOR_ALL)
    )
    return Table(
        title=f"What a malicious server reads of one client in secure sums of {size.shape.clients} "
        f"clients, threshold {size.shape.threshold}",
        columns=("attack", "the server", *MODES, "clients refuse"),
        rows=tuple(_row(attack, by_mode) for attack, by_mode in counts.items()),
        notes=_notes(size, redrawn, one, every[last]),
        figures={"images.png": _gallery(one, every[last])},
    )


class _Trial(NamedTuple):
    """What came of one trial."""

    refused: list[str]
    members: int = 0
    error: float = np.inf
    is_sum: bool = False


def attacked(attack: Attack, shape: Shape, mode: Mode, trials: int) -> dict[str, Any]:
    """Play an attack many times and count.

    Returns:
        Of all "trials" those in which the server has "read" a sum over fewer clients than the
        threshold; the "members" of the sum that it says it has read; the trials in which "sums"
        with the target in them came out; the median relative "error" of what it says it has read,
        None if it never did; and stage to the trials in which some client has "refused" it.
    """

    def look(federation: Federation, opened: Opened | None, refused: list[str]) -> _Trial:
        if opened is None:
            return _Trial(refused)
        error = _error(opened, federation.truth, attack.unread)
        return _Trial(refused, len(opened.members), error, opened.is_sum)

    found = _each(attack, shape, mode, trials, look)
    errors = [trial.error for trial in found if trial.members]
    return {
        "trials": trials,
        "read": sum(t.error <= EXACT and t.members < shape.threshold for t in found),
        "members": max(trial.members for trial in found),
        "sums": sum(trial.is_sum for trial in found),
        "error": float(np.median(errors)) if errors else None,
        "refused": dict(Counter(stage for trial in found for stage in trial.refused)),
    }


def images(attack: Attack, shape: Shape, mode: Mode, trials: int) -> dict[str, Any]:
    """Set a trap many times; return what comes back of the target's images, and of everyone's."""

    def look(federation: Federation, opened: Opened | None, _: object) -> tuple[Pictures, ...]:
        everyone = np.concatenate([batch.images for batch in federation.batches.values()])
        found = np.zeros_like(everyone)  # black where the server reads nothing
        if opened is not None:
            read = federation.network.trapped(opened.vector)
            found = np.vstack([read, found[len(read) :]])
        own = everyone[: shape.batch]
        nearest = found[((own[:, None] - found[None]) ** 2).mean(axis=2).argmin(axis=1)]
        guess = np.repeat(federation.mean_image, shape.batch, axis=0)
        qualities = (_quality(own, found), _quality(everyone, found), _quality(own, guess))
        return own, nearest, *qualities

    own, nearest, *qualities = zip(*_each(attack, shape, mode, trials, look), strict=True)
    target, every, guess = map(np.stack, qualities)  # (trials, images)
    return {
        "trials": trials,
        "psnr": float(np.median(target)),
        "guess": float(np.median(guess)),
        "clear": float(np.mean(target >= CLEAR)),
        "clear of all": float((every >= CLEAR).sum(axis=1).mean()),
        "shown": {
            name: np.round(rows[0], 3).tolist()
            for name, rows in (("target", own), ("found", nearest))
        },
    }


def _each(
    attack: Attack,
    shape: Shape,
    mode: Mode,
    trials: int,
    look: Callable[[Federation, Opened | None, list[str]], Seen],
) -> list[Seen]:
    """Play an attack many times, each time with other images; return what to look at in each."""

    def play() -> list[Seen]:
        federation = Federation(shape, mode)
        server, seen = Server(federation, attack), []
        for trial in range(trials):
            federation.deal(trial)
            seen.append(look(federation, *server.play()))
        return seen

    return within_a_run(play)


def _error(opened: Opened, updates: Mapping[int, Vector], unread: int) -> float:
    """Return how far a sum is from the truth, over the coordinates that the server vouches for."""
    truth = np.sum([updates[number] for number in opened.members], axis=0)
    read = slice(len(truth) - unread)
    distance = np.linalg.norm(opened.vector[read] - truth[read])
    return float(distance / np.linalg.norm(truth[read]))


def _quality(originals: Pictures, images: Pictures) -> Pictures:
    """Return the PSNR in dB of each original in its best reconstruction, up to a ceiling."""
    return np.minimum(psnr(originals, images), _CEILING)


def _row(attack: Attack, by_mode: Mapping[Mode, Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return an attack with what it reads in each mode."""
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
    size: Scale, redrawn: Mapping[str, Any], one: Mapping[Mode, Any], every: Mapping[str, Any]
) -> tuple[str, ...]:
    shape, halved = size.shape, size.redrawn
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
        f"Images of the target, {shape.batch} a round: the target gets a model that separates "
        f"them, the others dead units. Median PSNR: {qualities}; the mean image of the server's "
        f"own data has {one[MODES[0]]['guess']:.1f} dB.",
        "",
        "What remains in active: the last rows, and one crafted model for all. A server that sends "
        f"all clients the same trap reads {every['clear of all']:.1f} of "
        f"{shape.clients * shape.batch} images above {CLEAR:g} dB from an honest sum, without "
        "knowing whose they are. Two sums with and without the target differ by its update "
        "exactly, because clients here train on all their images. If each draws "
        f"{halved.drawn} of {halved.batch} images in every round, the relative error is "
        f"{redrawn['error']:.1f}.",
    )


def _gallery(one: Mapping[Mode, Any], every: Mapping[str, Any]) -> Gallery:
    """Return the target's images of one round, and what the server makes of them."""
    rows = {"target's images": one[MODES[0]]["shown"]["target"]}
    rows |= {f"read, {mode}": one[mode]["shown"]["found"] for mode in MODES}
    rows[f"one trap for all, {MODES[-1]}"] = every["shown"]["found"]
    strips = (Strip(label, np.reshape(row, (-1, _SIDE, _SIDE))) for label, row in rows.items())
    return Gallery("Images read by a server that crafts the model", tuple(strips))
