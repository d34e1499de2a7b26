"""Records what a noised run has released so far, and how often each client took part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from leakmeter.strategies.accounting.accountant import Release
from leakmeter.strategies.accounting.assurance import Assurance
from leakmeter.strategies.mechanism import Central, Distributed, Local, Noise


@dataclass
class Spending:
    """Notes rounds as they happen.

    Attributes:
        noise: Who adds it.
        releases: The sums behind the released models. Where clients add noise, each has the noise
            of one contributor, since the number that counts is known only at the end.
        contributors: Clients in each sum whose noise counts unless they collude.
        times: Rounds that each client, or node if clients are not known, took part in.
        canary_times: Rounds that each canary was played in, whichever client had its seat.
        bearable: Fewest colluders that the secure sum of any round tolerates; None without one.
        is_masked: Whether a secure sum hid single updates.
        is_rough: Whether rounding was too coarse against the clients' noise in some round.
    """

    noise: Noise
    releases: list[Release] = field(default_factory=list)
    contributors: list[int] = field(default_factory=list)
    times: Counter[int] = field(default_factory=Counter)
    canary_times: Counter[str] = field(default_factory=Counter)
    bearable: int | None = None
    is_masked: bool = False
    is_rough: bool = False
    _before: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    _opened: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def open(self, release: Release, clients: Iterable[int], **about: Any) -> None:
        """Charge a round before its outcome is known.

        The charge is for everybody who was asked, and it stays if the sum is rejected or the
        process ends. `undo` reverts it once `add` can say who was in the sum.
        """
        self._before = self.state()
        self._opened = {"release": release, "clients": tuple(clients), **about}
        self.add(**self._opened)

    def undo(self) -> None:
        """Revert the charge of the open round, if there is one."""
        if self._before is not None:
            self.restore(self._before)

    def close(self) -> None:
        """Keep the charge of the last round."""
        self._before, self._opened = None, {}

    def rebase(self, state: Mapping[str, Any]) -> None:
        """Restore an earlier state, and add the charge of the open round to it."""
        opened = self._opened
        self.restore(state)
        if opened:
            self.open(**opened)

    def add(
        self,
        release: Release,
        clients: Iterable[int],
        *,
        share_std: float,
        step: float,
        grain: float = 0.0,
        contributors: int | None = None,
        canaries: Iterable[str] = (),
        bearable: int | None = None,
    ) -> None:
        """Add a round.

        Args:
            release: The sum with the server's noise, if any; the clients' noise is added here.
            clients: Clients that took part, in the sum or in a round that was rejected.
            share_std: Noise that each of them added.
            step: Rounding step of each update; 0 without a secure sum.
            grain: Rounding step of the number type of the noised updates before that.
            contributors: How many of them are in the sum with their noise; None for all.
            canaries: Canaries that some of the clients were told to play, by name.
            bearable: Colluders that the round's secure sum tolerates; None without one.
        """
        who = list(clients)
        self.times.update(who)
        self.canary_times.update(canaries)
        if bearable is not None:
            self.bearable = bearable if self.bearable is None else min(bearable, self.bearable)
        self.is_masked |= step > 0
        # Each client rounds separately, so rounding is not post-processing of the noised sum. Only
        # a fine grid leaves the Gaussian analysis valid.
        is_coarse = share_std < 2 * max(step, grain)
        count = len(who) if contributors is None else contributors
        match self.noise:
            case Central():
                pass
            case Distributed():
                release = replace(release, noise_std=share_std)
                # Integer noise is added after rounding, on any grid.
                self.is_rough |= is_coarse and release.grid is None
            case Local():
                release = replace(release, noise_std=share_std)
                count = 1 if is_coarse else count  # the client's own, which is rounded after it
        self.releases.append(release)
        self.contributors.append(count)

    @property
    def participations(self) -> int:
        """Most rounds that any client took part in."""
        return max(self.times.values(), default=0)

    @property
    def colluders(self) -> int:
        """Clients whose noise does not count, in no round more than its secure sum tolerates."""
        if isinstance(self.noise, Central):
            return 0
        declared = self.noise.colluders if isinstance(self.noise, Distributed) else None
        return min((n for n in (declared, self.bearable) if n is not None), default=0)

    def _sums(self) -> tuple[Release, ...]:
        """Return the sums with all the noise that counts."""
        if isinstance(self.noise, Central):
            return tuple(self.releases)
        least = 1 if isinstance(self.noise, Local) else 0  # a client counts on its own local noise
        return tuple(
            _of_shares(release, max(count - self.colluders, least))
            for release, count in zip(self.releases, self.contributors, strict=True)
        )

    def assurance(self) -> Assurance | None:
        """Return the guarantees of all rounds so far; None before the first round."""
        if not self.releases:
            return None
        return Assurance(
            noise=self.noise,
            releases=self._sums(),
            participations=self.participations,
            canary_rounds=max(self.canary_times.values(), default=0),
            colluders=self.colluders,
            single=tuple(self.releases) if isinstance(self.noise, Local) else (),
            is_masked=self.is_masked,
            is_rough=self.is_rough,
        )

    def state(self) -> dict[str, Any]:
        """Return everything but the noise, which is a setting."""
        return {
            "releases": [r.to_json() for r in self.releases],
            "contributors": list(self.contributors),
            "times": {str(k): v for k, v in self.times.items()},
            "canary_times": dict(self.canary_times),
            "bearable": self.bearable,
            "is_masked": self.is_masked,
            "is_rough": self.is_rough,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self.releases = [Release.from_json(r) for r in state["releases"]]
        self.contributors = list(state["contributors"])
        self.times = Counter({int(k): v for k, v in state["times"].items()})
        self.canary_times, self.bearable = Counter(state["canary_times"]), state["bearable"]
        self.is_masked, self.is_rough = state["is_masked"], state["is_rough"]
        self.close()


def _of_shares(release: Release, shares: int) -> Release:
    """Return a release with the noise of this many contributors, from that of one."""
    grid = None if release.grid is None else replace(release.grid, shares=shares)
    return replace(release, noise_std=release.noise_std * math.sqrt(shares), grid=grid)
