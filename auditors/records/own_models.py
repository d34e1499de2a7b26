"""What taking part reveals about a client's own records, found out by the client alone.

A client keeps the models that it is sent (`keep_models`), and compares its losses on records that
it has trained on with those on records that it has held back (`self_audit`). Everyone who is sent
these models can do the same with a record that they hold. Nothing leaves the client.
"""

from __future__ import annotations

import io
import logging
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakmeter.auditors.auditor import RoundFacts, RoundView
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.records.membership import Membership, Use
from leakmeter.auditors.run_log import write_atomically
from leakmeter.auditors.values import Floats, Indices, Vector

if TYPE_CHECKING:
    from flwr.app import Context, Message

_log = logging.getLogger("flwr")

Arrays = Mapping[str, NDArray[Any]]
# Maps a model, by the names of its arrays, to the losses of member and of held-back records.
OwnLosses = Callable[[Arrays], tuple[ArrayLike, ArrayLike]]
_NAMES = "model-*.npz"
_RUNS = "run-*"  # folders of runs
_ROOM = 0.5  # share of the free disk that one model may take
_WITH_MODELS = ("train", "evaluate")  # types of messages


def keep_models(
    folder: str | Path,
) -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """Return a mod that keeps the models which this client is sent, for `leakmeter self-audit`.

    They are written to the client's own disk, in a folder for each run, one file for each model to
    train or to evaluate that differs from the last. A model that cannot be written is left out, and
    training goes on. Clients that share a disk need a folder each.

    Example:
        app = ClientApp(mods=[keep_models("models-of-mine")])
    """
    place = Path(folder).expanduser()

    def keep_models_mod(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        if message.metadata.message_type.partition(".")[0] in _WITH_MODELS:
            try:
                _write(place / f"run-{message.metadata.run_id}", message)
            except Exception as error:  # whatever it is, the training is not about it
                _log.warning("keep_models: a model of this client is not kept: %s", error)
        return call_next(message, context)

    return keep_models_mod


def _write(folder: Path, message: Message) -> None:
    """Write the arrays of a message under the next number, unless they are the last again."""
    [record] = message.content.array_records.values()
    arrays = {name: array.numpy() for name, array in record.items()}
    if not _is_finite(arrays):
        raise ValueError("it is not finite")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:  # as savez, which takes no array called "file"
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    folder.mkdir(parents=True, exist_ok=True)
    content, kept = packed.getvalue(), _kept(folder)
    if kept and kept[-1].stat().st_size == len(content) and kept[-1].read_bytes() == content:
        return
    if len(content) > _ROOM * shutil.disk_usage(folder).free:
        raise OSError("the disk is nearly full")
    number = _number(kept[-1]) + 1 if kept else 1
    write_atomically(folder / f"model-{number:06d}.npz", content)


def _is_finite(arrays: Arrays) -> bool:
    return all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")


def _kept(folder: Path) -> list[Path]:
    """Return the files of models, in the order of their numbers."""
    named = (path for path in folder.glob(_NAMES) if path.stem.rpartition("-")[2].isdecimal())
    return sorted(named, key=_number)


def _number(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


def self_audit(
    folder: str | Path,
    losses: OwnLosses,
    *,
    alike: bool = False,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> Sequence[Finding]:
    """Return what the kept models reveal about a client's own records.

    Args:
        folder: With the files of `keep_models`, or .npz files named model-000001.npz and so on.
        losses: Returns the cross-entropy losses of records that the client has trained on, and of
            records that it has held back, at a model given as arrays by name.
        alike: Whether chance alone decided which records were held back.
        delta: The delta of the bounds.
        confidence: Confidence of each single bound.

    Raises:
        ValueError: There are fewer than two models, or a file is none.
    """
    place = Path(folder).expanduser()
    runs = sorted(path for path in place.glob(_RUNS) if path.is_dir())
    if len(runs) > 1:
        raise ValueError(
            f"{folder} must contain the models of one run, got {len(runs)}: name one of its "
            f"folders, such as {runs[-1]}"
        )
    files = _finite(_kept(runs[0] if runs else place))
    if len(files) < 2:
        raise ValueError(
            f"{folder} must contain at least 2 models (model-000001.npz and so on), got "
            f"{len(files)}: the first is what the client began with, and shows nothing of it"
        )

    counts: set[tuple[int, int]] = set()

    @lru_cache(maxsize=1)
    def of_file(number: int) -> tuple[Floats, Floats]:
        found = losses(_read(files[number]))
        if not isinstance(found, Sequence) or len(found) != 2:
            raise ValueError("losses must return two lists: of members, and of held-back records")
        members, held_back = (np.asarray(part, dtype=np.float64) for part in found)
        counts.add((members.size, held_back.size))
        if len(counts) > 1:
            raise ValueError(
                "losses must return losses of the same records at every model, got other numbers "
                f"of them at {files[number]}: {', '.join(map(str, sorted(counts)))}"
            )
        return members, held_back

    def at(model: Vector) -> tuple[ArrayLike, ArrayLike]:
        return of_file(int(model[0]))

    def used(view: RoundView) -> Use:
        """Return all: the client takes part in each step from one of its models to the next."""
        members, held_back = (np.size(part) for part in at(view.released))
        everyone: Indices = np.arange(members + held_back)
        return everyone[:members], everyone

    auditor = Membership(at, used=used, alike=alike, delta=delta, confidence=confidence)
    auditor.begin(1, len(files) - 1)
    # A model is its number here: the files are read one at a time.
    numbers = [np.array([float(i)]) for i in range(len(files))]
    for i, (before, after) in enumerate(pairwise(numbers), start=1):
        auditor.observe(RoundView(i, before, {}, after, RoundFacts()))
    return auditor.report()


def _finite(files: Sequence[Path]) -> list[Path]:
    """Return the files whose models are finite; all must have the same arrays."""
    shapes: dict[str, tuple[int, ...]] = {}
    found = []
    for file in files:
        arrays = _read(file)
        own = {name: array.shape for name, array in arrays.items()}
        shapes = shapes or own
        if own != shapes:
            raise ValueError(
                f"{file} must have the same arrays as {files[0]}, got other names or shapes: leave "
                "out the models of other runs"
            )
        found += [file] if _is_finite(arrays) else []
    return found


def _read(file: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of one file."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            found = {name: np.asarray(arrays[name]) for name in arrays.files}
        if not found or any(array.dtype.kind not in "biufc" for array in found.values()):
            raise ValueError("it must have arrays of numbers")
    except Exception as error:  # a broken file can fail in many ways
        raise ValueError(
            f"{file} must be a model, arrays by name as numpy.savez writes them, got "
            f"{type(error).__name__}: {error}. Leave it out, or copy it again"
        ) from None
    return found
