"""A client that signs: how it answers the stages of a secure sum, and how it takes each step once.

Its server may do anything. Flower hands a client its state at the start of a message and takes it
back at the end. A node that handles two messages at the same time would start both from the same
state and answer both. So a run has one file whose name is the last step, and a step renames it: of
two requests that start from the same step one renames the file, the other finds it gone and looks
again.

Renaming needs no lock. It is atomic within a file system, also on one without a lock service,
and a process that is killed leaves nothing locked.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from flwr.app import ConfigRecord

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.participant import Participant, Policy
from leakmeter.clients.secure_sum.signing import Identity, TrustedKeys
from leakmeter.clients.secure_sum.wire import (
    get_numbers,
    get_roster,
    get_signatures,
    get_signed_keys_of_peers,
    put_by_number,
)

# In the order in which they come; a sum without signatures has no draw and no survivors.
STAGES = ("keys", "draw", "shares", "train", "survivors", "unmask")
_FOLDER = "steps"
_START = "0-unmask"  # before the first round
_TRIES = 100  # each failed one means that another process has just advanced
_PAUSE = 0.002  # seconds between two tries


@dataclass(frozen=True)
class SigningClient:
    """A client with a key of its own and a list of those of the others.

    Attributes:
        identity: Its own key.
        trusted: The keys of all clients.
    """

    identity: Identity
    trusted: TrustedKeys

    def __post_init__(self) -> None:
        if self.identity.public not in self.trusted:
            raise ValueError(
                f"trusted must have this client's own line, {self.identity.line}: the others' "
                "lists need it too"
            )
        self.trusted.check_enough()

    def draw(
        self, policy: Policy, order: ConfigRecord, before: Participant
    ) -> tuple[Participant, ConfigRecord]:
        """Draw neighbours among all who take part, if they are enough to hide among."""
        clients = get_roster(order)
        if strangers := sum(key not in self.trusted for key in clients.values()):
            raise RefusedError(f"all clients must be on the trusted list, {strangers} are not")
        draws, threshold = wire.get_int(order, "draws"), wire.get_int(order, "threshold")
        policy.check_draws(len(clients), draws, threshold)
        number, own = wire.get_int(order, "number"), self.identity.public
        after = before.draw(number, clients, own, (draws, threshold))
        return after, ConfigRecord({"drawn": list(after.drawn)})

    def shares(
        self, policy: Policy, order: ConfigRecord, before: Participant
    ) -> tuple[Participant, ConfigRecord]:
        """Share the secrets, once every announcement has a trusted signature."""
        number, threshold = wire.get_int(order, "number"), wire.get_int(order, "threshold")
        signed = get_signed_keys_of_peers(order)
        known = {announcement.public for announcement in signed.values()}
        if len(known) < len(signed) or self.identity.public in known:
            raise RefusedError("every client must announce keys once; one has done so twice")
        for peer, announcement in signed.items():
            announcement.check(before.session, peer, self.trusted)
        keys = {peer: announcement.keys for peer, announcement in signed.items()}
        signers = {peer: announcement.signer for peer, announcement in signed.items()}
        after, boxes = before.share(number, keys, threshold, policy, signers)
        return after, ConfigRecord(put_by_number("boxes", boxes))

    def survivors(
        self, order: ConfigRecord, before: Participant
    ) -> tuple[Participant, ConfigRecord]:
        """Sign who has survived, once."""
        after, signature = before.sign(get_numbers(order, "survivors"), self.identity)
        return after, ConfigRecord({"signature": signature})

    def unmask(self, order: ConfigRecord, before: Participant) -> tuple[Participant, ConfigRecord]:
        """Reveal one share of each peer, once enough others have signed as this client has."""
        after, shares = before.reveal_signed(*get_signatures(order))
        return after, ConfigRecord(put_by_number("shares", shares))


class StepTakenError(ValueError):
    """This step was taken before, perhaps a moment ago by another process of this node."""


class _Position(NamedTuple):
    """A step of a run: later steps are larger."""

    server_round: int
    at: int  # in `STAGES`

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the position that a file's name says."""
        server_round, _, stage = name.partition("-")
        return cls(int(server_round), STAGES.index(stage))

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.server_round}-{STAGES[self.at]}"


def take_once(folder: Path | None, session: Session, stage: str) -> None:
    """Note that a step is taken; a step that is not after the last one is refused.

    To be called when everything else was checked, and before anything is sent.

    Args:
        folder: The client's own; None notes nothing (simulations, where messages come in turn).
        session: Run and round. Rounds of a run only go forward.
        stage: Which step. Each comes once in a round, in the order of `STAGES`.

    Raises:
        StepTakenError: It was taken before, comes too late, or cannot be noted.
    """
    if folder is None:
        return
    if stage not in STAGES:
        raise StepTakenError(f"stage must be {', '.join(STAGES)}, got {stage!r}")
    try:
        _advance(
            folder / _FOLDER, str(session.run), _Position.of(f"{session.server_round}-{stage}")
        )
    except OSError as error:
        # No path: the text travels to the server.
        raise StepTakenError(f"stage {stage!r} cannot be noted here: {error.strerror}") from None


def _advance(folder: Path, run: str, step: _Position) -> None:
    """Rename the run's file to this step, if it is after the last one."""
    for _ in range(_TRIES):
        if (last := _last(folder, run)) is None:
            time.sleep(_PAUSE)
            continue
        _check(step, last)
        with suppress(FileNotFoundError):  # another process was faster, perhaps with this step
            (folder / run / last.name).rename(folder / run / step.name)
            return
    words = "the last step is not clear"
    raise StepTakenError(f"stage {STAGES[step.at]!r} cannot be noted here: {words}")


def _last(folder: Path, run: str) -> _Position | None:
    """Return the last step of a run; None while its file is being made or renamed."""
    try:
        names = os.listdir(folder / run)
    except FileNotFoundError:
        _begin(folder, run)
        return None
    with suppress(ValueError):
        # A listing during a rename may show both names or none.
        return _Position.of(names[0]) if len(names) == 1 else None
    return None


def _begin(folder: Path, run: str) -> None:
    """Make the run's folder with its file in it, both at once: of two processes one succeeds."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".", dir=folder))
    try:
        (made / _START).touch(mode=0o600)
        made.rename(folder / run)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not (folder / run).is_dir():
            raise


def _check(step: _Position, last: _Position) -> None:
    """Refuse a step that is not after the last one."""
    if step > last:
        return
    number, stage = step.server_round, STAGES[step.at]
    if number < last.server_round:
        raise StepTakenError(f"round must be {last.server_round} or later, got {number}")
    if step == last:
        raise StepTakenError(f"stage {stage!r} comes once in round {number}, and has come")
    later = STAGES[last.at]
    raise StepTakenError(
        f"stage {stage!r} comes before {later!r}, which has come in round {number}"
    )
