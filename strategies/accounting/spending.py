"""Records what a noised run has released so far, and who has paid for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np

from leakmeter.auditors.codec import codec, plain
from leakmeter.auditors.finding import Finding
from leakmeter.strategies.accounting.ledger import Entry


class Priced(Protocol):
    """A release in a charge: frozen data that its mechanism can price."""

    def of_shares(self, shares: int) -> Self:
        """Return it with the noise of so many contributors, from that of one."""
        ...


class Guarantees(Protocol):
    """What the charges of a run guarantee."""

    def findings(self, delta: float) -> Sequence[Finding]:
        """Return a guarantee for each observer."""
        ...

    def headline(self, delta: float) -> Finding:
        """Return the guarantee against the observer whom the noise is meant for."""
        ...

    def entry(self, *, run: str, data: str, seed: int | None) -> Entry:
        """Return the line of a ledger.

        Raises:
            ValueError: The guarantee is not about whole clients.
        """
        ...


@dataclass(frozen=True)
class Charge:
    """One sum that somebody has seen or may have seen, and who pays for it.

    Attributes:
        release: The sum. Where clients add noise, it has the noise of one contributor, since the
            number that counts is known only at the end.
        clients: Clients, or nodes if clients are not known, that took part: in the sum or in a
            round that was rejected.
        contributors: How many of them are in the sum with noise that counts unless they collude.
        canaries: Canaries that some of them were told to play, by name.
        bearable: Colluders that the secure sum tolerates; None without one.
        is_masked: Whether a secure sum hid single updates.
        is_coarse: Whether rounding was too coarse against the clients' noise for a proof.
    """

    release: Priced
    clients: tuple[int, ...]
    contributors: int
    canaries: tuple[str, ...] = ()
    bearable: int | None = None
    is_masked: bool = False
    is_coarse: bool = False


@dataclass
class Spending:
    """The charges of a run, round by round.

    Attributes:
        charges: All so far. That of an open round is the last: it is for everybody who was asked,
            and it stays if the sum is rejected or the process ends.
        opened: The charge of the open round, until it is known who was in the sum.
    """

    charges: list[Charge] = field(default_factory=list)
    opened: Charge | None = None

    def add(self, charge: Charge) -> None:
        """Charge a round."""
        self.charges.append(charge)

    def open(self, charge: Charge) -> None:
        """Charge a round before its outcome is known."""
        self.add(charge)
        self.opened = charge

    def undo(self) -> None:
        """Revert the charge of the open round, if there is one."""
        if self.opened is not None:
            self.charges.pop()
        self.opened = None

    def close(self) -> None:
        """Keep the charge of the last round."""
        self.opened = None

    def rebase(self, charges: Iterable[Charge]) -> None:
        """Take these charges in place of our own, and add that of the open round."""
        self.charges = list(charges)
        if self.opened is not None:
            self.charges.append(self.opened)

    @property
    def times(self) -> Counter[int]:
        """Rounds that each client, or node if clients are not known, took part in."""
        return Counter(client for charge in self.charges for client in charge.clients)

    @property
    def participations(self) -> int:
        """Most rounds that any client took part in."""
        return max(self.times.values(), default=0)

    @property
    def canary_rounds(self) -> int:
        """Most rounds that any canary was played in, whichever client had its seat."""
        played = Counter(canary for charge in self.charges for canary in charge.canaries)
        return max(played.values(), default=0)

    @property
    def bearable(self) -> int | None:
        """Fewest colluders that the secure sum of any round tolerates; None without one."""
        known = [c.bearable for c in self.charges if c.bearable is not None]
        return min(known, default=None)

    @property
    def releases(self) -> tuple[Any, ...]:
        """The releases as they were charged."""
        return tuple(charge.release for charge in self.charges)

    def sums(self, colluders: int, least: int = 0) -> tuple[Any, ...]:
        """Return the releases with the noise of all contributors but the colluders.

        Args:
            colluders: Contributors of each sum whose noise does not count.
            least: Contributors that count in any case.
        """
        return tuple(
            charge.release.of_shares(max(charge.contributors - colluders, least))
            for charge in self.charges
        )

    def state(self) -> dict[str, Any]:
        """Return the charges as plain values."""
        return {"charges": plain(self.charges, np.copy)}


def charges_of(state: Mapping[str, Any], release_of: Callable[[Any], Priced]) -> list[Charge]:
    """Return the charges in what `Spending.state` returned.

    Args:
        state: Plain values.
        release_of: Makes a release from its plain values.

    Raises:
        CodecError: They are not such charges.
    """
    kept = codec(list[dict[str, Any]]).read(state.get("charges"), "charges")
    read = [{**one, "release": release_of(one.get("release"))} for one in kept]
    charges: list[Charge] = codec(list[Charge]).read(read, "charges")
    return charges
