"""The search over all products in C, for four clients and more."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tests.helpers.machine.local import Group, Part, Setting
from tests.helpers.machine.product import Parts

MOST, TWICE = 6, 2  # as in search.c
_REVEAL = [
    ("digest", "i4"),
    *((name, "u4") for name in ("alive", "seeds", "keys")),
    ("enough", "u8"),
]
_PART = np.dtype(
    [
        *((name, "i4") for name in ("key", "threshold", "instruction", "digest", "is_drawn")),
        *((name, "u4") for name in ("boxes", "hired_boxes", "holders", "hired_holders")),
        *((name, "i4") for name in ("num_lists", "num_reveals")),
        ("list_digest", "i4", TWICE),
        ("list", "u4", TWICE),
        ("reveals", np.dtype(_REVEAL, align=True), TWICE),
        ("weight", "u4", 1 << MOST),
    ],
    align=True,
)
_RESULT = np.dtype(
    [
        *((name, "u8") for name in ("products", "looked_at", "both", "small", "mixed")),
        ("sums", "u8", (MOST + 2, MOST + 1)),
        ("first", "i4", MOST),
        ("is_broken", "i4"),
    ],
    align=True,
)


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        products: Rounds in which each client is told something of its own.
        looked_at: Rounds that are different but for names and for peers that nothing came from.
        both: Rounds that open both secrets of a client.
        small: Rounds in which a sum of too few clients can be read.
        mixed: Rounds in which clients that were told different things are in one sum.
        sums: Threshold and honest clients of each sum that can be read, with their numbers.
        breach: Parts of a round that breaks a claim, if there is one.
    """

    products: int
    looked_at: int
    both: int
    small: int
    mixed: int
    sums: Mapping[tuple[int, int], int]
    breach: Parts | None


def has_compiler() -> bool:
    """Whether C can be compiled here."""
    return shutil.which("cc") is not None


@cache
def _library() -> ctypes.CDLL:
    """Compile the search once a process."""
    source = Path(__file__).with_name("search.c")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "search.so"
        command = ["cc", "-O2", "-std=c11", "-shared", "-fPIC", str(source), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        library = ctypes.CDLL(str(made))
    sizes = (library.sizes(0), library.sizes(1))
    assert sizes == (_PART.itemsize, _RESULT.itemsize), sizes
    return library


def search(
    setting: Setting, choices: Mapping[int, Collection[Part]], *, is_symmetric: bool = True
) -> Found:
    """Look at every product of the clients' parts.

    Args:
        setting: The world.
        choices: Honest client to the parts that it may play.
        is_symmetric: Whether these are the same for all clients up to their names. Then products
            that differ only in who plays which part are looked at once.
    """
    tables, members = [], []
    names = _Names(part for parts in choices.values() for part in parts)
    for one in setting.honest:
        table, member = _table(choices[one], setting, names)
        tables.append(table)
        members.append(member)
    counts = np.array([len(table) for table in tables], np.int32)
    pointers = (ctypes.c_void_p * len(tables))(*(table.ctypes.data for table in tables))
    result = np.zeros(1, _RESULT)
    _library().search(
        len(tables),
        setting.colluders,
        is_symmetric,
        pointers,
        counts.ctypes.data_as(ctypes.c_void_p),
        result.ctypes.data_as(ctypes.c_void_p),
    )
    found = result[0]
    breach = None
    if found["is_broken"]:
        breach = {i: members[i - 1][found["first"][i - 1]] for i in setting.honest}
    sums = {(int(t), int(s)): int(found["sums"][t, s]) for t, s in np.argwhere(found["sums"])}
    products, looked_at, both, small, mixed = map(int, found.item()[:5])
    return Found(products, looked_at, both, small, mixed, sums, breach)


class _Names:
    """Small numbers for digests and for kinds of parts."""

    def __init__(self, parts: Iterable[Part]) -> None:
        known = sorted({d for p in parts for d in (*p.uploads, *(d for d, _ in p.lists))})
        self._digests = {digest: i for i, digest in enumerate(known)}
        self._kinds: dict[object, int] = {}

    def digest(self, part: Part) -> int:
        return self._digests[part.uploads[-1]] if part.uploads else -1

    def of(self, digest: bytes) -> int:
        return self._digests[digest]

    def kind(self, part: Part, honest: Collection[int]) -> int:
        """Return a number that does not depend on who plays the part, nor on whom with."""
        sets = [part.holders, part.boxes, *(alive for _, alive in part.lists)]
        sets += [one & part.holders for one in sets]
        sizes = [(len(one), len(one - set(honest))) for one in sets]
        stages = (len(part.uploads), len(part.lists), len(part.reveals), part.is_drawn)
        about = (part.threshold, part.instruction, *stages, *sizes)
        return self._kinds.setdefault(about, len(self._kinds))


def _table(
    parts: Collection[Part], setting: Setting, names: _Names
) -> tuple[np.ndarray, list[Part]]:
    """Return the parts as C has them, and one of the originals for each."""
    rows: dict[bytes, tuple[np.void, Part, list[int]]] = {}
    for part in parts:
        row = np.zeros(1, _PART)[0]
        _fill(row, part, setting, names)
        shown = _bits(n for n, of in part.peers if of in setting.honest)
        rows.setdefault(row.tobytes(), (row, part, []))[2].append(shown)
    for row, _, views in rows.values():
        for need in range(1 << MOST):
            row["weight"][need] = sum(need & ~shown == 0 for shown in views)
    ordered = sorted(rows.values(), key=lambda found: int(found[0]["key"]))
    return np.array([row for row, _, _ in ordered], _PART), [part for _, part, _ in ordered]


def _fill(row: np.void, part: Part, setting: Setting, names: _Names) -> None:
    """Write a part's sets as bits; only those of honest clients, where the others do not matter."""
    assert max(len(part.lists), len(part.reveals)) <= TWICE
    honest = {n for n, of in part.peers if of in setting.honest} | {part.number}
    row["key"], row["threshold"] = names.kind(part, frozenset(honest)), part.threshold
    row["digest"], row["is_drawn"] = names.digest(part), part.is_drawn
    row["instruction"] = part.instruction
    row["boxes"], row["hired_boxes"] = _bits(part.boxes & honest), _bits(part.boxes - honest)
    row["holders"], row["hired_holders"] = (
        _bits(part.holders & honest),
        _bits(part.holders - honest),
    )
    row["num_lists"], row["num_reveals"] = len(part.lists), len(part.reveals)
    for k, (digest, alive) in enumerate(part.lists):
        row["list_digest"][k], row["list"][k] = names.of(digest), _bits(alive)
    for k, reveal in enumerate(part.reveals):
        into = row["reveals"][k]
        into["digest"], into["alive"] = names.of(reveal.digest), _bits(reveal.alive)
        into["seeds"], into["keys"] = _bits(reveal.seeds & honest), _bits(reveal.keys & honest)
        into["enough"] = _upwards(map(_bits, reveal.enough))


def _upwards(sets: Iterable[int]) -> int:
    """Return one bit for each set that has one of these in it."""
    least = list(sets)
    return sum(1 << w for w in range(1 << MOST) if any(s & ~w == 0 for s in least))


def _bits(numbers: Iterable[int] | Group) -> int:
    return sum(1 << (number - 1) for number in numbers)
