"""What seats have sent, and the directions in which a canary is looked for there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import RoundView
from leakmeter.auditors.canaries.changes import KeptRows
from leakmeter.auditors.canary_draws import BLOCK, CanaryBlocks
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.values import Vector

DIRECTIONS: Final = 3  # a reply, that less the client's last one, that less another client's
KEPT_CLIENTS: Final = 32  # clients whose last reply as a seat is kept, in a file
_SHORTEST, _LONGEST = 1e-30, 1e30  # norms that single precision can keep
_FULL: Final = 0.1  # a reply is of full length from this share of the length of canaries on
_ALONG: Final = 5.0  # standard deviations from which on replies point along a nudge


class Seat(NamedTuple):
    """A seat whose reply is a direction.

    Attributes:
        client: Who sits there.
        update: What came of it.
        length: L2 norm of that.
        another: The update of another client of the round; None if there is none.
    """

    client: int
    update: Vector
    length: float
    another: Vector | None


class Replies(Resumable):
    """The replies of seats, of which the last of each client is kept in a file.

    Args:
        dim: Length of an update.
        path: The file; None takes a temporary one.

    Attributes:
        has_hidden: Whether any reply was no plain update: masked, or packed.
    """

    has_hidden: Kept[bool]
    _rows: Kept[KeptRows]

    def __init__(self, dim: int, path: Path | None) -> None:
        self._dim, self.has_hidden = dim, False
        self._rows = KeptRows(dim, path)

    def seats(self, view: RoundView, seats: Sequence[int]) -> Iterator[Seat]:
        """Yield the seats of a round whose reply is a direction, one after the other.

        Another client is the next seat that has a direction, or one without a canary.
        """
        self._rows.begin_round()
        reply = self._reader(view)
        beside = [client for client in sorted(view.replies) if client not in seats]
        for place, client in enumerate(seats):
            if client in view.replies and (own := reply(client)) is not None:
                later = [*seats[place + 1 :], *seats[:place], *beside]
                found = (reply(one) for one in later if one in view.replies)
                another = next((one for one in found if one is not None), None)
                length = float(np.linalg.norm(own))
                yield Seat(client, own, length, another)
        self._rows.end_round()

    def _reader(self, view: RoundView) -> Callable[[int], Vector | None]:
        """Return what gives the update of a client; None for what is no direction."""

        @lru_cache(maxsize=2)  # that of a seat, and of the next
        def reply(client: int) -> Vector | None:
            update = view.replies[client]
            if update.shape != (self._dim,):
                self.has_hidden = True
                return None
            return update if 0 < float(update @ update) < math.inf else None

        return reply

    def cosines(self, drawn: CanaryBlocks, seat: Seat, total: str | None) -> NDArray[np.float64]:
        """Return the cosines of a canary with the directions of its seat; NaN for undefined ones.

        Args:
            drawn: The canary.
            seat: Where it sits in this round.
            total: Name of the sum of all replies of this canary, each of length 1, which is one
                direction more; None without it.
        """
        cosines, lengths = drawn.cosines(self._blocks(seat, total))
        if total is not None:
            self._rows.note(total, float(lengths[DIRECTIONS]))
        return cosines

    def _blocks(self, seat: Seat, total: str | None) -> Iterator[list[Vector]]:
        """Yield the directions by blocks; zeros where there is none."""
        before, kept = f"client-{seat.client}", self._rows.names
        rows = np.zeros((DIRECTIONS, min(BLOCK, self._dim)))
        short = np.zeros(rows.shape[1], np.float32)
        for start in range(0, self._dim, BLOCK):
            part = seat.update[start : start + BLOCK]
            last, other, summed = rows[:, : part.size]
            old = short[: part.size]
            if before in kept:
                self._rows.read(before, start, old)
                np.subtract(part, old, out=last)
            if seat.another is not None:
                np.subtract(part, seat.another[start : start + BLOCK], out=other)
            if total is None:
                yield [part, last, other]
                continue
            old[:] = 0.0
            if total in kept:
                self._rows.read(total, start, old)
            # Look at the sum as it is stored: the null is then exact to the last digit.
            old[:] = old + part / seat.length
            self._rows.write(total, start, old)
            summed[:] = old
            yield [part, last, other, summed]

    def keep(self, seat: Seat) -> None:
        """Keep a reply for the client's next one; of many clients, those who came last."""
        name, short = f"client-{seat.client}", np.empty(min(BLOCK, self._dim), np.float32)
        if not _SHORTEST < seat.length < _LONGEST:
            self.forget(name)
            return
        for start in range(0, self._dim, BLOCK):
            part = seat.update[start : start + BLOCK]
            short[: part.size] = part
            self._rows.write(name, start, short[: part.size])
        self._rows.note(name, seat.length)
        clients = [one for one in self._rows.names if one.startswith("client-")]
        for oldest in clients[:-KEPT_CLIENTS]:
            self.forget(oldest)

    def forget(self, name: str) -> None:
        """Forget a reply, or a sum of replies."""
        self._rows.drop(name)

    def close(self) -> None:
        """Delete the file."""
        self._rows.close()


class Lean(Resumable):
    """Whether replies of seats that send nothing are full updates along their nudge.

    Such a seat moves the first coordinate by a rounding step, so its reply is that short, or noise.
    Where a mod scales every update to one norm, it is a full update. Noise that comes again, in
    other rounds or from other clients, counts once.
    """

    _lengths: Kept[list[float]]  # summed over replies: of canaries that are out, that are in
    _counts: Kept[list[int]]
    _along: Kept[set[str]]  # share of the former along the nudge, in three digits

    def __init__(self) -> None:
        self._lengths, self._counts, self._along = [0.0, 0.0], [0, 0], set()

    def add(self, seat: Seat, *, is_in: bool) -> None:
        """Look at the reply of a seat."""
        self._lengths[is_in] += seat.length
        self._counts[is_in] += 1
        if not is_in:
            self._along.add(f"{float(seat.update[0]) / seat.length:.3g}")

    def is_along(self, dim: int) -> bool:
        """Whether they are, with updates of this length."""
        if not all(self._counts):
            return False
        out, in_ = (s / n for s, n in zip(self._lengths, self._counts, strict=True))
        # Of noise alone, each share has mean 0 and standard deviation 1/√d.
        total = math.sqrt(dim) * math.fsum(map(float, self._along))
        return out > _FULL * in_ and total > _ALONG * math.sqrt(len(self._along))
