"""Finds out which run of the ledger a folder belongs to, and whether it is a copy."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from pathlib import Path

from leakmeter.auditors.run_log import write_atomically
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.run.folder import Checkpoint
from leakmeter.strategies.accounting.ledger import Entry

_log = logging.getLogger("flwr")

_RUN = "ledger-run"


def known_name(folder: Path) -> str:
    """Return the run's name in the ledger; nothing if it has none yet."""
    path = folder / _RUN
    if not path.exists():
        return ""
    name = path.read_bytes()[:100].decode(errors="replace").strip()
    if len(name) != 32 or not set(name) <= set("0123456789abcdef"):
        raise ConfigError(
            f"--resume needs the run's name in the ledger, but {path} has none; take the line of "
            f"the run in the ledger whose place is {folder}, and write its run into {path}"
        )
    return name


def run_name(folder: Path) -> str:
    """Return the run's own name, drawn once: a folder may be deleted and its path used again."""
    if not (name := known_name(folder)):
        write_atomically(folder / _RUN, name := uuid.uuid4().hex)
    return name


def place_of(folder: Path) -> str:
    """Return a mark that differs between copies of a folder and stays the same for each."""
    return f"{(folder / _RUN).stat().st_ino}:{folder.resolve()}"


def check_place(own: Sequence[Entry], folder: Path, place: str) -> None:
    """Raise if a run's folder is a copy: both would replace each other's entries in the ledger.

    Args:
        own: The run's entries, from first to last.
        folder: The folder that is to be run.
        place: Its place.
    """
    places = [e.place for e in own if e.place]
    if not places or places[-1] == place:
        return
    inode, _, other = places[-1].partition(":")
    if place in places:
        raise ConfigError(
            f"{folder} was copied or moved to {other}, where its run has continued; resume that one"
        )
    there = Path(other) / _RUN
    if (
        there.exists()
        and str(there.stat().st_ino) == inode
        and known_name(there.parent) == own[-1].run
    ):
        raise ConfigError(
            f"{folder} is a copy of {other}, and the ledger counts them as one run; resume "
            f"{other}, or delete it first"
        )
    if not own[-1].is_planned and len(own[-1].releases) > _releases_kept(folder) + 1:
        raise ConfigError(
            f"{folder} is an older copy of {other}: the ledger has {len(own[-1].releases)} "
            f"releases of this run; resume the folder with the most rounds"
        )
    _log.warning("the run of %s continues in %s; do not resume a copy of it", other, folder)


def _releases_kept(folder: Path) -> int:
    """Return how many releases the checkpoint of a folder contains."""
    path = folder / "checkpoint.npz"
    if not path.exists():
        return 0
    states = Checkpoint.read(path).strategy
    return max((len(s["spending"]["releases"]) for s in states if "spending" in s), default=0)
