"""What several runs on the same data have released together, kept in a file of JSON lines.

A client whose data are in two runs pays for both. The ledger composes all runs as if the same
client had taken part as often as anyone could in each of them. It stores noise, sensitivity,
sampling and participations of every run, never a bare multiplier or a bare epsilon, because these
cannot be composed.

Lines are only appended. A run reserves its plan before it starts, and a later line of the same run
replaces an earlier one. Each line contains the hash of everything before it, and a file `.head`
next to the ledger has the number of lines and the hash of all of them. So the next reader notices a
changed or removed line. Both files can lose their end together, for example to an old copy of the
folder; so a run's report has the same two values (`Head`), and later runs compare them. This does
not protect against somebody who wants to deceive: they can recompute all hashes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from leakmeter.auditors.codec import codec, plain
from leakmeter.auditors.finding import Adjacency, Bound
from leakmeter.auditors.run_log import append_line, locked, write_atomically
from leakmeter.auditors.values import require
from leakmeter.auditors.wording import Assumption, counted
from leakmeter.strategies.accounting.accountant import Release, amplified, epsilon_together

_PREVIOUS: Final = "previous"
_MAX_RELEASES: Final = 10_000_000  # a number in a file must not fill the memory
# Seconds to wait for others, each of whom writes one line; longer waits are for a stopped process.
_PATIENCE: Final = 60.0
_NEXT: Final = (
    "restore the ledger from a backup; without one nobody knows what was spent on this data"
)


@dataclass(frozen=True)
class Entry:
    """What one run has released.

    Attributes:
        run: Name of the run; a later entry of the same run replaces an earlier one.
        data: Name of the data set.
        seed: Seed of its noise and cohorts; None if these came from the operating system.
        adjacency: Adjacency of the guarantee.
        participations: Most rounds that any client took part in.
        releases: The sums behind the released models.
        amplifies: Whether amplification by Poisson sampling may be used.
        dropout_delta: Probability that one client decided whether a round took place; then part of
            delta.
        is_coarse: Whether rounding was too coarse for a proof.
        is_planned: Whether these releases are a plan. It counts until the run ends properly.
        place: Where the run's folder is: a copy of the folder is at another place.
    """

    run: str
    data: str
    seed: int | None
    adjacency: Adjacency
    participations: int
    releases: tuple[Release, ...]
    amplifies: bool = False
    dropout_delta: float = 0.0
    is_coarse: bool = False
    is_planned: bool = False
    place: str = ""

    def __post_init__(self) -> None:
        require(f"[0, {len(self.releases)}]", participations=self.participations)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the entry that `to_json` wrote."""
        kinds = {
            "run": str,
            "data": str,
            "place": str,
            "participations": int,
            "dropout_delta": float,
        }
        for name, kind in kinds.items():
            if type(values.get(name, kind())) is not kind:
                raise TypeError(f"{name} must be of type {kind.__name__}")
        groups = [dict(group) for group in values["releases"]]
        counts = [group.pop("count") for group in groups]
        if not all(type(n) is int and n > 0 for n in counts) or sum(counts) > _MAX_RELEASES:
            raise ValueError(f"a run has from 1 to {_MAX_RELEASES} releases of a kind")
        releases = [
            r
            for group, n in zip(groups, counts, strict=True)
            for r in [codec(Release).read(group, "release")] * n
        ]
        return cls(**{**values, "releases": tuple(releases)})

    def to_json(self) -> dict[str, Any]:
        """Return plain values; equal releases are listed once, with their count."""
        groups = [{**plain(r), "count": n} for r, n in Counter(self.releases).items()]
        return {**asdict(self), "releases": groups}


@dataclass(frozen=True)
class Head:
    """How a ledger began at some time; lines that were added later do not change it.

    Attributes:
        lines: How many lines it had.
        hash: SHA-256 of these lines.
    """

    lines: int
    hash: str


@dataclass(frozen=True)
class Ledger:
    """A file of entries, one per line; it need not exist yet.

    Attributes:
        path: The file, with links followed: all who write to it must use the same lock.
    """

    path: Path

    def __post_init__(self) -> None:
        with suppress(RuntimeError):  # links in a circle, before Python 3.13
            object.__setattr__(self, "path", self.path.resolve())
        if self.path.is_symlink():
            raise ValueError("its links lead in a circle")

    def entries(self, data: str, *, but: str = "") -> list[Entry]:
        """Return the latest entry of each run on `data`, without the run `but`."""
        return latest(self.history(), data, but=but)

    def history(self) -> list[Entry]:
        """Return all lines from first to last, also those that a later one replaces.

        Raises:
            ValueError: A line is not an entry, was changed, or is missing. The text says which, and
                what to do.
        """
        return self._read().entries

    def head(self) -> Head:
        """Return number and hash of all lines, to be kept elsewhere."""
        found = self._read()
        return Head(found.lines, found.digest)

    def check(self, kept: Mapping[str, Head]) -> None:
        """Raise if the ledger lacks lines that it had when somebody kept its head.

        Args:
            kept: What `head` has returned at some time, by where it was kept.

        Raises:
            ValueError: Lines were removed or changed since. The text says who knows it.
        """
        lines = [line + b"\n" for line in self._read().content.split(b"\n")[:-1]]
        for source, head in kept.items():
            self._check_head(head, lines, f" according to {source}")

    def record(self, entry: Entry) -> None:
        """Append the entry atomically; it replaces earlier ones of the same run."""
        self.update(lambda _: entry)

    def update(self, make: Callable[[Sequence[Entry]], Entry]) -> Entry:
        """Append the entry that is made from all lines so far, while nobody else can write.

        If `make` raises, the ledger stays unchanged.

        Raises:
            HeldError: Another process keeps the ledger locked and does nothing.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._lock, wait=_PATIENCE):
            before = self._read()
            entry = make(before.entries)
            if before.torn:  # an incomplete line of a process that died; the line before it counts
                write_atomically(self.path, before.content)
            line = json.dumps({**entry.to_json(), _PREVIOUS: before.digest}, allow_nan=False) + "\n"
            append_line(self.path, line)
            head = Head(before.lines + 1, _digest(before.content + line.encode()))
            with suppress(OSError):  # a head that lags behind only knows fewer lines
                write_atomically(self._head, json.dumps(asdict(head)) + "\n")
        return entry

    def check_writable(self) -> None:
        """Raise an OSError if a line could not be added; nothing is made or changed."""
        for path in (self.path, self._lock):
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            there = next(p for p in (path, *path.parents) if p.exists())
            if not os.access(there, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))

    @property
    def _lock(self) -> Path:
        return self.path.with_name(self.path.name + ".lock")

    @property
    def _head(self) -> Path:
        return self.path.with_name(self.path.name + ".head")

    def _read(self) -> _Content:
        head = self._known()  # before the lines: another process may add one in between
        content = self.path.read_bytes() if self.path.exists() else b""
        *lines, rest = content.split(b"\n")
        if _is_whole(rest):  # only the line end is missing, so its cost counts
            lines.append(rest)
        entries = self._chained(lines)  # before the head, which cannot say which line it is
        ended = [line + b"\n" for line in lines]
        self._check_head(head, ended)
        return _Content(b"".join(ended), bool(rest), entries)

    def _chained(self, lines: Sequence[bytes]) -> list[Entry]:
        """Return the entries of the lines, after checking the hash chain."""
        found, so_far, is_chained = [], hashlib.sha256(), False
        for number, line in enumerate(lines, 1):
            try:
                values = dict(json.loads(line))
                previous = values.pop(_PREVIOUS, None)
                found.append(Entry.from_json(values))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                # No line is skipped: the cost of a lost line would not be counted.
                raise ValueError(
                    f"--ledger must have one entry per line, got line {number} of {self.path}: "
                    f"{error}; {_NEXT}"
                ) from None
            # Earlier releases wrote no hashes; the first line with one covers all before it.
            if (is_chained or previous is not None) and previous != so_far.hexdigest():
                raise ValueError(f"{self._broken(number, is_chained)}; {_NEXT}")
            is_chained = is_chained or previous is not None
            so_far.update(line + b"\n")
        return found

    def _broken(self, number: int, is_chained: bool) -> str:
        """Return in words what a line whose hash does not fit the lines before it says of them."""
        if number == 1:
            return f"lines at the beginning of {self.path} were removed"
        where = f"line {number - 1}" if is_chained else f"one of lines 1 to {number - 1}"
        return (
            f"{where} of {self.path} was changed, or a line before line {number} was removed or "
            "added"
        )

    def _known(self) -> Head:
        """Return what the file next to the ledger knows of it."""
        if not self._head.exists():  # an earlier release, or a copy of the ledger alone
            return Head(0, _digest(b""))
        try:
            head = json.loads(self._head.read_bytes())
            return Head(int(head["lines"]), str(head["hash"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError(
                f"{self._head} is damaged; delete it if {self.path} is whole"
            ) from None

    def _check_head(self, known: Head, lines: Sequence[bytes], source: str = "") -> None:
        """Raise if the ledger does not begin with the lines that a head knows.

        The lines, with their ends, are a chain here: those before the last one have not been
        changed.
        """
        count = known.lines
        if len(lines) < count:
            raise ValueError(
                f"{self.path} has {counted(len(lines), 'line')}, but had {count}{source}: the last "
                f"ones were removed; {_NEXT}"
            )
        if _digest(b"".join(lines[:count])) != known.hash:
            # With a head of another time, later lines may have been removed and written again.
            which = f"one of lines 1 to {count}" if source and count > 1 else f"line {count}"
            raise ValueError(f"{which} of {self.path} was changed{source}; {_NEXT}")


@dataclass(frozen=True)
class _Content:
    """The content of a ledger's file: complete lines, and perhaps an incomplete one after them."""

    content: bytes
    torn: bool
    entries: list[Entry]

    @property
    def lines(self) -> int:
        return len(self.entries)

    @property
    def digest(self) -> str:
        return _digest(self.content)


def latest(history: Sequence[Entry], data: str, *, but: str = "") -> list[Entry]:
    """Return the last of each run's entries on `data`, without the run `but`."""
    last = {entry.run: entry for entry in history}
    return [e for e in last.values() if e.data == data and e.run != but]


def _is_whole(line: bytes) -> bool:
    """Whether a line without a line end is a complete entry."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def spent(entries: Sequence[Entry], delta: float) -> Bound:
    """Return ε of all entries together against all who see models, without amplification."""
    require("(0, 1)", delta=delta)
    is_mixed = any(r.grid is not None for e in entries for r in e.releases)
    runs = [(entry.releases, entry.participations) for entry in entries]
    rule = "Rényi DP of all noise" if is_mixed else "Gaussian mechanisms"
    # A client that is removed takes its own share of noise away: each run keeps its adjacency.
    kinds = " and ".join(sorted({e.adjacency for e in entries})) or "zero-out"
    return Bound(
        value=epsilon_together(runs, delta, _adjacency(entries)),
        kind="approximation" if any(e.is_coarse for e in entries) else "guarantee",
        delta=delta,
        rule=f"{rule} composed over {counted(len(entries), 'run')}, {kinds}",
        sample_sizes={
            "runs": len(entries),
            "participations": sum(entry.participations for entry in entries),
        },
        assumptions=(Assumption.FRESH_RUNS, Assumption.SAME_CLIENT_EVERYWHERE),
    )


def spent_amplified(entries: Sequence[Entry], delta: float) -> Bound | None:
    """Return ε against those who never learn a cohort; None unless all runs are Poisson.

    The same seed draws the same cohorts, so runs that share a seed are not amplified either.
    """
    entries = [e for e in entries if e.releases]  # a run that ended before its first round
    seeds = [e.seed for e in entries if e.seed is not None]
    left = delta - math.fsum(e.dropout_delta for e in entries)
    if not entries or not all(e.amplifies for e in entries) or len(set(seeds)) < len(seeds):
        return None
    if left <= 0:
        return None
    releases = [r for e in entries for r in e.releases]
    bound = amplified(releases, left, adjacency=_adjacency(entries))
    return Bound(
        bound.value,
        "approximation" if any(e.is_coarse for e in entries) else bound.kind,
        f"{bound.rule}, {counted(len(entries), 'run')}",
        delta,
        assumptions=(*bound.assumptions, Assumption.FRESH_RUNS),
    )


def _adjacency(entries: Sequence[Entry]) -> Adjacency:
    """Return an adjacency that every release has a price under; bits have none under zero-out."""
    return "add-remove" if any(e.adjacency == "add-remove" for e in entries) else "zero-out"
