"""Whether an app trains as it does without the audit: two runs, replies compared bit for bit.

Seats send canaries, so from round 2 on the model differs from that of a run without an audit. The
run without it therefore gets the same canaries: clients train as they are, without our mods, and
then the arrays of a seat are replaced by those that it has sent under the audit. All else must be
equal: each reply of the others, each seat's own metrics, and who trains when.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Answer
from leakmeter.auditors.hook.wire import from_scalars
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.audit_app.session import (
    MODS,
    AppAudit,
    Legacy,
    Mod,
    is_training,
    loaded,
    run_here,
)

EQUAL, DIFFERENT, UNABLE = 0, 3, 4  # exit codes
_MAX_SHOWN: Final = 5
_WHY: Final = (
    "Why: the audit may have moved a generator that all code of the process shares (random, "
    "numpy.random, torch), or the app keeps something between two trainings outside context.state."
)
_OWN: Final = (
    "Two runs without the audit differ from one another too, from the same seed of random, "
    "numpy.random and torch. So this app cannot show whether the audit changes anything. It draws "
    "from an unseeded generator, measures time, or starts threads or processes of its own."
)

Training = tuple[int, int]  # a client, and which of its trainings: 1, 2, …


@dataclass(frozen=True)
class RunReplies:
    """What clients replied with in one run.

    Attributes:
        parts: Of each training, the digest of every array and value, by its name.
        canaries: Arrays that seats sent in place of their own.
    """

    parts: dict[Training, dict[str, str]] = field(default_factory=dict)
    canaries: dict[Training, ArrayRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplyComparison:
    """How the two runs differ.

    Attributes:
        trainings: How many were compared.
        seats: How many of them were replaced by a canary.
        differing: What differs, by training.
        is_reproducible: Whether two runs without the audit are equal; None if nobody had to try.
    """

    trainings: int
    seats: int
    differing: Mapping[Training, tuple[str, ...]]
    is_reproducible: bool | None = None

    @property
    def code(self) -> int:
        """The exit code."""
        if self.trainings == 0 or self.is_reproducible is False:
            return UNABLE
        return DIFFERENT if self.differing else EQUAL

    def lines(self) -> Iterator[str]:
        """Yield what came of it, the conclusion first."""
        honest = counted(self.trainings - self.seats, "training")
        seats = counted(self.seats, "seat")
        if not self.trainings:
            yield "cannot tell: no client was asked to train with an ArrayRecord"
        elif not self.differing:
            yield f"equal: {honest} of honest clients, bit for bit; {seats} sent canaries"
        else:
            word = "cannot tell" if self.code == UNABLE else "different"
            yield f"{word}: {len(self.differing)} of {self.trainings} trainings differ"
            yield from self._shown()
            yield _OWN if self.code == UNABLE else _WHY

    def _shown(self) -> Iterator[str]:
        for (client, number), names in sorted(self.differing.items())[:_MAX_SHOWN]:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"  client {client}, training {number}: {', '.join(names[:3])}{more}"
        if (left := len(self.differing) - _MAX_SHOWN) > 0:
            yield f"  … and {left} more"


def compare(audit: AppAudit) -> ReplyComparison:
    """Run the app with and without its audit; once more without it where replies differ."""
    with tempfile.TemporaryDirectory(prefix="leakmeter-") as folder:
        audited = _run(replace(audit, out=Path(folder) / "run"), MODS)
    plain = _run(audit, (), audited.canaries)
    differing = _differences(audited, plain)
    is_same = None
    if differing:
        is_same = not _differences(_run(audit, (), audited.canaries), plain)
    return ReplyComparison(len(audited.parts), len(audited.canaries), differing, is_same)


def _run(
    audit: AppAudit, mods: tuple[Mod, ...], canaries: Mapping[Training, ArrayRecord] | None = None
) -> RunReplies:
    """Run the app from fixed seeds; with `mods` under the audit, else with these `canaries`."""
    _seed_everything()
    legacy = Legacy(audit)
    with loaded(audit.project, mods, legacy if mods else None) as app:
        client = _Watched(app.client, canaries or {})
        failed = run_here(
            audit, app.server, client, legacy.watch(app.noted) if mods else nullcontext
        )
    if failed:
        raise failed[0]
    return client.replies


def _seed_everything() -> None:
    """Let both runs begin alike, as far as a seed can do it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the app's own code may use it
    torch.manual_seed(0)


class _Watched:
    """A client app whose replies are noted, and replaced where the other run played a canary."""

    def __init__(self, app: ClientApp, canaries: Mapping[Training, ArrayRecord]) -> None:
        self._app, self._given = app, canaries
        self._counts: dict[int, int] = {}
        self.replies = RunReplies()

    def __call__(self, message: Message, context: Context) -> Message:
        reply = self._app(message, context)
        if not is_training(message):
            return reply
        client = int(context.node_config["partition-id"])
        number = self._counts[client] = self._counts.get(client, 0) + 1
        self._note((client, number), reply)
        return reply

    def _note(self, training: Training, reply: Message) -> None:
        if reply.has_error():
            self.replies.parts[training] = {"error": str(reply.error.reason)}
            return
        answer = Answer.of(RecordDict({**reply.content, **_answers(reply.content)}))
        is_seat = training in self._given
        if answer is not None and answer.outcome == "played":
            is_seat = True
            sent = ArrayRecord(dict(wire.arrays(reply.content)))
            self.replies.canaries[training] = sent
        self.replies.parts[training] = dict(_parts(reply.content, with_arrays=not is_seat))
        if training in self._given:
            # A copy, since the legacy API empties what it has read.
            wire.replace_arrays(reply, ArrayRecord(dict(self._given[training])))


def _answers(content: RecordDict) -> dict[str, Any]:
    """Return what our mods have answered in a reply of the legacy API, among its metrics."""
    configs = content.config_records.values()
    return {k: v for config in configs for k, v in from_scalars(config, ConfigRecord).items()}


def _parts(content: RecordDict, *, with_arrays: bool) -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of every array and value that is not ours."""
    for key, record in content.items():
        if wire.is_ours(key) or (isinstance(record, ArrayRecord) and not with_arrays):
            continue
        for name, value in record.items():
            if wire.is_ours(name):  # in a reply of the legacy API
                continue
            yield f"{key}.{name}", _digest(value)


def _digest(value: Any) -> str:
    if hasattr(value, "data"):  # an Array: bytes with a type and a shape
        parts = (value.dtype, value.stype, tuple(value.shape), value.data)
        return sha256(repr(parts).encode()).hexdigest()
    return sha256(repr(value).encode()).hexdigest()


def _differences(one: RunReplies, other: RunReplies) -> dict[Training, tuple[str, ...]]:
    """Return what differs, by training."""
    found: dict[Training, tuple[str, ...]] = {}
    for training in sorted({*one.parts, *other.parts}):
        ours, theirs = one.parts.get(training), other.parts.get(training)
        if ours is None or theirs is None:
            found[training] = ("took place in one of the two runs only",)
        elif names := [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]:
            found[training] = tuple(names)
    return found
