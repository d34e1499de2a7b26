"""Steps that a node takes once, whatever its memory says: compare-and-set with files.

Flower hands a client its state at the start of a message and takes it back at the end. A node that
handles two messages at the same time would start both from the same state and answer both. So a
step leaves a file that is made exclusively: of two requests one makes it, the other is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from leakmeter.clients.secure_sum.keys import Session

_FOLDER = "steps"


class StepTakenError(ValueError):
    """This step was taken before, perhaps a moment ago by another process of this node."""


def take_once(folder: Path | None, session: Session, stage: str) -> None:
    """Note that a step is taken; the second time is refused.

    To be called when everything else was checked, and before anything is sent.

    Args:
        folder: The client's own; None notes nothing (simulations, where messages come in turn).
        session: Run and round.
        stage: Which step.

    Raises:
        StepTakenError: It was taken before, or cannot be noted.
    """
    if folder is None:
        return
    path = folder / _FOLDER / str(session.run) / f"{session.server_round}-{stage}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise StepTakenError(
            f"stage {stage!r} comes once in round {session.server_round}, and has come"
        ) from None
    except OSError as error:
        # No path: the text travels to the server.
        raise StepTakenError(f"stage {stage!r} cannot be noted here: {error.strerror}") from None
