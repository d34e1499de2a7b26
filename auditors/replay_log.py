"""Keeps what each round released, so that auditors can look at a finished run again."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import (
    Auditor,
    Canary,
    Project,
    RoundFacts,
    RoundView,
    UnableError,
    share_confidence,
)
from leakmeter.auditors.codec import CodecError, Kept, codec, pack, plain, unpack
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.run_log import write_atomically
from leakmeter.auditors.values import Vector
from leakmeter.auditors.wording import counted

FOLDER: Final = "recording"  # inside a run's folder
_PLAN: Final = "plan.json"
_KEPT = frozenset(
    {"server_round", "sent", "released", "facts", "instructed", "sends", "sign", "replies"}
)
_FILES = "round-*.npz"
# Bytes of a parameter per round at most: two models of four, and the mean before and after noise.
_BYTES: Final = 2 * 4 + 2 * 8
_LARGE: Final = 1e9  # bytes that are worth a line
_SHARE: Final = 0.9  # of the free disk: a training that finds no room for its own files is harmed
_MANY: Final = 10_000  # more clients than a plan of canaries has seats in a round

_log = logging.getLogger("flwr")


class AggregateRecorder(Auditor):
    """Writes the model, aggregate and facts of every round to a folder; see `replay`.

    It keeps who replied, but neither replies nor plain updates: they would be as large as all
    clients together.

    Args:
        folder: Where to write, one file per round. A round that is run again replaces its file, and
            round 1 everything that an earlier run has left. None takes the folder `recording`
            inside that of the run.
        about: What to note about the run, in JSON types; the replay command reads settings there.
    """

    name = "recorder"
    reads = frozenset({"sent", "released", "facts", "instructed", "replies"})

    _rounds: Kept[int]  # the rounds themselves are on disk

    def __init__(
        self, folder: str | Path | None = None, *, about: Mapping[str, Any] | None = None
    ) -> None:
        self._own = None if folder is None else Path(folder)
        self._about = dict(about or {})
        self._rounds = 0

    @property
    def _where(self) -> Path | None:
        """The folder of the recording; None as long as the run has no folder either."""
        if self._own is not None or self.folder is None:
            return self._own
        return self.folder / FOLDER

    def begin(self, dim: int, num_rounds: int) -> None:
        """Note what the auditors of a replay will be told."""
        self._rounds = 0
        if (folder := self._where) is None:  # the hook begins again once there is one
            return
        folder.mkdir(parents=True, exist_ok=True)
        plan = RecordedPlan(dim, num_rounds, 1, self._about)
        write_atomically(folder / _PLAN, json.dumps(plain(plan)))

    def limits(self, project: Project) -> Sequence[str]:
        """Say how much disk a large recording takes.

        Raises:
            UnableError: There is no folder to write to, or the disk has no room.
        """
        folder, size = self._folder_or_raise(), project.num_rounds * project.dim * _BYTES
        free = shutil.disk_usage(folder).free
        sizes = f"{project.num_rounds:,} rounds of {project.dim:,} parameters"
        if size > _SHARE * free:
            raise UnableError(
                f"the recording needs up to {size / 1e9:.1f} GB in {folder} ({sizes}), which has "
                f"{free / 1e9:.1f} GB free: free some space, or choose another disk (out)"
            )
        if size <= _LARGE:
            return ()
        return [f"the recording takes up to {size / 1e9:.1f} GB of disk: {sizes}"]

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Write the round."""
        folder = self._folder_or_raise()
        if view.server_round == 1:  # one log per run: rounds that are left are another's
            for old in folder.glob(_FILES):
                old.unlink()
            self._rounds = 0
        kept = {name: getattr(view, name) for name in _KEPT - {"replies"}}
        found = RecordedRound(**kept, replies=tuple(sorted(view.replies)))
        write_atomically(_path(folder, view.server_round), pack(plain(found, _short)))
        self._rounds += 1
        return ()

    def report(self) -> Sequence[Finding]:
        """Say how many rounds are kept."""
        return [
            Finding(
                value=float(self._rounds),
                kind="diagnostic",
                rule=f"{counted(self._rounds, 'round')} kept for a later audit by leakmeter replay",
                auditor=self.name,
                quantity="rounds recorded",
                threat_model=ThreatModel(observer="server", sees=None),
            )
        ]

    def _folder_or_raise(self) -> Path:
        if (folder := self._where) is None:
            raise UnableError(
                "there is no folder to record to: give the run one with Audited(..., out=...), or "
                "the recorder its own with AggregateRecorder(folder)"
            )
        return folder


@dataclass(frozen=True)
class RecordedPlan:
    """What the auditors of a run were told before it.

    Attributes:
        dim: Float parameters of the model.
        num_rounds: Rounds that were planned.
        first_round: First round in which canaries may have played; always the first.
        about: What was noted about the run.
    """

    dim: int
    num_rounds: int
    first_round: int
    about: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """What is kept of a round; the fields are those of `RoundView`.

    Attributes:
        replies: Clients that have replied; what they sent is not kept.
    """

    server_round: int
    sent: Vector
    released: Vector
    facts: RoundFacts
    instructed: Mapping[int, Canary]
    replies: tuple[int, ...]
    sends: Literal["models", "differences"]
    sign: int

    @classmethod
    def read(cls, path: Path, server_round: int) -> RecordedRound:
        """Return the round in a file.

        Raises:
            ValueError: It is damaged, or of another round. The text names the file.
        """
        try:
            found: RecordedRound = codec(cls).read(unpack(path.read_bytes()))
        except (OSError, CodecError) as error:
            raise ValueError(
                f"{path} must be a round of a recorder, got {error}: copy it again from where the "
                "run was recorded, or run again"
            ) from error
        if found.server_round != server_round:
            raise ValueError(f"{path} must be of round {server_round}, got {found.server_round}")
        return found

    def without_vectors(self) -> RecordedRound:
        """Return what is small enough to be kept of all rounds at once."""
        none = np.empty(0)
        facts = replace(self.facts, aggregate=None, noised=None)
        return replace(self, sent=none, released=none, facts=facts)

    def view(self) -> RoundView:
        """Return the round as it was seen, without what was not kept."""
        return RoundView(**{**vars(self), "replies": _Repliers(self.replies)})


@dataclass(frozen=True)
class Recording(RecordedPlan):
    """The rounds that a recorder has left in a folder.

    Attributes:
        folder: Where.
        rounds: What was recorded of each round besides its vectors, from round 1 on without a gap.
    """

    folder: Path
    rounds: tuple[RecordedRound, ...]

    @classmethod
    def open(cls, folder: str | Path) -> Recording:
        """Return the recording in a folder, after reading every file in it.

        Raises:
            ValueError: It is none, a round is missing, or a file is damaged. The text names it.
        """
        folder = Path(folder)
        try:
            plan = codec(RecordedPlan).read(json.loads((folder / _PLAN).read_text()))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"folder must contain {_PLAN} of a recorder with dim and num_rounds, got {folder}: "
                f"{error}"
            ) from error
        # A strategy's own loop may have gone on for longer than planned.
        paths = sorted(folder.glob(_FILES))
        for server_round, path in enumerate(paths, 1):
            if path != _path(folder, server_round):
                raise ValueError(
                    f"{folder} must contain every round up to its last, {paths[-1].name}, lacks "
                    f"{_path(folder, server_round).name}: copy it from where the run was recorded"
                )
        if not paths:
            raise ValueError(f"{folder} must contain at least one round, got no {_FILES}")
        found = (RecordedRound.read(path, r) for r, path in enumerate(paths, 1))
        rounds = tuple(one.without_vectors() for one in found)
        return cls(**vars(plan), folder=folder, rounds=rounds)

    @property
    def is_whole(self) -> bool:
        """Whether every planned round was recorded."""
        return len(self.rounds) >= self.num_rounds

    def check(self, auditor: Auditor) -> list[str]:
        """Return in words what an auditor must do without here.

        Raises:
            ValueError: The auditor needs a field that was not kept, or its canaries did not play.
        """
        missing = auditor.reads - _KEPT
        if needed := sorted(missing - set(auditor.optional)):
            raise ValueError(
                f"{auditor.name} reads {', '.join(needed)}, which a recording does not have: "
                f"single updates are not kept. Use {auditor.name} during the run"
            )
        if auditor.canaries_played is not None:
            self._check_canaries(auditor)
        return [
            f"the recording has no {name}: {auditor.optional[name]} is left out"
            for name in sorted(missing)
        ]

    def views(self) -> Iterator[RoundView]:
        """Yield each round as it was seen, without what was not kept."""
        for r in range(1, len(self.rounds) + 1):
            found = RecordedRound.read(path := _path(self.folder, r), r)
            for name, vector in {**vars(found), **vars(found.facts)}.items():
                if isinstance(vector, np.ndarray) and vector.shape != (self.dim,):
                    wanted = f"must have {self.dim} numbers, got {vector.shape}"
                    raise ValueError(f"{name} in {path} {wanted}")
            yield found.view()

    def _check_canaries(self, auditor: Auditor) -> None:
        """Raise unless the canaries of the recording are those that the auditor looks for."""
        orders = [list(one.instructed.values()) for one in self.rounds]
        if not any(orders):
            raise ValueError(
                f"{auditor.name} looks for canaries, and the recording has none: they cannot be "
                f"played in hindsight. Run again with {auditor.name} and a recorder"
            )
        auditor.begin(self.dim, self.num_rounds)
        plan = [set(auditor.instruct(r, range(_MANY)).values()) for r in range(1, len(orders) + 1)]
        seeds = {order.seed for wanted in plan for order in wanted}
        if not any(order.seed in seeds for played in orders for order in played):
            raise ValueError(
                f"the recording has canaries of another seed than {auditor.name} looks for, and "
                "canaries cannot be played in hindsight: give the seed of the recorded run"
            )
        for server_round, (played, wanted) in enumerate(zip(orders, plan, strict=True), 1):
            if not {order for order in played if order.seed in seeds} <= wanted:
                raise ValueError(
                    f"round {server_round} of the recording has other canaries than "
                    f"{auditor.name} would play: give the seats, canaries, repetitions and kind of "
                    "the recorded run"
                )


def replay(
    folder: str | Path, auditors: Sequence[Auditor], *, partial: bool = False
) -> list[Finding]:
    """Show a recorded run to auditors and return what they would have found in it.

    An auditor with the settings it had in the run finds the same, except for what needs single
    updates, which are not kept. How often clients send is known only if the auditor is told
    (`client_rounds`), since cohorts are not kept either. Canaries cannot be played in hindsight: an
    auditor that plays some needs the seed and the plan that it had in the run.

    Args:
        folder: Of the recording.
        auditors: Who looks.
        partial: Whether a recording that lacks its last rounds is shown as far as it goes.

    Raises:
        ValueError: An auditor reads what was not kept or has other canaries, or rounds are missing
            in the folder.
    """
    recording = Recording.open(folder)
    if not (recording.is_whole or partial):
        lacking = _path(recording.folder, len(recording.rounds) + 1).name
        raise ValueError(
            f"folder must contain all {recording.num_rounds} rounds, lacks {lacking}: resume the "
            "run, or pass partial=True"
        )
    for auditor in auditors:
        for words in recording.check(auditor):
            _log.warning("auditor %s: %s", auditor.name, words)
    share_confidence(auditors)
    for auditor in auditors:
        auditor.begin(recording.dim, recording.num_rounds)
    findings: list[Finding] = []
    for view in recording.views():
        for auditor in auditors:
            findings += auditor.observe(view)
    for auditor in auditors:
        findings += auditor.report()
    return findings


class _Repliers(Mapping[int, Vector]):
    """Who replied; what they sent was not kept."""

    def __init__(self, clients: Collection[int]) -> None:
        self._clients = tuple(clients)

    def __getitem__(self, client: int) -> Vector:
        if client not in self._clients:
            raise KeyError(client)
        raise UnableError(
            "a recording has no single updates (replies), only who sent one: use this auditor "
            "during the run"
        )

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def _short(vector: Vector) -> NDArray[np.floating]:
    """Return the vector in four bytes a number where that loses nothing, as for a model's."""
    with np.errstate(over="ignore"):
        short = vector.astype(np.float32)
    return short if np.array_equal(short, vector) else vector


def _path(folder: Path, server_round: int) -> Path:
    return folder / f"round-{server_round:06d}.npz"
