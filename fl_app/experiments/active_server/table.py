"""What a malicious server reads of one client, by what its clients check.

Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS), in
its variant against an active server; Bell et al. 2020 (CCS), section 4; Pasquini et al. 2022
(arXiv:2111.07380); Fowl et al. 2022 (arXiv:2110.13057).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np

from leakmeter.fl_app.experiments.active_server.attacks import ATTACKS, Attack, Honest
from leakmeter.fl_app.experiments.active_server.federation import Mode, Shape
from leakmeter.fl_app.experiments.active_server.images import TrapForAll, TrapForOne
from leakmeter.fl_app.experiments.active_server.measure import CLEAR, attacked, images
from leakmeter.fl_app.experiments.active_server.remaining import REMAINING, ChosenCohorts
from leakmeter.fl_app.experiments.base import Cells, Table
from leakmeter.fl_app.experiments.plot import Gallery, Strip

MODES: tuple[Mode, ...] = get_args(Mode)


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
_SIDE = 8  # pixels of an image


def run(scale: str, cells: Cells) -> Table:
    """Play every attack in every mode, and what remains in the last."""
    size = _SCALES[scale]

    def count(kind: type[Attack], mode: Mode) -> Any:
        is_claim = mode == MODES[-1] and kind not in REMAINING
        rounds = size.rounds if is_claim else size.few
        play = partial(attacked, kind, size.shape, mode, rounds)
        return cells.get(_key(scale, mode, kind), play)

    kinds: tuple[type[Attack], ...] = (Honest, *ATTACKS)
    counts = {kind: {mode: count(kind, mode) for mode in MODES} for kind in kinds}
    counts |= {kind: {MODES[-1]: count(kind, MODES[-1])} for kind in REMAINING}
    redrawn = cells.get(
        f"{scale}-redrawn", partial(attacked, ChosenCohorts, size.redrawn, MODES[-1], size.few)
    )
    traps = {
        kind: {
            mode: cells.get(
                _key(scale, mode, kind), partial(images, kind, size.shape, mode, size.few)
            )
            for mode in MODES
        }
        for kind in (TrapForOne, TrapForAll)
    }
    return Table(
        title=f"What a malicious server reads of one client in secure sums of {size.shape.clients} "
        f"clients, threshold {size.shape.threshold}",
        columns=("attack", "the server", *MODES, "clients refuse"),
        rows=tuple(_row(kind, by_mode) for kind, by_mode in counts.items()),
        notes=_notes(size, redrawn, traps),
        figures={"images.png": _gallery(traps)},
    )


def _key(scale: str, mode: Mode, kind: type[Attack]) -> str:
    return f"{scale}-{mode}-{kind.name.replace(' ', '-')}"


def _row(kind: type[Attack], by_mode: Mapping[Mode, Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return an attack with what it reads in each mode."""
    told = [_words(by_mode[mode]) if mode in by_mode else "" for mode in MODES]
    stages = by_mode[MODES[-1]]["refused"]
    return (kind.name, kind.what, *told, ", ".join(stages))


def _words(count: Mapping[str, Any]) -> str:
    """Return what came of an attack, such as "1000 of 1000 read (error 7e-07)"."""
    trials, read, sums, members = (count[n] for n in ("trials", "read", "sums", "members"))
    whose = "" if members == 1 else f"sum of {members}, "
    if read:
        return f"{read} of {trials} read ({whose}error {count['error']:.0e})"
    if sums:
        return f"sum of {members} in {sums} of {trials}"
    return f"0 of {trials} read, all abandoned"


def _notes(size: Scale, redrawn: Mapping[str, Any], traps: Mapping[Any, Any]) -> tuple[str, ...]:
    one = {mode: traps[TrapForOne][mode] for mode in MODES}
    every = traps[TrapForAll][MODES[-1]]
    shape, halved = size.shape, size.redrawn
    total = shape.clients * shape.batch
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
        f"all clients the same trap reads {every['clear of all']:.1f} of {total} images above "
        f"{CLEAR:g} dB from an honest sum, without knowing whose they are. Two sums with and "
        "without the target differ by its update exactly, because clients here train on all their "
        f"images. If each draws {halved.drawn} of {halved.batch} images in every round, the "
        f"relative error is {redrawn['error']:.1f}.",
    )


def _gallery(traps: Mapping[Any, Any]) -> Gallery:
    """Return the target's images of one round, and what the server makes of them."""
    strips = [Strip("target's images", _pictures(traps[TrapForOne][MODES[0]]["shown"]["target"]))]
    strips += [
        Strip(f"read, {mode}", _pictures(traps[TrapForOne][mode]["shown"]["found"]))
        for mode in MODES
    ]
    shared = traps[TrapForAll][MODES[-1]]["shown"]["found"]
    strips.append(Strip(f"one trap for all, {MODES[-1]}", _pictures(shared)))
    return Gallery("Images read by a server that crafts the model", tuple(strips))


def _pictures(rows: Sequence[Sequence[float]]) -> Any:
    return np.reshape(rows, (-1, _SIDE, _SIDE))
