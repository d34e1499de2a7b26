"""What several runs on the same data have released together, kept in a file of JSON lines.

A client that is in the data of two runs has spent both. The ledger composes all runs as if the
same client had taken part as often as anyone could in each of them, and keeps noise, sensitivity,
sampling and participations of every run, never a bare multiplier or a bare epsilon: these cannot
be composed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import Adjacency, Bound
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.run_log import write_atomically
from leakmeter.strategies.accounting.accountant import Release, amplified
from leakmeter.strategies.accounting.assurance import Assurance
from leakmeter.strategies.mechanism import Central


@dataclass(frozen=True)
class Entry:
    """What one run has released.

    Attributes:
        run: Names the run; a later entry of the same run takes the place of an earlier one.
        data: Names the data set.
        seed: Names its noise and cohorts; None if these came from the operating system.
        adjacency: What the guarantee speaks of.
        participations: Most rounds that any client took part in.
        releases: The sums behind the released models.
        amplifies: Whether Poisson sampling may be counted on.
        thin: Chance that one client decided whether a round took place; part of delta then.
        is_rough: Whether rounding was too coarse for a proof.
    """

    run: str
    data: str
    seed: int | None
    adjacency: Adjacency
    participations: int
    releases: tuple[Release, ...]
    amplifies: bool = False
    thin: float = 0.0
    is_rough: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.participations <= len(self.releases):
            raise ValueError(
                f"participations must be in [0, {len(self.releases)}], got {self.participations}"
            )

    @classmethod
    def of(cls, assurance: Assurance, *, run: str, data: str, seed: int | None) -> Self:
        """Return the entry of a run whose releases are known."""
        is_poisson = all(r.sampling == "poisson" for r in assurance.releases)
        amplifies = is_poisson and isinstance(assurance.noise, Central)
        return cls(
            run=run,
            data=data,
            seed=seed,
            adjacency=assurance.adjacency,
            participations=assurance.participations,
            releases=assurance.releases,
            amplifies=amplifies,
            thin=assurance.thin_rounds() if amplifies else 0.0,
            is_rough=assurance.is_rough,
        )

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the entry that `to_json` wrote."""
        releases = tuple(
            Release(**{k: v for k, v in group.items() if k != "count"})
            for group in values["releases"]
            for _ in range(int(group["count"]))
        )
        return cls(**{**values, "releases": releases})

    def to_json(self) -> dict[str, Any]:
        """Return plain values, equal releases once with their number."""
        groups = [{**asdict(r), "count": n} for r, n in Counter(self.releases).items()]
        return {**asdict(self), "releases": groups}


@dataclass(frozen=True)
class Ledger:
    """A file of entries, one a line; it need not be there yet."""

    path: Path

    def entries(self, data: str, *, but: str = "") -> list[Entry]:
        """Return the latest entry of each run on `data`, without the run `but`."""
        latest = {entry.run: entry for entry in self._read()}
        return [e for e in latest.values() if e.data == data and e.run != but]

    def record(self, entry: Entry) -> None:
        """Write the entry, in place of an earlier one of the same run, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.path):
            kept = [e for e in self._read() if e.run != entry.run]
            lines = [json.dumps(e.to_json(), allow_nan=False) for e in (*kept, entry)]
            write_atomically(self.path, "\n".join(lines) + "\n")

    def _read(self) -> list[Entry]:
        if not self.path.exists():
            return []
        found = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                found.append(Entry.from_json(json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                # Nothing is skipped: a lost line is a spending that nobody counts.
                raise ValueError(
                    f"ledger must hold one entry a line, got line {number} of {self.path}: {error}"
                ) from None
        return found


def spent(entries: Sequence[Entry], delta: float) -> Bound:
    """Return ε of everything in the entries, against all who see models, no amplification."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    adjacency = _adjacency(entries)
    separations = [
        s
        for entry in entries
        for s in sorted((r.separation(adjacency) for r in entry.releases), reverse=True)[
            : entry.participations
        ]
    ]
    total = math.hypot(*separations)
    return Bound(
        value=math.inf if math.isinf(total) else float(epsilon_gaussian(delta, total)),
        kind="approximation" if any(e.is_rough for e in entries) else "guarantee",
        delta=delta,
        rule=f"Gaussian mechanisms composed over {len(entries)} run(s), {adjacency}",
        sample_sizes={"runs": len(entries), "participations": len(separations)},
        assumptions=(Assumption.FRESH_RUNS, Assumption.SAME_CLIENT_EVERYWHERE),
    )


def spent_amplified(entries: Sequence[Entry], delta: float) -> Bound | None:
    """Return ε against those who never learn a cohort; None unless all runs sampled by Poisson.

    The same seed draws the same cohorts, so runs that share one are not amplified either.
    """
    seeds = [e.seed for e in entries if e.seed is not None]
    left = delta - math.fsum(e.thin for e in entries)
    if not entries or not all(e.amplifies for e in entries) or len(set(seeds)) < len(seeds):
        return None
    if left <= 0:
        return None
    releases = [r for e in entries for r in e.releases]
    bound = amplified(releases, left, adjacency=_adjacency(entries))
    return Bound(
        bound.value,
        "approximation" if any(e.is_rough for e in entries) else bound.kind,
        f"{bound.rule}, {len(entries)} run(s)",
        delta,
        assumptions=(*bound.assumptions, Assumption.FRESH_RUNS),
    )


def _adjacency(entries: Sequence[Entry]) -> Adjacency:
    """Return what all entries can be priced for: zeroing out costs no more than adding."""
    return "add-remove" if any(e.adjacency == "add-remove" for e in entries) else "zero-out"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other runs from writing the same ledger meanwhile, where the system has file locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.with_name(path.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
